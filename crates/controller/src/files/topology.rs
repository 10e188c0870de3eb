//! Reads the file of a datacenter. A datacenter's file has `[fabric]`, `[[out]]`, and either a
//! regular tree or a listed tree. A regular tree has `[servers]` and `[[tier]]`. A listed tree has
//! `[[server]]`, `[[switch]]` and `[[link]]`.

use std::collections::BTreeSet;

use penstock_fabric::dscp::Palette;
use penstock_fabric::ledger::Service;
use penstock_fabric::tenant_placement::{Policy, QueueWeight};
use penstock_fabric::topology::{
    LinkSpec, NodeId, NodeSpec, Regular, RegularError, SpecError, Tier, Topology, TopologySpec,
};
use penstock_toml::BitsPerSecond;
use penstock_toml::schema::{Tables, has, need};
use penstock_toml::{Object, Report, list, section};
use penstock_units as units;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toml_edit::Table;

use super::idle_code_points;

/// Pattern of the names of servers and switches. A host's file has the same.
const NODE: &str = "^[^\\s]{1,63}$";

pub(super) const SECTIONS: [&str; 7] =
    ["fabric", "servers", "tier", "server", "switch", "link", "out"];

/// Topology and placement settings of a datacenter as its file describes them.
#[derive(Clone, Debug)]
pub struct FabricFile {
    pub name: String,
    pub topology: Topology,
    /// Regular tree of the datacenter. `None` if the file describes a listed tree.
    pub regular: Option<Regular>,
    /// Part of each link's rate that tenants can never reserve, in thousandths.
    pub headroom_permille: u32,
    /// Settings of placement: the number of queues per port, and how much queues count against
    /// bandwidth.
    pub policy: Policy,
    /// Code points that no tenant gets. Other traffic of the datacenter uses these code points.
    pub reserved_code_points: Vec<u8>,
    /// Nodes that accept no new VMs, and the state of each node: drained or failed.
    pub out: Vec<(NodeId, Service)>,
}

impl FabricFile {
    /// Returns the part of each link's rate that queues of other traffic may take, in thousandths.
    #[must_use]
    pub fn other_permille(&self) -> u32 {
        // Without queues of other traffic, `headroom_pct` is only room that nobody reserves.
        if self.policy.reserved_queues > 1 { self.headroom_permille } else { 0 }
    }
}

/// `[fabric]`: name, queues and placement settings of the datacenter.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fabric {
    /// Name of the datacenter. Default: empty.
    #[serde(default)]
    name: String,
    /// Part of each link's rate that tenants can never reserve, in percent, 0 to 100. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    headroom_pct: f64,
    /// Number of queues of each switch port, 2 to 64. Default 8.
    #[serde(default = "eight")]
    #[schemars(range(min = 2, max = 64))]
    queues: u8,
    /// Number of reserved queues of a switch port, which no tenant may own, 1 to `queues` - 1. The
    /// shared queue is one of the reserved queues. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 63))]
    reserved_queues: u8,
    /// Code points that no tenant gets, because other traffic of the datacenter uses them. Default:
    /// none.
    #[serde(default)]
    reserved_code_points: Vec<u8>,
    /// Weight of the queue cost in the choice of a tenant's servers, 0 to 1; the bandwidth cost has
    /// the rest. By default, the weight of the queue cost depends on the load of the datacenter's
    /// links.
    #[schemars(range(min = 0, max = 1))]
    queue_weight: Option<f64>,
}

fn eight() -> u8 {
    8
}

fn one() -> u8 {
    1
}

/// `[servers]`: properties of all servers of a regular tree.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Servers {
    /// Maximum number of VMs on each server, 1 to 1048576.
    #[schemars(range(min = 1, max = 1_048_576))]
    slots: u32,
}

/// `[[tier]]`: a layer of switches in a regular tree; the first table is the lowest layer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TierTable {
    /// Number of members of each group in this tier. In the lowest tier, the members of a group are
    /// servers. In each other tier, the members of a group are groups of the tier below.
    #[schemars(range(min = 1))]
    fan_out: u32,
    /// Number of links from each server or switch of the layer below to this tier. Default 1.
    #[serde(default = "one_link")]
    #[schemars(range(min = 1))]
    uplinks: u32,
    /// Rate of each link from the layer below to this tier, in bits per second in each direction.
    rate: Option<BitsPerSecond>,
    /// Ratio of a node's total rate downwards to its total rate upwards. Alternative to `rate`.
    oversubscription: Option<f64>,
}

