//! Tells when the machine changes state: when the frames of all ports become more expensive, or
//! cheaper, at the same time.
//!
//! # Problem
//!
//! If one port's frames cost more than the model says, the port's traffic or its path may differ
//! from the calibration. If the frames of all ports do, the machine differs: another machine uses
//! the shared cache, the processor changed its frequency, or a hypervisor gives the host less.
//!
//! # Approach
//!
//! In each interval, the learner takes the model's error of each port that sent, and their median.
//! The machine counts as changed if the median exceeds [`super::LearnConfig::drift_limit`], and the
//! errors of [`TOGETHER`] of the ports have the median's sign and at least half of its size, for
//! [`super::LearnConfig::drift_after`]. The machine counts as it was calibrated again when the
//! median has been at most half of the limit for the same time.
//!
//! # Departures
//!
//! With fewer than [`PORTS_MIN`] ports, the learner cannot distinguish a change of the machine from
//! a change of a port.

use penstock_units::Nanos;

use super::lasting::Lasting;
use super::{Event, LearnConfig};

/// Smallest number of ports with a measured cost.
const PORTS_MIN: usize = 2;
/// Part of the ports whose errors must be alike.
const TOGETHER: f64 = 0.75;

/// A machine whose frames do not cost what they cost at the calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineState {
    /// Median over the ports of the model's relative error, `c/m − 1`.
    pub error: f64,
    /// Time for which the machine has been so.
    pub lasts: Nanos,
}

/// State of the machine, from the errors of all ports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    changed: Lasting,
    state: MachineState,
}

impl Machine {
    pub(super) const fn state(&self) -> Option<MachineState> {
        if self.changed.is_on() { Some(self.state) } else { None }
    }

    /// Evaluates the errors of the ports that sent in an interval of the length `elapsed`.
    pub(super) fn see(
        &mut self,
        config: &LearnConfig,
        errors: &mut [f64],
        elapsed: Nanos,
    ) -> Option<Event> {
        if errors.len() < PORTS_MIN {
            return None;
        }
        errors.sort_by(f64::total_cmp);
        // Of two middle errors, the smaller one decides.
        let (low, high) = (errors[(errors.len() - 1) / 2], errors[errors.len() / 2]);
        let error = if low.abs() <= high.abs() { low } else { high };
        let was = self.changed.is_on();
        let is = if was {
            error.abs() > config.drift_limit / 2.0
        } else {
            error.abs() > config.drift_limit && together(errors, error)
        };
        let lasts =
            if is { Nanos(self.state.lasts.0.saturating_add(elapsed.0)) } else { Nanos::ZERO };
        let turns = self.changed.see(is, elapsed, config.drift_after);
        // A change that has begun to end lasts until it has ended.
        if is || !was || turns {
            self.state = MachineState { error, lasts };
        }
        match (turns, was) {
            (false, _) => None,
            (true, false) => Some(Event::MachineChanged(error)),
            (true, true) => Some(Event::MachineSettled(error)),
        }
    }
}

/// Whether most of the errors are as large as `median`, and have its sign.
fn together(errors: &[f64], median: f64) -> bool {
    let alike = errors.iter().filter(|error| **error * median.signum() >= median.abs() / 2.0);
    let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    count(alike.count()) >= TOGETHER * count(errors.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn see(machine: &mut Machine, errors: &[f64]) -> Option<Event> {
        let config = LearnConfig { drift_after: Nanos::from_secs(2), ..LearnConfig::default() };
        machine.see(&config, &mut errors.to_vec(), SECOND)
    }

    #[test]
    fn all_ports_together_are_the_machine() {
        let mut machine = Machine::default();
        assert_eq!(see(&mut machine, &[0.05, 0.1, 0.14]), None);
        assert_eq!(see(&mut machine, &[0.3, 0.25, 0.4]), None, "it does not last yet");
        assert_eq!(see(&mut machine, &[0.3, 0.25, 0.4]), Some(Event::MachineChanged(0.3)));
        assert_eq!(see(&mut machine, &[0.2, 0.2, 0.3]), None);
        let state = MachineState { error: 0.2, lasts: Nanos::from_secs(3) };
        assert_eq!(machine.state(), Some(state), "its error and since when");
        assert_eq!(see(&mut machine, &[0.1, 0.1]), None, "the limits differ, so that it settles");
        assert_eq!(see(&mut machine, &[0.02, 0.05]), None);
        assert_eq!(see(&mut machine, &[0.02, 0.05]), Some(Event::MachineSettled(0.02)));
        assert_eq!(machine.state(), None);
        assert_eq!(see(&mut machine, &[-0.2, -0.3]), None);
        assert_eq!(see(&mut machine, &[-0.2, -0.3]), Some(Event::MachineChanged(-0.2)), "cheaper");
    }

    #[test]
    fn one_port_alone_is_not_the_machine() {
        for errors in [
            &[0.9][..],
            &[0.9, 0.0, 0.01],
            &[0.9, 0.05],
            &[0.9, 0.2, -0.9],
            &[0.3, 0.3, 0.3, 0.0, 0.0],
        ] {
            let mut machine = Machine::default();
            for _ in 0..5 {
                assert_eq!(see(&mut machine, errors), None, "{errors:?}");
            }
        }
    }

    #[test]
    fn a_port_that_is_silent_says_nothing() {
        let mut machine = Machine::default();
        for _ in 0..2 {
            let _ = see(&mut machine, &[0.3, 0.3]);
        }
        assert_eq!(see(&mut machine, &[]), None);
        assert_eq!(
            machine.state().unwrap().lasts,
            Nanos::from_secs(2),
            "nothing was seen since then"
        );
    }
}
