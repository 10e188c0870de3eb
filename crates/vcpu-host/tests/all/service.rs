//! Tests of the vCPU scheduler's service with real threads. If the scheduler is killed or stopped
//! in the middle of a slice, no thread may keep a real-time policy. VMs start and end, and at the
//! end all threads must be restored. Busy processes represent VMs with one vCPU. The tests are
//! skipped without the right to real-time policies. To run a scheduler or a watchdog, the test
//! program starts itself again in a role (`support`).

use nix::sys::signal::{Signal, kill};
use penstock_vcpu_host::policy;
use penstock_vcpu_host::state::State;

use crate::support::{
    Guest, Scheduler, affinity, is_lent, pid, prepare, role, seen, until, watched,
};

/// Deadline that the kernel's fair class never meets for two busy threads, so that the scheduler
/// lends slices often.
const OFTEN: &str = "1 ms";

/// Whether every thread of process `id` is stopped by a signal.
fn is_stopped(id: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}

/// Tests which process ends the temporary real-time policy of a killed scheduler. The example
/// `takeback` measures the delay until a killed scheduler's temporary real-time policy is ended.
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
        // The scheduler is dead and no other has started, so the watchdog ended the temporary
        // policy.
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
    assert!(gone.problem.unwrap().contains("start the VM"));
    let half = scheduler.state(0, |vm| vm.vcpus[0].entitled_percent > 49.0);
    assert_eq!(half.problem, None);

    // A paused VM has no work, and the other VM gets the whole processor.
    kill(pid(guest.id()), Signal::SIGSTOP).unwrap();
    scheduler.state(0, |vm| vm.vcpus[0].blocked);
    kill(pid(guest.id()), Signal::SIGCONT).unwrap();
    scheduler.state(0, |vm| !vm.vcpus[0].blocked);

    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    assert_eq!((policy::get(guest.id()).unwrap(), affinity(guest.id())), before);
}

#[test]
fn a_scheduler_whose_files_are_removed_gives_all_back_and_says_so() {
    let Some((_guard, dir)) = prepare("removed") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let before = (policy::get(guest.id()).unwrap(), affinity(guest.id()));
    let mut scheduler = Scheduler::start(&dir, &[&guest, &other], OFTEN);
    watched(&scheduler);
    until("a slice", || is_lent(guest.id()).then_some(()));
    // The scheduler may write into the directory during the removal.
    until("an empty place", || match std::fs::remove_dir_all(dir.join("run")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => None,
        _ => Some(()),
    });
    assert!(!scheduler.child.wait().unwrap().success());
    assert_eq!((policy::get(guest.id()).unwrap(), affinity(guest.id())), before);
}

#[test]
fn a_watchdog_that_dies_has_a_successor() {
    let Some((_guard, dir)) = prepare("successor") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let scheduler = Scheduler::start(&dir, &[&guest, &other], OFTEN);
    watched(&scheduler);
    let first = State::load(&dir.join("run")).unwrap().watchdog;
    kill(pid(first), Signal::SIGKILL).unwrap();
    until("another watchdog", || {
        let state = State::load(&dir.join("run")).ok()?;
        (state.watchdog != first && state.watchdog > 0).then_some(())
    });
    watched(&scheduler);
    until("a slice", || is_lent(guest.id()).then_some(()));
}

#[test]
fn a_thread_that_two_vms_name_belongs_to_the_first() {
    let Some((_guard, dir)) = prepare("twice") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    let scheduler = Scheduler::start(&dir, &[&guest, &other, &guest], "3 ms");
    let vm = scheduler.state(2, |vm| vm.problem.is_some());
    let why = vm.problem.unwrap();
    assert!(why.contains("VM \"vm0\"") && vm.vcpus.is_empty(), "{why}");
    let first = scheduler.state(0, |vm| vm.vcpus.first().is_some_and(|v| v.boosts > 0));
    assert!((first.vcpus[0].entitled_percent - 50.0).abs() < 0.1, "{first:?}");
}

#[test]
fn a_second_scheduler_and_a_deadline_that_does_not_fit_are_refused() {
    let Some((_guard, dir)) = prepare("refuse") else { return };
    let (guest, other) = (Guest::start(), Guest::start());
    // Every second slot is half of the processor. With a third VM, each VM gets a third.
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
