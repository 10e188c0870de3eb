//! Guests, schedulers and watchdogs for tests of the service with real threads. Busy processes
//! represent VMs with one vCPU. To run a scheduler or a watchdog, the test program starts itself
//! again. The new process runs a *role*, which is one of the functions at the end of this file.
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use penstock_testing::patience;
use penstock_vcpu_host::policy::{self, Policy};
use penstock_vcpu_host::state::{State, VmState};
use penstock_vcpu_host::{threads, watchdog};

/// Name of the file beside the scheduler's run directory in which a test's watchdog records its
/// events.
pub const SIGHTS: &str = "sights";

/// Environment variable that passes the argument `path` to a new process of the test program.
pub const PATH: &str = "PENSTOCK_TEST_PATH";

/// Lock of the processor that all tests use. Only one test runs at a time.
pub static PROCESSOR: Mutex<()> = Mutex::new(());

#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until_ok(|| look().ok_or(what))
}

/// Calls `look` until it succeeds. If `look` does not succeed in time, the panic message has the
/// last error.
#[track_caller]
fn until_ok<T, E: std::fmt::Debug>(mut look: impl FnMut() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        let last = match look() {
            Ok(found) => return found,
            Err(last) => last,
        };
        assert!(begin.elapsed() < patience(), "not within {:?}: {last:?}", patience());
        std::thread::yield_now();
    }
}

pub fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

pub fn is_lent(id: u32) -> bool {
    policy::get(id).unwrap().is_real_time()
}

pub fn affinity(id: u32) -> CpuSet {
    sched_getaffinity(pid(id)).unwrap()
}

/// A process that computes until this value is dropped.
pub struct Guest(Child);

impl Guest {
    pub fn start() -> Self {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self(child)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a command that runs the test program in the role `name` with the argument `path`.
pub fn role(name: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("support::role_of_{name}");
    let options = ["--exact", "--ignored", "--nocapture"];
    command.arg(test).args(options).env(PATH, path);
    command
}

pub struct Scheduler {
    pub dir: PathBuf,
    pub child: Child,
}

impl Scheduler {
    /// Starts a scheduler for the VMs `vm0`, `vm1`, ... on the last processor. The VM `vm0` has a
    /// deadline.
    pub fn start(dir: &Path, guests: &[&Guest], deadline: &str) -> Self {
        let mut text = String::new();
        for (at, guest) in guests.iter().enumerate() {
            let id = guest.id();
            text += &format!("[[vm]]\nname = \"vm{at}\"\npid = {id}\nthreads = \"sh\"\n");
            if at == 0 {
                text += &format!("vcpu_mode = \"periodic\"\ndeadline = \"{deadline}\"\n");
            }
        }
        Self::with(dir, &text)
    }

    /// Starts a scheduler for the `[[vm]]` tables in `vms`.
    pub fn with(dir: &Path, vms: &str) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let cpu = (0..CpuSet::count()).rfind(|c| affinity(0).is_set(*c).unwrap()).unwrap();
        let run = dir.join("run");
        let text = format!("[vcpu]\ncpus = [{cpu}]\nrun_dir = \"{}\"\n{vms}", run.display());
        std::fs::write(dir.join("vcpu.toml"), text).unwrap();
        let child = role("scheduler", &dir.join("vcpu.toml")).spawn().unwrap();
        Self { dir: dir.to_owned(), child }
    }

    pub fn signal(&self, signal: Signal) {
        kill(pid(self.child.id()), signal).unwrap();
    }

    /// Sends SIGTERM to the thread that waits for the signal, because the first thread of a test
    /// program does not block the signal.
    pub fn terminate(&self) {
        let threads = threads::named(self.child.id(), "support::role_*").unwrap();
        let (pid, tid) = (threads[0].pid, threads[0].tid);
        // SAFETY: no pointers are passed.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGTERM) };
        assert_eq!(sent, 0);
    }

    /// Waits until the state of VM number `at` satisfies `is`.
    #[track_caller]
    pub fn state(&self, at: usize, is: impl Fn(&VmState) -> bool) -> VmState {
        until_ok(|| {
            let last = State::load(&self.dir.join("run")).map(|state| state.vms);
            match last.as_deref().ok().and_then(|vms| vms.get(at)) {
                Some(vm) if is(vm) => Ok(vm.clone()),
                _ => Err(last),
            }
        })
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // A stopped process must continue in order to end.
        let _ = kill(pid(self.child.id()), Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Locks the processor for a test and names a directory for the test; `None` if threads may not
/// have real-time policies.
pub fn prepare(name: &str) -> Option<(MutexGuard<'static, ()>, PathBuf)> {
    let guard = PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner);
    let may = std::thread::spawn(|| policy::set(0, Policy::Fifo { priority: 1 }).is_ok());
    if !may.join().unwrap() {
        penstock_testing::skip("real-time policies are not permitted here");
        return None;
    }
    let dir = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    Some((guard, dir.join(format!("penstock-vcpu-{name}-{}", std::process::id()))))
}

/// Waits until the scheduler has a watchdog. The function checks that the watchdog's priority is
/// above all guests and scheduling threads.
pub fn watched(scheduler: &Scheduler) {
    let id = until("a watchdog", || {
        let state = State::load(&scheduler.dir.join("run")).ok()?;
        (state.watchdog > 0).then_some(state.watchdog)
    });
    let above = Policy::Fifo { priority: watchdog::PRIORITY };
    // In a test the service does not run in the first thread of its process.
    let threads = threads::named(id, "support::role_*").unwrap();
    let first = threads.iter().any(|thread| policy::get(thread.tid).is_ok_and(|p| p == above));
    assert!(first, "it waits for no guest and no scheduler");
}

/// Counts the events that watchdogs have recorded. All watchdogs of a test use one directory.
pub fn seen(dir: &Path, what: &str, taken: &str) -> usize {
    let text = std::fs::read_to_string(dir.join(SIGHTS)).unwrap_or_default();
    text.lines().filter(|line| line.contains(what) && line.contains(taken)).count()
}

#[test]
#[ignore = "a role: what the other tests call as scheduler"]
fn role_of_scheduler() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let path = std::path::Path::new(&path);
    let load = || {
        let config = penstock_vcpu_host::config::Config::load(path);
        config.map_err(|wrong| wrong.to_string())
    };
    let watchdog = |run_dir: &std::path::Path| role("watchdog", run_dir);
    if let Err(error) = penstock_vcpu_host::service::run(&load, &watchdog) {
        eprintln!("{error}");
        // The role has failed, and the test that started this process judges the result.
        std::process::exit(1);
    }
}

#[test]
#[ignore = "a role: what the scheduler calls as watchdog"]
fn role_of_watchdog() {
    use std::io::Write as _;
    let Some(path) = std::env::var_os(PATH) else { return };
    let path = std::path::Path::new(&path);
    let sights = path.with_file_name(SIGHTS);
    let mut sights = std::fs::File::options().create(true).append(true).open(sights).unwrap();
    let tell = |sight| writeln!(sights, "{sight:?}").unwrap();
    penstock_vcpu_host::watchdog::watch(path, tell).unwrap();
    // Standard output is a pipe to the scheduler, which has ended. The test runner would fail to
    // print its result there.
    std::process::exit(0);
}
