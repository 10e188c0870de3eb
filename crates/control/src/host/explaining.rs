//! `penstock explain`: collects the data for an answer, and keeps the history of counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::snapshot::PortQos;
use penstock_qos::cost_model::Rate;
use penstock_units::Nanos;

use super::apply::{Core, lock};
use super::error::{ApiError, ErrorKind};
use crate::api::{Explanation, LinkStatus, QueueStatus};
use crate::explain::history::{History, Moment, PortMoment};
use crate::explain::{Bought, Growth, PortGrowth, WorkerGrowth, explain};
use crate::plan::shallow_depth;

/// The history of counters, one reading per second.
#[derive(Debug, Default)]
pub(super) struct Past(Mutex<History>);

impl Past {
    /// If the last reading in the history is at least a second old, adds a reading of the counters
    /// and returns it.
    pub(super) fn remember(&self, core: &Core) -> Option<Moment> {
        let now = core.switch.uptime();
        let due = lock(&self.0).is_due(now);
        due.then(|| {
            let moment = core.moment();
            lock(&self.0).push(moment.clone());
            moment
        })
    }

    /// Explains the rate of `port` from the counters of the last `seconds` seconds.
    ///
    /// # Errors
    /// Returns an error if the port does not exist, or if the daemon has just started.
    pub(super) fn explain(
        &self,
        core: &Core,
        links: Vec<LinkStatus>,
        port: &str,
        seconds: u64,
    ) -> Result<Explanation, ApiError> {
        let object = format!("port {port:?}");
        let known = core.port_states().into_iter().find(|status| status.name == port);
        let Some(status) = known else {
            let (problem, remedy) = ("the port does not exist", "see `penstock port list`");
            return Err(ApiError::new(ErrorKind::NotFound, object, problem, remedy));
        };
        let now = core.moment();
        let before = lock(&self.0).since(now.at, Nanos::from_secs(seconds)).cloned();
        let before = before.filter(|before| now.at > before.at).ok_or_else(|| {
            let (problem, remedy) =
                ("the daemon has just started", "repeat the request after a second");
            ApiError::new(ErrorKind::Failed, object, problem, remedy)
        })?;
        let growth = core.growth(&before, &now, links);
        let gone =
            || ApiError::new(ErrorKind::NotFound, "port", "the port was removed", "ask again");
        let mut answer = explain(&growth, &status).ok_or_else(gone)?;
        core.profile(&mut answer);
        core.bound(&mut answer, &growth);
        let plan = Arc::clone(&lock(&core.shared).pricing.plan);
        answer.labels = status.labels;
        answer.warnings = plan.warnings_of(port).map(ToString::to_string).collect();
        core.vcpus(&mut answer);
        Ok(answer)
    }
}

impl Core {
    /// Writes into the answer whether the port sends the traffic that its contract declares.
    pub(super) fn profile(&self, answer: &mut Explanation) {
        let shared = lock(&self.shared);
        let plan = shared.pricing.plan.port(&answer.port);
        let Some(contract) = plan.and_then(|plan| plan.contract.as_ref()) else { return };
        let unit = if matches!(contract.rate, Rate::Bits(_)) { "bit/s" } else { "" };
        let declared = format!(
            "{}{unit}, frames of {:.0} bytes in the mean, flows: {}",
            contract.rate,
            contract.sizes.mean(),
            contract.flows.name()
        );
        let id = shared.ports.get(&answer.port).map(|live| live.id);
        let learned = id.and_then(|id| shared.pricing.learned(id));
        match learned.as_ref().and_then(|learned| learned.breach.as_ref()) {
            Some(breach) => {
                answer.inside_profile = Some(false);
                answer.profile =
                    format!("the traffic differs from the declared traffic ({declared}): {breach}");
            }
            None => {
                answer.inside_profile = Some(true);
                answer.profile = format!("as declared: {declared}");
            }
        }
        if let Some(delivered) = learned.as_ref().and_then(|learned| learned.delivered) {
            let percent = delivered * 100.0;
            let more = format!("; lately, {percent:.1} % of the rate were delivered");
            answer.profile.push_str(&more);
        }
        let error = learned.and_then(|learned| learned.model_error);
        if let Some(error) = error {
            let percent = error * 100.0;
            let more =
                format!("; the cost of its frames differs from the model by {percent:+.1} %");
            answer.profile.push_str(&more);
        }
    }

