//! Finds the vCPU threads of a virtual machine by process or by cgroup.

use std::io;
use std::path::{Path, PathBuf};

use penstock_vcpu::terms::VCPUS_MAX;
use thiserror::Error;

/// Thread of one vCPU, with its ids and its start time. Thread ids are reused, so the start time is
/// a part of a thread's identity. A thread with the same `tid` and another `started` is a different
/// thread, and the scheduler must not change that thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuThread {
    /// Number of the thread's vCPU in the VM.
    pub vcpu: u32,
    pub pid: u32,
    pub tid: u32,
    /// Start time of the thread in clock ticks since boot (`proc(5)`, field 22 of `stat`).
    pub started: u64,
}

impl VcpuThread {
    /// Procfs directory of the vCPU thread.
    #[must_use]
    pub fn task(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/task/{}", self.pid, self.tid))
    }

    /// Whether the thread still exists, and its id was not reused for another thread.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        started_at(self.pid, self.tid) == Some(self.started)
    }
}

/// Reason why no vCPU threads were found.
#[derive(Debug, Error)]
pub enum FindError {
    /// The process or cgroup does not exist, or the permission to read its files is missing.
    #[error("{path} cannot be listed: {source}; start the VM or correct the path")]
    Unreadable { path: PathBuf, source: io::Error },
    /// No process has a command line that matches the VM's pattern.
    #[error("no process has a command line like {line:?}; start the VM or correct the pattern")]
    NoProcess {
        /// Pattern from the VM's key `process`.
        line: String,
    },
    /// Several processes match the VM's pattern or name.
    #[error(
        "{} processes with vCPU threads have {what}: {}; name the VM by `pid`, or by a \
         narrower pattern",
        pids.len(),
        pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    )]
    Several {
        /// Pattern or name that matches several processes.
        what: String,
        pids: Vec<u32>,
    },
    /// The number of matching threads exceeds the maximum number of vCPUs of a VM.
    #[error(
        "{path} has {count} threads with vCPU names, but a VM has at most {VCPUS_MAX} vCPUs; write \
         a narrower `threads`, or name one process"
    )]
    TooMany { path: PathBuf, count: usize },
    /// Two threads of the VM have the name of the same vCPU.
    #[error(
        "{path} has two threads for vCPU {vcpu}; put only one VM's process into the cgroup, or \
         name the VM by `pid`"
    )]
    Twice { path: PathBuf, vcpu: u32 },
    /// No QEMU process was started with the VM's guest name.
    #[error(
        "no process was started with `-name guest={name}`, as libvirt does; start the domain, or \
         use a name from `virsh list --name`"
    )]
    NoDomain { name: String },
    /// No thread of the process has a name that matches the VM's pattern.
    #[error("{path} has no thread named like {pattern:?}; see the names in /proc/PID/task/*/comm")]
    NoMatch { path: PathBuf, pattern: String },
    /// No thread of the process has QEMU's name for a vCPU thread.
    #[error(
        "{path} has no thread named \"CPU n/KVM\" or \"CPU n/TCG\"; start QEMU with \
         -name NAME,debug-threads=on (libvirt does)"
    )]
    NoVcpus { path: PathBuf },
}

/// Finds the vCPU threads of the process `pid`, in the order of the vCPU numbers.
///
/// # Errors
/// Returns a [`FindError`] if the process has ended, or if none of its threads has the name of a
/// vCPU.
pub fn of_process(pid: u32) -> Result<Vec<VcpuThread>, FindError> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let tids = std::fs::read_dir(&path)
        .map_err(|source| FindError::Unreadable { path: path.clone(), source })?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    some(path, tids.filter_map(|tid| vcpu(pid, tid)).collect())
}

