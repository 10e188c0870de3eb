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
//! A Get of the driver has the type ALL, because some targets refuse a Get of only configuration or
//! only state. The answer also contains the state of the entries, as far as the target reports it
//! (`leaves`). A target may answer NOT_FOUND if it has no data for one of the paths of a Get. The
//! driver then sends a Get for each path, and reads NOT_FOUND as an empty tree.
//!
//! If a target does not support roles, the driver sends a Set without a role. A role limits the
//! MasterArbitration extension to the driver's own entries. If a target has refused a role, the
//! driver sends no further roles to the target.
//!
//! # Time
//!
//! The first Set contains all entries of the driver and may take much longer than later Sets. A Set
//! may take up to a minute, and continues if its caller gives up earlier. The next call of
//! [`apply`](SwitchDriver::apply) waits until the Set ends. The driver then reads the target's
//! tree, so that the driver does not send completed changes again. While a Set runs,
//! [`patience`](SwitchDriver::patience) asks the caller to wait for [`Settings::set_wait`].
//!
//! A target may answer a Set before it has applied the Set. After a Set, the driver reads the tree
//! until the target's state is equal to the configuration. If the state still differs after 10 s,
//! the driver reports the first leaf that differs. A target without `state` leaves gets a second to
//! create them after the first Set, and the driver then remembers that it has none.
//!
//! # Restarts
//!
//! In each interval, the controller asks for `/system/state/boot-time`. If a target does not have
//! this leaf, only the comparison of all switches finds a restart. If a target has refused the Get,
//! the driver asks again after 60 intervals, because an upgrade may add the leaf.
//!
//! # Stamp
//!
//! The target's tree contains the stamp (`model`), so the stamp survives a restart of the
//! controller. Before each Set, the driver compares the stamp in the tree with its own stamp. This
//! comparison does not depend on extensions of the target. gNMI has no conditional Set. If the
//! target supports the MasterArbitration extension, the extension excludes other controllers
//! between Get and Set. The election id of the extension is the stamp. If the target does not
//! support the extension, two controllers may write at the same moment. If two controllers have
//! written at the same moment, the read after the Set shows the difference.
//!
//! # Credentials
//!
//! The driver makes a new connection for each operation. If certificates and login come from files
//! ([`GnmiSwitch::with_source`]), the driver reads the files before it connects. If a file is
//! missing or damaged, the driver continues with the certificates and the login that it read
//! before.
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

use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use super::driver::{FEWER_QUEUES, summary};
use super::step::agree;
use super::{
    Capabilities, Change, DriverError, PortInfo, QueueCounters, SwitchDriver, SwitchState, step,
};
use crate::Stamp;
use crate::listen::tls::roots;
use crate::wire::describe;
use leaves::{Leaves, StateKinds, Tree, flatten, path, scalar, shown};
use model::{Orders, Unfit};
use proto::g_nmi_client::GNmiClient;
use proto::typed_value::Value as Typed;
use proto::{Encoding, GetRequest, GetResponse, SetRequest, TypedValue, Update};

/// Time limit for the connection to the target, and for an answer of the target.
const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Time limit for the target's answer to a Set.
const SET_MAX: Duration = Duration::from_secs(60);
/// Time between two reads of the tree while the target applies a Set.
const POLL: Duration = Duration::from_millis(100);
/// Time that a target has after a Set to create `state` leaves of kinds that had none before.
const STATE_GRACE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 1_000 });
/// Path of the time at which the target started.
const BOOT_TIME: &str = "/system/state/boot-time";
/// Number of questions for the target's run that the driver does not ask after the target has
/// refused a Get of [`BOOT_TIME`].
const BOOT_TIME_PAUSE: u32 = 60;
/// Maximum size of an answer of the target, in bytes.
const ANSWER_MAX: usize = 8 << 20;
const QUEUES_MAX: u8 = 8;
const NAME_MAX: usize = 32;

/// Certificates and login of a target.
pub type Credentials = (Option<Tls>, Option<(String, String)>);

/// Function that reads the certificates and the login, or says what is wrong with their files.
pub type Source = dyn Fn() -> Result<Credentials, String> + Send + Sync;

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
    /// Time for which a caller should wait for a Set.
    pub set_wait: Duration,
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
        let Self { address, tls, login, queues, set_wait } = self;
        let login = login.as_ref().map(|(user, _)| user);
        let mut show = f.debug_struct("Settings");
        show.field("address", address).field("tls", tls).field("login", &login);
        show.field("queues", queues).field("set_wait", set_wait).finish()
    }
}

