//! Keeps what arrives for the tenants of a host within their receiving guarantees.
//!
//! # Problem
//!
//! A receiving host divides a tenant's guarantee among pairs ([`super::hose_pairs::share`]). Pairs
//! with less demand get room to grow, and demands are estimated from a few frames. So the pairs of
//! a tenant with much TCP together may send more than the guarantee all the time. If a sender does
//! not use the part that its pair has, the tenant gets less than its guarantee, although its other
//! pairs wait.
//!
//! # Approach
//!
//! The host measures what arrives for each tenant. While more than [`MOST_PERMILLE`] of the
//! guarantee arrives, the rate to divide shrinks slowly, down to [`LEAST`]. While less arrives, it
//! grows as slowly, up to [`GREATEST`].
//!
//! A sender hears its part only with the answer to its next question, and slow pairs ask once in
//! 1.2 s. A loop that is faster than this overshoots: after a second with too much, the tenant has
//! a second with too little. So the loop is slower for tenants with slow pairs, and takes 1
//! to 3 s.

use std::collections::BTreeMap;

use penstock_units::{BitsPerSecond, Nanos};

use super::hose_pairs::Member;
use super::scaled;

/// Rate that may arrive, in thousandths of the guarantee. It leaves room for the frames of a full
/// guarantee that arrive in groups.
pub const MOST_PERMILLE: u64 = 1_010;
/// The whole guarantee, in the unit of factors.
const WHOLE: i64 = 1_000_000;
/// Smallest factor of the guarantee that is divided.
pub const LEAST: i64 = 700_000;
/// Largest factor of the guarantee that is divided. A tenant that was idle may have this factor of
/// its guarantee until the loop follows.
pub const GREATEST: i64 = 1_020_000;
/// Number of periods in which the measured rate follows a change.
const SMOOTH: i64 = 8;
/// Ratio of the loop's time to the delay of its parts: the factor changes as much as the rate is
/// wrong in this many times the periods of measuring and asking.
const SLOW: i64 = 2;

/// Least and largest number of periods in which the factor does not change yet. Frames of a tenant
/// that had a queue before still arrive from there. The begin ends when they no longer arrive much
/// faster than the guarantee.
const BEGIN_PERIODS: u32 = 10;
const BEGIN_PERIODS_MAX: u32 = 20;
/// Rate above which frames of a former queue may still arrive, in thousandths of the guarantee.
const BEGIN_PERMILLE: u64 = 1_100;

/// What arrives for a tenant.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Smoothed rate, in bits per second.
    rate: i64,
    /// Factor of the guarantee that is divided, in millionths.
    factor: i64,
    /// Number of periods of the begin; `None` after the begin.
    begin: Option<u32>,
    /// Largest number of periods between two questions about a pair of the tenant.
    asks_every: u32,
}

/// What arrives for all tenants of a host.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Totals of bytes by VM, at the time `at`.
    totals: BTreeMap<u16, u64>,
    at: Nanos,
    of_tenant: BTreeMap<u16, Arrival>,
}

impl Arrivals {
    /// Creates the state of a host for which nothing arrived.
    #[must_use]
    pub const fn new() -> Self {
        Self { totals: BTreeMap::new(), at: Nanos::ZERO, of_tenant: BTreeMap::new() }
    }

    /// Ends a period at time `now`. `totals` has the bytes on a link that arrived for each VM. They
    /// may begin at 0 again.
    pub fn period_ends(
        &mut self,
        now: Nanos,
        members: &BTreeMap<u16, Member>,
        totals: impl Iterator<Item = (u16, u64)>,
    ) {
        let elapsed = now.saturating_sub(self.at);
        let old = std::mem::take(&mut self.totals);
        let mut bytes: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        for (vm, total) in totals {
            self.totals.insert(vm, total);
            let Some(member) = members.get(&vm) else { continue };
            let of = bytes.entry(member.tenant).or_insert((0, member.hose.receive.0));
            of.0 += old.get(&vm).map_or(0, |old| total.saturating_sub(*old));
        }
        self.at = now;
        self.of_tenant.retain(|tenant, _| bytes.contains_key(tenant));
        if old.is_empty() || elapsed == Nanos::ZERO {
            return;
        }
        for (tenant, (bytes, hose)) in bytes {
            let rate = signed(scaled(bytes, 8_000_000_000, elapsed.0));
            let most = signed(scaled(hose, MOST_PERMILLE, 1_000));
            let new = Arrival { rate, factor: WHOLE, begin: Some(0), asks_every: 0 };
            let arrival = self.of_tenant.entry(tenant).or_insert(new);
            if let Some(periods) = arrival.begin {
                let is_fast = rate > signed(scaled(hose, BEGIN_PERMILLE, 1_000));
                let goes_on = periods < BEGIN_PERIODS || is_fast && periods < BEGIN_PERIODS_MAX;
                (arrival.rate, arrival.begin) = (rate, goes_on.then_some(periods + 1));
                continue;
            }
            arrival.rate += (rate - arrival.rate) / SMOOTH;
            let error =
                i128::from(most - arrival.rate) * i128::from(WHOLE) / i128::from(most.max(1));
            let error = i64::try_from(error).unwrap_or(-WHOLE).max(-WHOLE);
            let change = error / slowness(arrival.asks_every);
            arrival.factor = (arrival.factor + change).clamp(LEAST, GREATEST);
        }
    }

    /// Sets the largest number of periods between two questions about the pairs of a tenant.
    pub fn asks_every(&mut self, tenant: u16, periods: u32) {
        if let Some(arrival) = self.of_tenant.get_mut(&tenant) {
            arrival.asks_every = periods;
        }
    }