/// Finds the threads of the process `pid` with names that match `pattern`, in which `*` matches any
/// text. The vCPU numbers follow the order of the thread ids.
///
/// # Errors
/// Returns a [`FindError`] if the process has ended, or if none of its threads matches.
pub fn named(pid: u32, pattern: &str) -> Result<Vec<VcpuThread>, FindError> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let mut tids: Vec<u32> = std::fs::read_dir(&path)
        .map_err(|source| FindError::Unreadable { path: path.clone(), source })?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    tids.sort_unstable();
    let thread = |tid: u32| {
        let stat = stat_of(pid, tid)?;
        let name = &stat[stat.find('(')? + 1..stat.rfind(')')?];
        let lives = !matches!(state(&stat)?, 'Z' | 'X');
        (lives && matches(pattern, name)).then_some((tid, started(&stat)?))
    };
    let found = (0..).zip(tids.into_iter().filter_map(thread));
    let found: Vec<VcpuThread> =
        found.map(|(vcpu, (tid, started))| VcpuThread { vcpu, pid, tid, started }).collect();
    if found.is_empty() {
        return Err(FindError::NoMatch { path, pattern: pattern.to_owned() });
    }
    few(path, found)
}

/// Finds the ids of the processes with command lines that match `pattern`, in ascending order,
/// without the calling process. Spaces join the words of a command line.
#[must_use]
pub fn processes_like(pattern: &str) -> Vec<u32> {
    processes(|line| matches(pattern, line.replace('\0', " ").trim_end()))
}

/// Finds the ids of the processes with the guest name `name` in the option `-name`, in ascending
/// order. For a domain, libvirt starts QEMU with the option `-name`.
#[must_use]
pub fn of_domain(name: &str) -> Vec<u32> {
    processes(|line| guest_name(line).as_deref() == Some(name))
}

/// Finds the ids of the processes with a command line that satisfies `is`. Each word of the command
/// line ends with a zero byte.
fn processes(is: impl Fn(&str) -> bool) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let line = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_it = |pid: &u32| *pid != std::process::id() && is(&String::from_utf8_lossy(&line(*pid)));
    let mut found: Vec<u32> = pids.filter(is_it).collect();
    found.sort_unstable();
    found
}

/// Finds the guest's name in a command line with a zero byte after each word. QEMU accepts `-name
/// web` and `-name guest=web,...`, with `,,` for a comma.
fn guest_name(line: &str) -> Option<String> {
    let mut words = line.split('\0');
    words.find(|word| matches!(*word, "-name" | "--name"))?;
    let value = words.next()?.replace(",,", "\0");
    let mut options = value.split(',');
    let named = options.clone().find_map(|option| option.strip_prefix("guest="));
    let name = named.or_else(|| options.next().filter(|first| !first.contains('=')))?;
    Some(name.replace('\0', ","))
}

/// Whether `text` matches `pattern`, in which `*` matches any text. The search for the parts of a
/// pattern never goes back in a command line, because command lines may be long.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(tail)
}

/// Finds the vCPU threads of every process in the cgroup with the directory `dir` (v1 or v2),
/// without the cgroups below.
///
/// # Errors
/// Returns a [`FindError`] if the cgroup does not exist, or if no thread in the cgroup has the name
/// of a vCPU.
pub fn of_cgroup(dir: &Path) -> Result<Vec<VcpuThread>, FindError> {
    let found = in_cgroup(dir, &of_process)?;
    match found.windows(2).find(|pair| pair[0].vcpu == pair[1].vcpu) {
        Some(pair) => Err(FindError::Twice { path: dir.join("cgroup.procs"), vcpu: pair[0].vcpu }),
        None => Ok(found),
    }
}

/// Finds the vCPU threads of every process in the cgroup with the directory `dir`. The function
/// `of` returns the vCPU threads of one process.
pub(crate) fn in_cgroup(
    dir: &Path,
    of: &dyn Fn(u32) -> Result<Vec<VcpuThread>, FindError>,
) -> Result<Vec<VcpuThread>, FindError> {
    let path = dir.join("cgroup.procs");
    let text = std::fs::read_to_string(&path)
        .map_err(|source| FindError::Unreadable { path: path.clone(), source })?;
    // A process that exits during the iteration is not an error.
    let pids = text.lines().filter_map(|line| line.parse().ok());
    some(path, pids.filter_map(|pid| of(pid).ok()).flatten().collect())
}