/// Address of a target with certificates, and login in the form that requests need.
#[derive(Debug)]
struct Access {
    endpoint: Endpoint,
    login: Option<[MetadataValue<Ascii>; 2]>,
    /// Last reported problem of the files, as long as the driver continues without them.
    problem: Option<String>,
}

/// Driver of a gNMI target with OpenConfig's QoS model.
pub struct GnmiSwitch {
    name: String,
    ports: Vec<String>,
    settings: Settings,
    source: Option<Arc<Source>>,
    access: std::sync::Mutex<Access>,
    /// True if the target has refused a Set with a role in its MasterArbitration extension.
    no_role: Arc<AtomicBool>,
    /// Lock that the driver holds while a Set runs.
    setting: Arc<Mutex<()>>,
    /// Time until which a caller should wait for the running Set. `None` if no caller waits.
    wait_until: std::sync::Mutex<Option<Instant>>,
    kinds: std::sync::Mutex<StateKinds>,
    /// Number of questions for the target's run until the driver asks for [`BOOT_TIME`] again.
    boot_time_pause: AtomicU32,
}

impl std::fmt::Debug for GnmiSwitch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, ports, settings, .. } = self;
        let mut show = f.debug_struct("GnmiSwitch");
        show.field("name", name).field("ports", ports).field("settings", settings);
        show.finish_non_exhaustive()
    }
}

/// Mark that a caller waits for a Set. Dropping the mark removes it.
struct Waiting<'a>(&'a GnmiSwitch);

impl<'a> Waiting<'a> {
    fn new(switch: &'a GnmiSwitch) -> Self {
        let until = Instant::now() + switch.settings.set_wait;
        *switch.wait_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        Self(switch)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.wait_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Returns true if a target may have refused a Set because of the Set's role.
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
            return beyond(format!("{} queues", settings.queues), limit, FEWER_QUEUES);
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
        match Access::new(&settings) {
            Ok(access) => Ok(Self {
                name: name.to_owned(),
                ports: ports.iter().map(|port| port.name.clone()).collect(),
                settings,
                source: None,
                access: std::sync::Mutex::new(access),
                no_role: Arc::default(),
                setting: Arc::default(),
                wait_until: std::sync::Mutex::default(),
                kinds: std::sync::Mutex::default(),
                boot_time_pause: AtomicU32::default(),
            }),
            Err(problem) => beyond(
                format!("the connection to {:?}", settings.address),
                problem,
                "write HOST:PORT, certificate files in PEM format, and a login in printable ASCII",
            ),
        }
    }

    /// Sets the function that reads the certificates and the login before each connection.
    #[must_use]
    pub fn with_source(mut self, source: Arc<Source>) -> Self {
        self.source = Some(source);
        self
    }

    fn access(&self) -> std::sync::MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the certificates and the login again. If they are not valid, the former ones stay in
    /// force, and the log says so once.
    async fn read_credentials(&self) {
        let Some(source) = self.source.clone() else { return };
        let read = tokio::task::spawn_blocking(move || source()).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        let made = read.and_then(|(tls, login)| {
            Access::new(&Settings { tls, login, ..self.settings.clone() })
        });
        let mut access = self.access();
        match made {
            Ok(made) => *access = made,
            Err(problem) if access.problem.as_ref() == Some(&problem) => {}
            Err(problem) => {
                let switch = &self.name;
                tracing::warn!(
                    "switch {switch}: the previous certificates and login are still in use: \
                     {problem}"
                );
                access.problem = Some(problem);
            }
        }
    }

    fn can(&self) -> Capabilities {
        let queues = self.settings.queues;
        Capabilities { map_per_port: false, ..Capabilities::new(queues, queues) }
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
        self.read_credentials().await;
        let endpoint = self.access().endpoint.clone();
        let channel = endpoint.connect().await.map_err(|error| {
            let problem = format!("{}: {}", self.settings.address, describe(&error));
            DriverError::Unreachable { switch: self.name.clone(), problem }
        })?;
        Ok(GNmiClient::new(channel).max_decoding_message_size(ANSWER_MAX))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(TIME_MAX);
        if let Some([user, password]) = &self.access().login {
            request.metadata_mut().insert("username", user.clone());
            request.metadata_mut().insert("password", password.clone());
        }
        request
    }

    /// Reads all leaves below `paths`.
    async fn get(
        &self,
        client: &mut GNmiClient<Channel>,
        paths: &[String],
    ) -> Result<Leaves, DriverError> {
        if let Some(leaves) = self.ask(client, paths).await? {
            return Ok(leaves);
        }
        let mut all = Leaves::new();
        if paths.len() > 1 {
            // One path without data is enough for NOT_FOUND.
            for path in paths {
                all.extend(self.ask(client, slice::from_ref(path)).await?.unwrap_or_default());
            }
        }
        Ok(all)
    }

