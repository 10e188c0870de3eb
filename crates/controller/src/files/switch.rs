//! Reads the tables `[[switch]]`, which contain the driver and the address of each switch in the
//! topology.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use penstock_fabric::topology::{NodeId, Topology};
use penstock_toml::schema::need;
use penstock_toml::{Object, Report, list};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toml_edit::Table;

/// A `[[switch]]` table whose values are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchFile {
    pub driver: DriverFile,
    /// True if the controller changes this switch first, as a trial. After a successful trial, the
    /// controller changes the other switches.
    pub canary: bool,
    /// Names of the interfaces through which the switch reaches each neighbour in the topology.
    pub interfaces: BTreeMap<NodeId, Vec<String>>,
    /// Line and column of the table in the file.
    pub place: (u32, u32),
}

/// A driver and the address of the switch that it configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverFile {
    /// A simulated switch in memory, for tests of a configuration.
    Sim,
    /// A Linux host in a network namespace, which the controller configures with `tc`.
    LinuxTc {
        /// Name or path of the network namespace. `None` means the controller's own namespace.
        netns: Option<String>,
    },
    /// A SONiC switch, which the controller configures through its redis.
    Sonic(SonicFile),
    /// A Penstock host that acts as a switch.
    Penstock(PenstockFile),
    /// A switch with OpenConfig's QoS model, which the controller configures through gNMI.
    Gnmi {
        /// `host:port`.
        address: String,
        /// Certificates for the connection to the gNMI target. `None` means that the connection has
        /// no encryption.
        tls: Option<SwitchTls>,
        /// User name and password file for the gNMI target. `None` if the target requires no login.
        login: Option<LoginFile>,
        /// Milliseconds for which a plan waits for the answer to a Set.
        set_ms: u64,
    },
}

/// A SONiC switch and properties of its image and platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SonicFile {
    /// Address of the switch's redis: `redis://host:port` or `unix:///path`.
    pub address: String,
    /// Number of traffic classes of the platform. `None` means the default number of classes of the
    /// SONiC driver.
    pub classes: Option<u8>,
    /// True if entries of CONFIG_DB refer to other entries as `[TABLE|name]`. False if entries of
    /// CONFIG_DB refer to other entries by the plain name.
    pub bracketed: bool,
    /// SONiC's queue for each of the fabric's queues, from the shared queue on. `None` means queues
    /// 0 to `queues` - 1, on ports without other QoS maps.
    pub tenant_queues: Option<Vec<u8>>,
    /// True if a tenant may have queue 7, which SONiC uses for its own control packets, and the
    /// code points of network control.
    pub control_queue: bool,
    /// Milliseconds between two steps of a change if the switch does not show what its ASIC has.
    /// `None` means the default of the SONiC driver.
    pub settle_ms: Option<u64>,
    /// File with redis's password. The controller ignores white space at the end of the file.
    pub password: Option<PathBuf>,
}

/// Address at which the controller reaches a Penstock host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PenstockFile {
    /// Unix socket of the API of a Penstock daemon on the controller's machine.
    Socket(PathBuf),
    /// Network address of a Penstock daemon, with certificates for both ends of the connection.
    Tcp {
        /// `host:port`.
        address: String,
        /// Certificate of the authority that signs the switch's certificate.
        ca: PathBuf,
        /// PEM file of the controller's certificate.
        cert: PathBuf,
        /// Private key of `cert`.
        key: PathBuf,
        /// DNS name in the switch's certificate.
        server_name: String,
    },
}

/// PEM files for the controller's TLS connection to a switch, as in `tls = { ca = "...", cert =
/// "...", key = "...", server_name = "..." }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchTls {
    /// Certificate of the authority that signs the switch's certificate.
    pub ca: PathBuf,
    /// Certificate of the controller. Requires `key`.
    pub cert: Option<PathBuf>,
    /// Private key of `cert`.
    pub key: Option<PathBuf>,
    /// Name in the switch's certificate. Default for the driver gnmi: the host of `address`.
    /// Default for the driver penstock: the switch's `name`.
    pub server_name: Option<String>,
}

