//! Periods, steps and margins of rate allocation.
//!
//! **Problem.** How fast a pair takes what is spare, and how fast it gives it back, is a matter of
//! what else is in its queue. **Rule.** One set of numbers, checked once. Three sets are known to
//! be good for something ([`RateSettings::cautious`], [`RateSettings::shared_queue`],
//! [`RateSettings::low_priority`]); the simulator sweeps around them.

use penstock_units::{BitsPerSecond, Nanos};

use super::{Parts, WHOLE};

/// How pairs' rates move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// Time between two changes of a pair's rate, 1 ms to 1 s.
    pub period: Nanos,
    /// A pair with a guarantee of [`Self::WEIGHT_ONE`] grows by this much a period.
    pub step: BitsPerSecond,
    /// Which part of its rate a pair gives up when all of its frames are lost or marked.
    pub cut: Parts,
    /// How many times its share of lost frames a loss counts; marks count once.
    pub loss_gain: u32,
    /// After marks a pair with a guarantee of [`Self::WEIGHT_ONE`] does not grow for so long;
    /// others in inverse proportion to their guarantees.
    pub hold: Nanos,
    /// The longest that a pair is held so.
    pub hold_max: Nanos,
    /// Whether a pair grows the more slowly the further it is above its guarantee.
    pub caution: bool,
    /// Which part of a VM's guarantee is not given to pairs, so that guarantees alone never fill a
    /// link.
    pub head_room: Parts,
    /// The highest rate of a pair: its interface's.
    pub most: BitsPerSecond,
}

/// Settings that no rate allocation can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Outside of its range.
    #[error("period of {} ns is out of range; write 1 ms to 1 s", .0.0)]
    Period(Nanos),
    /// A pair would never grow.
    #[error("step is 0, so no pair would grow; write at least 1 bit/s")]
    Step,
    /// More than all.
    #[error("{name} of {parts} parts per million is more than {most}; write less")]
    Parts {
        /// Which one.
        name: &'static str,
        /// What was written.
        parts: Parts,
        /// The most that it may be.
        most: Parts,
    },
    /// The interface would carry nothing.
    #[error("the highest rate is 0; write the interface's")]
    Most,
}

impl RateSettings {
    /// The guarantee at which a pair's weight is 1.
    pub const WEIGHT_ONE: BitsPerSecond = BitsPerSecond(100_000_000);

    /// For a queue in which all tenants' pairs meet: a tenth of every guarantee stays free, pairs
    /// wait after marks, and grow the more slowly the more they have.
    #[must_use]
    pub const fn cautious(most: BitsPerSecond) -> Self {
        Self {
            period: Nanos::from_millis(50),
            step: BitsPerSecond(2_000_000),
            cut: WHOLE / 4,
            loss_gain: 10,
            hold: Nanos::from_millis(50),
            hold_max: Nanos::from_secs(2),
            caution: true,
            head_room: WHOLE / 10,
            most,
        }
    }

    /// For a shared queue that weighted fair queuing keeps apart from tenants with a queue of their
    /// own: what it takes too much of is its own, so it need not be slow.
    #[must_use]
    pub const fn shared_queue(most: BitsPerSecond) -> Self {
        Self {
            period: Nanos::from_millis(50),
            step: BitsPerSecond(50_000_000),
            hold: Nanos(0),
            caution: false,
            head_room: 0,
            ..Self::cautious(most)
        }
    }

    /// For what is above the guarantee when it has the lower of two strict priorities: it cannot
    /// take what is guaranteed.
    #[must_use]
    pub const fn low_priority(most: BitsPerSecond) -> Self {
        Self { step: BitsPerSecond(100_000_000), ..Self::shared_queue(most) }
    }

    /// The same if they can work.
    ///
    /// # Errors
    /// A value out of its range.
    pub fn checked(self) -> Result<Self, SettingsError> {
        if self.period < Nanos::from_millis(1) || self.period > Nanos::from_secs(1) {
            return Err(SettingsError::Period(self.period));
        }
        if self.step.0 == 0 {
            return Err(SettingsError::Step);
        }
        if self.most.0 == 0 {
            return Err(SettingsError::Most);
        }
        // A pair that gives up all, or keeps all of its guarantee free, has no rate.
        let bounds = [("cut", self.cut, WHOLE), ("head_room", self.head_room, WHOLE / 2)];
        match bounds.into_iter().find(|(_, parts, most)| parts > most) {
            Some((name, parts, most)) => Err(SettingsError::Parts { name, parts, most }),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: BitsPerSecond = BitsPerSecond(1_000_000_000);

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for good in [
            RateSettings::cautious(NIC),
            RateSettings::shared_queue(NIC),
            RateSettings::low_priority(NIC),
        ] {
            assert_eq!(good.checked(), Ok(good));
        }
        let base = RateSettings::cautious(NIC);
        let bad = [
            (RateSettings { period: Nanos(0), ..base }, "period"),
            (RateSettings { step: BitsPerSecond(0), ..base }, "step"),
            (RateSettings { cut: WHOLE + 1, ..base }, "cut"),
            (RateSettings { head_room: 600_000, ..base }, "head_room"),
            (RateSettings { most: BitsPerSecond(0), ..base }, "highest"),
        ];
        for (settings, name) in bad {
            let error = settings.checked().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
