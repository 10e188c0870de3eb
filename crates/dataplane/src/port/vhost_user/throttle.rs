//! Limits the work that a driver may cause in its session.
//!
//! # Problem
//! A driver's messages slow other ports down. An exchange of a ring is a request to the worker, and
//! a memory map is work under a lock of the whole process. A driver could send such messages or
//! connect without end.
//!
//! # Approach
//! A token bucket for each port counts units of about the cost of a small message. A driver that
//! has overdrawn its bucket waits in its port's own thread while its rings continue. Starting eight
//! queue pairs takes some 400 units. The bucket survives the connection.

use penstock_units::Nanos;

/// Units of a message.
pub(super) const MESSAGE: u64 = 1;
/// Units of a request to the worker.
pub(super) const EXCHANGE: u64 = 4;
/// Units of creating one mapping and removing another.
pub(super) const MAPPING: u64 = 32;
/// Units of a connection.
pub(super) const CONNECTION: u64 = 32;
/// Units that a port may spend at once.
const BURST: u64 = 4_096;
/// Units that a port may spend per second in the long run: 512 messages, 128 exchanges or 16 maps.
const PER_SECOND: u64 = 512;

/// The bucket of one port.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Level of the bucket in units times nanoseconds per second, so that rounding loses nothing.
    level: u64,
    since: Nanos,
}

const SCALE: u64 = 1_000_000_000;

impl Throttle {
    /// A bucket that is full at time `now`.
    pub(super) const fn new(now: Nanos) -> Self {
        Self { level: BURST * SCALE, since: now }
    }

    /// Takes `units` and returns the time to wait before the next operation.
    pub(super) fn pay(&mut self, units: u64, now: Nanos) -> Nanos {
        let passed = now.saturating_sub(self.since).0.min(BURST * SCALE);
        let level = self.level.saturating_add(passed * PER_SECOND).min(BURST * SCALE);
        let price = units.saturating_mul(SCALE);
        self.level = level.saturating_sub(price);
        let wait = Nanos(price.saturating_sub(level).div_ceil(PER_SECOND));
        // The units that arrive during the wait pay for the overdraft.
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
        // The units that paid for the wait cannot be spent again.
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
