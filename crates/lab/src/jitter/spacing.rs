//! The windows of Fig. 10, simulated and live: their initial error, and their unit in series.

/// Factors by which the window is wrong at first, and their names in series.
pub(crate) const OFF: [(f64, &str); 2] = [(4.0, "4 x too slow"), (0.25, "4 x too fast")];

/// Milliseconds between frames of 1,500 bytes.
pub(crate) fn frame_ms(ns_a_byte: f64) -> f64 {
    ns_a_byte * 1_500.0 / 1e6
}
