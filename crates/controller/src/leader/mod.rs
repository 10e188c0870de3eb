//! The leading controller takes over the stored state. Once per interval, the leader decides which
//! tenants have their own queues.
//!
//! # Approach
//!
//! - The leader stores a change before it executes the change. The store's transaction checks that
//!   this controller still leads.
//! - If the store refuses a change, the leader does not execute the change.
//! - The leader reports a tenant as placed when the tenant is stored.
//! - If a plan fails, the leader rolls the plan back on the switches and hosts and in the store.
//! - If a host or switch is unreachable, the leader updates it later. The other hosts and switches
//!   do not wait for an unreachable element.
//!
//! # Source
//!
//! The work of an interval follows QShare §V and §VI.
//!
//! # Departures
//!
//! QShare specifies neither the takeover by a new leader, nor modes, nor how to revert a binding.
//! `docs/reference/controller.md` specifies how Penstock's controllers take over, change modes and
//! revert.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::{Binding, Bound, Candidate, Pass};
use penstock_fabric::tenant_placement::{Moved, TenantSlot};
use penstock_fabric::topology::NodeId;
use tokio::time::Instant;

use crate::Stamp;
use crate::carry_out::{Crew, Outcome, Trouble};
use crate::events::{Events, Severity, now_ms};
use crate::fabric_state::{ChangeRefused, Fabric, Measured, Usage, Used};
use crate::history::{History, Sample};
use crate::intent::{self, BindingRecord, EPOCHS, MODE, Mode, TENANTS, TenantRecord, TenantSpec};
use crate::southbound::few_queues;
use crate::store::limits::OPERATIONS_MAX;
use crate::store::{Leadership, Store, StoreError, Transaction, Write};

mod bindings;
mod change;
mod error;
mod horizon;
mod journal;
mod kept;
mod observe;
mod record;
mod report;
mod silent_hosts;
#[cfg(test)]
mod stored_tests;
mod unfinished;
mod unplaced;

pub use bindings::BindingToStore;
pub use error::LeaderError;
pub use horizon::Horizon;
pub use kept::{BindingHead, JOURNAL_BYTES_MAX, JOURNAL_MAX, SHARDS, StoredBindings};
pub use observe::begin_observing;
pub use record::Writer;
pub use report::{IntervalReport, Totals};

/// Number of earlier bindings in the store to which an operator can revert.
pub const HISTORY_MAX: usize = 16;
/// Maximum number of plans that the leader tries in an interval. After a plan fails, the next plan
/// excludes the hosts and switches that failed.
const TRIES: usize = 4;
/// Prefix of the store's keys for drained and failed nodes.
pub const OUT: &str = "penstock/out/";

/// Settings of a leader: how often it verifies switches, and how long the store keeps history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of intervals after which the leader again compares all switches with their intended
    /// state. 0 means no comparison.
    pub verify_every: u64,
    /// Minimum time for which the store keeps earlier values of its keys.
    pub history: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { verify_every: 5, history: Duration::from_secs(120) }
    }
}

#[derive(Debug)]
pub struct Leader {
    fabric: Fabric,
    crew: Crew,
    store: Arc<dyn Store>,
    leadership: Leadership,
    settings: Settings,
    mode: Mode,
    stamp: Stamp,
    kept: StoredBindings,
    events: Events,
    last: IntervalReport,
    totals: Totals,
    samples: History,
    /// Rates at which each server's VMs sent and received in the last interval, in bit/s.
    used: BTreeMap<NodeId, (u64, u64)>,
    horizon: Horizon,
    /// Last reported problem of each host or switch that has an unresolved problem.
    complaints: BTreeMap<NodeId, String>,
    /// Switches with fewer queues than the settings say, as last reported.
    few_queues: BTreeMap<NodeId, u8>,
    /// Number of intervals for which each connected host with tenants has sent no report.
    silent_hosts: BTreeMap<NodeId, u32>,
    /// Number of consecutive intervals for which each host has reported traffic of tenants that
    /// have no VM there by placement.
    unplaced_hosts: BTreeMap<NodeId, u32>,
    /// True if tenants have arrived or moved since the leader last sent rate limits for the shared
    /// queue to the hosts.
    headroom_changed: bool,
}

