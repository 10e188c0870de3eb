//! Reads a controller's file with the sections `[controller]`, `[store]`, `[binding]`, `[tls]` and
//! `[[switch]]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_fabric::dscp::Palette;
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::topology::NodeId;
use penstock_toml::schema::{ADDRESS, Tables, has, need};
use penstock_toml::{ConfigErrors, Object, Report, section};
use penstock_units::{NAME_REMEDY, Nanos, check_name};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toml_edit::Table;

use super::{DriverFile, FabricFile, SwitchFile, idle_code_points, switch};
use crate::southbound::sonic;

pub(super) const SECTIONS: [&str; 5] = ["controller", "store", "binding", "tls", "switch"];

/// Default value of the key `connections_per_certificate`.
const CONNECTIONS: usize = 4;
/// Largest permitted value of the key `connections_per_certificate`.
const CONNECTIONS_MAX: usize = 1_000;
/// Largest permitted value of the key `hysteresis_pct`.
const HYSTERESIS_MAX: u32 = 1_000;
/// Longest path of a unix socket in bytes, which is one byte less than `sun_path` (108).
const SOCKET_BYTES_MAX: usize = 107;

/// Settings of a controller as its file describes them.
#[derive(Clone, Debug)]
pub struct ControllerFile {
    pub name: String,
    pub fabric: FabricFile,
    /// Milliseconds between two decisions of the controller.
    pub interval_ms: u64,
    /// Milliseconds between two traffic reports of an agent.
    pub report_ms: u64,
    /// Time limit for the answer of a switch or host, in milliseconds.
    pub answer_ms: u64,
    /// Number of intervals after which the controller again compares all switches with their plans.
    /// 0 means no comparison.
    pub verify_every: u64,
    /// Unix socket on which the controller serves operators.
    pub socket: PathBuf,
    /// Address on which the controller listens for agents. `None` means that no agents can connect.
    pub agents: Option<SocketAddr>,
    /// Maximum number of connections of agents with the same certificate.
    pub connections_per_certificate: usize,
    /// URL at which agents reach this controller. While this controller leads, other controllers
    /// redirect agents to this URL.
    pub advertise: String,
    /// Address on which the controller serves the web page and `/metrics`. `None` means neither.
    pub page: Option<SocketAddr>,
    pub store: StoreFile,
    /// Settings that decide which tenants get their own queues.
    pub binding: Settings,
    /// Certificates for agents' connections. `None` means that connections have no encryption and
    /// no authentication.
    pub tls: Option<TlsFiles>,
    /// Driver and address of each switch in the topology.
    pub switches: BTreeMap<NodeId, SwitchFile>,
}

/// Store in which the controller keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFile {
    /// A store file that only this controller uses.
    File(PathBuf),
    /// An etcd cluster that several controllers share.
    Etcd {
        /// URLs of the members of the etcd cluster.
        endpoints: Vec<String>,
        /// Certificates for `https` connections to the etcd cluster.
        tls: Option<TlsFiles>,
    },
}

/// Paths of the PEM files of certificates and a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificate of the authority that signs the peers' certificates.
    pub ca: PathBuf,
    /// PEM file of the controller's certificate.
    pub cert: PathBuf,
    /// Private key of the certificate in `cert`.
    pub key: PathBuf,
    /// Revocation lists of the authority `ca`.
    pub crl: Option<PathBuf>,
}

impl TlsFiles {
    fn seen_from(self, folder: &Path) -> Self {
        Self {
            ca: folder.join(self.ca),
            cert: folder.join(self.cert),
            key: folder.join(self.key),
            crl: self.crl.map(|crl| folder.join(crl)),
        }
    }
}

