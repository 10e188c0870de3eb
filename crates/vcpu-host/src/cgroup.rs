//! Finds the cgroup that divides a thread's processor time, and reads and sets the cgroup's weight.
//!
//! Sources: Linux `admin-guide/cgroup-v1/cgroups.rst`, `admin-guide/cgroup-v2.rst`. If the host has
//! a v1 hierarchy with the `cpu` controller, the cgroup is in that hierarchy, otherwise in the
//! unified (v2) hierarchy. Callers use weights in millionths of the kernel's default weight, which
//! suit v1 and v2.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Version of the cgroup interface, with the file that has the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// In cgroup v1, the weight is in `cpu.shares`, 2 to 262,144, default 1,024.
    V1,
    /// In cgroup v2, the weight is in `cpu.weight`, 1 to 10,000, default 100.
    V2,
}

/// A directory of the cgroup hierarchy that has the `cpu` controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
    version: Version,
    root: bool,
}

impl Cgroup {
    /// Returns the cgroup with the directory `path`, of version 1 or 2.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist, or has no file for a weight.
    pub fn at(path: &Path) -> io::Result<Self> {
        let version = [Version::V1, Version::V2]
            .into_iter()
            .find(|version| path.join(file(*version)).exists())
            .ok_or_else(|| {
                let why = format!(
                    "{}: neither cpu.shares nor cpu.weight; name a cgroup that has the cpu \
                     controller (v2: +cpu in the parent's cgroup.subtree_control)",
                    path.display()
                );
                io::Error::new(io::ErrorKind::NotFound, why)
            })?;
        // The weight of a cgroup counts only if its parent is a cgroup too.
        let root = path.parent().is_none_or(|up| !up.join("cgroup.procs").exists());
        Ok(Self { path: path.to_owned(), version, root })
    }

    /// Returns the cgroup of thread `tid`; 0 is the calling thread.
    ///
    /// # Errors
    /// Returns an error if the thread has exited, or if no hierarchy has the `cpu` controller.
    pub fn of_thread(tid: u32) -> io::Result<Self> {
        let who = if tid == 0 { "thread-self".to_owned() } else { tid.to_string() };
        let groups = std::fs::read_to_string(format!("/proc/{who}/cgroup"))?;
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let (version, path) = locate(&groups, &mounts).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "no cgroup hierarchy has the cpu controller")
        })?;
        let root = path.parent().is_none_or(|up| !up.join("cgroup.procs").exists());
        Ok(Self { path, version, root })
    }

    /// Returns the cgroup that divides a thread's processor time: the thread's own cgroup, or the
    /// nearest ancestor in which the controller works. In v2, a leaf cgroup has no weight if its
    /// parent does not delegate the `cpu` controller.
    ///
    /// # Errors
    /// Returns an error if the thread has exited, or if no hierarchy has the `cpu` controller.
    pub fn dividing(tid: u32) -> io::Result<Self> {
        let mut group = Self::of_thread(tid)?;
        while !group.root && !group.weight_file().exists() {
            group.path.pop();
            group.root = group.path.parent().is_none_or(|up| !up.join("cgroup.procs").exists());
        }
        Ok(group)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Whether the cgroup is the root of the hierarchy. The weight of the root cgroup does not
    /// count.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.root
    }

    #[must_use]
    pub fn weight_file(&self) -> PathBuf {
        self.path.join(file(self.version))
    }

    /// Reads the cgroup's weight in the kernel's unit.
    ///
    /// # Errors
    /// Returns an error if the cgroup was removed, or if the weight's file does not contain a
    /// number.
    pub fn weight(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.weight_file())?;
        text.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Sets the cgroup's weight in the kernel's unit.
    ///
    /// # Errors
    /// Returns an error if the cgroup was removed, or if the permission is missing.
    pub fn set_weight(&self, weight: u64) -> io::Result<()> {
        // This follows no link, because the path may come from a file, and cgroups contain no
        // links.
        let mut options = OpenOptions::new();
        let file = options.write(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
        file.open(self.weight_file())?.write_all(weight.to_string().as_bytes())
    }

    /// Converts a weight of `parts` millionths of the kernel's default weight to the kernel's unit.
    #[must_use]
    pub fn scaled(&self, parts: u64) -> u64 {
        scaled(self.version, parts)
    }

    /// Whether the cgroup contains the thread `tid` and no other thread.
    #[must_use]
    pub fn holds_only(&self, tid: u32) -> bool {
        let list = match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        };
        let listed = std::fs::read_to_string(self.path.join(list)).unwrap_or_default();
        listed.split_ascii_whitespace().eq([tid.to_string().as_str()])
    }

    /// The cgroup's real-time budget in microseconds per period; `None` if the kernel has no
    /// real-time budgets for cgroups.
    #[must_use]
    pub fn rt_runtime_us(&self) -> Option<i64> {
        std::fs::read_to_string(self.path.join("cpu.rt_runtime_us")).ok()?.trim().parse().ok()
    }
}

