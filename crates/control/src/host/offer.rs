//! Manages the entitlements of ports while the host runs: the plan, and corrections by the learner.
//!
//! Each change of the configuration is planned before it is applied. If the plan does not fit the
//! host, the change is refused, and the old configuration keeps running. About once a second, the
//! learner reads the ports' counters to correct the cost model's results. The learner's corrections
//! reach the workers in a snapshot that differs only in entitlements, so caches stay valid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::snapshot::Snapshot;
use penstock_qos::cost_model::CostModel;
use penstock_qos::learner::{Event, LearnConfig, Learner, Observation, PortLearning, Terms};
use penstock_units::{CyclesPerSecond, Nanos, PortId};

use super::apply::{Core, lock, worker_failed};
use super::error::ApiError;
use super::pricing::Pricing;
use super::state::{LivePort, Shared};
use crate::api::MachineChange;
use crate::config::{self, ConfigErrors, HostConfig};
use crate::plan::{CapacityPlan, Origin, Planner, PortPlan, Warning};
use crate::snapshot::{IdTable, Sold};

/// Shortest interval between two readings of the ports' counters by the learner. The daemon asks
/// ten times a second, not exactly on time.
const LEARN_EVERY: Nanos = Nanos::from_millis(90);
/// Longest interval of a port that sends few frames.
const SLOW_EVERY: Nanos = Nanos::from_secs(1);
/// Entitlements that differ by less than this part, [`SMALL_PART`], from those in force are changed
/// once in this time. A change is a new snapshot for all workers.
const APPLY_EVERY: Nanos = Nanos::from_secs(1);
const SMALL_PART: u64 = 200;
/// A port counts as limited by its cycles if its frames waited for cycles in at least 1/20 of an
/// interval.
const THROTTLED_PART: u64 = 20;
/// A port counts as backlogged if its frames waited or were served in all but 1/20 of an interval.
const BACKLOGGED_PART: u128 = 20;

/// A capacity plan that fits the host, and the entitlements of its ports.
#[derive(Debug)]
pub(super) struct Offer {
    model: Option<(PathBuf, Arc<CostModel>)>,
    plan: Arc<CapacityPlan>,
    learner: Learner,
    /// Entitlement of each port in cycles per second, including the learner's corrections, by port
    /// name.
    pub(super) sold: BTreeMap<String, Sold>,
    /// Warnings about the new plan, without the warnings that the plan in force also has.
    pub(super) warnings: Vec<String>,
}

impl Core {
    /// Plans `config`. Reads the cost model's file again if `fresh` is set or the configuration
    /// names another file.
    ///
    /// # Errors
    /// Returns all mistakes in the cost model's file, or an error if the ports purchase more cycles
    /// or bandwidth than the host has.
    pub(super) fn offer(
        &self,
        config: &HostConfig,
        ids: &IdTable,
        fresh: bool,
    ) -> Result<Offer, ConfigErrors> {
        let (known, before, mut learner) = {
            let shared = lock(&self.shared);
            let pricing = &shared.pricing;
            (pricing.model.clone(), Arc::clone(&pricing.plan), pricing.learner.clone())
        };
        let model = match &config.model.file {
            None => None,
            Some(file) => {
                let path = self.dir.join(file);
                match known.filter(|(known, _)| !fresh && *known == path) {
                    Some(known) => Some(known),
                    None => Some((path.clone(), Arc::new(config::load_model(&path)?))),
                }
            }
        };
        let mut plan = Planner {
            config,
            model: model.as_ref().map(|(_, model)| model),
            ids,
            workers: self.switch.workers().len(),
            origin: &Origin::here(),
            tsc: self.switch.tsc(),
        }
        .plan();
        tolerate(&mut plan, &before);
        if !plan.refusals.is_empty() {
            return Err(ConfigErrors(plan.refusals));
        }
        if learner.capacity() != plan.sellable {
            learner = Learner::new(LearnConfig::default(), &plan.sellable);
        }
        learner.set_ports(terms(&plan));
        let sold = sold(&plan, &learner);
        let new = plan.warnings.iter().filter(|warning| !before.warnings.contains(warning));
        let warnings = new.map(ToString::to_string).collect();
        Ok(Offer { model, plan: Arc::new(plan), learner, sold, warnings })
    }

