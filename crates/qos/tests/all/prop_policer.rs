//! Tests the invariants of policers for any traffic: the bound on passed frames, and no loss for a
//! source within its limit.

use std::sync::atomic::{AtomicU64, Ordering};

use penstock_qos::policer::{Colour, Limit, Policer, RATE_MAX, RATE_MIN, Size, Spec, wait_depth};
use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};
use proptest::prelude::*;

/// Returns random times between frames: mostly short, sometimes hours.
fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..2_000_000_u64, 2 => 0..2_000_000_000_u64, 1 => 0..20_000_000_000_000_u64]
}

fn frame() -> impl Strategy<Value = Size> {
    prop_oneof![
        4 => (60..=1_518_u32).prop_map(|bytes| Size { bytes, frames: 1 }),
        1 => (2..=45_u32).prop_map(|frames| Size { bytes: frames * 1_514, frames }),
    ]
}

fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![RATE_MIN.0..1_000_000, 1_000_000..10_000_000_000_u64, Just(RATE_MAX.0)]
}

/// Arrival time, size and colour of a frame.
type Arrival = (u64, Size, Colour);

fn run(policer: &Policer, stream: &[(u64, Size)]) -> Vec<Arrival> {
    let mut now = 0;
    let mut mark = |(gap, size): &(u64, Size)| {
        now += gap;
        policer.refill(Nanos(now));
        (now, *size, policer.mark(*size))
    };
    stream.iter().map(&mut mark).collect()
}

/// Checks that at most the depth (or one frame) plus the bytes that the rate yields pass in every
/// time window. The amounts of bytes in this test are in units of 1/8e9 byte.
fn within(
    arrivals: &[Arrival],
    rate: u64,
    depth: u32,
    counts: impl Fn(Colour) -> bool,
) -> Result<(), TestCaseError> {
    let longest = arrivals.iter().map(|(_, size, _)| size.bytes).max().unwrap_or(0);
    let burst = u128::from(depth.max(longest)) * 8_000_000_000;
    for (first, (start, ..)) in arrivals.iter().enumerate() {
        let mut passed = 0_u128;
        for (at, size, colour) in &arrivals[first..] {
            if counts(*colour) {
                passed += u128::from(size.bytes) * 8_000_000_000;
            }
            let bound = burst + u128::from(rate) * u128::from(at - start);
            prop_assert!(passed <= bound, "from {start} to {at}: {passed} > {bound}");
        }
    }
    Ok(())
}

fn stream() -> impl Strategy<Value = Vec<(u64, Size)>> {
    prop::collection::vec((gap(), frame()), 1..80)
}

