//! The worker's clock converts readings of the cycle counter to time, without a division per batch.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use penstock_units::{Cycles, Nanos, TscRate};

/// Converts readings of one worker's cycle counter to time.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Nanoseconds per cycle of the counter, multiplied by 2^32.
    scale: u64,
    /// Reading of the cycle counter at which the next second of the coarse clock begins.
    next_second: u64,
    hz: u64,
    second: u32,
    /// The worker's coarse clock in seconds, for readers outside the worker.
    pub shared: Arc<AtomicU32>,
}

impl Clock {
    pub fn new(start: Cycles, rate: TscRate) -> Self {
        let hz = rate.hz();
        let scale = u64::try_from((1_000_000_000_u128 << 32) / u128::from(hz)).unwrap_or(u64::MAX);
        let next_second = start.0.saturating_add(hz);
        let shared = Arc::new(AtomicU32::new(1));
        Self { scale, next_second, hz, second: 1, shared }
    }

    /// Returns the nanoseconds since the counter was zero. The cycle counters of all cores have
    /// equal readings, so all workers compute the same time.
    #[inline]
    pub fn nanos(&self, now: Cycles) -> u64 {
        let wide = u128::from(now.0) * u128::from(self.scale);
        #[expect(clippy::cast_possible_truncation, reason = "centuries of nanoseconds")]
        let nanos = (wide >> 32) as u64;
        nanos
    }

    /// Returns the smallest reading of the cycle counter that converts to time `at` or a later
    /// time.
    pub fn cycles(&self, at: Nanos) -> Cycles {
        let wide = (u128::from(at.0) << 32).div_ceil(u128::from(self.scale.max(1)));
        Cycles(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// Returns the coarse clock: whole seconds since the worker's start, beginning with 1.
    #[inline]
    pub fn second(&mut self, now: Cycles) -> u32 {
        if now.0 >= self.next_second {
            self.next_second(now);
        }
        self.second
    }

    #[cold]
    fn next_second(&mut self, now: Cycles) {
        let passed = (now.0 - self.next_second) / self.hz + 1;
        self.second = self.second.wrapping_add(u32::try_from(passed).unwrap_or(u32::MAX));
        self.next_second = self.next_second.saturating_add(passed.saturating_mul(self.hz));
        self.shared.store(self.second, Ordering::Relaxed);
    }
}
