//! Wrong initial windows or rates of the smooth shaper, the spacing of frames in ms, and the claim
//! about the rate of departures, for the simulated and live Fig. 10 of VM jitter.

use crate::evidence::Claim;

/// Initial errors of the shaper's window. Each entry has a factor by which the spacing of frames is
/// wrong, and the name of the factor in series.
pub(crate) const OFF: [(f64, &str); 2] = [(4.0, "4 x too slow"), (0.25, "4 x too fast")];

/// Index of the control interval after a step in which the rate of departures is judged.
const JUDGED: usize = 2;

/// Returns the spacing of frames of 1,500 bytes in milliseconds, at `ns_a_byte` nanoseconds per
/// byte.
pub(crate) fn frame_ms(ns_a_byte: f64) -> f64 {
    ns_a_byte * 1_500.0 / 1e6
}

/// Returns the claim about the rate in the third interval after each step. Each element of `steps`
/// has the rates of the departures in the intervals after one step, as multiples of the limit. The
/// claim holds if the largest error is at most `most_pct` percent. If a step has fewer than three
/// intervals, the claim is not measured.
pub(crate) fn rate_error(steps: &[Vec<f64>], most_pct: f64) -> Claim {
    let error = |rates: &Vec<f64>| rates.get(JUDGED).map(|rate| 100.0 * (rate - 1.0).abs());
    let errors: Option<Vec<f64>> = steps.iter().map(error).collect();
    let worst = errors.map_or(f64::NAN, |errors| errors.into_iter().fold(0.0, f64::max));
    let what = "error of the departures' rate in the third interval after a step by four";
    Claim::new("rate_error_pct", what, "%").at_most(most_pct).measured(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_interval_of_the_worse_step_is_judged() {
        let claim = |second: &[f64]| {
            let claim = rate_error(&[vec![0.25, 1.02, 1.005, 2.0], second.to_vec()], 1.0);
            (claim.measured.map(|error| (10.0 * error).round()), claim.holds)
        };
        assert_eq!(claim(&[4.0, 1.0, 1.0]), (Some(5.0), Some(true)));
        assert_eq!(claim(&[4.0, 1.0, 0.98]), (Some(20.0), Some(false)));
        assert_eq!(claim(&[4.0, 1.0]), (None, Some(false)));
    }
}
