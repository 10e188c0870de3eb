//! Records the reservations of a datacenter: slots of servers, bandwidth of links, and the number
//! of tenants on each link. A slot is room for one VM.
//!
//! # Approach
//!
//! An entry has all reservations of one tenant. Bandwidth is in whole bits per second, so removing
//! an entry restores the previous amounts exactly. An entry that exceeds a link's limit or a
//! server's slots is refused as a whole. A link's limit is the link's rate minus the headroom,
//! which is never reserved. If a node at either end of a link is out of service, the link's limit
//! is 0. Existing reservations stay in the ledger until their tenants move.
//!
//! # Cost
//!
//! The ledger takes 28 bytes per link and 5 bytes per node. Adding or removing an entry takes time
//! proportional to its number of servers and links.

use core::fmt;

use penstock_units::BitsPerSecond;
use thiserror::Error;

use crate::hose::Need;
use crate::topology::{LinkId, NodeId, Topology};

/// The fraction 1 as a number of thousandths (permille).
pub const WHOLE_PERMILLE: u32 = 1000;

/// Service state of a node: whether new VMs and new traffic may use the node, and why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// New VMs and new traffic may use the node.
    #[default]
    In,
    /// An operator is emptying the node, so no new VMs and traffic may use it. Existing VMs and
    /// traffic stay on the node.
    Drained,
    /// The node has failed, so no new VMs and traffic may use it.
    Failed,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Drained => "drained",
            Self::Failed => "failed",
        })
    }
}

/// Slots and bandwidth that one tenant reserves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Number of slots that the tenant reserves on each server, with each server at most once.
    pub slots: Vec<(NodeId, u32)>,
    /// Bandwidth that the tenant reserves on each link. `links` contains each link at most once,
    /// and no link without reserved bandwidth.
    pub links: Vec<(LinkId, Need)>,
}

/// Why the ledger refuses an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// A server has too few free slots.
    #[error(
        "server {} has {free} free slots, {wanted} are needed; place fewer VMs there", .server.0
    )]
    Slots {
        /// The server with too few free slots.
        server: NodeId,
        /// Number of free slots of the server.
        free: u32,
        /// Number of slots that the ledger entry needs on the server.
        wanted: u32,
    },
    /// A link has too little bandwidth.
    #[error(
        "link {} has {} bit/s free, but the entry needs {} bit/s; reserve less on the link",
        .link.0,
        .free.0,
        .wanted.0
    )]
    Link {
        /// Link that has less free bandwidth than the ledger entry needs.
        link: LinkId,
        /// Free bandwidth of the link in the direction with too little free bandwidth.
        free: BitsPerSecond,
        /// Bandwidth that the ledger entry needs in the direction of the link with too little free
        /// bandwidth.
        wanted: BitsPerSecond,
    },
}

/// The reservations of all tenants of a datacenter.
#[derive(Clone, Debug)]
pub struct Ledger {
    topology: Topology,
    headroom_permille: u32,
    service: Vec<Service>,
    free: Vec<u32>,
    up: Vec<u64>,
    down: Vec<u64>,
    limit: Vec<u64>,
    tenants: Vec<u32>,
    /// For each layer of links, starting at layer 1 (the links of servers): the sum of all
    /// reservations and the sum of all limits. The sum of reservations and the sum of limits
    /// include both directions of each link.
    layers: Vec<(u128, u128)>,
}

impl Ledger {
    /// Creates a ledger without reservations. `headroom_permille` thousandths of each link's rate,
    /// at most 1000, are never reserved.
    #[must_use]
    pub fn new(topology: Topology, headroom_permille: u32) -> Self {
        let headroom_permille = headroom_permille.min(WHOLE_PERMILLE);
        let free = (0..topology.servers()).map(|s| topology.slots(node(s))).collect();
        let links = topology.links();
        let mut ledger = Self {
            headroom_permille,
            service: vec![Service::In; topology.nodes()],
            free,
            up: vec![0; links],
            down: vec![0; links],
            limit: vec![0; links],
            tenants: vec![0; links],
            layers: Vec::new(),
            topology,
        };
        ledger.set_limits();
        ledger
    }

    /// Topology of the datacenter.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Number of slots of a server that new VMs may take. 0 if the server is out of service.
    #[must_use]
    pub fn usable_slots(&self, server: NodeId) -> u32 {
        if self.in_service(server) { self.free[server.index()] } else { 0 }
    }

    /// Number of a server's slots that are not reserved, even if the server is out of service.
    #[must_use]
    pub fn free_slots(&self, server: NodeId) -> u32 {
        self.free[server.index()]
    }

