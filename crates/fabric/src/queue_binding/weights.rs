//! Queue weights as whole numbers, as hardware has them.
//!
//! # Problem
//!
//! A queue's share of a link must be at least its reservation. By QShare §V-C, the share is the
//! reservation in the queue divided by the reservation on the link. Switches take weights from 1 to
//! 100.
//!
//! # Approach
//!
//! The largest queue gets weight s, and the others get ceil(s * g / g_max). The worst shortfall is
//! max(g / C - w / sum of w). Of all s with the least worst shortfall, the smallest is chosen. The
//! remaining shortfall is reported as the guarantee error.
//!
//! # Example
//!
//! In a test with 500, 300 and 200 of 1,000 Mbit/s, the weights are 5, 3 and 2, and the error is 0.

/// Largest weight of a queue.
pub const WEIGHT_MAX: u32 = 100;

/// Weights of a port's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Weight of each queue, the shared queue first. 1 to [`WEIGHT_MAX`].
    pub weights: Vec<u32>,
    /// Largest difference between a queue's guarantee and its share, in millionths of the link. 0
    /// if all shares suffice.
    pub error_ppm: u32,
}

/// Weights for the reservations of each queue on a link of `rate`, all in bit/s. A queue without a
/// reservation gets weight 1.
///
/// # Cost
///
/// The time is proportional to 100 times the queues.
#[must_use]
pub fn weights(reserved: &[u64], rate: u64) -> Weights {
    let most = reserved.iter().copied().max().unwrap_or(0);
    let mut best: Option<Weights> = None;
    for scale in 1..=WEIGHT_MAX {
        let weight = |g: &u64| match most {
            0 => 1,
            most => {
                let wide = (u128::from(*g) * u128::from(scale)).div_ceil(u128::from(most));
                u32::try_from(wide).unwrap_or(WEIGHT_MAX).clamp(1, WEIGHT_MAX)
            }
        };
        let weights: Vec<u32> = reserved.iter().map(weight).collect();
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

/// The largest g / C - w / sum of w, at least 0, in millionths, rounded up.
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
    fn an_unavoidable_error_is_reported() {
        // A reservation of 1 in 10,000 gets at least 1 of 101 parts.
        let fair = weights(&[9_999, 1], 10_000);
        assert_eq!((fair.weights, fair.error_ppm), (vec![100, 1], 9_801));
    }
}