    /// Sends a Get. Returns `None` if the target has no data for one of the paths.
    async fn ask(
        &self,
        client: &mut GNmiClient<Channel>,
        paths: &[String],
    ) -> Result<Option<Leaves>, DriverError> {
        // ALL is the default type of data.
        let path = paths.iter().map(|text| path(text)).collect();
        let mut request = GetRequest { path, ..GetRequest::default() };
        request.set_encoding(Encoding::JsonIetf);
        match client.get(self.request(request)).await {
            Ok(answer) => self.leaves(answer.get_ref()).map(Some),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => {
                let what = paths.first().map_or("/qos", String::as_str);
                Err(self.failed(what, &status))
            }
        }
    }

    /// Returns the leaves in a target's answer to a Get.
    fn leaves(&self, answer: &GetResponse) -> Result<Leaves, DriverError> {
        let mut leaves = Leaves::new();
        for notification in &answer.notification {
            for update in &notification.update {
                let at = shown(notification.prefix.as_ref(), update.path.as_ref());
                let rubbish = |problem| self.unfit(Unfit::Rubbish(at.clone(), problem));
                let typed = update.val.as_ref();
                let value: serde_json::Value = match typed.and_then(|typed| typed.value.as_ref()) {
                    Some(Typed::JsonIetfVal(text) | Typed::JsonVal(text)) => {
                        serde_json::from_slice(text).map_err(|e| rubbish(e.to_string()))?
                    }
                    other => {
                        let value = typed.and_then(scalar);
                        value.ok_or_else(|| rubbish(format!("no JSON: {other:?}")))?
                    }
                };
                flatten(&at, &value, &mut leaves).map_err(rubbish)?;
            }
        }
        Ok(leaves)
    }

