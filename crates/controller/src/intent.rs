//! Defines the stored records of tenants and of the binding, which says which queues each tenant
//! has. The records use names, so their contents do not depend on the numbering of nodes and
//! tenants.
//!
//! # Problem
//!
//! A successor of the controller may number nodes and tenants differently. The same controller may
//! also number nodes and tenants differently after a restart with a larger topology.
//!
//! # Approach
//!
//! Records contain the names of servers and switches. A record identifies a link by the names of
//! its two ends. Records are JSON with a version. The controller refuses a record of a later
//! version. The store has the queues of a tenant by link, because queues with the names of both
//! ends each would take ten times as many bytes. The controller also reads the longer form, which
//! release 0.1 wrote.
//!
//! | Key | Value |
//! |---|---|
//! | `penstock/tenants/NAME` | [`TenantRecord`] |
//! | `penstock/binding` | [`BindingHead`](crate::leader::BindingHead) of the current snapshot |
//! | `penstock/bound/EPOCH.GENERATION/base` | `BindingHead` that lists the parts of a snapshot |
//! | `penstock/bound/EPOCH.GENERATION/SHARD` | a part of a snapshot: an array of [`BoundRecord`] |
//! | `penstock/journal/EPOCH.GENERATION` | [`ChangeRecord`]: a change of the binding |
//! | `penstock/history/EPOCH.GENERATION` | `BindingHead` of a completed binding |
//! | `penstock/moving/EPOCH.GENERATION` | [`MovingRecord`]; no key if no plan is unfinished |
//! | `penstock/mode` | [`Mode`] |
//! | `penstock/epochs` | number that an operator's command adds to all epochs; 0 if absent |
//! | `penstock/leader/...` | the election ([`crate::store`]) |

use core::fmt;
use std::collections::BTreeMap;

use penstock_fabric::hose::{Hose, HoseError, Need, VmClass};
use penstock_fabric::ledger::Entry;
use penstock_fabric::queue_binding::{Bound, Port};
use penstock_fabric::tenant_placement::{Cost, Placement, Spread, VmShare};
use penstock_fabric::topology::{LinkId, NodeId, Topology};
use penstock_units::BitsPerSecond;
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::Stamp;

/// Prefix of all keys in the store.
pub const ROOT: &str = "penstock/";
/// Prefix of the keys of tenants' records.
pub const TENANTS: &str = "penstock/tenants/";
/// Key of the head of the current binding.
pub const BINDING: &str = "penstock/binding";
/// Prefix of the store's keys for shards (parts of bindings).
pub const BOUND: &str = "penstock/bound/";
/// Prefix of the store's keys for changes of the binding.
pub const JOURNAL: &str = "penstock/journal/";
/// Prefix of the store's keys for the heads of the last executed bindings.
pub const HISTORY: &str = "penstock/history/";
/// Prefix of the keys of records of the tenants that unfinished plans move.
pub const MOVING: &str = "penstock/moving/";
/// Key of the controller's mode in the store.
pub const MODE: &str = "penstock/mode";
/// Key of the number that an operator's command adds to all epochs. The epoch of a leader is the
/// store's revision at the leader's election plus this number.
pub const EPOCHS: &str = "penstock/epochs";
/// Prefix of the keys of the leader's election.
pub const LEADER: &str = "penstock/leader/";

/// Mode of the controller, which limits the changes that the controller may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// In active mode, the controller makes decisions and executes them on switches and hosts.
    #[default]
    Active,
    /// In observe mode, the controller makes and reports decisions, but changes no switches or
    /// hosts.
    Observe,
    /// In hold mode, the controller changes no bindings, but still updates weights and hosts when
    /// tenants arrive or leave.
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

/// A class of VMs with the same guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// Number of VMs.
    pub vms: u32,
    /// Guaranteed sending rate of each VM in bit/s.
    pub send: u64,
    /// Guaranteed receiving rate of each VM in bit/s.
    pub recv: u64,
}

