//! Configures a Penstock daemon that acts as a switch. The daemon is `penstock host run` with the
//! section `[switch]` in its file.
//!
//! Each call of the driver sends a single request on its own connection. The driver reads the
//! certificate files for each connection, so the files may change. The daemon ([`crate::switch`])
//! compares stamps and applies a change atomically, so the driver needs no lock.
//!
//! # Source
//!
//! `proto/penstock/switch/v1/switch.proto` defines the messages between driver and daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use super::driver::summary;
use super::left_out::LeftOut;
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

/// Paths of PEM files, which the driver reads for each connection.
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
    left_out: LeftOut,
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
                remedy: "change `queues` of the topology".to_owned(),
            });
        }
        let ports = ports.iter().map(|port| port.name.clone()).collect();
        let left_out = LeftOut::default();
        Ok(Self { name: name.to_owned(), ports, address, queues, left_out })
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

    async fn connect(&self) -> Result<SwitchServiceClient<Channel>, DriverError> {
        let connecting = async {
            let endpoint = match &self.address {
                Address::Socket(path) => Endpoint::from_shared(format!("unix:{}", path.display())),
                Address::Tcp(address, _) => Endpoint::from_shared(format!("https://{address}")),
            };
            let mut endpoint = endpoint.map_err(|error| describe(&error))?;
            if let Address::Tcp(_, tls) = &self.address {
                let tls = client(tls).await?;
                endpoint = endpoint.tls_config(tls).map_err(|error| describe(&error))?;
            }
            let endpoint = endpoint.connect_timeout(TIME_MAX).timeout(TIME_MAX);
            endpoint.connect().await.map_err(|error| describe(&error))
        };
        let connected = tokio::time::timeout(TIME_MAX, connecting).await;
        let connected =
            connected.unwrap_or_else(|_| Err(format!("no connection within {TIME_MAX:?}")));
        let channel = connected.map_err(|problem| {
            let at = match &self.address {
                Address::Socket(path) => path.display().to_string(),
                Address::Tcp(address, _) => address.clone(),
            };
            self.unreachable(format!("{at}: {problem}"))
        })?;
        Ok(SwitchServiceClient::new(channel).max_decoding_message_size(SWITCH_BYTES_MAX))
    }

    async fn state(&self) -> Result<v1::State, DriverError> {
        let request = v1::GetStateRequest { switch: self.name.clone() };
        let answer = self.connect().await?.get_state(request).await;
        Ok(answer.map_err(|status| self.failed("reading its state", &status))?.into_inner())
    }

    /// Returns the capabilities in a daemon's answer.
    fn can(&self, state: &v1::State) -> Result<Capabilities, DriverError> {
        let queues = u8::try_from(state.queues).ok().filter(|queues| *queues <= QUEUES_MAX);
        let queues = queues
            .ok_or_else(|| self.rubbish("a state request", format!("{} queues", state.queues)))?;
        Ok(Capabilities {
            queues: queues.min(self.queues),
            classes: ONE_STEP,
            weights: (state.weight_min, state.weight_max),
            remap: true,
            fixed_map: [].into(),
            map_per_port: true,
        })
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
        self.left_out.log(&self.name, &all);
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
        let answer = self.connect().await?.apply(request).await;
        let answer = answer.map_err(|status| self.failed(&summary(stamp, changes), &status))?;
        let answer = answer.into_inner();
        match answer.has {
            Some(has) => {
                let (switch, has) = (self.name.clone(), has.into());
                Err(DriverError::Fenced { switch, has, told: stamp })
            }
            None => Ok(answer.words),
        }
    }
}

async fn client(tls: &Tls) -> Result<ClientTlsConfig, String> {
    let ca = Certificate::from_pem(read(&tls.ca).await?);
    let identity = Identity::from_pem(read(&tls.certificate).await?, read(&tls.key).await?);
    let config = ClientTlsConfig::new().ca_certificate(ca).identity(identity);
    Ok(config.domain_name(&tls.server_name))
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
        self.can(&self.state().await?)
    }

    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        Ok(Some(self.state().await?.run).filter(|run| !run.is_empty()))
    }

    async fn look(&self) -> Result<(Capabilities, SwitchState), DriverError> {
        let state = self.state().await?;
        Ok((self.can(&state)?, self.has(state)?))
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.has(self.state().await?)
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.tell(stamp, changes, false).await.map(drop)
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        self.tell(Stamp::default(), changes, true).await
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let request = v1::GetCountersRequest { switch: self.name.clone() };
        let answer = self.connect().await?.get_counters(request).await;
        let answer = answer.map_err(|status| self.failed("reading its counters", &status))?;
        let queues = answer.into_inner().queues.into_iter();
        let ours = queues.filter(|queue| self.ports.contains(&queue.port));
        let each = ours.map(|queue| {
            QueueCounters::try_from(queue).map_err(|problem| self.rubbish("its counters", problem))
        });
        each.collect()
    }
}
