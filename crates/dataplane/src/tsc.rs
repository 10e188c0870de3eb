//! Clocks of the data path: the time-stamp counter, and a virtual counter for simulations.
#![allow(unsafe_code, reason = "rdtsc has no safe form")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};
use penstock_units::{Cycles, Nanos, PortId, TscRate};

/// Source of the worker's time: the TSC on a core, a virtual clock under `sim`.
pub trait CycleCounter {
    /// Present count in cycles. It never decreases.
    fn now(&self) -> Cycles;

    /// Called after each stage of a batch with the size of its work. On a real core the cycles have
    /// passed already; a simulation advances its clock in this call, by its cost table.
    #[inline(always)]
    fn spent(&self, _stage: Stage, _work: &Work) {}
}

/// Size of the work that a stage did for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The port from which the batch came.
    pub port: PortId,
    pub frames: usize,
    /// Sum of the frames' lengths in bytes, without FCS.
    pub bytes: usize,
    /// Frames that were not in the exact-match cache; 0 before classification.
    pub misses: usize,
}

impl Work {
    /// The work of an idle turn.
    pub const NONE: Self = Self { port: PortId(0), frames: 0, bytes: 0, misses: 0 };
}

/// The stages of a batch (C2QoS §III: ingress, classification, egress), and the idle turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Receiving frames from a port.
    Ingress,
    /// Deciding where the frames go.
    Classification,
    /// Delivering the frames and returning their buffers.
    Egress,
    /// Polling all ports without finding a frame.
    Idle,
}

/// The invariant time-stamp counter of the core.
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

/// A counter that a simulation advances.
#[derive(Clone, Debug, Default)]
pub struct VirtualCounter(Arc<AtomicU64>);

impl VirtualCounter {
    pub fn advance(&self, cycles: Cycles) {
        self.0.fetch_add(cycles.0, Ordering::Relaxed);
    }

    /// Advances the counter to `to`. A value in the past has no effect.
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

/// Reads `CLOCK_MONOTONIC_RAW`; zero if the kernel has no such clock (Linux before 2.6.28).
#[must_use]
pub fn raw_clock() -> Nanos {
    clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map_or(Nanos::ZERO, |t| {
        let part = |v: i64| u64::try_from(v).unwrap_or(0);
        Nanos(part(t.tv_sec()) * 1_000_000_000 + part(t.tv_nsec()))
    })
}
