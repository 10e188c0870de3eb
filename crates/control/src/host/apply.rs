//! Replaces the running configuration by the next configuration, and applies only the differences.
//!
//! The host applies a configuration in four steps, in an order that never applies the policy of one
//! port to frames of another port:
//! 1. The host detaches removed ports, and ports whose attachment changed.
//! 2. The host gives the workers the new snapshot.
//! 3. The host sets the ports' static addresses.
//! 4. The host attaches new ports.
//!
//! The host sets static addresses before it attaches new ports, so all static addresses exist when
//! a new port begins to pass frames. A burst of frames to a static address is therefore neither
//! flooded nor dropped by the limit on floods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::port::AttachState;
use penstock_dataplane::worker::WorkerError;
use penstock_units::PortId;

use super::data_path::{AttachError, DataPath};
use super::error::{ApiError, ErrorKind};
use super::state::{LivePort, Shared};
use super::vcpus;
use crate::config::{Attachment, HostConfig, VhostUser};
use crate::snapshot::{Compiler, StaticAddress};

/// The data path and the state of the host.
pub(super) struct Core {
    pub(super) switch: Box<dyn DataPath>,
    pub(super) shared: Mutex<Shared>,
    /// Directory in which relative paths of the configuration begin.
    pub(super) dir: PathBuf,
}

/// Result of a change of the configuration.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) changes: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// Names of the ports that could not be attached, each with its error.
    pub(super) failed: Vec<(String, AttachError)>,
}

/// Locks a mutex, even if a thread panicked while it held the lock. If the panicked thread left the
/// state incomplete, the next change of the configuration repairs the state.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error for a worker that did not carry out a request.
pub(super) fn worker_failed(error: WorkerError) -> ApiError {
    let remedy = "see the daemon's log; restart the daemon if the worker has ended";
    ApiError::new(ErrorKind::Failed, "worker", error.to_string(), remedy)
}

/// Names of the ports that a change of the configuration removes, attaches again or adds.
#[derive(Default)]
struct PortChanges {
    removed: Vec<String>,
    reattached: Vec<String>,
    added: Vec<String>,
}

impl PortChanges {
    fn new(live: &BTreeMap<String, LivePort>, wanted: &BTreeMap<&str, Attachment>) -> Self {
        let mut plan = Self::default();
        for (name, port) in live {
            match wanted.get(name.as_str()) {
                None => plan.removed.push(name.clone()),
                Some(new) if !new.is_served_like(&port.attachment) => {
                    plan.reattached.push(name.clone())
                }
                Some(_) => {}
            }
        }
        let new = wanted.keys().filter(|name| !live.contains_key(**name));
        plan.added = new.map(|name| (*name).to_owned()).collect();
        plan
    }
}

impl Core {
    /// Makes `config` the running configuration. If `fresh` is set, reads the cost model's file
    /// again.
    ///
    /// # Errors
    /// Returns an error if too many cycles are sold, if the rules do not fit a table, or if a
    /// connected driver would lose a feature. If the new configuration is refused, the running
    /// configuration does not change. Returns an error if a worker has ended.
    pub(super) fn apply(
        &self,
        config: HostConfig,
        text: Arc<str>,
        fresh: bool,
    ) -> Result<Outcome, ApiError> {
        let (old, before, generation, live, in_use) = {
            let shared = lock(&self.shared);
            let (old, compiler) = (Arc::clone(&shared.config), shared.compiler.clone());
            let in_use = Arc::clone(&shared.pricing.snapshot);
            (old, compiler, shared.generation + 1, shared.ports.clone(), in_use)
        };
        let mut offer = self.offer(&config, &before.ids().next(&config), fresh)?;
        let mut compiler = before.clone();
        compiler.sell(core::mem::take(&mut offer.sold));
        compiler.ring(vcpus::bells(&config, &mut offer.warnings));
        let snapshot = compiler
            .compile(&config, generation)
            .map_err(|(rule, error)| table_error(&config, rule, &error.to_string()))?;
        let wanted: BTreeMap<&str, Attachment> = config
            .ports
            .iter()
            .filter_map(|port| Some((port.name.as_str(), port.attachment()?)))
            .collect();
        let plan = PortChanges::new(&live, &wanted);
        for name in &plan.reattached {
            if let (Some(port), Some(new)) = (live.get(name), wanted.get(name.as_str())) {
                keeps_its_driver(name, port, new)?;
            }
        }
        for name in plan.removed.iter().chain(&plan.reattached) {
            self.detach(name).map_err(worker_failed)?;
        }
        compiler.pace(&config);
        // The workers handle only the ports that differ from their present snapshot.
        let snapshot = snapshot.following(&in_use);
        self.switch.swap_snapshot(Arc::clone(&snapshot)).map_err(worker_failed)?;
        let mut outcome = Outcome { changes: changes(&old, &config, &plan), ..Outcome::default() };
        outcome.warnings.append(&mut offer.warnings);
        outcome.warnings.extend(vcpus::outdated(&old, &config));
        self.accept(offer, snapshot);
        let statics = (before.statics().to_vec(), compiler.statics().to_vec());
        let config = Arc::new(config);
        self.commit(&config, text, generation, &before, compiler, &plan);
        self.pin(&statics.0, &statics.1, &plan, &mut outcome).map_err(worker_failed)?;
        for name in plan.reattached.iter().chain(&plan.added) {
            if let Err(error) = self.attach(name) {
                outcome.failed.push((name.clone(), error));
            }
        }
        self.place(&live).map_err(worker_failed)?;
        Ok(outcome)
    }

