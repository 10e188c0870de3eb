//! Sets the rates and limits of the pairs of VMs whose tenants share queue 0 of the fabric.
//!
//! # Approach
//! The controller's plan names the tenants and their guarantees ([`super::overlay`]). In every
//! period, the host divides a tenant's guarantee equally among the tenant's ports, and sets the
//! rates of the ports' pairs ([`PairControl`]). The rates need no snapshot and no request to a
//! worker.
//!
//! With [`crate::config::RateAllocation::Guarantee`], the plan's limits on tenants stay in force,
//! and pairs only have limits that keep them to their receivers' guarantees ([`GuaranteeControl`]).
//! A tenant's guarantee is not divided among its ports then. The pairs of tenants without limits
//! are measured: the table knows the limits of their pairs, and a plan that limits a tenant puts
//! them into force before the tenant's frames get another code point. If the limits were only known
//! some periods later, a tenant that loses its queue could take the guarantees of others in queue
//! 0.
//!
//! # Plans
//! While queues change hands, the weights of queue 0 may leave little more than the guarantees. No
//! pair gets more than its guarantee while the plan limits a tenant in the tenant's own queue, and
//! for [`SETTLING_PERIODS`] after each change of the tenants, their guarantees or their headroom.
//!
//! The controller sends no message to a host if the plan changes no mark, no limit and no headroom
//! of the host's tenants. The host's pairs then keep their rates. If queue 0 leaves less for each
//! tenant than before, the tenants' headroom falls, and the host gets a message. Otherwise, the
//! pairs can only lose bandwidth that other queues left, and losses reduce their rates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use penstock_qos::pair_table::{PairLimits, PairTable};
use penstock_qos::policer::RATE_MAX;
use penstock_units::Nanos;

use super::apply::{Core, lock};
use super::pair_plan::PairPlan;
use super::state::Shared;
use crate::pair_control::{GuaranteeControl, PairControl, PairUse, TenantTerms, VmTerms};

/// Periods after a changed plan in which no pair gets more than its guarantee.
const SETTLING_PERIODS: u32 = 10;

/// State of the pairs of the host's uplink.
#[derive(Debug, Default)]
pub(super) struct PairRates(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    plan: PairPlan,
    /// Plan that the host is applying. Until it is in force, a tenant that one of the two plans
    /// limits is limited.
    next: Option<PairPlan>,
    /// Periods until a pair may get more than its guarantee.
    settling: u32,
    control: Option<PairControl>,
    guarantees: GuaranteeControl,
    used: PairUse,
}

impl PairRates {
    /// Limits the ports of tenants that the new plan `plan` limits, before the plan is in force. If
    /// the plan's limits on tenants stay in force, only ports whose pairs are measured have limits
    /// yet. The caller then calls [`Self::adopt`] or [`Self::stay`].
    pub(super) fn enter(&self, core: &Core, plan: &PairPlan) {
        {
            let mut state = lock(&self.0);
            state.next = Some(plan.clone());
            state.hold(core);
        }
        let Some((table, vms, _)) = lock(&core.shared).pairs(plan) else { return };
        if table.limits() == PairLimits::Guarantees {
            return;
        }
        vms.iter().for_each(|(vm, terms)| terms.enter(&table, *vm));
    }

    /// Adopts a plan that is in force. Pairs that only the former plan limited have no limits now.
    pub(super) fn adopt(&self, core: &Core, plan: PairPlan) {
        let mut state = lock(&self.0);
        if !state.plan.shares_like(&plan) {
            state.settling = SETTLING_PERIODS;
        }
        (state.plan, state.next) = (plan, None);
        state.hold(core);
    }

    /// Returns to the former plan, because the host could not apply the new one.
    pub(super) fn stay(&self, core: &Core) {
        let mut state = lock(&self.0);
        state.next = None;
        state.hold(core);
    }

