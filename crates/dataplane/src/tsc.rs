//! The time-stamp counter, and its stand-in under simulation.
#![allow(unsafe_code, reason = "rdtsc has no safe form")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};
use penstock_units::{Cycles, Nanos, PortId, TscRate};

/// Where the worker's time comes from: the TSC on a core, a virtual clock under `sim`.
pub trait CycleCounter {
    /// The count now; never goes back.
    fn now(&self) -> Cycles;

    /// Told after each stage of a batch what it handled. On a real core the cycles are spent
    /// already; a simulation lets them pass here, from its cost table.
    #[inline(always)]
    fn spent(&self, _stage: Stage, _work: &Work) {}
}

/// What a stage handled of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The port that the batch came from.
    pub port: PortId,
    /// Frames.
    pub frames: usize,
    /// Their bytes, without FCS.
    pub bytes: usize,
    /// Frames of the batch that were not in the exact-match cache; none before classification.
    pub misses: usize,
}

impl Work {
    /// Of an idle turn.
    pub const NONE: Self = Self { port: PortId(0), frames: 0, bytes: 0, misses: 0 };
}

/// The stages of a batch (C2QoS §III: ingress, classification, egress), and the idle turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Frames were taken from a port.
    Ingress,
    /// Frames got their verdicts.
    Classification,
    /// Frames were delivered and their buffers returned.
    Egress,
    /// All ports were looked at, none had anything.
    Idle,
}

/// The core's invariant time-stamp counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tsc;

impl CycleCounter for Tsc {
    #[inline(always)]
    fn now(&self) -> Cycles {
        // SAFETY: rdtsc reads a counter; user space may, unless the kernel forbids it to all.
        // WHY: clock_gettime costs more than a batch boundary may (35 cycles against some 60).
        Cycles(unsafe { core::arch::x86_64::_rdtsc() })
    }
}

/// A counter that a simulation moves.
#[derive(Clone, Debug, Default)]
pub struct VirtualCounter(Arc<AtomicU64>);

impl VirtualCounter {
    /// Lets `cycles` pass.
    pub fn advance(&self, cycles: Cycles) {
        self.0.fetch_add(cycles.0, Ordering::Relaxed);
    }

    /// Jumps to `to` if that lies ahead.
    pub fn advance_to(&self, to: Cycles) {
        self.0.fetch_max(to.0, Ordering::Relaxed);
    }
}

impl CycleCounter for VirtualCounter {
    fn now(&self) -> Cycles {
        Cycles(self.0.load(Ordering::Relaxed))
    }
}

/// Measures the TSC against `CLOCK_MONOTONIC_RAW` for about 20 ms, three times; the median.
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

/// `CLOCK_MONOTONIC_RAW`; zero if the kernel has none (no Linux since 2.6.28).
#[must_use]
pub fn raw_clock() -> Nanos {
    clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map_or(Nanos::ZERO, |t| {
        let part = |v: i64| u64::try_from(v).unwrap_or(0);
        Nanos(part(t.tv_sec()) * 1_000_000_000 + part(t.tv_nsec()))
    })
}