/// `[controller]`: name, addresses and time limits of the controller.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Controller {
    /// Name of the controller, unique among the controllers of a fabric, 1 to 64 characters of
    /// `a-z A-Z 0-9 . _ -`. Default `controller`.
    #[serde(default = "one")]
    name: String,
    /// Path of the datacenter's file. A relative path starts at the directory of the controller's
    /// file.
    topology: PathBuf,
    /// Milliseconds between two decisions of the controller, 100 to 60000. Default 4000.
    #[serde(default = "four_seconds")]
    #[schemars(range(min = 100, max = 60_000))]
    interval_ms: u64,
    /// Milliseconds between two traffic reports of an agent, 50 to `interval_ms`. Default 1000.
    #[serde(default = "second")]
    #[schemars(range(min = 50, max = 60_000))]
    report_ms: u64,
    /// Time limit for the answer of a switch or host, in milliseconds, 10 to 60000. Default 2000.
    #[serde(default = "two_seconds")]
    #[schemars(range(min = 10, max = 60_000))]
    answer_ms: u64,
    /// Number of intervals after which the controller again compares all switches with their plans.
    /// 0 means no comparison. Default 5.
    #[serde(default = "five")]
    verify_every: u64,
    /// Unix socket on which the controller serves operators: an absolute path of at most 107 bytes.
    /// Default `/run/penstock/controller.sock`.
    #[serde(default = "socket")]
    socket: PathBuf,
    /// Address on which the controller listens for agents. Default: none.
    #[schemars(with = "Option<String>")]
    agents: Option<SocketAddr>,
    /// Maximum number of connections of agents with the same certificate, 1 to 1000. Requires
    /// `agents` and `[tls]`. Default 4.
    #[schemars(range(min = 1, max = 1_000))]
    connections_per_certificate: Option<usize>,
    /// URL at which agents reach this controller, as in `https://10.0.0.1:7443`. While this
    /// controller leads, other controllers redirect agents to this URL. Default: empty.
    #[serde(default)]
    advertise: String,
    /// Address on which the controller serves the web page and `/metrics`. Default: none.
    #[schemars(with = "Option<String>")]
    page: Option<SocketAddr>,
}

/// Returns the JSON Schema of a controller's file.
pub(super) fn schema() -> String {
    let mut tables = Tables::default();
    let properties = json!({
        "controller": tables.one::<Controller>(),
        "store": tables.one::<StoreTable>(),
        "binding": tables.one::<BindingTable>(),
        "tls": tables.one::<TlsFiles>(),
        "switch": tables.list::<switch::SwitchTable>()
    });
    // Without [tls], agents show no certificates.
    let agents = json!({ "controller": has(&["agents"]) });
    let uncounted = json!({ "controller": {
        "type": "object", "properties": { "connections_per_certificate": false }
    } });
    let of_tables = json!({
        "Controller": { "properties": {
            "agents": { "pattern": ADDRESS }, "page": { "pattern": ADDRESS }
        } },
        "StoreTable": {
            "properties": {
                "endpoints": { "uniqueItems": true },
                "tls": { "type": "object", "properties": { "crl": false } }
            },
            "oneOf": [
                need(&["path"], json!({ "path": true, "endpoints": false, "tls": false })),
                need(&["endpoints"], json!({
                    "endpoints": { "type": "array", "minItems": 1 }, "path": false
                }))
            ]
        },
        "BindingTable": { "properties": {
            "reserved_code_points": {
                "items": { "minimum": 1, "maximum": 63 }, "uniqueItems": true
            }
        } },
        "Switch": switch::rules(),
        "SwitchTls": { "dependentRequired": { "cert": ["key"], "key": ["cert"] } }
    });
    let rules = json!({
        "if": has(&["tls"]),
        "then": { "properties": agents },
        "else": { "properties": uncounted },
        "$defs": of_tables
    });
    let required = ["controller", "store"];
    tables.file("Configures a controller, its store and its drivers.", properties, &required, rules)
}

fn one() -> String {
    "controller".to_owned()
}

fn five() -> u64 {
    5
}

fn second() -> u64 {
    1_000
}

fn two_seconds() -> u64 {
    2_000
}

fn four_seconds() -> u64 {
    4_000
}

fn socket() -> PathBuf {
    PathBuf::from("/run/penstock/controller.sock")
}

