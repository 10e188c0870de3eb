//! Tests of preemption between vCPUs, and of the rule that decides when a slice counts as used.

use super::*;
use penstock_units::Weight;

const CPU: CpuId = CpuId(0);

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn add(scheduler: &mut DoubleQueue, contract: Contract) -> VcpuId {
    scheduler.add(Nanos(0), &contract, &[CPU]).unwrap().vcpus[0]
}

fn real_time(mode: Mode, deadline_ms: u64) -> Contract {
    Contract::real_time(mode, Nanos::from_millis(deadline_ms), Weight::ONE)
}

fn hog(scheduler: &mut DoubleQueue) -> VcpuId {
    let vcpu = add(scheduler, Contract::by_credit(Weight::ONE));
    scheduler.wake(Nanos(0), vcpu, Cause::Timer);
    vcpu
}

/// Deschedules the running vCPU after it ran for the time `ran`. Returns the next vCPU and the
/// queue that picked that vCPU.
fn next(scheduler: &mut DoubleQueue, now: Nanos, ran: Nanos, how: Leave) -> Option<(VcpuId, Lane)> {
    if let Some(vcpu) = scheduler.credit.running(CPU) {
        scheduler.charge(vcpu, ran);
    }
    scheduler.leave(now, CPU, how);
    scheduler.decide(now, CPU).map(|turn| (turn.vcpu, turn.lane))
}

#[test]
fn a_periodic_one_comes_again_at_its_deadline_for_a_slice() {
    let mut scheduler = DoubleQueue::new(1);
    let periodic = add(&mut scheduler, real_time(Mode::Periodic, 3));
    let hog = hog(&mut scheduler);
    scheduler.wake(Nanos(0), periodic, Cause::Timer);
    scheduler.decide(Nanos(0), CPU);
    // The first vCPU has used up its credits, so the other vCPU runs between the slices of the
    // first.
    let first = next(&mut scheduler, us(2_000), us(2_000), Leave::Preempted);
    assert_eq!(
        first,
        Some((periodic, Lane::Credit)),
        "the vCPU with a deadline runs after the other vCPU"
    );
    let then = next(&mut scheduler, us(30_000), us(28_000), Leave::Preempted);
    assert_eq!(then, Some((hog, Lane::Credit)));
    assert!(!scheduler.poll(us(32_500), CPU) && scheduler.poll(us(33_000), CPU));
    let now = us(33_000);
    let turn = next(&mut scheduler, now, us(3_000), Leave::Preempted);
    assert_eq!(turn, Some((periodic, Lane::Deadline)));
    assert!(!scheduler.poll(us(33_400), CPU), "it runs");
    let back = next(&mut scheduler, us(33_500), us(500), Leave::Preempted);
    assert_eq!(back, Some((hog, Lane::Credit)));
    assert!(!scheduler.poll(us(36_000), CPU) && scheduler.poll(us(36_500), CPU));
}

#[test]
fn a_vcpu_charged_for_a_time_in_which_it_may_not_have_run_is_still_owed_its_slice() {
    let mut scheduler = DoubleQueue::new(1);
    let aperiodic = add(&mut scheduler, real_time(Mode::Aperiodic, 3));
    scheduler.wake(Nanos(0), aperiodic, Cause::Timer);
    scheduler.wake(us(100), aperiodic, Cause::Event);
    let credit = scheduler.book().credit(aperiodic);
    let by = us(3_500);
    assert_eq!(scheduler.due(by, CPU), Some(aperiodic));
    scheduler.stood(aperiodic, us(900));
    assert_eq!(scheduler.book().credit(aperiodic), credit - 900_000, "as the kernel counts");
    assert_eq!(scheduler.due(by, CPU), Some(aperiodic));
    scheduler.served(by, aperiodic, us(400));
    assert_eq!(scheduler.due(us(60_000), CPU), None);
}

#[test]
fn one_that_yields_comes_again_and_one_that_blocks_does_not() {
    let mut scheduler = DoubleQueue::new(1);
    let periodic = add(&mut scheduler, real_time(Mode::Periodic, 3));
    scheduler.wake(Nanos(0), periodic, Cause::Timer);
    scheduler.decide(Nanos(0), CPU);
    assert_eq!(next(&mut scheduler, us(500), us(500), Leave::Yielded), None);
    assert!(!scheduler.poll(us(3_000), CPU) && scheduler.poll(us(3_500), CPU));
    let turn = scheduler.decide(us(3_500), CPU).map(|turn| (turn.vcpu, turn.lane));
    assert_eq!(turn, Some((periodic, Lane::Deadline)));
    assert_eq!(next(&mut scheduler, us(3_600), us(100), Leave::Blocked), None);
    assert!(!scheduler.poll(us(90_000), CPU));
}

