//! Tests of the run queues of Xen's credit scheduler, one test for each rule.

use super::*;
use penstock_units::Weight;

const CPU: CpuId = CpuId(0);

fn hogs(scheduler: &mut Credit1, count: usize, home: CpuId) -> Vec<VcpuId> {
    let contract = Contract::by_credit(Weight::ONE);
    let one = |_| scheduler.add(Nanos(0), &contract, &[home]).unwrap().vcpus[0];
    (0..count).map(one).collect()
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Deschedules the running vCPU after it ran for the time `ran`. Returns the vCPU that runs next.
fn next(scheduler: &mut Credit1, now: Nanos, ran: Nanos) -> VcpuId {
    if let Some(vcpu) = scheduler.running(CPU) {
        scheduler.charge(vcpu, ran);
    }
    scheduler.leave(now, CPU, Leave::Preempted);
    scheduler.decide(now, CPU).unwrap().vcpu
}

#[test]
fn six_hogs_take_turns_of_thirty_milliseconds() {
    let mut scheduler = Credit1::new(1);
    let vcpus = hogs(&mut scheduler, 6, CPU);
    for vcpu in &vcpus {
        scheduler.wake(Nanos(0), *vcpu, Cause::Timer);
    }
    let first = scheduler.decide(Nanos(0), CPU).unwrap();
    assert_eq!((first.vcpu, first.slice), (vcpus[0], ms(30)));
    let mut turns = vec![first.vcpu];
    for slice in 1..60 {
        let now = ms(30 * slice);
        for tick in 0..3 {
            scheduler.charge(turns[turns.len() - 1], ms(10));
            scheduler.tick(ms(30 * (slice - 1) + 10 * (tick + 1)), CPU);
        }
        scheduler.account(now);
        turns.push(next(&mut scheduler, now, Nanos(0)));
    }
    // Classes change with every epoch, so the order is not strict.
    for vcpu in vcpus {
        let at: Vec<_> = (0..turns.len()).filter(|i| turns[*i] == vcpu).collect();
        assert!((9..=11).contains(&at.len()), "{vcpu:?}: {turns:?}");
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] <= 8), "{vcpu:?}: {turns:?}");
    }
}

#[test]
fn a_boosted_one_preempts_after_the_first_millisecond() {
    let mut scheduler = Credit1::new(1);
    let vcpus = hogs(&mut scheduler, 2, CPU);
    assert_eq!(scheduler.wake(Nanos(0), vcpus[0], Cause::Timer), Some(CPU));
    scheduler.decide(Nanos(0), CPU);
    scheduler.tick(Nanos(0), CPU);
    assert_eq!(scheduler.wake(Nanos(400_000), vcpus[1], Cause::Event), None);
    assert!(!scheduler.poll(Nanos(999_999), CPU) && scheduler.poll(ms(1), CPU));
    assert_eq!(next(&mut scheduler, ms(1), ms(1)), vcpus[1]);
    // Waking a vCPU again while it waits or runs has no effect.
    assert_eq!(scheduler.wake(ms(2), vcpus[0], Cause::Event), None);
    assert_eq!(scheduler.wake(ms(2), vcpus[1], Cause::Event), None);
}

#[test]
fn an_event_does_not_help_one_that_waits_already() {
    let mut scheduler = Credit1::new(1);
    let vcpus = hogs(&mut scheduler, 2, CPU);
    for vcpu in &vcpus {
        scheduler.wake(Nanos(0), *vcpu, Cause::Timer);
    }
    scheduler.decide(Nanos(0), CPU);
    assert_eq!(scheduler.wake(ms(3), vcpus[1], Cause::Event), None);
    assert!(!scheduler.poll(ms(29), CPU));
    assert_eq!(next(&mut scheduler, ms(30), ms(30)), vcpus[1]);
}

