//! Repairs switches and hosts, and takes over a plan that the previous leader did not finish.
//!
//! # Problem
//!
//! A leader may end in the middle of a plan. Some hosts and switches then have executed steps that
//! others have not, and the successor does not know which. The store has the binding after the
//! plan. If the successor changed the switches at once, hosts could still mark packets with code
//! points that no switch maps any more.
//!
//! # Approach
//!
//! The tenants that the plan moves are *unsettled*.
//!
//! 1. Hosts mark the unsettled tenants for queue 0 and limit them to their guarantees. Meanwhile
//!    the successor changes no switch, so every code point stays mapped.
//! 2. When all hosts of the unsettled tenants have confirmed this, and packets with old marks have
//!    left the network and the queues of the binding, the switches get the binding's weights and
//!    maps.
//! 3. Hosts mark the tenants for their queues and release them from the limits.
//!
//! A host that does not connect to the successor, or a switch that does not answer, delays the
//! other tenants for at most [`PATIENCE`] intervals. In this time no tenant gets or loses queues on
//! a switch that the successor has not changed. The tenants of a host that does not connect keep
//! their limits until the host has confirmed them, because the host may still mark packets for
//! their former queues. If an operator sets the host to failed, the tenants no longer wait for it.
//!
//! # Rollbacks
//!
//! A switch may also fail when a plan is rolled back, after it has removed code points from its
//! map. Tenants whose code points may be missing stay in queue 0 with their limits until the switch
//! is repaired ([`Held`]). All other tenants get their former marks at once.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::{Mode, Port};
use penstock_fabric::tenant_placement::TenantSlot;
use penstock_fabric::topology::NodeId;

use super::trouble::{Mended, Trouble};
use super::{Crew, Told};
use crate::Stamp;
use crate::fabric_state::Fabric;

/// Number of intervals for which a successor waits for the hosts and switches of an unfinished
/// plan.
const PATIENCE: u32 = 3;

/// Tenants that an unfinished plan of the previous leader moves.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    tenants: BTreeSet<TenantSlot>,
    /// Number of intervals for which the successor still waits.
    patience: u32,
}

impl Unsettled {
    pub(super) fn begin_interval(&mut self) {
        self.patience = self.patience.saturating_sub(1);
    }
}

/// Tenants that stay in the shared queue after a rollback, each with the switches that may have
/// lost the tenant's code point.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<TenantSlot, BTreeSet<NodeId>>);

impl Crew {
    /// Computes the state that all switches and hosts must have after a change of leaders. The
    /// argument `movers` has the tenants whose queues the previous leader may have been changing.
    pub fn resume(&mut self, fabric: &Fabric, movers: BTreeSet<TenantSlot>) {
        self.assume(fabric);
        for slot in &movers {
            self.told.marks.remove(*slot);
            self.told.limited.insert(*slot, ());
            self.out_of_date.extend(fabric.servers_of(*slot));
        }
        // These hosts may still mark packets of tenants that were removed or moved.
        self.out_of_date.extend(fabric.marking());
        self.unsettled = Unsettled { tenants: movers, patience: PATIENCE };
    }

    /// Sends all switches their intended state again. Tenants that the controller has not settled
    /// yet stay unsettled.
    pub fn begin_again(&mut self, fabric: &Fabric) {
        let movers = self.moving().collect();
        self.resume(fabric, movers);
    }

