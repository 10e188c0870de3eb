use std::collections::VecDeque;

use penstock_units::Rng;

use super::*;

const RATE: BitsPerSecond = BitsPerSecond(900_000_000);
/// Bytes of a frame on the link.
const FRAME: u32 = 1_538;
const STEP: Nanos = Nanos::from_micros(10);

fn member(port: u16, tenant: u16, weights: (u64, u64)) -> Member {
    let weight = |weight| Weight::new(weight).unwrap();
    Member { port, tenant, tenant_weight: weight(weights.0), vm_weight: weight(weights.1) }
}

/// Tenants of the weights 5, 3 and 1. The first has two VMs of the weights 2 and 1.
fn members() -> [Member; 4] {
    [member(3, 7, (5, 2)), member(1, 7, (5, 1)), member(0, 8, (3, 1)), member(2, 9, (1, 1))]
}

/// Lets more frames arrive for each of `ports` than the input can pass, from `from` to `until`.
/// Returns the bytes that passed, by port.
fn flood(shares: &InboundShares, ports: &[u16], from: Nanos, until: Nanos) -> [u64; 4] {
    let mut passed = [0; 4];
    let mut now = from;
    while now < until {
        now += STEP;
        shares.refill(now);
        for _ in 0..2 {
            for port in ports {
                if shares.arrive(*port, FRAME) != Admission::Refuse {
                    passed[usize::from(*port)] += u64::from(FRAME);
                }
            }
        }
    }
    passed
}

/// Returns the rates in kbit/s in the second after `warm_up`.
fn rates(shares: &InboundShares, ports: &[u16], warm_up: Nanos) -> [u64; 4] {
    let start = Nanos::from_secs(1);
    flood(shares, ports, start, start + warm_up);
    let start = start + warm_up;
    flood(shares, ports, start, start + Nanos::from_secs(1)).map(|bytes| bytes * 8 / 1_000)
}

/// Lets a frame arrive for the VM of port 0, which has tokens left after that.
fn arrive_below_share(shares: &InboundShares) {
    assert_eq!(shares.arrive(0, FRAME), Admission::Pass);
}

fn near(rate: u64, due: u64) -> bool {
    rate.abs_diff(due) * 200 <= due
}

#[test]
fn tenants_and_their_vms_get_their_shares_by_weight() {
    let shares = InboundShares::new(RATE, &members());
    let got = rates(&shares, &[0, 1, 2, 3], Nanos::from_millis(200));
    let due = [300_000, 166_667, 100_000, 333_333];
    assert!(got.iter().zip(due).all(|(got, due)| near(*got, due)), "{got:?}");
}

#[test]
fn what_one_leaves_goes_to_its_siblings_first_and_then_to_the_others() {
    let of = |ports: &[u16]| {
        rates(&InboundShares::new(RATE, &members()), ports, Nanos::from_millis(200))
    };
    for (ports, due) in [
        (&[0, 1, 2][..], [300, 500, 100, 0]),
        (&[0, 2][..], [675, 0, 225, 0]),
        (&[1, 2, 3][..], [0, 250, 150, 500]),
        (&[2][..], [0, 0, 900, 0]),
    ] {
        let got = of(ports);
        let all_near = got.iter().zip(due).all(|(got, due)| near(*got, due * 1_000));
        assert!(all_near, "{ports:?}: {got:?}");
    }
}

#[test]
fn an_idle_tenants_share_is_used_after_a_few_milliseconds() {
    let shares = InboundShares::new(RATE, &members());
    let second = Nanos::from_secs(1);
    flood(&shares, &[0, 1, 2, 3], second, Nanos(2 * second.0));
    // Both buckets of the first tenant are full after 4 ms of the tenant's share.
    let idle = Nanos(2 * second.0) + Nanos::from_millis(6);
    flood(&shares, &[0, 2], Nanos(2 * second.0), idle);
    let got = flood(&shares, &[0, 2], idle, idle + Nanos::from_millis(100));
    let all: u64 = got.iter().sum::<u64>() * 8;
    assert!(near(all / 100_000, 900), "{all} bits in 100 ms");
}

