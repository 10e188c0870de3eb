//! Accounts of a datacenter: slots of servers, rates of links, and tenants on links.
//!
//! # Approach
//!
//! Amounts are whole bits per second, so an entry that is returned restores the previous amounts
//! exactly. An entry that exceeds a link's limit or a server's slots is refused as a whole. A
//! link's limit is its rate minus the headroom that is never reserved. If a node at either end is
//! out of service, the limit is 0. Existing reservations stay in the ledger until their tenants
//! move.
//!
//! # Cost
//!
//! The ledger takes 28 bytes per link and 5 bytes per node. Each call takes time proportional to
//! the entry.

use core::fmt;

use penstock_units::BitsPerSecond;
use thiserror::Error;

use crate::hose::Need;
use crate::topology::{LinkId, NodeId, Topology};

/// A whole rate in thousandths.
pub const WHOLE_PERMILLE: u32 = 1000;

/// Whether a node takes new VMs and new traffic. If it takes none, the value is the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// The node takes new VMs and new traffic.
    #[default]
    In,
    /// An operator wants the node empty. Existing VMs and traffic stay.
    Drained,
    /// The node is broken.
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

/// Resources of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Slots on servers; each server occurs once.
    pub slots: Vec<(NodeId, u32)>,
    /// Rates on links; each link occurs once, and no rate is 0 in both directions.
    pub links: Vec<(LinkId, Need)>,
}

/// Why an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// A server has too few free slots.
    #[error("server {} has {free} slots free and not {wanted}; place fewer VMs there", .server.0)]
    Slots {
        /// The server with too few free slots.
        server: NodeId,
        /// Free slots of the server.
        free: u32,
        /// Slots that the entry needs.
        wanted: u32,
    },
    /// A link has too little bandwidth.
    #[error(
        "link {} has {} bit/s free and not {}; reserve less there", .link.0, .free.0, .wanted.0
    )]
    Link {
        /// The link with too little bandwidth.
        link: LinkId,
        /// Free bandwidth in the refused direction.
        free: BitsPerSecond,
        /// Bandwidth that the entry needs in that direction.
        wanted: BitsPerSecond,
    },
}

/// The accounts of a datacenter.
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
    /// Sums of reservations and of limits in both directions, for each layer of links from layer 1.
    layers: Vec<(u128, u128)>,
}

impl Ledger {
    /// An empty ledger. `headroom_permille` of each link's rate (at most 1000) is never reserved.
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

    /// Topology that has the accounted resources.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Slots of a server that a new VM may take. 0 if the server is out of service.
    #[must_use]
    pub fn usable_slots(&self, server: NodeId) -> u32 {
        if self.in_service(server) { self.free[server.index()] } else { 0 }
    }

    /// Slots of a server that hold no VM, whether or not the server is in service.
    #[must_use]
    pub fn free_slots(&self, server: NodeId) -> u32 {
        self.free[server.index()]
    }

    /// Largest permitted reservation on a link, in each direction.
    #[must_use]
    pub fn limit(&self, link: LinkId) -> BitsPerSecond {
        BitsPerSecond(self.limit[link.index()])
    }

    /// Reservations on a link.
    #[must_use]
    pub fn reserved(&self, link: LinkId) -> Need {
        let at = link.index();
        Need { up: BitsPerSecond(self.up[at]), down: BitsPerSecond(self.down[at]) }
    }

    /// Bandwidth of a link that is not reserved, by direction.
    #[must_use]
    pub fn available(&self, link: LinkId) -> Need {
        let at = link.index();
        let left = |reserved: u64| BitsPerSecond(self.limit[at].saturating_sub(reserved));
        Need { up: left(self.up[at]), down: left(self.down[at]) }
    }

    /// Bandwidth that can be reserved on a link in both directions.
    pub(crate) fn available_both(&self, link: u32) -> u64 {
        let at = link as usize;
        self.limit[at].saturating_sub(self.up[at].max(self.down[at]))
    }

    /// Number of tenants with a reservation on a link. The paper calls it N_L.
    #[must_use]
    pub fn tenants(&self, link: LinkId) -> u32 {
        self.tenants[link.index()]
    }

    /// Reserved fraction of a layer's links (from layer 1), both directions together, from 0 to 1.
    /// The result is 1 if nothing can be reserved.
    #[must_use]
    pub fn reserved_share(&self, layer: usize) -> f64 {
        let (reserved, limit) = self.layers[layer - 1];
        #[expect(clippy::cast_precision_loss, reason = "a share to be weighed")]
        let share = |reserved: u128, limit: u128| reserved as f64 / limit as f64;
        if limit == 0 { 1.0 } else { share(reserved, limit).min(1.0) }
    }

    /// Reserved fraction of the most reserved layer, from 0 to 1.
    #[must_use]
    pub fn scarcest_share(&self) -> f64 {
        (1..=self.layers.len()).map(|layer| self.reserved_share(layer)).fold(0.0, f64::max)
    }

    /// Whether a node takes new VMs and new traffic.
    #[must_use]
    pub fn in_service(&self, node: NodeId) -> bool {
        self.service[node.index()] == Service::In
    }

    /// State of a node.
    #[must_use]
    pub fn service(&self, node: NodeId) -> Service {
        self.service[node.index()]
    }

    /// Changes a node's state. Existing reservations stay.
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

    /// Adds an entry.
    ///
    /// # Errors
    /// A server has too few slots, or a link too little bandwidth. Nothing is then added.
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

    /// Removes an entry that [`Self::take`] added. The ledger is then as before that call.
    ///
    /// # Panics
    /// Panics if the entry is not in the ledger.
    pub fn give_back(&mut self, entry: &Entry) {
        let missing = "what is given back was taken";
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

    /// Adds an entry that was in the ledger before, regardless of states and limits. This reverts a
    /// tentative change, for example on a drained server.
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

    /// Whether both ledgers hold the same amounts.
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
        assert_eq!(error.to_string(), "link 0 has 900 bit/s free and not 901; reserve less there");
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
