//! Simulates a gNMI target with a tree of leaves in memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_controller::Stamp;
use penstock_controller::southbound::PortInfo;
use penstock_controller::southbound::gnmi::leaves::{Leaves, flatten, path, shown};
use penstock_controller::southbound::gnmi::proto::g_nmi_server::{GNmi, GNmiServer};
use penstock_controller::southbound::gnmi::proto::get_request::DataType;
use penstock_controller::southbound::gnmi::proto::gnmi_ext::extension::Ext;
use penstock_controller::southbound::gnmi::proto::typed_value::Value as Typed;
use penstock_controller::southbound::gnmi::proto::{
    CapabilityRequest, CapabilityResponse, GetRequest, GetResponse, Notification, ScalarArray,
    SetRequest, SetResponse, SubscribeRequest, SubscribeResponse, TypedValue, Update,
};
use penstock_controller::southbound::gnmi::{GnmiSwitch, Settings, Tls};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// Fault of the simulated gNMI target.
#[derive(Clone)]
pub enum Fault {
    /// The target refuses every Set.
    Refuse,
    /// Another controller writes the given stamp just before the next Set.
    Overtake(Stamp),
    /// The target answers every Get with the given bytes.
    Answer(Vec<u8>),
    /// The target never answers a Get.
    Hang,
    /// The target refuses a Get of a single type of data.
    OnlyAll,
    /// The target answers NOT_FOUND if one of the paths has no data.
    NotFound,
    /// The target refuses a Get below `/system`, because it does not have this model.
    NoSystem,
    /// The target refuses a Set with a role, as SONiC's target does.
    NoRole,
    /// The target delays each Set until the test releases the Set.
    SlowSet(Arc<Notify>),
    /// The target answers with values of protobuf instead of JSON.
    Scalars,
    /// The target also reports its state. After a Set, the target applies the configuration only
    /// after this number of Gets.
    Behind(u32),
}

#[derive(Default)]
struct Inner {
    leaves: Leaves,
    fault: Option<Fault>,
    master: Stamp,
    sets: u32,
    /// Number of Sets that the target has received, completed or not.
    asked: u32,
    setting: Arc<Notify>,
    /// Configuration that the target has applied, with [`Fault::Behind`].
    applied: Leaves,
    /// Number of Gets until the target applies its configuration.
    behind: u32,
    /// Paths and values that clients have written, in order.
    written: Vec<(String, serde_json::Value)>,
}

#[derive(Clone, Default)]
struct Double(Arc<Mutex<Inner>>);

/// Running simulated target. Dropping the [`Target`] stops the simulated target.
pub struct Target {
    double: Double,
    address: String,
    authority: String,
    task: AbortHandle,
}

fn certified() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate")
}

/// Returns a CA certificate that did not sign the target's certificate.
pub fn stranger() -> String {
    certified().cert.pem()
}

