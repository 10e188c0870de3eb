//! Corrects the entitlements of ports by the measured cost of their frames, while the switch runs.
//!
//! # Problem
//!
//! For each VM, a cost model that was measured once has an error of a few per cent, which changes
//! over time. If the frames of a VM cost more than modelled, the VM gets less than it purchased, so
//! it needs more cycles. A VM must not get more cycles because it sends more expensive frames than
//! it declared.
//!
//! # Source
//!
//! No paper describes a learner that corrects entitlements. C2QoS §III-D only requires that
//! coefficients depend on the deployment.
//!
//! # Quantities
//!
//! - `c` is the learned cost in cycles per frame: an exponential average of medians of three
//!   values.
//! - `m` is the cost of a frame by the cost model, in cycles.
//! - `B` is the base: the entitlement in cycles per second that admission control gave.
//! - `E` is the port's current entitlement in cycles per second.
//! - `r` is the rate that the port purchased in frames per second, at the declared mean size.
//! - `d` is the delivered fraction: the rate at which frames passed, divided by the purchased rate.
//! - The need `n` is the entitlement, in cycles per second, with which the port can send at its
//!   purchased rate `r`.
//! - `t` is the trim: a factor of at least 1 that allows for a cost that varies within an interval,
//!   and for frames that are lost outside of the bucket.
//!
//! # Approach
//!
//! In each interval, the learner applies these rules to each port:
//!
//! 1. A port is *inside its profile* if its mean frame size is within
//!    [`LearnConfig::size_tolerance`] of the declared mean. If the tenant declared few flows, at
//!    least [`LearnConfig::hit_share_min`] of the port's frames must also pass without a lookup
//!    that misses the cache. When a port leaves its profile, the learner immediately lowers the
//!    port's entitlement `E` to `min(E, B)`, and learns no costs. After
//!    [`LearnConfig::return_after`] without a violation, the port counts as inside its profile
//!    again.
//! 2. The learner records the model's error `c/m − 1` for every port that sends. If the model's
//!    error for full batches exceeds [`LearnConfig::drift_limit`], the learner reports an event.
//!    When the model's error falls to half of [`LearnConfig::drift_limit`], the learner reports
//!    another event.
//! 3. The entitlement `E` grows only for throttled ports, because the bucket limits the rate of no
//!    other port. A port's need for cycles is `n = r · c · t`. If the delivered fraction `d` is
//!    below 1 although `E ≥ n`, the learner increases the trim `t`: beyond `E / (r · c)` if the
//!    port had frames for the whole interval, and otherwise by at most [`LearnConfig::trim_max`],
//!    because the port may have offered too little. If the delivered fraction `d` is above 1, the
//!    learner decreases the trim `t`.
//!     - If the delivered fraction `d` is below 1, the learner sets the entitlement `E` to `max(E,
//!       n)`, up to the base `B` at once, and above `B` as far as the headroom permits, but at most
//!       to twice the larger of `E` and `B`. With more cycles, batches are larger, and each frame
//!       costs less.
//!     - If the delivered fraction `d` is above 1, the modelled cost was too high, and the learner
//!       sets the entitlement `E` to `min(E, n)`.
//! 4. If a port is not throttled, its trim decreases to 1, and its entitlement `E` to what its
//!    frames cost and a quarter more, but not below `B`. The time constant is
//!    [`LearnConfig::give_back_after`]. If the delivered fraction `d` is above 1, the trim
//!    decreases as for a throttled port, and the entitlement falls at once to what the purchased
//!    rate costs with this trim, because the bucket would not limit the port. A port that a
//!    rate limit keeps at its purchase ([`Terms::capped`]) is left out: more cycles give it no more
//!    than it bought, and cover costs that vary.
//! 5. Headroom is the capacity that is above the sum of all entitlements `E`. The sum of all
//!    entitlements never exceeds the workers' capacity ([`Ledger`]). So a port with `E < B` lends
//!    what it does not need. If it needs its base again, it gets the base at once, and the ports
//!    above their bases lose. If there is too little headroom, all ports on the same set of workers
//!    get the same fraction of their additional needs.
//!
//! # Example
//!
//! In an example, a VM purchased 100,000 frames per second. By the cost model, a frame costs 1,000
//! cycles, so the base `B` is 100 M cycles per second. In the example, a frame really costs 1,100
//! cycles, so only 90,909 frames per second pass. After two intervals of the example, the learned
//! cost `c` is 1,100 cycles. If the headroom suffices (10 M cycles per second), the entitlement `E`
//! becomes 110 M cycles per second.
//!
//! # Departures
//!
//! A batch that is not full costs more per frame, so the measured cost of a port that is not
//! throttled is too high. The learner reports the measured cost of a port that is not throttled,
//! but never raises an entitlement because of this cost.
//!
//! # Cost
//!
//! The evaluation of an interval takes O(ports), plus O(2^workers) for each distinct set of workers
//! with a port that needs more cycles. Only the control plane calls the learner.

