//! What is kept of tenants and of the binding: by names, so that it outlives every numbering.
//!
//! **Problem.** A successor, and a restart with a larger tree, number nodes and tenants anew.
//! **Rule.** Records name servers and switches; a link is its two ends. They are JSON with a
//! version, and a record of a later version is refused, not guessed at.
//!
//! | Key | Value |
//! |---|---|
//! | `penstock/tenants/NAME` | [`TenantRecord`] |
//! | `penstock/binding` | [`BindingHead`](crate::leader::BindingHead) of the one in force |
//! | `penstock/bound/EPOCH.GENERATION/SHARD` | a part of a binding, an array of [`BoundRecord`] |
//! | `penstock/history/EPOCH.GENERATION` | the heads of the last ones that were carried out whole |
//! | `penstock/mode` | [`Mode`] |
//! | `penstock/epochs` | what is added to the store's revision to make an epoch; 0 if absent |
//! | `penstock/leader/...` | who leads; [`crate::store`] |

use penstock_fabric::hose::{Hose, HoseError, Need, VmClass};
use penstock_fabric::ledger::Entry;
use penstock_fabric::queue_binding::{Bound, Port};
use penstock_fabric::tenant_placement::{Cost, Placement, Spread, VmShare};
use penstock_fabric::topology::{LinkId, NodeId, Topology};
use penstock_units::BitsPerSecond;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;

/// All keys begin with this.
pub const ROOT: &str = "penstock/";
/// Below it, one key a tenant.
pub const TENANTS: &str = "penstock/tenants/";
/// The binding in force.
pub const BINDING: &str = "penstock/binding";
/// Below it, parts of bindings.
pub const BOUND: &str = "penstock/bound/";
/// Below it, heads of bindings that were carried out whole.
pub const HISTORY: &str = "penstock/history/";
/// The controller's mode.
pub const MODE: &str = "penstock/mode";
/// What is added to the revision of an election to make an epoch.
pub const EPOCHS: &str = "penstock/epochs";
/// The election.
pub const LEADER: &str = "penstock/leader/";

/// What the controller may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It decides and carries out.
    #[default]
    Active,
    /// It decides and says what it would do; nothing is changed on switches or hosts.
    Observe,
    /// Queues stay as they are; weights and hosts follow tenants that come and go.
    Hold,
}

/// Several VMs with the same guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// How many.
    pub vms: u32,
    /// What each may send, bit/s.
    pub send: u64,
    /// What each may receive, bit/s.
    pub recv: u64,
}

/// A bound on a tenant's VMs in fault domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadRecord {
    /// 0: servers, 1: racks, ...
    pub layer: usize,
    /// Most of its VMs in one.
    pub most_vms: Option<u32>,
    /// Least number of them.
    pub least_domains: Option<u32>,
}

/// What a tenant asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantSpec {
    /// What it is called.
    pub name: String,
    /// Its VMs.
    pub classes: Vec<ClassRecord>,
    /// Bounds by fault domain.
    #[serde(default)]
    pub spread: Vec<SpreadRecord>,
    /// Only below these nodes.
    #[serde(default)]
    pub within: Vec<String>,
    /// In the same domains of a layer as these tenants.
    #[serde(default)]
    pub near: Vec<(String, usize)>,
    /// In none of theirs.
    #[serde(default)]
    pub apart: Vec<(String, usize)>,
}

/// VMs of one kind on one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRecord {
    /// The server.
    pub server: String,
    /// The kind, from 0.
    pub class: u32,
    /// How many.
    pub vms: u32,
}

/// What is reserved on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Its lower end.
    pub below: String,
    /// Its upper end.
    pub above: String,
    /// Reserved from the lower end up, bit/s.
    pub up: u64,
    /// Reserved down, bit/s.
    pub down: u64,
}

/// Where a tenant is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// The root of its tree.
    pub root: String,
    /// Its VMs.
    pub shares: Vec<ShareRecord>,
    /// What it has reserved.
    pub links: Vec<LinkRecord>,
    /// Its cost when it was placed.
    pub cost: f64,
}

/// A tenant and its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Of this record's form: [`VERSION`].
    pub version: u32,
    /// What it asked for.
    pub spec: TenantSpec,
    /// Where it is.
    pub placement: PlacementRecord,
}

