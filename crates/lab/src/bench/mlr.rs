//! Multiple-loss-ratio search: finds the highest rate at which the loss ratio is at most a goal,
//! for several goals.
//!
//! # Source
//!
//! The search measures throughput as in RFC 2544 §26.1. The search follows the IETF's MLRsearch
//! (draft-ietf-bmwg-mlrsearch): short trials come first, goals share bounds, and long trials come
//! only at the end.
//!
//! # Quantities
//!
//! - `lower`: the highest rate at which a trial met the loss goal, or 0 before the first such
//!   trial.
//! - `upper`: the lowest rate at which a trial missed the loss goal, or the maximum rate.
//! - `width`: the search ends when `(upper - lower) / upper` is at most `width`.
//!
//! # Approach
//!
//! The search bisects between `lower` and `upper` with short trials until their relative distance
//! is at most `width`. Trials that add up to `confirm_secs` confirm `lower`, because a short trial
//! misses rare bursts of losses. If a trial at `lower` does not meet the goal, `lower` becomes the
//! new `upper`. After the failed trial, the search tries lower rates with a step that doubles, and
//! runs only long trials.
//!
//! # End
//!
//! If losses do not depend on the rate, no rate is ever confirmed. For example, a machine that
//! sometimes preempts the worker causes losses at any rate. The search ends after `limit_secs`
//! seconds of trials. If the search confirms no rate, it returns the highest rate at which every
//! trial met the goal, marked as not confirmed.
//!
//! # Departures
//!
//! The search rejects a rate after one failed trial of the final length, even if many trials met
//! the goal. Unlike MLRsearch, the search computes no conditional throughput.

use crate::rig::stats::to_f64;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Trial {
    pub offered: u64,
    /// Number of frames that did not arrive, including frames that a full ring refused.
    pub lost: u64,
    /// Total length of the trial with its repetitions, in seconds.
    pub secs: f64,
}

impl Trial {
    fn ratio(self) -> f64 {
        to_f64(self.lost) / to_f64(self.offered.max(1))
    }
}

/// Settings of a search for the highest rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// The highest rate that the search tries, in frames per second.
    pub max: f64,
    /// The search ends when the relative distance between its bounds is at most this fraction.
    pub width: f64,
    /// Length of one trial in seconds, before the search confirms a rate.
    pub short_secs: f64,
    /// Total length in seconds of the trials that confirm a rate.
    pub confirm_secs: f64,
    /// Length in seconds of one trial that confirms a rate.
    pub long_secs: f64,
    /// Total seconds of trials after which the search ends, even if the rate is not confirmed.
    pub limit_secs: f64,
}

/// Result of a search for the highest rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    /// The highest rate found, in frames per second. If no rate met the goal, the reported rate is
    /// 0.
    pub rate: f64,
    pub trials: u32,
    /// Whether trials confirmed the rate. The flag `confirmed` is `false` if the time ran out, or
    /// if no rate met the goal of the search.
    pub confirmed: bool,
}

/// The search ends if its rate falls below this fraction of the maximum rate.
const LOWEST: f64 = 1e-3;

/// Searches for the highest rate with a loss ratio of at most `goal`.
///
/// # Errors
///
/// Returns an error if `trial` fails. `trial` receives a rate in frames per second and a duration
/// in seconds.
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
        // The new lower bound may miss the goal. In that case it decreases until a rate meets the
        // goal.
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

struct Running<'a, T> {
    settings: &'a Search,
    goal: f64,
    trial: T,
    trials: u32,
    /// Total length of the trials so far, in seconds.
    secs: f64,
}

impl<T: FnMut(f64, f64) -> anyhow::Result<Trial>> Running<'_, T> {
    fn meets(&mut self, rate: f64, secs: f64) -> anyhow::Result<bool> {
        let trial = (self.trial)(rate, secs)?;
        self.trials += 1;
        self.secs += trial.secs;
        Ok(trial.ratio() <= self.goal)
    }

    /// Returns whether `rate` meets the goal in long trials. Returns `None` if the time limit came
    /// before the end of the trials.
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

    /// Simulates a switch that forwards at most `capacity` frames per second and drops the rest.
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
        // One trial of the search and seven that confirm its rate.
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

    /// The simulated machine takes the core from the worker every ten seconds, at any rate of
    /// frames.
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
