//! Online learning: corrects the cost model by the measured cost of frames.
//!
//! # Problem
//!
//! A model that is measured once is wrong by a few per cent for each VM, and the error changes over
//! time. If a VM's frames cost more than modelled, the VM gets less than it purchased. At the same
//! time, a VM must not gain by sending more expensive frames than it declared.
//!
//! # Source
//!
//! No paper describes such a learner. C2QoS §III-D only requires that coefficients follow the
//! deployment. The robust mean is a common one: a median of three, then an exponential average.
//!
//! # Quantities
//!
//! | Symbol | Meaning | Unit |
//! |---|---|---|
//! | `c`, `m` | learned cost, modelled cost | cycles per frame |
//! | `B` | base: the entitlement given by admission | cycles per second |
//! | `E` | current entitlement | cycles per second |
//! | `r` | purchased rate at the declared mean size | frames per second |
//! | `d` | delivered rate divided by purchased rate | - |
//!
//! # Approach
//!
//! In each interval, these rules apply to each port:
//!
//! 1. A port is *inside its profile* if its mean frame is within [`LearnConfig::size_tolerance`] of
//!    the declared mean. If it declared few flows, at least [`LearnConfig::hit_share_min`] of its
//!    frames must also hit the cache. Outside the profile, `E ← min(E, B)` at once and nothing is
//!    learned. The port counts as inside again after [`LearnConfig::return_intervals`] intervals in
//!    a row.
//! 2. The model's error `c/m − 1` is recorded for every port that sends. If the error of full
//!    batches exceeds [`LearnConfig::drift_limit`], an event reports the error. Another event
//!    reports when the error has returned to half of the limit or less.
//! 3. `E` changes only for a throttled port, because its bucket was the limit. The port's need is
//!    `n = r · c · t`, within [`LearnConfig::factor`] of `B`. The trim `t ≥ 1` grows slowly while
//!    `d < 1` although `E ≥ n` (losses outside of the bucket). It shrinks if `d > 1`.
//!     - If `d < 1`, `E ← max(E, n)`, as far as there is headroom.
//!     - If `d > 1`, `E ← min(E, n)`, because the model's cost was too high.
//! 4. Headroom is the capacity that admission left free. The sum of `max(B, E)` never exceeds the
//!    workers' capacity ([`Ledger`]). If headroom is short, the ports of one placement get the same
//!    fraction of their needs.
//!
//! # Example
//!
//! A VM purchased 100,000 frames per second. By the model a frame costs 1,000 cycles, so `B` is 100
//! M. A frame really costs 1,100 cycles, so 90,909 frames per second pass. After two intervals `c`
//! is 1,100 and `E` is 110 M, if 10 M were free.
//!
//! # Departures
//!
//! A batch that is not full costs more per frame, so a port that is not throttled appears more
//! expensive than it is. Its cost is reported and never used.
//!
//! # Cost
//!
//! An interval takes O(ports), plus O(2^workers) for each placement that wants more. Only the
//! control plane calls the learner.

mod port;

use std::collections::BTreeMap;

use penstock_units::{CyclesPerSecond, Nanos, PortId};

use crate::admission::{Ledger, WorkerSet};
use crate::cost_model::{Contract, Flows, Rate, to_f64};
use port::Port;

/// Parameters of the learner. The daemon uses the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnConfig {
    /// Minimum number of frames in an interval that is evaluated.
    pub frames_min: u64,
    /// Weight of a new cost in the average, above 0 up to 1.
    pub gain: f64,
    /// Largest deviation of `d` from 1 that is ignored.
    pub dead_band: f64,
    /// Permitted deviation of the mean frame from the declared mean, as a fraction of the declared
    /// mean.
    pub size_tolerance: f64,
    /// Smallest fraction of frames that must hit the cache if few flows were declared.
    pub hit_share_min: f64,
    /// Intervals inside the profile after which a port counts as compliant again.
    pub return_intervals: u32,
    /// Smallest and largest entitlement, as multiples of the base.
    pub factor: (f64, f64),
    /// Largest amount by which the trim may exceed 1.
    pub trim_max: f64,
    /// Relative error of the model above which drift is reported.
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

/// A port's contract, and the model's results for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The contract. `None` if an operator set the cycles. Nothing is then learned.
    pub contract: Option<Contract>,
    /// Modelled cost `m` in cycles per frame, including all coefficients.
    pub model_cost: f64,
    /// Base `B`: the entitlement given by admission.
    pub base: CyclesPerSecond,
    /// The workers that serve the port's queue pairs.
    pub workers: WorkerSet,
}

