//! Reads `[[switch]]`, which has the driver and the address of a switch in the topology.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use penstock_fabric::topology::{NodeId, Topology};
use penstock_toml::schema::need;
use penstock_toml::{Object, Report, list};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toml_edit::Table;

/// The driver of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchFile {
    /// Driver and address.
    pub driver: DriverFile,
    /// Whether the switch is changed before others.
    pub canary: bool,
    /// Interfaces by neighbour.
    pub interfaces: BTreeMap<NodeId, Vec<String>>,
}

/// A driver and the address of its switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverFile {
    /// A switch in memory, for trials.
    Sim,
    /// Linux, in a network namespace.
    LinuxTc {
        /// Name or path of the namespace. `None` means the controller's own namespace.
        netns: Option<String>,
    },
    /// SONiC, through its redis.
    Sonic(SonicFile),
    /// A Penstock host.
    Penstock(PenstockFile),
    /// OpenConfig's QoS model through gNMI.
    Gnmi {
        /// `host:port`.
        address: String,
        /// Certificates. `None` means that nothing is encrypted.
        tls: Option<SwitchTls>,
        /// Login, for targets that require one.
        login: Option<LoginFile>,
    },
}

/// A SONiC switch and properties of its image and platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SonicFile {
    /// `redis://host:port` or `unix:///path`.
    pub address: String,
    /// Traffic classes of the platform. `None` means the driver's default.
    pub classes: Option<u8>,
    /// Whether entries refer to others as `[TABLE|name]`.
    pub bracketed: bool,
    /// Whether a tenant may have queue 7.
    pub control_queue: bool,
    /// File with redis's password. White space at its end is removed.
    pub password: Option<PathBuf>,
}

/// The address of a Penstock host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PenstockFile {
    /// Socket of the API on this machine.
    Socket(PathBuf),
    /// A network address, with certificates of both ends.
    Tcp {
        /// `host:port`.
        address: String,
        /// Certificate of the authority that signs the switch's certificate.
        ca: PathBuf,
        /// Certificate of this controller.
        cert: PathBuf,
        /// Private key of `cert`.
        key: PathBuf,
        /// The name in the switch's certificate.
        server_name: String,
    },
}

/// `tls = { ca = "...", cert = "...", key = "...", server_name = "..." }` of a switch: PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchTls {
    /// Certificate of the authority that signs the switch's certificate.
    pub ca: PathBuf,
    /// Certificate of this controller. Needs `key`.
    pub cert: Option<PathBuf>,
    /// Private key of `cert`.
    pub key: Option<PathBuf>,
    /// Name in the switch's certificate. Default: for gnmi the host of `address`, for penstock the
    /// switch's `name`.
    pub server_name: Option<String>,
}

/// A user and the file of the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginFile {
    pub user: String,
    /// File with the password. White space at its end is removed.
    pub password: PathBuf,
}

/// `[[switch]]`: the driver of a switch of the topology.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Switch")]
pub(super) struct SwitchTable {
    /// Name of the switch in the topology.
    name: String,
    /// Driver of the switch.
    driver: Driver,
    /// linux-tc: network namespace of the switch, a name or a path. Default: the controller's
    /// namespace.
    netns: Option<String>,
    /// sonic-configdb: `redis://HOST:PORT` or `unix:///PATH`; penstock: `HOST:PORT` or
    /// `unix:///PATH`; gnmi: `HOST:PORT`.
    address: Option<String>,
    /// penstock, gnmi: certificates of both ends.
    tls: Option<SwitchTls>,
    /// gnmi: the user, with `password_file` and `tls`.
    user: Option<String>,
    /// gnmi, sonic-configdb: file that contains only the password.
    password_file: Option<PathBuf>,
    /// sonic-configdb: traffic classes of the platform, 2 to 16. Default 8.
    #[schemars(range(min = 2, max = 16))]
    classes: Option<u8>,
    /// sonic-configdb: form of references between entries. Default `plain`.
    references: Option<References>,
    /// sonic-configdb: whether a tenant may have queue 7. Default `false`.
    control_queue: Option<bool>,
    /// Whether the switch is changed before the others, as a trial. Default `false`.
    #[serde(default)]
    canary: bool,
    /// Interfaces of the switch, by neighbour in the topology.
    #[serde(default)]
    interfaces: BTreeMap<String, Vec<String>>,
}

