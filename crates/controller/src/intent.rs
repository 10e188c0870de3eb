//! Stored records of tenants and of the binding. The records use names and are therefore
//! independent of the numbering of nodes and tenants.
//!
//! # Problem
//!
//! A successor, or a restart with a larger topology, numbers nodes and tenants differently.
//!
//! # Approach
//!
//! Records contain the names of servers and switches. A link is identified by its two ends. Records
//! are JSON with a version. The program refuses a record of another version.
//!
//! | Key | Value |
//! |---|---|
//! | `penstock/tenants/NAME` | [`TenantRecord`] |
//! | `penstock/binding` | [`BindingHead`](crate::leader::BindingHead) of the binding in force |
//! | `penstock/bound/EPOCH.GENERATION/SHARD` | a part of a binding: an array of [`BoundRecord`] |
//! | `penstock/history/EPOCH.GENERATION` | heads of the last completed bindings |
//! | `penstock/mode` | [`Mode`] |
//! | `penstock/epochs` | difference between an epoch and the store's revision; 0 if absent |
//! | `penstock/leader/...` | the election ([`crate::store`]) |

use core::fmt;

use penstock_fabric::hose::{Hose, HoseError, Need, VmClass};
use penstock_fabric::ledger::Entry;
use penstock_fabric::queue_binding::{Bound, Port};
use penstock_fabric::tenant_placement::{Cost, Placement, Spread, VmShare};
use penstock_fabric::topology::{LinkId, NodeId, Topology};
use penstock_units::BitsPerSecond;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;

/// Prefix of all keys.
pub const ROOT: &str = "penstock/";
/// Prefix of tenants' keys.
pub const TENANTS: &str = "penstock/tenants/";
/// Key of the binding in force.
pub const BINDING: &str = "penstock/binding";
/// Prefix of the parts of bindings.
pub const BOUND: &str = "penstock/bound/";
/// Prefix of the heads of completed bindings.
pub const HISTORY: &str = "penstock/history/";
/// Key of the controller's mode.
pub const MODE: &str = "penstock/mode";
/// Key of the difference between an epoch and its election's revision.
pub const EPOCHS: &str = "penstock/epochs";
/// Prefix of the election's keys.
pub const LEADER: &str = "penstock/leader/";

/// Mode of the controller. It limits the changes that the controller may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The controller decides and carries out its decisions.
    #[default]
    Active,
    /// The controller decides and reports its decisions, but changes no switches or hosts.
    Observe,
    /// Bindings stay as they are. Weights and hosts follow arriving and leaving tenants.
    Hold,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Observe => "observe",
            Self::Hold => "hold",
        })
    }
}

/// VMs with the same guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// Number of VMs.
    pub vms: u32,
    /// Guaranteed sending rate of each VM in bit/s.
    pub send: u64,
    /// Guaranteed receiving rate of each VM in bit/s.
    pub recv: u64,
}

/// A bound on a tenant's VMs in fault domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadRecord {
    /// Layer of the fault domain: 0 for servers, 1 for racks, and so on.
    pub layer: usize,
    /// Maximum number of the tenant's VMs in one domain.
    pub most_vms: Option<u32>,
    /// Minimum number of domains with VMs of the tenant.
    pub least_domains: Option<u32>,
}

/// A tenant's request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantSpec {
    pub name: String,
    pub classes: Vec<ClassRecord>,
    #[serde(default)]
    pub spread: Vec<SpreadRecord>,
    /// Nodes below which the tenant's VMs must be. If empty, they may be anywhere.
    #[serde(default)]
    pub within: Vec<String>,
    /// Other tenants and layers. The tenant's VMs must be in the same fault domains of the layer as
    /// the other tenant's VMs.
    #[serde(default)]
    pub near: Vec<(String, usize)>,
    /// Other tenants and layers. The tenant's VMs must not be in the same fault domains of the
    /// layer as the other tenant's VMs.
    #[serde(default)]
    pub apart: Vec<(String, usize)>,
}

/// VMs of one class on one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRecord {
    pub server: String,
    /// Index of the class, from 0.
    pub class: u32,
    pub vms: u32,
}