    /// Stores the new configuration in the state of the host. When `commit` runs, new ports of the
    /// configuration are not attached yet.
    fn commit(
        &self,
        config: &Arc<HostConfig>,
        text: Arc<str>,
        generation: u64,
        before: &Compiler,
        compiler: Compiler,
        plan: &PortChanges,
    ) {
        let mut shared = lock(&self.shared);
        let shared = &mut *shared;
        shared.network.settle(&shared.config, &shared.ports);
        shared.network.keep(config);
        for name in &plan.removed {
            if let Some(port) = shared.ports.remove(name) {
                if let Some(pairs) = compiler.pairs() {
                    pairs.forget(port.id.0);
                }
                let last = port.counters.read();
                if last != PortReading::default() {
                    shared.deleted.get_or_insert_default().merge(&last);
                }
            }
        }
        for port in &config.ports {
            let (Some(id), Some(attachment)) = (compiler.ids().port(&port.name), port.attachment())
            else {
                continue;
            };
            let home = usize::from(id) % shared.watches.len().max(1);
            let one = config.is_one_workers(port).then(|| u16::try_from(home).unwrap_or(0));
            let worker = port.worker.or(one);
            if let Some(live) = shared.ports.get_mut(&port.name) {
                live.attachment = attachment;
                live.worker = worker;
                continue;
            }
            let (id, counters) = (PortId(id), PortCounterSets::new(shared.watches.len()));
            let (link, error) = (None, None);
            let live = LivePort { id, attachment, counters, worker, link, error };
            shared.ports.insert(port.name.clone(), live);
        }
        for (rule, count) in before.hits_left_behind(&compiler) {
            *shared.hits.entry(rule).or_default() += count;
        }
        let rules: BTreeSet<&str> = config.rules.iter().map(|rule| rule.name.as_str()).collect();
        shared.hits.retain(|name, _| rules.contains(name.as_str()));
        shared.config = Arc::clone(config);
        shared.text = text;
        shared.generation = generation;
        shared.compiler = compiler;
    }

    /// If the key `worker` of an attached port has changed, moves the port to the named worker.
    /// Frames keep flowing.
    fn place(&self, before: &BTreeMap<String, LivePort>) -> Result<(), WorkerError> {
        let now = lock(&self.shared).ports.clone();
        for (name, port) in now.iter().filter(|(_, port)| port.link.is_some()) {
            if before.get(name).is_some_and(|before| before.worker != port.worker) {
                self.switch.place(port.id, port.attachment.queues(), port.worker)?;
            }
        }
        Ok(())
    }

