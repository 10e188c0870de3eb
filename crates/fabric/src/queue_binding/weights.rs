//! Computes the weights of queues as whole numbers, because switches support no fractions.
//!
//! # Problem
//!
//! A queue's share of a link must be at least its reservation. In QShare §V-C, weights are
//! proportional to the reservations in the queues. Switches support weights from 1 to 100.
//!
//! # Approach
//!
//! Let g be a queue's reservation, w the queue's weight, W the sum of all weights and C the link's
//! rate. The queue with the largest reservation g_max gets weight s, and any other queue gets the
//! weight ceil(s * g / g_max). The module tries each value of the weight s from 1 to 100. A queue
//! needs the fraction g / C of its link, and gets the fraction w / W of its link. The guarantee
//! error is the maximum of g / C - w / W over all queues. The module chooses the smallest value of
//! the weight s that has the least guarantee error.
//!
//! # Change of queues
//!
//! While queues change hands, weights need not suffice for queues that are all backlogged at the
//! same time, because hosts limit the tenants that move ([`super::dilution()`]). The module then
//! chooses the weights that leave the queues the largest part of their guarantees. The weights of
//! the new binding come first, because they need no later change.
//!
//! # Example
//!
//! In a test, a link of 1,000 Mbit/s has three queues with reservations of 500, 300 and 200 Mbit/s.
//! The queues with reservations of 500, 300 and 200 Mbit/s get the weights 5, 3 and 2, so the
//! guarantee error is 0.

use super::dilution::PortLoad;

/// Largest weight that a queue may have.
pub const WEIGHT_MAX: u32 = 100;
/// Part of the guarantees, in millionths, at which the search for weights of a change ends.
const ENOUGH_PPM: u32 = 999_000;

/// Weights of all queues of a port, and the guarantee error of these weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Weight of each queue, 1 to [`WEIGHT_MAX`], the shared queue first.
    pub weights: Vec<u32>,
    /// Guarantee error: the largest amount by which the bandwidth of a queue is below its
    /// reservation, in millionths of the link's rate. The guarantee error is 0 if the bandwidth of
    /// every queue is at least the queue's reservation.
    pub error_ppm: u32,
}

/// Computes weights for queues with the reservations `reserved` on a link of rate `rate`, in bit/s.
/// A queue without a reservation gets weight 1.
///
/// # Cost
///
/// Computing the weights of a port takes O(100 × queues) time.
#[must_use]
pub fn weights(reserved: &[u64], rate: u64) -> Weights {
    let mut best: Option<Weights> = None;
    for scale in 1..=WEIGHT_MAX {
        let weights = scaled(reserved, scale);
        let error_ppm = shortfall_ppm(reserved, &weights, rate);
        if best.as_ref().is_none_or(|best| error_ppm < best.error_ppm) {
            best = Some(Weights { weights, error_ppm });
        }
        if best.as_ref().is_some_and(|best| best.error_ppm == 0) {
            break;
        }
    }
    best.unwrap_or_default()
}

/// Returns weights in proportion to `reserved`, rounded up. The largest weight is `scale`.
fn scaled(reserved: &[u64], scale: u32) -> Vec<u32> {
    let most = reserved.iter().copied().max().unwrap_or(0);
    let weight = |g: &u64| match most {
        0 => 1,
        most => {
            let wide = (u128::from(*g) * u128::from(scale)).div_ceil(u128::from(most));
            u32::try_from(wide).unwrap_or(WEIGHT_MAX).clamp(1, WEIGHT_MAX)
        }
    };
    reserved.iter().map(weight).collect()
}

/// Computes weights for a port while queues change hands. The port's traffic is first `losing`,
/// while tenants lose their queues, and then `winning`, while tenants get queues. `after` are the
/// weights of the new binding, and `rate` is the link's rate in bit/s. Returns the weights and the
/// least part that a queue keeps of its guarantee, in millionths.
///
/// # Cost
///
/// As [`weights`], unless the weights of the new binding suffice.
pub(super) fn during(
    losing: &PortLoad,
    winning: &PortLoad,
    after: &Weights,
    rate: u64,
) -> (Weights, u32) {
    let least = |weights: &[u32], floor: u32| {
        let kept = losing.least(weights, rate, floor);
        if kept <= floor { kept } else { kept.min(winning.least(weights, rate, floor)) }
    };
    let mut best = (after.clone(), least(&after.weights, 0));
    let reserved: Vec<u64> =
        losing.most().into_iter().zip(winning.most()).map(|(a, b)| a.max(b)).collect();
    for scale in 1..=WEIGHT_MAX {
        if best.1 >= ENOUGH_PPM {
            break;
        }
        let weights = scaled(&reserved, scale);
        let kept = least(&weights, best.1);
        if kept > best.1 {
            let error_ppm = shortfall_ppm(&reserved, &weights, rate);
            best = (Weights { weights, error_ppm }, kept);
        }
    }
    best
}

