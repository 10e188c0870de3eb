//! Multiple-loss-ratio search: the highest rate with a loss of at most a goal, for several goals.
//!
//! # Source
//!
//! RFC 2544 §26.1 (throughput), and the IETF's MLRsearch (draft-ietf-bmwg-mlrsearch): short trials
//! first, bounds shared between goals, and long trials only at the end.
//!
//! # Quantities
//!
//! - `lower`: the highest rate known to meet the goal.
//! - `upper`: the lowest rate known not to meet the goal, or the maximum.
//! - `width`: the search ends when `(upper - lower) / upper` is at most this value.
//!
//! # Approach
//!
//! The search bisects between the bounds with short trials until they are within `width`. Then it
//! confirms `lower` with trials that add up to `confirm_secs`, because losses come in rare big
//! bursts that a short trial misses. If a trial at `lower` does not meet the goal, `lower` becomes
//! the new `upper`. The search continues below, with a step that doubles and with long trials only.
//!
//! # End
//!
//! If losses do not depend on the rate (a machine that takes the core away now and then), no rate
//! is ever confirmed. A search that has used up `limit_secs` of trials ends. It returns the highest
//! rate that met the goal in every trial at that rate, and says that the rate is not confirmed.
//!
//! # Departures
//!
//! A failed trial of the final length is not weighed against those that passed: one failure is
//! enough. Trials are not repeated to find a conditional throughput.

use crate::rig::stats::to_f64;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Trial {
    pub offered: u64,
    /// Frames that did not arrive, including those that the ring refused.
    pub lost: u64,
    /// Seconds of the trial, including its repetitions.
    pub secs: f64,
}

impl Trial {
    fn ratio(self) -> f64 {
        to_f64(self.lost) / to_f64(self.offered.max(1))
    }
}

/// Settings of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// The highest possible rate, in frames per second.
    pub max: f64,
    /// Relative width of the result.
    pub width: f64,
    /// Seconds of a trial before confirmation.
    pub short_secs: f64,
    /// Seconds of all trials that confirm the result.
    pub confirm_secs: f64,
    /// Seconds of one confirming trial.
    pub long_secs: f64,
    /// Seconds of trials after which the search ends without confirmation.
    pub limit_secs: f64,
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    /// The rate, in frames per second. 0: not even the lowest rate met the goal.
    pub rate: f64,
    pub trials: u32,
    /// Whether the rate was confirmed. If not, the search ran out of time.
    pub confirmed: bool,
}

/// Below this share of the maximum, the search gives up.
const LOWEST: f64 = 1e-3;

/// Searches for the highest rate with a loss ratio of at most `goal`.
///
/// # Errors
///
/// Returns the errors of `trial`, which gets a rate and a duration in seconds.
pub(crate) fn search(
    settings: &Search,
    goal: f64,
    trial: impl FnMut(f64, f64) -> anyhow::Result<Trial>,
) -> anyhow::Result<Found> {
    let Search { max, width, short_secs, .. } = *settings;
    let mut search = Running { settings, goal, trial, trials: 0, secs: 0.0 };
    // A goal that the maximum meets needs no search.
    let (mut lower, mut upper) = (0.0, max);
    if search.meets(max, short_secs)? {
        lower = max;
    }
    let (mut step, mut secs) = (width, short_secs);
    while upper >= max * LOWEST {
        if search.is_over() {
            return Ok(search.found(lower, false));
        }
        if (upper - lower) / upper > width {
            let middle = f64::midpoint(lower, upper);
            if search.meets(middle, secs)? {
                lower = middle;
            } else {
                upper = middle;
            }
            continue;
        }
        match search.confirms(lower)? {
            Some(true) => return Ok(search.found(lower, true)),
            None => return Ok(search.found(lower, false)),
            Some(false) => {}
        }
        // The new lower bound may not meet the goal. If it does not, go down until a rate does.
        secs = settings.long_secs;
        loop {
            upper = lower;
            lower *= 1.0 - step;
            step = (2.0 * step).min(0.5);
            if search.is_over() || lower < max * LOWEST {
                return Ok(search.found(0.0, false));
            }
            if search.meets(lower, secs)? {
                break;
            }
        }
    }
    Ok(search.found(0.0, false))
}

/// A search that is under way.
struct Running<'a, T> {
    settings: &'a Search,
    goal: f64,
    trial: T,
    trials: u32,
    /// Seconds of trials so far.
    secs: f64,
}