/// User name and password file of a login at a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginFile {
    pub user: String,
    /// File with the password of the login. The controller ignores white space at the end of the
    /// file.
    pub password: PathBuf,
}

/// `[[switch]]`: driver and address of a switch in the topology.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Switch")]
pub(super) struct SwitchTable {
    /// Name of the switch in the topology.
    name: String,
    /// Driver that configures the switch.
    driver: Driver,
    /// For linux-tc: network namespace of the switch, as a name or a path. The default is the
    /// network namespace of the controller.
    netns: Option<String>,
    /// Address at which the driver reaches the switch. For sonic-configdb: `redis://HOST:PORT` or
    /// `unix:///PATH`. For penstock: `HOST:PORT` or `unix:///PATH`. For gnmi: `HOST:PORT`.
    address: Option<String>,
    /// For penstock and gnmi: certificates for both ends of the connection.
    tls: Option<SwitchTls>,
    /// For gnmi: user name of the login. The key `user` requires `password_file` and `tls`.
    user: Option<String>,
    /// For gnmi and sonic-configdb: file that contains only the password.
    password_file: Option<PathBuf>,
    /// For gnmi: time for which a plan waits for the target's answer to a Set, in milliseconds,
    /// 1000 to 60000. Default 10000.
    #[schemars(range(min = 1_000, max = 60_000))]
    set_ms: Option<u64>,
    /// For sonic-configdb: number of traffic classes of the platform, 2 to 16. Default 8.
    #[schemars(range(min = 2, max = 16))]
    classes: Option<u8>,
    /// For sonic-configdb: form of references between entries of CONFIG_DB. Default `plain`.
    references: Option<References>,
    /// For sonic-configdb: SONiC's queue for each of the fabric's queues, from the shared queue on.
    /// With `tenant_queues`, ports may have other QoS maps, which the driver extends. Default:
    /// queues 0 to `queues` - 1, on ports without other QoS maps.
    tenant_queues: Option<Vec<u8>>,
    /// For sonic-configdb: true if a tenant may have queue 7, which SONiC uses for its own control
    /// packets, and the code points 48 and 56 of network control. Default `false`.
    control_queue: Option<bool>,
    /// For sonic-configdb: milliseconds between two steps of a change, 0 to 1000. The time applies
    /// only if the switch does not show what its ASIC has. Default 50.
    #[schemars(range(min = 0, max = 1_000))]
    settle_ms: Option<u64>,
    /// True if the controller changes this switch before all other switches, as a trial. Default
    /// `false`.
    #[serde(default)]
    canary: bool,
    /// Names of the interfaces through which the switch reaches each neighbour in the topology.
    #[serde(default)]
    interfaces: BTreeMap<String, Vec<String>>,
}

/// Returns the schema's rules about the keys of each driver, and about keys that require other
/// keys.
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
        "properties": {
            "interfaces": {
                "additionalProperties": { "type": "array", "minItems": 1, "uniqueItems": true }
            },
            "tenant_queues": {
                "items": { "maximum": 7 }, "minItems": 2, "uniqueItems": true
            }
        },
        "allOf": all
    })
}

/// Keys of `[[switch]]` that only some drivers have.
const KEYS: [&str; 11] = [
    "netns",
    "address",
    "tls",
    "user",
    "password_file",
    "set_ms",
    "classes",
    "references",
    "tenant_queues",
    "control_queue",
    "settle_ms",
];
/// Default value of the key `set_ms`.
const SET_MS: u64 = 10_000;