/// `[store]`: the store in which the controller keeps tenants and decisions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StoreTable {
    /// Path of a store file that only this controller uses. A relative path starts at the directory
    /// of the controller's file.
    path: Option<PathBuf>,
    /// URLs of the members of an etcd cluster, as an alternative to `path`.
    endpoints: Option<Vec<String>>,
    /// Certificates for `https` connections to etcd. Requires `endpoints`.
    tls: Option<TlsFiles>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
enum Map {
    /// Each code point has a fixed queue, which is identical on all ports.
    #[default]
    #[serde(rename = "static-map")]
    Static,
    /// A tenant has one queue number, which is identical on all ports of a switch.
    #[serde(rename = "per-port-map")]
    PerPort,
    /// A tenant may have a different queue on each port.
    #[serde(rename = "per-egress-map")]
    PerEgress,
}

/// `[binding]`: settings that decide how tenants get their own queues.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BindingTable {
    /// Rule by which switches map code points to queues. Default `static-map`.
    #[serde(default)]
    map: Map,
    /// Code points that the controller never gives to tenants. Default: none.
    #[serde(default)]
    reserved_code_points: Vec<u8>,
    /// Longest time that a packet spends in the fabric, in milliseconds, 0 to 10000. Default 100.
    #[serde(default = "hundred")]
    #[schemars(range(max = 10_000))]
    drain_ms: u64,
    /// Minimum number of intervals for which a tenant keeps a new queue. Default 2.
    #[serde(default = "two")]
    hold: u64,
    /// Hysteresis in percent. A tenant takes another tenant's queue only if its score is more than
    /// `hysteresis_pct` percent higher, 0 to 1000. Default 10.
    #[serde(default = "ten")]
    #[schemars(range(max = 1_000))]
    hysteresis_pct: u32,
}

impl Default for BindingTable {
    fn default() -> Self {
        Self {
            map: Map::Static,
            reserved_code_points: Vec::new(),
            drain_ms: hundred(),
            hold: two(),
            hysteresis_pct: ten(),
        }
    }
}

fn hundred() -> u64 {
    100
}

fn two() -> u64 {
    2
}

fn ten() -> u32 {
    10
}

/// Reads the sections of a controller's file. The argument `fabric` is a function that reads the
/// topology's file. Relative paths start at `folder`.
pub(super) fn read(
    root: &Table,
    folder: &Path,
    report: &mut Report<'_>,
    fabric: impl FnOnce(&Path) -> Result<FabricFile, ConfigErrors>,
) -> Option<ControllerFile> {
    let Some(object) = section::<Controller>(root, "controller", report) else {
        report.file("the section [controller] is missing", "add [controller] with `topology`");
        return None;
    };
    let controller = object.value.as_ref()?;
    times(&object, controller, report);
    identity(&object, controller, report);
    let fabric = match fabric(&folder.join(&controller.topology)) {
        Ok(fabric) => fabric,
        Err(errors) => {
            report.adopt(errors);
            return None;
        }
    };
    let tls = section::<TlsFiles>(root, "tls", report);
    agents(&object, controller, tls.as_ref(), report);
    let tls = tls.and_then(|tls| tls.value).map(|tls| tls.seen_from(folder));
    let store = store(root, folder, report);
    let switches = switch::read(root, folder, &fabric.topology, report);
    let binding = binding(root, &fabric, &switches, report);
    Some(ControllerFile {
        name: controller.name.clone(),
        interval_ms: controller.interval_ms,
        report_ms: controller.report_ms,
        answer_ms: controller.answer_ms,
        verify_every: controller.verify_every,
        socket: controller.socket.clone(),
        agents: controller.agents,
        connections_per_certificate: controller.connections_per_certificate.unwrap_or(CONNECTIONS),
        advertise: controller.advertise.clone(),
        page: controller.page,
        store: store?,
        binding: binding?,
        tls,
        switches,
        fabric,
    })
}

