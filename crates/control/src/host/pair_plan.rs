//! Tenants whose pairs of VMs have rates, as the fabric's controller plans them.

use std::collections::BTreeMap;

use crate::config::EgressPolicer;
use crate::pair_control::VmTerms;

/// Tenants of a plan whose pairs of VMs have rates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PairPlan {
    /// Guarantees of all ports of a tenant together, by the tenant's name.
    pub(super) tenants: BTreeMap<String, VmTerms>,
    /// The plan's limits on sending and on receiving, by the tenant's name. A tenant with other
    /// limits has limits of its own in the configuration.
    pub(super) limits: BTreeMap<String, [EgressPolicer; 2]>,
    /// Whether no pair may get more than its guarantee.
    pub(super) confined: bool,
}