impl<T: FnMut(f64, f64) -> anyhow::Result<Trial>> Running<'_, T> {
    fn meets(&mut self, rate: f64, secs: f64) -> anyhow::Result<bool> {
        let trial = (self.trial)(rate, secs)?;
        self.trials += 1;
        self.secs += trial.secs;
        Ok(trial.ratio() <= self.goal)
    }

    /// Whether `rate` meets the goal in long trials. `None`: the rate met the goal until the time
    /// limit.
    fn confirms(&mut self, rate: f64) -> anyhow::Result<Option<bool>> {
        let mut confirmed = 0.0;
        while confirmed < self.settings.confirm_secs {
            if self.is_over() {
                return Ok(None);
            }
            if !self.meets(rate, self.settings.long_secs)? {
                return Ok(Some(false));
            }
            confirmed += self.settings.long_secs;
        }
        Ok(Some(true))
    }

    fn is_over(&self) -> bool {
        self.secs >= self.settings.limit_secs
    }

    fn found(&self, rate: f64, confirmed: bool) -> Found {
        Found { rate, trials: self.trials, confirmed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Search = Search {
        max: 10e6,
        width: 0.005,
        short_secs: 1.0,
        confirm_secs: 21.0,
        long_secs: 3.0,
        limit_secs: 300.0,
    };

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "frames")]
    fn frames(count: f64) -> u64 {
        count.round() as u64
    }

    /// A switch that forwards up to `capacity` and drops the rest.
    fn switch(capacity: f64) -> impl FnMut(f64, f64) -> anyhow::Result<Trial> {
        move |rate, secs| {
            let offered = rate * secs;
            let lost = (offered - capacity * secs).max(0.0);
            Ok(Trial { offered: frames(offered), lost: frames(lost), secs })
        }
    }

    #[test]
    fn both_goals_are_found_within_their_width() {
        for capacity in [9.9e6, 6.66e6, 1.0e6, 123_456.0] {
            let ndr = search(&SETTINGS, 0.0, switch(capacity)).unwrap();
            assert!(ndr.rate <= capacity * 1.000_001, "{capacity}: {ndr:?}");
            assert!(ndr.rate >= capacity * 0.99, "{capacity}: {ndr:?}");
            let pdr = search(&SETTINGS, 0.005, switch(capacity)).unwrap();
            let edge = capacity / 0.995;
            assert!(pdr.rate <= edge * 1.000_001 && pdr.rate >= edge * 0.99, "{pdr:?}");
            assert!(ndr.trials < 40 && pdr.trials < 40, "{ndr:?} {pdr:?}");
        }
    }

    #[test]
    fn the_maximum_itself_may_be_the_answer() {
        let found = search(&SETTINGS, 0.0, switch(11e6)).unwrap();
        assert!((found.rate - 10e6).abs() < 1.0);
        // The first trial, and those that confirm it.
        assert_eq!(found.trials, 1 + 7);
    }

    #[test]
    fn a_loss_that_only_long_trials_show_lowers_the_answer() {
        let mut clean = switch(8e6);
        let found = search(&SETTINGS, 0.0, |rate, secs| {
            let mut trial = clean(rate, secs)?;
            if secs > 1.0 && rate > 6e6 {
                trial.lost += 1;
            }
            Ok(trial)
        })
        .unwrap();
        assert!((5.7e6..=6e6).contains(&found.rate), "{found:?}");
    }

    #[test]
    fn a_switch_that_always_loses_ends_the_search() {
        let lossy =
            |rate: f64, secs: f64| Ok(Trial { offered: frames(rate * secs), lost: 1, secs });
        let found = search(&SETTINGS, 0.0, lossy).unwrap();
        assert!(found.rate.abs() < 1e-9 && !found.confirmed && found.trials < 100, "{found:?}");
    }

    /// A machine that takes the core away every ten seconds, whatever the rate.
    #[test]
    fn losses_that_do_not_depend_on_the_rate_end_the_search_in_time() {
        let mut at = 0.0;
        let found = search(&SETTINGS, 0.0, |rate, secs| {
            let before = at;
            at += secs;
            let taken = (before / 10.0).floor() < (at / 10.0).floor();
            Ok(Trial { offered: frames(rate * secs), lost: taken.into(), secs })
        })
        .unwrap();
        assert!(!found.confirmed, "{found:?}");
        assert!((SETTINGS.limit_secs..SETTINGS.limit_secs + 4.0).contains(&at), "{at}");
    }
}