/// Limits on how a tenant's VMs are spread over the fault domains of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadRecord {
    /// Layer of the fault domains: 0 for servers, 1 for racks, 2 for pods.
    pub layer: usize,
    /// Maximum number of the tenant's VMs in one fault domain, or `None` for no maximum.
    pub most_vms: Option<u32>,
    /// Minimum number of fault domains with VMs of the tenant, or `None` for no minimum.
    pub least_domains: Option<u32>,
}

/// Request of a tenant: guarantees and limits on placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantSpec {
    pub name: String,
    pub classes: Vec<ClassRecord>,
    #[serde(default)]
    pub spread: Vec<SpreadRecord>,
    /// Names of servers and switches. The tenant's VMs must be on these servers or on servers below
    /// these switches. An empty list permits all servers.
    #[serde(default)]
    pub within: Vec<String>,
    /// Pairs of another tenant's name and a layer of fault domains. The tenant's VMs must be in
    /// fault domains of the layer in which the other tenant has VMs.
    #[serde(default)]
    pub near: Vec<(String, usize)>,
    /// Pairs of another tenant's name and a layer of fault domains. The tenant's VMs must not be in
    /// a fault domain of the layer in which the other tenant has VMs.
    #[serde(default)]
    pub apart: Vec<(String, usize)>,
}

/// Number of a tenant's VMs of one class on one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRecord {
    pub server: String,
    /// Index of the VMs' class in the tenant's request, from 0.
    pub class: u32,
    pub vms: u32,
}

/// Bandwidth that a tenant has reserved on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Name of the link's lower end.
    pub below: String,
    /// Name of the link's upper end.
    pub above: String,
    /// Reserved rate from the lower to the upper end, in bit/s.
    pub up: u64,
    /// Reserved rate from the upper to the lower end, in bit/s.
    pub down: u64,
}

/// Placement of a tenant: its servers, links and reservations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Name of the server or switch at the top of the tenant's tree. The tenant's tree contains all
    /// of its VMs.
    pub root: String,
    pub shares: Vec<ShareRecord>,
    pub links: Vec<LinkRecord>,
    /// Weighted sum of the placement's queue and bandwidth cost without unit (QShare §IV-B), as
    /// computed at placement.
    pub cost: f64,
}

/// Stored request of a tenant, with the tenant's placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Version of the record, which must be [`VERSION`].
    pub version: u32,
    pub spec: TenantSpec,
    pub placement: PlacementRecord,
}

/// Stored queue of a tenant on one port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueRecord {
    /// Name of the link's lower end.
    pub below: String,
    /// Name of the link's upper end.
    pub above: String,
    /// True if the port is at the lower end of the link, and false if the port is at the upper end.
    pub up: bool,
    /// Number of the queue on the port, from 1.
    pub queue: u8,
}

/// Stored queues of a tenant on all ports of the tenant's tree.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "StoredBound")]
pub struct BoundRecord {
    pub tenant: String,
    pub dscp: u8,
    /// Number of the binding pass in which the tenant got the queues.
    pub since: u64,
    /// Queues of the tenant, with one queue for each port of the tenant's tree.
    pub queues: Vec<QueueRecord>,
}

/// Form of a [`BoundRecord`] in the store, for reads.
#[derive(Deserialize)]
struct StoredBound {
    tenant: String,
    dscp: u8,
    since: u64,
    /// Queues by the name of the link's upper end, and then by the name of the link's lower end.
    /// The first queue is on the port at the lower end. Queue 0 means that the tenant has no queue
    /// on the port.
    #[serde(default)]
    links: BTreeMap<String, BTreeMap<String, (u8, u8)>>,
    /// Queues as release 0.1 stored them.
    #[serde(default)]
    queues: Vec<QueueRecord>,
}

/// Form of a [`BoundRecord`] in the store, for writes.
#[derive(Serialize)]
struct BoundToStore<'a> {
    tenant: &'a str,
    dscp: u8,
    since: u64,
    links: BTreeMap<&'a str, BTreeMap<&'a str, (u8, u8)>>,
}