/// Reservation on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Name of the link's lower end.
    pub below: String,
    /// Name of the link's upper end.
    pub above: String,
    /// Reserved from the lower to the upper end, in bit/s.
    pub up: u64,
    /// Reserved from the upper to the lower end, in bit/s.
    pub down: u64,
}

/// A tenant's placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Name of the root of the tenant's tree.
    pub root: String,
    pub shares: Vec<ShareRecord>,
    pub links: Vec<LinkRecord>,
    /// Weighted cost when the tenant was placed.
    pub cost: f64,
}

/// A tenant and its placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Version of the record: [`VERSION`].
    pub version: u32,
    pub spec: TenantSpec,
    pub placement: PlacementRecord,
}

/// A queue of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRecord {
    /// Name of the link's lower end.
    pub below: String,
    /// Name of the link's upper end.
    pub above: String,
    /// Whether the port is at the lower end.
    pub up: bool,
    /// Number of the queue, from 1.
    pub queue: u8,
}

/// A tenant's queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundRecord {
    pub tenant: String,
    pub dscp: u8,
    /// Interval in which the tenant got the queues.
    pub since: u64,
    /// One queue for each port of the tenant's tree.
    pub queues: Vec<QueueRecord>,
}

/// A complete binding. The store has it in parts: [`BOUND`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRecord {
    /// Version of the record: [`VERSION`].
    pub version: u32,
    /// Stamp of the decision.
    pub stamp: Stamp,
    /// Number of passes so far.
    pub interval: u64,
    /// Queues of tenants, ordered by tenant.
    pub bound: Vec<BoundRecord>,
}

/// Version of the records that this program writes.
pub const VERSION: u32 = 1;

/// Why a record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IntentError {
    /// Another version of the program wrote the record.
    #[error(
        "{key}: form {version} is unknown, this program reads {VERSION}; use the later program"
    )]
    Version { key: String, version: u32 },
    /// The record cannot be parsed.
    #[error("{key}: {problem}; restore a copy of the store")]
    Malformed { key: String, problem: String },
    /// The record refers to a node or link that the topology lacks.
    #[error(
        "{tenant}: the topology has no {what}; add it again, and drain it before you remove it"
    )]
    Missing { tenant: String, what: String },
    /// The tenant's hose is invalid.
    #[error("{tenant}: {problem}")]
    Hose { tenant: String, problem: HoseError },
}

/// Converts between names and identifiers of a topology.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a>(pub &'a Topology);

impl Names<'_> {
    fn node(&self, tenant: &str, name: &str) -> Result<NodeId, IntentError> {
        let missing = || IntentError::Missing {
            tenant: tenant.to_owned(),
            what: format!("server or switch `{name}`"),
        };
        self.0.find(name).ok_or_else(missing)
    }

    fn link(&self, tenant: &str, below: &str, above: &str) -> Result<LinkId, IntentError> {
        let (low, high) = (self.node(tenant, below)?, self.node(tenant, above)?);
        let missing = || IntentError::Missing {
            tenant: tenant.to_owned(),
            what: format!("link from `{below}` to `{above}`"),
        };
        self.0.up(low).find(|link| self.0.parent(*link) == high).ok_or_else(missing)
    }

    #[must_use]
    pub fn of(&self, node: NodeId) -> String {
        self.0.name(node).to_string()
    }

    /// Names of a link's lower and upper end.
    #[must_use]
    pub fn ends(&self, link: LinkId) -> (String, String) {
        (self.of(self.0.child(link)), self.of(self.0.parent(link)))
    }
}

impl TenantSpec {
    /// Returns the request's hose.
    ///
    /// # Errors
    /// The hose is invalid.
    pub fn hose(&self) -> Result<Hose, IntentError> {
        let class = |c: &ClassRecord| VmClass {
            vms: c.vms,
            send: BitsPerSecond(c.send),
            recv: BitsPerSecond(c.recv),
        };
        Hose::new(self.classes.iter().map(class).collect())
            .map_err(|problem| IntentError::Hose { tenant: self.name.clone(), problem })
    }

    #[must_use]
    pub fn spread(&self) -> Vec<Spread> {
        let one = |s: &SpreadRecord| Spread {
            layer: s.layer,
            most_vms: s.most_vms,
            least_domains: s.least_domains,
        };
        self.spread.iter().map(one).collect()
    }

