//! The original state of threads and cgroups. The service records the original state before its
//! first change, and restores the state at the end.
//!
//! The watchdog restores from the record, so the service changes only threads and cgroups that are
//! recorded. The service updates the recorded state regularly. A scheduling thread may not have
//! received its new order yet, so the service keeps released slots and cgroups until a later
//! update:
//! - A released slot of the table stays unused at first, because the scheduling thread may still
//!   remove the old entry. The service reuses a released slot only after the other free slots of
//!   the table of thread policies.
//! - A cgroup that no longer sets a VM's weight stays recorded, because the scheduling thread may
//!   set the cgroup's weight once more.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use penstock_units::Nanos;

use super::SLOTS;
use crate::cgroup::Cgroup;
use crate::lease::{Identity, LENT, STANDING};
use crate::policy::{self, Policy};
use crate::restore::{self, Before};

/// The recorded original state of all managed threads and cgroups.
#[derive(Debug)]
pub(super) struct AsFound {
    /// Slot in the table of thread policies and original policy of each managed thread.
    threads: HashMap<Identity, (usize, Policy)>,
    before: Before,
    free: VecDeque<usize>,
    resting: Vec<usize>,
    /// Cgroups that the scheduler changed, and that do not set the weight of a VM any more.
    unused: Vec<PathBuf>,
    /// Time of the last change of the recorded state.
    noted: Nanos,
}

/// Time within which a scheduling thread executes an order, unless the thread has stalled.
const TOLD: Nanos = Nanos::from_millis(200);

impl AsFound {
    pub fn new() -> Self {
        Self {
            threads: HashMap::new(),
            before: Before::default(),
            free: (0..SLOTS).collect(),
            resting: Vec::new(),
            unused: Vec::new(),
            noted: Nanos(0),
        }
    }

    /// Takes a free slot of the table of thread policies; `None` if no slot is free.
    pub fn slot(&mut self) -> Option<usize> {
        self.free.pop_front()
    }

    pub fn give_up(&mut self, slots: impl IntoIterator<Item = usize>) {
        self.resting.extend(slots);
    }

    /// Slot and original policy of a recorded thread; `None` if the thread is not recorded, so that
    /// the service may not change the thread.
    pub fn thread(&self, thread: &Identity) -> Option<(usize, Policy)> {
        self.threads.get(thread).copied()
    }

    /// Processors that the thread could use before the scheduler changed the thread.
    pub fn cpus(&self, thread: &Identity) -> Option<&[u32]> {
        let mut all = self.before.affinities.iter();
        all.find(|(other, _)| other == thread).map(|(_, cpus)| cpus.as_slice())
    }

    /// Frees the released slots and cgroups, if the scheduling threads have executed all earlier
    /// orders.
    pub fn settle(&mut self, now: Nanos, dir: &Path) -> io::Result<()> {
        if now.saturating_sub(self.noted) < TOLD {
            return Ok(());
        }
        self.free.extend(self.resting.drain(..));
        if self.unused.is_empty() {
            return Ok(());
        }
        let unused = std::mem::take(&mut self.unused);
        self.before.weights.retain(|(path, weight)| {
            let leaves = unused.contains(path);
            if leaves && let Ok(group) = Cgroup::at(path) {
                let _ = group.set_weight(*weight);
            }
            !leaves
        });
        self.before.save(dir)
    }

    /// Records the threads `threads`, and the cgroups `groups`, which will get weights. Returns the
    /// threads for which the table of thread policies has no room.
    ///
    /// # Errors
    /// Returns an error if the state cannot be recorded. After an error, the recorded state does
    /// not change, and the caller must not change new threads.
    pub fn note(
        &mut self,
        now: Nanos,
        threads: &[Identity],
        groups: &[&Cgroup],
        dir: &Path,
    ) -> io::Result<Vec<Identity>> {
        let mut next = self.before.clone();
        next.affinities.retain(|(thread, _)| threads.contains(thread));
        let (mut new, mut without) = (Vec::new(), Vec::new());
        for thread in threads {
            if self.threads.contains_key(thread) {
                continue;
            }
            let Ok(saved) = policy::get(thread.tid) else { continue };
            let Some(slot) = self.slot() else {
                without.push(*thread);
                continue;
            };
            next.affinities.extend(affinity(*thread));
            new.push((*thread, (slot, unlent(*thread, saved))));
        }
        for group in groups {
            if !next.weights.iter().any(|(path, _)| path == group.path())
                && let Ok(weight) = group.weight()
            {
                next.weights.push((group.path().to_owned(), weight));
            }
        }
        if let Err(error) = next.save(dir) {
            self.free.extend(new.into_iter().map(|(_, (slot, _))| slot));
            return Err(error);
        }
        self.leave(threads);
        self.threads.extend(new);
        let used = |path: &Path| groups.iter().any(|group| group.path() == path);
        let paths = next.weights.iter().map(|(path, _)| path);
        self.unused = paths.filter(|path| !used(path)).cloned().collect();
        (self.before, self.noted) = (next, now);
        Ok(without)
    }