/// Rules of the schema: the keys of each driver, and keys that need each other.
pub(super) fn rules() -> Value {
    let is = |driver: Driver| need(&["driver"], json!({ "driver": { "const": driver.words().0 } }));
    let of_driver = |driver: Driver| {
        let own = driver.words().1;
        let other = KEYS.iter().filter(|key| !own.contains(key));
        let keys: Map<String, Value> = other.map(|key| ((*key).to_owned(), false.into())).collect();
        let mut then = json!({ "properties": keys });
        if own.contains(&"address") {
            then["properties"]["address"] = true.into();
            then["required"] = json!(["address"]);
        }
        json!({ "if": is(driver), "then": then })
    };
    let drivers =
        [Driver::Sim, Driver::LinuxTc, Driver::SonicConfigdb, Driver::Penstock, Driver::Gnmi];
    let network = json!({ "type": "string", "pattern": "^[^/]+:[0-9]{1,5}$" });
    let socket = json!({ "type": "string", "pattern": "^unix:///" });
    let both = need(&["cert", "key"], json!({ "cert": true, "key": true }));
    let gnmi = json!({
        "properties": { "address": network, "user": true, "password_file": true, "tls": true },
        "dependentRequired": { "user": ["password_file", "tls"], "password_file": ["user"] }
    });
    let penstock = json!({
        "if": need(&["address"], json!({ "address": socket })),
        "then": { "properties": { "tls": false } },
        "else": need(&["address", "tls"], json!({ "address": network, "tls": both }))
    });
    let mut all: Vec<Value> = drivers.into_iter().map(of_driver).collect();
    all.push(json!({ "if": is(Driver::Gnmi), "then": gnmi }));
    all.push(json!({ "if": is(Driver::Penstock), "then": penstock }));
    json!({
        "properties": { "interfaces": {
            "additionalProperties": { "type": "array", "minItems": 1 }
        } },
        "allOf": all
    })
}

/// Keys that only some drivers have.
const KEYS: [&str; 8] =
    ["netns", "address", "tls", "user", "password_file", "classes", "references", "control_queue"];

/// Form of references between entries of CONFIG_DB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum References {
    /// By name.
    Plain,
    /// As `[TABLE|name]`, for images before 202106.
    Bracketed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Driver {
    /// A switch in memory.
    Sim,
    /// `tc` and `ip` on Linux.
    LinuxTc,
    /// SONiC's redis.
    SonicConfigdb,
    /// A Penstock host that is a switch.
    Penstock,
    /// OpenConfig's QoS model through gNMI.
    Gnmi,
}

impl Driver {
    /// Name of the driver in the file, and the driver's own keys.
    const fn words(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Sim => ("sim", &[]),
            Self::LinuxTc => ("linux-tc", &["netns"]),
            Self::SonicConfigdb => (
                "sonic-configdb",
                &["address", "classes", "references", "control_queue", "password_file"],
            ),
            Self::Penstock => ("penstock", &["address", "tls"]),
            Self::Gnmi => ("gnmi", &["address", "tls", "user", "password_file"]),
        }
    }
}