impl Leader {
    /// Makes this controller the leader: reads the stored state, and brings switches and hosts to
    /// this state.
    ///
    /// If the topology no longer has room for a tenant, the leader reports the tenant and keeps it
    /// in the store.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read, or contains records that this version of
    /// Penstock does not understand.
    pub async fn take_over(
        fabric: Fabric,
        crew: Crew,
        store: Arc<dyn Store>,
        leadership: Leadership,
        settings: Settings,
    ) -> Result<Self, LeaderError> {
        let stamp = Stamp { epoch: leadership.created.0, generation: 0 };
        let (mode, kept) = (Mode::default(), StoredBindings::default());
        let (events, last) = (Events::default(), IntervalReport::default());
        let (used, complaints) = (BTreeMap::new(), BTreeMap::new());
        let mut leader = Self {
            fabric,
            crew,
            store,
            leadership,
            settings,
            mode,
            stamp,
            kept,
            events,
            last,
            totals: Totals::default(),
            samples: History::default(),
            used,
            horizon: Horizon::default(),
            complaints,
            few_queues: BTreeMap::new(),
            silent_hosts: BTreeMap::new(),
            unplaced_hosts: BTreeMap::new(),
            headroom_changed: false,
        };
        let movers = match leader.load().await? {
            Some(stored) => leader.unfinished(&stored).await?,
            None => BTreeSet::new(),
        };
        leader.resume_crew(movers);
        if leader.mode != Mode::Observe {
            leader.next_stamp();
            leader.mend().await;
        }
        let text = format!("leads with {} tenants", leader.fabric.tenants().count());
        leader.tell(Severity::Info, "leads", "", &text);
        Ok(leader)
    }

    /// Reads the stored state, and returns the stored binding. Returns `None` if the store has no
    /// binding.
    async fn load(&mut self) -> Result<Option<BindingRecord>, LeaderError> {
        if let Some(entry) = self.store.get(EPOCHS).await.map_err(LeaderError::Store)? {
            let more: u64 = intent::from_bytes(EPOCHS, &entry.value)?;
            self.stamp.epoch = self.leadership.created.0.saturating_add(more);
        }
        if let Some(entry) = self.store.get(MODE).await.map_err(LeaderError::Store)? {
            self.mode = intent::from_bytes(MODE, &entry.value)?;
        }
        let all = self.store.list(TENANTS).await.map_err(LeaderError::Store)?;
        let mut records = Vec::new();
        for entry in all.entries {
            let record: TenantRecord = intent::from_bytes(&entry.key, &entry.value)?;
            records.push((entry.created, record));
        }
        // The records are restored in the order of arrival, because a tenant may refer to earlier
        // tenants.
        records.sort_by_key(|(created, _)| *created);
        let records = records.into_iter().map(|(_, record)| record).collect();
        for (name, problem) in self.fabric.restore_all(records) {
            self.tell(Severity::Warning, "not-restored", &name, &problem.to_string());
        }
        let out = self.store.list(OUT).await.map_err(LeaderError::Store)?;
        for entry in out.entries {
            let node = entry.key.trim_start_matches(OUT).to_owned();
            let failed: bool = intent::from_bytes(&entry.key, &entry.value)?;
            let service = if failed { Service::Failed } else { Service::Drained };
            if let Err(problem) = self.fabric.set_service(&node, service, false) {
                self.tell(Severity::Warning, "not-restored", &node, &problem.to_string());
            }
        }
        let record = self.load_binding().await?;
        if let Some(record) = &record
            && let Err(problem) = self.fabric.resume(record)
        {
            let text = format!("{problem}; all tenants share queue 0 until the next interval");
            self.tell(Severity::Warning, "not-restored", "", &text);
        }
        self.fabric.reserve_all();
        Ok(record)
    }

    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    #[must_use]
    pub fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Returns the stamp of the leader's latest decision.
    #[must_use]
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns true if the store refused the leader's last write because it is full.
    #[must_use]
    pub const fn is_store_full(&self) -> bool {
        self.horizon.is_full()
    }

    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Returns the report of the last interval.
    #[must_use]
    pub fn last(&self) -> &IntervalReport {
        &self.last
    }