#[test]
fn a_frame_signals_before_frames_are_refused() {
    let shares = InboundShares::new(RATE, &[member(0, 1, (1, 1))]);
    let mut seen = Vec::new();
    for _ in 0..2_000 {
        let admission = shares.arrive(0, FRAME);
        if seen.last() != Some(&admission) {
            seen.push(admission);
        }
    }
    assert_eq!(seen, [Admission::Pass, Admission::Signal, Admission::Refuse]);
    let times = [0, 9_999_999, 10_000_000, 10_000_001].map(Nanos);
    assert_eq!(times.map(|now| shares.may_drop_early(0, now)), [true, false, true, false]);
    assert_eq!(shares.arrive(1, FRAME), Admission::Unshared, "the port is no VM of the shares");
}

#[test]
fn a_slow_core_lowers_the_rate_and_a_fast_one_restores_it() {
    let shares = InboundShares::new(RATE, &members());
    let load = BatchLoad { passed: Size { bytes: 12_500, frames: 8 }, refused: 2 };
    let mut now = Nanos::from_secs(1);
    for _ in 0..500 {
        now += Nanos::from_micros(100);
        shares.refill(now);
        arrive_below_share(&shares);
        shares.note(0, 500, load);
    }
    assert!(shares.rate() < RATE, "{}", shares.rate().0);
    for _ in 0..500 {
        now += Nanos::from_micros(100);
        shares.refill(now);
        shares.note(0, 0, BatchLoad { refused: 0, ..load });
    }
    assert_eq!(shares.rate(), RATE);
}

/// A core that takes a whole batch in 600 us to 3 ms has fewer than three batches in a millisecond.
#[test]
fn a_core_of_few_batches_in_a_millisecond_lowers_the_rate_too() {
    for batch in [600, 1_300, 3_000].map(Nanos::from_micros) {
        let shares = InboundShares::new(RATE, &members());
        let load = BatchLoad { passed: Size { bytes: 32 * FRAME, frames: 32 }, refused: 0 };
        let mut now = Nanos::from_secs(1);
        for _ in 0..100 {
            now += batch;
            shares.refill(now);
            arrive_below_share(&shares);
            shares.note(0, 500, load);
        }
        let delivered = u64::from(load.passed.bytes) * 8_000_000_000 / batch.0;
        let rate = shares.rate().0;
        assert!(rate < delivered, "{batch:?}: {rate} of {delivered}");
    }
}

#[test]
fn a_slow_core_without_a_standing_backlog_keeps_the_rate() {
    let shares = InboundShares::new(RATE, &members());
    let load = BatchLoad { passed: Size { bytes: 32 * FRAME, frames: 32 }, refused: 0 };
    let mut now = Nanos::from_secs(1);
    for backlog in [500, 500, 0].into_iter().cycle().take(300) {
        now += Nanos::from_micros(1_300);
        shares.refill(now);
        arrive_below_share(&shares);
        shares.note(0, backlog, load);
    }
    // No frame waits behind one of three batches in a row.
    assert_eq!(shares.rate(), RATE);
}

#[test]
fn an_empty_queue_pair_has_no_standing_backlog() {
    let shares = InboundShares::new(RATE, &members());
    let load = BatchLoad { passed: Size { bytes: 5_000, frames: 32 }, refused: 0 };
    let mut now = Nanos::from_secs(1);
    for _ in 0..500 {
        now += Nanos::from_micros(100);
        shares.refill(now);
        arrive_below_share(&shares);
        shares.note(0, 33, load);
        shares.note_empty(0);
    }
    assert_eq!(shares.rate(), RATE);
}

#[test]
fn a_change_keeps_spent_tokens_spent() {
    let shares = InboundShares::new(RATE, &members());
    flood(&shares, &[0, 1, 2, 3], Nanos::from_secs(1), Nanos(1_100_000_000));
    assert!(shares.are(RATE, &members()));
    let mut changed = members();
    changed[0].vm_weight = Weight::new(9).unwrap();
    assert!(!shares.are(RATE, &changed) && !shares.are(BitsPerSecond(1), &members()));
    let new = InboundShares::in_place_of(&shares, RATE, &changed);
    for member in &changed {
        let (new, old) = (new.account(member.port).unwrap(), shares.account(member.port).unwrap());
        assert_eq!(new.bucket.level(), old.bucket.level());
    }
    assert_eq!(new.spare.level(), shares.spare.level());
}