fn times(object: &Object<'_, Controller>, controller: &Controller, report: &mut Report<'_>) {
    let bounds = [
        ("interval_ms", controller.interval_ms, 100, 60_000),
        ("report_ms", controller.report_ms, 50, controller.interval_ms),
        ("answer_ms", controller.answer_ms, 10, 60_000),
    ];
    for (key, value, least, most) in bounds {
        if !(least..=most).contains(&value) {
            let problem = format!("`{key}`: {value} ms");
            report.at(object, key, problem, format!("write {least} to {most}"));
        }
    }
}

/// Checks the limit on agents' connections. Reports settings that have no effect because no agents
/// connect, or because they connect without certificates.
fn agents(
    object: &Object<'_, Controller>,
    controller: &Controller,
    tls: Option<&Object<'_, TlsFiles>>,
    report: &mut Report<'_>,
) {
    let missing = controller.agents.is_none();
    if let Some(tls) = tls.filter(|_| missing) {
        let problem = "the section has no effect without `agents` in [controller]";
        report.at(tls, "ca", problem, "add `agents`, or remove [tls]");
    }
    if missing && !controller.advertise.is_empty() {
        let problem = "`advertise` has no effect without `agents`";
        report.at(object, "advertise", problem, "add `agents`, or remove `advertise`");
    }
    let (key, Some(number)) =
        ("connections_per_certificate", controller.connections_per_certificate)
    else {
        return;
    };
    if !(1..=CONNECTIONS_MAX).contains(&number) {
        let problem = format!("`{key}`: {number}");
        let remedy =
            format!("write 1 to {CONNECTIONS_MAX}; an agent needs 1, and 2 while it reconnects");
        report.at(object, key, problem, remedy);
    } else if missing || tls.is_none() {
        let needed = if missing { "`agents`" } else { "[tls]" };
        let problem = format!("`{key}` has no effect without {needed}");
        report.at(object, key, problem, format!("add {needed}, or remove `{key}`"));
    }
}

/// Checks the name and the addresses of the controller. In the election, the store keeps both in
/// one line, with a blank between them.
fn identity(object: &Object<'_, Controller>, controller: &Controller, report: &mut Report<'_>) {
    if let Err(mistake) = check_name(&controller.name) {
        report.at(object, "name", mistake.to_string(), NAME_REMEDY);
    }
    let socket = &controller.socket;
    if !socket.is_absolute() {
        let problem = format!("socket path {socket:?} is relative");
        report.at(object, "socket", problem, "write an absolute path");
    } else if socket.as_os_str().len() > SOCKET_BYTES_MAX {
        let problem = format!(
            "socket path has {} bytes, the limit of a unix socket is {SOCKET_BYTES_MAX}",
            socket.as_os_str().len()
        );
        report.at(object, "socket", problem, "choose a shorter directory or name");
    }
    let advertise = controller.advertise.as_str();
    if !advertise.is_empty() && !is_url(advertise) {
        let problem = format!("`advertise`: {advertise:?} is not a URL with a host and a port");
        report.at(object, "advertise", problem, "write a URL, as in \"https://10.0.0.1:7443\"");
    }
}

/// Whether agents can use `url` as the address of a controller: `https://HOST:PORT`,
/// `http://HOST:PORT` or `HOST:PORT`.
fn is_url(url: &str) -> bool {
    let address = match url.split_once("://") {
        Some(("http" | "https", address)) => address,
        Some(_) => return false,
        None => url,
    };
    let named = address.strip_suffix('/').unwrap_or(address).rsplit_once(':');
    named.is_some_and(|(host, port)| {
        let plain = |c: char| !c.is_whitespace() && c != '/';
        !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok()
    })
}

