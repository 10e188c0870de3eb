//! A state that changes only if what it is about lasts for some time, so that noise is no event.

use penstock_units::Nanos;

/// A state that is on or off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lasting {
    on: bool,
    /// Time for which the opposite has been seen.
    opposite: Nanos,
}

impl Lasting {
    pub(super) const fn is_on(self) -> bool {
        self.on
    }

    /// Sees for a time `elapsed` that the state should be `on`. Returns whether the state changes,
    /// because the opposite has lasted for `after`.
    pub(super) fn see(&mut self, on: bool, elapsed: Nanos, after: Nanos) -> bool {
        if on == self.on {
            self.opposite = Nanos::ZERO;
            return false;
        }
        self.opposite = Nanos(self.opposite.0.saturating_add(elapsed.0));
        if self.opposite < after {
            return false;
        }
        *self = Self { on, opposite: Nanos::ZERO };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_changes_the_state() {
        let (second, mut state) = (Nanos::from_secs(1), Lasting::default());
        let mut see = |on| {
            let changed = state.see(on, second, Nanos::from_secs(3));
            (changed, state.is_on())
        };
        assert_eq!([see(true), see(true), see(false)], [(false, false); 3]);
        assert_eq!(
            [see(true), see(true), see(true)],
            [(false, false), (false, false), (true, true)]
        );
        assert_eq!([see(false), see(true), see(false)], [(false, true); 3]);
        assert_eq!([see(false), see(false)], [(false, true), (true, false)]);
    }
}
