//! The data path has two clocks: the time-stamp counter (TSC), and a virtual counter for
//! simulations.
#![allow(unsafe_code, reason = "rdtsc has no safe Rust wrapper")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};
use penstock_units::{Cycles, Nanos, PortId, TscRate};

/// Source of the worker's time. The source is the TSC of a core, or a virtual clock in simulations.
pub trait CycleCounter {
    /// Returns the counter's present reading in cycles. The counter's reading never decreases.
    fn now(&self) -> Cycles;

    /// The worker calls `spent` after each stage of a batch, with the size of the stage's work. On
    /// a real core, `spent` does nothing, because the time-stamp counter has already counted the
    /// cycles of the stage. In a simulation, `spent` advances the virtual counter by the cost from
    /// the cost table.
    #[inline(always)]
    fn spent(&self, _stage: Stage, _work: &Work) {}
}

/// Size of the work of one stage of a batch, from which a simulation computes the stage's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Port from which the worker received the batch.
    pub port: PortId,
    pub frames: usize,
    /// Sum of the batch's frame lengths in bytes, without FCS.
    pub bytes: usize,
    /// Number of the batch's frames for which the exact-match cache contains no decision. The
    /// number is 0 before classification.
    pub misses: usize,
}

impl Work {
    /// Size of work that handles no frames, for example of a turn without work.
    pub const NONE: Self = Self { port: PortId(0), frames: 0, bytes: 0, misses: 0 };
}

/// The stages of a batch are ingress, classification and egress, as in C2QoS §III. Further stages
/// are for the worker's other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// First stage of a batch: the worker receives the frames from a port.
    Ingress,
    /// Second stage of a batch: the worker decides to which ports the frames go.
    Classification,
    /// Third stage of a batch: the worker delivers the frames and returns the buffers to the
    /// sender.
    Egress,
    /// The worker examines a unit of the schedule for frames and finds none.
    Look,
    Refill,
    /// The worker runs a turn without a frame. The cost of a look at a unit is not part of the
    /// stage for idle turns, but of [`Stage::Look`].
    Idle,
}

/// The invariant time-stamp counter (TSC) of the CPU core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tsc;

impl CycleCounter for Tsc {
    #[inline(always)]
    fn now(&self) -> Cycles {
        // SAFETY: rdtsc only reads a counter. It faults only if the kernel forbids it to all user
        // space.
        // WHY: clock_gettime costs more than a batch boundary may (some 60 cycles against 35).
        Cycles(unsafe { core::arch::x86_64::_rdtsc() })
    }
}

/// A virtual cycle counter that a simulation advances.
#[derive(Clone, Debug, Default)]
pub struct VirtualCounter(Arc<AtomicU64>);

impl VirtualCounter {
    pub fn advance(&self, cycles: Cycles) {
        self.0.fetch_add(cycles.0, Ordering::Relaxed);
    }

    /// Advances the virtual counter to `to`. The function ignores a value below the counter's
    /// present reading.
    pub fn advance_to(&self, to: Cycles) {
        self.0.fetch_max(to.0, Ordering::Relaxed);
    }
}

impl CycleCounter for VirtualCounter {
    fn now(&self) -> Cycles {
        Cycles(self.0.load(Ordering::Relaxed))
    }
}

/// Measures the TSC against `CLOCK_MONOTONIC_RAW` three times for about 20 ms each, and returns the
/// median.
#[must_use]
pub fn calibrate() -> TscRate {
    let mut rates = [(); 3].map(|()| measure(Nanos::from_millis(20)));
    rates.sort_unstable();
    TscRate::from_hz(rates[1])
}

fn measure(window: Nanos) -> u64 {
    let (t0, c0) = (raw_clock(), Tsc.now());
    loop {
        let (t1, c1) = (raw_clock(), Tsc.now());
        let elapsed = t1.saturating_sub(t0);
        if elapsed >= window {
            let cycles = u128::from(c1.0.wrapping_sub(c0.0));
            let hz = cycles * 1_000_000_000 / u128::from(elapsed.0.max(1));
            return u64::try_from(hz).unwrap_or(u64::MAX);
        }
        core::hint::spin_loop();
    }
}

/// Reads `CLOCK_MONOTONIC_RAW`. Returns zero if the kernel has no `CLOCK_MONOTONIC_RAW` (Linux
/// before 2.6.28).
#[must_use]
pub fn raw_clock() -> Nanos {
    clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map_or(Nanos::ZERO, |t| {
        let part = |v: i64| u64::try_from(v).unwrap_or(0);
        Nanos(part(t.tv_sec()) * 1_000_000_000 + part(t.tv_nsec()))
    })
}
