//! Cost of a batch on the simulated core.
//!
//! Time advances with the stages of a batch, and with looks that find nothing. Kicks, send calls of
//! kernel ports, scheduling decisions and refills of the cycle buckets take no cycles
//! ([`NOT_CHARGED`]).

use std::sync::{Arc, Mutex, PoisonError};

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::Cycles;

use penstock_units::Rng;

/// Ethernet's frame check sequence. Cost tables include it, but simulated frames do not have it.
const FCS: usize = 4;

/// Operations that take cycles on a real core but not on the simulated one.
pub const NOT_CHARGED: [&str; 4] =
    ["kicks", "send calls", "scheduling decisions", "refills of cycle buckets"];

/// True cost of frames. It is fixed before a run, from stated numbers or a calibration, and only
/// the simulated core knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrueCosts {
    /// Ingress cycles per frame.
    pub ingress_frame: f64,
    /// Ingress cycles per byte, FCS included.
    pub ingress_byte: f64,
    /// Classification cycles per frame whose flow is in the exact-match cache.
    pub hit: f64,
    /// Classification cycles per frame whose flow is not in the cache.
    pub miss: f64,
    /// Egress cycles per frame.
    pub egress_frame: f64,
    /// Factor on all costs, for the number of VMs and I/O cores and for memory nodes.
    pub factor: f64,
    /// Relative amplitude of the noise on a batch's cost. The distribution is triangular with mean
    /// 0.
    pub noise: f64,
    /// Cycles to look at all ports without finding a frame.
    pub idle: Cycles,
}

impl TrueCosts {
    /// Cycles of a stage without factor and noise.
    fn stage(&self, stage: Stage, work: &Work) -> f64 {
        let bytes = work.bytes + FCS * work.frames;
        match stage {
            Stage::Ingress => {
                self.ingress_frame * float(work.frames) + self.ingress_byte * float(bytes)
            }
            Stage::Classification => {
                let hits = work.frames.saturating_sub(work.misses);
                self.hit * float(hits) + self.miss * float(work.misses)
            }
            Stage::Egress => self.egress_frame * float(work.frames),
            Stage::Idle => 0.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "frames and bytes of one batch")]
const fn float(n: usize) -> f64 {
    n as f64
}

/// A virtual counter that advances by the true cost of batches.
#[derive(Clone, Debug)]
pub struct BatchCounter {
    counter: VirtualCounter,
    costs: TrueCosts,
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

impl BatchCounter {
    pub(super) fn new(costs: TrueCosts, rng: Rng) -> Self {
        let noise = Noise { rng, factor: 1.0, carry: 0.0 };
        Self { counter: VirtualCounter::default(), costs, noise: Arc::new(Mutex::new(noise)) }
    }

    /// Advances to `to`, unless that is in the past.
    pub(super) fn advance_to(&self, to: u64) {
        self.counter.advance_to(Cycles(to));
    }
}

impl CycleCounter for BatchCounter {
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

    const COSTS: TrueCosts = TrueCosts {
        ingress_frame: 100.0,
        ingress_byte: 0.5,
        hit: 10.0,
        miss: 30.0,
        egress_frame: 20.0,
        factor: 2.0,
        noise: 0.0,
        idle: Cycles(7),
    };

    #[test]
    fn only_stages_and_empty_looks_take_cycles() {
        let counter = BatchCounter::new(COSTS, Rng::new(1));
        counter.spent(Stage::Idle, &Work::NONE);
        assert_eq!(counter.now(), Cycles(7));
        assert_eq!(spend(&counter, &Work::NONE), 0, "a batch of nothing has no cost of its own");
    }

    fn spend(counter: &BatchCounter, work: &Work) -> u64 {
        let before = counter.now().0;
        for stage in [Stage::Ingress, Stage::Classification, Stage::Egress] {
            counter.spent(stage, work);
        }
        counter.now().0 - before
    }

    #[test]
    fn a_batch_costs_its_frames_bytes_and_misses() {
        let counter = BatchCounter::new(COSTS, Rng::new(1));
        let work = Work { port: PortId(1), frames: 10, bytes: 600, misses: 0 };
        // 2 x (10 x 100 + 640 x 0.5 + 10 x 10 + 10 x 20)
        assert_eq!(spend(&counter, &work), 3_240);
        assert_eq!(spend(&counter, &Work { misses: 4, ..work }), 3_240 + 2 * 4 * 20);
    }

    #[test]
    fn noise_has_no_mean_and_a_bound() {
        let costs = TrueCosts { noise: 0.05, ..COSTS };
        let counter = BatchCounter::new(costs, Rng::new(1));
        let work = Work { port: PortId(1), frames: 32, bytes: 32 * 60, misses: 0 };
        let exact = 32 * 2 * 162;
        let all: Vec<u64> = (0..10_000).map(|_| spend(&counter, &work)).collect();
        assert!(all.iter().all(|cost| cost.abs_diff(exact) <= exact / 20 + 1));
        let mean = all.iter().sum::<u64>() / 10_000;
        assert!(mean.abs_diff(exact) <= exact / 1_000, "{mean} of {exact}");
    }
}
