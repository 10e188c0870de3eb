//! Tests of reservations for real threads. The kernel must grant the reservations and keep them
//! while other threads always compute (*hogs*). The reservations must end when the scheduler ends
//! for any reason. The tests are skipped without the right to real-time policies.
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use penstock_units::Nanos;
use penstock_vcpu_host::lease::{Identity, LeaseTable};
use penstock_vcpu_host::policy::{self, Policy};
use penstock_vcpu_host::restore::{self, LEASES, Swept};
use penstock_vcpu_host::schedstat::Schedstat;
use penstock_vcpu_host::{process, threads};

use crate::support;
use crate::support::{Guest, Scheduler, affinity, pid, seen, until, watched};

const PERIOD: Nanos = Nanos::from_millis(3);

/// Calls [`support::prepare`]. Returns `None` if `prepare` returns `None`, or if the thread may not
/// have a deadline because of its processor affinity.
fn prepare(name: &str) -> Option<(MutexGuard<'static, ()>, PathBuf)> {
    let prepared = support::prepare(name)?;
    let may = std::thread::spawn(|| policy::set(0, deadline(100)).is_ok()).join().unwrap();
    if !may {
        penstock_testing::skip("SCHED_DEADLINE is not permitted here");
    }
    may.then_some(prepared)
}

fn deadline(runtime_us: u64) -> Policy {
    let runtime = Nanos::from_micros(runtime_us);
    Policy::Deadline { runtime, period: PERIOD, reclaim: false }
}

fn vm(name: &str, guest: &Guest, more: &str) -> String {
    format!("[[vm]]\nname = \"{name}\"\npid = {}\nthreads = \"sh\"\n{more}\n", guest.id())
}

fn reserved(name: &str, guest: &Guest, more: &str) -> String {
    let terms = format!("vcpu_mode = \"reserved\"\ndeadline = \"3 ms\"\n{more}");
    vm(name, guest, &terms)
}

fn has(guest: &Guest, runtime_us: u64) {
    until("a reservation", || {
        (policy::get(guest.id()).unwrap() == deadline(runtime_us)).then_some(())
    });
}

fn ran(guest: &Guest) -> Duration {
    let id = guest.id();
    Schedstat::read(Path::new(&format!("/proc/{id}/task/{id}"))).unwrap().ran
}

#[test]
fn a_reservation_follows_the_share_is_kept_and_is_given_back() {
    let Some((_guard, dir)) = prepare("reserved") else { return };
    let (guest, one, two) = (Guest::start(), Guest::start(), Guest::start());
    let before = (policy::get(guest.id()).unwrap(), affinity(guest.id()));
    let vms = reserved("vm0", &guest, "") + &vm("vm1", &one, "") + &vm("vm2", &two, "");
    let mut scheduler = Scheduler::with(&dir, &vms);
    has(&guest, 999);
    let state = scheduler.state(0, |vm| !vm.vcpus.is_empty());
    assert_eq!((state.mode.as_str(), state.problem, state.deadline_ms), ("reserved", None, 3.0));
    let other = scheduler.state(1, |vm| !vm.vcpus.is_empty());
    assert!((other.vcpus[0].entitled_percent - 33.3).abs() < 0.2, "{other:?}");

    // The scheduler sets a policy again after another process changed it.
    policy::set(guest.id(), Policy::DEFAULT).unwrap();
    has(&guest, 999);
    drop(two);
    has(&guest, 1_500);
    scheduler.state(1, |vm| (vm.vcpus[0].entitled_percent - 50.0).abs() < 0.2);

    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    assert_eq!((policy::get(guest.id()).unwrap(), affinity(guest.id())), before);
}

/// Returns the guest's run time, and the time of the reading with an error of at most 5 ms. The
/// function repeats the reading, because on a busy machine the test's thread may wait between two
/// reads.
fn reading(guest: &Guest) -> (Instant, Duration) {
    until("a reading without a pause", || {
        let begin = Instant::now();
        let ran = ran(guest);
        (begin.elapsed() < Duration::from_millis(5)).then_some((begin, ran))
    })
}

/// Tests that a reserved thread gets its run time and no more. The test uses the kernel's own count
/// of the run time, which other threads do not affect.
#[test]
fn a_reserved_thread_has_its_run_time_beside_hogs_and_no_more() {
    let Some((_guard, dir)) = prepare("beside") else { return };
    let guest = Guest::start();
    let hogs: Vec<Guest> = (0..6).map(|_| Guest::start()).collect();
    let mut vms = reserved("vm0", &guest, "runtime = \"0.6 ms\"");
    for (at, hog) in hogs.iter().enumerate() {
        vms += &vm(&format!("hog{at}"), hog, "");
    }
    let scheduler = Scheduler::with(&dir, &vms);
    has(&guest, 600);
    let state = scheduler.state(0, |vm| !vm.vcpus.is_empty());
    assert!((state.vcpus[0].entitled_percent - 20.0).abs() < 0.1, "{state:?}");
    let (begin, before) = reading(&guest);
    until("two seconds", || (begin.elapsed() > Duration::from_secs(2)).then_some(()));
    let (end, after) = reading(&guest);
    let part = (after - before).as_secs_f64() / (end - begin).as_secs_f64();
    assert!((0.18..0.22).contains(&part), "{part}");
}

/// Starts a scheduler with a watchdog, for one thread with a reservation and one thread without a
/// reservation.
fn beside_another(dir: &Path, guest: &Guest, other: &Guest) -> Scheduler {
    let scheduler = Scheduler::with(dir, &(reserved("vm0", guest, "") + &vm("vm1", other, "")));
    watched(&scheduler);
    has(guest, 1_500);
    scheduler
}

