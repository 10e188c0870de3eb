//! The machine's monotonic clock, which all processes of the machine share.

use nix::time::{ClockId, clock_gettime};
use penstock_units::Nanos;

/// Time since a fixed moment before the start of all running processes.
pub(crate) fn now() -> Nanos {
    // The call cannot fail: every kernel has this clock, and the buffer is on this stack.
    let Ok(at) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return Nanos(0) };
    let (seconds, nanos) = (at.tv_sec().unsigned_abs(), at.tv_nsec().unsigned_abs());
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_on() {
        let before = now();
        assert!(before > Nanos(0));
        assert!((0..10_000_000).any(|_| now() > before));
    }
}
