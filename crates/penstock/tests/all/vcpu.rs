//! Tests of `penstock vcpu`. Busy processes represent VMs with one vCPU. Without the right to
//! real-time policies, all tests except those of refusals are skipped.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use penstock_testing::{TempDir, temp_dir};
use penstock_vcpu_host::policy::{self, Policy};
use penstock_vcpu_host::watchdog;
use serde_json::Value;

use crate::support::{BINARY, Told, await_some, await_true};

/// All tests use the same processor, so they run one after another.
static PROCESSOR: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

fn may_be_real_time() -> bool {
    let may = std::thread::spawn(|| policy::set(0, Policy::Fifo { priority: 1 }).is_ok());
    let may = may.join().unwrap();
    if !may {
        penstock_testing::skip("real-time policies are not permitted here; run as root");
    }
    may
}

/// A process that keeps a CPU busy until the value is dropped.
struct Guest(Child);

impl Guest {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }

    fn is_lent(&self) -> bool {
        policy::get(self.0.id()).unwrap().is_real_time()
    }

    fn affinity(&self) -> CpuSet {
        sched_getaffinity(pid(self.0.id())).unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory with a configuration file in which `web` is aperiodic, and the other VMs have no
/// deadline.
struct World {
    scratch: TempDir,
    guests: Vec<Guest>,
}

impl World {
    fn new(guests: usize, deadline: &str) -> Self {
        let scratch = temp_dir();
        let guests: Vec<Guest> = (0..guests).map(|_| Guest::start()).collect();
        let allowed = sched_getaffinity(pid(std::process::id())).unwrap();
        let cpu = (0..CpuSet::count()).rfind(|cpu| allowed.is_set(*cpu).unwrap()).unwrap();
        let run_dir = scratch.join("run");
        let mut text = format!("[vcpu]\ncpus = [{cpu}]\nrun_dir = \"{}\"\n", run_dir.display());
        for (at, guest) in guests.iter().enumerate() {
            let (id, name) = (guest.0.id(), if at == 0 { "web".into() } else { format!("vm{at}") });
            text += &format!("[[vm]]\nname = \"{name}\"\npid = {id}\nthreads = \"sh\"\n");
            if at == 0 {
                text += &format!("vcpu_mode = \"periodic\"\ndeadline = \"{deadline}\"\n");
            }
        }
        std::fs::write(scratch.join("vcpu.toml"), text).unwrap();
        Self { scratch, guests }
    }

    fn run_dir(&self) -> PathBuf {
        self.scratch.join("run")
    }

    fn run(&self) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["vcpu", "run", "--config"]).arg(self.scratch.join("vcpu.toml"));
        command.env_remove("RUST_LOG");
        command
    }

    fn start(&self) -> Scheduler {
        let log = std::fs::File::create(self.scratch.join("log")).unwrap();
        Scheduler(self.run().stdin(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn ask(&self, verb: &str, words: &[&str]) -> Told {
        let mut command = Command::new(BINARY);
        command.args(["vcpu", verb]).args(words).arg("--run-dir").arg(self.run_dir());
        command.output().unwrap().into()
    }

    /// Waits until `is` accepts the output of `penstock vcpu show --json`.
    fn shown(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        await_some(what, || {
            let told = self.ask("show", &["--json"]);
            told.status.success().then(|| told.json()).filter(&is)
        })
    }

    /// Whether all guests have their original policies and processors, and the table of leases is
    /// deleted.
    fn is_put_back(&self) -> bool {
        let mine = sched_getaffinity(pid(std::process::id())).unwrap();
        let back = |guest: &Guest| !guest.is_lent() && guest.affinity() == mine;
        !self.run_dir().join("leases").exists() && self.guests.iter().all(back)
    }
}

struct Scheduler(Child);

impl Scheduler {
    fn signal(&self, signal: Signal) {
        kill(pid(self.0.id()), signal).unwrap();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // A stopped process must continue before it can end.
        let _ = kill(pid(self.0.id()), Signal::SIGCONT);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_scheduler_shows_what_it_does_hears_of_events_and_ends_as_it_began() {
    let _guard = alone();
    if !may_be_real_time() {
        return;
    }
    let world = World::new(2, "1 ms");
    let mut scheduler = world.start();
    let state = world.shown("a slice", |s| s["vms"][0]["vcpus"][0]["boosts"].as_u64() > Some(0));
    assert_eq!(state["pid"], scheduler.0.id());
    assert_eq!(state["vms"][0]["mode"], "periodic");
    assert_eq!(state["vms"][0]["deadline_ms"], 1.0);
    assert_eq!(state["vms"][1]["vcpus"][0]["boosts"], 0, "it has no deadline");
    let guard = u32::try_from(state["watchdog"].as_u64().unwrap()).unwrap();
    let above = Policy::Fifo { priority: watchdog::PRIORITY };
    assert_eq!(policy::get(guard).unwrap(), above);
    let table = world.ask("show", &[]).ok();
    assert!(table.contains("web") && table.contains("vm1") && table.contains("P99.9"), "{table}");

    world.ask("event", &["web"]).ok();
    world.shown("an event", |s| s["vms"][0]["vcpus"][0]["events"].as_u64() > Some(0));
    let unknown = world.ask("event", &["wbe"]).fails();
    assert!(unknown.contains("\"wbe\"") && unknown.contains("web, vm1"), "{unknown}");

    let swept = world.ask("sweep", &[]).fails();
    assert!(swept.contains("run_dir"), "a scheduler that lives is not swept: {swept}");
    scheduler.signal(Signal::SIGTERM);
    assert!(scheduler.0.wait().unwrap().success());
    await_true("all put back", || world.is_put_back());
    let none = world.ask("show", &[]).fails();
    assert!(none.contains("penstock vcpu run"), "{none}");
    let none = world.ask("event", &["web"]).fails();
    assert!(none.contains("penstock vcpu run"), "{none}");
}

#[test]
fn after_kill_9_nothing_is_left_real_time() {
    let _guard = alone();
    if !may_be_real_time() {
        return;
    }
    let world = World::new(2, "1 ms");
    let mut scheduler = world.start();
    await_true("a slice", || world.guests[0].is_lent());
    scheduler.signal(Signal::SIGKILL);
    scheduler.0.wait().unwrap();
    await_true("the watchdog", || world.is_put_back());
    assert!(world.ask("sweep", &[]).ok().contains("nothing to restore"));
}

#[test]
fn what_no_watchdog_put_back_the_sweep_does() {
    let _guard = alone();
    if !may_be_real_time() {
        return;
    }
    let world = World::new(2, "1 ms");
    let mut scheduler = world.start();
    let state = world.shown("VMs", |s| s["vms"][0]["vcpus"][0]["boosts"].as_u64() > Some(0));
    // A stopped scheduler cannot start another watchdog.
    scheduler.signal(Signal::SIGSTOP);
    let guard = i32::try_from(state["watchdog"].as_u64().unwrap()).unwrap();
    kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    scheduler.signal(Signal::SIGKILL);
    scheduler.0.wait().unwrap();
    assert!(!world.is_put_back(), "there is somebody else who does it");
    assert!(world.ask("sweep", &[]).ok().contains("restored;"));
    assert!(world.is_put_back());
}

#[test]
fn a_deadline_that_does_not_fit_and_a_vm_that_is_not_there_are_told_with_the_remedy() {
    let _guard = alone();
    if !may_be_real_time() {
        return;
    }
    // The deadline needs every second slot, half of a processor, but the VM has only a third.
    let world = World::new(3, "0.5 ms");
    let file = world.scratch.join("vcpu.toml");
    let more = "[[vm]]\nname = \"gone\"\nprocess = \"no-such-program-*\"\n";
    let text = std::fs::read_to_string(&file).unwrap() + more;
    std::fs::write(&file, text).unwrap();
    let _scheduler = world.start();
    let state = world.shown("the refusal", |s| s["vms"][0]["problem"].is_string());
    let problem = state["vms"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("give it more weight, or a deadline of 1 ms"), "{problem}");
    assert_eq!(state["vms"][0]["mode"], "none", "it runs all the same");
    let problem = state["vms"][3]["problem"].as_str().unwrap();
    assert!(problem.contains("no-such-program") && problem.contains("start the VM"), "{problem}");
    let table = world.ask("show", &[]).ok();
    assert!(table.contains("web: deadline refused"), "{table}");
}

#[test]
fn a_file_that_changed_is_read_anew_and_a_wrong_one_is_refused_whole() {
    let _guard = alone();
    if !may_be_real_time() {
        return;
    }
    let world = World::new(2, "1 ms");
    let file = world.scratch.join("vcpu.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let _scheduler = world.start();
    world.shown("a slice", |s| s["vms"][0]["vcpus"][0]["boosts"].as_u64() > Some(0));
    await_true("a processor", || world.guests[1].affinity() == world.guests[0].affinity());

    let fewer = text.split("[[vm]]\nname = \"vm1\"").next().unwrap().replace("1 ms", "2 ms");
    std::fs::write(&file, &fewer).unwrap();
    assert!(world.ask("reload", &[]).ok().starts_with("configuration in force: 1 VM"));
    let state = world.shown("one VM", |s| s["vms"][0]["deadline_ms"] == 2.0);
    assert_eq!(state["vms"].as_array().unwrap().len(), 1);
    let mine = sched_getaffinity(pid(std::process::id())).unwrap();
    await_true("the removed VM is restored", || world.guests[1].affinity() == mine);
    world.shown("all of it", |s| s["vms"][0]["vcpus"][0]["entitled_percent"] == 100.0);

    for (wrong, why) in [("cpus = []", "`cpus`"), ("cpus = [0, 1, 2]", "scheduler restarts")] {
        let line = fewer.lines().find(|line| line.starts_with("cpus")).unwrap();
        std::fs::write(&file, fewer.replace(line, wrong)).unwrap();
        let said = world.ask("reload", &[]).fails();
        assert!(said.contains("keeps its former configuration") && said.contains(why), "{said}");
        world.shown("the former one", |s| s["vms"][0]["deadline_ms"] == 2.0);
    }
    std::fs::write(&file, &text).unwrap();
    assert!(world.ask("reload", &[]).ok().starts_with("configuration in force: 2 VMs"));
    world.shown("both", |s| s["vms"][1]["vcpus"][0]["entitled_percent"] == 50.0);
}

#[test]
fn without_the_right_it_says_which_one_is_missing() {
    let _guard = alone();
    let world = World::new(1, "3 ms");
    let run = world.run();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", "--"]);
    command.args(["prlimit", "--rtprio=0", "--"]).arg(run.get_program()).args(run.get_args());
    let told: Told = match command.output() {
        Ok(output) => output.into(),
        Err(error) => return penstock_testing::skip(format_args!("setpriv: {error}")),
    };
    if told.err.contains("setpriv:") {
        return penstock_testing::skip(&told.err);
    }
    let said = told.fails();
    assert!(
        said.contains("CAP_SYS_NICE") && said.contains("no vCPU gets a real-time slice"),
        "{said}"
    );
    await_true("all is restored", || world.guests.iter().all(|guest| !guest.is_lent()));
}

#[test]
fn a_file_that_is_wrong_is_refused_whole() {
    let world = World::new(0, "3 ms");
    let file = world.scratch.join("vcpu.toml");
    std::fs::write(&file, "[vcpu]\ncpus = []\n[[vm]]\nname = \"a\"\npid = 1\nio_reserve = 60\n")
        .unwrap();
    let told: Told = world.run().output().unwrap().into();
    let said = told.fails();
    assert!(said.contains("vcpu.toml") && said.contains("`cpus`"), "{said}");
    assert!(said.contains("io_reserve") && said.contains("0 to 50"), "{said}");
}

#[test]
fn a_file_for_vcpus_alone_is_checked_without_a_scheduler() {
    let scratch = temp_dir();
    let file = scratch.join("vcpu.toml");
    let check = |object: &str, more: &[&str]| -> Told {
        let mut command = Command::new(BINARY);
        command.args([object, "check", "--config"]).arg(&file).args(more);
        command.output().unwrap().into()
    };
    let vm = |name: &str, more: &str| format!("[[vm]]\nname = \"{name}\"\npid = 1\n{more}");
    let deadline = |ms: &str| format!("vcpu_mode = \"periodic\"\ndeadline = \"{ms} ms\"\n");
    let text = |voice: &str| {
        format!("[vcpu]\ncpus = [0]\n{}{}", vm("voice", &deadline(voice)), vm("batch", ""))
    };
    std::fs::write(&file, text("3")).unwrap();
    let said = check("vcpu", &[]).ok();
    assert!(said.contains("valid (2 VMs, 1 CPU)"), "{said}");
    assert!(said.contains("voice 50.0 % 3 ms") && said.contains("14.3 %"), "{said}");
    let said: Value = serde_json::from_str(&check("vcpu", &["--json"]).ok()).unwrap();
    assert_eq!((&said["ok"], &said["vcpus"][0]["vms"][0]["vm"]), (&true.into(), &"voice".into()));

    // The check of the switch refers to this command.
    let said = check("host", &[]).fails();
    assert!(said.contains("[host] is missing"), "{said}");
    assert!(said.contains("`penstock vcpu check --config FILE`"), "{said}");

    std::fs::write(&file, text("0.5") + &vm("third", "")).unwrap();
    let said = check("vcpu", &[]).fails();
    assert!(said.contains("vcpu.toml:7:12: vm \"voice\": deadline refused"), "{said}");
    assert!(said.contains("a deadline of 1 ms") && said.contains("penstock: 1 mistake"), "{said}");

    std::fs::write(&file, text("3").replace("cpus = [0]", "cpus = []")).unwrap();
    let said = check("vcpu", &[]).fails();
    assert!(said.contains("vcpu.toml:2:8: [vcpu]: `cpus`"), "{said}");
}