    /// Returns the nodes below which the tenant must be.
    ///
    /// # Errors
    /// The topology lacks one of them.
    pub fn within(&self, names: Names<'_>) -> Result<Vec<NodeId>, IntentError> {
        self.within.iter().map(|node| names.node(&self.name, node)).collect()
    }
}

impl PlacementRecord {
    /// Returns the stored form of a placement.
    #[must_use]
    pub fn of(placement: &Placement, names: Names<'_>) -> Self {
        let share = |s: &VmShare| {
            let server = names.of(s.server);
            ShareRecord { server, class: s.class, vms: s.vms }
        };
        let link = |(link, need): &(LinkId, Need)| {
            let (below, above) = names.ends(*link);
            LinkRecord { below, above, up: need.up.0, down: need.down.0 }
        };
        Self {
            root: names.of(placement.root),
            shares: placement.shares.iter().map(share).collect(),
            links: placement.entry.links.iter().map(link).collect(),
            cost: placement.cost.weighed,
        }
    }

    /// Returns the placement in the numbering of this topology.
    ///
    /// # Errors
    /// The topology lacks a node or link.
    pub fn placement(&self, tenant: &str, names: Names<'_>) -> Result<Placement, IntentError> {
        let mut shares = Vec::new();
        for share in &self.shares {
            let server = names.node(tenant, &share.server)?;
            shares.push(VmShare { server, class: share.class, vms: share.vms });
        }
        shares.sort_unstable();
        let mut links = Vec::new();
        for link in &self.links {
            let id = names.link(tenant, &link.below, &link.above)?;
            links.push((id, Need { up: BitsPerSecond(link.up), down: BitsPerSecond(link.down) }));
        }
        links.sort_by_key(|(link, _)| *link);
        let mut slots: Vec<(NodeId, u32)> = Vec::new();
        for share in &shares {
            match slots.last_mut().filter(|(server, _)| *server == share.server) {
                Some((_, vms)) => *vms += share.vms,
                None => slots.push((share.server, share.vms)),
            }
        }
        let bandwidth = links.iter().map(|(_, need)| u128::from(need.larger().0)).sum();
        // The record lacks the number of tenants on these links, which is only informational.
        let cost = Cost { bandwidth, queue: 0, overfull: 0, weighed: self.cost };
        let root = names.node(tenant, &self.root)?;
        Ok(Placement { root, shares, entry: Entry { slots, links }, cost })
    }
}

impl BoundRecord {
    /// Returns the stored form of a tenant's queues.
    #[must_use]
    pub fn of(tenant: &str, bound: &Bound, names: Names<'_>) -> Self {
        let queue = |(port, queue): &(Port, u8)| {
            let (below, above) = names.ends(port.link);
            QueueRecord { below, above, up: port.up, queue: *queue }
        };
        Self {
            tenant: tenant.to_owned(),
            dscp: bound.dscp,
            since: bound.since,
            queues: bound.queues.iter().map(queue).collect(),
        }
    }

    /// Returns the queues in the numbering of this topology.
    ///
    /// # Errors
    /// The topology lacks a link.
    pub fn bound(&self, names: Names<'_>) -> Result<Bound, IntentError> {
        let mut queues = Vec::new();
        for queue in &self.queues {
            let link = names.link(&self.tenant, &queue.below, &queue.above)?;
            queues.push((Port { link, up: queue.up }, queue.queue));
        }
        queues.sort_unstable();
        Ok(Bound { dscp: self.dscp, queues, since: self.since })
    }
}

/// Serializes a record.
///
/// # Panics
/// It never panics, because records are plain data.
#[must_use]
pub fn to_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are plain data")
}

/// Reads a record from the store. If the record has a version, checks the version.
///
/// # Errors
/// The record has another version or is malformed.
pub fn from_bytes<T: for<'a> Deserialize<'a>>(key: &str, bytes: &[u8]) -> Result<T, IntentError> {
    #[derive(Deserialize)]
    struct Form {
        version: u32,
    }
    if let Ok(Form { version }) = serde_json::from_slice(bytes)
        && version != VERSION
    {
        return Err(IntentError::Version { key: key.to_owned(), version });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| IntentError::Malformed { key: key.to_owned(), problem: error.to_string() })
}
