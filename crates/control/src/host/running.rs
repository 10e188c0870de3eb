//! The running host: the object behind the API.
//!
//! # Problem
//! Files, clients and ports change at any moment. The worker must see one consistent state, and a
//! failed change must change nothing.
//!
//! # Approach
//! Every change takes the same steps: edit the configuration's text, read the *whole* result like a
//! file, compile one snapshot, apply the difference, save. A mistake ends the change before its
//! first effect. A failed attachment is rolled back.
//!
//! There are two locks. One is held for a whole change, so that changes follow each other. The
//! other lock guards the state of readings. It is never held during a request to the worker or the
//! kernel, so that readings show a stalled worker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};

use penstock_dataplane::port::peer_memory::set_memory_limits;
use penstock_qos::learner::PortLearning;
use penstock_units::Nanos;

use super::apply::{Core, Outcome, lock, worker_failed};
use super::data_path::DataPath;
use super::error::{ApiError, ErrorKind, HostError};
use super::explaining::Past;
use super::ledger::{Ledger, NetworkUse};
use super::links::Handlers;
use super::live::LiveSwitch;
use super::overlay::Overlay;
use super::pricing::Pricing;
use super::readings::FdbFilter;
use super::state::{Changing, LivePort, Shared, StallChange, Watch};
use crate::api::{ChangeReport, Explanation, FdbEntry, FlowStatus, HostStatus, PortStatus, Stats};
use crate::config::{
    self, ConfigError, ConfigErrors, Edit, EditError, HostConfig, Kind, Machine, Port, Rule, Tenant,
};
use crate::plan::CapacityPlan;
use crate::snapshot::Compiler;

/// Interval between two attempts to attach ports in state `error`.
const RETRY: Nanos = Nanos::from_secs(1);

/// The running host. All calls block, usually for milliseconds. Dropping this value shuts the host
/// down.
pub struct Host {
    pub(super) core: Core,
    pub(super) changing: Mutex<Changing>,
    pub(super) links: Handlers,
    pub(super) past: Past,
    pub(super) path: Option<PathBuf>,
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Host {
    /// Starts the workers and attaches the ports. `config` comes from [`crate::config::load`] of
    /// `config_path`; the command line may have changed its `[host]`. Without a path, changes last
    /// until shutdown. A port that cannot be attached is in state `error`, and [`Self::tick`] tries
    /// it again.
    ///
    /// # Errors
    /// The configuration has mistakes or was changed after it was loaded, or a worker cannot start.
    pub fn start(config: HostConfig, config_path: Option<PathBuf>) -> Result<Self, HostError> {
        let machine = Machine::here();
        let make = |config: &HostConfig| -> Result<Box<dyn DataPath>, ApiError> {
            set_memory_limits(config.host.memory_limits());
            let switch = LiveSwitch::start(config, &Machine::here()).map_err(worker_failed)?;
            Ok(Box::new(switch))
        };
        Self::start_with(config, config_path, machine, make)
    }

    fn start_with(
        config: HostConfig,
        path: Option<PathBuf>,
        machine: Machine,
        make: impl FnOnce(&HostConfig) -> Result<Box<dyn DataPath>, ApiError>,
    ) -> Result<Self, HostError> {
        let (text, file_text) = match &path {
            Some(path) => {
                let text = config::read_file(path)?;
                (text.clone(), Some(text))
            }
            None => (config::text_of(&config).map_err(|error| ConfigErrors(vec![error]))?, None),
        };
        let file = config::parse_on(&text, &file_name(path.as_deref()), &machine)?;
        let file_host = file.host.clone();
        if (HostConfig { host: config.host.clone(), ..file }) != config {
            let (problem, remedy) = ("it was changed while the daemon started", "start again");
            let object = format!("file {}", file_name(path.as_deref()));
            return Err(ApiError::new(ErrorKind::Conflict, object, problem, remedy).into());
        }
        let switch = make(&config)?;
        let workers = switch.workers().len();
        // The state before the first change: the same host without objects.
        let empty = HostConfig {
            tenants: Vec::new(),
            ports: Vec::new(),
            vms: Vec::new(),
            rules: Vec::new(),
            fdb: Vec::new(),
            ..config.clone()
        };
        let shared = Shared {
            config: Arc::new(empty),
            text: Arc::from(""),
            compiler: Compiler::for_workers(workers),
            ports: Default::default(),
            generation: 0,
            hits: Default::default(),
            deleted: None,
            watches: vec![Watch::default(); workers],
            pricing: Pricing::default(),
            network: Ledger::default(),
        };
        // Before the first plan all tenants share queue 0.
        let overlay = Overlay::default();
        let config = overlay.over(config);
        let (next_retry, stopped) = (Nanos::ZERO, false);
        let changing = Changing { machine, file_text, file_host, next_retry, stopped, overlay };
        let dir = Core::dir_of(path.as_deref());
        let core = Core { switch, shared: Mutex::new(shared), dir };
        let links = Handlers::default();
        let past = Past::default();
        let host = Self { core, changing: Mutex::new(changing), links, past, path };
        let outdated = config::outdated(&text);
        let outcome = host.core.apply(config, text.into(), true)?;
        for warning in warnings(outcome).into_iter().chain(outdated) {
            tracing::warn!("{warning}");
        }
        Ok(host)
    }

    #[must_use]
    pub fn status(&self) -> HostStatus {
        self.core.status(self.path.as_ref().map(|p| p.display().to_string()).unwrap_or_default())
    }

    /// State of each port, in the order of the configuration.
    #[must_use]
    pub fn ports(&self) -> Vec<PortStatus> {
        self.core.port_states()
    }

    /// Traffic between each tenant's ports and shared ports since the tenant exists. Tenants that
    /// never had a port are missing.
    #[must_use]
    pub fn network_use(&self) -> BTreeMap<String, NetworkUse> {
        let mut shared = lock(&self.core.shared);
        let shared = &mut *shared;
        shared.network.settle(&shared.config, &shared.ports);
        shared.network.by_tenant.clone()
    }

    #[must_use]
    pub fn config(&self) -> Arc<HostConfig> {
        Arc::clone(&lock(&self.core.shared).config)
    }

    #[must_use]
    pub fn port_configs(&self) -> Vec<Port> {
        self.config().ports.clone()
    }

    #[must_use]
    pub fn tenants(&self) -> Vec<Tenant> {
        self.config().tenants.clone()
    }

    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        self.config().rules.clone()
    }