/// Returns 1,100 VMs of as many tenants. The first tenant has the weight 3, the others have 1.
fn many() -> Vec<Member> {
    (0..1_100).map(|port| member(port, port, (if port == 0 { 3 } else { 1 }, 1))).collect()
}

#[test]
fn the_buckets_of_many_vms_together_hold_little_of_the_links_time() {
    let rate = BitsPerSecond(10_000_000_000);
    let shares = InboundShares::new(rate, &many());
    let mut passed = 0;
    for _ in 0..2 {
        let mut before = u64::MAX;
        while before != passed {
            before = passed;
            for port in 0..1_100 {
                if shares.arrive(port, FRAME) != Admission::Refuse {
                    passed += u64::from(FRAME);
                }
            }
        }
        // After a second without frames, the buckets hold no more.
        shares.refill(Nanos::from_secs(1));
        shares.refill(Nanos(1_003_000_000));
    }
    let in_ms = passed * 8 / (rate.0 / 1_000);
    assert!(in_ms < 2 * 15, "{in_ms} ms of the link");
}

#[test]
fn a_large_segment_passes_without_a_signal_however_many_vms_there_are() {
    let shares = InboundShares::new(RATE, &many());
    while shares.spare.take(i64::from(FRAME) * PARTS_OF_BYTE) {}
    assert_eq!(shares.arrive(7, SEGMENT.bytes), Admission::Pass);
    assert_eq!(shares.arrive(7, FRAME), Admission::Refuse, "the bucket is in debt");
}

#[test]
fn two_of_many_vms_get_the_rate_by_weight() {
    let shares = InboundShares::new(RATE, &many());
    let got = rates(&shares, &[0, 1], Nanos::from_millis(200));
    assert!(near(got[0], 675_000) && near(got[1], 225_000), "{got:?}");
}

#[test]
fn a_worker_that_was_away_refuses_no_frame_of_an_idle_link() {
    let shares = InboundShares::new(RATE, &members());
    let second = Nanos::from_secs(1);
    shares.refill(second);
    shares.refill(second + Nanos::from_millis(3));
    let usual = shares.spare.level();
    let back = second + Nanos::from_millis(33);
    // In 30 ms, the link carries 3.4 MB, all for one VM.
    shares.refill(back);
    let frames = RATE.0 / 8 * 30 / 1_000 / u64::from(FRAME);
    let refused = (0..frames).filter(|_| shares.arrive(0, FRAME) == Admission::Refuse).count();
    assert_eq!(refused, 0, "of {frames} frames");
    // What is left of a long absence does not serve a later burst.
    shares.refill(Nanos::from_secs(2));
    assert!(shares.spare.level() > usual);
    shares.refill(Nanos::from_secs(2) + CATCH_UP);
    assert_eq!(shares.spare.level(), usual);
}

#[test]
fn a_worker_that_was_away_keeps_the_shares_of_a_full_link() {
    let shares = InboundShares::new(RATE, &members());
    let start = Nanos::from_secs(1);
    let end = start + Nanos::from_millis(50);
    let mut now = start;
    while now < end {
        now += STEP;
        shares.refill(now);
        let mut load = BatchLoad::default();
        for _ in 0..8 {
            match shares.arrive(0, FRAME) {
                Admission::Refuse => load.refused += 1,
                _ => load.passed += Size { bytes: FRAME, frames: 1 },
            }
        }
        shares.note(0, 0, load);
    }
    shares.refill(end + Nanos::from_millis(20));
    assert!(shares.spare.level() <= shares.spare_usual);
}

