//! How much a driver may ask of its session.
//!
//! **Problem.** Messages cost others something: an exchange of a ring is a request to the worker,
//! a memory map is work under a lock of the whole process, and a driver that sends them without
//! end, or connects without end, slows every port down. **Rule.** A token bucket for each port, in
//! units of about the cost of a small message; whoever has overdrawn it waits in its own thread,
//! and its rings go on meanwhile. A driver that starts eight queue pairs needs some 400 units.
//! The bucket outlives the connection.

use penstock_units::Nanos;

/// A message.
pub(super) const MESSAGE: u64 = 1;
/// A request to the worker.
pub(super) const EXCHANGE: u64 = 4;
/// A mapping made and another undone.
pub(super) const MAPPING: u64 = 32;
/// A connection.
pub(super) const CONNECTION: u64 = 32;
/// What a port may spend at once.
const BURST: u64 = 4_096;
/// What it may spend a second in the long run: 512 messages, or 128 exchanges, or 16 maps.
const PER_SECOND: u64 = 512;

/// One port's bucket.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Units times nanoseconds per second, so that nothing is rounded away.
    level: u64,
    since: Nanos,
}

const SCALE: u64 = 1_000_000_000;

impl Throttle {
    /// A full bucket at time `now`.
    pub(super) const fn new(now: Nanos) -> Self {
        Self { level: BURST * SCALE, since: now }
    }

    /// Takes `units`; returns how long to wait before anything else is done.
    pub(super) fn pay(&mut self, units: u64, now: Nanos) -> Nanos {
        let passed = now.saturating_sub(self.since).0.min(BURST * SCALE);
        let level = self.level.saturating_add(passed * PER_SECOND).min(BURST * SCALE);
        let price = units.saturating_mul(SCALE);
        self.level = level.saturating_sub(price);
        let wait = Nanos(price.saturating_sub(level).div_ceil(PER_SECOND));
        // What comes in meanwhile is what the wait pays with.
        self.since = Nanos(now.0.max(self.since.0).saturating_add(wait.0));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    #[test]
    fn a_burst_is_free_and_a_flood_is_held_to_the_rate() {
        let mut throttle = Throttle::new(Nanos::ZERO);
        assert_eq!(throttle.pay(BURST, Nanos::ZERO), Nanos::ZERO);
        let mut now = Nanos::ZERO;
        for _ in 0..100 {
            now = now + throttle.pay(PER_SECOND, now);
        }
        assert_eq!(now, Nanos::from_secs(100));
        // What was waited for is not there to be spent again.
        assert_eq!(throttle.pay(PER_SECOND, now), SECOND);
    }

    #[test]
    fn an_idle_port_saves_up_no_more_than_a_burst() {
        let mut throttle = Throttle::new(Nanos::ZERO);
        let late = Nanos::from_secs(u64::from(u32::MAX));
        assert_eq!(throttle.pay(BURST + PER_SECOND, late), SECOND);
        assert!(throttle.pay(u64::MAX, late) > SECOND, "no number is too large");
    }
}