/// Reads the drivers of all switches of the topology.
pub(super) fn read(
    root: &Table,
    folder: &Path,
    topology: &Topology,
    report: &mut Report<'_>,
) -> BTreeMap<NodeId, SwitchFile> {
    let mut switches = BTreeMap::new();
    let objects = list::<SwitchTable>(root, "switch", report);
    for object in &objects {
        if let Some((node, switch)) = switch(object, folder, topology, report)
            && switches.insert(node, switch).is_some()
        {
            report.at(object, "name", "this switch has two tables", "remove one");
        }
    }
    // A switch with an invalid table is not missing.
    let named = |node| {
        let name = topology.name(node).to_string();
        objects.iter().any(|object| object.name.as_ref() == Some(&name))
    };
    for layer in 1..topology.layers() {
        for node in topology.layer(layer).filter(|node| !named(*node)) {
            let problem = format!("no [[switch]] for `{}` of the topology", topology.name(node));
            report.file(problem, "add one with `name` and `driver`");
        }
    }
    switches
}

fn switch(
    object: &Object<'_, SwitchTable>,
    folder: &Path,
    topology: &Topology,
    report: &mut Report<'_>,
) -> Option<(NodeId, SwitchFile)> {
    let table = object.value.as_ref()?;
    let Some(node) = topology.find(&table.name).filter(|node| !topology.is_server(*node)) else {
        let problem = format!("the topology has no switch `{}`", table.name);
        report.at(object, "name", problem, "correct the name");
        return None;
    };
    foreign_keys(object, table, report);
    let driver = match table.driver {
        Driver::Sim => DriverFile::Sim,
        Driver::LinuxTc => DriverFile::LinuxTc { netns: table.netns.clone() },
        Driver::SonicConfigdb => DriverFile::Sonic(sonic(object, table, folder, report)?),
        Driver::Penstock => DriverFile::Penstock(penstock(object, table, folder, report)?),
        Driver::Gnmi => gnmi(object, table, folder, report)?,
    };
    let interfaces = interfaces(object, table, node, topology, report);
    Some((node, SwitchFile { driver, canary: table.canary, interfaces }))
}

/// Reports keys that the driver does not use.
fn foreign_keys(object: &Object<'_, SwitchTable>, table: &SwitchTable, report: &mut Report<'_>) {
    let (driver, own) = table.driver.words();
    let given = [
        table.netns.is_some(),
        table.address.is_some(),
        table.tls.is_some(),
        table.user.is_some(),
        table.password_file.is_some(),
        table.classes.is_some(),
        table.references.is_some(),
        table.control_queue.is_some(),
    ];
    for (key, _) in KEYS.iter().zip(given).filter(|(key, given)| *given && !own.contains(key)) {
        let problem = format!("`{key}` is not a key of driver \"{driver}\"");
        report.at(object, key, problem, "remove it, or write another driver");
    }
}

fn address(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    remedy: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    if table.address.is_none() {
        report.at(object, "address", "`address` is missing", remedy);
    }
    table.address.clone()
}