/// Returns the guarantee error of `weights`, in millionths of the link's rate, rounded up. The
/// guarantee error is 0 if every queue gets its reservation.
#[must_use]
pub fn shortfall_ppm(reserved: &[u64], weights: &[u32], rate: u64) -> u32 {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    let below = u128::from(rate) * sum;
    let short = |(g, w): (&u64, &u32)| {
        let (wanted, given) = (u128::from(*g) * sum, u128::from(*w) * u128::from(rate));
        let short = wanted.saturating_sub(given) * 1_000_000;
        if below == 0 { 0 } else { short.div_ceil(below) }
    };
    let worst = reserved.iter().zip(weights).map(short).max().unwrap_or(0);
    u32::try_from(worst).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue_binding::dilution::{Load, WHOLE_PPM};

    #[test]
    fn the_worked_example_comes_out() {
        let fair = weights(&[500, 300, 200], 1000);
        assert_eq!(fair, Weights { weights: vec![5, 3, 2], error_ppm: 0 });
    }

    #[test]
    fn a_link_that_is_not_fully_reserved_needs_less_exact_weights() {
        assert_eq!(weights(&[100, 99, 1], 1000).weights, [1, 1, 1]);
        assert_eq!(weights(&[0, 0], 1000).weights, [1, 1]);
    }

    fn load(guarantee: u64, queue: u8, moves: bool) -> Load {
        let limited = moves || queue == 0;
        Load { guarantee, queue, also_shared: moves && queue != 0, limited }
    }

    fn port(queues: usize, loads: &[Load]) -> PortLoad {
        let mut port = PortLoad::new(queues);
        loads.iter().for_each(|load| port.add(load, WHOLE_PPM));
        port
    }

    #[test]
    fn weights_of_a_change_keep_every_guarantee() {
        // Nine tenants of 94 stay in their queues, and a tenant of 94 loses or wins queue 1.
        let with = |mover| (2..=10).map(|q| load(94, q, false)).chain([mover]).collect::<Vec<_>>();
        let own = port(11, &with(load(94, 1, true)));
        let shared = port(11, &with(load(94, 0, true)));
        for (losing, winning, empty) in [(&own, &shared, 1), (&shared, &own, 0)] {
            let mut reserved = [94; 11];
            reserved[empty] = 0;
            let after = weights(&reserved, 1_000);
            assert_eq!((after.weights[empty], after.error_ppm), (1, 0));
            let (during, kept) = during(losing, winning, &after, 1_000);
            assert_eq!((during.weights, kept), (vec![1; 11], WHOLE_PPM));
        }
        // The final weights have no weight for a tenant of 500 in queue 0, so others are needed.
        let stays = [load(250, 2, false), load(250, 3, false)];
        let (from, to) = (load(500, 0, true), load(500, 1, true));
        let shared = port(4, &[stays[0], stays[1], from]);
        let split = port(4, &[stays[0], stays[1], to]);
        let after = weights(&[0, 500, 250, 250], 1_000);
        let (during, kept) = during(&shared, &split, &after, 1_000);
        assert_eq!((during.weights, kept), (vec![2, 2, 1, 1], WHOLE_PPM));
    }

    #[test]
    fn a_change_that_needs_finer_weights_is_reported() {
        // Queue 0 needs 200 times the weight of a tenant of 1, and has at most 100 times.
        let stays: Vec<Load> = (2..=7).map(|queue| load(1, queue, false)).collect();
        let shared = [load(100, 0, false), load(100, 0, true)];
        let port = port(8, &[&stays[..], &shared[..]].concat());
        let after = weights(&port.most(), 206);
        let (during, kept) = during(&port, &port, &after, 206);
        assert_eq!((during.weights[0], kept), (100, 971_698));
    }

    #[test]
    fn an_unavoidable_error_is_reported() {
        // A reservation of 1 in 10,000 gets at least 1 of 101 parts.
        let fair = weights(&[9_999, 1], 10_000);
        assert_eq!((fair.weights, fair.error_ppm), (vec![100, 1], 9_801));
    }
}
