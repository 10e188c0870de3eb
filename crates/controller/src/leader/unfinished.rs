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
use crate::Stamp;

impl Leader {
    /// Returns the tenants that the plan of the stored binding may have been moving when the
    /// previous leader ended. The argument `stored` is the stamp of the stored binding.
    pub(super) async fn unfinished(
        &self,
        stored: Stamp,
    ) -> Result<BTreeSet<TenantSlot>, LeaderError> {
        if self.kept.history.last().is_some_and(|last| last.stamp == stored) {
            return Ok(BTreeSet::new());
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
        Ok(all.into_iter().filter(|slot| !same(slot)).collect())
    }
}
