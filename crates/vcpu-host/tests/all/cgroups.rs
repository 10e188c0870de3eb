//! Tests with weights and real-time budgets of real cgroups. The tests check reports of missing
//! budgets, the setting and restoring of weights, and cgroups that disappear. The tests are skipped
//! if they cannot create a cgroup.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use penstock_units::Nanos;
use penstock_vcpu_host::cgroup::Cgroup;
use penstock_vcpu_host::policy::{self, Policy, PolicyError};
use penstock_vcpu_host::state::VmState;

use crate::support::{Guest, Scheduler, affinity, prepare, seen, until, watched};

/// A cgroup that a test creates below the cgroup of the test process.
struct Group(PathBuf);

impl Group {
    /// Creates a cgroup for a test; `None` if the `cpu` controller or the permission is missing.
    fn make(name: &str) -> Option<Self> {
        let above = Cgroup::of_thread(0).ok()?.path().to_owned();
        let path = above.join(format!("penstock-test-{name}-{}", std::process::id()));
        let made = std::fs::create_dir(&path).is_ok().then(|| Self(path));
        let group = made.filter(|group| Cgroup::at(&group.0).is_ok());
        if group.is_none() {
            penstock_testing::skip("no cgroup with the cpu controller can be made here");
        }
        group
    }

    fn take(&self, guest: &Guest) {
        std::fs::write(self.0.join("cgroup.procs"), guest.id().to_string()).unwrap();
    }

    fn weight(&self) -> u64 {
        Cgroup::at(&self.0).unwrap().weight().unwrap()
    }

    /// Returns a `[[vm]]` table that identifies the VM by this cgroup.
    fn vm(&self, more: &str) -> String {
        let (path, name) = (self.0.display(), self.0.file_name().unwrap().to_string_lossy());
        format!("[[vm]]\nname = \"{name}\"\ncgroup = \"{path}\"\nthreads = \"sh\"\n{more}\n")
    }

