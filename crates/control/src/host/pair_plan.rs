//! Tenants whose pairs of VMs have rates or limits, as the fabric's controller plans them.

use std::collections::BTreeMap;

use crate::config::{EgressPolicer, Tenant};
use crate::pair_control::VmTerms;

/// Tenants of a plan whose pairs of VMs have rates or limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PairPlan {
    /// Guarantees of all ports together of each tenant that shares queue 0, by the tenant's name.
    /// These tenants' pairs have rates with [`crate::config::RateAllocation::Spare`].
    pub(super) tenants: BTreeMap<String, VmTerms>,
    /// Whether no pair may get more than its guarantee.
    pub(super) confined: bool,
    /// All tenants of the plan, by name. Their pairs are measured or limited with
    /// [`crate::config::RateAllocation::Guarantee`].
    pub(super) guaranteed: BTreeMap<String, GuaranteedTenant>,
}

/// A tenant whose pairs of VMs are measured or limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuaranteedTenant {
    /// Guarantees of all ports of the tenant together.
    pub(super) terms: VmTerms,
    /// The plan's limits on sending and on receiving.
    pub(super) limits: [EgressPolicer; 2],
    /// Whether the plan limits the tenant, so that the limits of its pairs are in force.
    pub(super) is_held: bool,
}

impl PairPlan {
    /// Whether the pairs that share queue 0 have the same terms in the plan `other`.
    pub(super) fn shares_like(&self, other: &Self) -> bool {
        self.tenants == other.tenants && self.confined == other.confined
    }
}

impl GuaranteedTenant {
    /// Whether the limits of `tenant` in the configuration permit the plan's limits. A tenant with
    /// other limits has limits of its own in the configuration file.
    pub(super) fn fits(&self, tenant: &Tenant) -> bool {
        let [send, receive] = &self.limits;
        let fits = |limit: Option<EgressPolicer>, planned: &EgressPolicer| {
            limit.is_none_or(|limit| limit == *planned)
        };
        fits(tenant.send, send) && fits(tenant.receive, receive)
    }
}
