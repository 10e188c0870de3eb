//! These tests check that sources with a claim at a fair-share output have turns, and that waiting
//! frames stay neither behind a claim nor out of order.

use penstock_qos::policer::Size;

use super::*;

/// Bytes of a batch that passes in the tests.
const BATCH: u32 = 3_000;

fn bench(pacing: Pacing) -> Bench {
    let terms = QueueTerms { pacing, ..terms(Order::FairShare, Excess::Hold) };
    let mut bench = Bench::new(terms, false, false);
    bench.store = FrameStore::new(1_000);
    bench
}

fn link(gbit: u64) -> Pacing {
    Pacing::Link(BitsPerSecond(gbit * 1_000_000_000))
}

/// Lets a batch of a source pass, and returns the bytes that are charged at its end.
fn pass(bench: &mut Bench, port: u16, claim: u32) -> u32 {
    bench.queue.begin_direct();
    assert!(bench.queue.is_direct() && bench.queue.lets_direct(32));
    bench.queue.note_passed(Size { bytes: BATCH, frames: 2 });
    assert!(!bench.queue.lets_direct(31), "there is room for 32 frames in all");
    let passed = bench.queue.end_direct();
    bench.queue.charge_direct(&source(port), passed, claim, bench.now);
    passed.bytes
}

fn due(bench: &mut Bench) -> Option<Nanos> {
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    bench.queue.due(memory, bench.now, &mut |_| unreachable!("no frame is lost"))
}

#[test]
fn only_a_fast_output_with_fair_shares_lets_batches_pass() {
    let of = |pacing, order, room| {
        let terms = QueueTerms { pacing, ..terms(order, Excess::Hold) };
        let mut queue = OutputQueue::new(terms, 8, 8);
        queue.claim(&source(1), BATCH);
        queue.choice(Nanos(1), room)
    };
    assert_eq!(of(Pacing::None, Order::FairShare, 32), Choice::Poll(1));
    assert_eq!(of(link(25), Order::FairShare, usize::MAX), Choice::Poll(1));
    assert_eq!(of(link(25), Order::FairShare, 31), Choice::Own, "no room for a batch");
    assert_eq!(of(link(10), Order::FairShare, 32), Choice::Own, "frames wait for the link");
    assert_eq!(of(link(25), Order::Fifo, 32), Choice::Own);
    let limit = Arc::new(EgressPolicer::new(
        Meter::new(Terms { bytes: Some((BitsPerSecond(8), 1)), waits: true, ..Terms::default() }),
        None,
        Sharing::Strict,
    ));
    let mut bench = bench(Pacing::None);
    bench.queue.claim(&source(1), BATCH);
    bench.queue.change(Pacing::None, Some(limit), Arc::default(), bench.now);
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Own, "frames wait for the limit");
}

#[test]
fn sources_with_claims_share_and_a_busy_link_lets_nothing_pass() {
    let mut bench = bench(link(100));
    [1, 2, 4].iter().for_each(|port| bench.queue.claim(&source(*port), BATCH));
    let mut sent = BTreeMap::<u16, u32>::new();
    for _ in 0..3_000 {
        let Choice::Poll(port) = bench.queue.choice(bench.now, 32) else { unreachable!() };
        *sent.entry(port).or_default() += pass(&mut bench, port, BATCH);
        assert_eq!(bench.queue.choice(bench.now, 32), Choice::Own, "the link is busy");
        bench.now += Nanos(u64::from(BATCH) * 8 / 100);
        assert!(bench.queue.is_empty() && due(&mut bench).is_none());
    }
    // Three sources of three tenants.
    assert!(sent.len() == 3 && sent.values().all(|sent| sent.abs_diff(3_000_000) < 40_000));
    bench.leave(1);
    bench.queue.claim(&source(2), 0);
    for _ in 0..10 {
        assert_eq!(bench.queue.choice(bench.now, 32), Choice::Poll(4));
        pass(&mut bench, 4, BATCH);
        bench.now += Nanos(u64::from(BATCH) * 8 / 100);
    }
    bench.queue.claim(&source(4), 0);
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Own);
}

#[test]
fn a_source_passes_several_batches_for_one_choice_while_no_frame_waits() {
    let mut bench = bench(Pacing::None);
    [1, 2].iter().for_each(|port| bench.queue.claim(&source(*port), BATCH));
    assert_eq!(bench.queue.again(), None);
    let Choice::Poll(port) = bench.queue.choice(bench.now, 32) else { unreachable!() };
    assert_eq!(bench.queue.again(), None, "no batch has passed");
    for _ in 1..4 {
        pass(&mut bench, port, BATCH);
        assert_eq!(bench.queue.again(), Some(port));
    }
    pass(&mut bench, port, BATCH);
    assert_eq!(bench.queue.again(), None, "the source passed half of eight batches");
    let other = 3 - port;
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Poll(other));
    pass(&mut bench, other, BATCH);
    assert_eq!(bench.queue.again(), Some(other));
    bench.come(port, 1_000);
    assert_eq!(bench.queue.again(), None, "a frame waits");
}

