//! What a stage costs on the simulated core. Kicks, send calls, scheduling decisions and refills of
//! the cycle buckets cost nothing.

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::Cycles;

/// Cycles of one stage: so many a batch, a frame and 1,000 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCost {
    /// Cycles a batch.
    pub batch: u64,
    /// Cycles a frame.
    pub frame: u64,
    /// Cycles 1,000 bytes.
    pub kilobyte: u64,
}

impl StageCost {
    /// The cost of `frames` frames of `bytes` bytes together, rounded down.
    #[must_use]
    pub const fn of(self, frames: usize, bytes: usize) -> Cycles {
        Cycles(self.batch + self.frame * frames as u64 + self.kilobyte * bytes as u64 / 1000)
    }
}

/// The simulated core's costs. Given before a run: from a paper's printed relations or from this
/// host's calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostTable {
    /// Taking frames from a port.
    pub ingress: StageCost,
    /// Classifying them.
    pub classification: StageCost,
    /// Delivering them.
    pub egress: StageCost,
    /// A look at all ports that finds nothing.
    pub idle: Cycles,
}

impl CostTable {
    /// Round numbers of the order measured for this switch (docs/measurements.md); for tests of
    /// behaviour, not for figures.
    pub const EXAMPLE: Self = Self {
        ingress: StageCost { batch: 100, frame: 40, kilobyte: 20 },
        classification: StageCost { batch: 20, frame: 30, kilobyte: 0 },
        egress: StageCost { batch: 150, frame: 50, kilobyte: 150 },
        idle: Cycles(200),
    };
}

/// A virtual counter that lets each stage's cost pass.
#[derive(Clone, Debug)]
pub struct SimCounter {
    counter: VirtualCounter,
    costs: CostTable,
}

impl SimCounter {
    /// A counter at zero.
    #[must_use]
    pub fn new(costs: CostTable) -> Self {
        Self { counter: VirtualCounter::default(), costs }
    }

    /// Jumps to `to` if that lies ahead.
    pub fn advance_to(&self, to: Cycles) {
        self.counter.advance_to(to);
    }
}

impl CycleCounter for SimCounter {
    fn now(&self) -> Cycles {
        self.counter.now()
    }

    fn spent(&self, stage: Stage, work: &Work) {
        let Work { frames, bytes, .. } = *work;
        self.counter.advance(match stage {
            Stage::Ingress => self.costs.ingress.of(frames, bytes),
            Stage::Classification => self.costs.classification.of(frames, bytes),
            Stage::Egress => self.costs.egress.of(frames, bytes),
            Stage::Idle => self.costs.idle,
        });
    }
}
