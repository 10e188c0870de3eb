//! Finds the tenants that unfinished plans of previous leaders move.
//!
//! # Approach
//!
//! A leader stores a binding before it executes the plan, together with a record of the tenants
//! that the plan moves ([`MovingRecord`](crate::intent::MovingRecord)). The record stays until the
//! hosts and switches of these tenants have executed the plan. A successor continues the record,
//! and adds the tenants of its own plans. The record is therefore complete even if several leaders
//! end in their plans, one after the other. If a write of the record fails, the leader repeats the
//! write in the next interval, and the store has too many tenants until then. Too many tenants only
//! delay the queues of these tenants until their hosts have connected to the successor.
//!
//! Earlier releases wrote no record, but added a binding to the history after its plan. If the
//! stored binding is not the last one of the history, the successor therefore also takes the
//! tenants whose queues differ between the two bindings.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::queue_binding::{Bound, Plan, Step};
use penstock_fabric::tenant_placement::TenantSlot;

use super::kept::Moving;
use super::record::Writer;
use super::{Leader, LeaderError, Mode};
use crate::intent::{BindingRecord, BoundRecord, Names};

impl Leader {
    /// Returns the tenants that the plan of the stored binding may have been moving when the
    /// previous leader ended, and the tenants whose stored queues the fabric no longer permits.
    pub(super) async fn unfinished(
        &self,
        stored: &BindingRecord,
    ) -> Result<BTreeSet<TenantSlot>, LeaderError> {
        let mut movers = self.not_resumed(stored);
        let Moving { all, tenants } = &self.kept.moving;
        if *all {
            movers.extend(self.fabric.tenants().map(|(_, slot, _)| slot));
        }
        movers.extend(tenants.iter().filter_map(|name| self.fabric.slot(name)));
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

    /// Lets the crew begin with the stored binding, and notes the tenants that unfinished plans may
    /// be moving.
    pub(super) fn resume_crew(&mut self, movers: BTreeSet<TenantSlot>) {
        self.crew.resume(&self.fabric, movers);
        self.kept.moving = self.moving();
    }

    /// Returns the tenants that wait for hosts and switches to execute a plan.
    pub(super) fn moving(&self) -> Moving {
        let names = self.crew.moving().map(|slot| self.fabric.name(slot).to_owned());
        // A removed tenant has no name, and its hosts learn of its removal.
        let tenants = names.filter(|name| !name.is_empty()).collect();
        Moving { all: false, tenants }
    }

    /// Notes the tenants that a plan moves. The leader stores them together with the binding.
    pub(super) fn will_move(&mut self, plan: &Plan) {
        let mover = |step: &Step| match step {
            Step::Mark { tenant, .. } => Some(self.fabric.name(*tenant).to_owned()),
            _ => None,
        };
        let names = plan.steps.iter().filter_map(mover).filter(|name| !name.is_empty());
        let names: BTreeSet<String> = names.collect();
        self.kept.moving.tenants.extend(names);
    }

    /// Stores which tenants still wait for hosts and switches, if the store does not have this yet.
    /// Only the loss of leadership is an error, because the next interval tries again.
    pub(super) async fn finish_plans(&mut self) -> Result<(), LeaderError> {
        // In the mode `observe`, the leader executes no plan, so plans stay as they are. If the
        // store may have a binding that the hosts do not have, its tenants still count.
        if self.mode == Mode::Observe || self.kept.in_doubt {
            return Ok(());
        }
        self.kept.moving = self.moving();
        let was_full = self.horizon.is_full();
        let Self { store, leadership, horizon, kept, stamp, .. } = self;
        let mut writer = Writer::new(&**store, leadership, horizon);
        let done = kept.finish(&mut writer, *stamp).await;
        self.note_full(was_full, &done).await;
        match done {
            Err(LeaderError::Deposed) => Err(LeaderError::Deposed),
            Err(error) => {
                tracing::warn!(%error, "the end of a plan cannot be stored; trying again");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
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
