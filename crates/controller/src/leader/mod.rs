//! The leading controller. The leader takes over the stored state and decides once per interval.
//!
//! # Approach
//!
//! The leader stores a change before it carries it out. The transaction checks that this controller
//! still leads. If the store refuses a change, the leader does not carry it out. The leader reports
//! a tenant as placed when the tenant is stored. If a plan fails, the leader also rolls back the
//! plan in the store. If a host or switch is unreachable, the leader updates it later, and nothing
//! else waits for it.
//!
//! # Source
//!
//! The interval follows QShare §V and §VI.
//!
//! # Departures
//!
//! QShare does not specify takeover, modes and reverting. `docs/reference/controller.md` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_fabric::ledger::Service;
use penstock_fabric::queue_binding::{Binding, Bound, Candidate, Pass};
use penstock_fabric::tenant_placement::{Moved, TenantSlot};
use penstock_fabric::topology::NodeId;
use thiserror::Error;
use tokio::time::Instant;

use crate::Stamp;
use crate::carry_out::{Crew, Outcome, Trouble};
use crate::events::{Events, Severity, now_ms};
use crate::fabric_state::{ChangeRefused, Fabric, Measured, Usage, Used};
use crate::history::{History, Sample};
use crate::intent::{
    self, BindingRecord, EPOCHS, IntentError, MODE, Mode, TENANTS, TenantRecord, TenantSpec,
};
use crate::store::limits::OPERATIONS_MAX;
use crate::store::{Leadership, Store, StoreError, Transaction, Write};

mod bindings;
mod change;
mod horizon;
mod kept;
mod observe;
mod record;
mod report;

use horizon::Horizon;
use kept::Kept;
pub use kept::{BindingHead, SHARDS};
pub use observe::begin_observing;
pub use report::{IntervalReport, Totals};

/// Number of earlier bindings that are kept so that an operator can revert.
pub const HISTORY_MAX: usize = 16;
/// Maximum number of plans that the leader tries in an interval. Each plan leaves out the hosts and
/// switches that failed before.
const TRIES: usize = 4;
/// Prefix of the keys of nodes that are out of service.
pub const OUT: &str = "penstock/out/";

/// Why a leader stops or refuses a request.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// Another controller leads.
    #[error("another controller leads; ask that one")]
    Deposed,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A stored record cannot be used.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The change was refused.
    #[error(transparent)]
    Refused(#[from] Box<ChangeRefused>),
    /// The requested epoch is above the limit.
    #[error(
        "epoch {asked}: the limit is {most}; a host with a later epoch is faulty: remove \
         its plan file and restart it"
    )]
    Epoch { asked: u64, most: u64 },
    /// There is no earlier binding.
    #[error("no earlier binding is stored, so a rollback is not possible")]
    NoHistory,
}

impl From<ChangeRefused> for LeaderError {
    fn from(refused: ChangeRefused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

/// Settings of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of intervals between two comparisons of all switches with their intended state. 0
    /// means never.
    pub verify_every: u64,
    /// Minimum time for which the store keeps earlier values.
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
    kept: Kept,
    events: Events,
    last: IntervalReport,
    totals: Totals,
    samples: History,
    /// Rates that each server sent and received in the last interval, in bit/s.
    used: BTreeMap<NodeId, (u64, u64)>,
    horizon: Horizon,
    /// The reported problem of each host or switch that still has one.
    complaints: BTreeMap<NodeId, String>,
    /// Whether tenants have arrived or moved since hosts got their limits for the shared queue.
    headroom_changed: bool,
}

impl Leader {
    /// Takes over. It reads the stored state and makes switches and hosts follow it.
    ///
    /// If the topology no longer has room for a tenant, the leader reports the tenant and keeps it
    /// in the store.
    ///
    /// # Errors
    /// The store cannot be read, or contains records that this program does not understand.
    pub async fn take_over(
        fabric: Fabric,
        crew: Crew,
        store: Arc<dyn Store>,
        leadership: Leadership,
        settings: Settings,
    ) -> Result<Self, LeaderError> {
        let stamp = Stamp { epoch: leadership.created.0, generation: 0 };
        let (mode, kept) = (Mode::default(), Kept::default());
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
            headroom_changed: false,
        };
        leader.load().await?;
        leader.crew.assume(&leader.fabric);
        if leader.mode != Mode::Observe {
            leader.next_stamp();
            leader.mend().await;
        }
        let text = format!("leads with {} tenants", leader.fabric.tenants().count());
        leader.tell(Severity::Info, "leads", "", &text);
        Ok(leader)
    }

