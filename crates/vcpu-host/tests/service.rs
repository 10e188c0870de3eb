//! The service over real threads: a scheduler that is killed or stopped in the middle of a
//! slice leaves no thread with a real-time policy, VMs come and go, and at the end all is as it
//! was. Processes that compute stand for VMs of one vCPU. Without the right to real-time policies
//! there is nothing to test. Scheduler and watchdog are this very program, called for one of the
//! two tests at the end of the file, which are no tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use penstock_vcpu_host::config::Config;
use penstock_vcpu_host::policy::{self, Policy};
use penstock_vcpu_host::state::{State, VmState};
use penstock_vcpu_host::{service, threads, watchdog};

/// Longest that anything awaited may take: on a loaded machine the scheduler starts slowly.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where a watchdog writes what it saw, beside the scheduler's directory.
const SIGHTS: &str = "sights";

/// A deadline that the fair class of two who compute never keeps, so that slices are lent often.
const OFTEN: &str = "1 ms";

/// What a role is told.
const PATH: &str = "PENSTOCK_TEST_PATH";

/// All use one processor, one after another.
static PROCESSOR: Mutex<()> = Mutex::new(());

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

fn is_lent(id: u32) -> bool {
    policy::get(id).unwrap().is_real_time()
}

fn affinity(id: u32) -> CpuSet {
    sched_getaffinity(pid(id)).unwrap()
}

/// A process that computes until it is dropped.
struct Guest(Child);

