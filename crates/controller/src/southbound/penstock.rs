//! Configures a Penstock daemon that acts as a switch. The daemon is `penstock host run` with the
//! section `[switch]` in its file.
//!
//! # Connection
//!
//! Each call of the driver sends a single request. The driver keeps the connection of the last
//! request that succeeded. A request takes the connection, so a request at the same time makes its
//! own. A request that fails or is dropped ends its connection. The driver reads the certificate
//! files for each request, and connects again if they have changed.
//!
//! The daemon may have restarted since the last request. If a kept connection breaks, the driver
//! sends the request once more on a new connection. All requests are idempotent: the daemon
//! ([`crate::switch`]) compares stamps and applies a change atomically, so the driver needs no
//! lock.
//!
//! # Source
//!
//! `proto/penstock/switch/v1/switch.proto` defines the messages between driver and daemon.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status};

use super::driver::{FEWER_QUEUES, summary};
use super::{
    Capabilities, Change, DriverError, ONE_STEP, PortInfo, QueueCounters, SwitchDriver, SwitchState,
};
use crate::Stamp;
use crate::switch::wire::v1::switch_service_client::SwitchServiceClient;
use crate::switch::wire::{SWITCH_BYTES_MAX, v1};
use crate::wire::describe;

/// Time limit for the connection to the daemon, and for an answer of the daemon.
const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Maximum number of queues that a port may have.
const QUEUES_MAX: u8 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Path of the daemon's Unix socket on the controller's machine. Only the socket's owner can
    /// open the socket.
    Socket(PathBuf),
    /// Network address of the daemon as `host:port`, with certificates.
    Tcp(String, Tls),
}

/// Paths of PEM files, which the driver reads for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// CA that signed the switch's certificate.
    pub ca: PathBuf,
    /// Certificate of the controller.
    pub certificate: PathBuf,
    /// Private key of the controller's certificate.
    pub key: PathBuf,
    /// DNS name in the switch's certificate.
    pub server_name: String,
}

#[derive(Debug)]
pub struct PenstockSwitch {
    name: String,
    ports: Vec<String>,
    address: Address,
    queues: u8,
    /// Connection of the last request, if the request succeeded.
    kept: Mutex<Option<Link>>,
}

/// Contents of the files of [`Tls`]: CA, certificate and key.
type Pems = [Vec<u8>; 3];

/// Connection to the daemon.
struct Link {
    client: SwitchServiceClient<Channel>,
    /// Certificates of the connection. `None` on a Unix socket.
    pems: Option<Pems>,
}

impl std::fmt::Debug for Link {
    /// Formats the connection without its key, because keys must not appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl PenstockSwitch {
    /// Creates a driver of the daemon at `address`. `queues` is the number of queues per port that
    /// the driver uses. The driver does not connect to the daemon yet.
    ///
    /// # Errors
    /// Returns [`DriverError::Beyond`] if `queues` is below 2 or above 64.
    pub fn new(
        name: &str,
        ports: &[PortInfo],
        queues: u8,
        address: Address,
    ) -> Result<Self, DriverError> {
        if !(2..=QUEUES_MAX).contains(&queues) {
            return Err(DriverError::Beyond {
                switch: name.to_owned(),
                what: format!("{queues} queues"),
                limit: format!("2 to {QUEUES_MAX} queues"),
                remedy: FEWER_QUEUES.to_owned(),
            });
        }
        let ports = ports.iter().map(|port| port.name.clone()).collect();
        let kept = Mutex::default();
        Ok(Self { name: name.to_owned(), ports, address, queues, kept })
    }

    fn unreachable(&self, problem: String) -> DriverError {
        DriverError::Unreachable { switch: self.name.clone(), problem }
    }

    fn rubbish(&self, what: &str, problem: String) -> DriverError {
        DriverError::Rubbish { switch: self.name.clone(), what: what.to_owned(), problem }
    }

