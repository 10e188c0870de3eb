//! Limits the number of log messages about failing vhost-user sessions.
//!
//! # Problem
//! If a hypervisor's settings do not fit its port, the hypervisor connects several times per second
//! for as long as its guest runs. All attempts of a hypervisor with wrong settings fail for the
//! same reason.
//!
//! # Approach
//! The switch logs a cause of failure when the cause is new, and then after pauses that double each
//! time. The log message contains the number of failures since the last message. The limit on log
//! messages does not slow down the attempts to connect.

use penstock_units::Nanos;

const FIRST_PAUSE: Nanos = Nanos::from_secs(10);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(3_600);
/// If a cause of failure does not recur within this time after its pause, the cause counts as new.
const FORGET: Nanos = Nanos::from_secs(60);
/// Number of causes of failure that a port remembers. A driver may fail for several reasons in
/// turn.
const CAUSES: usize = 4;

#[derive(Debug)]
struct Cause {
    text: String,
    /// Number of failures since the cause was last logged.
    times: u64,
    last: Nanos,
    /// Time from which the switch logs the cause of failure again.
    due: Nanos,
    pause: Nanos,
}

/// Recent causes of one kind of failure at one port.
#[derive(Debug, Default)]
pub(super) struct Attempts(Vec<Cause>);

impl Attempts {
    /// Records that an attempt failed at time `now` for the reason `text`. If the failure should be
    /// logged now, returns the number of failures since the last log entry.
    pub(super) fn failed(&mut self, text: &str, now: Nanos) -> Option<u64> {
        self.0.retain(|cause| now <= cause.last + cause.pause + FORGET);
        let Some(cause) = self.0.iter_mut().find(|cause| cause.text == text) else {
            if self.0.len() == CAUSES {
                self.0.remove(0);
            }
            let (text, pause) = (text.to_owned(), FIRST_PAUSE);
            self.0.push(Cause { text, times: 0, last: now, due: now + pause, pause });
            return Some(1);
        };
        cause.times += 1;
        cause.last = now;
        if now < cause.due {
            return None;
        }
        cause.pause = (cause.pause + cause.pause).min(LONGEST_PAUSE);
        cause.due = now + cause.pause;
        Some(core::mem::take(&mut cause.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_when_it_is_new_and_ever_more_rarely_then() {
        let mut attempts = Attempts::default();
        // Four failures a second for an hour.
        let quarter = |n: u64| Nanos(n * 250_000_000);
        let logged: Vec<_> = (0..4 * 3_600)
            .filter_map(|n| attempts.failed("queues", quarter(n)).map(|times| (n / 4, times)))
            .collect();
        let seconds: Vec<u64> = logged.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 10, 30, 70, 150, 310, 630, 1270, 2550]);
        assert_eq!(logged.iter().map(|(_, times)| times).sum::<u64>(), 4 * 2550 + 1);
        // Another cause is logged at once, and the first cause still counts as known.
        assert_eq!(attempts.failed("features", quarter(4 * 3_600)), Some(1));
        assert_eq!(attempts.failed("queues", quarter(4 * 3_600 + 1)), None);
        assert_eq!(attempts.failed("features", quarter(4 * 3_600 + 2)), None);
        // A day later both causes count as new.
        assert_eq!(attempts.failed("features", Nanos::from_secs(90_000)), Some(1));
    }

    #[test]
    fn many_causes_take_no_room() {
        let mut attempts = Attempts::default();
        for n in 0..1_000 {
            assert_eq!(attempts.failed(&n.to_string(), Nanos(n)), Some(1));
            assert!(attempts.0.len() <= CAUSES);
        }
    }
}
