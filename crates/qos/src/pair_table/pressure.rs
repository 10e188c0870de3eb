//! Decides when a VM or a pair that waits for its bucket signals congestion to the VM's senders.
//!
//! # Problem
//!
//! The frames of a VM above its limit wait in the VM's ring or in the lines of its pairs
//! ([`super::PairTable::waits`]), and TCP fills both. At 1 Mbit/s, a ring of 500 frames is a wait
//! of 6 s.
//!
//! # Approach
//!
//! CoDel (RFC 8289) signals congestion if frames wait too long for an interval. The table does not
//! know how long frames wait in a ring. If the VM's bucket is never half full for [`INTERVAL`],
//! frames of the VM waited almost all the time. One frame then signals congestion, and further
//! frames do so at CoDel's growing rate until the bucket is half full again. At least
//! [`WAIT_FRAMES`] frames are between two signals: a VM of 1 Mbit/s may have a dozen flows, whose
//! windows would otherwise be too small for anything but retransmission timeouts. For the same
//! reason, the interval lasts at least [`INTERVAL_FRAMES`] full frames.
//!
//! The same rule applies to a pair whose line is never empty for [`INTERVAL`].
//!
//! # Departures
//!
//! CoDel accepts a short standing queue. This rule does not measure waits, and accepts none that
//! lasts.

use core::sync::atomic::{AtomicU64, Ordering};

use penstock_units::Nanos;

use crate::policer::Size;

/// Time between two frames of a pair that signal congestion to the sender.
pub(super) const SIGNAL_EVERY: Nanos = Nanos::from_millis(10);
/// Smallest number of frames of a pair between two frames that signal congestion. At a low rate,
/// one frame in 10 ms would be one of a few frames, and TCP would stop for a retransmission
/// timeout.
pub(super) const SIGNAL_FRAMES: u64 = 32;
/// Smallest number of frames between two frames that signal congestion while frames wait.
const WAIT_FRAMES: u64 = 64;
/// Time without a pause after which a VM's frames signal congestion (RFC 8289 §4.3).
const INTERVAL: Nanos = Nanos::from_millis(100);
/// Smallest length of the interval in full frames at the rate of the bucket.
const INTERVAL_FRAMES: u64 = 32;
/// Smallest frame that signals congestion, in bytes. To lose an acknowledgement slows nobody down.
const SIGNAL_BYTES: u32 = 600;

/// Returns true once in each time `every`. `next` is the time of the next such moment in ns.
pub(super) fn is_due(next: &AtomicU64, now: Nanos, every: Nanos) -> bool {
    let at = next.load(Ordering::Relaxed);
    let later = (now + every).0;
    now.0 >= at && next.compare_exchange(at, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// State of the signals of a VM or a pair.
#[derive(Debug)]
pub(super) struct Pressure {
    /// Time in ns at which the bucket was last half full.
    relaxed: AtomicU64,
    /// Time in ns from which a frame may signal congestion.
    next: AtomicU64,
    /// Number of signals since the bucket was last half full.
    signals: AtomicU64,
    /// Number of frames since the last signal.
    frames: AtomicU64,
}

impl Pressure {
    pub(super) const fn new() -> Self {
        Self {
            relaxed: AtomicU64::new(0),
            next: AtomicU64::new(0),
            signals: AtomicU64::new(0),
            frames: AtomicU64::new(0),
        }
    }

    /// Notes that no frame waits at the time `now`.
    pub(super) fn rest(&self, now: Nanos) {
        self.relaxed.store(now.0, Ordering::Relaxed);
        self.signals.store(0, Ordering::Relaxed);
    }

    /// Whether a frame that passes should signal congestion. `relaxed` is true if the VM's bucket
    /// was at least half full before the frame. A full frame takes the time `frame` at the rate of
    /// the bucket.
    pub(super) fn signals(&self, relaxed: bool, frame: Nanos, size: Size, now: Nanos) -> bool {
        let passed = u64::from(size.frames);
        let passed = self.frames.fetch_add(passed, Ordering::Relaxed).wrapping_add(passed);
        if relaxed {
            self.rest(now);
            return false;
        }
        let since = now.0.saturating_sub(self.relaxed.load(Ordering::Relaxed));
        let interval = frame.0.saturating_mul(INTERVAL_FRAMES).max(INTERVAL.0);
        if since < interval || passed < WAIT_FRAMES || size.bytes < SIGNAL_BYTES {
            return false;
        }
        let number = self.signals.load(Ordering::Relaxed);
        let every = interval / number.isqrt().max(1);
        let signals = is_due(&self.next, now, Nanos(every.max(SIGNAL_EVERY.0)));
        if signals {
            self.signals.store(number.saturating_add(1), Ordering::Relaxed);
            self.frames.store(0, Ordering::Relaxed);
        }
        signals
    }
}