#[test]
fn an_aperiodic_one_has_a_deadline_from_an_event_on() {
    let mut scheduler = DoubleQueue::new(1);
    let hog = hog(&mut scheduler);
    let answers = add(&mut scheduler, real_time(Mode::Aperiodic, 3));
    scheduler.decide(Nanos(0), CPU);
    scheduler.charge(hog, us(10));
    scheduler.wake(us(10), answers, Cause::Timer);
    next(&mut scheduler, us(10), us(0), Leave::Preempted);
    // Both vCPUs have work and no event arrived, so only credits count.
    assert!(!scheduler.poll(us(29_000), CPU));
    next(&mut scheduler, us(29_000), us(28_990), Leave::Preempted);
    assert_eq!(scheduler.credit.running(CPU), Some(hog));
    scheduler.wake(us(29_100), answers, Cause::Event);
    assert!(!scheduler.poll(us(31_500), CPU) && scheduler.poll(us(32_000), CPU));
    let turn = next(&mut scheduler, us(32_000), us(3_000), Leave::Preempted);
    assert_eq!(turn, Some((answers, Lane::Deadline)));
    next(&mut scheduler, us(32_500), us(500), Leave::Preempted);
    assert!(!scheduler.poll(us(59_000), CPU), "it is served");
}

#[test]
fn an_event_just_before_it_is_preempted_still_counts() {
    let mut scheduler = DoubleQueue::new(1);
    let answers = add(&mut scheduler, real_time(Mode::Aperiodic, 3));
    let hog = hog(&mut scheduler);
    scheduler.wake(Nanos(0), answers, Cause::Timer);
    next(&mut scheduler, Nanos(0), Nanos(0), Leave::Preempted);
    next(&mut scheduler, us(1_000), us(1_000), Leave::Preempted);
    assert_eq!(scheduler.credit.running(CPU), Some(answers));
    scheduler.charge(answers, us(19_950));
    scheduler.wake(us(20_950), answers, Cause::Event);
    let then = next(&mut scheduler, us(21_000), us(50), Leave::Preempted);
    assert_eq!(then, Some((hog, Lane::Credit)));
    assert!(
        scheduler.poll(us(23_500), CPU),
        "the slot starts at the last poll that is at most 3 ms after the event"
    );
}

#[test]
fn the_driver_domain_preempts_all_and_is_preempted_by_none() {
    let mut scheduler = DoubleQueue::new(1);
    let driver = add(&mut scheduler, Contract::driver(Weight::ONE));
    let hog = hog(&mut scheduler);
    scheduler.decide(Nanos(0), CPU);
    // The result is the same for any time that the driver domain used before.
    scheduler.charge(driver, Nanos::from_secs(1));
    assert_eq!(scheduler.wake(us(100), driver, Cause::Event), Some(CPU));
    let turn = next(&mut scheduler, us(100), us(100), Leave::Preempted);
    assert_eq!(turn, Some((driver, Lane::Driver)));
    let again = next(&mut scheduler, us(30_100), us(30_000), Leave::Preempted);
    assert_eq!(
        again,
        Some((driver, Lane::Driver)),
        "the vCPU's slice is over, and the vCPU continues"
    );
    assert_eq!(scheduler.wake(us(30_200), driver, Cause::Event), None);
    let after = next(&mut scheduler, us(30_300), us(200), Leave::Blocked);
    assert_eq!(after, Some((hog, Lane::Credit)));
}

#[test]
fn a_reserve_lets_one_answer_that_is_over() {
    let mut scheduler = DoubleQueue::new(1);
    let contract = Contract { io_reserve_pct: 10, ..Contract::by_credit(Weight::ONE) };
    let server = add(&mut scheduler, contract);
    let hog = hog(&mut scheduler);
    scheduler.wake(Nanos(0), server, Cause::Timer);
    for _ in 0..2 {
        let turn = scheduler.decide(Nanos(0), CPU).unwrap();
        scheduler.tick(Nanos(0), CPU);
        scheduler.charge(turn.vcpu, us(40_000));
        scheduler.leave(Nanos(0), CPU, Leave::Preempted);
    }
    scheduler.account(us(30_000));
    scheduler.decide(us(30_000), CPU);
    if scheduler.credit.running(CPU) == Some(hog) {
        next(&mut scheduler, us(31_000), us(9_000), Leave::Preempted);
    }
    let blocked = next(&mut scheduler, us(33_000), us(2_000), Leave::Blocked);
    assert_eq!(blocked, Some((hog, Lane::Credit)));
    assert_eq!(scheduler.wake(us(33_100), server, Cause::Event), Some(CPU));
    scheduler.charge(hog, us(100));
    scheduler.leave(us(33_100), CPU, Leave::Preempted);
    let turn = scheduler.decide(us(33_100), CPU).unwrap();
    assert_eq!((turn.vcpu, turn.slice), (server, us(1_500)), "10 % of 15 ms");
}