fn some(path: PathBuf, mut found: Vec<VcpuThread>) -> Result<Vec<VcpuThread>, FindError> {
    found.sort_unstable();
    if found.is_empty() { Err(FindError::NoVcpus { path }) } else { few(path, found) }
}

fn few(path: PathBuf, found: Vec<VcpuThread>) -> Result<Vec<VcpuThread>, FindError> {
    match found.len() {
        count if count > usize::from(VCPUS_MAX) => Err(FindError::TooMany { path, count }),
        _ => Ok(found),
    }
}

fn vcpu(pid: u32, tid: u32) -> Option<VcpuThread> {
    let stat = stat_of(pid, tid)?;
    // The name is in brackets and may itself contain brackets and spaces.
    let name = &stat[stat.find('(')? + 1..stat.rfind(')')?];
    Some(VcpuThread { vcpu: number(name)?, pid, tid, started: started(&stat)? })
}

/// Reads the kernel's `stat` line of a thread. A program may choose any bytes as the name of a
/// thread. A name that is not UTF-8 must not prevent the restoration of the thread.
pub(crate) fn stat_of(pid: u32, tid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the vCPU number `n` of a thread name "CPU n/KVM" or "CPU n/TCG", as QEMU names vCPU
/// threads.
fn number(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("CPU ")?;
    rest.strip_suffix("/KVM").or_else(|| rest.strip_suffix("/TCG"))?.parse().ok()
}

/// Start time of a thread in clock ticks since boot; `None` if the thread has exited, even if it is
/// a zombie.
#[must_use]
pub fn started_at(pid: u32, tid: u32) -> Option<u64> {
    let stat = stat_of(pid, tid)?;
    if matches!(state(&stat)?, 'Z' | 'X') { None } else { started(&stat) }
}

/// Letter of the thread's state, field 3 of `stat`. The letter R means that the thread has work. A
/// state letter other than R means that the thread waits.
pub(crate) fn state(stat: &str) -> Option<char> {
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

/// Processor on which the thread last ran, field 39 of `stat`.
pub(crate) fn cpu(stat: &str) -> Option<u32> {
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(36)?.parse().ok()
}

fn started(stat: &str) -> Option<u64> {
    // The first field after the name is field 3, so field 22 is the twentieth field after the name.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_name_that_is_not_utf8_hides_no_thread() {
        let (told, tids) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let name = std::ffi::CString::new([0xff, 0xfe, b')', b'C']).unwrap();
            nix::sys::prctl::set_name(&name).unwrap();
            told.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = ended.recv();
        });
        let tid = u32::try_from(tids.recv().unwrap()).unwrap();
        assert!(started_at(std::process::id(), tid).is_some());
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn names_of_vcpus_and_others() {
        assert_eq!(number("CPU 12/KVM"), Some(12));
        assert_eq!(number("CPU 0/TCG"), Some(0));
        for other in ["CPU /KVM", "CPU 1", "IO mon_iothread", "CPU x/KVM", "qemu"] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_with_brackets_hides_no_field() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 0";
        assert_eq!(started(stat), Some(4242));
    }

    #[test]
    fn a_thread_is_found_by_name_and_missed_when_it_exits() {
        let (stop, stopped) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let run = move || {
            ready.send(()).unwrap();
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("CPU 3/KVM".into()).spawn(run).unwrap();
        is_ready.recv().unwrap();
        let found = of_process(std::process::id()).unwrap();
        assert_eq!(found.iter().map(|t| t.vcpu).collect::<Vec<_>>(), [3]);
        assert!(found[0].is_alive());
        // The file has the form of `cgroup.procs`: one process per line. 0 represents a process of
        // another pid namespace.
        let dir = penstock_testing::temp_dir();
        std::fs::write(dir.join("cgroup.procs"), format!("0\n{}\n", std::process::id())).unwrap();
        let by_cgroup = of_cgroup(&dir).unwrap();
        let line = std::process::id();
        std::fs::write(dir.join("cgroup.procs"), format!("{line}\n{line}\n")).unwrap();
        let twice = of_cgroup(&dir).unwrap_err().to_string();
        assert!(twice.contains("two threads for vCPU 3"), "{twice}");
        assert_eq!(by_cgroup, found);
        let reused = VcpuThread { started: found[0].started + 1, ..found[0] };
        assert!(!reused.is_alive(), "same id, another thread");

        drop(stop);
        thread.join().unwrap();
        // The thread has left user code, and the kernel removes it from procfs a moment later.
        assert!((0..10_000_000).any(|_| !found[0].is_alive()));
        let none = of_process(std::process::id()).unwrap_err().to_string();
        assert!(none.contains("debug-threads=on"), "{none}");
    }

    #[test]
    fn more_threads_than_a_vm_has_vcpus_are_refused() {
        let (end, ended) = mpsc::channel::<()>();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
        let (ready, is_ready) = mpsc::channel();
        let start = |_| {
            let (ready, ended) = (ready.clone(), std::sync::Arc::clone(&ended));
            let run = move || {
                ready.send(()).unwrap();
                let _ = ended.lock().unwrap().recv();
            };
            std::thread::Builder::new().name("many-vcpus".into()).spawn(run).unwrap()
        };
        let threads: Vec<_> = (0..=VCPUS_MAX).map(start).collect();
        threads.iter().for_each(|_| is_ready.recv().unwrap());
        let said = named(std::process::id(), "many-vcpus").unwrap_err().to_string();
        assert!(said.contains("has 65 threads") && said.contains("at most 64"), "{said}");
        drop(end);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_pattern_matches_with_anything_for_its_stars() {
        assert!(matches("CPU */KVM", "CPU 12/KVM") && matches("*", "") && matches("a", "a"));
        assert!(matches("*-name vm1*", "qemu -name vm1,debug-threads=on -m 64"));
        assert!(!matches("CPU */KVM", "CPU 12/TCG") && !matches("a", "ab") && !matches("a*b", "a"));
        let none = named(std::process::id(), "no such thread").unwrap_err().to_string();
        assert!(none.contains("no such thread") && none.contains("comm"), "{none}");
        // The test's own thread exists. All threads of all tests together may be too many.
        let found = named(std::process::id(), "threads::tests*").unwrap();
        assert!(found.iter().any(VcpuThread::is_alive));
        assert!(processes_like("no such process, says penstock").is_empty());
        assert!(matches("a*b*c", "a b b c") && matches("**", "x") && matches("*ab*", "aab"));
        assert!(!matches("ab*bc", "abc") && !matches("*ab*ba*", "aba") && !matches("a*b*", "ac"));
        let long = "a".repeat(100_000);
        assert!(!matches("*a*a*a*a*a*a*a*a*b", &long), "and that at once");
    }

    #[test]
    fn a_domain_is_found_by_the_name_that_qemu_was_given() {
        let name = |line: &str| guest_name(&line.replace(' ', "\0"));
        assert_eq!(name("qemu -name guest=web,debug-threads=on -m 64").as_deref(), Some("web"));
        assert_eq!(name("qemu -name debug-threads=on,guest=web").as_deref(), Some("web"));
        assert_eq!(name("qemu -name web,process=x").as_deref(), Some("web"));
        assert_eq!(name("qemu -name guest=a,,b").as_deref(), Some("a,b"));
        assert_eq!(name("qemu -name debug-threads=on"), None);
        assert_eq!(name("grep web"), None);
        let words = ["-c", "read _; :", "-name", "guest=penstock-test-domain,debug-threads=on"];
        let mut command = std::process::Command::new("sh");
        let mut child = command.args(words).stdin(std::process::Stdio::piped()).spawn().unwrap();
        // The process exists a moment before its command line can be read.
        let found = (0..10_000).find_map(|_| of_domain("penstock-test-domain").pop());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(child.id()));
        assert!(of_domain("penstock-test-domain").is_empty());
    }

    #[test]
    fn a_cgroup_that_vanished_is_named() {
        let e = of_cgroup(Path::new("/sys/fs/cgroup/no-such-vm")).unwrap_err().to_string();
        assert!(e.contains("no-such-vm/cgroup.procs"), "{e}");
    }
}
