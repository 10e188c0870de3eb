//! Online learning: the cost model corrected by what frames really cost.
//!
//! **Problem.** A model that is measured once is wrong by some per cent for every VM and hour; a
//! VM whose frames cost more than the model says gets less than it bought. But a VM must not get
//! more by sending dearer frames than it declared.
//!
//! **Source.** None of the papers has it; C2QoS §III-D asks only that coefficients follow the
//! deployment. The robust mean is the usual one: median of three, then an exponential average.
//!
//! **Quantities.** In cycles per frame: `c` the learned cost, `m` the model's. In cycles per
//! second: `B` the base (what admission gave), `E` the entitlement. `r` the rate bought, frames
//! per second at the declared mean size. `d` what was delivered over what was bought, in the
//! contract's own unit.
//!
//! **Rule.** At each interval, for each port:
//! 1. It is *inside its profile* if its mean frame is within [`LearnConfig::size_tolerance`] of
//!    the declared one and, if it declared few flows, at least [`LearnConfig::hit_share_min`] of
//!    its frames hit the cache. Outside: `E ← min(E, B)` at once and nothing is learned; inside
//!    again after [`LearnConfig::return_intervals`] intervals in a row.
//! 2. The model's error `c/m − 1` is kept for every port that sends. If that of full batches is
//!    beyond [`LearnConfig::drift_limit`], a warning says so, and another message when it is back
//!    within half of that.
//! 3. Only of a port that was held back (throttled) is `E` changed: it is the bucket that limited
//!    it. The need is `n = r · c · t`, within [`LearnConfig::factor`] of `B`; the trim `t ≥ 1`
//!    grows slowly while `d < 1` although `E ≥ n` (what is lost beside the bucket), and shrinks
//!    when `d > 1`.
//!    - `d < 1`: `E ← max(E, n)`, as far as there is head-room;
//!    - `d > 1`: `E ← min(E, n)`: the model was too generous.
//! 4. Head-room is what admission left free: over all ports `max(B, E)` never exceeds what their
//!    workers have ([`Ledger`]). If it does not suffice the ports of one placement get the same
//!    part of what they need.
//!
//! **Example.** Bought 100,000 frames per second, the model says 1,000 cycles, so `B` = 100 M. A
//! frame really costs 1,100: 90,909 frames per second pass. After two intervals `c` = 1,100 and
//! `E` = 110 M, if 10 M were free.
//!
//! **Departures.** A batch that is not full costs more per frame, so a port that is not held back
//! seems dearer than it is; its cost is reported and never used.
//!
//! **Cost.** O(ports) an interval, plus O(2^workers) for each placement that wants more; for
//! control.

mod port;

use std::collections::BTreeMap;

use penstock_units::{CyclesPerSecond, Nanos, PortId};

use crate::admission::{Ledger, WorkerSet};
use crate::cost_model::{Contract, Flows, Rate, to_f64};
use port::Port;

/// How it learns. The default is what the daemon uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnConfig {
    /// Fewer frames in an interval say nothing.
    pub frames_min: u64,
    /// The part of a new cost in the average, above 0 to 1.
    pub gain: f64,
    /// Deviations from what was bought that are left alone.
    pub dead_band: f64,
    /// How far the mean frame may be from the declared one, as a part of it.
    pub size_tolerance: f64,
    /// The least part of frames that hit the cache, if few flows were declared.
    pub hit_share_min: f64,
    /// Intervals inside the profile after which a port is taken for compliant again.
    pub return_intervals: u32,
    /// Least and greatest entitlement, as parts of the base.
    pub factor: (f64, f64),
    /// The greatest trim, beyond 1.
    pub trim_max: f64,
    /// A model's error beyond this is reported.
    pub drift_limit: f64,
}

impl Default for LearnConfig {
    fn default() -> Self {
        Self {
            frames_min: 1_000,
            gain: 0.5,
            dead_band: 0.002,
            size_tolerance: 0.1,
            hit_share_min: 0.9,
            return_intervals: 3,
            factor: (0.7, 1.3),
            trim_max: 0.05,
            drift_limit: 0.15,
        }
    }
}

