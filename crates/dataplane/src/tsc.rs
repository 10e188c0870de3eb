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

/// Longest time of one measurement of the TSC.
const WINDOW_MAX: Nanos = Nanos::from_millis(20);
/// A measurement ends when it has lasted this many times as long as the reads of the clock at its
/// two ends, so that its error is at most 50 parts per million.
const PRECISION: u64 = 20_000;
/// Number of reads of the clock at each end of a measurement, of which the shortest counts.
const READS: u32 = 8;

/// Measures the TSC against `CLOCK_MONOTONIC_RAW` three times, and returns the median. A
/// measurement takes some 2 ms if the kernel's clock is the TSC, and at most 20 ms. Guests wait for
/// it when a switch restarts.
#[must_use]
pub fn calibrate() -> TscRate {
    let mut rates = [(); 3].map(|()| measure(&mut Moment::now));
    rates.sort_unstable();
    TscRate::from_hz(rates[1])
}

/// A reading of the clock, and the readings of the TSC just before and just after.
#[derive(Clone, Copy, Debug)]
struct Moment {
    clock: Nanos,
    tsc: [u64; 2],
}

impl Moment {
    fn now() -> Self {
        let before = Tsc.now();
        let clock = raw_clock();
        Self { clock, tsc: [before.0, Tsc.now().0] }
    }

    /// Returns the cycles that the reading of the clock took.
    fn gap(&self) -> u64 {
        self.tsc[1].wrapping_sub(self.tsc[0])
    }

    /// Returns the TSC in the middle of the reading of the clock.
    fn middle(&self) -> u64 {
        self.tsc[0].wrapping_add(self.gap() / 2)
    }

    /// Reads the clock [`READS`] times, and returns the shortest reading, which the kernel did not
    /// interrupt.
    fn shortest(read: &mut impl FnMut() -> Self) -> Self {
        let first = read();
        let others = (1..READS).map(|_| read());
        others.fold(first, |best, next| if next.gap() < best.gap() { next } else { best })
    }
}

/// Returns the rate of the TSC in Hz.
fn measure(read: &mut impl FnMut() -> Moment) -> u64 {
    let begin = Moment::shortest(read);
    loop {
        let end = Moment::shortest(read);
        let elapsed = end.clock.saturating_sub(begin.clock);
        let cycles = end.middle().wrapping_sub(begin.middle());
        let precise = cycles / PRECISION >= begin.gap().saturating_add(end.gap()).max(1);
        if precise || elapsed >= WINDOW_MAX {
            let hz = u128::from(cycles) * 1_000_000_000 / u128::from(elapsed.0.max(1));
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

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 2_445_000_000;

    /// Returns a clock of [`HZ`] whose reads take `nanos` nanoseconds each, and every seventh read
    /// ten times as long after the clock was read.
    fn clock(nanos: u64) -> impl FnMut() -> Moment {
        let (mut now, mut reads) = (77_000, 0);
        move || {
            let cycles = |nanos: u64| {
                let cycles = u128::from(nanos) * u128::from(HZ) / 1_000_000_000;
                u64::try_from(cycles).unwrap()
            };
            let begin = now;
            reads += 1;
            now += if reads % 7 == 0 { 10 * nanos } else { nanos };
            Moment { clock: Nanos(begin + nanos / 2), tsc: [cycles(begin), cycles(now)] }
        }
    }

    #[test]
    fn a_fast_clock_gives_the_rate_in_2_ms_and_a_slow_one_in_20() {
        for (nanos, window_ms) in [(50, 2), (900, 20)] {
            let mut read = clock(nanos);
            let hz = measure(&mut read);
            assert!(hz.abs_diff(HZ) <= HZ / 10_000, "{hz} Hz with reads of {nanos} ns");
            let took = read().clock;
            let limit = Nanos::from_millis(window_ms + 1);
            assert!(took > Nanos::from_millis(window_ms - 1) && took < limit, "{took:?}");
        }
    }

    #[test]
    fn an_interrupted_read_does_not_count() {
        let mut reads = clock(50);
        let all = core::array::from_fn::<_, 8, _>(|_| reads());
        let mut next = all.into_iter();
        let best = Moment::shortest(&mut || next.next().unwrap());
        assert!(all.iter().any(|one| one.gap() > 5 * best.gap()), "one read was interrupted");
        assert!(all.iter().all(|one| one.gap() >= best.gap()));
    }
}
