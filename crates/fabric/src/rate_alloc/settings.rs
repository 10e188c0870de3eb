//! Defines the periods, steps and margins of rate allocation.
//!
//! The right speed at which a pair takes and returns spare bandwidth depends on the other traffic
//! in its queue. The functions [`RateSettings::cautious`] and [`RateSettings::shared_queue`] return
//! settings for two kinds of traffic.

use penstock_units::{BitsPerSecond, Nanos};

use super::{Parts, WHOLE};

/// Settings that determine how the rate of a pair changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// Time between two changes of a pair's rate, 1 ms to 1 s.
    pub period: Nanos,
    /// Growth of the rate per period in bit/s, for a pair with a guarantee of [`Self::WEIGHT_ONE`].
    pub step: BitsPerSecond,
    /// Fraction by which a pair's rate is reduced if all its frames are lost or marked, at most 1.
    pub cut: Parts,
    /// Factor by which the fraction of lost frames is multiplied before the reduction. The fraction
    /// of marked frames is not multiplied by `loss_gain`.
    pub loss_gain: u32,
    /// Time after a loss or mark in which the rate of a pair with a guarantee of
    /// [`Self::WEIGHT_ONE`] does not grow. For other guarantees, the time without growth is
    /// inversely proportional to the guarantee.
    pub hold: Nanos,
    /// Maximum time after a loss or mark in which the rate does not grow, for pairs with small
    /// guarantees.
    pub hold_max: Nanos,
    /// True if the growth of a rate slows down as the rate rises above the guarantee.
    pub caution: bool,
    /// Fraction of a VM's guarantee that is not divided among pairs, so that guarantees alone never
    /// fill a link.
    pub head_room: Parts,
    /// Highest rate of a pair in bit/s, which is the rate of the host's interface.
    pub most: BitsPerSecond,
}

/// Reason why the settings of rate allocation are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The time between two changes of a pair's rate is below 1 ms or above 1 s.
    #[error("period of {} ns is out of range; write 1 ms to 1 s", .0.0)]
    Period(Nanos),
    /// The setting `step` is 0, so no rate would ever grow.
    #[error("step is 0, so no rate would grow; write at least 1 bit/s")]
    Step,
    /// A setting that is a fraction exceeds its largest permitted value.
    #[error("{name} of {parts} parts per million is too large; write at most {most}")]
    Parts {
        /// Name of the setting that is too large.
        name: &'static str,
        /// Value, in parts per million, of the setting that is too large.
        parts: Parts,
        /// Largest permitted value, in parts per million, of the setting that is too large.
        most: Parts,
    },
    /// The setting `most` (the highest rate of a pair) is 0.
    #[error("the highest rate is 0; write the rate of the interface")]
    Most,
}

impl RateSettings {
    /// Guarantee at which a pair's weight is 1, in bit/s.
    pub const WEIGHT_ONE: BitsPerSecond = BitsPerSecond(100_000_000);

    /// Returns settings for a queue that the pairs of all tenants share. A tenth of each VM's
    /// guarantee is not divided among the VM's pairs. After a loss or mark, the rate of a pair with
    /// a guarantee of 100 Mbit/s does not grow for 50 ms. The growth of a pair's rate slows down as
    /// the rate rises above the pair's guarantee.
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

    /// Returns settings for the shared queue of a port on which other tenants have their own
    /// weighted queues. Pairs in the shared queue can take bandwidth only from other pairs in the
    /// queue, so their rates may grow fast.
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

    /// Checks the settings, and returns them if they are valid.
    ///
    /// # Errors
    /// Returns an error if `period`, `step`, `most`, `cut` or `head_room` is out of its range.
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
        // A cut of more than the whole rate, or a headroom of more than half, is invalid.
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
        for good in [RateSettings::cautious(NIC), RateSettings::shared_queue(NIC)] {
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