    /// Returns the sums over all intervals of this leader's term.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the usage of each tenant in each of the last intervals.
    #[must_use]
    pub fn samples(&self) -> &History {
        &self.samples
    }

    /// Returns the rates at which each server's VMs sent and received in the last interval, in
    /// bit/s.
    #[must_use]
    pub fn used(&self) -> &BTreeMap<NodeId, (u64, u64)> {
        &self.used
    }

    /// Records that a host's agent connected. The host gets its plan in the next interval or with
    /// the next call of [`Self::catch_up`].
    pub fn host_came(&mut self, host: &str) {
        if let Some(node) = self.fabric.topology().find(host) {
            self.crew.came(node);
        }
    }

    /// Updates the hosts and switches that are out of date, without waiting for the next interval.
    pub async fn catch_up(&mut self) {
        if self.mode != Mode::Observe && self.crew.needs_mending() {
            self.mend().await;
        }
    }

    /// Runs one interval: assigns queues according to `usage`, and executes the decision.
    ///
    /// # Errors
    /// Returns [`LeaderError::Deposed`] if another controller leads, or an error if the store
    /// cannot be written.
    pub async fn interval(&mut self, usage: &Usage) -> Result<IntervalReport, LeaderError> {
        let began = Instant::now();
        let sum = |of: fn(&Used) -> u64, used: &[Used]| used.iter().map(of).sum::<u64>();
        let both = |used: &[Used]| (sum(|u| u.sent.0, used), sum(|u| u.received.0, used));
        self.used = usage.iter().map(|(node, used)| (*node, both(used))).collect();
        let mut report = IntervalReport { hosts_heard: usage.len(), ..IntervalReport::default() };
        let every = self.settings.verify_every;
        let number = self.fabric.binding().interval() + 1;
        self.crew.begin_interval();
        if self.mode != Mode::Observe {
            let mut drift = self.crew.notice_restarts().await;
            if every > 0 && number.is_multiple_of(every) {
                drift.extend(self.crew.verify().await);
            }
            report.drifted = drift.len();
            self.troubles("drift", &drift);
            if self.crew.needs_mending() {
                self.mend().await;
            }
        }
        self.tell_unplaced(usage);
        let usage = self.with_silent_hosts(usage);
        self.fabric.follow(&usage);
        let (observes, hold) = (self.mode == Mode::Observe, self.mode == Mode::Hold);
        let pass = |fabric: &mut Fabric, seen: &[bool]| {
            fabric.rebind(|node| observes || seen[node.index()], hold)
        };
        let decided = self.decide(pass, &mut report).await;
        self.tell_left_out();
        self.tell_few_queues();
        self.sample();
        decided?;
        let Self { complaints, crew, .. } = self;
        complaints.retain(|node, _| crew.in_trouble(*node));
        self.finish_plans().await?;
        self.forget().await;
        report.took = began.elapsed();
        report.interval = number;
        self.totals.add(&report);
        self.last = report.clone();
        Ok(report)
    }

