//! Finds the cgroups that divide a processor between VMs.
//!
//! # Problem
//! A cgroup's weight counts only among the cgroup's siblings. libvirt puts each vCPU into its own
//! leaf cgroup below its VM's scope (`machine.slice/machine-qemu-1-web.scope/libvirt/vcpu0`). The
//! weight of a vCPU's leaf cgroup only divides the VM's own time, and takes no time from another
//! VM. The weight of a cgroup's directory applies to all processes in the directory, also to
//! processes of other programs.
//!
//! # Approach
//! A VM's home directory is the deepest cgroup directory that contains all threads of the VM's
//! process. The search starts at the deepest cgroup directory that contains the threads of all VMs.
//! The search examines each child of the deepest cgroup directory that contains the threads of all
//! VMs:
//!
//! | Processes in the child directory | Source of the VM's weight |
//! |---|---|
//! | only processes of one VM | the weight of the child directory sets the VM's weight |
//! | one VM and other processes | the highest subdirectory with only the VM sets the VM's weight |
//! | processes of several VMs | another search starts at the child directory |
//!
//! If the deepest cgroup directory with all threads of one VM also contains all other VMs, nice
//! values set the VM's weight. If the weight of a VM does not compete with the weights of all other
//! VMs, the scheduler reports the VM. The report names the directory below which the VM's weight
//! counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroup;
use crate::lease::Identity;

/// Method of setting the weight of a VM: a cgroup's weight, or nice values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Divider {
    /// Cgroup directory that gets the VM's weight; `None` means that nice values of the VM's
    /// threads set the weight.
    pub group: Option<PathBuf>,
    /// Cgroup directory below which the VM's weight counts, if other VMs are outside of that
    /// directory.
    pub within: Option<PathBuf>,
}

/// Finds the deepest cgroup directory that contains all threads of the processes to which `threads`
/// belong.
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

/// Whether the cgroup directory `dir` contains only processes of `home`, which is below `dir`.
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

/// Passes the processes below `dir` to `each` until `each` returns false. Returns whether `each`
/// returned true for all processes.
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

/// Decides how the scheduler sets the weight of each VM. For each VM, `homes` has the deepest
/// cgroup directory with all threads of the VM, or `None` if the VM does not run. `is_its(a, b)`
/// returns whether directory `a` contains only processes of directory `b`.
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

/// Returns the first directory from `child` down to `home` that contains only processes of `home`.
fn highest(child: &Path, home: &Path, is_its: &dyn Fn(&Path, &Path) -> bool) -> PathBuf {
    let mut way: Vec<&Path> = home.ancestors().take_while(|dir| dir.starts_with(child)).collect();
    way.reverse();
    way.into_iter().find(|dir| is_its(dir, home)).unwrap_or(home).to_owned()
}

/// Returns the child directory of `dir` on the way to `path`; `None` if `path` is `dir` itself.
fn child(dir: &Path, path: &Path) -> Option<PathBuf> {
    let next = path.strip_prefix(dir).ok()?.components().next()?;
    Some(dir.join(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = (Option<String>, Option<String>);

    /// Calls [`divide`] for the directories `homes`, and returns the directories in the results as
    /// text. Only the directories in `shared` also contain processes of other programs.
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
        // The weight of a directory cannot divide time between VMs in that directory.
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
        let dir = penstock_testing::temp_dir();
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
        let started = crate::threads::started_at(std::process::id(), std::process::id()).unwrap();
        let me = Identity { pid: std::process::id(), tid: std::process::id(), started };
        let own = Cgroup::dividing(0).ok().map(|group| group.path().to_owned());
        assert_eq!(home_of(me), own, "all of this process are in one");
    }

    fn home_of(thread: Identity) -> Option<PathBuf> {
        home(&[thread])
    }
}