    /// Largest permitted sum of the reservations on a link, in each direction.
    #[must_use]
    pub fn limit(&self, link: LinkId) -> BitsPerSecond {
        BitsPerSecond(self.limit[link.index()])
    }

    /// Sum of all tenants' reservations on a link, by direction.
    #[must_use]
    pub fn reserved(&self, link: LinkId) -> Need {
        let at = link.index();
        Need { up: BitsPerSecond(self.up[at]), down: BitsPerSecond(self.down[at]) }
    }

    /// Bandwidth of a link that can still be reserved, by direction.
    #[must_use]
    pub fn available(&self, link: LinkId) -> Need {
        let at = link.index();
        let left = |reserved: u64| BitsPerSecond(self.limit[at].saturating_sub(reserved));
        Need { up: left(self.up[at]), down: left(self.down[at]) }
    }

    /// Returns the smaller free bandwidth of a link's two directions, in bit/s.
    pub(crate) fn available_both(&self, link: u32) -> u64 {
        let at = link as usize;
        self.limit[at].saturating_sub(self.up[at].max(self.down[at]))
    }

    /// Number of tenants with a reservation on a link, which is N_L in QShare.
    #[must_use]
    pub fn tenants(&self, link: LinkId) -> u32 {
        self.tenants[link.index()]
    }

    /// Returns how much of the links of `layer` is reserved: the sum of the reservations divided by
    /// the sum of the limits, from 0 to 1. The sums of reservations and limits include both
    /// directions of each link. The reserved share of a layer is 1 if the sum of its links' limits
    /// is 0. The links of servers are in layer 1.
    #[must_use]
    pub fn reserved_share(&self, layer: usize) -> f64 {
        let (reserved, limit) = self.layers[layer - 1];
        #[expect(clippy::cast_precision_loss, reason = "a ratio may be rounded")]
        let share = |reserved: u128, limit: u128| reserved as f64 / limit as f64;
        if limit == 0 { 1.0 } else { share(reserved, limit).min(1.0) }
    }

    /// Returns the reserved share of the most reserved layer, from 0 to 1
    /// ([`Self::reserved_share`]).
    #[must_use]
    pub fn scarcest_share(&self) -> f64 {
        (1..=self.layers.len()).map(|layer| self.reserved_share(layer)).fold(0.0, f64::max)
    }

    /// Whether new VMs and new traffic may use a node.
    #[must_use]
    pub fn in_service(&self, node: NodeId) -> bool {
        self.service[node.index()] == Service::In
    }

    /// Whether a node is in service, drained or failed.
    #[must_use]
    pub fn service(&self, node: NodeId) -> Service {
        self.service[node.index()]
    }

    /// Sets whether a node is in service, drained or failed. Existing reservations on the node
    /// stay.
    pub fn set_service(&mut self, node: NodeId, service: Service) {
        self.service[node.index()] = service;
        self.set_limits();
    }

    fn set_limits(&mut self) {
        let kept = u128::from(WHOLE_PERMILLE - self.headroom_permille);
        self.layers = vec![(0, 0); self.topology.layers() - 1];
        for layer in 1..self.topology.layers() {
            for parent in self.topology.layer(layer) {
                for link in self.topology.down(parent) {
                    let at = link.index();
                    let works =
                        self.in_service(parent) && self.in_service(self.topology.child(link));
                    let rate = u128::from(self.topology.rate(link).0);
                    let limit = if works { rate * kept / u128::from(WHOLE_PERMILLE) } else { 0 };
                    self.limit[at] = u64::try_from(limit).unwrap_or(u64::MAX);
                    let sums = &mut self.layers[layer - 1];
                    sums.0 += u128::from(self.up[at]) + u128::from(self.down[at]);
                    sums.1 += 2 * limit;
                }
            }
        }
    }

    /// Adds an entry to the ledger if all slots and bandwidth of the entry are free.
    ///
    /// # Errors
    /// Returns an error if a server has too few slots, or if a link has too little bandwidth. The
    /// ledger is unchanged after an error.
    pub fn take(&mut self, entry: &Entry) -> Result<(), LedgerError> {
        for (server, wanted) in &entry.slots {
            let free = self.usable_slots(*server);
            if free < *wanted {
                return Err(LedgerError::Slots { server: *server, free, wanted: *wanted });
            }
        }
        for (link, need) in &entry.links {
            let free = self.available(*link);
            for (free, wanted) in [(free.up, need.up), (free.down, need.down)] {
                if free < wanted {
                    return Err(LedgerError::Link { link: *link, free, wanted });
                }
            }
        }
        self.restore(entry);
        Ok(())
    }