impl Serialize for BoundRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tenant, dscp, since, queues } = self;
        let mut links: BTreeMap<&str, BTreeMap<&str, (u8, u8)>> = BTreeMap::new();
        for QueueRecord { below, above, up, queue } in queues {
            let both = links.entry(above).or_default().entry(below).or_default();
            *(if *up { &mut both.0 } else { &mut both.1 }) = *queue;
        }
        BoundToStore { tenant, dscp: *dscp, since: *since, links }.serialize(serializer)
    }
}

impl From<StoredBound> for BoundRecord {
    fn from(stored: StoredBound) -> Self {
        let StoredBound { tenant, dscp, since, links, mut queues } = stored;
        for (above, lower) in links {
            for (below, (up, down)) in lower {
                for (up, queue) in [(true, up), (false, down)] {
                    if queue != 0 {
                        let (below, above) = (below.clone(), above.clone());
                        queues.push(QueueRecord { below, above, up, queue });
                    }
                }
            }
        }
        Self { tenant, dscp, since, queues }
    }
}

/// Change from one binding to the next, which the store keeps in the journal ([`JOURNAL`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// Version of the record, at most [`BINDING_VERSION`].
    pub version: u32,
    /// Stamp of the decision that made the binding after the change.
    pub stamp: Stamp,
    /// Stamp of the binding before the change.
    pub after: Stamp,
    /// Number of passes up to the binding after the change.
    pub interval: u64,
    /// Tenants that got queues or other queues.
    pub bound: Vec<BoundRecord>,
    /// Names of the tenants that lost their queues.
    pub gone: Vec<String>,
}

/// Tenants whose hosts or switches may not have executed a plan completely. A leader writes a
/// record before it executes a plan, and deletes it when no such tenant is left. If the store has
/// several records, the tenants of all records may be moving. A record that a broken connection
/// delivers late therefore hides no tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingRecord {
    /// Version of the record, which must be [`VERSION`].
    pub version: u32,
    /// True if all tenants may be moving, because their names are too long for the record.
    #[serde(default)]
    pub all: bool,
    /// Names of the tenants that may be moving.
    pub tenants: Vec<String>,
}

/// A complete binding. The store keeps a binding as a snapshot in parts ([`BOUND`]) and the changes
/// since the snapshot ([`JOURNAL`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRecord {
    /// Version of the record, which must be [`VERSION`].
    pub version: u32,
    /// Stamp of the decision that made the binding.
    pub stamp: Stamp,
    /// Number of passes that have computed a binding so far, including the pass for this binding. A
    /// pass computes a binding from the tenants' scores.
    pub interval: u64,
    /// Queues of each tenant, ordered by tenant name.
    pub bound: Vec<BoundRecord>,
}

/// Version of the records that this version of Penstock writes, except for records of bindings.
pub const VERSION: u32 = 1;
/// Version of the records of bindings that this version of Penstock writes. Release 0.1 wrote
/// version 1, in which a head lists the parts of a binding and the store has no journal.
pub const BINDING_VERSION: u32 = 2;

/// Reason why the controller cannot use a stored record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IntentError {
    /// Another version of Penstock wrote the record.
    #[error(
        "{key}: record version {version} is unknown, {newest} is supported; use the newer program"
    )]
    Version { key: String, version: u32, newest: u32 },
    /// The controller cannot parse the record.
    #[error("{key}: {problem}; restore a copy of the store")]
    Malformed { key: String, problem: String },
    /// The record refers to a node or link that the topology lacks.
    #[error(
        "{tenant}: the topology has no {what}; restore the old topology file, and drain nodes \
         before you remove them"
    )]
    Missing { tenant: String, what: String },
    /// The tenant's guarantees are not valid in the hose model.
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

    /// Returns the names of a link's lower and upper end.
    #[must_use]
    pub fn ends(&self, link: LinkId) -> (String, String) {
        (self.of(self.0.child(link)), self.of(self.0.parent(link)))
    }
}