    async fn load(&mut self) -> Result<(), LeaderError> {
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
        for (_, record) in records {
            let name = record.spec.name.clone();
            if let Err(problem) = self.fabric.restore(record) {
                self.tell(Severity::Warning, "not-restored", &name, &problem.to_string());
            }
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
        if let Some(record) = self.load_binding().await?
            && let Err(problem) = self.fabric.resume(&record)
        {
            let text = format!("{problem}; all share queue 0 until the next interval");
            self.tell(Severity::Warning, "not-restored", "", &text);
        }
        self.fabric.reserve_all();
        Ok(())
    }

    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    #[must_use]
    pub fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Stamp of the decision in force.
    #[must_use]
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Report of the last interval.
    #[must_use]
    pub fn last(&self) -> &IntervalReport {
        &self.last
    }

    /// Sums over all intervals of this term.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Usage of tenants in the last intervals.
    #[must_use]
    pub fn samples(&self) -> &History {
        &self.samples
    }

    /// Rates that each server sent and received in the last interval, in bit/s.
    #[must_use]
    pub fn used(&self) -> &BTreeMap<NodeId, (u64, u64)> {
        &self.used
    }

    /// Notes that a host's agent connected. The host gets its plan with the next interval or
    /// [`Self::catch_up`].
    pub fn host_came(&mut self, host: &str) {
        if let Some(node) = self.fabric.topology().find(host) {
            self.crew.came(node);
        }
    }

    /// Updates the hosts and switches that are out of date, outside of an interval.
    pub async fn catch_up(&mut self) {
        if self.mode != Mode::Observe && !self.crew.out_of_date().is_empty() {
            self.mend().await;
        }
    }

    /// Decides on an interval with this usage, and carries the decision out.
    ///
    /// # Errors
    /// [`LeaderError::Deposed`], or the store cannot be written. In both cases nothing has changed.
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
            if every > 0 && number.is_multiple_of(every) {
                let drift = self.crew.verify().await;
                report.drifted = drift.len();
                self.troubles("drift", &drift);
            }
            if !self.crew.out_of_date().is_empty() {
                self.mend().await;
            }
        }
        self.fabric.follow(usage);
        let (observes, hold) = (self.mode == Mode::Observe, self.mode == Mode::Hold);
        let pass = |fabric: &mut Fabric, seen: &BTreeSet<NodeId>| {
            fabric.rebind(|node| observes || seen.contains(&node), hold)
        };
        let decided = self.decide(pass, &mut report).await;
        self.sample();
        decided?;
        let Self { complaints, crew, .. } = self;
        complaints.retain(|node, _| crew.in_trouble(*node));
        self.forget().await;
        report.took = began.elapsed();
        report.interval = number;
        self.totals.add(&report);
        self.last = report.clone();
        Ok(report)
    }

    /// Decides by `pass`, which gets the reachable nodes. Then stores the decision and carries it
    /// out. If the decision is rolled back, decides again without the nodes that failed.
    async fn decide(
        &mut self,
        pass: impl Fn(&mut Fabric, &BTreeSet<NodeId>) -> Pass,
        report: &mut IntervalReport,
    ) -> Result<(), LeaderError> {
        for _ in 0..TRIES {
            let before = self.fabric.binding().clone();
            let began = Instant::now();
            self.fabric.note_marking(self.crew.out_of_date());
            let seen = self.fabric.clone_reach(&self.crew);
            let pass = pass(&mut self.fabric, &seen);
            report.decided_in += began.elapsed();
            if self.follow(before, &pass, report).await? {
                break;
            }
        }
        Ok(())
    }

    /// Stores the usage of tenants for [`Self::samples`].
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

    /// Stores and carries out a pass. Returns whether it was completed and not rolled back.
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
        if let Err(error) = self.put_binding(false).await {
            self.fabric.put_back(before);
            return Err(error);
        }
        match self.crew.carry_out(&self.fabric, &pass.plan, self.stamp).await {
            Outcome::Done(behind) => {
                self.headroom_changed = false;
                self.troubles("behind", &behind);
                self.changes("promoted", "demoted", pass);
                report.failed += behind.len();
                self.put_binding(true).await?;
                Ok(true)
            }
            Outcome::TakenBack { mut why, stuck } => {
                report.taken_back = true;
                report.failed += why.len() + stuck.len();
                for trouble in &mut why {
                    trouble.problem += "; plans leave it out, and try it again at growing pauses";
                }
                self.troubles("taken-back", &why);
                self.troubles("out-of-date", &stuck);
                self.fabric.put_back(before);
                // The stored parts of the plan's binding have its stamp, so the old binding needs a
                // new stamp. The store refuses this write if another controller leads. If only a
                // host or switch reports another leader, the report may be wrong.
                self.next_stamp();
                self.put_binding(false).await?;
                Ok(false)
            }
        }
    }

    async fn mend(&mut self) {
        let (mended, trouble) = self.crew.mend(&self.fabric, self.stamp).await;
        for (node, words) in mended.iter().filter(|(_, words)| !words.is_empty()) {
            let name = self.fabric.topology().name(*node).to_string();
            let text = format!("brought up to date: {}", shortened(words));
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
                let text = if dscp == 0 {
                    format!("shares queue 0 from now on; score {score}")
                } else {
                    format!("has queues of its own, code point {dscp}; score {score}")
                };
                self.tell(Severity::Info, kind, &name, &text);
            }
        }
    }

    /// Reports problems. A problem is reported once, and again only after it was resolved.
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

/// Joins the first few texts.
fn shortened(words: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = words.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if words.len() > SHOWN {
        text += &format!("; and {} more", words.len() - SHOWN);
    }
    text
}