#[test]
fn waiting_frames_of_a_source_leave_before_its_claim() {
    let mut bench = bench(Pacing::None);
    bench.queue.claim(&source(1), BATCH);
    bench.come(1, 1_000);
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Frames);
    assert_eq!(due(&mut bench), Some(Nanos::ZERO));
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Frames, "the head goes first");
    bench.go(0);
    assert!(bench.queue.is_empty());
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Poll(1));
}

#[test]
fn a_frame_of_the_batch_that_waits_makes_the_rest_wait_too() {
    let mut bench = bench(Pacing::None);
    [1, 2].iter().for_each(|port| bench.queue.claim(&source(*port), BATCH));
    let Choice::Poll(port) = bench.queue.choice(bench.now, 32) else { unreachable!() };
    bench.queue.begin_direct();
    bench.queue.note_passed(Size { bytes: 60_000, frames: 3 });
    bench.queue.stop_direct(&source(port), bench.now);
    assert!(!bench.queue.is_direct() && !bench.queue.lets_direct(1));
    assert_eq!(bench.queue.end_direct(), Size::default(), "the passed frames are charged");
    bench.come(port, 1_000);
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Poll(3 - port));
}

#[test]
fn frames_do_not_stay_behind_a_claim() {
    let mut bench = bench(Pacing::None);
    bench.queue.claim(&source(1), BATCH);
    bench.queue.claim(&source(2), BATCH);
    let Choice::Poll(first) = bench.queue.choice(bench.now, 32) else { unreachable!() };
    let other = 3 - first;
    bench.come(other, 1_000);
    // The other source has the turn, but the worker does not poll it.
    let until = due(&mut bench).expect("the frame waits");
    assert!(until > bench.now && until <= bench.now + Nanos::from_micros(100));
    assert!(!bench.queue.begins_to_wait(), "no ceiling delays the frame");
    bench.go(1_000);
    assert_eq!((bench.queue.len(), due(&mut bench)), (1, Some(until)));
    bench.now = until;
    assert_eq!(due(&mut bench), Some(Nanos::ZERO));
    bench.go(0);
    assert!(bench.queue.is_empty());
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Own, "all claims are withdrawn");
}

#[test]
fn an_emptied_queue_has_no_claims() {
    let mut bench = bench(Pacing::None);
    bench.queue.claim(&source(1), BATCH);
    bench.come(2, 1_000);
    assert!(bench.queue.has_claims());
    assert!(bench.queue.waits_only_from(2) && !bench.queue.waits_only_from(1));
    let free = bench.free();
    let mut lost = Vec::new();
    let memory = &mut Memory::of(&mut bench.store, &mut bench.port);
    bench.queue.clear(memory, bench.now, |port| lost.push(port));
    assert_eq!((lost, bench.queue.is_empty()), (vec![2], true));
    assert!(bench.free() > free && !bench.queue.has_claims());
    assert_eq!(bench.queue.choice(bench.now, 32), Choice::Own);
}

#[test]
fn claims_follow_the_weights_of_a_new_snapshot() {
    let mut bench = bench(Pacing::None);
    let heavy = |port, weight, shares| Source {
        share: ShareTerms {
            tenant: Weight::new(weight).expect("possible"),
            ..ShareTerms::default()
        },
        shares,
        ..source(port)
    };
    [1, 2].iter().for_each(|port| bench.queue.claim(&heavy(*port, 1, 1), BATCH));
    for (shares, weight, due) in [(2, 1, [300, 300]), (3, 5, [500, 100])] {
        let mut turns = [0_usize; 2];
        for _ in 0..600 {
            let Choice::Poll(port) = bench.queue.choice(bench.now, 32) else { unreachable!() };
            let from = heavy(port, if port == 1 { weight } else { 1 }, shares);
            bench.queue.begin_direct();
            bench.queue.note_passed(Size { bytes: BATCH, frames: 2 });
            let passed = bench.queue.end_direct();
            bench.queue.charge_direct(&from, passed, BATCH, bench.now);
            turns[usize::from(port) - 1] += 1;
        }
        assert!(turns.iter().zip(due).all(|(turns, due)| turns.abs_diff(due) < 30), "{turns:?}");
    }
}