    /// Makes a decision with `pass`, stores the decision and executes it. The argument of `pass`
    /// says which servers and switches can be reached. If the decision is rolled back, the
    /// leader decides again without the nodes that failed.
    async fn decide(
        &mut self,
        pass: impl Fn(&mut Fabric, &[bool]) -> Pass,
        report: &mut IntervalReport,
    ) -> Result<(), LeaderError> {
        for _ in 0..TRIES {
            let before = self.fabric.binding().clone();
            let began = Instant::now();
            self.fabric.note_marking(self.crew.out_of_date());
            self.fabric.note_left_out(self.crew.left_out_links());
            self.fabric.note_queues(self.crew.queue_limits(&self.fabric));
            let seen = self.fabric.reach(&self.crew);
            let pass = pass(&mut self.fabric, &seen);
            report.decided_in += began.elapsed();
            if self.follow(before, &pass, report).await? {
                break;
            }
        }
        // A plan may find out that a switch lacks a queue of the plan.
        if self.mode != Mode::Observe && self.crew.limit_misplaced(&self.fabric) {
            self.mend().await;
        }
        Ok(())
    }

    /// Reports the ports that drivers leave out, when they change.
    fn tell_left_out(&mut self) {
        for (node, ports) in self.crew.take_left_out() {
            let name = self.fabric.topology().name(node).to_string();
            if ports.is_empty() {
                self.tell(Severity::Info, "left-out", &name, "the controller uses all ports again");
                continue;
            }
            let reason = |(port, reason): (&String, &String)| format!("port {port}: {reason}");
            let ports = shortened(&ports.iter().map(reason).collect::<Vec<_>>());
            let text = format!(
                "{ports}; tenants that send through these ports share queue 0, and the other ports \
                 are not concerned"
            );
            self.tell(Severity::Warning, "left-out", &name, &text);
        }
    }

    /// Reports the switches with fewer queues than the settings say, when they change.
    fn tell_few_queues(&mut self) {
        let all = self.fabric.binding().settings().queues;
        let now = self.crew.few_queues(&self.fabric);
        let before = std::mem::replace(&mut self.few_queues, now.clone());
        for (node, queues) in &now {
            if before.get(node) != Some(queues) {
                let name = self.fabric.topology().name(*node).to_string();
                self.tell(Severity::Warning, "few-queues", &name, &few_queues(*queues, all));
            }
        }
        for node in before.keys().filter(|node| !now.contains_key(node)) {
            let name = self.fabric.topology().name(*node).to_string();
            let text = format!("plans may use all {all} queues again");
            self.tell(Severity::Info, "few-queues", &name, &text);
        }
    }

    /// Adds the usage of all tenants in this interval to [`Self::samples`].
    fn sample(&mut self) {
        let Self { fabric, samples, .. } = self;
        let sample = |(name, slot, _)| {
            let (measured, score, dscp) =
                (fabric.measured(slot), fabric.score(slot), fabric.dscp(slot));
            let Measured { sent, received, used_permille } = measured;
            (name, Sample { sent, received, score, used_permille, dscp })
        };
        samples.push(now_ms(), fabric.tenants().map(sample));
    }

