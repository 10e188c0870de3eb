//! The running host, which is the object behind the API.
//!
//! # Problem
//! The configuration file may change, clients may call, and ports may appear or disappear at any
//! moment. Each worker must see one consistent state, and a failed change must change nothing.
//!
//! # Approach
//! Every change of the configuration takes these steps:
//! 1. The host edits the text of the configuration file.
//! 2. The host reads and checks the whole changed text. If the changed text has a mistake, the host
//!    keeps the old configuration.
//! 3. The host compiles the changed configuration to one snapshot for the workers.
//! 4. The host applies the differences between the old and the new configuration. If a port cannot
//!    be attached, the change is rolled back.
//! 5. The host saves the changed configuration to its file.
//!
//! The host has two locks, `changing` and the lock of `Shared`. A change of the configuration holds
//! the lock `changing` from start to end, so the host makes only one change at a time. The lock of
//! `Shared` protects the state that functions read to report counters and settings. No thread holds
//! the lock of `Shared` during a request to a worker or the kernel, so readings work even if a
//! worker is stalled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};

use penstock_dataplane::port::kept::Kept;
use penstock_dataplane::port::peer_memory::set_memory_limits;
use penstock_qos::learner::PortLearning;
use penstock_units::Nanos;

use super::apply::{Core, Outcome, lock, worker_failed};
use super::data_path::DataPath;
use super::error::{ApiError, ErrorKind, HostError};
use super::evidence::Evidence;
use super::explaining::Past;
use super::labels::{ObjectLabel, named};
use super::ledger::{Ledger, NetworkUse};
use super::links::Handlers;
use super::live::{KeptPorts, LiveSwitch};
use super::overlay::{Overlay, PortQueues};
use super::pair_rates::PairRates;
use super::pricing::Pricing;
use super::readings::FdbFilter;
use super::state::{Changing, LivePort, Shared, StallChange, Watch};
use crate::api::{ChangeReport, Explanation, FdbEntry, FlowStatus, HostStatus, PortStatus, Stats};
use crate::config::{
    self, ConfigError, ConfigErrors, Edit, EditError, HostConfig, Kind, Machine, Port, Rule, Tenant,
};
use crate::pair_control::PairUse;
use crate::plan::CapacityPlan;
use crate::report::Cause;
use crate::snapshot::Compiler;

/// Interval between two attempts to attach ports in state `error`.
const RETRY: Nanos = Nanos::from_secs(1);

