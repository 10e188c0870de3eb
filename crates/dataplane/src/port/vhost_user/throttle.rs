//! Limits the work that a driver may cause in its vhost-user session.
//!
//! # Problem
//! A driver's vhost-user messages can slow down other ports. A change of a ring takes a request to
//! the worker, and a memory mapping takes a lock of the whole process. A hostile driver could send
//! messages, or connect, without end.
//!
//! # Approach
//! Each vhost-user port has a token bucket for the work that its driver causes. One token, called a
//! unit, is about the cost of a small vhost-user message. If a driver has overdrawn its bucket, the
//! port's own thread waits, and the driver's rings continue. The start of eight queue pairs takes
//! some 400 tokens of the vhost-user throttle. The port keeps its token bucket when the driver
//! reconnects.

use penstock_units::Nanos;

/// Cost of one message of the driver, in tokens of the vhost-user throttle.
pub(super) const MESSAGE: u64 = 1;
/// Cost of one request to the worker, in tokens of the vhost-user throttle.
pub(super) const EXCHANGE: u64 = 4;
/// Cost of creating one memory mapping and removing another mapping, in tokens of the vhost-user
/// throttle.
pub(super) const MAPPING: u64 = 32;
/// Cost of one connection of the driver, in tokens of the vhost-user throttle.
pub(super) const CONNECTION: u64 = 32;
/// Number of tokens that a port may spend at once.
const BURST: u64 = 4_096;
/// Average number of tokens that a port may spend per second, which is enough for 512 messages, 128
/// requests to the worker or 16 mappings.
const PER_SECOND: u64 = 512;

/// The token bucket of one port.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Level of the token bucket in billionths of a token, so that rounding loses nothing.
    level: u64,
    since: Nanos,
}

const SCALE: u64 = 1_000_000_000;

impl Throttle {
    /// Makes a token bucket that is full at time `now`.
    pub(super) const fn new(now: Nanos) -> Self {
        Self { level: BURST * SCALE, since: now }
    }

    /// Takes `units` tokens from the bucket, and returns the time for which the caller must wait
    /// before its next operation.
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