fn one_link() -> u32 {
    1
}

/// `[[server]]`: a server of a listed tree.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Server {
    /// Unique name, 1 to 63 characters without blanks.
    name: String,
    /// Maximum number of VMs on the server, 1 to 1048576.
    #[schemars(range(min = 1, max = 1_048_576))]
    slots: u32,
}

/// `[[switch]]`: a switch of a listed tree.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Switch")]
struct SwitchNode {
    /// Unique name, 1 to 63 characters without blanks.
    name: String,
}

/// `[[link]]`: a link between a node and a node in the layer above.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Link {
    /// Name of the link's lower node.
    from: String,
    /// Name of the link's upper node.
    to: String,
    /// Rate of all cables between the nodes together, in bits per second in each direction.
    rate: BitsPerSecond,
}

/// `[[out]]`: a server or switch that accepts no new VMs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Out {
    /// Name of the server or switch that accepts no new VMs.
    node: String,
    /// State of the server or switch: `drained` or `failed`.
    state: State,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// An operator wants to remove the server or switch from service.
    Drained,
    /// The server or switch does not work.
    Failed,
}

/// Returns the JSON Schema of a datacenter's file.
pub(super) fn schema() -> String {
    let mut tables = Tables::default();
    let properties = json!({
        "fabric": tables.one::<Fabric>(),
        "servers": tables.one::<Servers>(),
        "tier": tables.list::<TierTable>(),
        "server": tables.list::<Server>(),
        "switch": tables.list::<SwitchNode>(),
        "link": tables.list::<Link>(),
        "out": tables.list::<Out>()
    });
    let rules = json!({
        "oneOf": [
            need(&["servers", "tier"], json!({
                "servers": true, "tier": true, "server": false, "switch": false, "link": false
            })),
            need(&["server"], json!({ "server": true, "servers": false, "tier": false }))
        ],
        "$defs": {
            "Fabric": { "properties": {
                "reserved_code_points": {
                    "items": { "minimum": 1, "maximum": 63 }, "uniqueItems": true
                }
            } },
            "Server": { "properties": { "name": { "pattern": NODE } } },
            "Switch": { "properties": { "name": { "pattern": NODE } } },
            "TierTable": {
                "properties": { "oversubscription": { "type": "number", "exclusiveMinimum": 0 } },
                "oneOf": [has(&["rate"]), has(&["oversubscription"])]
            }
        }
    });
    tables.file("Describes a datacenter: its topology and queues.", properties, &["fabric"], rules)
}

pub(super) fn read(root: &Table, report: &mut Report<'_>) -> Option<FabricFile> {
    let fabric = section::<Fabric>(root, "fabric", report);
    let fabric = fabric.unwrap_or_else(|| {
        report.file("the section [fabric] is missing", "add [fabric] with `name = \"...\"`");
        Object { label: "[fabric]".to_owned(), name: None, value: None, table: None }
    });
    let policy = check_fabric(&fabric, report);
    let regular = root.contains_key("servers") || root.contains_key("tier");
    let listed = ["server", "switch", "link"].iter().any(|key| root.contains_key(key));
    let (topology, regular) = match (regular, listed) {
        (true, false) => read_regular(root, report)?,
        (false, true) => (read_listed(root, report)?, None),
        (true, true) => {
            let problem = "the file has a regular tree and also single servers, switches or links";
            report
                .file(problem, "write [servers] and [[tier]], or [[server]], [[switch]], [[link]]");
            return None;
        }
        (false, false) => {
            let remedy = "write [servers] and [[tier]], or [[server]], [[switch]] and [[link]]";
            report.file("there is no topology", remedy);
            return None;
        }
    };
    let out = read_out(root, &topology, report);
    let fabric = fabric.value?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    let headroom_permille = (fabric.headroom_pct * 10.0).round() as u32;
    Some(FabricFile {
        name: fabric.name,
        topology,
        regular,
        headroom_permille,
        policy: policy?,
        reserved_code_points: fabric.reserved_code_points,
        out,
    })
}

