//! `[controller]`, `[store]`, `[binding]`, `[tls]` and `[[switch]]`: the fabric's controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_fabric::dscp::Palette;
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::topology::NodeId;
use penstock_toml::schema::{ADDRESS, Tables, has, need};
use penstock_toml::{ConfigErrors, Object, Report, section};
use penstock_units::Nanos;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toml_edit::Table;

use super::{FabricFile, SwitchFile, switch};

pub(super) const SECTIONS: [&str; 5] = ["controller", "store", "binding", "tls", "switch"];

/// Most connections of agents with the same certificate.
const CONNECTIONS_MAX: usize = 1_000;

/// A controller as its file describes it.
#[derive(Clone, Debug)]
pub struct ControllerFile {
    /// What it is called among controllers.
    pub name: String,
    /// The datacenter.
    pub fabric: FabricFile,
    /// Between two decisions, ms.
    pub interval_ms: u64,
    /// Between two reports of an agent, ms.
    pub report_ms: u64,
    /// How long a switch or host may take for one message, ms.
    pub answer_ms: u64,
    /// Intervals between two comparisons of all switches with what they were told; 0: never.
    pub verify_every: u64,
    /// Where operators on this machine ask.
    pub socket: PathBuf,
    /// Where agents connect.
    pub agents: Option<SocketAddr>,
    /// Connections of agents with the same certificate at a time.
    pub connections_per_certificate: usize,
    /// Where agents are sent by controllers that do not lead: a URL.
    pub advertise: String,
    /// The page and `/metrics`.
    pub page: Option<SocketAddr>,
    /// Where intent is kept.
    pub store: StoreFile,
    /// How queues are bound.
    pub binding: Settings,
    /// Who may say that it is which host; `None`: nobody is asked.
    pub tls: Option<TlsFiles>,
    /// By node.
    pub switches: BTreeMap<NodeId, SwitchFile>,
}

/// Where intent is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFile {
    /// In a file of this controller alone.
    File(PathBuf),
    /// In etcd.
    Etcd {
        /// Its members' URLs.
        endpoints: Vec<String>,
        /// For `https`.
        tls: Option<TlsFiles>,
    },
}

/// Certificates and a key, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Whom to believe.
    pub ca: PathBuf,
    /// Who this is.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates that are not believed any more: revocation lists.
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

/// `[controller]`: the controller itself.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Controller {
    /// Its name among controllers. Default `controller`.
    #[serde(default = "one")]
    name: String,
    /// The datacenter's file, relative to this one.
    topology: PathBuf,
    /// Milliseconds between two decisions, 100 to 60000. Default 4000.
    #[serde(default = "four_seconds")]
    #[schemars(range(min = 100, max = 60_000))]
    interval_ms: u64,
    /// Milliseconds between two reports of an agent, 50 to `interval_ms`. Default 1000.
    #[serde(default = "second")]
    #[schemars(range(min = 50, max = 60_000))]
    report_ms: u64,
    /// Milliseconds that a switch or host may take for one message, 10 to 60000. Default 2000.
    #[serde(default = "two_seconds")]
    #[schemars(range(min = 10, max = 60_000))]
    answer_ms: u64,
    /// Intervals between two comparisons of all switches with what they were told; 0: never.
    /// Default 5.
    #[serde(default = "five")]
    verify_every: u64,
    /// Unix socket where operators ask. Default `/run/penstock/controller.sock`.
    #[serde(default = "socket")]
    socket: PathBuf,
    /// Address where agents connect. Default: none.
    #[schemars(with = "Option<String>")]
    agents: Option<SocketAddr>,
    /// Connections of agents with the same certificate at a time, 1 to 1000. Default 4.
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 1_000))]
    connections_per_certificate: usize,
    /// URL where controllers that do not lead send agents. Default: empty.
    #[serde(default)]
    advertise: String,
    /// Address of the page and of `/metrics`. Default: none.
    #[schemars(with = "Option<String>")]
    page: Option<SocketAddr>,
}

/// The schema of a controller's file.
pub(super) fn schema() -> String {
    let mut tables = Tables::default();
    let properties = json!({
        "controller": tables.one::<Controller>(),
        "store": tables.one::<StoreTable>(),
        "binding": tables.one::<BindingTable>(),
        "tls": tables.one::<TlsFiles>(),
        "switch": tables.list::<switch::SwitchTable>()
    });
    let rules = json!({ "$defs": {
        "Controller": { "properties": {
            "agents": { "pattern": ADDRESS }, "page": { "pattern": ADDRESS }
        } },
        "StoreTable": {
            "properties": { "tls": { "type": "object", "properties": { "crl": false } } },
            "oneOf": [
                has(&["path"]),
                need(&["endpoints"], json!({ "endpoints": { "type": "array", "minItems": 1 } }))
            ]
        },
        "BindingTable": { "properties": {
            "reserved_code_points": { "items": { "maximum": 63 } }
        } },
        "Switch": switch::rules(),
        "SwitchTls": { "dependentRequired": { "cert": ["key"], "key": ["cert"] } }
    } });
    let required = ["controller", "store"];
    tables.file("A controller of a fabric.", properties, &required, rules)
}