    /// Stores and executes the binding that a pass has computed. Returns false if the binding was
    /// rolled back.
    async fn follow(
        &mut self,
        before: Binding,
        pass: &Pass,
        report: &mut IntervalReport,
    ) -> Result<bool, LeaderError> {
        (report.promoted, report.demoted) = (pass.promoted.len(), pass.demoted.len());
        report.without_code_point = pass.without_code_point.len();
        report.steps = pass.plan.steps.len();
        if self.mode == Mode::Observe {
            self.changes("would-promote", "would-demote", pass);
            return Ok(true);
        }
        if pass.plan.steps.is_empty() {
            if std::mem::take(&mut self.headroom_changed) {
                self.next_stamp();
                let behind = self.crew.tell_headroom(&self.fabric, self.stamp).await;
                report.failed += behind.len();
                self.troubles("behind", &behind);
            }
            return Ok(true);
        }
        self.next_stamp();
        self.will_move(&pass.plan);
        if let Err(error) = self.put_binding().await {
            self.fabric.put_back(before);
            return Err(error);
        }
        let outcome = self.crew.carry_out(&self.fabric, &pass.plan, self.stamp).await;
        let times = self.crew.times();
        if times.took() >= report.plan.took() {
            report.plan = times.clone();
        }
        match outcome {
            Outcome::Done(behind) => {
                self.headroom_changed = false;
                self.troubles("behind", &behind);
                self.changes("promoted", "demoted", pass);
                report.failed += behind.len();
                self.kept.moving = self.moving();
                self.put_done().await?;
                Ok(true)
            }
            Outcome::TakenBack { mut why, stuck } => {
                report.taken_back = true;
                report.failed += why.len() + stuck.len();
                for trouble in &mut why {
                    trouble.problem += "; new plans exclude this host or switch, after each \
                                        failure for a longer time";
                }
                self.troubles("taken-back", &why);
                self.troubles("out-of-date", &stuck);
                self.fabric.put_back(before);
                // The stored parts of the plan's binding have its stamp, so the old binding needs a
                // new stamp, which the messages of the rollback also had. The store refuses this
                // write if another controller leads. A host's or switch's report of another leader
                // is not enough, because the report may be wrong.
                self.next_stamp();
                // The record of the plan's tenants stays until the old binding is stored.
                self.put_binding().await?;
                self.finish_plans().await?;
                Ok(false)
            }
        }
    }

    async fn mend(&mut self) {
        let (mended, trouble) = self.crew.mend(&self.fabric, self.stamp).await;
        for (node, words) in mended.iter().filter(|(_, words)| !words.is_empty()) {
            let name = self.fabric.topology().name(*node).to_string();
            let text = format!("the controller brought the node up to date: {}", shortened(words));
            self.tell(Severity::Info, "mended", &name, &text);
        }
        self.troubles("out-of-date", &trouble);
    }

    fn next_stamp(&mut self) {
        self.stamp.generation += 1;
    }

    fn changes(&mut self, promoted: &str, demoted: &str, pass: &Pass) {
        for (kind, list) in [(demoted, &pass.demoted), (promoted, &pass.promoted)] {
            for slot in list {
                // A removed tenant has no name any more. Its removal was reported before.
                let name = self.fabric.name(*slot).to_owned();
                if name.is_empty() {
                    continue;
                }
                let (score, dscp) = (self.fabric.score(*slot), self.fabric.dscp(*slot));
                let text = match (self.mode, dscp) {
                    (Mode::Observe, 0) => "the tenant would share queue 0".to_owned(),
                    (Mode::Observe, _) => {
                        format!("the tenant would have its own queues, code point {dscp}")
                    }
                    (_, 0) => "the tenant shares queue 0 from now on".to_owned(),
                    _ => format!("the tenant has its own queues, code point {dscp}"),
                };
                let text = format!("{text}; score {score}");
                self.tell(Severity::Info, kind, &name, &text);
            }
        }
    }

    /// Reports problems of hosts and switches as events. The leader reports a problem again only if
    /// it changes, or if it returns after it was resolved.
    fn troubles(&mut self, kind: &str, troubles: &[Trouble]) {
        for trouble in troubles {
            let told = self.complaints.insert(trouble.node, trouble.problem.clone());
            if told.as_ref() == Some(&trouble.problem) {
                continue;
            }
            let name = self.fabric.topology().name(trouble.node).to_string();
            self.tell(Severity::Warning, kind, &name, &trouble.problem);
        }
    }

    fn tell(&mut self, severity: Severity, kind: &str, subject: &str, text: &str) {
        self.events.push(self.stamp, severity, kind, subject, text);
    }
}

/// Joins the first three texts of `words`, and appends the number of further texts.
fn shortened(words: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = words.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if words.len() > SHOWN {
        text += &format!("; and {} more", words.len() - SHOWN);
    }
    text
}
