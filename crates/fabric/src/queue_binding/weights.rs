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
//! weight s * g / g_max, rounded up or to the nearest whole number. The module tries both for each
//! value of the weight s from 1 to 100. A queue needs the fraction g / C of its link, and gets the
//! fraction w / W of its link. The guarantee error is the maximum of g / C - w / W over all queues.
//! The headroom is the minimum of (w / W) / (g / C). The module chooses the weights with the least
//! guarantee error, and among those without error, the first with [`ROOM_PPM`], or with nearly as
//! much as exact weights have. If no weights up to [`FINE`] have so much, it chooses those with the
//! most headroom.
//!
//! Reservations do not count the frames of hosts, such as questions about pairs of VMs. They travel
//! in the shared queue, so this queue must not have less headroom than the others.
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

use std::cmp::Ordering;

use super::dilution::PortLoad;

/// Largest weight that a queue may have.
pub const WEIGHT_MAX: u32 = 100;
/// Part of the guarantees, in millionths, at which the search for weights of a change ends.
const ENOUGH_PPM: u32 = 999_000;
/// Headroom at which the search for weights ends: a link's bandwidth for a queue over the queue's
/// reservation, in millionths.
const ROOM_PPM: u64 = 1_500_000;
/// Part of the headroom of exact weights, in thousandths, at which the search for weights ends.
const NEAR_PERMILLE: u64 = 999;
/// Largest weight for which the search goes on although the weights have no error.
const FINE: u32 = 20;

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
/// Computing the weights of a port takes O(200 × queues) time.
#[must_use]
pub fn weights(reserved: &[u64], rate: u64) -> Weights {
    let mut best: Option<(Weights, u64)> = None;
    let all = reserved.iter().map(|g| u128::from(*g)).sum::<u128>().max(1);
    let exact = u64::try_from(u128::from(rate) * 1_000_000 / all).unwrap_or(u64::MAX);
    let enough = (exact / 1_000).saturating_mul(NEAR_PERMILLE).min(ROOM_PPM);
    for (scale, up) in (1..=WEIGHT_MAX).flat_map(|scale| [(scale, true), (scale, false)]) {
        let weights = scaled(reserved, scale, up);
        let error_ppm = shortfall_ppm(reserved, &weights, rate);
        let room = if error_ppm == 0 { headroom_ppm(reserved, &weights, rate) } else { 0 };
        let is_better = |(best, most): &(Weights, u64)| match error_ppm.cmp(&best.error_ppm) {
            Ordering::Equal => room > *most,
            order => order.is_lt(),
        };
        if best.as_ref().is_none_or(is_better) {
            best = Some((Weights { weights, error_ppm }, room));
        }
        if best
            .as_ref()
            .is_some_and(|(best, room)| best.error_ppm == 0 && (*room >= enough || scale >= FINE))
        {
            break;
        }
    }
    best.unwrap_or_default().0
}

/// Returns weights in proportion to `reserved`. The largest weight is `scale`. The others are
/// rounded up or to the nearest whole number.
fn scaled(reserved: &[u64], scale: u32, up: bool) -> Vec<u32> {
    let most = u128::from(reserved.iter().copied().max().unwrap_or(0));
    let weight = |g: &u64| {
        let wide = u128::from(*g) * u128::from(scale);
        let weight = match most {
            0 => 1,
            _ if up => wide.div_ceil(most),
            _ => (2 * wide + most) / (2 * most),
        };
        u32::try_from(weight).unwrap_or(WEIGHT_MAX).clamp(1, WEIGHT_MAX)
    };
    reserved.iter().map(weight).collect()
}

/// Returns the headroom of `weights` in millionths, rounded down.
fn headroom_ppm(reserved: &[u64], weights: &[u32], rate: u64) -> u64 {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    let pairs = reserved.iter().zip(weights).map(|(g, w)| (u128::from(*g), u128::from(*w)));
    let least = pairs.filter(|(g, _)| *g > 0).min_by(|a, b| (a.1 * b.0).cmp(&(b.1 * a.0)));
    let Some((g, w)) = least else { return u64::MAX };
    u64::try_from(w * u128::from(rate) * 1_000_000 / (sum * g)).unwrap_or(u64::MAX)
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
        let weights = scaled(&reserved, scale, true);
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

    #[test]
    fn all_queues_get_a_part_of_what_nobody_reserved() {
        // Three tenants in the shared queue, one of which has 2 bit/s less because its guarantee
        // was divided, and seven in their own queues.
        let mut reserved = [4_700_000; 8];
        reserved[0] = 14_099_998;
        assert_eq!(weights(&reserved, 50_000_000).weights, [3, 1, 1, 1, 1, 1, 1, 1]);
        let weights = weights(&[1_000, 370, 260], 1_700);
        let room = headroom_ppm(&[1_000, 370, 260], &weights.weights, 1_700);
        assert!(weights.error_ppm == 0 && room > 1_020_000, "{weights:?}, {room}");
        assert!(weights.weights[0] <= FINE, "{weights:?}");
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