    fn failed(&self, what: &str, status: &Status) -> DriverError {
        let text = || format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::NotFound
            | Code::PermissionDenied => DriverError::Refused {
                switch: self.name.clone(),
                change: what.to_owned(),
                problem: status.message().to_owned(),
            },
            Code::OutOfRange | Code::Internal | Code::DataLoss | Code::Unimplemented => {
                self.rubbish(what, text())
            }
            _ => self.unreachable(text()),
        }
    }

    /// Waits for a step of the connection's setup. An error names the daemon's address.
    async fn set_up<T>(
        &self,
        step: impl Future<Output = Result<T, String>> + Send,
    ) -> Result<T, DriverError> {
        let done = tokio::time::timeout(TIME_MAX, step).await;
        let done = done.unwrap_or_else(|_| Err(format!("no connection within {TIME_MAX:?}")));
        done.map_err(|problem| {
            let at = match &self.address {
                Address::Socket(path) => path.display().to_string(),
                Address::Tcp(address, _) => address.clone(),
            };
            self.unreachable(format!("{at}: {problem}"))
        })
    }

    async fn pems(&self) -> Result<Option<Pems>, DriverError> {
        match &self.address {
            Address::Socket(_) => Ok(None),
            Address::Tcp(_, tls) => self.set_up(pems(tls)).await.map(Some),
        }
    }

    async fn connect(&self, pems: Option<Pems>) -> Result<Link, DriverError> {
        let connecting = async {
            let endpoint = match &self.address {
                Address::Socket(path) => Endpoint::from_shared(format!("unix:{}", path.display())),
                Address::Tcp(address, _) => Endpoint::from_shared(format!("https://{address}")),
            };
            let mut endpoint = endpoint.map_err(|error| describe(&error))?;
            if let (Address::Tcp(_, tls), Some(pems)) = (&self.address, &pems) {
                let tls = client(pems, &tls.server_name);
                endpoint = endpoint.tls_config(tls).map_err(|error| describe(&error))?;
            }
            let endpoint = endpoint.connect_timeout(TIME_MAX);
            endpoint.connect().await.map_err(|error| describe(&error))
        };
        let channel = self.set_up(connecting).await?;
        let client = SwitchServiceClient::new(channel).max_decoding_message_size(SWITCH_BYTES_MAX);
        Ok(Link { client, pems })
    }

    fn kept(&self) -> MutexGuard<'_, Option<Link>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the daemon. `send` sends the request on a given connection, and may be
    /// called twice. `what` names the request in errors.
    async fn ask<T, F>(
        &self,
        what: &str,
        send: impl Fn(SwitchServiceClient<Channel>) -> F + Send + Sync,
    ) -> Result<T, DriverError>
    where
        T: Send,
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let pems = self.pems().await?;
        let kept = self.kept().take().filter(|link| link.pems == pems);
        if let Some(link) = kept {
            match within_time(send(link.client.clone())).await {
                Err(status) if is_broken(&status) => {}
                answer => return self.end(what, link, answer),
            }
        }
        let link = self.connect(pems).await?;
        let answer = within_time(send(link.client.clone())).await;
        self.end(what, link, answer)
    }

    /// Keeps the connection if the request succeeded.
    fn end<T>(&self, what: &str, link: Link, answer: Result<T, Status>) -> Result<T, DriverError> {
        let answer = answer.map_err(|status| self.failed(what, &status))?;
        *self.kept() = Some(link);
        Ok(answer)
    }

    /// Reads the switch's state, or only [`v1::State::run`].
    async fn state(&self, run_only: bool) -> Result<v1::State, DriverError> {
        let send = |mut client: SwitchServiceClient<Channel>| {
            let request = v1::GetStateRequest { switch: self.name.clone(), run_only };
            async move { client.get_state(request).await }
        };
        self.ask("reading its state", send).await
    }

    /// Returns the capabilities in a daemon's answer.
    fn can(&self, state: &v1::State) -> Result<Capabilities, DriverError> {
        let queues = u8::try_from(state.queues).ok().filter(|queues| *queues <= QUEUES_MAX);
        let queues = queues
            .ok_or_else(|| self.rubbish("a state request", format!("{} queues", state.queues)))?;
        let weights = (state.weight_min, state.weight_max);
        Ok(Capabilities { weights, ..Capabilities::new(queues.min(self.queues), ONE_STEP) })
    }

    /// Returns the state of the ports in a daemon's answer.
    fn has(&self, state: v1::State) -> Result<SwitchState, DriverError> {
        let stamp = state.stamp.map_or_else(Stamp::default, Stamp::from);
        let mut all = SwitchState { stamp, ..SwitchState::default() };
        for port in state.ports {
            let read = <(String, super::PortState)>::try_from(port);
            let (name, state) = read.map_err(|problem| self.rubbish("its state", problem))?;
            all.ports.insert(name, state.canonical());
        }
        // Other ports do not belong to this controller.
        all.ports.retain(|name, _| self.ports.contains(name));
        for port in self.ports.iter().filter(|name| !all.ports.contains_key(*name)) {
            // The other ports of the switch do not depend on this port.
            let why = format!(
                "the daemon of switch {} has no port {port} with queues; set egress = \"wfq\" for \
                 the port, or correct `interfaces`",
                self.name
            );
            all.left_out.insert(port.clone(), why);
        }
        Ok(all)
    }

    async fn tell(
        &self,
        stamp: Stamp,
        changes: &[Change],
        dry_run: bool,
    ) -> Result<Vec<String>, DriverError> {
        let request = v1::ApplyRequest {
            switch: self.name.clone(),
            stamp: Some(stamp.into()),
            changes: changes.iter().map(v1::Change::from).collect(),
            dry_run,
        };
        let send = |mut client: SwitchServiceClient<Channel>| {
            let request = request.clone();
            async move { client.apply(request).await }
        };
        let answer = self.ask(&summary(stamp, changes), send).await?;
        match answer.has {
            Some(has) => {
                let (switch, has) = (self.name.clone(), has.into());
                Err(DriverError::Fenced { switch, has, told: stamp })
            }
            None => Ok(answer.words),
        }
    }
}