mod lasting;
mod machine;
mod port;

use std::collections::BTreeMap;

use penstock_units::{CyclesPerSecond, Nanos, PortId};

use crate::admission::{Ledger, WorkerSet};
use crate::cost_model::{Contract, Flows, Rate, to_f64};
pub use machine::MachineState;

use machine::Machine;
use port::Port;

/// Parameters of the learner, with defaults that Penstock uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnConfig {
    /// The learner ignores an interval in which the port sent fewer frames than `frames_min`.
    pub frames_min: u64,
    /// The same for a throttled port. It is lower, because a port that gets far too few cycles
    /// cannot send many frames.
    pub frames_min_throttled: u64,
    /// Weight of a newly measured cost in the exponential average of costs, above 0 and at most 1.
    pub gain: f64,
    /// Largest deviation of the delivered fraction `d` from 1 that the learner ignores.
    pub dead_band: f64,
    /// Permitted deviation of a port's mean frame size from the declared mean, as a fraction of the
    /// declared mean.
    pub size_tolerance: f64,
    /// Smallest fraction of lookups that must hit the cache, if few flows were declared.
    pub hit_share_min: f64,
    /// Time without a violation, after which a port counts as inside its profile again.
    pub return_after: Nanos,
    /// Maximum of the trim minus 1, for a port that had no frames for a part of the interval. The
    /// trim is a factor in a port's need for cycles.
    pub trim_max: f64,
    /// Time constant with which a port that is not throttled loses cycles that it does not need.
    pub give_back_after: Nanos,
    /// Relative error of the model above which drift is reported.
    pub drift_limit: f64,
    /// Time for which the error must last before drift, or its end, is reported.
    pub drift_after: Nanos,
}

impl LearnConfig {
    /// The parameters that Penstock uses.
    pub const DEFAULT: Self = Self {
        frames_min: 1_000,
        frames_min_throttled: 50,
        gain: 0.5,
        dead_band: 0.002,
        size_tolerance: 0.1,
        hit_share_min: 0.9,
        return_after: Nanos::from_secs(3),
        trim_max: 0.05,
        give_back_after: Nanos::from_secs(60),
        drift_limit: 0.15,
        drift_after: Nanos::from_secs(3),
    };
}

impl LearnConfig {
    /// Returns the smallest number of frames with which an interval counts.
    fn least(&self, seen: &Observation) -> u64 {
        let least = if seen.throttled { self.frames_min_throttled } else { self.frames_min };
        least.max(1)
    }
}

impl Default for LearnConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A port's contract, and the costs that the model computes for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The contract. If an operator set the port's cycles directly, the contract is `None`, and the
    /// learner corrects nothing.
    pub contract: Option<Contract>,
    /// Whether a limit lets the port send no more than the contract guarantees.
    pub capped: bool,
    /// Modelled cost `m` of a frame in cycles, including all coefficients.
    pub model_cost: f64,
    /// Base `B`: the entitlement that admission control gave, in cycles per second.
    pub base: CyclesPerSecond,
    /// The workers that serve the port's queue pairs.
    pub workers: WorkerSet,
}

/// Measurements of a port in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Duration of the interval in which the port was measured.
    pub elapsed: Nanos,
    /// Number of frames that the port sent in the interval. A segmentation request (TSO) counts as
    /// the frames into which it is cut.
    pub frames: u64,
    /// Number of bytes in the port's frames, without FCS.
    pub bytes: u64,
    /// Number of cycles that were charged to the port.
    pub cycles: u64,
    /// Number of lookups in the rule table for the port's frames. A segmentation request (TSO)
    /// counts as one lookup.
    pub lookups: u64,
    /// Number of lookups that hit the exact-match cache.
    pub cache_hits: u64,
    /// Whether the port had frames but no tokens for a substantial part of the interval.
    pub throttled: bool,
    /// Whether the port had frames, waiting or served, in all or nearly all of the interval.
    pub backlogged: bool,
}

