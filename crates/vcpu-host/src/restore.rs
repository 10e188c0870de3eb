//! Restores the original state of threads and cgroups. Any process that survives the scheduler can
//! restore threads and cgroups.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use penstock_units::Nanos;

use crate::cgroup::Cgroup;
use crate::lease::{Entry, HELD, Identity, LeaseTable};
use crate::policy::{self, Policy};
use crate::run_dir::{self, RunDir};
use crate::state::STATE;
use crate::threads;

/// Name of the file with the table of thread policies in a scheduler's run directory.
pub const LEASES: &str = "leases";
/// Name of the list of weights and affinities in a scheduler's directory.
pub const BEFORE: &str = "before";

/// Original state of cgroups and threads that the scheduler changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Directories of cgroups, each with the cgroup's weight before the scheduler's first change.
    pub weights: Vec<(PathBuf, u64)>,
    /// Threads, each with the processors that the thread could use before the scheduler's first
    /// change.
    pub affinities: Vec<(Identity, Vec<u32>)>,
}

impl Before {
    /// Writes the list of weights and affinities into the scheduler's directory `dir`, completely
    /// or not at all.
    ///
    /// # Errors
    /// Returns an error if the file of the list cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let mut text = String::new();
        for (path, weight) in &self.weights {
            text.push_str(&format!("weight {weight} {}\n", path.display()));
        }
        for (Identity { pid, tid, started }, cpus) in &self.affinities {
            let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
            text.push_str(&format!("cpus {pid} {tid} {started} {}\n", cpus.join(",")));
        }
        run_dir::replace(dir, BEFORE, text.as_bytes())
    }

    /// Reads the list of weights and affinities from the scheduler's directory `dir`. Returns an
    /// empty list if the file does not exist or belongs to another user. The function skips
    /// malformed lines.
    #[must_use]
    pub fn load(dir: &Path) -> Self {
        let (mut before, mut text) = (Self::default(), String::new());
        let file = run_dir::open(OpenOptions::new().read(true), &dir.join(BEFORE));
        if !file.is_ok_and(|mut file| file.read_to_string(&mut text).is_ok()) {
            return before;
        }
        for line in text.lines() {
            before.weights.extend(weight_line(line));
            before.affinities.extend(cpus_line(line));
        }
        before
    }

    /// Restores all weights and affinities of the list. The function skips threads and cgroups that
    /// no longer exist.
    pub fn put_back(&self) {
        for (path, weight) in &self.weights {
            if let Ok(group) = Cgroup::at(path) {
                let _ = group.set_weight(*weight);
            }
        }
        for (thread, cpus) in self.affinities.iter().filter(|(thread, _)| is_alive(*thread)) {
            let _ = confine(thread.tid, cpus);
        }
    }
}

fn weight_line(line: &str) -> Option<(PathBuf, u64)> {
    let (weight, path) = line.strip_prefix("weight ")?.split_once(' ')?;
    Some((PathBuf::from(path), weight.parse().ok()?))
}

fn cpus_line(line: &str) -> Option<(Identity, Vec<u32>)> {
    let mut words = line.strip_prefix("cpus ")?.split(' ');
    let (pid, tid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let started = words.next()?.parse().ok()?;
    let cpus = words.next()?.split(',').map(|cpu| cpu.parse().ok()).collect::<Option<_>>()?;
    Some((Identity { pid, tid, started }, cpus))
}

/// Whether the thread still exists, and its id was not reused for another thread.
#[must_use]
pub fn is_alive(thread: Identity) -> bool {
    let Identity { pid, tid, started } = thread;
    threads::started_at(pid, tid) == Some(started)
}

/// Confines thread `tid` to the processors `cpus`; 0 is the calling thread.
///
/// # Errors
/// Returns an error if the thread has exited, or if a processor does not exist.
pub fn confine(tid: u32, cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(usize::try_from(*cpu).map_err(io::Error::other)?)?;
    }
    let tid = i32::try_from(tid).map_err(io::Error::other)?;
    Ok(sched_setaffinity(Pid::from_raw(tid), &set)?)
}