    pub(super) fn attach(&self, name: &str) -> Result<(), AttachError> {
        let Some(port) = lock(&self.shared).ports.get(name).cloned() else { return Ok(()) };
        let attached =
            self.switch.attach(port.id, name, &port.attachment, port.worker, &port.counters);
        let mut shared = lock(&self.shared);
        let Some(port) = shared.ports.get_mut(name) else { return Ok(()) };
        match attached {
            Ok(link) => {
                port.link = Some(link);
                port.error = None;
                Ok(())
            }
            Err(error) => {
                port.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Detaches a port if the port is attached.
    pub(super) fn detach(&self, name: &str) -> Result<(), WorkerError> {
        let port = {
            let mut shared = lock(&self.shared);
            shared.ports.get_mut(name).map(|port| (port.id, port.link.take()))
        };
        match port {
            Some((id, Some(link))) => self.switch.detach(id, link),
            _ => Ok(()),
        }
    }

    /// Updates the static addresses in the workers' MAC tables. If a port was attached again, its
    /// static addresses were lost and are set again.
    fn pin(
        &self,
        old: &[StaticAddress],
        new: &[StaticAddress],
        plan: &PortChanges,
        outcome: &mut Outcome,
    ) -> Result<(), WorkerError> {
        let (old, new): (BTreeSet<_>, BTreeSet<_>) = (old.iter().collect(), new.iter().collect());
        let (touched, names) = {
            let shared = lock(&self.shared);
            let names = plan.reattached.iter().chain(&plan.added);
            let ids: BTreeSet<u16> =
                names.filter_map(|name| Some(shared.ports.get(name)?.id.0)).collect();
            (ids, shared.compiler.ids().clone())
        };
        for gone in old.difference(&new) {
            self.switch.fdb_static(gone.domain, gone.mac, PortId(gone.port), false)?;
        }
        let due =
            |address: &&&StaticAddress| !old.contains(*address) || touched.contains(&address.port);
        for address in new.iter().filter(due) {
            match self.switch.fdb_static(address.domain, address.mac, PortId(address.port), true) {
                Ok(()) => {}
                Err(gone @ WorkerError::Gone(_)) => return Err(gone),
                Err(error) => {
                    let port = names.port_name(address.port).unwrap_or_default();
                    outcome.warnings.push(format!("fdb {} of port {port}: {error}", address.mac));
                }
            }
        }
        Ok(())
    }

    /// Sets the static addresses of a port after it was attached.
    pub(super) fn pin_again(&self, name: &str) {
        let (id, addresses) = {
            let shared = lock(&self.shared);
            let Some(port) = shared.ports.get(name) else { return };
            (port.id, shared.compiler.statics().to_vec())
        };
        for address in addresses.iter().filter(|address| address.port == id.0) {
            if let Err(error) = self.switch.fdb_static(address.domain, address.mac, id, true) {
                tracing::warn!("fdb {} of port {name}: {error}", address.mac);
            }
        }
    }
}

/// Checks that the attachment `new` keeps the features and queue pairs that a connected driver has
/// negotiated. A running guest cannot give up a negotiated feature: all connections of the guest
/// would break.
fn keeps_its_driver(name: &str, port: &LivePort, new: &Attachment) -> Result<(), ApiError> {
    let Attachment::VhostUser(VhostUser { offloads, queues, .. }) = new else { return Ok(()) };
    let Some(status) = port.link.as_ref().map(|link| link.status()) else { return Ok(()) };
    let is_there = matches!(status.state, AttachState::Connected | AttachState::Up);
    // Another socket belongs to another driver.
    if !is_there || new.target() != port.attachment.target() {
        return Ok(());
    }
    let refused = |feature: &&&str| {
        let is_csum = feature.ends_with("csum");
        let is_tso = feature.contains("-tso");
        is_csum && !offloads.csum || is_tso && !(offloads.csum && offloads.tso)
    };
    let kept: Vec<&str> = status.features.iter().filter(refused).copied().collect();
    let problem = if !kept.is_empty() {
        format!(
            "the VM's driver is connected and uses {}, which the new `offloads` disables",
            kept.join(", ")
        )
    } else if status.queues_up > queues.0 {
        let up = status.queues_up;
        format!(
            "the VM's driver is connected and uses {up} queue pairs, but `queues` would be {}",
            queues.0
        )
    } else {
        return Ok(());
    };
    let remedy = "shut the VM down first: a driver negotiates only when it starts";
    Err(ApiError::new(ErrorKind::Conflict, format!("port {name:?}"), problem, remedy))
}

fn table_error(config: &HostConfig, rule: usize, problem: &str) -> ApiError {
    let name = config.rules.get(rule).map_or("?", |rule| rule.name.as_str());
    let remedy = "use fewer combinations of fields, prefix lengths and port ranges";
    ApiError::new(ErrorKind::Invalid, format!("rule {name:?}"), problem, remedy)
}

/// Returns the differences between two configurations as text.
fn changes(old: &HostConfig, new: &HostConfig, plan: &PortChanges) -> Vec<String> {
    let mut all = Vec::new();
    for (name, differs) in [
        ("[host]", old.host != new.host),
        ("[worker]", old.worker != new.worker),
        ("[forwarding]", old.forwarding != new.forwarding),
        ("[vcpu]", old.vcpu != new.vcpu),
    ] {
        if differs {
            all.push(format!("{name} changed"));
        }
    }
    named("tenant", &old.tenants, &new.tenants, |tenant| &tenant.name, &mut all);
    named("port", &old.ports, &new.ports, |port| &port.name, &mut all);
    named("vm", &old.vms, &new.vms, |vm| &vm.name, &mut all);
    for name in &plan.reattached {
        all.push(format!("port {name} attached again"));
    }
    named("rule", &old.rules, &new.rules, |rule| &rule.name, &mut all);
    if old.fdb != new.fdb {
        all.push(format!("static addresses: {} now, {} before", new.fdb.len(), old.fdb.len()));
    }
    all
}

fn named<T: PartialEq>(
    kind: &str,
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> &str,
    all: &mut Vec<String>,
) {
    let before: BTreeMap<&str, &T> = old.iter().map(|object| (name(object), object)).collect();
    let after: BTreeMap<&str, &T> = new.iter().map(|object| (name(object), object)).collect();
    for gone in before.keys().filter(|key| !after.contains_key(*key)) {
        all.push(format!("{kind} {gone} removed"));
    }
    for (key, object) in &after {
        match before.get(key) {
            None => all.push(format!("{kind} {key} added")),
            Some(old) if old != object => all.push(format!("{kind} {key} changed")),
            Some(_) => {}
        }
    }
}
