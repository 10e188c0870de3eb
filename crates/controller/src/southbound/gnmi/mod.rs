//! Configures switches that have gNMI and OpenConfig's QoS model.
//!
//! The driver sends a Get of `/qos` and then one Set with all differences. A target, which is the
//! switch's gNMI server, applies a Set atomically (gNMI specification §3.4.3). The module `model`
//! describes the entries that the driver writes. Forwarding groups map code points to queues.
//! Forwarding groups belong to the switch, so all ports of the switch have the same map. The driver
//! can change the switch's map.
//!
//! # Differences between targets
//!
//! If a target refuses a Get of type CONFIG, the driver sends a Get of type ALL and ignores the
//! state leaves. A target with an empty tree may answer NOT_FOUND to a Get. If a target does not
//! support roles, the driver sends a Set without a role. A role limits the MasterArbitration
//! extension to the driver's own entries. If a target has refused a data type or a role, the driver
//! sends no further requests of that form to the target.
//!
//! # The first Set
//!
//! The first Set contains all entries of the driver and may take much longer than later Sets. A Set
//! may take up to a minute, and continues if its caller gives up earlier. The next call of
//! [`apply`](SwitchDriver::apply) waits until the Set ends. The driver then reads the target's
//! tree, so that the driver does not send completed changes again.
//!
//! # Stamp
//!
//! The target's tree contains the stamp (`model`), so the stamp survives a restart of the
//! controller. gNMI has no conditional Set. If the target supports the MasterArbitration extension,
//! the extension excludes other controllers between Get and Set. The election id of the extension
//! is the stamp. If the target does not support the extension, two controllers may write at the
//! same moment. If two controllers have written at the same moment, the next read of the tree shows
//! the difference.
//!
//! # Weights
//!
//! Weights of queues are 1 to 100. The driver gives weight 1 to a queue of weight 0, because
//! OpenConfig's model has no lower weight.
//!
//! # Source
//!
//! The driver follows gNMI 0.10, `openconfig-qos` and RFC 7951. The driver was tested only with a
//! test double.

pub mod leaves;
mod model;
pub mod proto;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use super::step::agree;
use super::{
    Capabilities, Change, DriverError, PortInfo, QueueCounters, SwitchDriver, SwitchState, step,
};
use crate::Stamp;
use leaves::{Leaves, flatten, path, shown};
use model::{Orders, Unfit};
use proto::g_nmi_client::GNmiClient;
use proto::get_request::DataType;
use proto::typed_value::Value as Typed;
use proto::{Encoding, GetRequest, GetResponse, SetRequest, TypedValue, Update};

/// Time limit for the connection to the target, and for an answer of the target.
const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Time limit for the target's answer to a Set.
const SET_MAX: Duration = Duration::from_secs(60);
/// Maximum size of an answer of the target, in bytes.
const ANSWER_MAX: usize = 8 << 20;
const QUEUES_MAX: u8 = 8;
const NAME_MAX: usize = 32;

#[derive(Clone)]
pub struct Tls {
    /// Certificate of the CA that signed the target's certificate, in PEM.
    pub authority: String,
    /// Name in the target's certificate, if the name differs from the target's address.
    pub name: Option<String>,
    /// Certificate and key of the controller in PEM. `None` if the target requires no client
    /// certificate.
    pub identity: Option<(String, String)>,
}

#[derive(Clone)]
pub struct Settings {
    /// Host and port of the target. gNMI's standard port is 9339.
    pub address: String,
    /// TLS settings of the connection. `None` means that the connection is not encrypted.
    pub tls: Option<Tls>,
    /// User and password, which the driver sends with each request. A login requires `tls`.
    pub login: Option<(String, String)>,
    /// Number of usable queues of a port, including the shared queue (2 to 8).
    pub queues: u8,
}

impl std::fmt::Debug for Tls {
    /// Formats the settings without keys, because keys must not appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Settings {
    /// Formats the settings without passwords and keys, because passwords and keys must not appear
    /// in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, tls, login, queues } = self;
        let login = login.as_ref().map(|(user, _)| user);
        let mut show = f.debug_struct("Settings");
        show.field("address", address).field("tls", tls).field("login", &login);
        show.field("queues", queues).finish()
    }
}