    fn kinds(&self) -> std::sync::MutexGuard<'_, StateKinds> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn see(
        &self,
        client: &mut GNmiClient<Channel>,
    ) -> Result<(Tree, SwitchState), DriverError> {
        self.look_at(client, false).await
    }

    /// Reads the target's tree. If `waits` is true, leaves without `state` are not applied as long
    /// as the target may still create it.
    async fn look_at(
        &self,
        client: &mut GNmiClient<Channel>,
        waits: bool,
    ) -> Result<(Tree, SwitchState), DriverError> {
        let leaves = self.get(client, &["/qos".to_owned()]).await?;
        let tree = {
            let mut kinds = self.kinds();
            kinds.learn(&leaves);
            Tree::with(leaves, |path| kinds.applied_without(path, waits))
        };
        let state = self.state(&tree)?;
        Ok((tree, state))
    }

    fn state(&self, tree: &Tree) -> Result<SwitchState, DriverError> {
        let refusal = |unfit| self.unfit(unfit).to_string();
        let state = model::state(tree, &self.ports, self.settings.queues, refusal);
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
        let tree = Tree::new(self.leaves(answer)?);
        let before = self.state(&tree)?;
        DriverError::fence(&self.name, before.stamp, stamp)?;
        let orders = self.orders(&tree, &self.target(&before, changes)?, stamp)?;
        // The target applies its whole configuration at once.
        let mut leaves = tree.intent;
        leaves.retain(|path, _| !orders.delete.iter().any(|gone| path.starts_with(gone.as_str())));
        for (path, value) in &orders.update {
            let made = flatten(path, value, &mut leaves);
            made.map_err(|problem| self.unfit(Unfit::Rubbish(path.clone(), problem)))?;
        }
        let after = self.state(&Tree::new(leaves))?;
        Ok([before, after])
    }

    /// Returns the state of the ports after `changes`, without the ports that are left out.
    fn target(&self, is: &SwitchState, changes: &[Change]) -> Result<SwitchState, DriverError> {
        let (can, mut target) = (self.can(), is.clone());
        changes.iter().try_for_each(|change| step(&self.name, &can, &mut target, change))?;
        agree(&self.name, &can, &target)?;
        Ok(target)
    }

    /// Returns the operations that bring the target's tree to the state `target`.
    fn orders(
        &self,
        tree: &Tree,
        target: &SwitchState,
        stamp: Stamp,
    ) -> Result<Orders, DriverError> {
        let ports: Vec<String> = target.ports.keys().cloned().collect();
        let orders = model::orders(tree, &ports, self.settings.queues, target, stamp);
        orders.map_err(|unfit| self.unfit(unfit))
    }

    /// Waits until the target has applied the state `target`, as far as the target reports what it
    /// has applied.
    async fn settle(
        &self,
        client: &mut GNmiClient<Channel>,
        (target, stamp): (&SwitchState, Stamp),
        changes: &[Change],
    ) -> Result<(), DriverError> {
        let began = Instant::now();
        let end = began + TIME_MAX;
        loop {
            let waits = began.elapsed() < STATE_GRACE;
            let (tree, now) = self.look_at(client, waits).await?;
            DriverError::fence(&self.name, now.stamp, stamp)?;
            if !waits {
                self.kinds().give_up(&tree.intent);
            }
            let orders = self.orders(&tree, target, stamp)?;
            let Some(missing) = orders.first() else { return Ok(()) };
            if Instant::now() >= end {
                return Err(DriverError::Refused {
                    switch: self.name.clone(),
                    change: summary(stamp, changes),
                    problem: format!(
                        "the target accepted the Set, but does not report {missing} as applied \
                         after {TIME_MAX:?}"
                    ),
                });
            }
            tokio::time::sleep(POLL).await;
        }
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

impl Access {
    /// Checks and converts the address, the certificates and the login. An error says what is wrong
    /// with them.
    fn new(settings: &Settings) -> Result<Self, String> {
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", settings.address));
        let mut endpoint = endpoint.map_err(|e| describe(&e))?.connect_timeout(TIME_MAX);
        if let Some(Tls { authority, name, identity }) = &settings.tls {
            let roots = roots(authority.as_bytes()).map_err(|error| describe(&error))?;
            if roots.is_empty() {
                return Err("no certificate of an authority".to_owned());
            }
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
            if let Some(name) = name {
                tls = tls.domain_name(name);
            }
            if let Some((certificate, key)) = identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| describe(&error))?;
        }
        let ascii = |text: &String| {
            let value = text.parse::<MetadataValue<Ascii>>();
            let mut value = value.map_err(|_| "user or password is not printable ASCII")?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        };
        let login = settings.login.as_ref();
        let login = login.map(|(user, word)| Ok::<_, String>([ascii(user)?, ascii(word)?]));
        Ok(Self { endpoint, login: login.transpose()?, problem: None })
    }
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

    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        let (order, fewer) = (Ordering::Relaxed, |pause: u32| pause.checked_sub(1));
        if self.boot_time_pause.fetch_update(order, order, fewer).is_ok() {
            return Ok(None);
        }
        let mut client = self.connect().await?;
        match self.ask(&mut client, &[BOOT_TIME.to_owned()]).await {
            Ok(leaves) => {
                let mut leaves = leaves.unwrap_or_default().into_iter();
                Ok(leaves.find(|(path, _)| path.ends_with("/boot-time")).map(|(_, time)| time))
            }
            // The target does not have the model.
            Err(DriverError::Refused { .. } | DriverError::Rubbish { .. }) => {
                self.boot_time_pause.store(BOOT_TIME_PAUSE, Ordering::Relaxed);
                Ok(None)
            }
            // The target may refuse the path in another way. If it does not answer at all, the next
            // request fails, too.
            Err(_) => Ok(None),
        }
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        let mut client = self.connect().await?;
        Ok(self.see(&mut client).await?.1)
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        let _waiting = Waiting::new(self);
        let under_way = Arc::clone(&self.setting).lock_owned().await;
        let mut client = self.connect().await?;
        let (tree, is) = self.see(&mut client).await?;
        DriverError::fence(&self.name, is.stamp, stamp)?;
        let target = self.target(&is, changes)?;
        let orders = self.orders(&tree, &target, stamp)?;
        if orders == Orders::default() {
            return Ok(());
        }
        let Err(status) = self.set(&client, &orders, stamp, under_way).await else {
            return self.settle(&mut client, (&target, stamp), changes).await;
        };
        // If another controller intervened, the target has that controller's later stamp by now.
        let (_, now) = self.see(&mut client).await?;
        DriverError::fence(&self.name, now.stamp, stamp)?;
        Err(self.failed(&summary(stamp, changes), &status))
    }

    fn patience(&self) -> Option<Duration> {
        let until = *self.wait_until.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        let mut client = self.connect().await?;
        let (tree, is) = self.see(&mut client).await?;
        Ok(self.orders(&tree, &self.target(&is, changes)?, is.stamp)?.words())
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let mut client = self.connect().await?;
        let output = |port| format!("/qos/interfaces/interface[interface-id={port}]/output/queues");
        let paths: Vec<String> = self.ports.iter().map(output).collect();
        let leaves = self.get(&mut client, &paths).await?;
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
                let waiting = None;
                all.push(QueueCounters { port, queue, packets, bytes, dropped, waiting });
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

    /// Returns the path of the first operation. `None` if there are no operations.
    fn first(&self) -> Option<&str> {
        let update = self.update.first().map(|(path, _)| path);
        update.or(self.delete.first()).map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
