//! vCPUs with reservations, which the kernel schedules. The service sets, checks and restores the
//! policies of vCPUs with reservations.
//!
//! The service writes a thread's entry in the table of thread policies before it sets the thread's
//! policy. The service removes the entry after it has restored the original policy. The thread's
//! entry gets a new slot in the table, because a scheduling thread may still remove the old entry.
//! If another program changes the policy, [`Held::keep`] sets the policy again.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_units::Nanos;
use penstock_vcpu::reservation::Granted;

use crate::clock;
use crate::lease::{Entry, HELD, Identity, LeaseTable};
use crate::policy::{self, Policy, PolicyError};
use crate::restore;
use crate::schedstat::Schedstat;
use crate::state::VcpuState;
use crate::threads;

/// A thread with its policy and processors from before the scheduler's first change.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub thread: Identity,
    pub saved: Policy,
    /// Processors that the thread could use before the scheduler changed the thread.
    pub cpus: Vec<u32>,
}

#[derive(Debug)]
struct One {
    slot: usize,
    found: Found,
    granted: Granted,
    /// Time at which the set of VMs last changed, and the thread's run time at that moment.
    base: (Nanos, Nanos),
}

/// All vCPU threads that have a reservation.
#[derive(Debug)]
pub(super) struct Held {
    table: Arc<LeaseTable>,
    all: HashMap<Identity, One>,
}

const fn wanted(granted: Granted) -> Policy {
    let Granted { runtime, period, reclaim } = granted;
    Policy::Deadline { runtime, period, reclaim }
}

fn ran(thread: Identity) -> Nanos {
    let task = PathBuf::from(format!("/proc/{}/task/{}", thread.pid, thread.tid));
    let ran = Schedstat::read(&task).map(|stat| stat.ran.as_nanos()).unwrap_or_default();
    Nanos(u64::try_from(ran).unwrap_or(u64::MAX))
}

impl Held {
    pub fn new(table: Arc<LeaseTable>) -> Self {
        Self { table, all: HashMap::new() }
    }

    pub fn slot(&self, thread: Identity) -> Option<usize> {
        self.all.get(&thread).map(|one| one.slot)
    }

    /// Run time per period that is reserved for the thread; 0 without a reservation. If the caller
    /// changes several reservations, the caller must set shorter run times before longer run times.
    pub fn runtime(&self, thread: Identity) -> Nanos {
        self.all.get(&thread).map_or(Nanos(0), |one| one.granted.runtime)
    }

    /// Reserves time for a thread, and records the reservation in entry `slot` of the table of
    /// thread policies.
    pub fn hold(
        &mut self,
        slot: usize,
        found: &Found,
        granted: Granted,
    ) -> Result<(), PolicyError> {
        let base = (clock::now(), ran(found.thread));
        let one = One { slot, found: found.clone(), granted, base };
        let done = self.enter(&one).and_then(|()| set(&one));
        self.all.insert(found.thread, one);
        if done.is_err() {
            self.release(found.thread);
        }
        done
    }

    /// Writes a thread's entry in the table of thread policies. If the entry cannot be written into
    /// the table of thread policies, the caller must not set the thread's policy.
    fn enter(&self, one: &One) -> Result<(), PolicyError> {
        let Found { thread, saved, .. } = one.found;
        let noted = self.table.put(one.slot, &Entry { thread, saved, by: 0, until: HELD });
        let (tid, policy) = (thread.tid, wanted(one.granted));
        noted.map_err(|source| PolicyError::Refused { tid, policy, source })
    }

    /// Ends the reservation of a thread and restores the thread's original policy. Returns the
    /// thread's slot in the table of thread policies.
    pub fn release(&mut self, thread: Identity) -> Option<usize> {
        let one = self.all.remove(&thread)?;
        if restore::is_alive(thread) {
            let saved = policy::set(thread.tid, one.found.saved);
            let _ = saved.or_else(|_| policy::set(thread.tid, Policy::DEFAULT));
        }
        let _ = self.table.clear(one.slot, thread);
        Some(one.slot)
    }

    /// Ends the reservations of all threads for which `keep` is false. Returns the slots that the
    /// released threads had in the table of thread policies.
    pub fn release_all(&mut self, keep: impl Fn(Identity) -> bool) -> Vec<usize> {
        let gone: Vec<Identity> = self.all.keys().copied().filter(|each| !keep(*each)).collect();
        gone.into_iter().filter_map(|thread| self.release(thread)).collect()
    }

    /// Sets the policies again that other programs changed. Returns the threads for which the
    /// kernel refused the policy, and the reasons.
    pub fn keep(&self) -> Vec<(Identity, String)> {
        let has = |one: &One| policy::get(one.found.thread.tid).ok() == Some(wanted(one.granted));
        let lost = self.all.values().filter(|one| !has(one));
        let lost = lost.filter(|one| restore::is_alive(one.found.thread));
        let again = |one: &One| self.enter(one).and_then(|()| set(one));
        lost.filter_map(|one| Some((one.found.thread, again(one).err()?.to_string()))).collect()
    }

    /// Restarts the measurement of shares, because the set of VMs has changed.
    pub fn begin_anew(&mut self) {
        for (thread, one) in &mut self.all {
            one.base = (clock::now(), ran(*thread));
        }
    }

    /// Total run time in nanoseconds of all threads with a reservation since the set of VMs last
    /// changed.
    pub fn ran(&self) -> u64 {
        self.all.values().map(|one| ran(one.found.thread).saturating_sub(one.base.1).0).sum()
    }

    /// State of a thread with a reservation, for the state file; `None` without a reservation.
    pub fn state(&self, thread: Identity) -> Option<VcpuState> {
        let one = self.all.get(&thread)?;
        let elapsed = clock::now().saturating_sub(one.base.0);
        let stat = threads::stat_of(thread.pid, thread.tid).unwrap_or_default();
        Some(VcpuState {
            tid: thread.tid,
            cpu: threads::cpu(&stat).unwrap_or(0),
            share_percent: percent(ran(thread).saturating_sub(one.base.1).0, elapsed.0),
            entitled_percent: percent(one.granted.runtime.0, one.granted.period.0),
            blocked: threads::state(&stat) != Some('R'),
            ..VcpuState::default()
        })
    }
}

/// Sets the policy of a thread with a reservation. The function first allows the thread on all its
/// original processors, as the kernel requires for deadline threads.
fn set(one: &One) -> Result<(), PolicyError> {
    let Found { thread, cpus, .. } = &one.found;
    let (tid, policy) = (thread.tid, wanted(one.granted));
    let reach = restore::confine(tid, cpus);
    reach.map_err(|source| PolicyError::Refused { tid, policy, source })?;
    policy::set(tid, policy)
}

#[expect(clippy::cast_precision_loss, reason = "numbers for people")]
fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