/// Selects the threads that [`take_back`] restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Selects all threads, because the scheduler is dead.
    All,
    /// Selects threads with temporary real-time policies from some scheduling threads. Bit n of the
    /// mask selects the temporary real-time policies of scheduling thread n. Reservations
    /// ([`HELD`]) stay, because the kernel limits their run time.
    LentBy(u64),
}

/// Restores the original policies of the threads in the table of thread policies. Returns the
/// number of threads that had a real-time policy.
///
/// # Errors
/// Returns an error if the table cannot be read. The function does not change threads that have
/// exited or that other programs changed.
pub fn take_back(table: &LeaseTable, reach: Reach) -> io::Result<usize> {
    let mut taken = 0;
    for (slot, entry) in table.entries()? {
        if let Reach::LentBy(loops) = reach
            && (entry.until == HELD || loops & (1 << entry.by) == 0)
        {
            continue;
        }
        taken += usize::from(restore(&entry));
        // If the scheduler has removed the entry since the read, the entry stays removed.
        if entry.until > Nanos(0) && table.get(slot)? == Some(entry) {
            table.put(slot, &Entry { until: Nanos(0), ..entry })?;
        }
    }
    Ok(taken)
}

/// Restores the policy of the entry's thread. Returns whether the thread had a real-time policy of
/// the scheduler.
fn restore(entry: &Entry) -> bool {
    if !is_alive(entry.thread) {
        return false;
    }
    let tid = entry.thread.tid;
    let Ok(now) = policy::get(tid) else { return false };
    let lent = now.is_real_time() && !entry.saved.is_real_time();
    if now == entry.saved {
        return false;
    }
    policy::set(tid, entry.saved).or_else(|_| policy::set(tid, Policy::DEFAULT)).is_ok() && lent
}

/// Result of [`sweep`], which restores the changes of a dead scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// No scheduler ran before, or the last scheduler had restored all threads and cgroups.
    Nothing,
    /// The last scheduler had died and left threads or cgroups changed.
    After {
        /// Number of threads that lost a real-time policy of the dead scheduler.
        taken: usize,
    },
}

/// Restores the threads and cgroups that a dead scheduler with the directory `dir` left changed.
///
/// # Errors
/// Returns an error if a living scheduler uses the directory, or if the directory's files cannot be
/// read.
pub fn sweep(dir: &Path) -> io::Result<Swept> {
    if !dir.exists() {
        return Ok(Swept::Nothing);
    }
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
    sweep_in(&RunDir::take(dir).map_err(named)?).map_err(named)
}

/// Restores the threads and cgroups that a dead scheduler left changed, like [`sweep`]. This
/// process must have locked the run directory `dir`, so that no living scheduler uses `dir`.
pub(crate) fn sweep_in(dir: &RunDir) -> io::Result<Swept> {
    let dir = dir.path();
    let table = match LeaseTable::open(&dir.join(LEASES)) {
        Ok(table) => table,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Swept::Nothing),
        Err(error) => return Err(error),
    };
    let taken = take_back(&table, Reach::All)?;
    put_back_in(dir, &table);
    Ok(Swept::After { taken })
}