/// The running host. All functions of `Host` block, usually for milliseconds. Dropping a `Host`
/// shuts the host down.
pub struct Host {
    pub(super) core: Core,
    pub(super) changing: Mutex<Changing>,
    pub(super) links: Handlers,
    pub(super) pairs: PairRates,
    pub(super) past: Past,
    pub(super) evidence: Evidence,
    pub(super) path: Option<PathBuf>,
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Host {
    /// Starts the workers and attaches the ports. `config` is the content of the file
    /// `config_path`, as [`crate::config::load`] returned it. Command-line options may override
    /// keys of `[host]`. If `config_path` is `None`, changes of the configuration are lost at
    /// shutdown. A port that cannot be attached is in state `error`, and [`Self::tick`] tries to
    /// attach it again.
    ///
    /// # Errors
    /// Returns an error if the configuration has mistakes or was changed after it was loaded, or if
    /// a worker cannot start.
    pub fn start(config: HostConfig, config_path: Option<PathBuf>) -> Result<Self, HostError> {
        let host = Self::start_from(config, config_path, Vec::new(), &BTreeMap::new())?;
        host.take_over();
        Ok(host)
    }

    /// Like [`Self::start`], but ports continue the sessions that the former process kept
    /// ([`Self::hand_over`]). Sessions of ports that the configuration does not have end. No frame
    /// flows before the caller calls [`Self::take_over`]. If the process ends before that call, the
    /// states are in their carriers for the next start. The caller must then call
    /// [`Self::hand_over`] before it drops the host, because the host would hang up.
    ///
    /// On a switch of a fabric, `queues` has the queues of its ports from before the restart. The
    /// queues are in force before the first frame. So no frame meets a code point without a queue.
    ///
    /// # Errors
    /// Returns an error as [`Self::start`] does.
    pub fn start_from(
        config: HostConfig,
        config_path: Option<PathBuf>,
        kept: Vec<Kept>,
        queues: &BTreeMap<String, PortQueues>,
    ) -> Result<Self, HostError> {
        let machine = Machine::here();
        let (mut ports, mut addresses) = (Vec::new(), Vec::new());
        for mut kept in kept {
            match kept.take_addresses() {
                Some(found) => addresses.extend(found),
                None => ports.push(kept),
            }
        }
        let kept = Arc::new(KeptPorts::new(ports));
        let make = |config: &HostConfig| -> Result<Box<dyn DataPath>, ApiError> {
            set_memory_limits(config.host.memory_limits());
            let switch = LiveSwitch::start(config, &Machine::here(), Arc::clone(&kept));
            Ok(Box::new(switch.map_err(worker_failed)?))
        };
        let overlay = Overlay::of_switch(queues);
        let host = Self::start_with(config, config_path, (machine, overlay), make)?;
        kept.drop_rest();
        host.core.relearn(&addresses)?;
        // The sessions continue at the same time. No port may send to one that does not run yet.
        let links = lock(&host.core.shared).attached();
        links.iter().for_each(|(_, link)| link.await_continued());
        Ok(host)
    }

    /// Takes the sessions of the former process over, and lets frames flow. The caller calls this
    /// function after [`Self::start_from`], when the start can no longer fail: the sessions end if
    /// the process crashes later.
    pub fn take_over(&self) {
        let links = lock(&self.core.shared).attached();
        links.iter().for_each(|(_, link)| link.take_over());
        self.core.switch.resume();
    }

    fn start_with(
        config: HostConfig,
        path: Option<PathBuf>,
        (machine, overlay): (Machine, Overlay),
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
            let (problem, remedy) =
                ("the file was changed while the daemon started", "start again");
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
        // Before the first plan of a server, all tenants share queue 0.
        let config = overlay.over(config);
        let (next_retry, stopped) = (Nanos::ZERO, false);
        let changing = Changing { machine, file_text, file_host, next_retry, stopped, overlay };
        let dir = Core::dir_of(path.as_deref());
        let core = Core { switch, shared: Mutex::new(shared), dir };
        let (links, pairs) = (Handlers::default(), PairRates::default());
        let (past, evidence) = (Past::default(), Evidence::default());
        let changing = Mutex::new(changing);
        let host = Self { core, changing, links, pairs, past, evidence, path };
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

    /// Returns the state of each port, in the order of the configuration.
    #[must_use]
    pub fn ports(&self) -> Vec<PortStatus> {
        self.core.port_states()
    }

    /// Returns the traffic between each tenant's ports and shared ports since the tenant exists.
    /// The returned map omits tenants that never had a port.
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

    /// Returns the name of the port that `text` names: the port's name, or a label `KEY=VALUE` that
    /// only this port has.
    ///
    /// # Errors
    /// Returns an error if no port or several ports have the label.
    pub fn port_named(&self, text: &str) -> Result<String, ApiError> {
        let config = self.config();
        let ports = config.ports.iter();
        named("port", text, ports.map(|port| (port.name.as_str(), port.labels.as_map())))
    }

    /// Like [`Self::port_named`], for a tenant.
    ///
    /// # Errors
    /// Returns an error if no tenant or several tenants have the label.
    pub fn tenant_named(&self, text: &str) -> Result<String, ApiError> {
        let config = self.config();
        let tenants = config.tenants.iter();
        named("tenant", text, tenants.map(|of| (of.name.as_str(), of.labels.as_map())))
    }

    /// Returns the labels of all ports, tenants and VMs.
    #[must_use]
    pub fn labels(&self) -> Vec<ObjectLabel> {
        let config = self.config();
        let ports = config.ports.iter().map(|of| ("port", &of.name, &of.labels));
        let tenants = config.tenants.iter().map(|of| ("tenant", &of.name, &of.labels));
        let vms = config.vms.iter().map(|of| ("vm", &of.name, &of.labels));
        let all = ports.chain(tenants).chain(vms);
        let labels = all.flat_map(|(kind, name, labels)| {
            labels.iter().map(move |(label, value)| ObjectLabel {
                kind,
                name: name.clone(),
                label: label.to_owned(),
                value: value.to_owned(),
            })
        });
        labels.collect()
    }

    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        self.config().rules.clone()
    }

    /// Returns each rule with its hits, in descending order of priority.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowStatus> {
        self.core.flow_states()
    }

    /// Returns the MAC addresses that match `filter`, ordered by tenant, VLAN and address.
    ///
    /// # Errors
    /// Returns an error if the filter names an object that does not exist, or if the worker has
    /// ended.
    pub fn fdb(&self, filter: &FdbFilter) -> Result<Vec<FdbEntry>, ApiError> {
        self.core.addresses(filter)
    }

