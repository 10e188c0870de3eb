//! Computes a tenant's score. The score measures how much the tenant needs its own queues.
//!
//! # Problem
//!
//! Switch queues are assigned to tenants that send more than their guarantee. A tenant must not get
//! a queue by declaring a false guarantee.
//!
//! # Source
//!
//! The score follows QShare §V-A, eq. (1), and §V-B, eq. (2).
//!
//! # Quantities
//!
//! On a host, a tenant has m of its N VMs, each with guarantee B. The m VMs sent U^o and received
//! U^i bit/s during the interval. The payment factor is the bandwidth that the tenant pays for, N *
//! B bit/s. The paper's pricing constant k is 1 in Penstock, because scores are only compared.
//!
//! # Approach
//!
//! The usage of a tenant on a host is max(U^i, U^o) / (B * min(m, N - m)), at most 1. The usage
//! factor is the tenant's largest usage on any host. The score is the payment factor times the
//! usage factor. If the usage factor is below 1, the score does not depend on B. The score is
//! `min(payment, largest)`, where `largest` is the maximum of `max(U^i, U^o) * N / min(m, N - m)`
//! over all hosts.
//!
//! For the same traffic, a smaller guarantee never gives a higher score. A guarantee above the sent
//! and received rates does not raise the score. The file `tests/all/prop_score.rs` tests the
//! properties of scores.
//!
//! # Example
//!
//! In a test, a tenant has ten VMs, two per host. The tenant's two VMs on one of the hosts send 100
//! Mbit/s together. The table shows how the score depends on the guarantee:
//!
//! | Guarantee per VM | Payment factor | Usage factor | Score |
//! |---|---|---|---|
//! | guarantee 100 Mbit/s | payment 1,000 Mbit/s | usage 0.5 | score 500 Mbit/s |
//! | guarantee 10 Mbit/s | payment 100 Mbit/s | usage 1 | score 100 Mbit/s |
//! | guarantee 1,000 Mbit/s | payment 10,000 Mbit/s | usage 0.05 | score 500 Mbit/s |
//!
//! # Departures
//!
//! QShare uses the usage factor of the last control interval alone. [`Smoothed`] halves the weight
//! of each earlier interval. A host without a report counts as a host without traffic, but the
//! controller does not lower a tenant's score in an interval without a report of a tenant's host.
//!
//! If a host has all VMs of a tenant (m = N), the tenant has no network traffic and the usage is 0.
//! Eq. (1) of QShare would divide by 0 for a host that has all VMs of a tenant. If a tenant's VMs
//! have different guarantees, the score uses only their sum and not the guarantees of the VMs on a
//! host. With guarantees per VM, a tenant could declare a small guarantee for the VMs of one host
//! and seem to use all of that guarantee.

use penstock_units::BitsPerSecond;

use crate::hose::Hose;

/// Traffic of a tenant's VMs on one host during an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUsage {
    /// Number of the tenant's VMs on the host.
    pub vms: u32,
    /// Rate at which the tenant's VMs on the host sent.
    pub sent: BitsPerSecond,
    /// Rate at which the tenant's VMs on the host received.
    pub received: BitsPerSecond,
}

impl HostUsage {
    fn larger(&self) -> u64 {
        self.sent.max(self.received).0
    }
}

/// Payment factor in bit/s: half the sum of all sending and receiving guarantees. For equal
/// guarantees, the payment factor is N * B.
#[must_use]
pub fn payment(hose: &Hose) -> u64 {
    let total = hose.total();
    total.up.0.midpoint(total.down.0)
}

/// Score of a tenant for one interval in bit/s, at most [`payment`].
#[must_use]
pub fn score(hose: &Hose, hosts: &[HostUsage]) -> u64 {
    let vms = hose.vms();
    let share = |host: &HostUsage| {
        let side = host.vms.min(vms.saturating_sub(host.vms));
        let wide = u128::from(host.larger()) * u128::from(vms);
        wide.checked_div(u128::from(side)).unwrap_or(0)
    };
    let used = hosts.iter().map(share).max().unwrap_or(0);
    u64::try_from(used).unwrap_or(u64::MAX).min(payment(hose))
}

/// Exponential average of a tenant's scores. The most recent score has a weight of one half, so a
/// burst in a single interval counts less than a lasting change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Smoothed {
    value: Option<u64>,
}

impl Smoothed {
    /// Adds the score of an interval and returns the smoothed score. The smoothed score is equal to
    /// the first score after the first interval.
    pub fn follow(&mut self, score: u64) -> u64 {
        let value = self.value.map_or(score, |old| old.midpoint(score));
        self.value = Some(value);
        value
    }

    /// Returns the smoothed score in bit/s. The score is 0 before the first interval.
    #[must_use]
    pub fn get(self) -> u64 {
        self.value.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1_000_000;

    fn host(vms: u32, sent: u64, received: u64) -> HostUsage {
        let (sent, received) = (BitsPerSecond(sent), BitsPerSecond(received));
        HostUsage { vms, sent, received }
    }

    #[test]
    fn the_worked_example_comes_out() {
        let hosts = [host(2, 100 * M, 0), host(2, 5 * M, 20 * M)];
        let at = |rate: u64| {
            let hose = Hose::homogeneous(10, BitsPerSecond(rate * M)).unwrap();
            score(&hose, &hosts) / M
        };
        assert_eq!([at(100), at(10), at(1000)], [500, 100, 500]);
    }

    #[test]
    fn many_to_one_traffic_shows_at_the_receiver() {
        // Nine VMs send 10 Mbit/s each to one VM that is alone on its host. This VM receives 90 of
        // 100 Mbit/s.
        let senders = [host(3, 30 * M, 0); 3];
        let hosts = [senders.as_slice(), &[host(1, 0, 90 * M)]].concat();
        let hose = Hose::homogeneous(10, BitsPerSecond(100 * M)).unwrap();
        assert_eq!(score(&hose, &hosts) / M, 900);
    }

    #[test]
    fn a_host_with_all_vms_has_no_network() {
        let hose = Hose::homogeneous(4, BitsPerSecond(M)).unwrap();
        assert_eq!(score(&hose, &[host(4, 9 * M, 9 * M)]), 0);
    }

    #[test]
    fn a_score_follows_by_halves() {
        let mut smoothed = Smoothed::default();
        assert_eq!((smoothed.get(), smoothed.follow(100), smoothed.follow(0)), (0, 100, 50));
        assert_eq!(smoothed.follow(0), 25);
    }
}