fn check_fabric(object: &Object<'_, Fabric>, report: &mut Report<'_>) -> Option<Policy> {
    let fabric = object.value.as_ref()?;
    if !(0.0..=100.0).contains(&fabric.headroom_pct) {
        let problem = format!("`headroom_pct`: {} is out of range", fabric.headroom_pct);
        report.at(object, "headroom_pct", problem, "write 0 to 100");
    }
    if let Err(error) = Palette::without(&fabric.reserved_code_points) {
        said(report, object, "reserved_code_points", &error.to_string());
    }
    idle_code_points(object, &fabric.reserved_code_points, report);
    let policy = Policy {
        queues: fabric.queues.into(),
        reserved_queues: fabric.reserved_queues.into(),
        queue_weight: fabric.queue_weight.map_or(QueueWeight::ByLoad, QueueWeight::Fixed),
        ..Policy::default()
    };
    if !(2..=64).contains(&fabric.queues) {
        let problem = format!("`queues` {} is out of range", fabric.queues);
        report.at(object, "queues", problem, "write 2 to 64");
    } else if let Err(error) = policy.check() {
        let key = if fabric.queue_weight.is_some_and(|w| !(0.0..=1.0).contains(&w)) {
            "queue_weight"
        } else {
            "reserved_queues"
        };
        said(report, object, key, &error.to_string());
    }
    Some(policy)
}

/// Reports a mistake whose text has the form `problem; remedy`.
fn said<T>(report: &mut Report<'_>, object: &Object<'_, T>, key: &str, text: &str) {
    let (problem, remedy) = text.split_once("; ").unwrap_or((text, "see docs/reference/fabric.md"));
    report.at(object, key, problem, remedy);
}

fn read_regular(root: &Table, report: &mut Report<'_>) -> Option<(Topology, Option<Regular>)> {
    let servers = section::<Servers>(root, "servers", report);
    if servers.is_none() {
        report.file("the section [servers] is missing", "add [servers] with `slots = ...`");
    }
    let tables = list::<TierTable>(root, "tier", report);
    let servers = servers?;
    let mut tiers: Vec<Tier> = Vec::new();
    for object in &tables {
        let tier = object.value.as_ref()?;
        let rate = tier_rate(object, tier, tiers.last(), report)?;
        tiers.push(Tier { fan_out: tier.fan_out, uplinks: tier.uplinks, rate });
    }
    let regular = Regular { slots: servers.value.as_ref()?.slots, tiers };
    match regular.build() {
        Ok(topology) => Some((topology, Some(regular))),
        Err(error) => {
            let text = error.to_string();
            match (&error, tables.first()) {
                (RegularError::Zero { tier, what }, _) if tables.get(tier - 1).is_some() => {
                    said(report, &tables[tier - 1], what, &text);
                }
                (RegularError::Slots(_), _) | (_, None) => {
                    let text = text.replace(": ", "; ");
                    said(report, &servers, "slots", &text);
                }
                (_, Some(first)) => said(report, first, "fan_out", &text.replace(": ", "; ")),
            }
            None
        }
    }
}

/// Returns the rate of a tier's links, either as written or computed from the over-subscription.
fn tier_rate(
    object: &Object<'_, TierTable>,
    tier: &TierTable,
    below: Option<&Tier>,
    report: &mut Report<'_>,
) -> Option<units::BitsPerSecond> {
    match (tier.rate, tier.oversubscription, below) {
        (Some(rate), None, _) => Some(rate.0),
        (None, Some(ratio), Some(below)) => {
            if !(ratio.is_finite() && ratio > 0.0) {
                let problem = format!("`oversubscription`: {ratio} is not a ratio above 0");
                report.at(object, "oversubscription", problem, "write 1 for 1:1, 4 for 4:1");
                return None;
            }
            #[expect(clippy::cast_precision_loss, reason = "the rate may be rounded")]
            let down = below.rate.0 as f64 * f64::from(below.fan_out);
            let rate = down / (ratio * f64::from(tier.uplinks.max(1)));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
            let rate = rate as u64;
            Some(units::BitsPerSecond(rate))
        }
        (None, Some(_), None) => {
            let problem = "the lowest tier has no tier below it, so it has no over-subscription";
            report.at(object, "oversubscription", problem, "write its `rate`");
            None
        }
        (Some(_), Some(_), _) => {
            let problem = "both `rate` and `oversubscription`";
            report.at(object, "oversubscription", problem, "write one of them");
            None
        }
        (None, None, _) => {
            report.at(object, "rate", "`rate` is missing", "add `rate = ...`");
            None
        }
    }
}

