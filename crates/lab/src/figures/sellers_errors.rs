//! Errors of the cost model by which the simulated operator sells cycles.

use penstock_qos::cost_model::Flows;
use penstock_sim::Rng;

/// Largest error of a cost or cost factor in the seller's model, as a share of the true value.
pub const MODEL_ERROR: f64 = 0.1;

/// Errors of the seller's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Errors {
    /// Every cost and factor has its own random error of up to [`MODEL_ERROR`].
    Random,
    /// All costs are true, except the cost of frames of one size and number of flows, which is
    /// multiplied by a factor. `None`: all costs are true.
    One(Option<(u32, Flows, f64)>),
}

impl Errors {
    /// Returns the next factor of a cost: 1 plus the cost's error.
    pub(super) fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Self::Random => 1.0 + MODEL_ERROR * (2.0 * rng.unit() - 1.0),
            Self::One(_) => 1.0,
        }
    }

    /// Returns the next factor of a cell's cost.
    pub(super) fn of_cell(self, size: u32, flows: Flows, rng: &mut Rng) -> f64 {
        match self {
            Self::One(Some((wrong, of, factor))) if wrong == size && of == flows => factor,
            _ => self.draw(rng),
        }
    }
}