/// What a port bought and what the model made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// What it bought. `None`: its cycles were set by hand, and nothing is learned.
    pub contract: Option<Contract>,
    /// `m`, all coefficients included.
    pub model_cost: f64,
    /// `B`.
    pub base: CyclesPerSecond,
    /// The workers that have its queue pairs.
    pub workers: WorkerSet,
}

/// What a port's counters grew by in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The interval.
    pub elapsed: Nanos,
    /// Frames taken from it, as they are on a wire: a segmentation request (TSO) counts as the
    /// frames it becomes.
    pub frames: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Cycles charged to it.
    pub cycles: u64,
    /// Frames that were looked up: a segmentation request is one.
    pub lookups: u64,
    /// Frames that hit the cache.
    pub cache_hits: u64,
    /// Whether it had frames waiting and no cycles for them, for a good part of the interval.
    pub throttled: bool,
}

/// Which part of its profile a port does not keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// Its mean frame.
    Size {
        /// Declared.
        declared: f64,
        /// Seen.
        seen: f64,
    },
    /// It declared few flows and this part of its frames hits the cache.
    Flows {
        /// Seen.
        hit_share: f64,
    },
}

impl core::fmt::Display for Breach {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Size { declared, seen } => {
                write!(f, "frames of {seen:.0} bytes in the mean, {declared:.0} were declared")
            }
            Self::Flows { hit_share } => {
                let percent = hit_share * 100.0;
                write!(
                    f,
                    "a single flow was declared and {percent:.0} % of its frames hit the cache"
                )
            }
        }
    }
}

/// Something worth telling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// It no longer sends what it declared.
    Left(PortId, Breach),
    /// It does again.
    Returned(PortId),
    /// The model's error is beyond the limit.
    Drift(PortId, f64),
    /// It is no longer.
    Settled(PortId, f64),
    /// It needs this many cycles per second more, and there is no head-room.
    Short(PortId, CyclesPerSecond),
}

/// What is known of a port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortLearning {
    /// `E`.
    pub entitlement: CyclesPerSecond,
    /// `B`.
    pub base: CyclesPerSecond,
    /// `c/m − 1`, to be reported and nothing else: [`Self::full_error`] if there is one, else that
    /// of all batches. `None` while nothing was seen.
    pub model_error: Option<f64>,
    /// `c/m − 1` of full batches. `None` if the port was held back in fewer than two intervals.
    pub full_error: Option<f64>,
    /// `d` of the last interval with enough frames.
    pub delivered: Option<f64>,
    /// What it does not keep to; `None`: it is inside its profile.
    pub breach: Option<Breach>,
    /// Cycles per second it needs more and there is no head-room for.
    pub short: CyclesPerSecond,
}

/// What an interval brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Entitlements that changed.
    pub changes: Vec<(PortId, CyclesPerSecond)>,
    /// What to tell.
    pub events: Vec<Event>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Learner {
    config: LearnConfig,
    capacity: Vec<CyclesPerSecond>,
    ports: BTreeMap<PortId, Port>,
}

impl Learner {
    /// Of workers with these capacities, without ports.
    #[must_use]
    pub fn new(config: LearnConfig, capacity: &[CyclesPerSecond]) -> Self {
        Self { config, capacity: capacity.to_vec(), ports: BTreeMap::new() }
    }

    /// What the workers have.
    #[must_use]
    pub fn capacity(&self) -> &[CyclesPerSecond] {
        &self.capacity
    }