/// Driver of a gNMI target with OpenConfig's QoS model.
#[derive(Debug)]
pub struct GnmiSwitch {
    name: String,
    ports: Vec<String>,
    settings: Settings,
    endpoint: Endpoint,
    login: Option<[MetadataValue<Ascii>; 2]>,
    /// True if the target has refused a Get of type CONFIG or STATE.
    only_all: AtomicBool,
    /// True if the target has refused a Set with a role in its MasterArbitration extension.
    no_role: Arc<AtomicBool>,
    /// Lock that the driver holds while a Set runs.
    setting: Arc<Mutex<()>>,
}

/// Returns true if a target may have refused a request because of the request's data type or role.
fn is_unknown(status: &Status) -> bool {
    matches!(status.code(), Code::Unimplemented | Code::InvalidArgument)
}

impl GnmiSwitch {
    /// Creates a driver for a target. The driver does not connect to the target yet.
    ///
    /// # Errors
    /// Returns [`DriverError::Beyond`] if a port's name, a certificate or an address is invalid, or
    /// if a login would be sent without encryption.
    pub fn new(name: &str, ports: &[PortInfo], settings: Settings) -> Result<Self, DriverError> {
        let beyond = |what: String, limit: String, remedy: &str| {
            let remedy = remedy.to_owned();
            Err(DriverError::Beyond { switch: name.to_owned(), what, limit, remedy })
        };
        if !(2..=QUEUES_MAX).contains(&settings.queues) {
            let limit = format!("2 to {QUEUES_MAX} queues");
            return beyond(format!("{} queues", settings.queues), limit, "change its settings");
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
        let is_name =
            |name: &str| !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(plain);
        if let Some(wrong) = ports.iter().find(|port| !is_name(&port.name)) {
            let limit = format!("a port's name has 1 to {NAME_MAX} letters, digits or . _ - / :");
            return beyond(format!("port {:?}", wrong.name), limit, "name a port of the switch");
        }
        if settings.login.is_some() && settings.tls.is_none() {
            let (what, limit) =
                ("a login without TLS".to_owned(), "only TLS hides the login".to_owned());
            return beyond(what, limit, "set `tls` with the CA of the target's certificate");
        }
        let ascii = |text: &String| {
            let mut value = text.parse::<MetadataValue<Ascii>>().ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let login = settings.login.as_ref();
        let login = login.map(|(user, word)| Some([ascii(user)?, ascii(word)?]));
        if login == Some(None) {
            let limit = "printable ASCII".to_owned();
            return beyond("user or password".to_owned(), limit, "choose another");
        }
        match endpoint(&settings) {
            Ok(endpoint) => {
                let (name, login) = (name.to_owned(), login.flatten());
                let ports = ports.iter().map(|port| port.name.clone()).collect();
                let (only_all, no_role, setting) = Default::default();
                Ok(Self { name, ports, settings, endpoint, login, only_all, no_role, setting })
            }
            Err(error) => beyond(
                format!("address {:?}", settings.address),
                format!("{error:?}"),
                "write HOST:PORT, and use certificate files in PEM format",
            ),
        }
    }

    fn can(&self) -> Capabilities {
        Capabilities {
            queues: self.settings.queues,
            classes: self.settings.queues,
            weights: (1, 100),
            remap: true,
            fixed_map: BTreeMap::new(),
            map_per_port: false,
        }
    }

    fn unfit(&self, unfit: Unfit) -> DriverError {
        let switch = self.name.clone();
        match unfit {
            Unfit::Foreign(path, other) => DriverError::Beyond {
                switch,
                what: format!("changing {path}"),
                limit: format!("the value {other} was not set by Penstock"),
                remedy: "remove the value from the switch, or leave the port out of the topology"
                    .to_owned(),
            },
            Unfit::Rubbish(what, problem) => DriverError::Rubbish { switch, what, problem },
        }
    }

    fn failed(&self, what: &str, status: &Status) -> DriverError {
        let (switch, what) = (self.name.clone(), what.to_owned());
        let problem = format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unauthenticated
            | Code::Unknown => DriverError::Unreachable { switch, problem },
            Code::Internal | Code::OutOfRange | Code::DataLoss => {
                DriverError::Rubbish { switch, what, problem }
            }
            _ => DriverError::Refused { switch, change: what, problem },
        }
    }

    async fn connect(&self) -> Result<GNmiClient<Channel>, DriverError> {
        let channel = self.endpoint.connect().await.map_err(|error| {
            let problem = format!("{}: {error:?}", self.settings.address);
            DriverError::Unreachable { switch: self.name.clone(), problem }
        })?;
        Ok(GNmiClient::new(channel).max_decoding_message_size(ANSWER_MAX))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(TIME_MAX);
        if let Some([user, password]) = &self.login {
            request.metadata_mut().insert("username", user.clone());
            request.metadata_mut().insert("password", password.clone());
        }
        request
    }

    async fn get(
        &self,
        client: &mut GNmiClient<Channel>,
        paths: &[String],
        kind: DataType,
    ) -> Result<Leaves, DriverError> {
        let mut ask = async |kind| {
            let path = paths.iter().map(|text| path(text)).collect();
            let mut request = GetRequest { path, ..GetRequest::default() };
            request.set_type(kind);
            request.set_encoding(Encoding::JsonIetf);
            client.get(self.request(request)).await
        };
        let all = self.only_all.load(Ordering::Relaxed);
        let mut answer = ask(if all { DataType::All } else { kind }).await;
        if !all && answer.as_ref().is_err_and(is_unknown) {
            answer = ask(DataType::All).await;
            self.only_all.store(answer.is_ok(), Ordering::Relaxed);
        }
        let what = paths.first().map_or("/qos", String::as_str);
        let answer = match answer {
            Err(status) if status.code() == Code::NotFound => return Ok(Leaves::new()),
            answer => answer.map_err(|status| self.failed(what, &status))?.into_inner(),
        };
        self.leaves(&answer, kind)
    }

    /// Returns the leaves in a target's answer to a Get of type `kind`.
    fn leaves(&self, answer: &GetResponse, kind: DataType) -> Result<Leaves, DriverError> {
        let mut leaves = Leaves::new();
        for notification in &answer.notification {
            for update in &notification.update {
                let at = shown(notification.prefix.as_ref(), update.path.as_ref());
                let rubbish = |problem| self.unfit(Unfit::Rubbish(at.clone(), problem));
                let text = match update.val.as_ref().and_then(|typed| typed.value.as_ref()) {
                    Some(Typed::JsonIetfVal(text) | Typed::JsonVal(text)) => text,
                    other => return Err(rubbish(format!("no JSON: {other:?}"))),
                };
                let value = serde_json::from_slice(text).map_err(|e| rubbish(e.to_string()))?;
                flatten(&at, &value, &mut leaves).map_err(rubbish)?;
            }
        }
        if kind == DataType::Config {
            leaves.retain(|path, _| !path.contains("/state/"));
        }
        Ok(leaves)
    }

    async fn see(
        &self,
        client: &mut GNmiClient<Channel>,
    ) -> Result<(Leaves, SwitchState), DriverError> {
        let leaves = self.get(client, &["/qos".to_owned()], DataType::Config).await?;
        let state = self.state(&leaves)?;
        Ok((leaves, state))
    }

    fn state(&self, leaves: &Leaves) -> Result<SwitchState, DriverError> {
        let refusal = |unfit| self.unfit(unfit).to_string();
        let state = model::state(leaves, &self.ports, self.settings.queues, refusal);
        state.map_err(|unfit| self.unfit(unfit))
    }

    /// Computes a target's state before and after `changes` from the target's answer to a Get,
    /// without a connection to the target.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`SwitchDriver::read_back`] and
    /// [`SwitchDriver::apply`].
    #[doc(hidden)]
    pub fn rehearse(
        &self,
        answer: &GetResponse,
        stamp: Stamp,
        changes: &[Change],
    ) -> Result<[SwitchState; 2], DriverError> {
        let leaves = self.leaves(answer, DataType::Config)?;
        let seen = (leaves.clone(), self.state(&leaves)?);
        DriverError::fence(&self.name, seen.1.stamp, stamp)?;
        let orders = self.orders(&seen, stamp, changes)?;
        let mut after = leaves;
        after.retain(|path, _| !orders.delete.iter().any(|gone| path.starts_with(gone.as_str())));
        for (path, value) in &orders.update {
            let made = flatten(path, value, &mut after);
            made.map_err(|problem| self.unfit(Unfit::Rubbish(path.clone(), problem)))?;
        }
        after.retain(|path, _| !path.contains("/state/"));
        let after = self.state(&after)?;
        Ok([seen.1, after])
    }

    fn orders(
        &self,
        (leaves, state): &(Leaves, SwitchState),
        stamp: Stamp,
        changes: &[Change],
    ) -> Result<Orders, DriverError> {
        let (can, mut target) = (self.can(), state.clone());
        changes.iter().try_for_each(|change| step(&self.name, &can, &mut target, change))?;
        agree(&self.name, &can, &target)?;
        // Ports that are left out do not change.
        let ports: Vec<String> = target.ports.keys().cloned().collect();
        let orders = model::orders(leaves, &ports, self.settings.queues, &target, stamp);
        orders.map_err(|unfit| self.unfit(unfit))
    }

    /// Sends a Set to the target. The Set continues even if the caller gives up.
    async fn set(
        &self,
        client: &GNmiClient<Channel>,
        orders: &Orders,
        stamp: Stamp,
        guard: tokio::sync::OwnedMutexGuard<()>,
    ) -> Result<(), Status> {
        let update = |(at, value): &(String, serde_json::Value)| Update {
            path: Some(path(at)),
            val: Some(TypedValue { value: Some(Typed::JsonIetfVal(value.to_string().into())) }),
            ..Update::default()
        };
        let set = |role| {
            let mut request = self.request(SetRequest {
                delete: orders.delete.iter().map(|text| path(text)).collect(),
                update: orders.update.iter().map(update).collect(),
                extension: vec![proto::arbitration(stamp, role)],
                ..SetRequest::default()
            });
            request.set_timeout(SET_MAX);
            request
        };
        let (with, without) = (set(true), set(false));
        let (mut client, no_role) = (client.clone(), Arc::clone(&self.no_role));
        let done = tokio::spawn(async move {
            let _under_way = guard;
            if !no_role.load(Ordering::Relaxed) {
                match client.set(with).await {
                    Err(status) if is_unknown(&status) => {}
                    done => return done.map(|_| ()),
                }
            }
            let done = client.set(without).await;
            no_role.store(done.is_ok(), Ordering::Relaxed);
            done.map(|_| ())
        });
        done.await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }
}

fn endpoint(settings: &Settings) -> Result<Endpoint, tonic::transport::Error> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", settings.address))?
        .connect_timeout(TIME_MAX);
    if let Some(Tls { authority, name, identity }) = &settings.tls {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        if let Some(name) = name {
            tls = tls.domain_name(name);
        }
        if let Some((certificate, key)) = identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint)
}