proptest! {
    #[test]
    fn no_window_passes_more_than_depth_and_rate(
        cir in rate(), cbs in 1_u32..200_000, ebs in 0_u32..200_000, stream in stream(),
    ) {
        let limit = Limit::SingleRate { cir: BitsPerSecond(cir), cbs, ebs };
        let arrivals = run(&Policer::new(Spec::new(limit).unwrap()), &stream);
        within(&arrivals, cir, cbs, |colour| colour == Colour::Green)?;
        // Each bucket may be in debt by one frame.
        let longest = stream.iter().map(|(_, size)| size.bytes).max().unwrap_or(0);
        let both = cbs.max(longest) + if ebs == 0 { 0 } else { ebs.max(longest) };
        within(&arrivals, cir, both, |colour| colour != Colour::Red)?;
    }

    #[test]
    fn two_rates_bound_green_frames_and_all_frames(
        cir in rate(), more in 0_u64..4, cbs in 1_u32..200_000, pbs in 1_u32..200_000,
        stream in stream(),
    ) {
        let pir = cir.saturating_add(more * cir / 2).min(RATE_MAX.0);
        let limit = Limit::TwoRate { cir: BitsPerSecond(cir), cbs, pir: BitsPerSecond(pir), pbs };
        let arrivals = run(&Policer::new(Spec::new(limit).unwrap()), &stream);
        within(&arrivals, cir, cbs, |colour| colour == Colour::Green)?;
        within(&arrivals, pir, pbs, |colour| colour != Colour::Red)?;
    }

    #[test]
    fn a_source_within_rate_and_depth_loses_nothing(
        cir in rate(), sizes in prop::collection::vec(60_u32..60_000, 1..80),
    ) {
        let cbs = 60_000;
        let limit = Limit::SingleRate { cir: BitsPerSecond(cir), cbs, ebs: 0 };
        let policer = Policer::new(Spec::new(limit).unwrap());
        // When the burst is used up, each frame arrives as early as the limit permits.
        let mut owed = 0_u128;
        let depth = u128::from(cbs) * 8_000_000_000;
        let (mut now, mut level) = (0_u64, depth);
        for bytes in sizes {
            let need = u128::from(bytes) * 8_000_000_000;
            if level < need {
                owed = (need - level).div_ceil(u128::from(cir));
                now += u64::try_from(owed).unwrap();
                level = (level + owed * u128::from(cir)).min(depth);
            }
            level -= need;
            policer.refill(Nanos(now));
            let colour = policer.mark(Size { bytes, frames: 1 });
            prop_assert_eq!(colour, Colour::Green, "after a wait of {} ns", owed);
        }
    }

    /// Several workers poll the queue pairs of a port that always has frames. The workers together
    /// take the frames that the rate and the bucket's depth permit, and at most one more batch for
    /// each worker.
    #[test]
    fn backlogged_workers_take_the_rate_and_a_batch_each_more(
        cir in 1_000_000..40_000_000_000_u64, workers in 1_usize..5,
        sizes in prop::collection::vec(frame(), 1..40),
    ) {
        let cbs = wait_depth(BitsPerSecond(cir));
        let limit = Limit::SingleRate { cir: BitsPerSecond(cir), cbs, ebs: 0 };
        let policer = Policer::new(Spec::new(limit).unwrap().waiting());
        let mut due = vec![0_u64; workers];
        let mut frames = sizes.iter().cycle();
        let (mut taken, mut largest) = (0_u128, 0_u128);
        let end = 50_000_000;
        loop {
            let (worker, now) = due.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap();
            if now > end {
                break;
            }
            policer.refill(Nanos(now));
            // A worker takes at least as long for a batch.
            due[worker] = now + policer.wait().0.max(500);
            if policer.wait() > Nanos(0) {
                continue;
            }
            let batch: Vec<Size> = frames.by_ref().take(policer.batch(32)).copied().collect();
            prop_assert!(policer.charge(batch.iter().copied()));
            let mut sum = Size::default();
            batch.iter().for_each(|size| sum += *size);
            taken += u128::from(sum.bytes);
            largest = largest.max(u128::from(sum.bytes));
            due[worker] = now + policer.wait().0.max(500);
        }
        let of_rate = u128::from(cir) * u128::from(end) / 8_000_000_000;
        let most = of_rate + u128::from(cbs) + workers as u128 * largest + 1;
        prop_assert!(taken <= most, "{taken} > {most}");
        // Workers that take batches as fast as they can may be slower than the rate.
        let fast = u128::from(end) / 500 * 60;
        prop_assert!(taken + largest >= of_rate.min(fast), "{taken} < {of_rate}");
    }

    #[test]
    fn no_source_starves_at_any_depth(
        cir in rate(), cbs in 1_u32..3_000, bytes in 60_u32..70_000,
    ) {
        let limit = Limit::SingleRate { cir: BitsPerSecond(cir), cbs, ebs: 0 };
        let policer = Policer::new(Spec::new(limit).unwrap());
        // Time in which the bucket gets the tokens for a frame and fills up.
        let worth = (u128::from(bytes) + u128::from(cbs)) * 8_000_000_000 / u128::from(cir) + 1;
        let step = u64::try_from(worth).unwrap();
        for n in 1..20 {
            policer.refill(Nanos(n * step));
            prop_assert_eq!(policer.mark(Size { bytes, frames: 1 }), Colour::Green);
        }
    }

    #[test]
    fn a_batch_at_once_equals_its_frames_one_by_one(
        cir in rate(), cbs in 1_u32..100_000, two in any::<bool>(),
        batches in prop::collection::vec((gap(), prop::collection::vec(frame(), 1..32)), 1..20),
    ) {
        let rate = BitsPerSecond(cir);
        let limit = if two {
            Limit::TwoRate { cir: rate, cbs, pir: rate, pbs: 2 * cbs }
        } else {
            Limit::SingleRate { cir: rate, cbs, ebs: cbs }
        };
        let spec = Spec::new(limit).unwrap();
        let (one, other) = (Policer::new(spec), Policer::new(spec));
        let mut now = 0;
        for (gap, frames) in batches {
            now += gap;
            one.refill(Nanos(now));
            other.refill(Nanos(now));
            let mut sum = Size::default();
            frames.iter().for_each(|size| sum += *size);
            let colours: Vec<Colour> = frames.iter().map(|size| one.mark(*size)).collect();
            if other.all_green(sum) {
                prop_assert!(colours.iter().all(|colour| *colour == Colour::Green));
            } else {
                let again: Vec<Colour> = frames.iter().map(|size| other.mark(*size)).collect();
                prop_assert_eq!(&colours, &again);
            }
            prop_assert_eq!(one.levels(), other.levels());
        }
    }

    #[test]
    fn frames_per_second_are_bounded_too(
        pps in 1_u64..10_000_000, burst in 1_u32..1_000, stream in stream(),
    ) {
        let limit = Limit::Packets { rate: PacketsPerSecond(pps), burst };
        let arrivals = run(&Policer::new(Spec::new(limit).unwrap()), &stream);
        let most = arrivals.iter().map(|(_, size, _)| size.frames).max().unwrap_or(0);
        for (first, (start, ..)) in arrivals.iter().enumerate() {
            let mut passed = 0_u128;
            for (at, size, colour) in &arrivals[first..] {
                passed += u128::from(*colour == Colour::Green) * u128::from(size.frames);
                let worth = u128::from(pps) * u128::from(at - start);
                let bound = u128::from(burst.max(most)) * 1_000_000_000 + worth;
                prop_assert!(passed * 1_000_000_000 <= bound);
            }
        }
    }
}

/// Tests that two threads that police the same stream let as many frames pass as one thread.
#[test]
fn threads_share_one_limit() {
    let (cir, cbs) = (BitsPerSecond(800_000_000), 64_000_u32);
    let limit = Limit::SingleRate { cir, cbs, ebs: 0 };
    let policer = Policer::new(Spec::new(limit).unwrap());
    let (clock, passed) = (AtomicU64::new(0), AtomicU64::new(0));
    let frame = Size { bytes: 1_000, frames: 1 };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    let now = clock.fetch_add(100, Ordering::Relaxed);
                    policer.refill(Nanos(now));
                    if policer.mark(frame) == Colour::Green {
                        passed.fetch_add(u64::from(frame.bytes), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // The flood lasts 40 ms at 100 bytes per microsecond, at ten times the rate.
    policer.refill(Nanos(clock.load(Ordering::Relaxed)));
    let left = u64::try_from(policer.levels().0).unwrap();
    let all = 4_000_000 + u64::from(cbs);
    let passed = passed.load(Ordering::Relaxed);
    assert!(passed + left <= all, "{passed} + {left} > {all}");
    assert!(passed + left >= all - 1_000, "{passed} + {left} < {all}");
}