    /// The ports there are now, all that claim cycles. Of a port whose terms did not change what
    /// was learned stays; of one whose base alone changed (another VM came) the cost stays.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (PortId, Terms)>) {
        let mut before = core::mem::take(&mut self.ports);
        for (id, terms) in ports {
            let port = match before.remove(&id) {
                Some(port) => port.with_terms(terms),
                None => Port::new(terms),
            };
            self.ports.insert(id, port);
        }
        self.keep_within_capacity();
    }

    /// What is known of a port.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<PortLearning> {
        self.ports.get(&id).map(Port::state)
    }

    /// What is known of all ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, PortLearning)> + '_ {
        self.ports.iter().map(|(id, port)| (*id, port.state()))
    }

    /// An interval is over. Ports that are not named were not seen.
    pub fn step(&mut self, seen: impl IntoIterator<Item = (PortId, Observation)>) -> Step {
        let mut step = Step::default();
        let before: BTreeMap<PortId, CyclesPerSecond> =
            self.ports.iter().map(|(id, port)| (*id, port.entitlement)).collect();
        let mut wishes: BTreeMap<WorkerSet, Vec<(PortId, u64)>> = BTreeMap::new();
        for (id, observation) in seen {
            let Some(port) = self.ports.get_mut(&id) else { continue };
            let wish = port.see(&self.config, &observation, |event| step.events.push(event(id)));
            if let Some(wanted) = wish.filter(|wanted| *wanted > port.reserved()) {
                wishes.entry(port.terms.workers).or_default().push((id, wanted));
            }
        }
        self.grant(wishes, &mut step.events);
        let changed =
            self.ports.iter().filter(|(id, port)| before.get(id) != Some(&port.entitlement));
        step.changes = changed.map(|(id, port)| (*id, port.entitlement)).collect();
        step
    }

    /// Gives what is wanted beyond what is reserved, as far as there is head-room: the ports with
    /// the fewest workers to choose from first.
    fn grant(&mut self, wishes: BTreeMap<WorkerSet, Vec<(PortId, u64)>>, events: &mut Vec<Event>) {
        let mut ledger = self.ledger();
        let mut wishes: Vec<_> = wishes.into_iter().collect();
        wishes.sort_by_key(|(workers, _)| workers.len());
        for (workers, wishes) in wishes {
            let reserved = |id: &PortId| self.ports.get(id).map_or(0, Port::reserved);
            let more: Vec<u64> =
                wishes.iter().map(|(id, wanted)| wanted.saturating_sub(reserved(id))).collect();
            let sum = more.iter().copied().fold(0, u64::saturating_add);
            let room = ledger.room(workers).0.min(sum);
            for ((id, wanted), more) in wishes.into_iter().zip(more) {
                let Some(port) = self.ports.get_mut(&id) else { continue };
                let part = u128::from(more) * u128::from(room) / u128::from(sum.max(1));
                let granted = u64::try_from(part).unwrap_or(u64::MAX).min(more);
                ledger.claim(workers, granted);
                port.entitlement = CyclesPerSecond(wanted - (more - granted));
                if port.set_short(more - granted) {
                    events.push(Event::Short(id, port.short));
                }
            }
        }
    }

    /// What is reserved on the workers: of each port the greater of base and entitlement.
    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(&self.capacity);
        for port in self.ports.values() {
            ledger.claim(port.terms.workers, port.reserved());
        }
        ledger
    }

    /// New ports may have taken the head-room that others had been given.
    fn keep_within_capacity(&mut self) {
        let raised: Vec<PortId> = (self.ports.iter())
            .filter(|(_, port)| port.entitlement > port.terms.base)
            .map(|(id, _)| *id)
            .collect();
        let mut ledger = Ledger::new(&self.capacity);
        for port in self.ports.values() {
            ledger.claim(port.terms.workers, port.terms.base.0);
        }
        for id in raised {
            let Some(port) = self.ports.get_mut(&id) else { continue };
            let more = port.entitlement.0 - port.terms.base.0;
            let granted = more.min(ledger.room(port.terms.workers).0);
            ledger.claim(port.terms.workers, granted);
            port.entitlement = CyclesPerSecond(port.terms.base.0 + granted);
        }
    }
}

/// `r`, and what the contract delivers in its own unit: bits or frames per second.
fn bought(contract: &Contract) -> (f64, f64) {
    let frames = contract.frames_per_second();
    match contract.rate {
        Rate::Bits(bits) => (frames, to_f64(bits.0)),
        Rate::Packets(_) => (frames, frames),
    }
}

/// Whether traffic breaks its contract's profile.
fn breach(config: &LearnConfig, contract: &Contract, mean: f64, hit_share: f64) -> Option<Breach> {
    let declared = contract.sizes.mean();
    if (mean - declared).abs() > config.size_tolerance * declared {
        return Some(Breach::Size { declared, seen: mean });
    }
    let few = contract.flows == Flows::Single;
    (few && hit_share < config.hit_share_min).then_some(Breach::Flows { hit_share })
}

#[cfg(test)]
mod tests;