#[test]
fn a_vcpu_that_needs_more_than_a_slice_for_an_event_continues_as_its_reserve_pays() {
    for (io_reserve_pct, goes_on) in [(0, false), (2, false), (50, true)] {
        let mut scheduler = DoubleQueue::new(1);
        let contract = Contract { io_reserve_pct, ..real_time(Mode::Aperiodic, 3) };
        let (server, hog) = (add(&mut scheduler, contract), hog(&mut scheduler));
        let mut now = Nanos(0);
        for vcpu in [server, hog] {
            scheduler.wake(now, vcpu, Cause::Timer);
        }
        for _ in 0..4 {
            scheduler.ran(now, server, us(15_000));
            scheduler.ran(now, hog, us(15_000));
            now += us(30_000);
            scheduler.account(now);
        }
        assert!(!scheduler.goes_on(server), "nothing came for it");
        let (slice, reserve) = (i64::try_from(SLICE.0).unwrap(), scheduler.book().reserve(server));
        let share = scheduler.book().credit(server) + reserve;
        scheduler.wake(now, server, Cause::Event);
        let mut more = 0;
        for _ in 0..100 {
            scheduler.served(now, server, SLICE);
            now += SLICE;
            if !scheduler.goes_on(server) {
                break;
            }
            more += 1;
        }
        assert_eq!(more > 10, goes_on, "{io_reserve_pct} %: {more}");
        // All run time is charged, and one slice is kept for the next event.
        let book = scheduler.book();
        assert_eq!(book.credit(server) + book.reserve(server), share - slice * (more + 1));
        let kept = reserve - slice * more;
        assert!(more == 0 || (slice..slice * 3 / 2).contains(&kept), "{kept}");
        scheduler.account(now);
        assert!(!scheduler.goes_on(server), "credits received after an event are for later events");
        // A vCPU that blocks has handled its event.
        scheduler.wake(now, server, Cause::Event);
        scheduler.served(now, server, SLICE);
        scheduler.blocked(now, server);
        assert!(!scheduler.goes_on(server));
    }
}

#[test]
fn an_actuator_tells_what_ran_and_asks_whom_to_lend_to() {
    let mut scheduler = DoubleQueue::new(1);
    let periodic = add(&mut scheduler, real_time(Mode::Periodic, 3));
    scheduler.wake(Nanos(0), periodic, Cause::Timer);
    assert_eq!(
        (scheduler.due(us(2_500), CPU), scheduler.due(us(3_000), CPU)),
        (None, Some(periodic))
    );
    scheduler.ran(us(3_500), periodic, us(500));
    assert_eq!(
        (scheduler.due(us(6_000), CPU), scheduler.due(us(6_500), CPU)),
        (None, Some(periodic))
    );
    assert_eq!(scheduler.book().credit(periodic), -500_000);
}

#[test]
fn a_slice_that_was_lent_counts_although_a_little_is_missing() {
    let mut scheduler = DoubleQueue::new(1);
    let periodic = add(&mut scheduler, real_time(Mode::Periodic, 3));
    scheduler.wake(Nanos(0), periodic, Cause::Timer);
    scheduler.ran(us(3_500), periodic, us(490));
    assert_eq!(
        scheduler.due(us(3_500), CPU),
        Some(periodic),
        "the vCPU must still get the rest of its slice"
    );
    scheduler.served(us(4_000), periodic, us(490));
    assert_eq!(
        (scheduler.due(us(6_500), CPU), scheduler.due(us(7_000), CPU)),
        (None, Some(periodic))
    );
    assert_eq!(scheduler.book().credit(periodic), -980_000, "the vCPU is charged for its run time");
}

#[test]
fn one_that_is_seen_to_be_blocked_is_owed_nothing_until_it_is_woken() {
    let mut scheduler = DoubleQueue::new(1);
    let periodic = add(&mut scheduler, real_time(Mode::Periodic, 3));
    scheduler.wake(Nanos(0), periodic, Cause::Timer);
    scheduler.blocked(us(3_000), periodic);
    assert_eq!(scheduler.due(us(30_000), CPU), None);
    assert!(!scheduler.credit.runnable(periodic));
    scheduler.wake(us(40_000), periodic, Cause::Event);
    assert_eq!(
        (scheduler.due(us(42_500), CPU), scheduler.due(us(43_000), CPU)),
        (None, Some(periodic))
    );
}

#[test]
fn deadlines_without_a_layout_are_not_admitted() {
    let mut scheduler = DoubleQueue::new(1);
    let half = Contract::real_time(Mode::Periodic, SLICE, Weight::ONE);
    assert!(scheduler.add(Nanos(0), &half, &[CPU]).is_some());
    let second = scheduler.add(Nanos(0), &half, &[CPU]).unwrap();
    assert_eq!(scheduler.add(Nanos(0), &half, &[CPU]), None);
    scheduler.remove(Nanos(0), second.id);
    assert!(scheduler.add(Nanos(0), &half, &[CPU]).is_some());
}
