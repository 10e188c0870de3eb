//! Rates on the wire of frames that left the switch, and shares by weight.

use super::super::stage::Reading;

/// Bytes that the switch adds to a frame on a link: FCS, preamble and gap.
pub(super) const OVERHEAD: f64 = 24.0;

/// Returns the bits per second on the wire of the frames from the VM at `vm` that left the switch.
///
/// The switch counts bytes when it takes frames from a VM, and frames when they leave. Therefore
/// the result is the number of frames that left, times their mean size ([`frame_bits`]). The result
/// is exact if all frames of a VM have the same size.
pub(super) fn departed_bps(before: &Reading, after: &Reading, vm: &str) -> f64 {
    frame_bits(before, after, vm) * after.per_second(before, vm, "forwarded")
}

/// Returns the mean number of bits on the wire of the frames that the switch took from the VM at
/// `vm`.
pub(super) fn frame_bits(before: &Reading, after: &Reading, vm: &str) -> f64 {
    let of = |name: &str| after.per_second(before, vm, name);
    // The parts of a large segment that the switch cuts count as frames when they leave.
    let frames = of("rx_frames") + of("replicated");
    after.wire_bps(before, vm, OVERHEAD) / frames.max(1.0)
}

/// Returns the largest deviation of a rate from its rate by weight, in per cent of the rate by
/// weight. Returns NaN if all rates are 0.
pub(super) fn share_error_pct(rates: &[f64], weights: &[u32]) -> f64 {
    let all: f64 = rates.iter().sum();
    let sum: f64 = weights.iter().copied().map(f64::from).sum();
    let error = |(rate, weight): (&f64, &u32)| {
        let due = all * f64::from(*weight) / sum;
        100.0 * (rate / due - 1.0).abs()
    };
    if all > 0.0 { rates.iter().zip(weights).map(error).fold(0.0, f64::max) } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_relative_to_the_rate_by_weight() {
        let weights = [3, 1, 1, 7];
        assert!(share_error_pct(&[3.0, 1.0, 1.0, 7.0], &weights) < 1e-9);
        let error = share_error_pct(&[3.0, 0.9, 1.1, 7.0], &weights);
        assert!((error - 10.0).abs() < 1e-9, "{error}");
        assert!(share_error_pct(&[0.0; 4], &weights).is_nan());
    }
}