/// Waits for the daemon's answer.
async fn within_time<T>(
    answer: impl Future<Output = Result<Response<T>, Status>> + Send,
) -> Result<T, Status> {
    match tokio::time::timeout(TIME_MAX, answer).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::cancelled("Timeout expired")),
    }
}

/// Returns true if a request failed on this side of the connection, and not by an answer of the
/// daemon or for lack of an answer.
fn is_broken(status: &Status) -> bool {
    // The daemon never answers with this code. tonic uses it if a connection has ended.
    status.source().is_some() || status.code() == Code::Unknown
}

fn client([ca, certificate, key]: &Pems, server_name: &str) -> ClientTlsConfig {
    let identity = Identity::from_pem(certificate, key);
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    config.identity(identity).domain_name(server_name)
}

async fn pems(tls: &Tls) -> Result<Pems, String> {
    Ok([read(&tls.ca).await?, read(&tls.certificate).await?, read(&tls.key).await?])
}

async fn read(path: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))
}

#[async_trait]
impl SwitchDriver for PenstockSwitch {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "penstock"
    }

    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        self.can(&self.state(false).await?)
    }

    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        Ok(Some(self.state(true).await?.run).filter(|run| !run.is_empty()))
    }

    async fn look(&self) -> Result<(Capabilities, SwitchState), DriverError> {
        let state = self.state(false).await?;
        Ok((self.can(&state)?, self.has(state)?))
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.has(self.state(false).await?)
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.tell(stamp, changes, false).await.map(drop)
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        self.tell(Stamp::default(), changes, true).await
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let send = |mut client: SwitchServiceClient<Channel>| {
            let request = v1::GetCountersRequest { switch: self.name.clone() };
            async move { client.get_counters(request).await }
        };
        let answer = self.ask("reading its counters", send).await?;
        let queues = answer.queues.into_iter();
        let ours = queues.filter(|queue| self.ports.contains(&queue.port));
        let each = ours.map(|queue| {
            QueueCounters::try_from(queue).map_err(|problem| self.rubbish("its counters", problem))
        });
        each.collect()
    }
}