#[test]
fn a_vm_that_seldom_receives_has_tokens_left_until_its_bucket_is_empty() {
    let shares = InboundShares::new(RATE, &members());
    let left = |ms: u64| {
        shares.refill(Nanos::from_secs(1) + Nanos::from_millis(ms));
        shares.state.lock().unwrap().left
    };
    assert!(!left(1), "no VM receives");
    arrive_below_share(&shares);
    assert!(left(2) && left(4) && left(900));
    assert!(!left(1_100), "it received nothing for a second");
    arrive_below_share(&shares);
    assert!(left(1_102) && left(1_104));
    while shares.arrive(0, FRAME) != Admission::Refuse {}
    assert!(!left(1_106), "its bucket is empty");
}

/// Runs a batch of 32 frames, as many for each VM, behind which more frames wait.
fn run_slow_batch(shares: &InboundShares, now: Nanos) {
    shares.refill(now);
    let mut load = BatchLoad::default();
    for frame in 0..32 {
        match shares.arrive(frame % 4, FRAME) {
            Admission::Refuse => load.refused += 1,
            _ => load.passed += Size { bytes: FRAME, frames: 1 },
        }
    }
    shares.note(0, 500, load);
}

#[test]
fn a_pause_of_a_slow_core_does_not_fill_the_buckets() {
    let shares = InboundShares::new(RATE, &members());
    let mut now = Nanos::from_secs(1);
    for _ in 0..2_000 {
        now += Nanos::from_millis(1);
        run_slow_batch(&shares, now);
    }
    // The core takes 394 Mbit/s from the ring.
    assert!(shares.rate().0 < RATE.0 / 2, "{}", shares.rate().0);
    let levels = || shares.accounts.iter().map(|account| account.bucket.level()).sum::<i64>();
    let before = levels();
    now += Nanos::from_millis(50);
    shares.refill(now);
    let gained = levels() - before;
    // One batch of 32 frames ran since the refill before.
    assert!((1..=in_parts(40 * FRAME)).contains(&gained), "{gained} parts");
}

/// Frames for the VMs of four ports arrive in segments at a ring, from which a slow core takes
/// them.
struct SlowCore {
    shares: InboundShares,
    rng: Rng,
    now: Nanos,
    ring: VecDeque<u16>,
    /// Time between two segments for each port, and the time of the next one, in ns.
    streams: [(u64, u64); 4],
    /// Frames that passed, by port.
    passed: [u64; 4],
}

impl SlowCore {
    const RING: usize = 2_048;
    const PACKETS: usize = 40;

    /// `arrivals` has the frames per second for each port.
    fn new(arrivals: [u64; 4]) -> Self {
        let now = Nanos::from_secs(1);
        let stream = |rate: u64| (Self::PACKETS as u64 * 1_000_000_000 / rate, now.0);
        Self {
            shares: InboundShares::new(RATE, &members()),
            rng: Rng::new(1),
            now,
            ring: VecDeque::new(),
            streams: arrivals.map(stream),
            passed: [0; 4],
        }
    }

    /// Lets all segments arrive that are due. A frame that finds the ring full is lost.
    fn arrive(&mut self) {
        let Self { rng, now, ring, streams, .. } = self;
        loop {
            let due = (0_u16..).zip(streams.iter_mut()).filter(|(_, (_, next))| *next <= now.0);
            let Some((port, (gap, next))) = due.min_by_key(|(_, (_, next))| *next) else { return };
            *next += *gap / 2 + rng.below(*gap);
            let room = Self::RING - ring.len();
            ring.extend(std::iter::repeat_n(port, room.min(Self::PACKETS)));
        }
    }

    /// Runs batches for `time`. A refused frame takes `look` ns, and a delivered one 2.2 times as
    /// long.
    fn run(&mut self, time: Nanos, look: u64) {
        let until = self.now + time;
        while self.now < until {
            self.arrive();
            self.shares.refill(self.now);
            let mut load = BatchLoad::default();
            for port in self.ring.drain(..self.ring.len().min(32)) {
                if self.shares.arrive(port, FRAME) == Admission::Refuse {
                    load.refused += 1;
                } else {
                    load.passed += Size { bytes: FRAME, frames: 1 };
                    self.passed[usize::from(port)] += 1;
                }
            }
            self.shares.note(0, self.ring.len(), load);
            let cost = 10 * load.refused + 22 * load.passed.frames;
            self.now += Nanos(u64::from(cost.max(10)) * look / 10);
        }
    }
}