    /// Removes the learned MAC addresses that match `filter`. Returns the number of removed MAC
    /// addresses.
    ///
    /// # Errors
    /// Returns an error if the filter names an object that does not exist, or if the worker has
    /// ended.
    pub fn fdb_flush(&self, filter: &FdbFilter) -> Result<usize, ApiError> {
        self.core.flush(filter)
    }

    /// Returns all counters. If `exact` is set, each worker reads the counters between two batches,
    /// and the function checks the sums of the counters.
    ///
    /// # Errors
    /// Returns an error if a worker has ended. Without `exact`, reading the counters involves no
    /// worker and cannot fail.
    pub fn stats(&self, exact: bool) -> Result<Stats, ApiError> {
        // A port that is added or removed during the reading would count twice or not at all.
        let _no_changes = exact.then(|| lock(&self.changing));
        let mut stats = self.core.counters(exact)?;
        stats.links = self.links.status(&self.core);
        Ok(stats)
    }

    /// Limits VMs to their parts of a link while this link is the bottleneck. The caller must call
    /// `watch_links` every [`penstock_qos::bottleneck::INTERVAL`] with a monotonic time. The
    /// function `watch_links` does not wait for another thread that changes the configuration.
    pub fn watch_links(&self, now: Nanos) {
        self.links.look(&self.core, now);
    }

    /// Whether the host limits pairs of VMs, because it is in a fabric. The answer never changes.
    #[must_use]
    pub fn limits_pairs(&self) -> bool {
        self.config().fabric.is_some()
    }

    /// Sets the rates and limits of pairs of VMs. If [`Self::limits_pairs`], the caller must call
    /// `allocate_rates` every [`penstock_qos::pair_table::PERIOD`] with a monotonic time. The
    /// function does not wait for another thread that changes the configuration.
    pub fn allocate_rates(&self, now: Nanos) {
        self.pairs.period_ends(&self.core, now);
    }

    /// Returns the pairs of VMs after the last call of [`Self::allocate_rates`].
    #[must_use]
    pub fn pair_use(&self) -> PairUse {
        self.pairs.used()
    }

    /// Returns the plan of the cycles and the bandwidth that is in force.
    #[must_use]
    pub fn plan(&self) -> Arc<CapacityPlan> {
        Arc::clone(&lock(&self.core.shared).pricing.plan)
    }

    /// Returns the learned state of each port that purchased cycles, by name.
    #[must_use]
    pub fn learning(&self) -> Vec<(String, PortLearning)> {
        self.core.learning()
    }

    /// Adds a reading of the counters to the history that [`Self::explain`] uses, and once a minute
    /// writes what contracts got ([`crate::report`]). The daemon must call `remember` at least once
    /// a second, with the seconds of Unix time.
    pub fn remember(&self, unix_s: u64) {
        if let Some(moment) = self.past.remember(&self.core) {
            let links = || self.links.status(&self.core);
            self.evidence.note(&self.core, &moment, links, unix_s);
        }
    }

    /// Returns how many seconds of each port's contract had each cause, since the daemon's start.
    #[must_use]
    pub fn contract_seconds(&self) -> Vec<(String, Cause, u64)> {
        self.evidence.seconds()
    }

    /// Explains a port's rate from the counters of the last `seconds` seconds, at most 10.
    ///
    /// # Errors
    /// Returns an error if the port does not exist, or if the daemon has just started.
    pub fn explain(&self, port: &str, seconds: u64) -> Result<Explanation, ApiError> {
        let links = self.links.status(&self.core);
        self.past.explain(&self.core, links, port, seconds)
    }