/// Restores weights and affinities, and removes the files of a dead scheduler. If another scheduler
/// has replaced the table of thread policies, the function does nothing.
pub(crate) fn put_back_in(dir: &Path, table: &LeaseTable) {
    if !table.is_at(&dir.join(LEASES)) {
        return;
    }
    Before::load(dir).put_back();
    for file in [LEASES, BEFORE, STATE] {
        // A missing file needs no removal, and the next sweep finds a file that cannot be removed.
        let _ = std::fs::remove_file(dir.join(file));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn identity(pid: u32) -> Identity {
        Identity { pid, tid: pid, started: threads::started_at(pid, pid).unwrap() }
    }

    #[test]
    fn what_a_dead_scheduler_left_is_put_right_and_what_a_living_one_has_is_not() {
        let home = penstock_testing::temp_dir();
        let dir = home.join("run");
        assert_eq!(sweep(&dir).unwrap(), Swept::Nothing);
        drop(RunDir::take(&dir).unwrap());
        assert_eq!(sweep(&dir).unwrap(), Swept::Nothing);
        let mut guest = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let thread = identity(guest.id());
        let me = identity(std::process::id());
        let saved = policy::get(thread.tid).unwrap();

        let table = LeaseTable::create(&dir.join(LEASES), me).unwrap();
        table.put(0, &Entry { thread, saved, by: 0, until: Nanos(1) }).unwrap();
        let busy = sweep(&dir).unwrap_err().to_string();
        assert!(busy.contains("run_dir"), "{busy}");

        // The process with this id has another start time, so the scheduler is dead.
        let table = LeaseTable::create(&dir.join(LEASES), Identity { started: 0, ..me }).unwrap();
        table.put(0, &Entry { thread, saved, by: 0, until: Nanos(1) }).unwrap();
        let gone = Identity { started: thread.started + 1, ..thread };
        table
            .put(1, &Entry { thread: gone, saved: Policy::DEFAULT, by: 0, until: Nanos(1) })
            .unwrap();
        let lends = policy::set(thread.tid, Policy::Fifo { priority: 1 }).is_ok();
        let affinities = vec![(thread, vec![0])];
        Before { affinities: affinities.clone(), weights: Vec::new() }.save(&dir).unwrap();
        assert_eq!(Before::load(&dir).affinities, affinities);
        assert_eq!(sweep(&dir).unwrap(), Swept::After { taken: usize::from(lends) });
        assert_eq!(policy::get(thread.tid).unwrap(), saved);
        assert_eq!(sweep(&dir).unwrap(), Swept::Nothing, "once is enough");
        let watched = crate::process::Watched::open(guest.id()).unwrap();
        guest.kill().unwrap();
        assert!(watched.dead_within(std::time::Duration::from_secs(10)).unwrap());
        assert!(!is_alive(thread), "dead, although nobody has waited for it");
        guest.wait().unwrap();
    }

    #[test]
    fn where_one_scheduling_thread_stalls_the_others_keep_what_they_lent() {
        let dir = penstock_testing::temp_dir();
        let table = LeaseTable::create(&dir.join(LEASES), identity(std::process::id())).unwrap();
        let mut guests: Vec<_> =
            (0..3).map(|_| Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()).collect();
        let lent = Policy::Fifo { priority: 1 };
        let saved = policy::get(guests[0].id()).unwrap();
        let (mut lends, mut threads) = (true, Vec::new());
        for (at, guest) in guests.iter().enumerate() {
            let thread = identity(guest.id());
            // The last entry is a reservation; its `by` has no meaning.
            let (by, until) =
                if at == 2 { (1, HELD) } else { (u8::try_from(at).unwrap(), Nanos(1)) };
            table.put(at, &Entry { thread, saved, by, until }).unwrap();
            lends &= policy::set(thread.tid, lent).is_ok();
            threads.push(thread.tid);
        }
        if lends {
            assert_eq!(take_back(&table, Reach::LentBy(1 << 1)).unwrap(), 1);
            let now = threads.iter().map(|tid| policy::get(*tid).unwrap()).collect::<Vec<_>>();
            assert_eq!(now, [lent, saved, lent]);
            assert_eq!(take_back(&table, Reach::All).unwrap(), 2);
        } else {
            penstock_testing::skip("real-time policies are not permitted here");
        }
        for guest in &mut guests {
            guest.kill().unwrap();
            guest.wait().unwrap();
        }
    }

    #[test]
    fn malformed_lines_are_skipped() {
        assert_eq!(weight_line("weight 7 /a b"), Some((PathBuf::from("/a b"), 7)));
        assert_eq!(weight_line("weight x /a"), None);
        assert_eq!(cpus_line("cpus 1 2 3 0,4").unwrap().1, [0, 4]);
        assert_eq!(cpus_line("cpus 1 2 3 0,x"), None);
    }
}
