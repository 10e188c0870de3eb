//! Cost of the worker's stages on the simulated core. Kicks, send calls, scheduling decisions and
//! refills of the cycle buckets cost nothing.

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::Cycles;

/// Cost of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCost {
    /// Cycles per batch.
    pub batch: u64,
    /// Cycles per frame.
    pub frame: u64,
    /// Cycles per 1,000 bytes.
    pub kilobyte: u64,
}

impl StageCost {
    /// Cost of `frames` frames with `bytes` bytes in total, rounded down.
    #[must_use]
    pub const fn of(self, frames: usize, bytes: usize) -> Cycles {
        Cycles(self.batch + self.frame * frames as u64 + self.kilobyte * bytes as u64 / 1000)
    }
}

/// Costs of the simulated core. They are fixed before a run, from a paper's printed relations or
/// from this host's calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostTable {
    /// To take frames from a port.
    pub ingress: StageCost,
    /// To classify frames.
    pub classification: StageCost,
    /// To deliver frames.
    pub egress: StageCost,
    /// To look at all ports without finding a frame.
    pub idle: Cycles,
}

impl CostTable {
    /// Round numbers of the magnitude measured for this switch (docs/internals/measurements.md).
    /// They serve tests of behaviour, not figures.
    pub const EXAMPLE: Self = Self {
        ingress: StageCost { batch: 100, frame: 40, kilobyte: 20 },
        classification: StageCost { batch: 20, frame: 30, kilobyte: 0 },
        egress: StageCost { batch: 150, frame: 50, kilobyte: 150 },
        idle: Cycles(200),
    };
}

/// A virtual counter that advances by the cost of each stage.
#[derive(Clone, Debug)]
pub struct SimCounter {
    counter: VirtualCounter,
    costs: CostTable,
}

impl SimCounter {
    #[must_use]
    pub fn new(costs: CostTable) -> Self {
        Self { counter: VirtualCounter::default(), costs }
    }

    /// Advances to `to`, unless that is in the past.
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