#[test]
fn a_scheduler_that_is_killed_leaves_no_reservation() {
    let Some((_guard, dir)) = prepare("reserved-kill") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let before = policy::get(guest.id()).unwrap();
    let mut scheduler = beside_another(&dir, &guest, &other);
    scheduler.signal(Signal::SIGKILL);
    scheduler.child.wait().unwrap();
    until("the watchdog", || (seen(&dir, "Dead", "taken: ") > 0).then_some(()));
    assert_eq!(seen(&dir, "Dead", "taken: 0"), 0);
    assert_eq!(policy::get(guest.id()).unwrap(), before);
}

/// Tests a sweep after scheduler and watchdog were killed. The function `sweep` must find the dead
/// scheduler's table of thread policies and end the reservation.
#[test]
fn a_sweep_puts_reservations_back() {
    let Some((_guard, dir)) = prepare("reserved-sweep") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let before = policy::get(guest.id()).unwrap();
    let mut scheduler = beside_another(&dir, &guest, &other);
    let run = dir.join("run");
    scheduler.signal(Signal::SIGSTOP);
    let watchdog = watchdog_of(&run);
    let watched = process::Watched::open(watchdog).unwrap();
    kill(pid(watchdog), Signal::SIGKILL).unwrap();
    assert!(watched.dead_within(penstock_testing::patience()).unwrap());
    assert_eq!(policy::get(guest.id()).unwrap(), deadline(1_500), "who only stalls keeps it");
    scheduler.signal(Signal::SIGKILL);
    scheduler.child.wait().unwrap();
    assert_eq!(policy::get(guest.id()).unwrap(), deadline(1_500));
    assert!(matches!(restore::sweep(&run).unwrap(), Swept::After { taken } if taken >= 1));
    assert_eq!(policy::get(guest.id()).unwrap(), before);
}

fn watchdog_of(run: &Path) -> u32 {
    penstock_vcpu_host::state::State::load(run).unwrap().watchdog
}

#[test]
fn a_pinned_thread_is_told_what_to_do_and_runs_by_weight() {
    let Some((_guard, dir)) = prepare("pinned") else { return };
    if (0..nix::sched::CpuSet::count()).filter(|c| affinity(0).is_set(*c).unwrap()).count() < 2 {
        penstock_testing::skip("this test needs two processors");
        return;
    }
    let (guest, other) = (Guest::start(), Guest::start());
    restore::confine(guest.id(), &[0]).unwrap();
    let text = reserved("vm0", &guest, "runtime = \"0.6 ms\"") + &vm("vm1", &other, "");
    let scheduler = Scheduler::with(&dir, &text);
    let state = scheduler.state(0, |vm| vm.problem.is_some() && !vm.vcpus.is_empty());
    let why = state.problem.unwrap();
    assert_eq!(state.mode, "none");
    for part in [
        "the kernel reserves no time for the VM, so the VM runs",
        "cpuset.cpus.partition",
        "vcpupin",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!((state.vcpus[0].entitled_percent - 50.0).abs() < 0.1);
    assert!(!matches!(policy::get(guest.id()).unwrap(), Policy::Deadline { .. }));
}

#[test]
fn too_much_is_refused_by_name_and_the_kernels_own_refusal_is_told() {
    let Some((_guard, dir)) = prepare("too-much") else { return };
    let (one, two) = (Guest::start(), Guest::start());
    let text =
        reserved("vm0", &one, "runtime = \"2 ms\"") + &reserved("vm1", &two, "runtime = \"2 ms\"");
    let scheduler = Scheduler::with(&dir, &text);
    let state = scheduler.state(1, |vm| vm.problem.is_some());
    let why = state.problem.unwrap();
    assert!(why.contains("133.3 % of 1 CPU, above the limit of 95.0 %"), "{why}");
    assert!(why.contains("`runtime` of at most 850 us"), "{why}");
    has(&one, 2_000);
    drop(scheduler);
    until("what was reserved", || (!support::is_lent(one.id())).then_some(()));

    // Other threads of the same root domain have reserved nearly all time. The reservation would
    // fit the plan, but the kernel refuses it.
    let cpus = affinity(0);
    let count = (0..nix::sched::CpuSet::count()).filter(|cpu| cpus.is_set(*cpu).unwrap()).count();
    let full: Vec<Guest> = (0..count).map(|_| Guest::start()).collect();
    for guest in &full {
        // Released time becomes free at the end of the kernel's period.
        until("five sixths of a processor", || policy::set(guest.id(), deadline(2_500)).ok());
    }
    let scheduler = Scheduler::with(&dir, &reserved("vm0", &one, "runtime = \"2 ms\""));
    let state = scheduler.state(0, |vm| vm.problem.is_some() && !vm.vcpus.is_empty());
    let why = state.problem.unwrap();
    assert!(why.contains("the kernel limits the run times") && why.contains("shorten"), "{why}");
    assert_eq!(state.mode, "none");
}

/// Tests that the table of thread policies contains a reservation until the scheduler releases the
/// reservation.
#[test]
fn a_reservation_is_in_the_table_before_and_after() {
    let Some((_guard, dir)) = prepare("table") else { return };
    let guest = Guest::start();
    let mut scheduler = Scheduler::with(&dir, &reserved("vm0", &guest, "runtime = \"0.3 ms\""));
    has(&guest, 300);
    let table = LeaseTable::open(&dir.join("run").join(LEASES)).unwrap();
    let id = guest.id();
    let thread = Identity { pid: id, tid: id, started: threads::started_at(id, id).unwrap() };
    let held = |table: &LeaseTable| {
        let entries = table.entries().unwrap();
        entries.iter().filter(|(_, e)| e.thread == thread && e.until > Nanos(0)).count()
    };
    assert_eq!(held(&table), 1);
    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    assert_eq!(held(&table), 0);
}
