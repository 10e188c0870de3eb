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
//!    left the network, the switches get the weights and maps of the binding.
//! 3. Hosts mark the tenants for their queues and release them from the limits.
//!
//! A host that does not connect to the successor, or a switch that does not answer, delays the
//! tenants for at most [`PATIENCE`] intervals. In this time no tenant gets or loses queues on a
//! switch that the successor has not changed.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock_fabric::tenant_placement::TenantSlot;
use penstock_fabric::topology::NodeId;

use super::{Crew, Trouble};
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

/// Repaired switches with their changes, and the switches and hosts that failed.
type Mended = (Vec<(NodeId, Vec<String>)>, Vec<Trouble>);

impl Crew {
    /// Computes the state that all switches and hosts must have after a change of leaders. The
    /// argument `movers` has the tenants whose queues the previous leader may have been changing.
    pub fn resume(&mut self, fabric: &Fabric, movers: BTreeSet<TenantSlot>) {
        self.assume(fabric);
        for slot in &movers {
            self.told.marks.remove(slot);
            self.told.limited.insert(*slot);
            self.out_of_date.extend(fabric.servers_of(*slot));
        }
        self.unsettled = Unsettled { tenants: movers, patience: PATIENCE };
    }

    /// Sends all switches their intended state again. Tenants that the controller has not settled
    /// yet stay unsettled.
    pub fn begin_again(&mut self, fabric: &Fabric) {
        let movers = std::mem::take(&mut self.unsettled).tenants;
        self.resume(fabric, movers);
    }

    /// Reads and repairs the state of switches and hosts that are out of date. Unreachable switches
    /// and hosts stay out of date. Returns the repaired switches with the changes, and the failed
    /// switches and hosts.
    pub async fn mend(&mut self, fabric: &Fabric, stamp: Stamp) -> Mended {
        if self.unsettled.tenants.is_empty() {
            let tasks = self.begin_mending(stamp);
            let mut trouble = self.mend_hosts(fabric, stamp).await;
            let (mended, failed) = self.end_mending(tasks).await;
            trouble.extend(failed);
            return (mended, trouble);
        }
        let mut trouble = self.mend_hosts(fabric, stamp).await;
        if !self.may_settle(fabric) {
            return (Vec::new(), trouble);
        }
        let drain = fabric.binding().settings().drain;
        tokio::time::sleep(Duration::from_nanos(drain.0)).await;
        let tasks = self.begin_mending(stamp);
        let (mended, failed) = self.end_mending(tasks).await;
        // A switch in a pause was not tried, and has no new map yet.
        let mended_all = self.out_of_date.iter().all(|node| !self.switches.contains_key(node));
        let settled = mended_all || self.unsettled.patience == 0;
        trouble.extend(failed);
        if settled {
            self.settle(fabric);
            trouble.extend(self.mend_hosts(fabric, stamp).await);
        }
        (mended, trouble)
    }

    /// Returns true if no host may mark packets of unsettled tenants, or if the successor no longer
    /// waits for the hosts.
    fn may_settle(&self, fabric: &Fabric) -> bool {
        let mut hosts = self.unsettled.tenants.iter().flat_map(|slot| fabric.servers_of(*slot));
        self.unsettled.patience == 0 || hosts.all(|host| !self.out_of_date.contains(&host))
    }

    /// Gives the unsettled tenants the marks of the binding, and notes that hosts must get them.
    fn settle(&mut self, fabric: &Fabric) {
        for slot in std::mem::take(&mut self.unsettled).tenants {
            let dscp = fabric.dscp(slot);
            if dscp != 0 {
                self.told.marks.insert(slot, dscp);
            }
            self.told.limited.remove(&slot);
            self.out_of_date.extend(fabric.servers_of(slot));
        }
    }
}
