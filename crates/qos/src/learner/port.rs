//! Keeps the learner's state for one port.

use penstock_units::{CyclesPerSecond, Nanos, PortId};

use super::lasting::Lasting;
use super::{Breach, Event, LearnConfig, Observation, PortLearning, Terms, bought, breach};
use crate::cost_model::{FCS, Rate, to_f64, whole_up};

/// Delivered fraction from which a port counts as getting its purchase.
const ENOUGH: f64 = 0.99;
/// Number of the last measured costs of which the learner takes the median.
const WINDOW: usize = 3;

/// A port that is not throttled keeps this many times its need for cycles.
const SPARE: f64 = 1.25;

/// In an interval, an entitlement at most doubles. A port with far too few cycles sends small
/// batches, in which each frame costs more than in the batches that more cycles permit.
const GROWS_MOST: f64 = 2.0;

/// Exponential average of medians of costs, which a single outlier does not change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RobustMean {
    last: [f64; WINDOW],
    seen: usize,
    mean: f64,
}

impl RobustMean {
    fn add(&mut self, value: f64, gain: f64) {
        self.last[self.seen % WINDOW] = value;
        self.seen += 1;
        let mut sorted = self.last;
        let known = &mut sorted[..self.seen.min(WINDOW)];
        known.sort_by(f64::total_cmp);
        // Of two values, the lower is used, because preemption only increases costs.
        let middle = known[(known.len() - 1) / 2];
        self.mean = if self.seen == 1 { middle } else { self.mean + gain * (middle - self.mean) };
    }

    /// The mean. Returns `None` if the average contains fewer than two costs.
    fn settled(&self) -> Option<f64> {
        (self.seen >= 2).then_some(self.mean)
    }

    fn value(&self) -> Option<f64> {
        (self.seen >= 1).then_some(self.mean)
    }
}

/// State of the learner for a port. The documentation of [`super`] defines the symbols of the
/// fields.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) terms: Terms,
    /// Current entitlement `E` of the port.
    pub(super) entitlement: CyclesPerSecond,
    /// Cycles per second that the port needs but did not get, because there was too little
    /// headroom.
    pub(super) short: CyclesPerSecond,
    /// Learned cost `c` of full batches in cycles per frame, measured while the port was throttled.
    full: RobustMean,
    /// Learned cost `c` of all batches, in cycles per frame.
    any: RobustMean,
    /// Trim `t`, which is a factor of the port's need for cycles.
    trim: f64,
    /// Delivered fraction `d` of the last interval with enough frames.
    delivered: Option<f64>,
    breach: Option<Breach>,
    /// Time for which the violation has lasted.
    breach_for: Nanos,
    /// Time for which the delivered fraction has been below [`ENOUGH`].
    less_for: Nanos,
    /// Time since the last violation in which the port sent inside its profile.
    inside_for: Nanos,
    drift: Lasting,
}

