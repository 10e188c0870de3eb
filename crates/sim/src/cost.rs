//! Cost of frames on the simulated core.
//!
//! # Approach
//!
//! Time advances with the stages of a batch, and with turns that find nothing. Kicks, send calls of
//! kernel ports, scheduling decisions and refills of the cycle buckets take no cycles
//! ([`NOT_CHARGED`]).
//!
//! Costs are fixed before a run, from stated numbers, a paper's printed relations or a calibration.
//! Only the simulated core knows these costs; the cost models of the switch do not.

use std::sync::{Arc, Mutex, PoisonError};

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::{Cycles, Rng};

/// Ethernet's frame check sequence. Costs per byte include it, but simulated frames do not have it.
const FCS: usize = 4;

/// Operations that take cycles on a real core but not on the simulated one.
pub const NOT_CHARGED: [&str; 4] =
    ["kicks", "send calls", "scheduling decisions", "refills of cycle buckets"];

/// Cost of one stage, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCost {
    /// Cycles per batch.
    pub batch: f64,
    /// Cycles per frame.
    pub frame: f64,
    /// Cycles per byte, FCS included.
    pub byte: f64,
}

impl StageCost {
    /// Cost of `frames` frames of `bytes` bytes in total.
    fn of(self, frames: usize, bytes: usize) -> f64 {
        self.batch + self.frame * float(frames) + self.byte * float(bytes)
    }
}

/// Costs of a simulated core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub ingress: StageCost,
    /// Classification of frames whose flow is in the exact-match cache.
    pub classification: StageCost,
    /// Cycles per frame whose flow is not in the cache. These cycles replace
    /// `classification.frame`.
    pub miss: f64,
    pub egress: StageCost,
    /// Factor on all costs, for the number of VMs and I/O cores and for memory nodes.
    pub factor: f64,
    /// Relative amplitude of the noise on a batch's cost. The distribution is triangular with mean
    /// 0.
    pub noise: f64,
    /// Cycles to look at all ports without finding a frame.
    pub idle: Cycles,
}

impl Costs {
    /// Round numbers of the magnitude measured for this switch (docs/internals/measurements.md).
    /// They are for tests of behaviour, not for figures.
    pub const EXAMPLE: Self = Self {
        ingress: StageCost { batch: 100.0, frame: 40.0, byte: 0.02 },
        classification: StageCost { batch: 20.0, frame: 30.0, byte: 0.0 },
        miss: 30.0,
        egress: StageCost { batch: 150.0, frame: 50.0, byte: 0.15 },
        factor: 1.0,
        noise: 0.0,
        idle: Cycles(200),
    };

    /// Cycles of a stage without factor and noise.
    fn stage(&self, stage: Stage, work: &Work) -> f64 {
        let bytes = work.bytes + FCS * work.frames;
        match stage {
            Stage::Ingress => self.ingress.of(work.frames, bytes),
            Stage::Classification => {
                let hits = work.frames.saturating_sub(work.misses);
                self.classification.of(hits, bytes) + self.miss * float(work.misses)
            }
            Stage::Egress => self.egress.of(work.frames, bytes),
            Stage::Idle => 0.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "frames and bytes of one batch")]
const fn float(n: usize) -> f64 {
    n as f64
}

/// A virtual counter that advances by the cost of each stage.
#[derive(Clone, Debug)]
pub struct SimCounter {
    counter: VirtualCounter,
    costs: Costs,
    noise: Arc<Mutex<Noise>>,
}

#[derive(Debug)]
struct Noise {
    rng: Rng,
    /// Noise factor of the current batch.
    factor: f64,
    /// Fractional cycles that have not passed yet.
    carry: f64,
}

impl SimCounter {
    #[must_use]
    pub fn new(costs: Costs, rng: Rng) -> Self {
        let noise = Noise { rng, factor: 1.0, carry: 0.0 };
        Self { counter: VirtualCounter::default(), costs, noise: Arc::new(Mutex::new(noise)) }
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
        if stage == Stage::Idle {
            self.counter.advance(self.costs.idle);
            return;
        }
        let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        if stage == Stage::Ingress {
            let draw = noise.rng.unit() + noise.rng.unit() - 1.0;
            noise.factor = 1.0 + self.costs.noise * draw;
        }
        let cost = self.costs.stage(stage, work) * self.costs.factor * noise.factor + noise.carry;
        let whole = cost.floor();
        noise.carry = cost - whole;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a batch")]
        self.counter.advance(Cycles(whole as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::PortId;

    const COSTS: Costs = Costs {
        ingress: StageCost { batch: 0.0, frame: 100.0, byte: 0.5 },
        classification: StageCost { batch: 0.0, frame: 10.0, byte: 0.0 },
        miss: 30.0,
        egress: StageCost { batch: 0.0, frame: 20.0, byte: 0.0 },
        factor: 2.0,
        noise: 0.0,
        idle: Cycles(7),
    };

    #[test]
    fn only_stages_and_empty_looks_take_cycles() {
        let counter = SimCounter::new(COSTS, Rng::new(1));
        counter.spent(Stage::Idle, &Work::NONE);
        assert_eq!(counter.now(), Cycles(7));
        assert_eq!(spend(&counter, &Work::NONE), 0, "a batch of nothing has no cost of its own");
    }

    fn spend(counter: &SimCounter, work: &Work) -> u64 {
        let before = counter.now().0;
        for stage in [Stage::Ingress, Stage::Classification, Stage::Egress] {
            counter.spent(stage, work);
        }
        counter.now().0 - before
    }

    #[test]
    fn a_batch_costs_its_frames_bytes_and_misses() {
        let counter = SimCounter::new(COSTS, Rng::new(1));
        let work = Work { port: PortId(1), frames: 10, bytes: 600, misses: 0 };
        // 2 x (10 x 100 + 640 x 0.5 + 10 x 10 + 10 x 20)
        assert_eq!(spend(&counter, &work), 3_240);
        assert_eq!(spend(&counter, &Work { misses: 4, ..work }), 3_240 + 2 * 4 * 20);
    }

    #[test]
    fn noise_has_no_mean_and_a_bound() {
        let costs = Costs { noise: 0.05, ..COSTS };
        let counter = SimCounter::new(costs, Rng::new(1));
        let work = Work { port: PortId(1), frames: 32, bytes: 32 * 60, misses: 0 };
        let exact = 32 * 2 * 162;
        let all: Vec<u64> = (0..10_000).map(|_| spend(&counter, &work)).collect();
        assert!(all.iter().all(|cost| cost.abs_diff(exact) <= exact / 20 + 1));
        let mean = all.iter().sum::<u64>() / 10_000;
        assert!(mean.abs_diff(exact) <= exact / 1_000, "{mean} of {exact}");
    }
}