    /// Returns the tenants that wait for hosts or switches after an unfinished plan. They share
    /// queue 0 and have limits, although the binding may give them queues.
    pub fn moving(&self) -> impl Iterator<Item = TenantSlot> + '_ {
        self.unsettled.tenants.iter().chain(self.held.0.keys()).copied()
    }

    /// Whether a tenant waits for hosts or switches ([`Self::moving`]). A plan of other tenants
    /// limits all tenants of queue 0 beside them, but its end must not release this tenant.
    pub(super) fn is_moving(&self, slot: TenantSlot) -> bool {
        self.unsettled.tenants.contains(&slot) || self.held.0.contains_key(&slot)
    }

    /// Reads and repairs the state of switches and hosts that are out of date. Unreachable switches
    /// and hosts stay out of date. Returns the repaired switches with the changes, and the failed
    /// switches and hosts.
    pub async fn mend(&mut self, fabric: &Fabric, stamp: Stamp) -> Mended {
        if self.unsettled.tenants.is_empty() {
            let tasks = self.begin_mending(stamp);
            let mut trouble = self.mend_hosts(fabric, stamp).await;
            let (mended, failed) = self.end_mending(tasks, stamp).await;
            trouble.extend(failed);
            let (released, limited) = (self.release_held(fabric), self.limit_misplaced(fabric));
            if released || limited {
                trouble.extend(self.mend_hosts(fabric, stamp).await);
            }
            return (mended, trouble);
        }
        let mut trouble = self.mend_hosts(fabric, stamp).await;
        let (confirmed, waits) = (self.confirmed(fabric), self.unsettled.patience > 0);
        if waits && confirmed.len() < self.unsettled.tenants.len() {
            return (Vec::new(), trouble);
        }
        if !confirmed.is_empty() {
            let binding = fabric.binding();
            let queues = confirmed.iter().filter_map(|slot| binding.of(*slot));
            let queues: Vec<(Port, u8)> = queues.flat_map(|bound| bound.queues.clone()).collect();
            self.watch(fabric, &queues).drained(binding.settings().drain).await;
        }
        let tasks = self.begin_mending(stamp);
        let (mended, failed) = self.end_mending(tasks, stamp).await;
        trouble.extend(failed);
        // A switch in a pause was not tried, and has no new map yet.
        let mended_all = self.out_of_date.iter().all(|node| !self.switches.contains_key(node));
        let settles = (mended_all || !waits) && !confirmed.is_empty();
        if settles {
            self.settle(fabric, confirmed);
        }
        let (released, limited) = (self.release_held(fabric), self.limit_misplaced(fabric));
        if released || limited || settles {
            trouble.extend(self.mend_hosts(fabric, stamp).await);
        }
        (mended, trouble)
    }

    /// Returns the unsettled tenants whose hosts have all confirmed that they mark no packets for
    /// queues. Hosts that an operator has set to failed do not count.
    fn confirmed(&self, fabric: &Fabric) -> BTreeSet<TenantSlot> {
        let ledger = fabric.datacenter().ledger();
        let may_mark = |host: NodeId| {
            self.out_of_date.contains(&host) && ledger.service(host) != Service::Failed
        };
        let tenants = self.unsettled.tenants.iter().copied();
        tenants.filter(|slot| !fabric.servers_of(*slot).any(may_mark)).collect()
    }

    /// Settles tenants, except those with a switch that is out of date. Such a switch may not map
    /// the tenant's code point yet.
    fn settle(&mut self, fabric: &Fabric, tenants: BTreeSet<TenantSlot>) {
        let (topology, mode) = (fabric.topology(), fabric.binding().settings().mode);
        for slot in tenants {
            self.unsettled.tenants.remove(&slot);
            let links = fabric.links(slot).iter().map(|(link, _)| *link);
            let nodes = links.flat_map(|link| [topology.child(link), topology.parent(link)]);
            let lacks =
                |node: &NodeId| self.switches.contains_key(node) && self.out_of_date.contains(node);
            let lacking: BTreeSet<NodeId> = nodes.filter(lacks).collect();
            if lacking.is_empty() || mode == Mode::StaticMap {
                self.mark_again(fabric, slot);
            } else {
                self.held.0.insert(slot, lacking);
            }
        }
    }

    /// Gives a tenant the mark of the binding, and notes that its hosts must get the mark.
    fn mark_again(&mut self, fabric: &Fabric, slot: TenantSlot) {
        let dscp = fabric.dscp(slot);
        if dscp != 0 {
            self.told.marks.insert(slot, dscp);
        }
        self.told.limited.remove(slot);
        self.out_of_date.extend(fabric.servers_of(slot));
    }

    /// Keeps the tenants in queue 0 whose code points the switches in `stuck` may have lost. The
    /// state of the fabric is the state before the plan, and `changed` is the state that the plan
    /// had reached. Returns the hosts that must learn of it.
    pub(super) fn hold_back(
        &mut self,
        fabric: &Fabric,
        changed: &Told,
        stuck: &[Trouble],
    ) -> BTreeSet<NodeId> {
        let mut held: BTreeMap<TenantSlot, BTreeSet<NodeId>> = BTreeMap::new();
        let map = |told: &Told, port: &Port| {
            told.ports.get(port).map(|state| state.map.clone()).unwrap_or_default()
        };
        for node in stuck.iter().map(|trouble| trouble.node) {
            let ports = self.switches.get(&node).into_iter().flat_map(|switch| switch.ports.keys());
            for port in ports {
                let (had, has) = (map(&self.told, port), map(changed, port));
                let is_uncertain =
                    |dscp: &u8| had.contains_key(dscp) && had.get(dscp) != has.get(dscp);
                for (slot, _) in self.told.marks.iter().filter(|(_, dscp)| is_uncertain(dscp)) {
                    if fabric.links(slot).iter().any(|(link, _)| *link == port.link) {
                        held.entry(slot).or_default().insert(node);
                    }
                }
            }
        }
        for slot in held.keys() {
            self.told.marks.remove(*slot);
            self.told.limited.insert(*slot, ());
        }
        let hosts = held.keys().flat_map(|slot| fabric.servers_of(*slot)).collect();
        self.held.0.append(&mut held);
        self.ready(fabric, hosts)
    }

    /// Gives the tenants their marks again whose switches have been repaired. Returns true if there
    /// are such tenants.
    fn release_held(&mut self, fabric: &Fabric) -> bool {
        let is_free = |switches: &BTreeSet<NodeId>| switches.is_disjoint(&self.out_of_date);
        let free = self.held.0.iter().filter(|(_, switches)| is_free(switches));
        let free: Vec<TenantSlot> = free.map(|(slot, _)| *slot).collect();
        for slot in &free {
            self.held.0.remove(slot);
            self.mark_again(fabric, *slot);
        }
        !free.is_empty()
    }
}
