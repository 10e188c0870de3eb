//! Finds the cgroups that divide a processor between VMs.
//!
//! # Problem
//! A weight counts only among siblings. libvirt puts each vCPU into its own leaf below its VM's
//! scope (`machine.slice/machine-qemu-1-web.scope/libvirt/vcpu0`). The weight of that leaf only
//! divides the VM's own time, and takes no time from another VM. A directory's weight also applies
//! to every other process in the directory.
//!
//! # Approach
//! A VM's home is the deepest directory that contains all threads of its process. The search starts
//! at the deepest directory that all homes share. A VM is weighed by the child of that directory
//! that contains only this VM. If the child contains other processes too, the VM is weighed by the
//! highest directory on the way to its home that contains no other process. A VM whose home is the
//! shared directory itself is weighed by nice values. If several VMs are below one child, the
//! search repeats at that child. If a VM is not weighed among siblings of all other VMs, it is
//! reported with the range in which its weight counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroup;
use crate::lease::Identity;

/// How a VM is weighed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Divider {
    /// The directory whose weight counts; `None` means nice values of its threads.
    pub group: Option<PathBuf>,
    /// The directory below which the VM's weight counts, if other VMs are outside of it.
    pub within: Option<PathBuf>,
}

/// The deepest directory that contains all threads of the processes to which `threads` belong.
#[must_use]
pub fn home(threads: &[Identity]) -> Option<PathBuf> {
    let pids: BTreeSet<u32> = threads.iter().map(|thread| thread.pid).collect();
    let tasks = pids.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
    let tids = tasks.flatten().filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let mut paths = tids.filter_map(|tid| Some(Cgroup::dividing(tid).ok()?.path().to_owned()));
    let first = paths.next()?;
    Some(paths.fold(first, |home, path| common(home, &path)))
}

fn common(mut one: PathBuf, other: &Path) -> PathBuf {
    while !other.starts_with(&one) {
        one.pop();
    }
    one
}

/// Whether `dir` contains only processes of `home`, which is below `dir`.
#[must_use]
pub fn is_all_of(dir: &Path, home: &Path) -> bool {
    let mut known = BTreeSet::new();
    if dir == home {
        return true;
    }
    // A directory that cannot be read may contain any process.
    let note = &mut |pid| {
        known.insert(pid);
        true
    };
    processes(home, note).unwrap_or(false)
        && processes(dir, &mut |pid| known.contains(&pid)).unwrap_or(false)
}

