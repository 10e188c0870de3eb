//! Periods, steps and margins of rate allocation.
//!
//! How fast a pair should take and return spare bandwidth depends on the other traffic in its
//! queue. Three sets of values are known to work, each for one purpose: [`RateSettings::cautious`],
//! [`RateSettings::shared_queue`] and [`RateSettings::low_priority`]. The simulator also tries
//! values around these sets.

use penstock_units::{BitsPerSecond, Nanos};

use super::{Parts, WHOLE};

/// How rates of pairs change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// Time between two changes of a pair's rate, 1 ms to 1 s.
    pub period: Nanos,
    /// Growth per period of a pair with a guarantee of [`Self::WEIGHT_ONE`].
    pub step: BitsPerSecond,
    /// Fraction of its rate that a pair gives up if all its frames are lost or marked.
    pub cut: Parts,
    /// Factor on the fraction of lost frames. The fraction of marked frames has no factor.
    pub loss_gain: u32,
    /// Time after a loss or mark in which a pair with a guarantee of [`Self::WEIGHT_ONE`] does not
    /// grow. The time is inversely proportional to the pair's guarantee.
    pub hold: Nanos,
    /// Longest time without growth.
    pub hold_max: Nanos,
    /// Whether a pair grows more slowly the further it is above its guarantee.
    pub caution: bool,
    /// Fraction of a VM's guarantee that is not divided among pairs, so that guarantees alone never
    /// fill a link.
    pub head_room: Parts,
    /// Highest rate of a pair, which is the rate of its interface.
    pub most: BitsPerSecond,
}

/// Why settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The period is outside its range.
    #[error("period of {} ns is out of range; write 1 ms to 1 s", .0.0)]
    Period(Nanos),
    /// The step is 0, so no pair would grow.
    #[error("step is 0, so no pair would grow; write at least 1 bit/s")]
    Step,
    /// A fraction is too large.
    #[error("{name} of {parts} parts per million is more than {most}; write less")]
    Parts {
        /// Name of the setting.
        name: &'static str,
        /// Value of the setting.
        parts: Parts,
        /// Largest permitted value of the setting.
        most: Parts,
    },
    /// The highest rate is 0.
    #[error("the highest rate is 0; write the interface's")]
    Most,
}

impl RateSettings {
    /// The guarantee at which a pair's weight is 1.
    pub const WEIGHT_ONE: BitsPerSecond = BitsPerSecond(100_000_000);

    /// Settings for a queue that the pairs of all tenants share. A tenth of each guarantee stays
    /// free. Pairs pause after marks, and they grow more slowly the more they have.
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

    /// Settings for a shared queue that weighted fair queuing separates from tenants with queues of
    /// their own. The queue can take bandwidth only from itself, so its pairs need not be slow.
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

    /// Settings for traffic above the guarantee that has the lower of two strict priorities. This
    /// traffic cannot take guaranteed bandwidth.
    #[must_use]
    pub const fn low_priority(most: BitsPerSecond) -> Self {
        Self { step: BitsPerSecond(100_000_000), ..Self::shared_queue(most) }
    }

    /// Returns the settings if they are valid.
    ///
    /// # Errors
    /// A value is out of its range.
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
        // A pair that gives up all of its rate, or keeps its whole guarantee free, has no rate.
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
    fn invalid_settings_are_refused_by_name() {
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
