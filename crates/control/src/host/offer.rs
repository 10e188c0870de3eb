//! Manages the entitlements of ports while the host runs: the plan, and corrections by the learner.
//!
//! Each change of the configuration is planned before it is applied. If the plan does not fit the
//! host, the change is refused, and the old configuration keeps running. About once a second, the
//! learner reads the ports' counters to correct the cost model's results. The learner's corrections
//! reach the workers in a snapshot that differs only in entitlements, so caches stay valid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_dataplane::counters::PortReading;
use penstock_dataplane::snapshot::Snapshot;
use penstock_qos::cost_model::CostModel;
use penstock_qos::learner::{Event, LearnConfig, Learner, Observation, PortLearning, Terms};
use penstock_units::{CyclesPerSecond, Nanos, PortId};

use super::apply::{Core, lock, worker_failed};
use super::error::ApiError;
use super::pricing::Pricing;
use crate::config::{self, ConfigErrors, HostConfig};
use crate::plan::{CapacityPlan, Origin, Planner, PortPlan, Warning};
use crate::snapshot::{IdTable, Sold};

/// Interval between two readings of the ports' counters by the learner.
const LEARN_EVERY: Nanos = Nanos::from_secs(1);
/// A port counts as limited by its cycles if its frames waited for cycles in at least 1/20 of an
/// interval.
const THROTTLED_PART: u64 = 20;

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
        let seen = shared.pricing.seen.take();
        let Offer { model, plan, learner, .. } = offer;
        shared.pricing = Pricing { model, plan, learner, seen, snapshot };
    }

    /// Returns the learned state of each port that purchased cycles, by name.
    pub(super) fn learning(&self) -> Vec<(String, PortLearning)> {
        let shared = lock(&self.shared);
        let name = |id: PortId| shared.compiler.ids().port_name(id.0).map(str::to_owned);
        let ports = shared.pricing.learner.ports();
        ports.filter_map(|(id, state)| Some((name(id)?, state))).collect()
    }

    /// Reads the ports' counters if [`LEARN_EVERY`] has passed, and corrects the entitlements. The
    /// caller must prevent changes of the configuration while the function runs.
    ///
    /// # Errors
    /// Returns an error if a worker has ended.
    pub(super) fn learn(&self, now: Nanos) -> Result<(), ApiError> {
        let step = {
            let mut shared = lock(&self.shared);
            if !shared.config.model.learn || shared.pricing.learner.ports().next().is_none() {
                shared.pricing.seen = None;
                return Ok(());
            }
            let due = shared.pricing.seen.as_ref().map(|(last, _)| *last + LEARN_EVERY);
            if due.is_some_and(|due| now < due) {
                return Ok(());
            }
            let ports = shared.ports.values().map(|port| (port.id, port.counters.read()));
            let readings: BTreeMap<PortId, PortReading> = ports.collect();
            let hz = self.switch.tsc().hz();
            let before = shared.pricing.seen.replace((now, readings.clone()));
            let Some((last, before)) = before else { return Ok(()) };
            let elapsed = now.saturating_sub(last);
            let seen = readings.iter().filter_map(|(id, reading)| {
                let grown = grown(before.get(id)?, reading, elapsed, hz)?;
                Some((*id, grown))
            });
            let step = shared.pricing.learner.step(seen);
            let ids = shared.compiler.ids().clone();
            for event in &step.events {
                tell(event, &|id: PortId| ids.port_name(id.0).unwrap_or_default().to_owned());
            }
            step
        };
        if step.changes.is_empty() {
            return Ok(());
        }
        let old = Arc::clone(&lock(&self.shared).pricing.snapshot);
        let changes: BTreeMap<PortId, CyclesPerSecond> = step.changes.into_iter().collect();
        let new = Arc::new(old.with_qos(|id, qos| {
            if let Some(cycles) = changes.get(&id) {
                qos.entitlement = *cycles;
            }
        }));
        self.switch.swap_snapshot(Arc::clone(&new)).map_err(worker_failed)?;
        lock(&self.shared).pricing.snapshot = new;
        Ok(())
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

/// Returns the activity of a port between two readings of its counters; `None` if the counters were
/// reset.
fn grown(
    before: &PortReading,
    after: &PortReading,
    elapsed: Nanos,
    hz: u64,
) -> Option<Observation> {
    let held = after.throttled.checked_sub(before.throttled)?;
    let core = u128::from(elapsed.0) * u128::from(hz) / 1_000_000_000;
    let ([frames, bytes], [frames_before, bytes_before]) = (after.on_wire(), before.on_wire());
    Some(Observation {
        elapsed,
        frames: frames.checked_sub(frames_before)?,
        bytes: bytes.checked_sub(bytes_before)?,
        lookups: after.rx_frames.checked_sub(before.rx_frames)?,
        cycles: after.cycles.checked_sub(before.cycles)?,
        cache_hits: after.cache_hits.checked_sub(before.cache_hits)?,
        throttled: u128::from(held) * u128::from(THROTTLED_PART) > core,
    })
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