#[test]
fn a_vcpu_that_is_over_goes_behind_at_the_tick_after_the_epoch() {
    let mut scheduler = Credit1::new(1);
    let vcpus = hogs(&mut scheduler, 3, CPU);
    for vcpu in &vcpus {
        scheduler.book.tick(*vcpu);
        scheduler.wake(Nanos(0), *vcpu, Cause::Timer);
    }
    // The first vCPU in the queue becomes overdrawn while it waits.
    scheduler.charge(vcpus[0], ms(30));
    scheduler.account(ms(30));
    assert_eq!(scheduler.cpus[0].queue, [vcpus[0], vcpus[1], vcpus[2]]);
    scheduler.tick(ms(30), CPU);
    assert_eq!(scheduler.cpus[0].queue, [vcpus[1], vcpus[2], vcpus[0]]);
}

#[test]
fn an_idle_processor_takes_work_and_one_whose_next_is_over_takes_better_work() {
    let mut scheduler = Credit1::new(2);
    let vcpus = hogs(&mut scheduler, 3, CPU);
    assert_eq!(scheduler.wake(Nanos(0), vcpus[0], Cause::Timer), Some(CPU));
    scheduler.decide(Nanos(0), CPU);
    assert_eq!(scheduler.wake(ms(1), vcpus[1], Cause::Timer), Some(CpuId(1)), "both are boosted");
    assert_eq!(scheduler.decide(ms(1), CpuId(1)).map(|t| t.vcpu), Some(vcpus[1]));
    assert_eq!(scheduler.cpu_of(vcpus[1]), Some(CpuId(1)));
    scheduler.wake(ms(1), vcpus[2], Cause::Timer);
    // The vCPU of the second processor is OVER. The first processor has a waiting vCPU that is not
    // OVER.
    scheduler.charge(vcpus[1], ms(30));
    scheduler.book.tick(vcpus[1]);
    scheduler.account(ms(31));
    scheduler.leave(ms(31), CpuId(1), Leave::Preempted);
    assert_eq!(scheduler.decide(ms(31), CpuId(1)).map(|t| t.vcpu), Some(vcpus[1]), "300 given");
    scheduler.charge(vcpus[1], ms(31));
    scheduler.account(ms(62));
    scheduler.account(ms(62));
    assert_eq!(scheduler.book.class(vcpus[1]), Class::Under);
}

#[test]
fn a_capped_one_is_off_its_queue_until_it_has_earned() {
    let mut scheduler = Credit1::new(1);
    let contract = Contract { cap_pct: 50, ..Contract::by_credit(Weight::ONE) };
    let vcpu = scheduler.add(Nanos(0), &contract, &[CPU]).unwrap().vcpus[0];
    scheduler.wake(Nanos(0), vcpu, Cause::Timer);
    scheduler.decide(Nanos(0), CPU);
    scheduler.charge(vcpu, ms(40));
    scheduler.tick(ms(40), CPU);
    assert_eq!(scheduler.account(ms(40)), [CPU], "the vCPU runs, but must not run");
    scheduler.leave(ms(40), CPU, Leave::Preempted);
    assert_eq!(scheduler.decide(ms(40), CPU), None);
    scheduler.account(ms(60));
    assert_eq!(scheduler.account(ms(90)), [CPU], "it may again");
    assert_eq!(scheduler.decide(ms(90), CPU).map(|t| t.vcpu), Some(vcpu));
}

#[test]
fn numbers_are_reused_and_unknown_vcpus_ignored() {
    let mut scheduler = Credit1::new(1);
    let vcpus = hogs(&mut scheduler, 2, CPU);
    let contract = Contract::by_credit(Weight::ONE);
    assert_eq!(scheduler.add(Nanos(0), &contract, &[CpuId(1)]), None);
    scheduler.wake(Nanos(0), vcpus[0], Cause::Timer);
    scheduler.remove(Nanos(0), VmId(0));
    assert_eq!(scheduler.decide(Nanos(0), CPU), None);
    assert_eq!(scheduler.wake(Nanos(0), vcpus[0], Cause::Event), None);
    let again = scheduler.add(Nanos(0), &contract, &[CPU]).unwrap();
    assert_eq!((again.id, again.vcpus), (VmId(0), vec![vcpus[0]]));
}