#[async_trait]
impl SwitchDriver for GnmiSwitch {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "gnmi"
    }

    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        Ok(self.can())
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        let mut client = self.connect().await?;
        Ok(self.see(&mut client).await?.1)
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        let under_way = Arc::clone(&self.setting).lock_owned().await;
        let mut client = self.connect().await?;
        let seen = self.see(&mut client).await?;
        DriverError::fence(&self.name, seen.1.stamp, stamp)?;
        let orders = self.orders(&seen, stamp, changes)?;
        if orders == Orders::default() {
            return Ok(());
        }
        let Err(status) = self.set(&client, &orders, stamp, under_way).await else { return Ok(()) };
        // If another controller intervened, the target has that controller's later stamp by now.
        let (_, now) = self.see(&mut client).await?;
        DriverError::fence(&self.name, now.stamp, stamp)?;
        Err(self.failed(&orders.words().join("; "), &status))
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        let mut client = self.connect().await?;
        let seen = self.see(&mut client).await?;
        Ok(self.orders(&seen, seen.1.stamp, changes)?.words())
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let mut client = self.connect().await?;
        let output = |port| format!("/qos/interfaces/interface[interface-id={port}]/output/queues");
        let paths: Vec<String> = self.ports.iter().map(output).collect();
        let leaves = self.get(&mut client, &paths, DataType::State).await?;
        let mut all = Vec::new();
        for (port, path) in self.ports.iter().zip(&paths) {
            for queue in 0..self.settings.queues {
                let state = format!("{path}/queue[name=pen-q{queue}]/state");
                let count = |leaf: &str| {
                    let at = format!("{state}/{leaf}");
                    let text = leaves.get(&at).map_or("0", String::as_str);
                    let problem = || Unfit::Rubbish(at.clone(), format!("{text:?}"));
                    text.parse().map_err(|_| self.unfit(problem()))
                };
                let (packets, bytes) = (count("transmit-pkts")?, count("transmit-octets")?);
                let dropped = count("dropped-pkts")?;
                let port = port.clone();
                all.push(QueueCounters { port, queue, packets, bytes, dropped });
            }
        }
        Ok(all)
    }
}

impl Orders {
    fn words(&self) -> Vec<String> {
        let delete = self.delete.iter().map(|path| format!("delete {path}"));
        let update = self.update.iter().map(|(path, value)| format!("update {path} {value}"));
        delete.chain(update).collect()
    }
}

#[cfg(test)]
mod tests;