    /// Makes the capacity plan of `offer` the plan in force. The argument `snapshot` is the new
    /// snapshot, which the workers already use.
    pub(super) fn accept(&self, offer: Offer, snapshot: Arc<Snapshot>) {
        let mut shared = lock(&self.shared);
        let seen = std::mem::take(&mut shared.pricing.seen);
        let Pricing { learned_at, applied_at, .. } = shared.pricing;
        let Offer { model, plan, learner, .. } = offer;
        shared.pricing = Pricing { model, plan, learner, learned_at, applied_at, seen, snapshot };
    }

    /// Returns the learned state of each port that purchased cycles, by name.
    pub(super) fn learning(&self) -> Vec<(String, PortLearning)> {
        let shared = lock(&self.shared);
        let name = |id: PortId| shared.compiler.ids().port_name(id.0).map(str::to_owned);
        let ports = shared.pricing.learner.ports();
        ports.filter_map(|(id, state)| Some((name(id)?, state))).collect()
    }

    /// Returns how the machine differs from its calibration.
    pub(super) fn machine(&self) -> Option<MachineChange> {
        let state = lock(&self.shared).pricing.learner.machine()?;
        #[expect(clippy::cast_possible_truncation, reason = "`as` saturates")]
        let cost_permille = (state.error * 1_000.0).round() as i32;
        Some(MachineChange { cost_permille, since_ms: state.lasts.0 / 1_000_000 })
    }

    /// Reads the ports' counters if [`LEARN_EVERY`] has passed, and corrects the entitlements. The
    /// caller must prevent changes of the configuration while the function runs.
    ///
    /// # Errors
    /// Returns an error if a worker has ended.
    pub(super) fn learn(&self, now: Nanos) -> Result<(), ApiError> {
        let Some(ports) = self.due(now) else { return Ok(()) };
        // Functions that read the state do not wait until all counters are read.
        let hz = self.switch.tsc().hz();
        let ports = ports.into_iter();
        let readings: Vec<Activity> =
            ports.map(|(id, counters, queues)| (id, counters.read(), queues)).collect();
        let (events, ids) = {
            let mut shared = lock(&self.shared);
            let grown = observe(&mut shared.pricing, readings, now, hz);
            (shared.pricing.learner.step(grown).events, shared.compiler.ids().clone())
        };
        for event in &events {
            tell(event, &|id: PortId| ids.port_name(id.0).unwrap_or_default().to_owned());
        }
        let old = Arc::clone(&lock(&self.shared).pricing.snapshot);
        let (entitlements, small_too) = {
            let pricing = &lock(&self.shared).pricing;
            (entitlements(&pricing.learner), now >= pricing.applied_at + APPLY_EVERY)
        };
        let matters = |(id, cycles): (&PortId, &CyclesPerSecond)| {
            let Some(now) = old.port(id.0).map(|port| port.qos.entitlement) else { return false };
            cycles.0.abs_diff(now.0) > if small_too { 0 } else { now.0 / SMALL_PART }
        };
        if !entitlements.iter().any(matters) {
            return Ok(());
        }
        let new = Arc::new(old.with_qos(|id, qos| {
            if let Some(cycles) = entitlements.get(&id) {
                qos.entitlement = *cycles;
            }
        }));
        let new = new.following(&old);
        self.switch.swap_snapshot(Arc::clone(&new)).map_err(worker_failed)?;
        let pricing = &mut lock(&self.shared).pricing;
        pricing.snapshot = new;
        pricing.applied_at = now;
        Ok(())
    }