    /// Adds a port. If `save` is set, the change is also written to the configuration file. Without
    /// `save`, the change lasts until a restart or reload. The argument `save` means the same in
    /// all functions that change the host's configuration.
    ///
    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed. After
    /// an error, the host and its configuration are unchanged.
    pub fn add_port(&self, port: Port, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::AddPort(&port), save)
    }

    /// Sets keys of a port, with pairs such as `("vlan", "300")` or `("trunk", "1,5-9")`. A pair
    /// with an empty value, such as `("vlan", "")`, removes the key.
    ///
    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn set_port(
        &self,
        name: &str,
        changes: &[(String, String)],
        save: bool,
    ) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Set(Kind::Port, name, changes), save)
    }

    /// Deletes a port. Deleting a port fails if a rule or a static address refers to the port.
    ///
    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn del_port(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Delete(Kind::Port, name), save)
    }

    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn add_tenant(&self, tenant: Tenant, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::AddTenant(&tenant), save)
    }

    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn set_tenant(
        &self,
        name: &str,
        changes: &[(String, String)],
        save: bool,
    ) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Set(Kind::Tenant, name, changes), save)
    }

    /// Deletes a tenant. A tenant cannot be deleted while an object refers to the tenant.
    ///
    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn del_tenant(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Delete(Kind::Tenant, name), save)
    }

    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn add_rule(&self, rule: Rule, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::AddRule(&rule), save)
    }

    /// # Errors
    /// Returns an error if the request is invalid, contradicts the configuration, or failed.
    pub fn del_rule(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        self.change(&Edit::Delete(Kind::Rule, name), save)
    }

    /// Makes one change: checks the whole configuration, applies the change, and saves the
    /// configuration.
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
                    let remedy = "make the file writable, or repeat the change without saving";
                    let problem = format!("the file cannot be written: {error}");
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

    /// Returns the text of the configuration file after the change. Returns `None` if the host has
    /// no configuration file, or if this file does not contain the changed object.
    fn edited_file(
        &self,
        edit: &Edit<'_>,
        changing: &Changing,
    ) -> Result<Option<String>, ApiError> {
        let Some(path) = &self.path else { return Ok(None) };
        let object = format!("file {}", path.display());
        let unread = |errors: ConfigErrors| {
            let (kind, object) = (ErrorKind::Failed, object.clone());
            ApiError { kind, object, ..ApiError::from(errors) }
        };
        let disk = config::read_file(path).map_err(unread)?;
        if Some(&disk) != changing.file_text.as_ref() {
            let problem = "another program changed the file since the daemon read it";
            let remedy = "reload the file first, or repeat the change without saving";
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
                let problem =
                    format!("the file would be invalid: {}: {}", error.object, error.problem);
                let remedy = "first save the objects that the change needs, or repeat the change \
                              without saving";
                Err(ApiError::new(ErrorKind::Invalid, object, problem, remedy))
            }
        }
    }

    /// Reads the configuration file again and applies the differences. If the configuration file
    /// has a mistake, nothing changes.
    ///
    /// # Errors
    /// Returns all mistakes in the configuration file, not only the first mistake.
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
            let problem = "the daemon was started without a configuration file".to_owned();
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
        // Only an accepted file becomes the text of this host.
        changing.file_text = Some(text);
        outcome.warnings.extend(restart);
        Ok(self.report(outcome))
    }

    /// Returns the running configuration as TOML, with unsaved changes. After a reload, keys that
    /// need a restart have the values of the file, which are not in force yet.
    #[must_use]
    pub fn config_toml(&self) -> String {
        lock(&self.core.shared).text.to_string()
    }

    /// Checks the workers' heartbeats, attaches ports in state `error` again, and lets the cost
    /// model learn. The caller must call `tick` a few times a second with a monotonic time.
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
        // A change may wait for a worker. The check of heartbeats must not wait for the change.
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

    /// Detaches each port whose interface no longer exists. The function [`Self::retry`] attaches a
    /// port again when its interface exists again.
    fn let_go(&self) {
        let gone: Vec<String> = {
            let shared = lock(&self.core.shared);
            let is_gone = |port: &LivePort| port.link.as_ref().is_some_and(|link| link.is_gone());
            let ports = shared.ports.iter().filter(|(_, port)| is_gone(port));
            ports.map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            match self.core.detach(&name) {
                Ok(()) => tracing::warn!("port {name}: its interface no longer exists"),
                Err(error) => tracing::warn!("port {name}: {error}"),
            }
        }
    }

    /// Tries to attach all ports that are not attached. Logs each attached port, and logs a failure
    /// only if its reason is new.
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

    /// Detaches all ports and stops the workers. After `shutdown`, changes of the configuration
    /// fail. Further calls of `shutdown` do nothing.
    ///
    /// # Errors
    /// Returns an error if a worker ended before `shutdown` was called.
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
            (ErrorKind::NotFound, format!("see `penstock {} list`", kind.command()))
        }
        EditError::Taken => {
            (ErrorKind::Conflict, "choose another name, or change the existing object".to_owned())
        }
        EditError::Name => (ErrorKind::Invalid, "delete the object and add it again".to_owned()),
        _ => (ErrorKind::Failed, "correct and reload the configuration file".to_owned()),
    };
    ApiError::new(status, format!("{} {name:?}", kind.name()), error.to_string(), remedy)
}

/// Limit on the number of objects that an error about a deletion names.
const USERS_MAX: usize = 5;

/// Returns the error of a change whose result is an invalid configuration. For a deletion, the
/// error lists the objects that refer to the deleted object.
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
    let remedy = "first delete or change the objects that need this object";
    ApiError::new(ErrorKind::Conflict, object, format!("{listed} {need} it"), remedy)
}

/// Returns the changes in the new file that need a restart of the daemon.
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