impl Port {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            entitlement: terms.base,
            terms,
            short: CyclesPerSecond(0),
            full: RobustMean::default(),
            any: RobustMean::default(),
            trim: 1.0,
            delivered: None,
            breach: None,
            breach_for: Nanos::ZERO,
            less_for: Nanos::ZERO,
            inside_for: Nanos::ZERO,
            drift: Lasting::default(),
        }
    }

    /// Returns the learner's state of the port after a change of its terms. If the port's contract
    /// is unchanged, the learner keeps the learned values.
    pub(super) fn with_terms(self, terms: Terms) -> Self {
        if terms == self.terms {
            return self;
        }
        if terms.contract != self.terms.contract || terms.contract.is_none() {
            return Self::new(terms);
        }
        // The ratio of entitlement to base is kept, because the cost of this VM's frames has not
        // changed.
        let part = to_f64(self.entitlement.0) / to_f64(self.terms.base.0.max(1));
        let entitlement = CyclesPerSecond(whole_up(to_f64(terms.base.0) * part));
        Self { terms, entitlement, ..self }
    }

    /// Returns the cycles per second that the port may have whatever other ports need: the larger
    /// of the port's base and the port's entitlement.
    fn own(&self) -> u64 {
        self.entitlement.0.max(self.terms.base.0)
    }

    pub(super) fn state(&self) -> PortLearning {
        let error = |cost: f64| cost / self.terms.model_cost - 1.0;
        let modelled = self.terms.model_cost > 0.0;
        let full_error = self.full.settled().filter(|_| modelled).map(error);
        let any_error = self.any.value().filter(|_| modelled).map(error);
        PortLearning {
            entitlement: self.entitlement,
            base: self.terms.base,
            model_error: full_error.or(any_error),
            full_error,
            delivered: self.delivered,
            breach: self.breach,
            breach_for: self.breach_for,
            less_for: self.less_for,
            short: self.short,
        }
    }

    /// Returns the model's error, if the port sent enough frames inside its profile in an interval
    /// that was seen just now.
    pub(super) fn error_now(&self, config: &LearnConfig, seen: &Observation) -> Option<f64> {
        let sent = seen.frames >= config.least(seen) && self.breach.is_none();
        self.state().model_error.filter(|_| sent)
    }

    /// Stores how many cycles per second the port lacks. Returns true if the port lacked no cycles
    /// before and now lacks some.
    pub(super) fn set_short(&mut self, short: u64) -> bool {
        let new = self.short.0 == 0 && short > 0;
        self.short = CyclesPerSecond(short);
        new
    }

    /// Evaluates an interval. Sets the entitlement that the port needs, up to the port's base.
    /// Returns the needed entitlement if it exceeds the base and the entitlement.
    pub(super) fn see(
        &mut self,
        config: &LearnConfig,
        seen: &Observation,
        mut tell: impl FnMut(&dyn Fn(PortId) -> Event),
    ) -> Option<u64> {
        let contract = self.terms.contract.clone()?;
        if seen.frames < config.least(seen) || seen.elapsed.0 == 0 {
            return None;
        }
        let frames = to_f64(seen.frames);
        let mean = to_f64(seen.bytes) / frames + to_f64(FCS);
        // A large segment has one lookup for many frames, so that a few new flows are many of few
        // lookups. They cost little per frame.
        let missed = seen.lookups.saturating_sub(seen.cache_hits);
        let hit_share = 1.0 - to_f64(missed) / frames;
        let seconds = to_f64(seen.elapsed.0) / 1e9;
        let (rate, promised) = bought(&contract);
        let passed = match contract.rate {
            Rate::Bits(_) => frames * mean * 8.0 / seconds,
            Rate::Packets(_) => frames / seconds,
        };
        self.delivered = (promised > 0.0).then(|| passed / promised);
        let lasts = |before: Nanos, does: bool| {
            if does { Nanos(before.0.saturating_add(seen.elapsed.0)) } else { Nanos::ZERO }
        };
        self.less_for = lasts(self.less_for, self.delivered.is_some_and(|part| part < ENOUGH));
        let breach = breach(config, &contract, mean, hit_share);
        self.breach_for = lasts(self.breach_for, breach.is_some());
        if !self.keeps_profile(config, breach, seen.elapsed, &mut tell) {
            return None;
        }
        let cost = to_f64(seen.cycles) / frames;
        self.any.add(cost, config.gain);
        if seen.throttled {
            self.full.add(cost, config.gain);
        }
        self.watch_drift(config, seen.elapsed, &mut tell);
        if !seen.throttled {
            self.short = CyclesPerSecond(0);
            self.give_back(config, rate, seconds);
            return None;
        }
        self.correct(config, rate, seen.backlogged)
    }

    /// Records that a violation of the profile begins or ends. Returns whether the port counts as
    /// inside its profile now.
    fn keeps_profile(
        &mut self,
        config: &LearnConfig,
        breach: Option<Breach>,
        elapsed: Nanos,
        tell: &mut impl FnMut(&dyn Fn(PortId) -> Event),
    ) -> bool {
        match (breach, self.breach) {
            (Some(breach), before) => {
                if before.is_none() {
                    tell(&|id| Event::Left(id, breach));
                }
                self.breach = Some(breach);
                self.inside_for = Nanos::ZERO;
                self.trim = 1.0;
                self.short = CyclesPerSecond(0);
                self.entitlement = self.entitlement.min(self.terms.base);
                false
            }
            (None, None) => true,
            (None, Some(_)) => {
                self.inside_for = Nanos(self.inside_for.0.saturating_add(elapsed.0));
                if self.inside_for < config.return_after {
                    return false;
                }
                self.breach = None;
                tell(&Event::Returned);
                true
            }
        }
    }

    fn watch_drift(
        &mut self,
        config: &LearnConfig,
        elapsed: Nanos,
        tell: &mut impl FnMut(&dyn Fn(PortId) -> Event),
    ) {
        let Some(error) = self.state().full_error else { return };
        let drifts = self.drift.is_on();
        let limit = if drifts { config.drift_limit / 2.0 } else { config.drift_limit };
        if self.drift.see(error.abs() > limit, elapsed, config.drift_after) {
            match drifts {
                false => tell(&|id| Event::Drift(id, error)),
                true => tell(&|id| Event::Settled(id, error)),
            }
        }
    }

    /// Slowly gives back cycles that a port that is not throttled does not need, by rule 4 in the
    /// documentation of [`super`]. The argument `rate` is the purchased rate `r` of the port in
    /// frames per second.
    fn give_back(&mut self, config: &LearnConfig, rate: f64, seconds: f64) {
        let part = (seconds * 1e9 / to_f64(config.give_back_after.0)).min(1.0);
        self.trim -= part * (self.trim - 1.0);
        // A batch that is not full costs more per frame, so this is at least what the port needs.
        let Some(cost) = self.any.value() else { return };
        // The port gets more than it bought, although its bucket limits nothing. A port at its
        // maximum rate exceeds its purchase by little, and still needs most of its trim.
        if !self.terms.capped
            && let Some(more) = self.delivered.map(|part| part - 1.0)
            && more > config.dead_band
        {
            self.trim = (self.trim - config.gain * more).max(1.0);
            self.entitlement.0 = self.entitlement.0.min(whole_up(rate * cost * self.trim));
            return;
        }
        let keeps = whole_up(rate * cost * self.trim * SPARE).max(self.terms.base.0);
        let excess = self.entitlement.0.saturating_sub(keeps);
        self.entitlement.0 -= whole_up(to_f64(excess) * part).min(excess);
    }

    /// Corrects the entitlement of a throttled port by rule 3 in the documentation of [`super`].
    /// The argument `rate` is the purchased rate `r` of the port in frames per second. Returns the
    /// needed entitlement if it exceeds the base and the entitlement.
    fn correct(&mut self, config: &LearnConfig, rate: f64, backlogged: bool) -> Option<u64> {
        let (cost, delivered) = (self.full.settled()?, self.delivered?);
        let need = |trim: f64| whole_up(rate * cost * trim);
        let missing = 1.0 - delivered;
        if missing > config.dead_band {
            // The entitlement suffices for the mean cost, but too little is delivered.
            if self.entitlement.0 >= need(self.trim) {
                self.trim = if backlogged {
                    to_f64(self.entitlement.0) / (rate * cost) + config.gain * missing
                } else {
                    let most = (1.0 + config.trim_max).max(self.trim);
                    (self.trim + config.gain * missing).min(most)
                };
            }
            let own = self.own();
            let most = whole_up(to_f64(own) * GROWS_MOST);
            let wanted = need(self.trim).min(most).max(self.entitlement.0);
            self.entitlement = CyclesPerSecond(wanted.min(own));
            if wanted > own {
                return Some(wanted);
            }
            self.short = CyclesPerSecond(0);
        } else {
            self.short = CyclesPerSecond(0);
            if -missing > config.dead_band {
                self.trim = (self.trim + config.gain * missing).max(1.0);
                self.entitlement = CyclesPerSecond(self.entitlement.0.min(need(self.trim)));
            }
        }
        None
    }
}