fn one() -> String {
    "controller".to_owned()
}

fn four() -> usize {
    4
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

/// `[store]`: where intent is kept.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StoreTable {
    /// A file of this controller alone.
    path: Option<PathBuf>,
    /// In place of `path`: URLs of etcd's members.
    #[serde(default)]
    endpoints: Vec<String>,
    /// Certificates for etcd by `https`.
    tls: Option<TlsFiles>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
enum Map {
    /// The code point is the queue.
    #[default]
    #[serde(rename = "static-map")]
    Static,
    /// The same queue on all ports of one switch.
    #[serde(rename = "per-port-map")]
    PerPort,
    /// Any queue on each port.
    #[serde(rename = "per-egress-map")]
    PerEgress,
}

/// `[binding]`: how tenants get queues.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BindingTable {
    /// Which queue a code point means. Default `static-map`.
    #[serde(default)]
    map: Map,
    /// Code points that are never used. Default: none.
    #[serde(default)]
    reserved_code_points: Vec<u8>,
    /// Milliseconds that a packet may be on its way, 0 to 10000. Default 100.
    #[serde(default = "hundred")]
    #[schemars(range(max = 10_000))]
    drain_ms: u64,
    /// Intervals for which a queue cannot be taken away. Default 2.
    #[serde(default = "two")]
    hold: u64,
    /// By how much a score must exceed the one whose queue it takes, in percent. Default 10.
    #[serde(default = "ten")]
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

/// `fabric`: reads the topology's file. Paths are as seen from `folder`, the file's.
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
    agents(&object, controller, report);
    let fabric = match fabric(&folder.join(&controller.topology)) {
        Ok(fabric) => fabric,
        Err(errors) => {
            report.adopt(errors);
            return None;
        }
    };
    let tls = section::<TlsFiles>(root, "tls", report).and_then(|tls| tls.value);
    let tls = tls.map(|tls| tls.seen_from(folder));
    let binding = binding(root, &fabric, report);
    let store = store(root, report);
    let switches = switch::read(root, folder, &fabric.topology, report);
    Some(ControllerFile {
        name: controller.name.clone(),
        interval_ms: controller.interval_ms,
        report_ms: controller.report_ms,
        answer_ms: controller.answer_ms,
        verify_every: controller.verify_every,
        socket: controller.socket.clone(),
        agents: controller.agents,
        connections_per_certificate: controller.connections_per_certificate,
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

fn agents(object: &Object<'_, Controller>, controller: &Controller, report: &mut Report<'_>) {
    let number = controller.connections_per_certificate;
    if !(1..=CONNECTIONS_MAX).contains(&number) {
        let problem = format!("`connections_per_certificate`: {number}");
        let remedy =
            format!("write 1 to {CONNECTIONS_MAX}; an agent needs 1, and 2 while it reconnects");
        report.at(object, "connections_per_certificate", problem, remedy);
    }
}

fn store(root: &Table, report: &mut Report<'_>) -> Option<StoreFile> {
    let Some(object) = section::<StoreTable>(root, "store", report) else {
        report.file("the section [store] is missing", "add [store] with `path` or `endpoints`");
        return None;
    };
    let table = object.value.as_ref()?;
    match (&table.path, table.endpoints.is_empty()) {
        (Some(path), true) => Some(StoreFile::File(path.clone())),
        (None, false) => {
            let (endpoints, tls) = (table.endpoints.clone(), table.tls.clone());
            if tls.as_ref().is_some_and(|tls| tls.crl.is_some()) {
                let problem = "`crl`: the client of etcd does not check revocation lists";
                report.at(&object, "tls", problem, "remove `crl`");
            }
            Some(StoreFile::Etcd { endpoints, tls })
        }
        _ => {
            let problem = "a store is either a file or etcd";
            report.at(&object, "path", problem, "write `path`, or `endpoints`");
            None
        }
    }
}

fn binding(root: &Table, fabric: &FabricFile, report: &mut Report<'_>) -> Option<Settings> {
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
    let mut wrong = |key: &str, problem: String, remedy: &str| match &given {
        Some(object) => report.at(object, key, problem, remedy),
        None => report.file(problem, remedy),
    };
    let palette = match Palette::without(&table.reserved_code_points) {
        Ok(palette) => palette,
        Err(error) => {
            wrong("reserved_code_points", error.to_string(), "reserve fewer");
            return None;
        }
    };
    if table.drain_ms > 10_000 {
        wrong("drain_ms", format!("`drain_ms`: {}", table.drain_ms), "write 0 to 10000");
    }
    // Reserved queues but the shared one are not the binding's to give.
    let queues = u8::try_from(fabric.policy.dedicated() + 1).unwrap_or(u8::MAX);
    Some(Settings {
        queues,
        palette,
        drain: Nanos::from_millis(table.drain_ms),
        hold: table.hold,
        hysteresis_permille: 1000 + 10 * table.hysteresis_pct.min(1000),
        ..Settings::new(mode)
    })
}