/// Passes the processes below `dir` to `each` until `each` returns false. Returns true if `each`
/// never returned false.
fn processes(dir: &Path, each: &mut dyn FnMut(u32) -> bool) -> io::Result<bool> {
    let listed = match std::fs::read_to_string(dir.join("cgroup.procs")) {
        // In a threaded directory of v2, only the directory of the processes lists them.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => String::new(),
        listed => listed?,
    };
    if !listed.lines().filter_map(|line| line.parse().ok()).all(&mut *each) {
        return Ok(false);
    }
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !processes(&entry.path(), each)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Decides how each VM is weighed. A home of `None` belongs to a VM that does not run. `is_its`
/// says whether the first directory contains only processes of the second.
#[must_use]
pub fn divide(homes: &[Option<PathBuf>], is_its: &dyn Fn(&Path, &Path) -> bool) -> Vec<Divider> {
    let mut dividers = vec![Divider::default(); homes.len()];
    let there: Vec<(usize, &Path)> =
        homes.iter().enumerate().filter_map(|(vm, home)| Some((vm, home.as_deref()?))).collect();
    let mut paths = there.iter().map(|(_, home)| *home);
    if let Some(first) = paths.next() {
        below(&paths.fold(first.to_owned(), common), &there, is_its, &mut dividers);
    }
    dividers
}

fn below(
    dir: &Path,
    there: &[(usize, &Path)],
    is_its: &dyn Fn(&Path, &Path) -> bool,
    dividers: &mut [Divider],
) {
    if there.len() < 2 {
        return;
    }
    let mut children: BTreeMap<PathBuf, Vec<(usize, &Path)>> = BTreeMap::new();
    for (vm, home) in there {
        if let Some(child) = child(dir, home) {
            children.entry(child).or_default().push((*vm, home));
        }
    }
    for (child, inside) in children {
        let apart = inside.len() < there.len();
        if let [(only, home)] = inside[..] {
            let group = highest(&child, home, is_its);
            if group != child {
                dividers[only].within = group.parent().map(Path::to_owned);
            }
            dividers[only].group = Some(group);
            continue;
        }
        for (vm, _) in inside.iter().filter(|_| apart) {
            dividers[*vm].within = Some(child.clone());
        }
        let deepest =
            inside.iter().fold(inside[0].1.to_owned(), |dir, (_, home)| common(dir, home));
        below(&deepest, &inside, is_its, dividers);
    }
}

/// The first directory from `child` down to `home` that contains no other processes.
fn highest(child: &Path, home: &Path, is_its: &dyn Fn(&Path, &Path) -> bool) -> PathBuf {
    let mut way: Vec<&Path> = home.ancestors().take_while(|dir| dir.starts_with(child)).collect();
    way.reverse();
    way.into_iter().find(|dir| is_its(dir, home)).unwrap_or(home).to_owned()
}

/// The child of `dir` on the way to `path`; `None` if `path` is `dir` itself.
fn child(dir: &Path, path: &Path) -> Option<PathBuf> {
    let next = path.strip_prefix(dir).ok()?.components().next()?;
    Some(dir.join(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = (Option<String>, Option<String>);

    /// The result if only these directories contain other processes as well.
    fn weighed(homes: &[&str], shared: &[&str]) -> Vec<Told> {
        let homes: Vec<Option<PathBuf>> =
            homes.iter().map(|home| (!home.is_empty()).then(|| PathBuf::from(home))).collect();
        let is_its = |dir: &Path, home: &Path| {
            dir == home || !shared.iter().any(|other| Path::new(other) == dir)
        };
        let text = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
        let told = divide(&homes, &is_its).into_iter();
        told.map(|it| (text(it.group), text(it.within))).collect()
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn libvirts_vms_are_weighed_by_their_scopes() {
        let told = weighed(&["/m.slice/a.scope/libvirt", "/m.slice/b.scope/libvirt"], &[]);
        assert_eq!(told, [(some("/m.slice/a.scope"), None), (some("/m.slice/b.scope"), None)]);
    }

    #[test]
    fn threads_beside_groups_are_weighed_as_threads() {
        let thread = (None, None);
        let told = weighed(&["/g", "/g/vm", "/g", ""], &[]);
        assert_eq!(told, [thread.clone(), (some("/g/vm"), None), thread.clone(), thread.clone()]);
        assert_eq!(weighed(&["/g/vm"], &[]), std::slice::from_ref(&thread), "nobody beside it");
        // VMs that share one directory cannot be weighed by it.
        assert_eq!(weighed(&["/m/b", "/m/b"], &[]), [thread.clone(), thread]);
        assert!(weighed(&[], &[]).is_empty());
    }

    #[test]
    fn vms_in_separate_directories_are_reported_with_the_range_of_their_weights() {
        let told = weighed(&["/m/a", "/m/b/x", "/s/c"], &["/s"]);
        assert_eq!(told[0], (some("/m/a"), some("/m")));
        assert_eq!(told[1], (some("/m/b"), some("/m")));
        assert_eq!(told[2], (some("/s/c"), some("/s")), "sshd is there too");
        let told = weighed(&["/m/x/b", "/m/x/b", "/s"], &[]);
        assert_eq!((&told[0], &told[2]), (&(None, some("/m")), &(some("/s"), None)));
    }

    #[test]
    fn other_processes_below_a_directory_are_found() {
        let dir = std::env::temp_dir().join(format!("penstock-divide-{}", std::process::id()));
        let home = dir.join("a.scope/libvirt");
        for (path, pids) in [("", ""), ("a.scope", ""), ("a.scope/libvirt", "7\n9\n"), ("b", "")] {
            std::fs::create_dir_all(dir.join(path)).unwrap();
            std::fs::write(dir.join(path).join("cgroup.procs"), pids).unwrap();
        }
        assert!(is_all_of(&dir.join("a.scope"), &home) && is_all_of(&dir, &home));
        std::fs::write(dir.join("b/cgroup.procs"), "7\n8\n").unwrap();
        assert!(is_all_of(&dir.join("a.scope"), &home) && !is_all_of(&dir, &home));
        std::fs::remove_file(dir.join("cgroup.procs")).unwrap();
        assert!(!is_all_of(&dir, &home), "who knows");
        std::fs::remove_dir_all(&dir).unwrap();
        let started = crate::threads::started_at(std::process::id(), std::process::id()).unwrap();
        let me = Identity { pid: std::process::id(), tid: std::process::id(), started };
        let own = Cgroup::dividing(0).ok().map(|group| group.path().to_owned());
        assert_eq!(home_of(me), own, "all of this process are in one");
    }

    fn home_of(thread: Identity) -> Option<PathBuf> {
        home(&[thread])
    }
}