    fn remove(&self) {
        until("an empty cgroup", || match std::fs::remove_dir(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => None,
            _ => Some(()),
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_cgroup_without_a_real_time_budget_is_told_with_its_remedy() {
    let Some((_guard, _)) = prepare("budget") else { return };
    let Some(group) = Group::make("budget") else { return };
    let budget = group.0.join("cpu.rt_runtime_us");
    if !budget.exists() {
        penstock_testing::skip("the kernel has no budgets of groups (RT_GROUP_SCHED, cgroup v1)");
        return;
    }
    let guest = Guest::start();
    group.take(&guest);
    let fifo = Policy::Fifo { priority: 1 };
    let error = policy::set(guest.id(), fifo).unwrap_err();
    assert!(matches!(&error, PolicyError::NoBudget { group: g, .. } if *g == group.0), "{error}");

    // Deadlines need no group budget, so reservations work without a budget.
    let (runtime, period) = (Nanos::from_micros(300), Nanos::from_millis(3));
    let deadline = Policy::Deadline { runtime, period, reclaim: false };
    policy::set(guest.id(), deadline).unwrap();
    policy::set(guest.id(), Policy::DEFAULT).unwrap();
    // The test follows the remedy.
    std::fs::write(budget, "300000").unwrap();
    policy::set(guest.id(), fifo).unwrap();
    policy::set(guest.id(), Policy::DEFAULT).unwrap();
    drop(guest);
    group.remove();
}

/// Tests the remedy for a vCPU without a real-time budget. libvirt creates a vCPU's thread in one
/// cgroup and moves the thread to another cgroup. The remedy must name the current cgroup, be
/// sufficient for the kernel, and need no restart of the scheduler.
#[test]
fn a_vcpu_without_budget_is_reported_with_its_need_and_retried() {
    let Some((_guard, dir)) = prepare("again") else { return };
    let Some(scope) = Group::make("again") else { return };
    if !scope.0.join("cpu.rt_runtime_us").exists() {
        penstock_testing::skip("the kernel has no budgets of groups (RT_GROUP_SCHED, cgroup v1)");
        return;
    }
    let leaf = |name: &str| {
        let leaf = Group(scope.0.join(name));
        std::fs::create_dir(&leaf.0).unwrap();
        leaf
    };
    let (emulator, vcpu0) = (leaf("emulator"), leaf("vcpu0"));
    let (guest, other) = (Guest::start(), Guest::start());
    emulator.take(&guest);
    let vm = |name: &str, guest: &Guest, more: &str| {
        format!("[[vm]]\nname = \"{name}\"\npid = {}\nthreads = \"sh\"\n{more}", guest.id())
    };
    let text = vm("vm", &guest, "vcpu_mode = \"periodic\"\ndeadline = \"8 ms\"\n");
    let scheduler = Scheduler::with(&dir, &(text + &vm("other", &other, "")));
    let told = |group: &Group| {
        let named = format!("the vCPU's cgroup {} has", group.0.display());
        let is = |why: &String| why.contains(&named);
        scheduler.state(0, |vm| vm.problem.as_ref().is_some_and(is)).problem.unwrap()
    };
    told(&emulator);
    vcpu0.take(&guest);
    let why = told(&vcpu0);
    // The remedy writes twice 0.5 ms per 8 ms, which is 125,000 us per second, first for the
    // parent.
    let files = [&scope, &vcpu0].map(|group| group.0.join("cpu.rt_runtime_us"));
    let [first, then] = files.each_ref().map(|file| file.display());
    let remedy = format!("write 125000 into {first}, then 125000 into {then};");
    assert!(why.contains(&remedy), "{why}");
    for file in files {
        std::fs::write(file, "125000").unwrap();
    }
    // The state may show the first temporary policy a moment before the complaint disappears.
    let lent = |vm: &VmState| vm.vcpus.first().is_some_and(|vcpu| vcpu.boosts > 0);
    scheduler.state(0, |vm| lent(vm) && vm.problem.is_none());
    drop((scheduler, guest, other));
    emulator.remove();
    vcpu0.remove();
    scope.remove();
}

#[test]
fn the_weight_of_a_cgroup_is_set_and_put_back_by_stop_and_by_the_watchdog() {
    let Some((_guard, dir)) = prepare("weight") else { return };
    let (Some(first), Some(second)) = (Group::make("one"), Group::make("two")) else { return };
    let (one, two) = (Guest::start(), Guest::start());
    first.take(&one);
    second.take(&two);
    let before = first.weight();
    Cgroup::at(&first.0).unwrap().set_weight(before * 2).unwrap();
    let before = first.weight();
    let text = first.vm("vcpu_weight = 3") + &second.vm("");
    let mut scheduler = Scheduler::with(&dir, &text);
    // A weight of 3 in a sum of 4 is about one and a half times the average.
    until("weights", || {
        (first.weight() != before && second.weight() < first.weight()).then_some(())
    });
    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    assert_eq!(first.weight(), before);
    drop(scheduler);

    let mut scheduler = Scheduler::with(&dir, &text);
    watched(&scheduler);
    until("weights", || (first.weight() != before).then_some(()));
    scheduler.signal(Signal::SIGKILL);
    scheduler.child.wait().unwrap();
    until("the watchdog", || (seen(&dir, "Dead", "") > 0).then_some(()));
    assert_eq!(first.weight(), before);
    drop((one, two));
    first.remove();
    second.remove();
}

#[test]
fn the_cgroup_that_divides_between_vms_is_weighed_and_not_its_leaf() {
    let Some((_guard, dir)) = prepare("leaf") else { return };
    let (Some(first), Some(second)) = (Group::make("scope"), Group::make("beside")) else { return };
    // The test creates a leaf for each vCPU below the VM's own cgroup, as libvirt does.
    let leaf = Group(first.0.join("vcpu0"));
    std::fs::create_dir(&leaf.0).unwrap();
    let (one, two) = (Guest::start(), Guest::start());
    leaf.take(&one);
    second.take(&two);
    let (before, within) = (first.weight(), Cgroup::at(&leaf.0).map(|leaf| leaf.weight().unwrap()));
    let mut scheduler = Scheduler::with(&dir, &(leaf.vm("vcpu_weight = 3") + &second.vm("")));
    until("weights", || (first.weight() > before && second.weight() < before).then_some(()));
    assert_eq!(Cgroup::at(&leaf.0).ok().map(|leaf| leaf.weight().unwrap()), within.ok());
    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    assert_eq!(first.weight(), before);
    drop((one, two));
    leaf.remove();
    first.remove();
    second.remove();
}

#[test]
fn a_thread_that_leaves_its_vm_alive_is_restored_and_so_is_its_cgroup() {
    let Some((_guard, dir)) = prepare("leave") else { return };
    let (Some(first), Some(second)) = (Group::make("left"), Group::make("kept")) else { return };
    let (one, two) = (Guest::start(), Guest::start());
    first.take(&one);
    second.take(&two);
    let before = (first.weight(), affinity(one.id()), policy::get(one.id()).unwrap());
    let scheduler = Scheduler::with(&dir, &(first.vm("vcpu_weight = 3") + &second.vm("")));
    until("weights", || (first.weight() > before.0).then_some(()));
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(affinity(one.id()), before.1, "it stays on its processor");
    }
    let above = first.0.parent().unwrap().join("cgroup.procs");
    std::fs::write(above, one.id().to_string()).unwrap();
    until("all as it was", || {
        let now = (first.weight(), affinity(one.id()), policy::get(one.id()).unwrap());
        (now == before).then_some(())
    });
    scheduler.state(0, |vm| vm.vcpus.is_empty() && vm.problem.is_some());
    drop((scheduler, one, two));
    first.remove();
    second.remove();
}

#[test]
fn a_cgroup_that_vanishes_is_a_vm_that_is_gone_and_the_others_go_on() {
    let Some((_guard, dir)) = prepare("vanish") else { return };
    let (Some(first), Some(second)) = (Group::make("gone"), Group::make("stays")) else { return };
    let (one, two) = (Guest::start(), Guest::start());
    first.take(&one);
    second.take(&two);
    let mut scheduler = Scheduler::with(&dir, &(first.vm("") + &second.vm("")));
    for at in [0, 1] {
        scheduler.state(at, |vm| vm.vcpus.first().is_some_and(|vcpu| vcpu.waits > 0));
    }
    drop(one);
    first.remove();
    let gone = scheduler.state(0, |vm| vm.vcpus.is_empty());
    let why = gone.problem.unwrap();
    assert!(why.contains("cgroup.procs") && why.contains("start the VM"), "{why}");
    let alone =
        scheduler.state(1, |vm| vm.vcpus.first().is_some_and(|v| v.entitled_percent > 99.0));
    assert_eq!(alone.problem, None);
    scheduler.terminate();
    assert!(scheduler.child.wait().unwrap().success());
    drop(two);
    second.remove();
}