impl Guest {
    fn start() -> Self {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program as something else, which is told `path`.
fn role(name: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("role_of_{name}");
    let options = ["--exact", "--ignored", "--nocapture"];
    command.arg(test).args(options).env(PATH, path);
    command
}

struct Scheduler {
    dir: PathBuf,
    child: Child,
}

impl Scheduler {
    /// Schedules VMs `vm0`, `vm1`, ... on the last processor, the first one with a deadline.
    fn start(dir: &Path, guests: &[&Guest], deadline: &str) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let cpu = (0..CpuSet::count()).rfind(|c| affinity(0).is_set(*c).unwrap()).unwrap();
        let mut text = format!("[vcpu]\ncpus = [{cpu}]\nrun_dir = \"{}/run\"\n", dir.display());
        for (at, guest) in guests.iter().enumerate() {
            let id = guest.id();
            text += &format!("[[vm]]\nname = \"vm{at}\"\npid = {id}\nthreads = \"sh\"\n");
            if at == 0 {
                text += &format!("vcpu_mode = \"periodic\"\ndeadline = \"{deadline}\"\n");
            }
        }
        std::fs::write(dir.join("vcpu.toml"), text).unwrap();
        let child = role("scheduler", &dir.join("vcpu.toml")).spawn().unwrap();
        Self { dir: dir.to_owned(), child }
    }

    fn signal(&self, signal: Signal) {
        kill(pid(self.child.id()), signal).unwrap();
    }

    /// SIGTERM to the thread that waits for it: unlike a program's own, the first thread of a test
    /// does not have it blocked.
    fn terminate(&self) {
        let threads = threads::named(self.child.id(), "role_of_*").unwrap();
        let (pid, tid) = (threads[0].pid, threads[0].tid);
        // SAFETY: no pointers are passed.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGTERM) };
        assert_eq!(sent, 0);
    }

    /// Waits for a state of the VM number `at` that is as it should be.
    fn state(&self, at: usize, is: impl Fn(&VmState) -> bool) -> VmState {
        until("state", || {
            let state = State::load(&self.dir.join("run")).ok()?;
            state.vms.into_iter().nth(at).filter(|vm| is(vm))
        })
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // One that stands still has to go on to end.
        let _ = kill(pid(self.child.id()), Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The processor and a directory, or `None` where nothing may be real-time.
fn prepare(name: &str) -> Option<(MutexGuard<'static, ()>, PathBuf)> {
    let guard = PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner);
    let may = std::thread::spawn(|| policy::set(0, Policy::Fifo { priority: 1 }).is_ok());
    if !may.join().unwrap() {
        eprintln!("skipped: real-time policies are not permitted here");
        return None;
    }
    let dir = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    Some((guard, dir.join(format!("penstock-vcpu-{name}-{}", std::process::id()))))
}

/// A scheduler whose watchdog, and nobody slower, is there to take back what it lends.
fn watched(scheduler: &Scheduler) {
    let id = until("a watchdog", || {
        let state = State::load(&scheduler.dir.join("run")).ok()?;
        (state.watchdog > 0).then_some(state.watchdog)
    });
    let above = Policy::Fifo { priority: watchdog::PRIORITY };
    // Here it runs in a test's thread, and not in the first of its process.
    let threads = threads::named(id, "role_of_*").unwrap();
    let first = threads.iter().any(|thread| policy::get(thread.tid).is_ok_and(|p| p == above));
    assert!(first, "it waits for no guest and no scheduler");
}

/// Every thread of the process is stopped: it does nothing more until it is told to go on.
fn is_stopped(id: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}

/// What watchdogs have seen; those of a test have one directory.
fn seen(dir: &Path, what: &str, taken: &str) -> usize {
    let text = std::fs::read_to_string(dir.join(SIGHTS)).unwrap_or_default();
    text.lines().filter(|line| line.contains(what) && line.contains(taken)).count()
}

/// How soon it does so is measured by the example `takeback`: here only who did it counts.
#[test]
fn a_scheduler_that_is_killed_in_a_slice_leaves_nobody_with_a_processor() {
    let Some((_guard, dir)) = prepare("kill") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let before = policy::get(guest.id()).unwrap();
    until("a scheduler killed in the middle of a slice", || {
        let mut scheduler = Scheduler::start(&dir, &[&guest, &other], OFTEN);
        watched(&scheduler);
        until("a slice", || is_lent(guest.id()).then_some(()));
        scheduler.signal(Signal::SIGKILL);
        scheduler.child.wait().unwrap();
        // No scheduler lives and no other has begun: what comes back the watchdog took.
        let (dead, in_slice) = until("the watchdog", || {
            let dead = seen(&dir, "Dead", "");
            (dead > 0).then(|| (dead, seen(&dir, "Dead", "taken: 1 ")))
        });
        assert_eq!((dead, policy::get(guest.id()).unwrap()), (1, before));
        assert!(!dir.join("run/leases").exists());
        (in_slice > 0).then_some(())
    });
}

#[test]
fn a_scheduler_that_stands_still_is_relieved_and_goes_on() {
    let Some((_guard, dir)) = prepare("stop") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let scheduler = Scheduler::start(&dir, &[&guest, &other], OFTEN);
    watched(&scheduler);
    until("a scheduler stopped in the middle of a slice", || {
        until("a slice", || is_lent(guest.id()).then_some(()));
        scheduler.signal(Signal::SIGSTOP);
        until("a stop", || is_stopped(scheduler.child.id()).then_some(()));
        until("the watchdog", || (!is_lent(guest.id())).then_some(()));
        for _ in 0..1_000 {
            assert!(!is_lent(guest.id()), "nobody is there to lend");
        }
        scheduler.signal(Signal::SIGCONT);
        (seen(&dir, "Stalled", "taken: 1 ") > 0).then_some(())
    });
    until("a slice", || is_lent(guest.id()).then_some(()));
}

#[test]
fn vms_come_and_go_and_at_the_end_all_is_as_it_was() {
    let Some((_guard, dir)) = prepare("serve") else { return };
    let (guest, other, third) = (Guest::start(), Guest::start(), Guest::start());
    let before = (policy::get(guest.id()).unwrap(), affinity(guest.id()));
    let mut scheduler = Scheduler::start(&dir, &[&guest, &other, &third], "2 ms");
    let vm = scheduler.state(0, |vm| vm.vcpus.first().is_some_and(|vcpu| vcpu.boosts > 100));
    assert_eq!((vm.mode.as_str(), vm.problem), ("periodic", None));
    assert!((vm.vcpus[0].entitled_percent - 33.3).abs() < 0.1);
    assert_ne!(affinity(guest.id()), before.1, "it stays on its processor");

    drop(other);
    let gone = scheduler.state(1, |vm| vm.vcpus.is_empty());
    assert!(gone.problem.unwrap().contains("is the VM running"));
    let half = scheduler.state(0, |vm| vm.vcpus[0].entitled_percent > 49.0);
    assert_eq!(half.problem, None);

    // A VM that is paused has nothing to do, and the other one has all.
    kill(pid(guest.id()), Signal::SIGSTOP).unwrap();
    scheduler.state(0, |vm| vm.vcpus[0].blocked);
    kill(pid(guest.id()), Signal::SIGCONT).unwrap();
    scheduler.state(0, |vm| !vm.vcpus[0].blocked);

    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    assert_eq!((policy::get(guest.id()).unwrap(), affinity(guest.id())), before);
}

#[test]
fn a_second_scheduler_and_a_deadline_that_does_not_fit_are_refused() {
    let Some((_guard, dir)) = prepare("refuse") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    // One slot in two is half a processor; a third VM leaves a third.
    let scheduler = Scheduler::start(&dir, &[&guest, &other], "0.5 ms");
    let vm = scheduler.state(0, |vm| !vm.vcpus.is_empty());
    assert_eq!((vm.mode.as_str(), vm.problem), ("periodic", None));
    let third = Guest::start();
    let text = std::fs::read_to_string(dir.join("vcpu.toml")).unwrap();
    let more = format!("{text}[[vm]]\nname = \"vm2\"\npid = {}\nthreads = \"sh\"\n", third.id());
    std::fs::write(dir.join("more.toml"), more).unwrap();
    let refused = role("scheduler", &dir.join("more.toml")).output().unwrap();
    let said = String::from_utf8_lossy(&[refused.stdout, refused.stderr].concat()).into_owned();
    assert!(!refused.status.success() && said.contains("run_dir"), "{said}");
    drop(scheduler);
    std::fs::create_dir_all(&dir).unwrap();

    let scheduler = Scheduler::start(&dir, &[&guest, &other, &third], "0.5 ms");
    let vm = scheduler.state(0, |vm| vm.problem.is_some());
    assert_eq!(vm.mode, "none");
    assert!(vm.problem.unwrap().contains("give it more weight, or a deadline of 1 ms"));
}

#[test]
#[ignore = "a role: what the other tests call as scheduler"]
fn role_of_scheduler() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let config = Config::load(Path::new(&path)).unwrap();
    service::run(&config, &|| role("watchdog", &config.run_dir)).unwrap();
}

#[test]
#[ignore = "a role: what the scheduler calls as watchdog"]
fn role_of_watchdog() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let sights = Path::new(&path).with_file_name(SIGHTS);
    let mut sights = std::fs::File::options().create(true).append(true).open(sights).unwrap();
    watchdog::watch(Path::new(&path), |sight| writeln!(sights, "{sight:?}").unwrap()).unwrap();
}