    /// Returns the counters and the number of queue pairs of each port that claims cycles, if
    /// [`LEARN_EVERY`] has passed.
    fn due(&self, now: Nanos) -> Option<Vec<(PortId, PortCounterSets, u16)>> {
        let mut shared = lock(&self.shared);
        let Shared { config, pricing, ports, .. } = &mut *shared;
        if !config.model.learn || pricing.learner.ports().next().is_none() {
            pricing.seen.clear();
            return None;
        }
        if now < pricing.learned_at + LEARN_EVERY {
            return None;
        }
        pricing.learned_at = now;
        let claims = |port: &&LivePort| pricing.learner.port(port.id).is_some();
        let counters = |port: &LivePort| (port.id, port.counters.clone(), port.attachment.queues());
        Some(ports.values().filter(claims).map(counters).collect())
    }

    /// Returns the directory of the configuration file, in which relative paths begin.
    pub(super) fn dir_of(path: Option<&Path>) -> PathBuf {
        path.and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default()
    }
}

fn terms(plan: &CapacityPlan) -> impl Iterator<Item = (PortId, Terms)> + '_ {
    plan.ports.iter().filter_map(|port| Some((port.id, port.terms()?)))
}

fn sold(plan: &CapacityPlan, learner: &Learner) -> BTreeMap<String, Sold> {
    let of = |port: &PortPlan| {
        let cycles = learner.port(port.id).map(|state| state.entitlement).unwrap_or_default();
        (port.name.clone(), Sold { cycles, price: port.price })
    };
    plan.ports.iter().map(of).collect()
}

/// A port that claims cycles, the reading of its counters, and its number of queue pairs.
type Activity = (PortId, PortReading, u16);

/// Ends the interval of each port that claims cycles and sent enough frames, or has a long
/// interval. Returns the ports' activity in their intervals.
fn observe(
    pricing: &mut Pricing,
    readings: Vec<Activity>,
    now: Nanos,
    hz: u64,
) -> Vec<(PortId, Observation)> {
    let Pricing { learner, seen, .. } = pricing;
    seen.retain(|id, _| learner.port(*id).is_some());
    let few = LearnConfig::DEFAULT.frames_min;
    let mut all = Vec::new();
    for (id, reading, queues) in readings {
        let Some((since, before)) = seen.get(&id) else {
            seen.insert(id, (now, reading));
            continue;
        };
        let elapsed = now.saturating_sub(*since);
        let grown = observed(before, &reading, (elapsed, hz), queues);
        if grown.is_some_and(|grown| grown.frames < few) && elapsed < SLOW_EVERY {
            continue;
        }
        all.extend(grown.map(|grown| (id, grown)));
        seen.insert(id, (now, reading));
    }
    all
}

fn entitlements(learner: &Learner) -> BTreeMap<PortId, CyclesPerSecond> {
    learner.ports().map(|(id, state)| (id, state.entitlement)).collect()
}

/// Returns what the learner observes of a port with `queues` queue pairs between two readings of
/// its counters, on cores with `hz` cycles per second. Returns `None` if the counters were reset.
#[must_use]
pub fn observed(
    before: &PortReading,
    after: &PortReading,
    (elapsed, hz): (Nanos, u64),
    queues: u16,
) -> Option<Observation> {
    let held = after.throttled.checked_sub(before.throttled)?;
    let cycles = after.cycles.checked_sub(before.cycles)?;
    let core = u128::from(elapsed.0) * u128::from(hz) / 1_000_000_000;
    // The waits of several queue pairs may overlap.
    let waited = after.delay.checked_sub(before.delay)? / u64::from(queues.max(1));
    let waited = u128::from(waited) * u128::from(hz) / 1_000_000_000;
    let ([frames, bytes], [frames_before, bytes_before]) = (after.on_wire(), before.on_wire());
    Some(Observation {
        elapsed,
        frames: frames.checked_sub(frames_before)?,
        bytes: bytes.checked_sub(bytes_before)?,
        lookups: after.rx_frames.checked_sub(before.rx_frames)?,
        cycles,
        cache_hits: after.cache_hits.checked_sub(before.cache_hits)?,
        throttled: u128::from(held) * u128::from(THROTTLED_PART) > core,
        backlogged: waited + u128::from(cycles) >= core - core / BACKLOGGED_PART,
    })
}

