//! Finds the tenants that an unfinished plan of the previous leader moves.
//!
//! # Approach
//!
//! A leader stores a binding before it executes the plan, and adds the binding to the history after
//! that. If the stored binding is not the last one of the history, its plan may be unfinished. The
//! plan moves the tenants whose queues differ between the two bindings.
//!
//! After a plan was rolled back, the stored binding is not in the history either. The successor
//! then compares it with an older binding, and finds more tenants than the plan moved. This only
//! delays the queues of these tenants until their hosts have connected to the successor.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::Bound;
use penstock_fabric::tenant_placement::TenantSlot;

use super::{Leader, LeaderError};
use crate::intent::{BindingRecord, BoundRecord, Names};

impl Leader {
    /// Returns the tenants that the plan of the stored binding may have been moving when the
    /// previous leader ended, and the tenants whose stored queues the fabric no longer permits.
    pub(super) async fn unfinished(
        &self,
        stored: &BindingRecord,
    ) -> Result<BTreeSet<TenantSlot>, LeaderError> {
        let mut movers = self.not_resumed(stored);
        if self.kept.history.last().is_some_and(|last| last.stamp == stored.stamp) {
            return Ok(movers);
        }
        let before = match self.binding_before().await {
            Err(LeaderError::NoHistory) => Vec::new(),
            before => before?,
        };
        let before: BTreeMap<TenantSlot, Bound> = before.into_iter().collect();
        let now: BTreeMap<TenantSlot, &Bound> = self.fabric.binding().bound().collect();
        let same = |slot: &TenantSlot| match (before.get(slot), now.get(slot)) {
            (Some(had), Some(has)) => (had.dscp, &had.queues) == (has.dscp, &has.queues),
            _ => false,
        };
        let all: BTreeSet<TenantSlot> = before.keys().chain(now.keys()).copied().collect();
        movers.extend(all.into_iter().filter(|slot| !same(slot)));
        Ok(movers)
    }

    /// Returns the tenants that have other queues than those in the store, because the operator has
    /// changed the datacenter's file. Their hosts still mark packets for the stored queues.
    fn not_resumed(&self, stored: &BindingRecord) -> BTreeSet<TenantSlot> {
        let names = Names(self.fabric.topology());
        let differs = |record: &BoundRecord| {
            let slot = self.fabric.slot(&record.tenant)?;
            let stored = record.bound(names).ok();
            let queues = |bound: &Bound| (bound.dscp, bound.queues.clone());
            let now = self.fabric.binding().of(slot).map(queues);
            (stored.as_ref().map(queues) != now).then_some(slot)
        };
        stored.bound.iter().filter_map(differs).collect()
    }
}