    /// Each rule with its hits. The rule with the highest priority comes first.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowStatus> {
        self.core.flow_states()
    }

    /// The MAC addresses that match `filter`, ordered by tenant, VLAN and address.
    ///
    /// # Errors
    /// The filter names an object that does not exist, or the worker has ended.
    pub fn fdb(&self, filter: &FdbFilter) -> Result<Vec<FdbEntry>, ApiError> {
        self.core.addresses(filter)
    }

    /// Removes the learned addresses that match `filter`. Returns the number of removed addresses.
    ///
    /// # Errors
    /// The filter names an object that does not exist, or the worker has ended.
    pub fn fdb_flush(&self, filter: &FdbFilter) -> Result<usize, ApiError> {
        self.core.flush(filter)
    }

    /// All counters. If `exact`, the worker reads them between two batches, and the sums are
    /// checked.
    ///
    /// # Errors
    /// The worker has ended. This error occurs only if `exact` is set.
    pub fn stats(&self, exact: bool) -> Result<Stats, ApiError> {
        // A port that is added or removed meanwhile would count twice or not at all.
        let _no_changes = exact.then(|| lock(&self.changing));
        let mut stats = self.core.counters(exact)?;
        stats.links = self.links.status(&self.core);
        Ok(stats)
    }

    /// Limits VMs to their parts of a link while the link is the bottleneck. Call this function
    /// every [`penstock_qos::bottleneck::INTERVAL`] with a monotonic time. It never waits for a
    /// change.
    pub fn watch_links(&self, now: Nanos) {
        self.links.look(&self.core, now);
    }

    /// The capacity plan in force.
    #[must_use]
    pub fn plan(&self) -> Arc<CapacityPlan> {
        Arc::clone(&lock(&self.core.shared).pricing.plan)
    }

    /// The learned state of each port that bought cycles, by name.
    #[must_use]
    pub fn learning(&self) -> Vec<(String, PortLearning)> {
        self.core.learning()
    }

    /// Records a reading for [`Self::explain`]. Call this function at least once a second.
    pub fn remember(&self) {
        self.past.remember(&self.core);
    }

    /// Explains a port's rate from the counters of the last `seconds`, at most 10.
    ///
    /// # Errors
    /// The port does not exist, or the daemon has just started.
    pub fn explain(&self, port: &str, seconds: u64) -> Result<Explanation, ApiError> {
        let links = self.links.status(&self.core);
        self.past.explain(&self.core, links, port, seconds)
    }

    /// Adds a port. If `save` is set, the configuration file is changed too. Otherwise the change
    /// ends at a restart or reload. `save` has the same meaning in all functions that change the
    /// host.
    ///
    /// # Errors
    /// The request is invalid, contradicts the configuration, or failed. Nothing was changed.
    pub fn add_port(&self, port: Port, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::AddPort(&port), save)
    }

    /// Sets keys of a port, as in `("vlan", "300")` or `("trunk", "1,5-9")`. An empty value removes
    /// the key.
    ///
    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn set_port(
        &self,
        name: &str,
        changes: &[(String, String)],
        save: bool,
    ) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Set(Kind::Port, name, changes), save)
    }

    /// Deletes a port. No rule and no static address may refer to it.
    ///
    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn del_port(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Delete(Kind::Port, name), save)
    }

    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn add_tenant(&self, tenant: Tenant, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::AddTenant(&tenant), save)
    }

    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn set_tenant(
        &self,
        name: &str,
        changes: &[(String, String)],
        save: bool,
    ) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Set(Kind::Tenant, name, changes), save)
    }

    /// Deletes a tenant. No object may refer to it.
    ///
    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn del_tenant(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Delete(Kind::Tenant, name), save)
    }

    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn add_rule(&self, rule: Rule, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::AddRule(&rule), save)
    }

    /// # Errors
    /// The same as for [`Self::add_port`].
    pub fn del_rule(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Delete(Kind::Rule, name), save)
    }

    /// Makes one change: checks the whole configuration, applies and saves it.
    fn change(&self, edit: &Edit<'_>, save: bool) -> Result<ChangeReport, ApiError> {
        let mut changing = lock(&self.changing);
        if changing.stopped {
            return Err(stopped());
        }
        let (old, old_text) = {
            let shared = lock(&self.core.shared);
            (Arc::clone(&shared.config), Arc::clone(&shared.text))
        };
        let text = edit.apply(&old_text).map_err(|error| edit_error(edit, &error))?;
        let parsed = config::parse_on(&text, "", &changing.machine);
        let config = changing.running(parsed.map_err(|errors| change_error(edit, errors))?, &old);
        let file = if save { self.edited_file(edit, &changing)? } else { None };
        let outcome = self.core.apply(config, text.into(), false)?;
        let problem = match outcome.failed.first() {
            Some((port, error)) => Some(ApiError::new(
                ErrorKind::Failed,
                format!("port {port:?}"),
                &error.problem,
                &error.remedy,
            )),
            None => match (&self.path, &file) {
                (Some(path), Some(text)) => config::save(path, text).err().map(|error| {
                    let remedy = "make it writable, or change without saving";
                    let problem = format!("it cannot be written: {error}");
                    ApiError::new(
                        ErrorKind::Failed,
                        format!("file {}", path.display()),
                        problem,
                        remedy,
                    )
                }),
                _ => None,
            },
        };
        if let Some(problem) = problem {
            for warning in warnings(self.core.apply(HostConfig::clone(&old), old_text, false)?) {
                tracing::warn!("{warning}");
            }
            return Err(problem);
        }
        if let Some(file) = file {
            changing.file_text = Some(file);
        }
        Ok(self.report(outcome))
    }

    /// The file's text after the change; `None` without a file, or if the object was never in it.
    fn edited_file(
        &self,
        edit: &Edit<'_>,
        changing: &Changing,
    ) -> Result<Option<String>, ApiError> {
        let Some(path) = &self.path else { return Ok(None) };
        let object = format!("file {}", path.display());
        let disk = config::read_file(path)?;
        if Some(&disk) != changing.file_text.as_ref() {
            let problem = "it was changed by someone else since it was read";
            let remedy = "reload it first, or change without saving";
            return Err(ApiError::new(ErrorKind::Conflict, object, problem, remedy));
        }
        let text = match edit.apply(&disk) {
            Ok(text) => text,
            Err(EditError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(edit_error(edit, &error)),
        };
        match config::parse_on(&text, &file_name(Some(path)), &changing.machine) {
            Ok(_) => Ok(Some(text)),
            Err(errors) => {
                let error = ApiError::from(errors);
                let problem = format!("it would be wrong: {}: {}", error.object, error.problem);
                let remedy = "save what this refers to first, or change without saving";
                Err(ApiError::new(ErrorKind::Invalid, object, problem, remedy))
            }
        }
    }

    /// Reads the configuration file again and applies the differences. If the file has a mistake,
    /// nothing changes.
    ///
    /// # Errors
    /// All mistakes in the file.
    pub fn reload(&self) -> Result<ChangeReport, ConfigErrors> {
        let mut changing = lock(&self.changing);
        let name = file_name(self.path.as_deref());
        let failed = |object: String, problem: String, remedy: String| {
            let file = name.clone();
            ConfigErrors(vec![ConfigError { file, line: 0, column: 0, object, problem, remedy }])
        };
        let api_failed = |error: ApiError| failed(error.object, error.problem, error.remedy);
        if changing.stopped {
            return Err(api_failed(stopped()));
        }
        let Some(path) = &self.path else {
            let problem = "the daemon was started without one".to_owned();
            return Err(failed("file".to_owned(), problem, "start it with --config".to_owned()));
        };
        let text = config::read_file(path)?;
        let parsed = config::parse_on(&text, &name, &changing.machine)?;
        let old = self.config();
        let restart = needs_restart(&changing, &old, &parsed);
        let config = changing.running(parsed, &old);
        // The model's file may have changed although the configuration is the same.
        let mut outcome = if config == *old && config.model.file.is_none() {
            lock(&self.core.shared).text = text.clone().into();
            Outcome::default()
        } else {
            self.core.apply(config, text.clone().into(), true).map_err(api_failed)?
        };
        outcome.warnings.extend(config::outdated(&text));
        // A refused file does not become the text of this host.
        changing.file_text = Some(text);
        outcome.warnings.extend(restart);
        Ok(self.report(outcome))
    }

    /// The running configuration as TOML, with unsaved changes.
    #[must_use]
    pub fn config_toml(&self) -> String {
        lock(&self.core.shared).text.to_string()
    }

    /// Checks the workers' heartbeats, attaches ports in state `error` again, and lets the cost
    /// model learn. Call this function a few times a second with a monotonic time.
    pub fn tick(&self, now: Nanos) {
        for (id, (reading, _)) in self.core.switch.workers().iter().enumerate() {
            let seen = match lock(&self.core.shared).watches.get_mut(id) {
                Some(watch) => watch.look(reading.heartbeat, now),
                None => StallChange::Nothing,
            };
            match seen {
                StallChange::Stalled => {
                    tracing::error!("worker {id} is stalled: no heartbeat for over 1 s");
                }
                StallChange::Recovered => tracing::info!("worker {id} runs again"),
                StallChange::Nothing => {}
            }
        }
        // A change may wait for the worker. The watchdog must not wait for the change.
        let mut changing = match self.changing.try_lock() {
            Ok(changing) => changing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !changing.stopped && now >= changing.next_retry {
            changing.next_retry = now + RETRY;
            self.retry();
        }
        if !changing.stopped
            && let Err(error) = self.core.learn(now)
        {
            tracing::warn!("the cost model cannot learn: {error}");
        }
    }

    /// Detaches ports without their interface, so that they are attached again when it returns.
    fn let_go(&self) {
        let gone: Vec<String> = {
            let shared = lock(&self.core.shared);
            let is_gone = |port: &LivePort| port.link.as_ref().is_some_and(|link| link.is_gone());
            let ports = shared.ports.iter().filter(|(_, port)| is_gone(port));
            ports.map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            match self.core.detach(&name) {
                Ok(()) => tracing::warn!("port {name}: its interface is gone"),
                Err(error) => tracing::warn!("port {name}: {error}"),
            }
        }
    }

    /// Tries to attach unattached ports. It logs a success, and a failure with a new reason.
    fn retry(&self) {
        self.let_go();
        let broken: Vec<_> = {
            let shared = lock(&self.core.shared);
            let ports = shared.ports.iter().filter(|(_, port)| port.link.is_none());
            ports.map(|(name, port)| (name.clone(), port.error.clone())).collect()
        };
        for (name, before) in broken {
            match self.core.attach(&name) {
                Ok(()) => {
                    tracing::info!("port {name}: attached");
                    self.core.pin_again(&name);
                }
                Err(error) if before.as_ref() == Some(&error) => {}
                Err(error) => tracing::warn!("port {name}: {error}"),
            }
        }
    }

    /// Detaches all ports and stops the workers. Later changes fail. A second call does nothing.
    ///
    /// # Errors
    /// A worker had ended before.
    pub fn shutdown(&self) -> Result<(), ApiError> {
        let mut changing = lock(&self.changing);
        if core::mem::replace(&mut changing.stopped, true) {
            return Ok(());
        }
        let names: Vec<String> = lock(&self.core.shared).ports.keys().cloned().collect();
        for name in names {
            self.core.detach(&name).map_err(worker_failed)?;
        }
        self.core.switch.stop().map_err(worker_failed)
    }

    fn report(&self, outcome: Outcome) -> ChangeReport {
        let generation = lock(&self.core.shared).generation;
        let changes = outcome.changes.clone();
        ChangeReport { generation, changes, warnings: warnings(outcome) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.shutdown() {
            tracing::warn!("{error}");
        }
    }
}

fn file_name(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

pub(super) fn stopped() -> ApiError {
    ApiError::new(ErrorKind::Failed, "host", "it is shutting down", "start the daemon again")
}

pub(super) fn warnings(outcome: Outcome) -> Vec<String> {
    let failed = outcome.failed.into_iter();
    let failed = failed.map(|(port, error)| format!("port {port}: {error}"));
    outcome.warnings.into_iter().chain(failed).collect()
}

fn edit_error(edit: &Edit<'_>, error: &EditError) -> ApiError {
    let (kind, name) = edit.object();
    let (status, remedy) = match error {
        EditError::NotFound(_) => {
            (ErrorKind::NotFound, format!("see penstock {} list", kind.name()))
        }
        EditError::Taken => {
            (ErrorKind::Conflict, "choose another, or set the one there is".to_owned())
        }
        EditError::Name => (ErrorKind::Invalid, "delete it and add it again".to_owned()),
        _ => (ErrorKind::Failed, "correct the configuration file and reload it".to_owned()),
    };
    ApiError::new(status, format!("{} {name:?}", kind.name()), error.to_string(), remedy)
}

/// Limit on objects that an error about a deletion names.
const USERS_MAX: usize = 5;

/// The error of a change with an invalid result. For a deletion it lists the objects that refer to
/// the deleted object.
fn change_error(edit: &Edit<'_>, errors: ConfigErrors) -> ApiError {
    let Edit::Delete(kind, name) = edit else { return errors.into() };
    let mut users: Vec<&str> = Vec::new();
    for error in &errors.0 {
        if !users.contains(&error.object.as_str()) {
            users.push(&error.object);
        }
    }
    let (listed, need) = match users.as_slice() {
        [one] => ((*one).to_owned(), "needs"),
        [some @ .., last] if users.len() <= USERS_MAX => {
            (format!("{} and {last}", some.join(", ")), "need")
        }
        _ => {
            let more = users.len() - USERS_MAX;
            (format!("{} and {more} more", users[..USERS_MAX].join(", ")), "need")
        }
    };
    let object = format!("{} {name:?}", kind.name());
    let remedy = "delete them first, or change them";
    ApiError::new(ErrorKind::Conflict, object, format!("{listed} {need} it"), remedy)
}

/// Changes in the new file that need a restart.
fn needs_restart(changing: &Changing, old: &HostConfig, new: &HostConfig) -> Vec<String> {
    let entries = old.forwarding.fdb_entries != new.forwarding.fdb_entries;
    [
        ("[host]", changing.file_host != new.host),
        ("[worker]", old.worker != new.worker),
        ("[fabric]", old.fabric != new.fabric),
        ("[switch]", old.switch != new.switch),
        ("[forwarding] fdb_entries", entries),
    ]
    .iter()
    .filter(|(_, differs)| *differs)
    .map(|(what, _)| format!("{what}: takes effect when the daemon is started again"))
    .collect()
}

#[cfg(test)]
mod tests;