const fn file(version: Version) -> &'static str {
    match version {
        Version::V1 => "cpu.shares",
        Version::V2 => "cpu.weight",
    }
}

fn scaled(version: Version, parts: u64) -> u64 {
    let (default, least, most) = match version {
        Version::V1 => (1_024, 2, 262_144),
        Version::V2 => (100, 1, 10_000),
    };
    (parts.saturating_mul(default) / 1_000_000).clamp(least, most)
}

/// Finds a cgroup's directory from the content of `/proc/PID/cgroup` and the list of mounts.
fn locate(groups: &str, mounts: &str) -> Option<(Version, PathBuf)> {
    let fields = |line: &str| {
        let mut parts = line.splitn(3, ':').map(str::to_owned);
        Some((parts.next()?, parts.next()?, parts.next()?))
    };
    let groups: Vec<_> = groups.lines().filter_map(fields).collect();
    let has_cpu = |list: &str| list.split(',').any(|name| name == "cpu");
    let mount = |kind: &str, v1: bool| {
        mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, at, fs, options, ..] = words[..] else { return None };
            (fs == kind && (!v1 || has_cpu(options))).then(|| PathBuf::from(at))
        })
    };
    let inside = |at: PathBuf, path: &str| match path.trim_start_matches('/') {
        "" => at,
        below => at.join(below),
    };
    if let Some((_, _, path)) = groups.iter().find(|(_, names, _)| has_cpu(names)) {
        return Some((Version::V1, inside(mount("cgroup", true)?, path)));
    }
    let (_, _, path) = groups.iter().find(|(id, names, _)| id == "0" && names.is_empty())?;
    Some((Version::V2, inside(mount("cgroup2", false)?, path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    #[test]
    fn the_hierarchy_that_has_the_controller_counts() {
        let hybrid = "3:cpu,cpuacct:/machine/vm1\n1:name=systemd:/x\n0::/user\n";
        let v1 = (Version::V1, PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/machine/vm1"));
        assert_eq!(locate(hybrid, MOUNTS), Some(v1));
        let unified = "0::/machine.slice/vm1.scope\n";
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let v2 = (Version::V2, PathBuf::from("/sys/fs/cgroup/machine.slice/vm1.scope"));
        assert_eq!(locate(unified, mounts), Some(v2));
        assert_eq!(locate("3:cpuset:/\n", mounts), None);
        // A controller whose name only begins with `cpu` does not match.
        assert_eq!(locate("3:cpuset:/a\n0::/\n", mounts).unwrap().0, Version::V2);
    }

    #[test]
    fn weights_are_told_in_parts_of_the_default_and_kept_in_range() {
        assert_eq!(scaled(Version::V1, 1_000_000), 1_024);
        assert_eq!(scaled(Version::V2, 1_000_000), 100);
        assert_eq!((scaled(Version::V1, 0), scaled(Version::V2, 0)), (2, 1));
        assert_eq!(scaled(Version::V1, u64::MAX), 262_144);
    }

    #[test]
    fn a_weight_is_written_in_the_files_own_unit() {
        let dir = penstock_testing::temp_dir();
        assert!(Cgroup::at(&dir).unwrap_err().to_string().contains("subtree_control"));
        std::fs::write(dir.join("cpu.weight"), "100\n").unwrap();
        let group = Cgroup::at(&dir).unwrap();
        assert_eq!((group.version(), group.weight().unwrap()), (Version::V2, 100));
        group.set_weight(group.scaled(500_000)).unwrap();
        assert_eq!(group.weight().unwrap(), 50);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(group.weight().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn this_thread_is_in_a_cgroup_of_the_host() {
        match Cgroup::of_thread(0) {
            Ok(group) => assert!(group.path().is_dir(), "{group:?}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }
}