    /// Removes an entry that [`Self::take`] added, and frees the entry's slots and bandwidth.
    ///
    /// # Panics
    /// Panics if the entry is not in the ledger.
    pub fn give_back(&mut self, entry: &Entry) {
        let missing = "the ledger must contain the entry that is removed";
        for (server, taken) in &entry.slots {
            let free = &mut self.free[server.index()];
            *free = free.checked_add(*taken).expect(missing);
            assert!(*free <= self.topology.slots(*server), "{missing}");
        }
        for (link, need) in &entry.links {
            let at = link.index();
            self.up[at] = self.up[at].checked_sub(need.up.0).expect(missing);
            self.down[at] = self.down[at].checked_sub(need.down.0).expect(missing);
            self.tenants[at] = self.tenants[at].checked_sub(1).expect(missing);
            let layer = self.topology.link_layer(*link) - 1;
            self.layers[layer].0 -= u128::from(need.up.0) + u128::from(need.down.0);
        }
    }

    /// Adds an entry that was in the ledger before, even if a server is drained or a limit is
    /// exceeded. [`Self::restore`] reverts a failed change of reservations.
    pub(crate) fn restore(&mut self, entry: &Entry) {
        for (server, taken) in &entry.slots {
            self.free[server.index()] -= taken;
        }
        for (link, need) in &entry.links {
            let at = link.index();
            self.up[at] += need.up.0;
            self.down[at] += need.down.0;
            self.tenants[at] += 1;
            let layer = self.topology.link_layer(*link) - 1;
            self.layers[layer].0 += u128::from(need.up.0) + u128::from(need.down.0);
        }
    }

    /// Whether two ledgers have equal free slots and equal reservations.
    #[must_use]
    pub fn same_books(&self, other: &Self) -> bool {
        (&self.free, &self.up, &self.down) == (&other.free, &other.up, &other.down)
            && (&self.tenants, &self.layers) == (&other.tenants, &other.layers)
    }
}

fn node(index: usize) -> NodeId {
    NodeId(crate::topology::number(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Regular, Tier};

    fn ledger(headroom: u32) -> Ledger {
        let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(1000) };
        let tree = Regular { slots: 4, tiers: vec![tier(2), tier(2)] };
        Ledger::new(tree.build().unwrap(), headroom)
    }

    fn entry(slots: u32, rate: u64) -> Entry {
        let need = Need { up: BitsPerSecond(rate), down: BitsPerSecond(rate / 2) };
        Entry { slots: vec![(NodeId(0), slots)], links: vec![(LinkId(0), need)] }
    }

    #[test]
    fn a_removed_entry_is_returned_exactly() {
        let mut ledger = ledger(100);
        let empty = ledger.clone();
        assert_eq!(ledger.limit(LinkId(0)), BitsPerSecond(900));
        ledger.take(&entry(3, 801)).unwrap();
        assert_eq!(ledger.usable_slots(NodeId(0)), 1);
        assert_eq!(
            (ledger.available(LinkId(0)).up.0, ledger.available(LinkId(0)).down.0),
            (99, 500)
        );
        assert!((ledger.reserved_share(1) - 1201.0 / 7200.0).abs() < 1e-12);
        ledger.give_back(&entry(3, 801));
        assert!(ledger.same_books(&empty));
    }

    #[test]
    fn an_excessive_entry_is_refused_as_a_whole() {
        let mut ledger = ledger(100);
        let empty = ledger.clone();
        assert!(matches!(ledger.take(&entry(5, 1)), Err(LedgerError::Slots { free: 4, .. })));
        let error = ledger.take(&entry(1, 901)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "link 0 has 900 bit/s free, but the entry needs 901 bit/s; reserve less on the link"
        );
        assert!(ledger.same_books(&empty));
    }

    #[test]
    fn a_node_out_of_service_takes_nothing_and_keeps_its_entries() {
        let mut ledger = ledger(0);
        ledger.take(&entry(2, 600)).unwrap();
        ledger.set_service(NodeId(0), Service::Drained);
        assert_eq!((ledger.usable_slots(NodeId(0)), ledger.free_slots(NodeId(0))), (0, 2));
        assert_eq!(ledger.available(LinkId(0)), Need::ZERO);
        assert_eq!(ledger.reserved(LinkId(0)).up, BitsPerSecond(600));
        ledger.give_back(&entry(2, 600));
        ledger.restore(&entry(2, 600));
        ledger.set_service(NodeId(0), Service::In);
        assert_eq!(ledger.available(LinkId(0)).up, BitsPerSecond(400));
    }
}