    /// Returns the rate to divide among the pairs of a tenant with the guarantee `hose`.
    #[must_use]
    pub fn divided(&self, tenant: u16, hose: BitsPerSecond) -> BitsPerSecond {
        let factor = self.of_tenant.get(&tenant).map_or(WHOLE, |arrival| arrival.factor);
        BitsPerSecond(scaled(hose.0, factor.unsigned_abs(), WHOLE.unsigned_abs()))
    }
}

/// Returns the number of periods in which the factor of a tenant changes as much as its rate is
/// wrong, if the tenant's pairs ask once in `asks_every` periods or more often.
fn slowness(asks_every: u32) -> i64 {
    SLOW * (SMOOTH + i64::from(asks_every))
}

fn signed(rate: u64) -> i64 {
    i64::try_from(rate).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::super::host_rates::Hose;
    use super::*;

    const HOSE: BitsPerSecond = BitsPerSecond(8_000_000);

    /// Ends 200 periods of 50 ms, in which two VMs of a tenant get what `rate` returns for the rate
    /// that was divided before. Pairs ask in each second period. Returns the rates of the periods.
    fn run(rate: impl Fn(u64) -> u64) -> Vec<u64> {
        run_asking(2, rate)
    }

    /// Like [`run`], for pairs that ask once in `every` periods, at different times.
    fn run_asking(every: usize, rate: impl Fn(u64) -> u64) -> Vec<u64> {
        let hose = Hose { send: HOSE, receive: HOSE };
        let members = [
            (1, Member { tenant: 7, hose, is_held: true }),
            (2, Member { tenant: 7, hose, is_held: true }),
        ]
        .into();
        let (mut arrivals, mut total) = (Arrivals::new(), 0);
        let (mut divided, mut rates) = (vec![HOSE.0; every + 1], Vec::new());
        for period in 1..=200 {
            arrivals.asks_every(7, every.try_into().unwrap());
            let heard = &divided[divided.len() - every - 1..][..every];
            let rate = rate(heard.iter().sum::<u64>() / heard.len() as u64);
            total += rate / 160;
            rates.push(rate);
            let totals = [(1, total / 4), (2, total - total / 4), (3, total)];
            arrivals.period_ends(Nanos::from_millis(50 * period), &members, totals.into_iter());
            divided.push(arrivals.divided(7, HOSE).0);
            assert_eq!(arrivals.divided(8, HOSE), HOSE, "nothing is known of other tenants");
        }
        rates
    }

    #[test]
    fn pairs_that_exceed_their_parts_are_brought_back_within_seconds() {
        let rates = run(|divided| divided * 120 / 100);
        let most = HOSE.0 * MOST_PERMILLE / 1_000;
        assert!(rates[..8].iter().all(|rate| *rate > most * 105 / 100));
        for rate in &rates[65..] {
            assert!((most * 98 / 100..=most * 102 / 100).contains(rate), "{rates:?}");
        }
    }

    #[test]
    fn a_tenant_within_its_guarantee_keeps_all_of_it() {
        for (used, greatest) in [(100, 1_015), (33, 337)] {
            let rates = run(|divided| divided * used / 100);
            let least = HOSE.0 * used / 100;
            assert!(rates.iter().all(|rate| *rate >= least), "{rates:?}");
            assert!(rates.iter().all(|rate| *rate <= HOSE.0 * greatest / 1_000), "{rates:?}");
        }
    }

    #[test]
    fn a_tenant_that_begins_with_more_than_its_guarantee_soon_has_just_this() {
        // For a time, frames arrive that wait in the tenant's former queue.
        for periods in [10, 15, 20] {
            let begun = std::cell::Cell::new(0);
            let rates = run(|divided| {
                begun.set(begun.get() + 1);
                if begun.get() <= periods { HOSE.0 * 150 / 100 } else { divided }
            });
            let after = &rates[periods..];
            assert!(after.iter().all(|rate| *rate >= HOSE.0 * 99 / 100), "{rates:?}");
        }
    }

    #[test]
    fn pairs_that_exceed_their_parts_are_not_slowed_below_the_guarantee() {
        for every in [2, 8, 24] {
            let begun = std::cell::Cell::new(0);
            let rates = run_asking(every, |divided| {
                begun.set(begun.get() + 1);
                let percent = if begun.get() > 20 { 115 } else { 100 };
                divided * percent / 100
            });
            let least = rates.iter().min().unwrap();
            assert!(*least >= HOSE.0 * 99 / 100, "every {every} periods: {rates:?}");
            let last = &rates[150..];
            assert!(last.iter().all(|rate| *rate <= HOSE.0 * 102 / 100), "every {every} periods");
        }
    }

    #[test]
    fn a_tenant_whose_pairs_do_not_use_their_parts_gets_its_guarantee_from_the_others() {
        let rates = run(|divided| divided * 99 / 100);
        assert!(rates[40..].iter().all(|rate| *rate >= HOSE.0), "{rates:?}");
    }

    #[test]
    fn the_factor_has_a_bound_and_recovers() {
        let flood = run(|_| 100 * HOSE.0);
        assert_eq!(flood.len(), 200);
        let hose = Hose { send: HOSE, receive: HOSE };
        let members = [(1, Member { tenant: 7, hose, is_held: true })].into();
        let mut arrivals = Arrivals::new();
        let (mut total, mut least) = (0, HOSE);
        for period in 1..=400 {
            total += if period < 100 { 10 * HOSE.0 / 160 } else { 0 };
            let totals = [(1, total)].into_iter();
            arrivals.period_ends(Nanos::from_millis(50 * period), &members, totals);
            least = least.min(arrivals.divided(7, HOSE));
        }
        assert_eq!((least.0, arrivals.divided(7, HOSE).0), (HOSE.0 * 7 / 10, HOSE.0 * 102 / 100));
    }
}