fn read_listed(root: &Table, report: &mut Report<'_>) -> Option<Topology> {
    let servers = list::<Server>(root, "server", report);
    let switches = list::<SwitchNode>(root, "switch", report);
    let links = list::<Link>(root, "link", report);
    let mut spec = TopologySpec::default();
    for object in &servers {
        check_node(object, report);
        let server = object.value.as_ref()?;
        spec.nodes.push(NodeSpec { name: server.name.clone(), slots: Some(server.slots) });
    }
    for object in &switches {
        check_node(object, report);
        spec.nodes.push(NodeSpec { name: object.value.as_ref()?.name.clone(), slots: None });
    }
    for object in &links {
        let link = object.value.as_ref()?;
        let (child, parent) = (link.from.clone(), link.to.clone());
        spec.links.push(LinkSpec { child, parent, rate: link.rate.0 });
    }
    let errors = match spec.build() {
        Ok(topology) => return Some(topology),
        Err(errors) => errors,
    };
    for error in errors {
        let text = error.to_string();
        // The remedy is the last clause. Some problems have several clauses.
        let (problem, remedy) =
            text.rsplit_once("; ").unwrap_or((&text, "see docs/reference/fabric.md"));
        let key = match &error {
            SpecError::Slots { .. } => "slots",
            SpecError::ZeroRate { .. } => "rate",
            SpecError::AboveServer { .. } => "to",
            SpecError::Unknown { at, name } => {
                let from = links.get(*at).and_then(|link| link.value.as_ref());
                if from.is_some_and(|link| link.from == *name) { "from" } else { "to" }
            }
            _ => "name",
        };
        match place(&error) {
            MistakePlace::Node(at) if at < servers.len() => {
                report.at(&servers[at], key, problem, remedy)
            }
            MistakePlace::Node(at) => match switches.get(at - servers.len()) {
                Some(switch) => report.at(switch, key, problem, remedy),
                None => report.file(problem, remedy),
            },
            MistakePlace::Link(at) => match links.get(at) {
                Some(link) => report.at(link, key, problem, remedy),
                None => report.file(problem, remedy),
            },
            MistakePlace::File => report.file(problem, remedy),
        }
    }
    None
}

/// Reports the name of a server or switch that no host and no certificate can have.
fn check_node<T>(object: &Object<'_, T>, report: &mut Report<'_>) {
    let wrong = |name: &&str| {
        name.is_empty()
            || name.len() > units::NODE_BYTES_MAX
            || name.chars().any(|c| c.is_control() || c.is_whitespace())
    };
    if let Some(name) = object.name.as_deref().filter(wrong) {
        let problem = format!("{name:?} is not a name of a server or switch");
        let remedy = format!("write 1 to {} characters without blanks", units::NODE_BYTES_MAX);
        report.at(object, "name", problem, remedy);
    }
}

/// Object of the file that contains a mistake.
enum MistakePlace {
    Node(usize),
    Link(usize),
    File,
}

fn place(error: &SpecError) -> MistakePlace {
    match error {
        SpecError::DuplicateName { at, .. }
        | SpecError::Slots { at, .. }
        | SpecError::Childless { at, .. }
        | SpecError::TwoWays { at, .. } => MistakePlace::Node(*at),
        SpecError::Unknown { at, .. }
        | SpecError::ZeroRate { at, .. }
        | SpecError::DuplicateLink { at, .. }
        | SpecError::AboveServer { at, .. }
        | SpecError::Cycle { at, .. }
        | SpecError::Jump { at, .. } => MistakePlace::Link(*at),
        _ => MistakePlace::File,
    }
}

fn read_out(root: &Table, topology: &Topology, report: &mut Report<'_>) -> Vec<(NodeId, Service)> {
    let mut out = Vec::new();
    let mut named = BTreeSet::new();
    for object in list::<Out>(root, "out", report) {
        let Some(value) = object.value.as_ref() else { continue };
        let service = match value.state {
            State::Drained => Service::Drained,
            State::Failed => Service::Failed,
        };
        match topology.find(&value.node) {
            Some(node) if named.insert(node) => out.push((node, service)),
            Some(_) => {
                let problem = format!("two [[out]] tables for `{}`", value.node);
                report.at(&object, "node", problem, "remove one of the two");
            }
            None => {
                let problem = format!("the topology has no server or switch `{}`", value.node);
                report.at(&object, "node", problem, "correct the name");
            }
        }
    }
    out
}
