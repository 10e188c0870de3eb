//! `penstock explain`: collects the data of an answer, and keeps the history of counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use penstock_dataplane::counters::PortCounterSets;
use penstock_dataplane::schedule::PortQos;
use penstock_units::Nanos;

use super::apply::{Core, lock};
use super::error::{ApiError, ErrorKind};
use crate::api::{Explanation, LinkStatus, QueueStatus};
use crate::explain::history::{History, Moment, PortMoment};
use crate::explain::{Growth, PortGrowth, WorkerGrowth, explain};

/// The history of counters, one reading per second.
#[derive(Debug, Default)]
pub(super) struct Past(Mutex<History>);

impl Past {
    /// Keeps a reading if one is due.
    pub(super) fn remember(&self, core: &Core) {
        let now = core.switch.uptime();
        if lock(&self.0).is_due(now) {
            let moment = core.moment();
            lock(&self.0).push(moment);
        }
    }

    /// Explains the rate of `port` from the counters of the last `seconds`.
    ///
    /// # Errors
    /// The port does not exist, or the daemon has just started.
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
            let (problem, remedy) = ("there is no such port", "see `penstock port list`");
            return Err(ApiError::new(ErrorKind::NotFound, object, problem, remedy));
        };
        let now = core.moment();
        let before = lock(&self.0).since(now.at, Nanos::from_secs(seconds)).cloned();
        let before = before.filter(|before| now.at > before.at).ok_or_else(|| {
            let (problem, remedy) = ("the daemon has just started", "ask again in a second");
            ApiError::new(ErrorKind::Failed, object, problem, remedy)
        })?;
        let growth = core.growth(&before, &now, links);
        let gone = || ApiError::new(ErrorKind::NotFound, "port", "it was removed", "ask again");
        let mut answer = explain(&growth, &status).ok_or_else(gone)?;
        core.profile(&mut answer);
        core.bound(&mut answer, &growth);
        let plan = Arc::clone(&lock(&core.shared).pricing.plan);
        answer.warnings = plan.warnings_of(port).map(ToString::to_string).collect();
        core.vcpus(&mut answer);
        Ok(answer)
    }
}

impl Core {
    /// The part of the contract's profile that the port exceeds.
    fn profile(&self, answer: &mut Explanation) {
        let shared = lock(&self.shared);
        let plan = shared.pricing.plan.port(&answer.port);
        let Some(contract) = plan.and_then(|plan| plan.contract.as_ref()) else { return };
        let declared = format!(
            "frames of {:.0} bytes in the mean, {} flows",
            contract.sizes.mean(),
            contract.flows.name()
        );
        let id = shared.ports.get(&answer.port).map(|live| live.id);
        let learned = id.and_then(|id| shared.pricing.learned(id));
        match learned.as_ref().and_then(|learned| learned.breach.as_ref()) {
            Some(breach) => {
                answer.inside_profile = Some(false);
                answer.profile = format!("outside what it declared ({declared}): {breach}");
            }
            None => {
                answer.inside_profile = Some(true);
                answer.profile = format!("inside what it declared: {declared}");
            }
        }
        let error = learned.and_then(|learned| learned.model_error);
        if let Some(error) = error {
            let percent = error * 100.0;
            let more = format!("; its frames cost {percent:+.1} % of what the model says");
            answer.profile.push_str(&more);
        }
    }

    /// The VM behind the port, and the command that shows its vCPUs.
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

    /// The growth of all counters between two moments.
    fn growth(&self, before: &Moment, now: &Moment, links: Vec<LinkStatus>) -> Growth {
        let (terms, capacity, stalled, dscps) = {
            let shared = lock(&self.shared);
            let plan = &shared.pricing.plan;
            let bought = |name: &String| {
                let mut terms = shared.terms(name);
                if !terms.ingress.is_metered() {
                    terms.entitlement = plan.port(name).map(|port| port.floor).unwrap_or_default();
                }
                let id = shared.ports.get(name).map(|port| port.id);
                let learned = id.and_then(|id| shared.pricing.learned(id));
                let breach = learned.and_then(|learned| learned.breach);
                (name.clone(), (terms, breach.map(|breach| breach.to_string())))
            };
            let terms: BTreeMap<String, (PortQos, Option<String>)> =
                now.ports.keys().map(bought).collect();
            let capacity = shared.config.worker.capacity.map_or(0, |capacity| capacity.0.0);
            let stalled: Vec<bool> = shared.watches.iter().map(|watch| watch.stalled).collect();
            (terms, capacity, stalled, shared.config.code_points())
        };
        let port = |(name, moment): (&String, &PortMoment)| {
            let grown = moment.since(before.ports.get(name));
            let (qos, breach) = terms.get(name).cloned().unwrap_or_default();
            PortGrowth {
                name: name.clone(),
                reading: grown.reading,
                cycles: grown.cycles,
                policy: qos.ingress,
                entitled: qos.entitlement.0,
                weight: qos.weight.get(),
                priority: qos.priority.get(),
                dscp: dscps.get(name).copied(),
                queues: grown.queues,
                debt: moment.reading.debt,
                breach,
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
        }
    }
}