impl Target {
    /// Starts a target on a free port, with its own certificate.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let key = certified();
        let identity = Identity::from_pem(key.cert.pem(), key.signing_key.serialize_pem());
        let double = Double::default();
        let service = GNmiServer::new(double.clone());
        let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
        let server = server.expect("a certificate").add_service(service);
        let incoming = TcpListenerStream::new(listener);
        let task = tokio::spawn(server.serve_with_incoming(incoming)).abort_handle();
        let address = format!("localhost:{port}");
        Self { double, address, authority: key.cert.pem(), task }
    }

    /// Returns the settings with which a driver reaches the target.
    pub fn settings(&self) -> Settings {
        let tls = Tls { authority: self.authority.clone(), name: None, identity: None };
        let login = Some(("admin".to_owned(), "secret".to_owned()));
        let (address, set_wait) = (self.address.clone(), Duration::from_secs(5));
        Settings { address, tls: Some(tls), login, queues: 8, set_wait }
    }

    /// Returns a driver of the target.
    pub fn switch(&self) -> GnmiSwitch {
        let rate = penstock_units::BitsPerSecond(1);
        let ports = ["Ethernet1/1", "eth2"].map(|name| PortInfo { name: name.into(), rate });
        GnmiSwitch::new("leaf1", &ports, self.settings()).expect("good settings")
    }

    pub fn set_fault(&self, fault: Fault) {
        self.double.0.lock().expect("no panic").fault = Some(fault);
    }

    pub fn put(&self, path: &str, text: &str) {
        let mut inner = self.double.0.lock().expect("no panic");
        inner.leaves.insert(path.to_owned(), text.to_owned());
    }

    pub fn leaves(&self) -> Leaves {
        self.double.0.lock().expect("no panic").leaves.clone()
    }

    /// Returns the paths and values that clients have written, in order.
    pub fn written(&self) -> Vec<(String, serde_json::Value)> {
        self.double.0.lock().expect("no panic").written.clone()
    }

    /// Restarts the simulated target with an empty tree.
    pub fn forget(&self) {
        self.double.0.lock().expect("no panic").leaves.clear();
    }

    /// Returns true if the target reports the state of an entry ([`Fault::Behind`]).
    pub fn has_state(&self) -> bool {
        !self.double.0.lock().expect("no panic").applied.is_empty()
    }

    /// Waits until the target executes a Set.
    pub async fn setting(&self) {
        let setting = self.double.0.lock().expect("no panic").setting.clone();
        setting.notified().await;
    }

    pub fn asked(&self) -> u32 {
        self.double.0.lock().expect("no panic").asked
    }

    /// Returns the number of Sets that the target has completed.
    pub fn sets(&self) -> u32 {
        self.double.0.lock().expect("no panic").sets
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn login<T>(request: &Request<T>) -> Result<(), Status> {
    let is = |key, value: &str| request.metadata().get(key).is_some_and(|v| v == value);
    match is("username", "admin") && is("password", "secret") {
        true => Ok(()),
        false => Err(Status::unauthenticated("who are you?")),
    }
}

impl Inner {
    fn set(&mut self, request: &SetRequest) -> Result<(), Status> {
        match self.fault.clone() {
            Some(Fault::Refuse) => return Err(Status::unimplemented("no such feature")),
            Some(Fault::Overtake(stamp)) => {
                (self.master, self.fault) = (stamp, None);
                let term = format!(
                    "/qos/classifiers/classifier[name=penstock-stamp]/terms/term[id={stamp}]"
                );
                self.leaves.insert(format!("{term}/config/id"), stamp.to_string());
            }
            _ => {}
        }
        let [extension] = request.extension.as_slice() else {
            return Err(Status::invalid_argument("one extension"));
        };
        let Some(Ext::MasterArbitration(arbitration)) = &extension.ext else {
            return Err(Status::invalid_argument("no arbitration"));
        };
        if matches!(self.fault, Some(Fault::NoRole)) && arbitration.role.is_some() {
            return Err(Status::unimplemented("MA: Role is not implemented"));
        }
        let id = arbitration.election_id.unwrap_or_default();
        let id = Stamp { epoch: id.high, generation: id.low };
        if id < self.master {
            return Err(Status::permission_denied("not the master"));
        }
        let mut after = self.leaves.clone();
        for gone in &request.delete {
            let gone = format!("{}/", shown(None, Some(gone)));
            after.retain(|path, _| !path.starts_with(&gone));
        }
        for update in &request.update {
            let at = shown(None, update.path.as_ref());
            let typed = update.val.as_ref().and_then(|typed| typed.value.clone());
            let Some(Typed::JsonIetfVal(text)) = typed else {
                return Err(Status::invalid_argument("no JSON"));
            };
            let value = serde_json::from_slice(&text);
            let value = value.map_err(|e| Status::invalid_argument(e.to_string()))?;
            let mut new = Leaves::new();
            flatten(&at, &value, &mut new).map_err(Status::invalid_argument)?;
            for (path, text) in new {
                let before = after.get(&path).filter(|_| is_leaf_list(&path)).cloned();
                after.insert(path, before.map_or(text.clone(), |before| union(&before, &text)));
            }
            self.written.push((at, value));
        }
        if let Some(Fault::Behind(gets)) = self.fault {
            self.behind = gets;
        }
        (self.leaves, self.master, self.sets) = (after, id, self.sets + 1);
        Ok(())
    }

    /// Returns the leaves that the target reports, and the fault.
    fn report(&mut self) -> (Leaves, Option<Fault>) {
        let mut leaves = self.leaves.clone();
        if let Some(Fault::Behind(_)) = self.fault {
            match self.behind.checked_sub(1) {
                Some(fewer) => self.behind = fewer,
                None => self.applied = self.leaves.clone(),
            }
            let config = self.applied.iter().filter(|(path, _)| path.contains("/config/"));
            leaves
                .extend(config.map(|(at, text)| (at.replace("/config/", "/state/"), text.clone())));
        }
        (leaves, self.fault.clone())
    }
}

fn is_leaf_list(path: &str) -> bool {
    path.ends_with("-set")
}

/// Adds values to a leaf-list. Targets may do this when a client updates a leaf-list.
fn union(before: &str, more: &str) -> String {
    let numbers = before.split(' ').chain(more.split(' ')).filter_map(|text| text.parse().ok());
    let numbers: BTreeSet<u8> = numbers.collect();
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Returns a leaf as JSON, or as a value of protobuf.
fn typed(at: &str, text: &str, scalars: bool) -> Typed {
    let numbers = || text.split(' ').filter_map(|text| text.parse::<u64>().ok());
    match (scalars, is_leaf_list(at)) {
        (false, false) => Typed::JsonIetfVal(serde_json::json!(text).to_string().into()),
        (false, true) => {
            let numbers: Vec<u64> = numbers().collect();
            Typed::JsonIetfVal(serde_json::json!(numbers).to_string().into())
        }
        (true, false) => Typed::StringVal(text.to_owned()),
        (true, true) => {
            let one = |number| TypedValue { value: Some(Typed::UintVal(number)) };
            Typed::LeaflistVal(ScalarArray { element: numbers().map(one).collect() })
        }
    }
}

#[tonic::async_trait]
impl GNmi for Double {
    async fn capabilities(
        &self,
        _: Request<CapabilityRequest>,
    ) -> Result<Response<CapabilityResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    /// Answers a Get with one update per leaf of the tree.
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        login(&request)?;
        let (leaves, fault) = self.0.lock().expect("no panic").report();
        let asked = &request.get_ref().path;
        let asked: Vec<String> = asked.iter().map(|p| shown(None, Some(p))).collect();
        let is_asked = |at: &str| asked.iter().any(|path| at.starts_with(path));
        match fault {
            Some(Fault::OnlyAll) if request.get_ref().r#type() != DataType::All => {
                return Err(Status::unimplemented("unsupported request type"));
            }
            Some(Fault::NoSystem) if asked.iter().any(|path| path.starts_with("/system")) => {
                return Err(Status::invalid_argument("unknown path"));
            }
            Some(Fault::NotFound) => {
                let is_empty = |path: &String| !leaves.keys().any(|at| at.starts_with(path));
                if asked.iter().any(is_empty) {
                    return Err(Status::not_found("no data"));
                }
            }
            _ => {}
        }
        let update = |at: &str, value: Typed| Update {
            path: Some(path(at)),
            val: Some(TypedValue { value: Some(value) }),
            ..Update::default()
        };
        let updates = match fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Answer(answer)) => vec![update("/qos", Typed::JsonIetfVal(answer))],
            fault => {
                let scalars = matches!(fault, Some(Fault::Scalars));
                let some = leaves.iter().filter(|(at, _)| is_asked(at));
                some.map(|(at, text)| update(at, typed(at, text, scalars))).collect()
            }
        };
        let notification = vec![Notification { update: updates, ..Notification::default() }];
        Ok(Response::new(GetResponse { notification, ..GetResponse::default() }))
    }

    async fn set(&self, request: Request<SetRequest>) -> Result<Response<SetResponse>, Status> {
        login(&request)?;
        let (fault, setting) = {
            let mut inner = self.0.lock().expect("no panic");
            inner.asked += 1;
            (inner.fault.clone(), Arc::clone(&inner.setting))
        };
        if let Some(Fault::SlowSet(end)) = fault {
            setting.notify_one();
            end.notified().await;
        }
        self.0.lock().expect("no panic").set(request.get_ref())?;
        Ok(Response::new(SetResponse::default()))
    }

    type SubscribeStream = tokio_stream::Empty<Result<SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        _: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}