/// Growth of a port's counters in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Length of the interval.
    pub elapsed: Nanos,
    /// Frames received from the port, counted as on the wire: a segmentation request (TSO) counts
    /// as the frames that it becomes.
    pub frames: u64,
    /// Bytes of these frames, without FCS.
    pub bytes: u64,
    /// Cycles charged to the port.
    pub cycles: u64,
    /// Frames looked up. A segmentation request counts as one.
    pub lookups: u64,
    /// Lookups that hit the cache.
    pub cache_hits: u64,
    /// Whether frames waited at the port without cycles for a substantial part of the interval.
    pub throttled: bool,
}

/// How a port's traffic violates its profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// The mean frame of the port differs from the declared mean.
    Size {
        /// Declared mean size in bytes.
        declared: f64,
        /// Observed mean size in bytes.
        seen: f64,
    },
    /// The port declared few flows, but too few of its frames hit the cache.
    Flows {
        /// Observed fraction of frames that hit the cache.
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

/// A change to report to operators.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The port left its profile.
    Left(PortId, Breach),
    /// The port is inside its profile again.
    Returned(PortId),
    /// The model's relative error for the port exceeds the limit.
    Drift(PortId, f64),
    /// The model's relative error for the port is small again.
    Settled(PortId, f64),
    /// The port needs this many more cycles per second, and there is no headroom.
    Short(PortId, CyclesPerSecond),
}

/// State of the learner for one port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortLearning {
    /// Current entitlement `E`.
    pub entitlement: CyclesPerSecond,
    /// Base `B`: the entitlement given by admission.
    pub base: CyclesPerSecond,
    /// The model's error `c/m − 1` for reports. This is [`Self::full_error`] if it is known, else
    /// the error over all batches. `None` if no frames were observed.
    pub model_error: Option<f64>,
    /// The error `c/m − 1` of full batches. `None` if the port was throttled in fewer than two
    /// intervals.
    pub full_error: Option<f64>,
    /// `d` of the last interval with enough frames.
    pub delivered: Option<f64>,
    /// Violation of the profile. `None` if the port is inside its profile.
    pub breach: Option<Breach>,
    /// Cycles per second that the port needs but does not get for lack of headroom.
    pub short: CyclesPerSecond,
}

/// Result of an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Ports with a changed entitlement, and the new entitlement.
    pub changes: Vec<(PortId, CyclesPerSecond)>,
    /// Events of the interval, to be reported to operators.
    pub events: Vec<Event>,
}

/// The learner of one host.
#[derive(Clone, Debug)]
pub struct Learner {
    config: LearnConfig,
    capacity: Vec<CyclesPerSecond>,
    ports: BTreeMap<PortId, Port>,
}

impl Learner {
    /// A learner without ports for workers of these capacities.
    #[must_use]
    pub fn new(config: LearnConfig, capacity: &[CyclesPerSecond]) -> Self {
        Self { config, capacity: capacity.to_vec(), ports: BTreeMap::new() }
    }

    /// Capacity of each worker.
    #[must_use]
    pub fn capacity(&self) -> &[CyclesPerSecond] {
        &self.capacity
    }

    /// Sets the ports that claim cycles. If a port's terms are unchanged, its state stays. If only
    /// its base changed, for example because another VM arrived, its learned cost stays.
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

    /// State of a port. `None` if the port claims no cycles.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<PortLearning> {
        self.ports.get(&id).map(Port::state)
    }

    /// State of all ports, in order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, PortLearning)> + '_ {
        self.ports.iter().map(|(id, port)| (*id, port.state()))
    }

    /// Evaluates an interval. Ports without an observation stay unchanged.
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

    /// Grants the cycles that ports want beyond their reservation, as far as there is headroom.
    /// Ports with the fewest workers to choose from come first.
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

    /// Reservations on the workers: for each port the larger of base and entitlement.
    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(&self.capacity);
        for port in self.ports.values() {
            ledger.claim(port.terms.workers, port.reserved());
        }
        ledger
    }

    /// Takes back headroom that new ports need.
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

/// `r`, and the purchased rate in the contract's unit (bits or frames per second).
fn bought(contract: &Contract) -> (f64, f64) {
    let frames = contract.frames_per_second();
    match contract.rate {
        Rate::Bits(bits) => (frames, to_f64(bits.0)),
        Rate::Packets(_) => (frames, frames),
    }
}

/// Checks traffic against its contract's profile.
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
