//! Costs of frames on a simulated core.
//!
//! # Approach
//!
//! The time of a core advances with the stages of a batch, with turns that find no frame, and with
//! the work beside batches. The work beside batches ([`Overheads`]) consists of notifications,
//! looks at empty ports, and refills of the cycle buckets. The cost per batch includes the
//! scheduling decision that picked the batch.
//!
//! Costs are fixed before a run. Costs come from numbers that a paper prints, or from a
//! calibration. Only the simulated core knows the costs that it charges. The cost models of the
//! switch do not know the simulated costs.

use std::sync::{Arc, Mutex, PoisonError};

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::{Cycles, Rng};

use crate::snapshot_cost::SnapshotCost;

/// Size of Ethernet's frame check sequence (FCS) in bytes. Costs per byte include the FCS, but
/// simulated frames have no FCS.
const FCS: usize = 4;

/// Costs, in cycles, of a worker's work that belongs to no batch of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overheads {
    /// Cycles for a look at one queue pair that has no batch.
    pub look: Cycles,
    /// Cycles for one refill of the cycle buckets.
    pub refill: Cycles,
    /// Cycles for notifying a driver that waits for an interrupt.
    pub kick: Cycles,
    /// Cycles for one send call on an AF_XDP socket.
    pub send_call: Cycles,
}

impl Overheads {
    /// Assumed costs of the work beside batches, fixed before any run. No paper prints costs of
    /// notifications, refills or looks at empty ports. `penstock-lab run c2qos-bill --mode live`
    /// measures some of the assumed costs. On machine M5 of docs/internals/measurements.md, a
    /// notification took 1,300 cycles, and a refill with all other work of the host account took
    /// 230 cycles. The assumed cost of a notification is about twice the measured cost.
    pub const ASSUMED: Self = Self {
        look: Cycles(20),
        refill: Cycles(400),
        kick: Cycles(2_500),
        send_call: Cycles(3_500),
    };
    /// Costs of a simulated core on which work outside of batches takes no time.
    pub const NONE: Self =
        Self { look: Cycles(0), refill: Cycles(0), kick: Cycles(0), send_call: Cycles(0) };
}

/// Cost of one stage, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCost {
    /// Cycles that the stage takes per batch.
    pub batch: f64,
    /// Cycles that the stage takes per frame.
    pub frame: f64,
    /// Cycles that the stage takes per byte, FCS included.
    pub byte: f64,
}

impl StageCost {
    /// Returns the cycles for a batch of `frames` frames with `bytes` bytes in total.
    fn of(self, frames: usize, bytes: usize) -> f64 {
        self.batch + self.frame * float(frames) + self.byte * float(bytes)
    }
}

/// Costs of all work on a simulated core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub ingress: StageCost,
    /// Cost of classifying frames with a flow that is in the exact-match cache.
    pub classification: StageCost,
    /// Cycles to classify a frame with a flow that is not in the exact-match cache, instead of
    /// `classification.frame`.
    pub miss: f64,
    pub egress: StageCost,
    /// Factor by which all costs are multiplied. The factor for all costs depends on the number of
    /// VMs and I/O cores, and on the NUMA nodes of the memory.
    pub factor: f64,
    /// Largest noise on a batch's cost, as a fraction of the cost. The distribution of the noise is
    /// triangular with mean 0.
    pub noise: f64,
    /// Cycles of a turn that finds no frame, without the cycles for looks at queue pairs.
    pub idle: Cycles,
    pub overheads: Overheads,
    pub snapshot: SnapshotCost,
}

impl Costs {
    /// Rounded costs of Penstock (docs/internals/measurements.md). Behaviour tests use the costs of
    /// [`Self::EXAMPLE`], and so do figures that do not show the paper's switch.
    pub const EXAMPLE: Self = Self {
        ingress: StageCost { batch: 100.0, frame: 40.0, byte: 0.02 },
        classification: StageCost { batch: 20.0, frame: 30.0, byte: 0.0 },
        miss: 30.0,
        egress: StageCost { batch: 150.0, frame: 50.0, byte: 0.15 },
        factor: 1.0,
        noise: 0.0,
        idle: Cycles(200),
        overheads: Overheads::ASSUMED,
        snapshot: SnapshotCost::NONE,
    };