fn store(root: &Table, folder: &Path, report: &mut Report<'_>) -> Option<StoreFile> {
    let Some(object) = section::<StoreTable>(root, "store", report) else {
        report.file("the section [store] is missing", "add [store] with `path` or `endpoints`");
        return None;
    };
    let table = object.value.as_ref()?;
    match (&table.path, &table.endpoints) {
        (Some(path), None) if path.as_os_str().is_empty() => {
            report.at(&object, "path", "`path` is empty", "write the path of the store's file");
            None
        }
        (Some(path), None) => {
            if table.tls.is_some() {
                let problem = "`tls` has no effect on a store in a file";
                report.at(&object, "tls", problem, "remove `tls`, or write `endpoints`");
            }
            Some(StoreFile::File(folder.join(path)))
        }
        (None, Some(endpoints)) if endpoints.is_empty() => {
            report.at(&object, "endpoints", "`endpoints` is empty", "write a member's URL");
            None
        }
        (None, Some(endpoints)) => {
            report.twice(&object, "endpoints", endpoints);
            let (endpoints, tls) = (endpoints.clone(), table.tls.clone());
            if tls.as_ref().is_some_and(|tls| tls.crl.is_some()) {
                let problem = "`crl`: the client of etcd does not check revocation lists";
                report.at(&object, "tls", problem, "remove `crl`");
            }
            Some(StoreFile::Etcd { endpoints, tls: tls.map(|tls| tls.seen_from(folder)) })
        }
        _ => {
            let problem = "a store is either a file or etcd";
            report.at(&object, "path", problem, "write `path`, or `endpoints`");
            None
        }
    }
}

/// Returns the code points that tenants cannot have in this fabric: those that the topology's file
/// reserves, and those of network control if a SONiC switch keeps its control queue.
fn taken_code_points(fabric: &FabricFile, switches: &BTreeMap<NodeId, SwitchFile>) -> Vec<u8> {
    let keeps = |switch: &SwitchFile| match &switch.driver {
        DriverFile::Sonic(sonic) => !sonic.control_queue,
        _ => false,
    };
    let control = switches.values().any(keeps).then_some(sonic::CONTROL);
    fabric.reserved_code_points.iter().copied().chain(control.into_iter().flatten()).collect()
}

fn binding(
    root: &Table,
    fabric: &FabricFile,
    switches: &BTreeMap<NodeId, SwitchFile>,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let given = section::<BindingTable>(root, "binding", report);
    let default = BindingTable::default();
    let table = match &given {
        Some(object) => object.value.as_ref()?,
        None => &default,
    };
    let mode = match table.map {
        Map::Static => Mode::StaticMap,
        Map::PerPort => Mode::PerPortMap,
        Map::PerEgress => Mode::PerEgressMap,
    };
    if let Some(object) = &given {
        idle_code_points(object, &table.reserved_code_points, report);
    }
    let mut wrong = |key: &str, problem: String, remedy: &str| match &given {
        Some(object) => report.at(object, key, problem, remedy),
        None => report.file(problem, remedy),
    };
    let mut reserved = taken_code_points(fabric, switches);
    reserved.retain(|dscp| *dscp < 64);
    reserved.extend(&table.reserved_code_points);
    let palette = match Palette::without(&reserved) {
        Ok(palette) => palette,
        Err(error) => {
            let text = error.to_string();
            let (problem, remedy) = text.split_once("; ").unwrap_or((&text, "reserve fewer"));
            wrong("reserved_code_points", problem.to_owned(), remedy);
            return None;
        }
    };
    if table.hysteresis_pct > HYSTERESIS_MAX {
        let problem = format!("`hysteresis_pct`: {}", table.hysteresis_pct);
        wrong("hysteresis_pct", problem, "write 0 to 1000");
    }
    if table.drain_ms > 10_000 {
        wrong("drain_ms", format!("`drain_ms`: {}", table.drain_ms), "write 0 to 10000");
    }
    // Of the reserved queues, binding uses only the shared queue.
    let queues = u8::try_from(fabric.policy.dedicated() + 1).unwrap_or(u8::MAX);
    Some(Settings {
        queues,
        palette,
        other_permille: fabric.other_permille(),
        drain: Nanos::from_millis(table.drain_ms),
        hold: table.hold,
        hysteresis_permille: 1000 + 10 * table.hysteresis_pct.min(HYSTERESIS_MAX),
        ..Settings::new(mode)
    })
}
