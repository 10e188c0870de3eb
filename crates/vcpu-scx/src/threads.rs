//! Finds threads of this machine by process and name, and pins these threads to processors.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::config::Wanted;
use crate::plan::Thread;

/// Maximum number of searches for the threads of an entry.
const SEARCHES_MAX: usize = 8;

/// Finds the threads that match the entries `wanted`, in the order of the configuration file.
///
/// # Errors
/// Returns an error if an entry's process does not exist, if no thread has the entry's name, or if
/// two entries match the same thread.
pub fn find(wanted: &[Wanted]) -> Result<Vec<Thread>> {
    let mut found: Vec<Thread> = Vec::new();
    for one in wanted {
        let before = found.len();
        for tid in tids(one).with_context(|| one.label())? {
            if let Some(other) = found.iter().find(|other| other.tid == tid) {
                bail!(
                    "thread {tid}: matches two entries, {} and {}; remove one of the entries",
                    other.wanted.label(),
                    one.label()
                );
            }
            found.push(Thread { tid, wanted: one.clone() });
        }
        if found.len() == before {
            bail!("{}: no such thread; `ps -L -p {}` lists thread names", one.label(), one.pid);
        }
    }
    Ok(found)
}

/// Searches until two searches find the same threads, because a thread that ends can hide another
/// one from a search of its process.
fn tids(wanted: &Wanted) -> Result<Vec<u32>> {
    let mut tids = search(wanted)?;
    for _ in 1..SEARCHES_MAX {
        let again = search(wanted)?;
        if again == tids {
            break;
        }
        tids = again;
    }
    Ok(tids)
}

fn search(wanted: &Wanted) -> Result<Vec<u32>> {
    let folder = format!("/proc/{}/task", wanted.pid);
    let mut tids = Vec::new();
    for entry in fs::read_dir(&folder)
        .with_context(|| format!("{folder}: no such process; correct `pid`"))?
    {
        let entry = entry?;
        // A thread may end during the search.
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        if wanted.name.as_ref().is_none_or(|wanted| wanted == name.trim_end()) {
            tids.extend(entry.file_name().to_str().and_then(|tid| tid.parse::<u32>().ok()));
        }
    }
    tids.sort_unstable();
    Ok(tids)
}

/// Whether the thread still exists in its process.
#[must_use]
pub fn is_there(thread: &Thread) -> bool {
    Path::new(&format!("/proc/{}/task/{}", thread.wanted.pid, thread.tid)).exists()
}

/// Threads that are pinned to a processor, with their former CPU affinity. When this value is
/// dropped, the threads get their former affinity back.
#[derive(Debug, Default)]
pub struct Kept(Vec<(Thread, Pid, CpuSet)>);

impl Kept {
    /// Pins each thread to the processor of its contract. Threads without a processor are not
    /// pinned.
    ///
    /// # Errors
    /// Returns an error if a processor does not exist, or if the permission is missing.
    pub fn keep(threads: &[Thread]) -> Result<Self> {
        let mut kept = Self::default();
        for thread in threads {
            let Some(cpu) = thread.wanted.cpu else { continue };
            let pid = Pid::from_raw(i32::try_from(thread.tid)?);
            let label = || format!("{}: cannot be pinned to cpu {cpu}", thread.wanted.label());
            let before = sched_getaffinity(pid).with_context(label)?;
            let mut only = CpuSet::new();
            only.set(usize::from(cpu)).with_context(label)?;
            sched_setaffinity(pid, &only).with_context(label)?;
            kept.0.push((thread.clone(), pid, before));
        }
        Ok(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // If a thread has ended, its number may belong to another thread.
        for (_, pid, before) in self.0.iter().filter(|(thread, ..)| is_there(thread)) {
            let _ = sched_setaffinity(*pid, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_units::Weight;
    use penstock_vcpu::Contract;

    use super::*;

    fn wanted(pid: i32, name: Option<&str>) -> Wanted {
        let contract = Contract::by_credit(Weight::new(1).unwrap());
        Wanted { pid, name: name.map(str::to_owned), cpu: None, contract }
    }

    #[test]
    fn threads_are_found_by_name() {
        let me = i32::try_from(std::process::id()).unwrap();
        let builder = std::thread::Builder::new().name("scx-one".to_owned());
        let (tell, wait) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let run = move || {
            begun.send(()).unwrap();
            wait.recv()
        };
        let thread = builder.spawn(run).unwrap();
        // A thread sets its name before it runs the closure.
        begins.recv().unwrap();
        let found = find(&[wanted(me, Some("scx-one"))]).unwrap();
        assert_eq!(found.len(), 1);
        assert!(is_there(&found[0]));
        let twice = find(&[wanted(me, Some("scx-one")), wanted(me, None)]).unwrap_err().to_string();
        assert!(twice.contains("matches two entries"), "{twice}");
        let none = find(&[wanted(me, Some("no such"))]).unwrap_err().to_string();
        assert!(none.contains("ps -L"), "{none}");
        drop(tell);
        assert!(thread.join().unwrap().is_err());
        assert!(find(&[wanted(i32::MAX, None)]).is_err());
    }
}