/// Property of a port's traffic that violates the profile of the port's contract.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// The mean frame size of the port differs too much from the declared mean.
    Size {
        /// Declared mean frame size in bytes.
        declared: f64,
        /// Observed mean frame size in bytes.
        seen: f64,
    },
    /// The port declared few flows, but too few of its frames hit the cache.
    Flows {
        /// Observed fraction of frames without a lookup that missed the cache.
        hit_share: f64,
    },
}

impl core::fmt::Display for Breach {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Size { declared, seen } => {
                write!(
                    f,
                    "the mean frame has {seen:.0} bytes, but {declared:.0} bytes were declared"
                )
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

/// An event of the learner that is reported to operators.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The port's traffic violates its profile.
    Left(PortId, Breach),
    /// The port's traffic complies again with the profile of its contract.
    Returned(PortId),
    /// The model's relative error for the port exceeds [`LearnConfig::drift_limit`].
    Drift(PortId, f64),
    /// The model's relative error for the port has fallen to half of [`LearnConfig::drift_limit`]
    /// or less.
    Settled(PortId, f64),
    /// The port lacks the given number of cycles per second, because there is too little headroom.
    Short(PortId, CyclesPerSecond),
    /// The frames of all ports cost more or less than the model says: the model's median error
    /// exceeds [`LearnConfig::drift_limit`].
    MachineChanged(f64),
    /// The model's median error of all ports has fallen to half of [`LearnConfig::drift_limit`] or
    /// less.
    MachineSettled(f64),
}

/// State of the learner for one port, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortLearning {
    /// Current entitlement `E`.
    pub entitlement: CyclesPerSecond,
    /// Base `B`: the entitlement that admission control gave, in cycles per second.
    pub base: CyclesPerSecond,
    /// Relative error of the cost model for the port, `c/m − 1`. The value is [`Self::full_error`]
    /// if that error is known, otherwise the error over all batches of the port. `None` if the
    /// learner has not observed frames of the port.
    pub model_error: Option<f64>,
    /// Relative error of the cost model for full batches of the port, `c/m − 1`. The error of full
    /// batches is `None` if the port was throttled in fewer than two intervals.
    pub full_error: Option<f64>,
    /// Delivered rate divided by purchased rate, in the last interval with enough frames.
    pub delivered: Option<f64>,
    /// Violation of the port's profile. `None` if the port's traffic complies with the profile of
    /// its contract.
    pub breach: Option<Breach>,
    /// Time for which the port's traffic has violated its profile. The learner counts intervals
    /// with enough frames.
    pub breach_for: Nanos,
    /// Time for which the port has got less than 99 % of its purchase, counted like
    /// [`Self::breach_for`].
    pub less_for: Nanos,
    /// Cycles per second that the port needs but does not get, because there is too little
    /// headroom.
    pub short: CyclesPerSecond,
}

/// Result of the learner for one interval: changed entitlements and events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Ports with a changed entitlement, each with its new entitlement in cycles per second.
    pub changes: Vec<(PortId, CyclesPerSecond)>,
    /// Events of the interval, which are reported to operators.
    pub events: Vec<Event>,
}

/// Entitlements above the bases that ports need, in cycles per second.
type Wishes = BTreeMap<PortId, u64>;

/// The learner, with the state of all ports of a host.
#[derive(Clone, Debug)]
pub struct Learner {
    config: LearnConfig,
    capacity: Vec<CyclesPerSecond>,
    ports: BTreeMap<PortId, Port>,
    machine: Machine,
}

impl Learner {
    /// Returns a learner without ports, for workers of these capacities.
    #[must_use]
    pub fn new(config: LearnConfig, capacity: &[CyclesPerSecond]) -> Self {
        let (ports, machine) = (BTreeMap::new(), Machine::default());
        Self { config, capacity: capacity.to_vec(), ports, machine }
    }

    /// Capacity of each worker in cycles per second.
    #[must_use]
    pub fn capacity(&self) -> &[CyclesPerSecond] {
        &self.capacity
    }