impl TenantSpec {
    /// Returns the guarantees of the tenant's request in the hose model.
    ///
    /// # Errors
    /// Returns an error if the guarantees are invalid.
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

    /// Returns the servers and switches that the request's field `within` names.
    ///
    /// # Errors
    /// Returns an error if the topology lacks a server or switch that `within` names.
    pub fn within(&self, names: Names<'_>) -> Result<Vec<NodeId>, IntentError> {
        self.within.iter().map(|node| names.node(&self.name, node)).collect()
    }
}

impl PlacementRecord {
    /// Returns a placement as a record for the store.
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

    /// Returns the placement in the numbering of the present topology.
    ///
    /// # Errors
    /// Returns an error if the topology lacks a node or link of the placement.
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
    /// Returns a tenant's queues as a record for the store.
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

    /// Returns the tenant's queues in the numbering of the present topology.
    ///
    /// # Errors
    /// Returns an error if the topology lacks the link of a queue.
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

/// Serializes a record as JSON.
///
/// # Panics
/// Serialization of a record never fails, because records are plain data.
#[must_use]
pub fn to_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are plain data")
}

/// Parses a record from the store. If the record has a version, checks the version.
///
/// # Errors
/// Returns an error if the record has a later version than [`VERSION`] or is malformed.
pub fn from_bytes<T: for<'a> Deserialize<'a>>(key: &str, bytes: &[u8]) -> Result<T, IntentError> {
    up_to(VERSION, key, bytes)
}

/// Parses a record of a binding from the store. If the record has a version, checks the version.
///
/// # Errors
/// Returns an error if the record has a later version than [`BINDING_VERSION`] or is malformed.
pub fn binding_from_bytes<T: for<'a> Deserialize<'a>>(
    key: &str,
    bytes: &[u8],
) -> Result<T, IntentError> {
    up_to(BINDING_VERSION, key, bytes)
}

fn up_to<T: for<'a> Deserialize<'a>>(
    newest: u32,
    key: &str,
    bytes: &[u8],
) -> Result<T, IntentError> {
    #[derive(Deserialize)]
    struct Form {
        version: u32,
    }
    if let Ok(Form { version }) = serde_json::from_slice(bytes)
        && !(1..=newest).contains(&version)
    {
        return Err(IntentError::Version { key: key.to_owned(), version, newest });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| IntentError::Malformed { key: key.to_owned(), problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_of_release_0_1_and_the_present_form_are_read_alike() {
        let old = br#"{"tenant":"web","dscp":10,"since":7,"queues":[
            {"below":"server-1","above":"rack-0","up":true,"queue":3},
            {"below":"server-1","above":"rack-0","up":false,"queue":2},
            {"below":"server-2","above":"rack-0","up":false,"queue":5}]}"#;
        let old: BoundRecord = from_bytes("old", old).unwrap();
        assert_eq!((old.queues.len(), old.dscp, old.since), (3, 10, 7));
        let stored = to_bytes(&old);
        let text = String::from_utf8(stored.clone()).unwrap();
        assert!(
            text.ends_with(r#""links":{"rack-0":{"server-1":[3,2],"server-2":[0,5]}}}"#),
            "{text}"
        );
        assert_eq!(from_bytes::<BoundRecord>("new", &stored).unwrap(), old);
    }

    #[test]
    fn a_record_of_a_later_version_is_refused() {
        let head = |version| format!(r#"{{"version":{version}}}"#).into_bytes();
        let read = |version| from_bytes::<serde_json::Value>("k", &head(version));
        assert!(read(1).is_ok());
        let error = read(2).unwrap_err().to_string();
        assert!(error.contains("version 2 is unknown, 1 is supported"), "{error}");
        let read = |version| binding_from_bytes::<serde_json::Value>("k", &head(version));
        assert!(read(1).is_ok() && read(2).is_ok());
        assert!(read(3).unwrap_err().to_string().contains("2 is supported"));
    }
}