    /// Removes the threads that are not in `threads` from the record, and restores the processors
    /// of living threads. The scheduling thread restores the policies of removed threads.
    fn leave(&mut self, threads: &[Identity]) {
        let gone: Vec<Identity> =
            self.threads.keys().copied().filter(|each| !threads.contains(each)).collect();
        for thread in gone {
            if let Some(cpus) = self.cpus(&thread)
                && restore::is_alive(thread)
            {
                let _ = restore::confine(thread.tid, cpus);
            }
            self.resting.extend(self.threads.remove(&thread).map(|(slot, _)| slot));
        }
    }

    /// Restores all recorded weights and affinities when the scheduler ends.
    pub fn put_back(&self) {
        self.before.put_back();
    }
}

/// Returns the original policy of a thread with the policy `found`. If a dead scheduler without a
/// table of thread policies set the policy `found`, the function returns the default policy.
fn unlent(thread: Identity, found: Policy) -> Policy {
    let ours = |priority| found == Policy::Fifo { priority };
    if !ours(LENT) && !ours(STANDING) {
        return found;
    }
    tracing::warn!(tid = thread.tid, "{found} is from a dead scheduler; default policy restored");
    Policy::DEFAULT
}

fn affinity(thread: Identity) -> Option<(Identity, Vec<u32>)> {
    Some((thread, processors(thread.tid)?))
}

/// The processors that the thread `tid` may use; 0 is the calling thread.
pub(super) fn processors(tid: u32) -> Option<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(i32::try_from(tid).ok()?)).ok()?;
    let cpus = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    Some(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn process(program: &str) -> (std::process::Child, Identity) {
        let child = std::process::Command::new(program)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let started = threads::started_at(child.id(), child.id()).unwrap();
        let thread = Identity { pid: child.id(), tid: child.id(), started };
        (child, thread)
    }

    #[test]
    fn who_leaves_alive_has_its_processors_back_and_its_slot_rests() {
        let dir = penstock_testing::temp_dir();
        let (mut child, thread) = process("cat");
        let before = processors(thread.tid).unwrap();
        let mut found = AsFound::new();
        assert!(found.note(at(1), &[thread], &[], &dir).unwrap().is_empty());
        let (slot, _) = found.thread(&thread).unwrap();
        assert_eq!((slot, found.cpus(&thread)), (0, Some(&before[..])));
        restore::confine(thread.tid, &before[..1]).unwrap();
        found.note(at(2), &[], &[], &dir).unwrap();
        assert_eq!(processors(thread.tid).unwrap(), before);
        assert!(Before::load(&dir).affinities.is_empty());
        assert_eq!(found.slot(), Some(1));
        found.settle(at(100), &dir).unwrap();
        assert_eq!(found.free.back(), Some(&(SLOTS - 1)), "too soon");
        found.settle(at(300), &dir).unwrap();
        assert_eq!((found.slot(), found.free.back()), (Some(2), Some(&0)), "the others first");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_cannot_be_noted_may_not_be_changed() {
        let dir = penstock_testing::temp_dir();
        let (mut child, thread) = process("cat");
        let mut found = AsFound::new();
        let nowhere = dir.join("nowhere");
        assert!(found.note(at(1), &[thread], &[], &nowhere).is_err());
        assert_eq!((found.thread(&thread), found.cpus(&thread)), (None, None));
        found.note(at(2), &[thread], &[], &dir).unwrap();
        assert!(found.thread(&thread).is_some(), "there is room again");
        assert!(found.note(at(3), &[], &[], &nowhere).is_err());
        assert!(found.thread(&thread).is_some() && found.resting.is_empty(), "no slot rests");
        let mut full = AsFound { free: VecDeque::new(), ..AsFound::new() };
        assert_eq!(full.note(at(1), &[thread], &[], &dir).unwrap(), [thread]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_cgroup_that_nobody_is_weighed_by_has_its_weight_back_a_look_later() {
        let dir = penstock_testing::temp_dir();
        let path = dir.join("vm");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("cpu.weight"), "100\n").unwrap();
        let group = Cgroup::at(&path).unwrap();
        let mut found = AsFound::new();
        found.note(at(1), &[], &[&group], &dir).unwrap();
        found.settle(at(300), &dir).unwrap();
        group.set_weight(40).unwrap();
        found.note(at(400), &[], &[], &dir).unwrap();
        assert_eq!(group.weight().unwrap(), 40, "who weighs it has not been told yet");
        assert_eq!(Before::load(&dir).weights, [(path, 100)]);
        found.settle(at(700), &dir).unwrap();
        assert_eq!(group.weight().unwrap(), 100);
        assert!(Before::load(&dir).weights.is_empty());
    }

    #[test]
    fn what_was_lent_by_a_scheduler_without_a_table_is_not_kept() {
        let thread = Identity { pid: 1, tid: 1, started: 1 };
        for priority in [LENT, STANDING] {
            assert_eq!(unlent(thread, Policy::Fifo { priority }), Policy::DEFAULT);
        }
        let own = Policy::Fifo { priority: LENT + 1 };
        assert_eq!(unlent(thread, own), own);
    }
}