/// Returns an error of the cost model as words: `30 % more than at the calibration`.
fn against_model(error: f64) -> String {
    let word = if error < 0.0 { "less" } else { "more" };
    format!("{:.0} % {word} than at the calibration", 100.0 * error.abs())
}

fn tell(event: &Event, name: &dyn Fn(PortId) -> String) {
    match event {
        Event::Left(id, breach) => {
            tracing::info!(
                "port {}: sends traffic outside its contract's profile: {breach}",
                name(*id)
            );
        }
        Event::Returned(id) => {
            tracing::info!("port {}: sends traffic within its contract's profile again", name(*id))
        }
        Event::Drift(id, error) => {
            tracing::warn!(
                "port {}: the cost of its frames differs from the model by {:+.0} %; run penstock \
                 calibrate when the host is quiet",
                name(*id),
                error * 100.0
            );
        }
        Event::Settled(id, error) => {
            let percent = error * 100.0;
            tracing::info!(
                "port {}: the cost of its frames agrees with the model again ({percent:+.0} %)",
                name(*id)
            );
        }
        Event::Short(id, cycles) => {
            tracing::warn!(
                "port {}: needs {cycles} more cycles per second, and its workers have none left \
                 to sell; move the port, or sell less",
                name(*id)
            );
        }
        Event::MachineChanged(error) => {
            tracing::warn!(
                "the frames of all ports cost {}, so the machine changed: other programs or \
                 machines may use its caches, or its frequency differs; run penstock calibrate if \
                 this lasts",
                against_model(*error)
            );
        }
        Event::MachineSettled(error) => {
            tracing::info!("the frames of all ports cost only {}", against_model(*error));
        }
    }
}

/// Makes each doubt about the cost model a warning if the plan in force has the same doubt, or if
/// the host starts: a host with a new kernel or release must serve its VMs. Other doubts are
/// refusals.
fn tolerate(plan: &mut CapacityPlan, before: &CapacityPlan) {
    let starts = before.capacity.is_empty();
    for doubt in std::mem::take(&mut plan.doubts) {
        let text = doubt.to_string();
        if starts || before.warnings.iter().any(|warning| warning.text == text) {
            plan.warnings.push(Warning { ports: Vec::new(), text });
        } else {
            plan.refusals.push(doubt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: (Nanos, u64) = (Nanos(1_000_000_000), 2_000_000_000);

    fn seen(delay: u64, cycles: u64, queues: u16) -> Observation {
        let after = PortReading { delay, cycles, ..PortReading::default() };
        observed(&PortReading::default(), &after, SECOND, queues).unwrap()
    }

    #[test]
    fn a_port_is_backlogged_if_its_frames_waited_or_were_served_nearly_all_the_time() {
        // 0.9 s in the ring, and 0.06 s of the core.
        assert!(seen(900_000_000, 120_000_000, 1).backlogged);
        assert!(!seen(880_000_000, 120_000_000, 1).backlogged);
        // The waits of two queue pairs may be at the same time.
        assert!(!seen(900_000_000, 120_000_000, 2).backlogged);
        assert!(seen(1_800_000_000, 120_000_000, 2).backlogged);
    }

    #[test]
    fn a_twentieth_of_the_time_without_cycles_is_enough_to_be_throttled() {
        for (throttled, is) in [(100_000_000, false), (101_000_000, true)] {
            let after = PortReading { throttled, ..PortReading::default() };
            let seen = observed(&PortReading::default(), &after, SECOND, 1).unwrap();
            assert_eq!(seen.throttled, is, "{throttled}");
            assert_eq!(observed(&after, &PortReading::default(), SECOND, 1), None, "reset");
        }
    }
}