fn sonic(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<SonicFile> {
    let remedy = "write the address of its Redis: redis://HOST:PORT or unix:///PATH";
    let address = address(object, table, remedy, report)?;
    if let Some(classes) = table.classes.filter(|classes| !(2..=16).contains(classes)) {
        let problem = format!("`classes`: {classes} traffic classes");
        report.at(object, "classes", problem, "write 2 to 16");
    }
    Some(SonicFile {
        address,
        classes: table.classes,
        bracketed: table.references == Some(References::Bracketed),
        control_queue: table.control_queue.unwrap_or(false),
        password: table.password_file.as_ref().map(|file| folder.join(file)),
    })
}

fn penstock(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<PenstockFile> {
    let remedy = "write unix:///PATH of its socket, or HOST:PORT of its `listen`";
    let address = address(object, table, remedy, report)?;
    if let Some(path) = address.strip_prefix("unix://") {
        if !path.starts_with('/') {
            let problem = format!("`address`: path {path:?} is relative");
            report.at(
                object,
                "address",
                problem,
                "write an absolute path, as in \"unix:///run/a.sock\"",
            );
        }
        if table.tls.is_some() {
            report.at(
                object,
                "tls",
                "`tls` has no effect on a unix socket",
                "remove it, or write HOST:PORT",
            );
        }
        return Some(PenstockFile::Socket(PathBuf::from(path)));
    }
    host_and_port(object, &address, report);
    let Some(tls) = tls(object, table, folder, report) else {
        let problem = "over the network, the driver \"penstock\" needs certificates";
        report.at(object, "address", problem, "add `tls`, or write unix:///PATH of its socket");
        return None;
    };
    let (Some(cert), Some(key)) = (tls.cert, tls.key) else {
        let problem = "the switch requires this controller's certificate";
        report.at(object, "tls", problem, "add `cert` and `key` to it");
        return None;
    };
    let server_name = tls.server_name.unwrap_or_else(|| table.name.clone());
    Some(PenstockFile::Tcp { address, ca: tls.ca, cert, key, server_name })
}

fn gnmi(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<DriverFile> {
    let remedy = "write host and port of its gNMI target, as in \"10.0.0.9:9339\"";
    let address = address(object, table, remedy, report)?;
    host_and_port(object, &address, report);
    let tls = tls(object, table, folder, report);
    let login = match (&table.user, &table.password_file) {
        (Some(user), Some(password)) => {
            Some(LoginFile { user: user.clone(), password: folder.join(password) })
        }
        (None, None) => None,
        (Some(_), None) => {
            report.at(object, "user", "`user` without `password_file`", "name a file with it");
            None
        }
        (None, Some(_)) => {
            report.at(object, "password_file", "`password_file` without `user`", "add `user`");
            None
        }
    };
    if login.is_some() && tls.is_none() {
        let problem = "the password would cross the network unencrypted";
        report.at(object, "password_file", problem, "add `tls`");
    }
    Some(DriverFile::Gnmi { address, tls, login })
}

fn host_and_port(object: &Object<'_, SwitchTable>, address: &str, report: &mut Report<'_>) {
    let named = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let port = named.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port != 0);
    if port.is_none() || address.contains('/') {
        let problem = format!("{address:?} has no host or no port");
        report.at(object, "address", problem, "write both, as in \"10.0.0.9:9339\"");
    }
}

fn tls(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<SwitchTls> {
    let tls = table.tls.as_ref()?;
    if tls.cert.is_some() != tls.key.is_some() {
        let problem = "`cert` and `key` belong together";
        report.at(object, "tls", problem, "write both, or neither");
    }
    let seen = |path: &PathBuf| folder.join(path);
    Some(SwitchTls {
        ca: seen(&tls.ca),
        cert: tls.cert.as_ref().map(seen),
        key: tls.key.as_ref().map(seen),
        server_name: tls.server_name.clone(),
    })
}

fn interfaces(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    node: NodeId,
    topology: &Topology,
    report: &mut Report<'_>,
) -> BTreeMap<NodeId, Vec<String>> {
    let mut interfaces = BTreeMap::new();
    let near: BTreeMap<String, NodeId> = (topology.down(node).map(|link| topology.child(link)))
        .chain(topology.up(node).map(|link| topology.parent(link)))
        .map(|far| (topology.name(far).to_string(), far))
        .collect();
    for (name, list) in &table.interfaces {
        match near.get(name) {
            Some(far) if !list.is_empty() => drop(interfaces.insert(*far, list.clone())),
            Some(_) => report.at(object, "interfaces", format!("none to `{name}`"), "name one"),
            None => {
                let problem = format!("no link to `{name}`");
                report.at(object, "interfaces", problem, "name neighbours in the topology");
            }
        }
    }
    for (name, far) in &near {
        // In memory any name is allowed.
        if table.driver == Driver::Sim {
            interfaces.entry(*far).or_insert_with(|| vec![name.clone()]);
        } else if !interfaces.contains_key(far) {
            let problem = format!("no interface to `{name}`");
            report.at(object, "interfaces", problem, "name it");
        }
    }
    interfaces
}
