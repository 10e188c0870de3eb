//! Scores: how much a tenant needs queues of its own.
//!
//! # Problem
//!
//! Queues go to tenants that send more than their guarantee. A tenant must not get a queue by lying
//! about its needs.
//!
//! # Source
//!
//! The equations are in QShare §V-A, eq. (1), and §V-B, eq. (2).
//!
//! # Quantities
//!
//! On host j, a tenant has m of its N VMs. These m VMs sent U^o and received U^i bit/s during the
//! interval. The payment factor is the bandwidth that the tenant pays for, N * B bit/s. The pricing
//! constant k is 1, because only comparisons matter.
//!
//! # Approach
//!
//! The usage factor is the largest max(U^i, U^o) / (B * min(m, N - m)) over the tenant's hosts, at
//! most 1. The score is payment * usage. With equal rates, B cancels out below the bound. For all
//! tenants the score is computed as `min(payment, max of max(U^i, U^o) * N / min(m, N - m))`. For
//! the same traffic, a smaller guarantee never scores more. A guarantee above the use does not
//! score more either. `tests/all/prop_score.rs` tests both properties.
//!
//! # Example
//!
//! In a test, ten VMs of 100 Mbit/s are placed two on each of five hosts. One host sends 100 of its
//! 200 Mbit/s, so the usage is 0.5, the payment 1,000 and the score 500. If the tenant had declared
//! 10 Mbit/s per VM, its score would be 100. With 1,000 Mbit/s per VM it would still be 500.
//!
//! # Departures
//!
//! If a host has all VMs of a tenant (m = N), it has no network traffic and no usage. Eq. (1) as
//! printed would divide by 0. With different rates, the score ignores a host's guarantee. Otherwise
//! a tenant could lower its guarantee on one host and appear to use all of it.

use penstock_units::BitsPerSecond;

use crate::hose::Hose;

/// Traffic of a tenant's VMs on one host during an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUsage {
    /// Number of the tenant's VMs on the host.
    pub vms: u32,
    /// Rate at which these VMs sent.
    pub sent: BitsPerSecond,
    /// Rate at which these VMs received.
    pub received: BitsPerSecond,
}

impl HostUsage {
    fn larger(&self) -> u64 {
        self.sent.max(self.received).0
    }
}

/// Payment factor in bit/s: half the sum of all sending and receiving guarantees, i.e. N * B.
#[must_use]
pub fn payment(hose: &Hose) -> u64 {
    let total = hose.total();
    total.up.0.midpoint(total.down.0)
}

/// Usage factor by eq. (1), 0 to 1, for a tenant with `vms` VMs of rate `rate`.
#[must_use]
pub fn usage_factor(vms: u32, rate: BitsPerSecond, hosts: &[HostUsage]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share to be shown")]
    let share = |host: &HostUsage| {
        let side = host.vms.min(vms.saturating_sub(host.vms));
        let guarantee = u128::from(rate.0) * u128::from(side);
        if guarantee == 0 { 0.0 } else { host.larger() as f64 / guarantee as f64 }
    };
    hosts.iter().map(share).fold(0.0, f64::max).min(1.0)
}

/// Score of an interval in bit/s, at most [`payment`].
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

/// A smoothed score. It follows half of each change, so a burst of one interval counts less than a
/// trend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Smoothed {
    value: Option<u64>,
}

impl Smoothed {
    /// Adds the score of an interval and returns the smoothed score. The first score is not
    /// smoothed.
    pub fn follow(&mut self, score: u64) -> u64 {
        let value = self.value.map_or(score, |old| old.midpoint(score));
        self.value = Some(value);
        value
    }

    /// The smoothed score. 0 before the first interval.
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
            (score(&hose, &hosts) / M, usage_factor(10, BitsPerSecond(rate * M), &hosts))
        };
        assert_eq!(at(100), (500, 0.5));
        assert_eq!(at(10), (100, 1.0));
        assert_eq!(at(1000), (500, 0.05));
    }

    #[test]
    fn many_to_one_traffic_shows_at_the_receiver() {
        // Nine senders of 10 Mbit/s each and one receiver alone on its host: the receiver uses 90
        // of 100 Mbit/s.
        let senders = [host(3, 30 * M, 0); 3];
        let hosts = [senders.as_slice(), &[host(1, 0, 90 * M)]].concat();
        let hose = Hose::homogeneous(10, BitsPerSecond(100 * M)).unwrap();
        assert_eq!(score(&hose, &hosts) / M, 900);
    }

    #[test]
    fn a_host_with_all_vms_has_no_network() {
        let hose = Hose::homogeneous(4, BitsPerSecond(M)).unwrap();
        assert_eq!(score(&hose, &[host(4, 9 * M, 9 * M)]), 0);
        assert!(usage_factor(4, BitsPerSecond(M), &[host(4, 9 * M, 9 * M)]).abs() < 1e-12);
    }

    #[test]
    fn a_score_follows_by_halves() {
        let mut smoothed = Smoothed::default();
        assert_eq!((smoothed.get(), smoothed.follow(100), smoothed.follow(0)), (0, 100, 50));
        assert_eq!(smoothed.follow(0), 25);
    }
}