/// A queue of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRecord {
    /// The link's lower end.
    pub below: String,
    /// The link's upper end.
    pub above: String,
    /// Whether the port is the lower end's.
    pub up: bool,
    /// The queue, from 1.
    pub queue: u8,
}

/// A tenant's queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundRecord {
    /// The tenant.
    pub tenant: String,
    /// Its code point.
    pub dscp: u8,
    /// The interval in which it got them.
    pub since: u64,
    /// On each port of its tree.
    pub queues: Vec<QueueRecord>,
}

/// Who has which queues; in the store in parts: [`BOUND`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRecord {
    /// Of this record's form: [`VERSION`].
    pub version: u32,
    /// The decision.
    pub stamp: Stamp,
    /// How many passes there were.
    pub interval: u64,
    /// By tenant.
    pub bound: Vec<BoundRecord>,
}

/// The form of records that this program writes.
pub const VERSION: u32 = 1;

/// A record that cannot be made sense of here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IntentError {
    /// Written by a later program.
    #[error(
        "{key}: form {version} is unknown, this program reads {VERSION}; use the later program"
    )]
    Version {
        /// Where it is.
        key: String,
        /// What it says.
        version: u32,
    },
    /// Not what it should be.
    #[error("{key}: {problem}; restore a copy of the store")]
    Malformed {
        /// Where it is.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// It names what the topology has not.
    #[error(
        "{tenant}: the topology has no {what}; add it again, and drain it before you remove it"
    )]
    Missing {
        /// Whose.
        tenant: String,
        /// What.
        what: String,
    },
    /// Its hose is none.
    #[error("{tenant}: {problem}")]
    Hose {
        /// Whose.
        tenant: String,
        /// What is wrong.
        problem: HoseError,
    },
}

/// Nodes and links by name.
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

    /// A node's name.
    #[must_use]
    pub fn of(&self, node: NodeId) -> String {
        self.0.name(node).to_string()
    }

    /// Both ends of a link: the lower, the upper.
    #[must_use]
    pub fn ends(&self, link: LinkId) -> (String, String) {
        (self.of(self.0.child(link)), self.of(self.0.parent(link)))
    }
}

impl TenantSpec {
    /// Its hose.
    ///
    /// # Errors
    /// When it is none.
    pub fn hose(&self) -> Result<Hose, IntentError> {
        let class = |c: &ClassRecord| VmClass {
            vms: c.vms,
            send: BitsPerSecond(c.send),
            recv: BitsPerSecond(c.recv),
        };
        Hose::new(self.classes.iter().map(class).collect())
            .map_err(|problem| IntentError::Hose { tenant: self.name.clone(), problem })
    }

    /// Its bounds.
    #[must_use]
    pub fn spread(&self) -> Vec<Spread> {
        let one = |s: &SpreadRecord| Spread {
            layer: s.layer,
            most_vms: s.most_vms,
            least_domains: s.least_domains,
        };
        self.spread.iter().map(one).collect()
    }

    /// The nodes below which it must be.
    ///
    /// # Errors
    /// One that the topology has not.
    pub fn within(&self, names: Names<'_>) -> Result<Vec<NodeId>, IntentError> {
        self.within.iter().map(|node| names.node(&self.name, node)).collect()
    }
}

impl PlacementRecord {
    /// What is kept of a placement.
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

    /// The placement again, as this topology numbers it.
    ///
    /// # Errors
    /// A node or link that the topology has not.
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
        // How crowded its links were then is not known any more, and only told.
        let cost = Cost { bandwidth, queue: 0, overfull: 0, weighed: self.cost };
        let root = names.node(tenant, &self.root)?;
        Ok(Placement { root, shares, entry: Entry { slots, links }, cost })
    }
}

impl BoundRecord {
    /// What is kept of a tenant's queues.
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

    /// The queues again, as this topology numbers links.
    ///
    /// # Errors
    /// A link that the topology has not.
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

/// A record as it is stored.
///
/// # Panics
/// Never: records are plain data.
#[must_use]
pub fn to_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are plain data")
}

/// A record from the store; `version` says of which form it is, if it has one.
///
/// # Errors
/// When it is of another form, or nothing of the kind.
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