/// Each VM receives more than its share, but the ring loses a third of its frames or more.
#[test]
fn a_slow_core_keeps_the_shares_if_its_speed_changes() {
    for looks in [[15_000, 30_000], [23_000, 23_000]] {
        let mut core = SlowCore::new([10_600, 8_600, 19_900, 8_600]);
        let mut run = |times: u32| {
            for look in (0..times).flat_map(|_| looks) {
                core.run(Nanos::from_millis(200), look);
            }
            core.passed
        };
        let (before, after) = (run(3), run(15));
        let got: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        let all: u64 = got.iter().sum();
        for (got, due) in got.iter().zip([9, 5, 3, 10]) {
            let due = all * due / 27;
            assert!(got.abs_diff(due) * 80 < due, "{looks:?}: {got}, due {due}");
        }
    }
}

#[test]
fn buckets_are_deeper_only_while_the_core_is_the_limit() {
    let shares = InboundShares::new(RATE, &members());
    let level = || shares.account(3).unwrap().bucket.level();
    let usual = level();
    let slow = in_parts(SLOW_DEPTH) * 10 / 27;
    assert!(usual < slow * 9 / 10);
    // The VM of port 3 receives nothing, and frames for the others wait all the time.
    let mut now = Nanos::from_secs(1);
    let mut batch = |backlog, refused| {
        now += Nanos::from_micros(600);
        shares.refill(now);
        let frames = if backlog > 0 { 30 } else { 1 };
        let _ = shares.arrive(2, FRAME);
        let passed = Size { bytes: frames * FRAME, frames };
        shares.note(0, backlog, BatchLoad { passed, refused });
    };
    (0..2_000).for_each(|_| batch(500, 2));
    assert!(level() > slow * 9 / 10, "{} of {slow}", level());
    (0..2_000).for_each(|_| batch(0, 0));
    assert!(level() <= usual, "{} of {usual}", level());
}

#[test]
fn a_worker_does_not_wait_for_another_one_that_refills() {
    let shares = InboundShares::new(RATE, &members());
    flood(&shares, &[0], Nanos::from_secs(1), Nanos(1_100_000_000));
    let level = || shares.account(0).unwrap().bucket.level();
    let before = level();
    // The other worker lost its core while it refills.
    let refilling = shares.state.lock().unwrap();
    shares.refill(Nanos(1_200_000_000));
    assert_eq!(level(), before);
    drop(refilling);
    shares.refill(Nanos(1_200_000_001));
    assert!(level() > before, "the next batch refills");
}

#[test]
fn frames_that_are_dropped_later_cost_no_share_and_are_not_delivered() {
    let shares = InboundShares::new(RATE, &members());
    let load = BatchLoad { passed: Size { bytes: 10 * FRAME, frames: 10 }, refused: 0 };
    let level = || shares.account(0).unwrap().bucket.level();
    let before = level();
    for _ in 0..10 {
        assert_eq!(shares.arrive(0, FRAME), Admission::Pass);
    }
    shares.note(0, 0, load);
    shares.not_delivered(0, load.passed);
    assert_eq!(level(), before);
    assert_eq!(shares.counts.take(STEP).passed, Size::default());
}

#[test]
fn a_flood_to_a_vm_with_a_full_ring_does_not_lower_the_rate_of_the_others() {
    let shares = InboundShares::new(RATE, &members());
    let size = |frames: u32| Size { bytes: frames * FRAME, frames };
    let load = BatchLoad { passed: size(32), refused: 0 };
    let mut now = Nanos::from_secs(1);
    for _ in 0..500 {
        now += Nanos::from_micros(100);
        shares.refill(now);
        arrive_below_share(&shares);
        shares.note(0, 500, load);
        // Four frames of each batch are for other VMs.
        shares.not_delivered(0, size(28));
    }
    assert_eq!(shares.rate(), RATE);
}