    /// Ends a period at the monotonic time `now`.
    pub(super) fn period_ends(&self, core: &Core, now: Nanos) {
        let mut state = lock(&self.0);
        let State { plan, next, settling, control, guarantees, used } = &mut *state;
        let Some((table, vms, link)) = lock(&core.shared).pairs(plan) else { return };
        if table.limits() == PairLimits::Guarantees {
            let vms = lock(&core.shared).guaranteed_pairs(plan, next.as_ref());
            *used = guarantees.period_ends(&table, &vms, now);
            return;
        }
        if control.as_ref().is_some_and(|control| control.link() != link) {
            *control = None;
        }
        let control = control.get_or_insert_with(|| PairControl::new(link));
        let confined = plan.confined || *settling > 0;
        *settling = settling.saturating_sub(1);
        *used = control.period_ends(&table, &vms, confined, now);
    }

    /// Returns the pairs after the last period.
    pub(super) fn used(&self) -> PairUse {
        lock(&self.0).used
    }
}

impl State {
    /// Puts the known limits of pairs of limited tenants into force, and removes those of the other
    /// tenants. Does nothing if pairs have rates.
    fn hold(&self, core: &Core) {
        let shared = lock(&core.shared);
        let table = shared.compiler.pairs();
        let Some(table) = table.filter(|table| table.limits() == PairLimits::Guarantees) else {
            return;
        };
        for (vm, of) in shared.guaranteed_pairs(&self.plan, self.next.as_ref()) {
            if of.is_held {
                table.hold(vm);
            } else {
                table.release(vm);
            }
        }
    }
}

impl Shared {
    /// Returns the table of pairs, the guarantee of each port whose pairs have rates, and the
    /// uplink's rate in bits per second. Returns `None` if the host is in no fabric.
    fn pairs(&self, plan: &PairPlan) -> Option<(Arc<PairTable>, BTreeMap<u16, VmTerms>, u64)> {
        let table = self.compiler.pairs()?;
        let fabric = self.config.fabric.as_ref()?;
        let uplink = self.config.ports.iter().find(|port| port.name == fabric.uplink);
        let link = uplink.and_then(|port| port.link).map_or(RATE_MAX.0, |link| link.0.0);
        let mut vms = BTreeMap::new();
        for tenant in self.config.tenants.iter().filter(|tenant| tenant.send.is_none()) {
            let Some(terms) = plan.tenants.get(&tenant.name) else { continue };
            let own = self.config.ports.iter().filter(|p| p.tenant.as_ref() == Some(&tenant.name));
            let ports: Vec<u16> =
                own.filter_map(|port| self.compiler.ids().port(&port.name)).collect();
            let each = u64::try_from(ports.len().max(1)).unwrap_or(u64::MAX);
            let of_port = VmTerms {
                send: terms.send / each,
                receive: terms.receive / each,
                headroom_permille: terms.headroom_permille,
            };
            vms.extend(ports.into_iter().map(|port| (port, of_port)));
        }
        Some((table, vms, link))
    }

    /// Returns the tenant of each port whose pairs are measured or limited, by port number. `next`
    /// is the plan that the host is applying, and the configuration may be that of either plan. The
    /// pairs of a tenant with limits of its own in the configuration are neither measured nor
    /// limited.
    fn guaranteed_pairs(
        &self,
        plan: &PairPlan,
        next: Option<&PairPlan>,
    ) -> BTreeMap<u16, TenantTerms> {
        let mut vms = BTreeMap::new();
        for tenant in &self.config.tenants {
            let of = |plan: &PairPlan| plan.guaranteed.get(&tenant.name).copied();
            let (Some(now), next) = (of(plan), next.and_then(of)) else { continue };
            let Some(number) = self.compiler.ids().tenant(&tenant.name) else { continue };
            let fits = now.fits(tenant) || next.is_some_and(|next| next.fits(tenant));
            if !fits {
                continue;
            }
            let is_held = now.is_held || next.is_some_and(|next| next.is_held);
            let of = TenantTerms { tenant: number, terms: now.terms, is_held };
            let own = self.config.ports.iter().filter(|p| p.tenant.as_ref() == Some(&tenant.name));
            vms.extend(own.filter_map(|port| Some((self.compiler.ids().port(&port.name)?, of))));
        }
        vms
    }
}