    /// Returns the cycles of a stage for a batch, before `factor` and `noise` are applied.
    fn stage(&self, stage: Stage, work: &Work) -> f64 {
        let bytes = work.bytes + FCS * work.frames;
        match stage {
            Stage::Ingress => self.ingress.of(work.frames, bytes),
            Stage::Classification => {
                let hits = work.frames.saturating_sub(work.misses);
                self.classification.of(hits, bytes) + self.miss * float(work.misses)
            }
            Stage::Egress => self.egress.of(work.frames, bytes),
            Stage::Look | Stage::Refill | Stage::Idle => 0.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the counts of a batch are below 2^53")]
const fn float(n: usize) -> f64 {
    n as f64
}

/// A virtual cycle counter that advances by the cost of each stage.
#[derive(Clone, Debug)]
pub struct SimCounter {
    counter: VirtualCounter,
    costs: Costs,
    noise: Arc<Mutex<Noise>>,
}

#[derive(Debug)]
struct Noise {
    rng: Rng,
    /// Random factor by which the costs of the current batch are multiplied.
    factor: f64,
    /// Fraction of a cycle that rounding left over, and that is added to the next cost.
    carry: f64,
}

impl SimCounter {
    #[must_use]
    pub fn new(costs: Costs, rng: Rng) -> Self {
        let noise = Noise { rng, factor: 1.0, carry: 0.0 };
        Self { counter: VirtualCounter::default(), costs, noise: Arc::new(Mutex::new(noise)) }
    }

    /// Advances the core's cycle counter by the cost of work that belongs to no batch of frames.
    pub fn advance(&self, by: Cycles) {
        self.counter.advance(by);
    }

    /// Advances the core's cycle counter by the cost of a port's own work for a batch: the cost of
    /// `frames` frames with `bytes` bytes (without FCS), with the core's factor and noise.
    pub(crate) fn spend(&self, cost: StageCost, frames: usize, bytes: usize) {
        let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        self.advance_by(cost.of(frames, bytes + FCS * frames), &mut noise);
    }

    /// Advances the core's cycle counter by `cost`, to which factor and noise are applied.
    fn advance_by(&self, cost: f64, noise: &mut Noise) {
        let cost = cost * self.costs.factor * noise.factor + noise.carry;
        let whole = cost.floor();
        noise.carry = cost - whole;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a batch")]
        self.counter.advance(Cycles(whole as u64));
    }

    /// Advances the core's cycle counter to `to`, unless the cycle counter is already above `to`.
    pub fn advance_to(&self, to: Cycles) {
        self.counter.advance_to(to);
    }
}

impl CycleCounter for SimCounter {
    fn now(&self) -> Cycles {
        self.counter.now()
    }

    fn spent(&self, stage: Stage, work: &Work) {
        let Costs { idle, overheads, .. } = self.costs;
        let fixed = match stage {
            Stage::Idle => Some(idle),
            Stage::Look => Some(overheads.look),
            Stage::Refill => Some(overheads.refill),
            Stage::Ingress | Stage::Classification | Stage::Egress => None,
        };
        if let Some(fixed) = fixed {
            self.counter.advance(fixed);
            return;
        }
        let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        if stage == Stage::Ingress {
            let draw = noise.rng.unit() + noise.rng.unit() - 1.0;
            noise.factor = 1.0 + self.costs.noise * draw;
        }
        self.advance_by(self.costs.stage(stage, work), &mut noise);
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
        overheads: Overheads::ASSUMED,
        snapshot: SnapshotCost::NONE,
    };

    #[test]
    fn work_beside_batches_has_its_own_costs() {
        let counter = SimCounter::new(COSTS, Rng::new(1));
        counter.spent(Stage::Idle, &Work::NONE);
        assert_eq!(counter.now(), Cycles(7));
        counter.spent(Stage::Look, &Work::NONE);
        counter.spent(Stage::Refill, &Work::NONE);
        let Overheads { look, refill, .. } = Overheads::ASSUMED;
        assert_eq!(counter.now(), Cycles(7) + look + refill);
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