    /// Writes into the answer the VM behind the port, and the run directory of the VM's vCPU
    /// scheduler.
    fn vcpus(&self, answer: &mut Explanation) {
        let shared = lock(&self.shared);
        let port = shared.config.ports.iter().find(|port| port.name == answer.port);
        let vm = port.and_then(|port| port.vm.clone());
        if let (Some(vm), Some(vcpu)) = (vm, &shared.config.vcpu) {
            answer.vm = vm;
            answer.vcpu_dir = vcpu.run_dir().display().to_string();
        }
    }

    /// The current counters.
    fn moment(&self) -> Moment {
        let at = self.switch.uptime();
        let sets: Vec<_> = {
            let shared = lock(&self.shared);
            let ports = shared.ports.iter();
            ports
                .map(|(name, p)| (name.clone(), p.counters.clone(), shared.compiler.queues(name)))
                .collect()
        };
        let port = |(name, sets, queues): (String, PortCounterSets, Vec<QueueStatus>)| {
            let cycles = sets.each().map(|set| set.cycles.get()).collect();
            (name, PortMoment { reading: sets.read(), cycles, queues })
        };
        let workers = self.switch.workers().into_iter().map(|(reading, _)| reading).collect();
        Moment { at, ports: sets.into_iter().map(port).collect(), workers }
    }

    /// Returns the growth of all counters between two readings.
    pub(super) fn growth(&self, before: &Moment, now: &Moment, links: Vec<LinkStatus>) -> Growth {
        let (terms, capacity, stalled, dscps, settings, in_fabric, machine) = {
            let shared = lock(&self.shared);
            let plan = &shared.pricing.plan;
            let bought = |name: &String| {
                let mut terms = shared.terms(name);
                if !terms.ingress.is_metered() {
                    terms.entitlement = plan.port(name).map(|port| port.floor).unwrap_or_default();
                }
                let id = shared.ports.get(name).map(|port| port.id);
                let learned = id.and_then(|id| shared.pricing.learned(id));
                let contract = plan.port(name).and_then(|port| port.contract.as_ref());
                let bought = contract.map(|contract| Bought::new(contract, learned.as_ref()));
                (name.clone(), (terms, bought, id.map_or(0, |id| id.0)))
            };
            let terms: BTreeMap<String, (PortQos, Option<Bought>, u16)> =
                now.ports.keys().map(bought).collect();
            let capacity = shared.config.worker.capacity.map_or(0, |capacity| capacity.0.0);
            let stalled: Vec<bool> = shared.watches.iter().map(|watch| watch.stalled).collect();
            let ports = shared.config.ports.iter();
            let settings = ports.map(|port| {
                let shaped = port.shape.as_ref().and_then(|shape| shape.send).map(|rate| rate.0.0);
                let settings = (shaped, shallow_depth(port), port.tightest_limits(), port.egress);
                (port.name.clone(), settings)
            });
            let settings: BTreeMap<String, _> = settings.collect();
            let in_fabric = shared.config.fabric.is_some();
            let code_points = shared.config.code_points();
            let machine = shared.pricing.learner.machine();
            (terms, capacity, stalled, code_points, settings, in_fabric, machine)
        };
        let port = |(name, moment): (&String, &PortMoment)| {
            let grown = moment.since(before.ports.get(name));
            let (qos, bought, number) = terms.get(name).cloned().unwrap_or_default();
            let (shaped_bps, shallow, limits, egress) =
                settings.get(name).copied().unwrap_or_default();
            PortGrowth {
                name: name.clone(),
                number,
                reading: grown.reading,
                cycles: grown.cycles,
                policy: qos.ingress,
                entitled: qos.entitlement.0,
                weight: qos.weight.get(),
                priority: qos.priority.get(),
                dscp: dscps.get(name).copied(),
                queues: grown.queues,
                debt: moment.reading.debt,
                bought,
                shaped_bps,
                shallow,
                limits,
                egress,
            }
        };
        let workers = now.workers.iter().enumerate().map(|(id, reading)| {
            let reading = before.workers.get(id).map_or(*reading, |old| reading.since(old));
            WorkerGrowth { reading, stalled: stalled.get(id).copied().unwrap_or(false) }
        });
        Growth {
            nanos: now.at.saturating_sub(before.at).0,
            tsc_hz: self.switch.tsc().hz(),
            capacity,
            ports: now.ports.iter().map(port).collect(),
            workers: workers.collect(),
            links,
            in_fabric,
            machine,
        }
    }
}