    /// Sets the ports that claim cycles, with their terms. If the terms of a port are unchanged,
    /// the learner keeps the port's state. If only the base of a port changed, for example because
    /// another VM arrived, the port keeps its learned cost.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (PortId, Terms)>) {
        let mut before = core::mem::take(&mut self.ports);
        for (id, terms) in ports {
            let port = match before.remove(&id) {
                Some(port) => port.with_terms(terms),
                None => Port::new(terms),
            };
            self.ports.insert(id, port);
        }
        // New ports may need what others have above their bases.
        self.grant(Wishes::new(), &mut Vec::new());
    }

    /// Returns the learner's state of a port. Returns `None` if the port claims no cycles.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<PortLearning> {
        self.ports.get(&id).map(Port::state)
    }

    /// Returns how the machine differs from its calibration. Returns `None` if it does not, or if
    /// too few ports send to tell.
    #[must_use]
    pub const fn machine(&self) -> Option<MachineState> {
        self.machine.state()
    }

    /// Returns the learner's state of all ports, in the order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, PortLearning)> + '_ {
        self.ports.iter().map(|(id, port)| (*id, port.state()))
    }

    /// Evaluates the measurements of all ports in one interval. If a port has no observation, its
    /// state does not change.
    pub fn step(&mut self, seen: impl IntoIterator<Item = (PortId, Observation)>) -> Step {
        let mut step = Step::default();
        let before: BTreeMap<PortId, CyclesPerSecond> =
            self.ports.iter().map(|(id, port)| (*id, port.entitlement)).collect();
        let mut wishes = Wishes::new();
        let (mut errors, mut elapsed) = (Vec::new(), Nanos::ZERO);
        for (id, observation) in seen {
            let Some(port) = self.ports.get_mut(&id) else { continue };
            let wish = port.see(&self.config, &observation, |event| step.events.push(event(id)));
            if let Some(error) = port.error_now(&self.config, &observation) {
                errors.push(error);
                elapsed = elapsed.max(observation.elapsed);
            }
            if let Some(wanted) = wish {
                wishes.insert(id, wanted);
            }
        }
        step.events.extend(self.machine.see(&self.config, &mut errors, elapsed));
        self.grant(wishes, &mut step.events);
        let changed =
            self.ports.iter().filter(|(id, port)| before.get(id) != Some(&port.entitlement));
        step.changes = changed.map(|(id, port)| (*id, port.entitlement)).collect();
        step
    }

    /// Grants cycles beyond the bases of ports, limited by the headroom. Ports on the fewest
    /// workers get additional cycles first. If the entitlements exceed the capacity, for example
    /// because a port needs the base that it lent, all cycles above the bases are granted again.
    fn grant(&mut self, mut wishes: Wishes, events: &mut Vec<Event>) {
        if !self.ledger().fits() {
            for (id, port) in &mut self.ports {
                let had = port.entitlement;
                if had > port.terms.base {
                    port.entitlement = port.terms.base;
                    wishes.entry(*id).or_insert(had.0);
                }
            }
        }
        let mut ledger = self.ledger();
        let mut sets: BTreeMap<WorkerSet, Vec<(PortId, u64)>> = BTreeMap::new();
        for (id, wanted) in wishes {
            let Some(port) = self.ports.get(&id) else { continue };
            sets.entry(port.terms.workers).or_default().push((id, wanted));
        }
        let mut sets: Vec<_> = sets.into_iter().collect();
        sets.sort_by_key(|(workers, _)| workers.len());
        for (workers, wishes) in sets {
            let has = |id: &PortId| self.ports.get(id).map_or(0, |port| port.entitlement.0);
            let more: Vec<u64> =
                wishes.iter().map(|(id, wanted)| wanted.saturating_sub(has(id))).collect();
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

    /// Returns a ledger of the entitlements of all ports.
    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(&self.capacity);
        for port in self.ports.values() {
            ledger.claim(port.terms.workers, port.entitlement.0);
        }
        ledger
    }
}

/// Returns the purchased rate `r` in frames per second, and the purchased rate in the contract's
/// unit (bits or frames per second).
fn bought(contract: &Contract) -> (f64, f64) {
    let frames = contract.frames_per_second();
    match contract.rate {
        Rate::Bits(bits) => (frames, to_f64(bits.0)),
        Rate::Packets(_) => (frames, frames),
    }
}

/// Checks a port's traffic against its contract's profile.
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
