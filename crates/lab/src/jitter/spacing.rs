//! Wrong initial windows of the smooth shaper, and the spacing of frames in ms, for the simulated
//! and live Fig. 10 of VM jitter.

/// Initial errors of the shaper's window. Each entry has a factor by which the spacing of frames is
/// wrong, and the name of the factor in series.
pub(crate) const OFF: [(f64, &str); 2] = [(4.0, "4 x too slow"), (0.25, "4 x too fast")];

/// Returns the spacing of frames of 1,500 bytes in milliseconds, at `ns_a_byte` nanoseconds per
/// byte.
pub(crate) fn frame_ms(ns_a_byte: f64) -> f64 {
    ns_a_byte * 1_500.0 / 1e6
}
