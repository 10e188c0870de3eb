//! Limits pairs of VMs to their receivers' guarantees, once per period.
//!
//! # Approach
//!
//! A host without rate allocation limits what it sends for a tenant in sum
//! ([`crate::config::RateAllocation::Guarantee`]): the tenant's VMs share an account. [`HosePairs`]
//! computes what each pair may send, so that the tenant does not send more over a link than its VMs
//! behind the link may receive. A period reads the table of pairs, and sets the limits. No snapshot
//! changes.
//!
//! The pairs of a tenant that the plan does not limit are measured, asked and answered, too. Their
//! limits are known and wait in the table until [`PairTable::hold`] puts them into force. A pair
//! that sends more than its part then counts like a pair that has reached its limit.
//!
//! Frames above the limit of a pair or the account wait in a line of the pair at the uplink. Both
//! limits are multiplied by [`HEADROOM`], because a VM also pays for its questions. Frames that
//! wait use the whole rate of their buckets, so the headroom need not be larger. Buckets count
//! bytes on a link, as the tenant's lane does. The lane is faster: otherwise, frames of all pairs
//! would wait once more in the lane, where pairs do not get their parts.

use std::collections::BTreeMap;

use penstock_fabric::rate_alloc::HosePairs;
use penstock_fabric::rate_alloc::hose_pairs::Member;
use penstock_fabric::rate_alloc::host_rates::Hose;
use penstock_qos::pair_table::{PairRef, PairTable, VmRates};
use penstock_qos::policer::RATE_MAX;
use penstock_units::Nanos;

use super::{PairUse, VmTerms, part, received, sent};

/// Ratio of the rate of the bucket of a pair or an account to its limit, in thousandths.
const HEADROOM: u64 = 1_010;

/// Tenant of a VM whose pairs are measured, and the tenant's guarantees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantTerms {
    /// Number of the tenant on this host.
    pub tenant: u16,
    /// Guarantees of all VMs of the tenant on this host together.
    pub terms: VmTerms,
    /// Whether the limits of the tenant's pairs are in force.
    pub is_held: bool,
}

/// Limits of the pairs of an uplink.
#[derive(Clone, Debug, Default)]
pub struct GuaranteeControl(HosePairs);

impl GuaranteeControl {
    /// Ends a period at time `now`: reads the table and sets new limits. `vms` has the VMs whose
    /// pairs are measured, by port number. Other VMs have no pairs. The result counts only VMs
    /// whose limits are in force.
    pub fn period_ends(
        &mut self,
        table: &PairTable,
        vms: &BTreeMap<u16, TenantTerms>,
        now: Nanos,
    ) -> PairUse {
        let (mut senders, mut receivers) = (BTreeMap::new(), BTreeMap::new());
        let sent: Vec<_> = table.sending().map(|pair| sent(&pair, &mut senders)).collect();
        let received: Vec<_> =
            table.receiving().map(|pair| received(&pair, &mut receivers)).collect();
        let members: BTreeMap<u16, Member> =
            vms.iter().map(|(vm, of)| (*vm, of.member())).collect();
        let is_held = |vm: &u16| vms.get(vm).is_some_and(|of| of.is_held);
        // A tenant with its own queue may get more than its guarantee.
        self.0.arrived(now, &members, table.arrivals().filter(|(vm, _)| is_held(vm)));
        let limits = self.0.period_ends(now, &members, &sent, &received);
        let (mut sending, mut rate) = (0, 0_u64);
        for send in &limits.send {
            let hose = members.get(&send.id.vm).map_or(RATE_MAX, |member| member.hose.send);
            // The receiver expects this rate.
            let told = send.limit.unwrap_or(hose).min(hose);
            if is_held(&send.id.vm) {
                sending += 1;
                rate = rate.saturating_add(told.0);
            }
            if let Some(pair) = senders.get(&send.id) {
                let bucket = send.limit.map_or(RATE_MAX, |limit| part(limit.0, HEADROOM, 1_000));
                table.set_sender(*pair, bucket, (told, send.part, send.want));
                table.set_flows(*pair, send.flows);
                table.ask_every(*pair, send.ask_every);
            }
        }
        for (id, part) in &limits.parts {
            if let Some(pair) = receivers.get(id) {
                table.set_receiver(*pair, *part);
            }
        }
        let idle = limits.idle_senders.iter().filter_map(|id| senders.get(id));
        idle.for_each(|pair: &PairRef| table.end_sender(*pair));
        let idle = limits.idle_receivers.iter().filter_map(|id| receivers.get(id));
        idle.for_each(|pair: &PairRef| table.end_receiver(*pair));
        let measured: Vec<u16> = table.arrivals().map(|(vm, _)| vm).collect();
        // As soon as a VM is measured, its new pairs need their first limit.
        for (vm, first) in &limits.first {
            table.set_first(*vm, part(first.0, HEADROOM, 1_000));
        }
        let mut accounts = BTreeMap::new();
        for (vm, member) in &members {
            table.share_account(*vm, *accounts.entry(member.tenant).or_insert(*vm));
            let send = part(member.hose.send.0, HEADROOM, 1_000);
            let rates = VmRates { default: RATE_MAX, send, receive: RATE_MAX };
            if is_held(vm) {
                table.limit(*vm, rates);
            } else {
                table.measure(*vm, rates);
            }
        }
        for vm in measured.into_iter().filter(|vm| !vms.contains_key(vm)) {
            table.unlimit(vm);
        }
        let receiving = limits.parts.iter().filter(|(id, _)| is_held(&id.vm)).count();
        PairUse { sending, receiving, guaranteed: guaranteed(vms), rate }
    }
}

/// Returns the sum of the guaranteed sending rates of all tenants whose limits are in force, in
/// bits per second.
fn guaranteed(vms: &BTreeMap<u16, TenantTerms>) -> u64 {
    let held = vms.values().filter(|of| of.is_held);
    let tenants: BTreeMap<u16, u64> = held.map(|of| (of.tenant, of.terms.send)).collect();
    tenants.values().fold(0, |sum, send| sum.saturating_add(*send))
}

impl TenantTerms {
    fn member(&self) -> Member {
        let headroom = u64::from(self.terms.headroom_permille.max(1_000));
        let of = |rate: u64| part(rate, headroom, 1_000);
        let hose = Hose { send: of(self.terms.send), receive: of(self.terms.receive) };
        Member { tenant: self.tenant, hose, is_held: self.is_held }
    }
}