/// Form of references between entries of CONFIG_DB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum References {
    /// References between entries of CONFIG_DB by plain name, for SONiC images since 202106.
    Plain,
    /// References as `[TABLE|name]`, for SONiC images before 202106.
    Bracketed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Driver {
    /// A simulated switch in memory.
    Sim,
    /// Linux, whose queues the controller configures through netlink.
    LinuxTc,
    /// A SONiC switch, which the controller configures through its redis.
    SonicConfigdb,
    /// A Penstock host that acts as a switch.
    Penstock,
    /// OpenConfig's QoS model, which the controller configures through gNMI.
    Gnmi,
}

impl Driver {
    /// Returns the name of the driver in the file, and the keys that only this driver has.
    const fn words(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Sim => ("sim", &[]),
            Self::LinuxTc => ("linux-tc", &["netns"]),
            Self::SonicConfigdb => (
                "sonic-configdb",
                &[
                    "address",
                    "classes",
                    "references",
                    "tenant_queues",
                    "control_queue",
                    "settle_ms",
                    "password_file",
                ],
            ),
            Self::Penstock => ("penstock", &["address", "tls"]),
            Self::Gnmi => ("gnmi", &["address", "tls", "user", "password_file", "set_ms"]),
        }
    }
}

/// Reads the drivers of all switches in the topology.
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
            report.at(object, "name", "two [[switch]] tables for one switch", "remove one");
        }
    }
    // A switch with an invalid table is not reported as missing.
    let named = |node| {
        let name = topology.name(node).to_string();
        objects.iter().any(|object| object.name.as_ref() == Some(&name))
    };
    for layer in 1..topology.layers() {
        for node in topology.layer(layer).filter(|node| !named(*node)) {
            let problem = format!("no [[switch]] for `{}` of the topology", topology.name(node));
            report.file(problem, "add a [[switch]] with `name` and `driver`");
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
    let wrong = |netns: &str| netns.is_empty() || (netns.contains('/') && !netns.starts_with('/'));
    if table.netns.as_deref().is_some_and(wrong) {
        let remedy = "write a name under /run/netns, or a path that begins with /";
        report.at(object, "netns", "the value is not a network namespace", remedy);
    }
    let driver = match table.driver {
        Driver::Sim => DriverFile::Sim,
        Driver::LinuxTc => DriverFile::LinuxTc { netns: table.netns.clone() },
        Driver::SonicConfigdb => DriverFile::Sonic(sonic(object, table, folder, report)?),
        Driver::Penstock => DriverFile::Penstock(penstock(object, table, folder, report)?),
        Driver::Gnmi => gnmi(object, table, folder, report)?,
    };
    let interfaces = interfaces(object, table, node, topology, report);
    let place = report.place(object);
    Some((node, SwitchFile { driver, canary: table.canary, interfaces, place }))
}

/// Reports an error for each key that the switch's driver does not use.
fn foreign_keys(object: &Object<'_, SwitchTable>, table: &SwitchTable, report: &mut Report<'_>) {
    let (driver, own) = table.driver.words();
    let given = [
        table.netns.is_some(),
        table.address.is_some(),
        table.tls.is_some(),
        table.user.is_some(),
        table.password_file.is_some(),
        table.set_ms.is_some(),
        table.classes.is_some(),
        table.references.is_some(),
        table.tenant_queues.is_some(),
        table.control_queue.is_some(),
        table.settle_ms.is_some(),
    ];
    for (key, _) in KEYS.iter().zip(given).filter(|(key, given)| *given && !own.contains(key)) {
        let problem = format!("`{key}` is not a key of driver \"{driver}\"");
        report.at(object, key, problem, "remove the key, or set another `driver`");
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
    let remedy = "write the address of the switch's redis: redis://HOST:PORT or unix:///PATH";
    let address = address(object, table, remedy, report)?;
    if let Some(classes) = table.classes.filter(|classes| !(2..=16).contains(classes)) {
        let problem = format!("`classes`: {classes} traffic classes");
        report.at(object, "classes", problem, "write 2 to 16");
    }
    if let Some(queues) = &table.tenant_queues {
        let distinct: BTreeSet<u8> = queues.iter().copied().filter(|queue| *queue < 8).collect();
        if queues.len() < 2 || distinct.len() != queues.len() {
            let problem = format!("`tenant_queues`: {queues:?}");
            report.at(
                object,
                "tenant_queues",
                problem,
                "write 2 to 8 different queues from 0 to 7",
            );
        }
    }
    if let Some(time) = table.settle_ms.filter(|time| *time > 1_000) {
        let problem = format!("`settle_ms`: {time} ms");
        report.at(object, "settle_ms", problem, "write 0 to 1000");
    }
    Some(SonicFile {
        address,
        classes: table.classes,
        bracketed: table.references == Some(References::Bracketed),
        tenant_queues: table.tenant_queues.clone(),
        control_queue: table.control_queue.unwrap_or(false),
        settle_ms: table.settle_ms,
        password: table.password_file.as_ref().map(|file| folder.join(file)),
    })
}

fn penstock(
    object: &Object<'_, SwitchTable>,
    table: &SwitchTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<PenstockFile> {
    let remedy = "write unix:///PATH of the daemon's socket, or HOST:PORT of its `listen`";
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
                "remove `tls`, or write HOST:PORT",
            );
        }
        return Some(PenstockFile::Socket(PathBuf::from(path)));
    }
    host_and_port(object, &address, report);
    let Some(tls) = tls(object, table, folder, report) else {
        let problem = "over the network, the driver \"penstock\" needs certificates";
        report.at(object, "address", problem, "add `tls`, or write a socket as unix:///PATH");
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
    let remedy = "write host and port of the gNMI target, as in \"10.0.0.9:9339\"";
    let address = address(object, table, remedy, report)?;
    host_and_port(object, &address, report);
    let tls = tls(object, table, folder, report);
    let login = match (&table.user, &table.password_file) {
        (Some(user), Some(password)) => {
            Some(LoginFile { user: user.clone(), password: folder.join(password) })
        }
        (None, None) => None,
        (Some(_), None) => {
            report.at(object, "user", "`user` without `password_file`", "add `password_file`");
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
    let set_ms = table.set_ms.unwrap_or(SET_MS);
    if !(1_000..=60_000).contains(&set_ms) {
        let problem = format!("`set_ms`: {set_ms} ms");
        report.at(object, "set_ms", problem, "write 1000 to 60000");
    }
    Some(DriverFile::Gnmi { address, tls, login, set_ms })
}

fn host_and_port(object: &Object<'_, SwitchTable>, address: &str, report: &mut Report<'_>) {
    let named = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let port = named.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port != 0);
    if port.is_none() || address.contains('/') {
        let problem = format!("{address:?} has no host or no port");
        report.at(object, "address", problem, "write host and port, as in \"10.0.0.9:9339\"");
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
    let mut used = BTreeSet::new();
    for interface in table.interfaces.values().flatten().filter(|name| !used.insert(*name)) {
        let problem = format!("interface `{interface}` is listed twice");
        report.at(object, "interfaces", problem, "write each interface once, at one neighbour");
    }
    for (name, list) in &table.interfaces {
        match near.get(name) {
            Some(far) if !list.is_empty() => drop(interfaces.insert(*far, list.clone())),
            Some(_) => {
                let problem = format!("the list for `{name}` is empty");
                report.at(object, "interfaces", problem, "name an interface");
            }
            None => {
                let problem = format!("no link to `{name}`");
                report.at(
                    object,
                    "interfaces",
                    problem,
                    "name only nodes that have a link to the switch",
                );
            }
        }
    }
    for (name, far) in &near {
        // A switch in memory accepts any name.
        if table.driver == Driver::Sim {
            interfaces.entry(*far).or_insert_with(|| vec![name.clone()]);
        } else if !interfaces.contains_key(far) {
            let problem = format!("no interface to `{name}`");
            report.at(object, "interfaces", problem, "name an interface");
        }
    }
    interfaces
}
