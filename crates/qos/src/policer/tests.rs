use super::*;
use Colour::{Green, Red, Yellow};

fn single(cir: u64, cbs: u32, ebs: u32) -> Policer {
    Policer::new(Spec::new(Limit::SingleRate { cir: BitsPerSecond(cir), cbs, ebs }).unwrap())
}

fn two(cir: u64, cbs: u32, pir: u64, pbs: u32) -> Policer {
    let (cir, pir) = (BitsPerSecond(cir), BitsPerSecond(pir));
    Policer::new(Spec::new(Limit::TwoRate { cir, cbs, pir, pbs }).unwrap())
}

fn packets(rate: u64, burst: u32) -> Policer {
    Policer::new(Spec::new(Limit::Packets { rate: PacketsPerSecond(rate), burst }).unwrap())
}

const fn bytes(bytes: u32) -> Size {
    Size { bytes, frames: 1 }
}

const US: u64 = 1_000;
/// A rate of 8 Mbit/s, which is one byte per microsecond.
const BYTE_A_US: u64 = 8_000_000;

/// Tests an example of RFC 2697, section 3. In this test, the committed bucket and the excess
/// bucket start full. Earned tokens fill the committed bucket first, and then the excess bucket.
#[test]
fn single_rate_follows_rfc_2697() {
    let p = single(BYTE_A_US, 2_000, 1_000);
    assert_eq!([(); 4].map(|()| p.mark(bytes(1_000))), [Green, Green, Yellow, Red]);
    p.refill(Nanos(500 * US));
    assert_eq!(p.levels(), (500, 0), "the committed bucket first");
    assert_eq!((p.mark(bytes(500)), p.mark(bytes(1))), (Green, Red));
    p.refill(Nanos(2_500 * US));
    assert_eq!(p.levels(), (2_000, 0), "full to the byte");
    p.refill(Nanos(2_900 * US));
    assert_eq!(p.levels(), (2_000, 400), "and the overflow to the excess bucket");
    p.refill(Nanos(9_000 * US));
    assert_eq!(p.levels(), (2_000, 1_000), "both full: no more");
}

/// Tests the colour-aware mode of RFC 2697, section 3.
#[test]
fn single_rate_makes_no_frame_better() {
    let p = single(BYTE_A_US, 2_000, 1_000);
    assert_eq!(p.mark_aware(bytes(400), Yellow), Yellow);
    assert_eq!(p.levels(), (2_000, 600), "yellow is paid from the excess bucket");
    assert_eq!(p.mark_aware(bytes(400), Red), Red);
    assert_eq!(p.levels(), (2_000, 600), "red pays nothing");
    assert_eq!(p.mark_aware(bytes(601), Yellow), Red, "and yellow is not paid by the other");
    assert_eq!(p.mark_aware(bytes(2_000), Green), Green);
    assert_eq!(p.mark_aware(bytes(600), Green), Yellow);
}

/// Tests the rules of RFC 2698, section 3.
#[test]
fn two_rates_follow_rfc_2698() {
    let p = two(BYTE_A_US, 1_000, 3 * BYTE_A_US, 3_000);
    assert_eq!([(); 4].map(|()| p.mark(bytes(1_000))), [Green, Yellow, Yellow, Red]);
    assert_eq!(p.levels(), (0, 0), "green took from both, red from none");
    p.refill(Nanos(100 * US));
    assert_eq!(p.levels(), (100, 300));
    assert_eq!(p.mark(bytes(200)), Yellow, "a frame above CIR and below PIR");
    assert_eq!(p.mark(bytes(100)), Green);
    assert_eq!(p.mark(bytes(1)), Red);
    p.refill(Nanos(100_000 * US));
    assert_eq!(p.levels(), (1_000, 3_000));
}

#[test]
fn two_rates_make_no_frame_better() {
    let p = two(BYTE_A_US, 1_000, 3 * BYTE_A_US, 3_000);
    assert_eq!(p.mark_aware(bytes(500), Yellow), Yellow);
    assert_eq!(p.levels(), (1_000, 2_500), "yellow is paid from the peak bucket alone");
    assert_eq!(p.mark_aware(bytes(500), Red), Red);
    assert_eq!(p.levels(), (1_000, 2_500));
    assert_eq!(p.mark_aware(bytes(500), Green), Green);
    assert_eq!(p.levels(), (500, 2_000));
}

#[test]
fn a_limit_in_frames_ignores_their_length() {
    let p = packets(1_000, 4);
    let large = Size { bytes: 60_000, frames: 1 };
    let passed = (0..9).filter(|_| p.mark(large) == Green).count();
    assert_eq!(passed, 4);
    p.refill(Nanos(999_999));
    assert_eq!(p.mark(bytes(60)), Red, "a nanosecond early");
    p.refill(Nanos(1_000_000));
    assert_eq!(p.mark(bytes(60)), Green);
}

#[test]
fn a_large_segment_counts_as_the_frames_it_becomes() {
    let p = packets(1_000, 64);
    assert_eq!(p.mark(Size { bytes: 66_000, frames: 45 }), Green);
    assert_eq!(p.levels().0, 19);
    let p = Policer::new(*single(BYTE_A_US, 10_000, 0).spec());
    p.mark(Size { bytes: 3_000, frames: 2 });
    assert_eq!(p.levels().0, 7_000);
    let p = Policer::new(p.spec().per_frame(24));
    p.mark(Size { bytes: 3_000, frames: 2 });
    assert_eq!(p.levels().0, 6_952);
}

#[test]
fn a_full_bucket_passes_a_longer_frame_and_goes_into_debt() {
    let p = single(BYTE_A_US, 1_000, 0);
    assert_eq!(p.mark(bytes(60_000)), Green);
    assert_eq!(p.levels(), (-59_000, 0));
    p.refill(Nanos(59_999 * US));
    assert_eq!(p.mark(bytes(60_000)), Red);
    assert_eq!(p.mark(bytes(999)), Green, "what the level covers passes as ever");
    p.refill(Nanos(61_000 * US));
    assert_eq!(p.mark(bytes(60_000)), Green);
}

#[test]
fn a_bucket_of_depth_zero_passes_nothing() {
    let p = single(BYTE_A_US, 1_000, 0);
    assert_eq!((p.mark(bytes(1_000)), p.mark(bytes(1))), (Green, Red));
    let p = single(BYTE_A_US, 0, 1_000);
    assert_eq!((p.mark(bytes(1_000)), p.mark(bytes(1))), (Yellow, Red));
}

#[test]
fn hours_of_idling_earn_no_more_than_the_depth() {
    for rate in [RATE_MIN.0, 2_000_000_000, RATE_MAX.0] {
        for (cbs, ebs) in [(1_500, 0), (65_536, 65_536), (DEPTH_MAX, DEPTH_MAX)] {
            let p = single(rate, cbs, ebs);
            while p.mark(bytes(1_500)) != Red {
                p.all_green(bytes(1 << 20));
            }
            p.refill(Nanos::from_secs(1_000_000));
            p.refill(Nanos(u64::MAX - 1));
            assert_eq!(p.levels(), (i64::from(cbs), i64::from(ebs)), "{rate} {cbs} {ebs}");
        }
        let p = two(rate, 1_500, RATE_MAX.0, DEPTH_MAX);
        p.mark(bytes(1_000));
        p.refill(Nanos(u64::MAX));
        assert_eq!(p.levels(), (1_500, i64::from(DEPTH_MAX)));
    }
}

#[test]
fn frequent_refills_lose_no_fraction() {
    // At 8001 bit/s, a byte takes 999,875.0156... ns. If refills were rounded, refills every 7 ns
    // or 977 ns would lose tokens.
    let p = single(8_001, DEPTH_MAX, 0);
    p.all_green(bytes(DEPTH_MAX));
    assert_eq!(p.levels().0, 0);
    (1..=8_000_000_000 / 977).for_each(|n| p.refill(Nanos(n * 977)));
    p.refill(Nanos::from_secs(8));
    assert_eq!(p.levels().0, 8_001);
}

#[test]
fn a_clock_that_goes_back_earns_nothing() {
    let p = single(BYTE_A_US, 1_000, 0);
    p.refill(Nanos(5_000 * US));
    p.mark(bytes(1_000));
    p.refill(Nanos(4_000 * US));
    assert_eq!(p.levels().0, 0);
    p.refill(Nanos(5_001 * US));
    assert_eq!(p.levels().0, 1);
}

#[test]
fn a_batch_is_green_at_once_only_if_each_frame_would_be() {
    let p = two(BYTE_A_US, 1_000, 3 * BYTE_A_US, 3_000);
    assert!(!p.all_green(Size { bytes: 1_001, frames: 2 }));
    assert_eq!(p.levels(), (1_000, 3_000), "nothing is paid for");
    assert!(p.all_green(Size { bytes: 1_000, frames: 2 }));
    assert_eq!(p.levels(), (0, 2_000));
    let p = single(BYTE_A_US, 1_000, 1_000);
    assert!(!p.all_green(bytes(1_001)), "yellow is not green, and a batch is never owed");
}

#[test]
fn an_invalid_limit_is_refused_with_the_valid_range() {
    let rate = |cir, cbs, ebs| Spec::new(Limit::SingleRate { cir: BitsPerSecond(cir), cbs, ebs });
    let text = |error: Result<Spec, SpecError>| error.unwrap_err().to_string();
    assert_eq!(text(rate(7_999, 1, 1)), "rate 7999 is out of range; write 8k to 400G");
    assert_eq!(text(rate(8_000, 0, 0)), "a burst of 0 lets no frame pass; write at least 1514");
    assert!(text(rate(8_000, 1 << 30, 0)).starts_with("burst 1073741824 is too large"));
    let (cir, pir) = (BitsPerSecond(2_000_000), BitsPerSecond(1_000_000));
    let peak = Spec::new(Limit::TwoRate { cir, cbs: 1, pir, pbs: 1 });
    assert_eq!(text(peak), "peak rate 1M is below the committed rate 2M; write at least 2M");
    let none = Spec::new(Limit::Packets { rate: PacketsPerSecond(0), burst: 1 });
    assert_eq!(text(none), "0 frames per second is out of range; write 1 to 1G");
}

#[test]
fn a_default_depth_holds_large_segments_and_a_retransmission_timeout() {
    assert_eq!(default_depth(BitsPerSecond(1_000_000)), DEPTH_DEFAULT_MIN);
    assert_eq!(default_depth(BitsPerSecond(1_000_000_000)), 25_000_000);
    assert_eq!(default_depth(RATE_MAX), DEPTH_MAX);
    assert_eq!(default_frames(PacketsPerSecond(100)), FRAMES_DEFAULT_MIN);
    assert_eq!(default_frames(PacketsPerSecond(80_000)), 16_000);
    assert_eq!(default_frames(PACKETS_MAX), 200_000_000);
    for rate in [8_000, 1_000_000, 1_000_000_000, 400_000_000_000].map(BitsPerSecond) {
        let (least, default) = (segments_depth(rate), default_depth(rate));
        assert!(least <= default && least >= 2 * SEGMENT.bytes, "{rate}: {least} {default}");
    }
    assert_eq!(segments_depth(BitsPerSecond(1_000_000_000)), 12_500_000);
    assert_eq!(segments_frames(PacketsPerSecond(80_000)), 8_000);
}

/// Simulates a TCP sender with offloads and a short round trip. The simulated sender sends at ten
/// times the rate until a whole window is dropped, and then waits for a retransmission timeout.
#[test]
fn with_the_default_depth_a_stream_gets_its_rate_despite_timeouts() {
    let passed = |cbs: u32| {
        let rate = BitsPerSecond(1_000_000_000);
        let p = single(rate.0, cbs, 0);
        let (mut now, mut sent, mut lost) = (Nanos(0), 0_u64, 0);
        while now < Nanos::from_secs(10) {
            p.refill(now);
            if p.mark(SEGMENT) == Green {
                (sent, lost) = (sent + u64::from(SEGMENT.bytes), 0);
            } else {
                lost += 1;
            }
            // The window has eight segments.
            now += if lost < 8 { Nanos(56_000) } else { RETRANSMIT_MIN };
            lost %= 8;
        }
        // The bucket was full at first.
        (sent - u64::from(cbs).min(sent)) * 100 / (rate.0 / 8 * 10)
    };
    let (default, half, old) =
        (passed(default_depth(BitsPerSecond(1_000_000_000))), passed(12_500_000), passed(131_072));
    assert!((90..=100).contains(&default), "{default} %");
    assert!((45..90).contains(&half), "{half} %");
    assert!(old < 10, "{old} %");
}

#[test]
fn a_batch_has_the_frames_of_a_millisecond_but_at_least_one() {
    let waiting = |limit| Policer::new(Spec::new(limit).unwrap().waiting());
    let bits = |cir: u64| {
        let cir = BitsPerSecond(cir);
        waiting(Limit::SingleRate { cir, cbs: wait_depth(cir), ebs: 0 })
    };
    let of = |bytes: u32, count: usize| core::iter::repeat_n(Size { bytes, frames: 1 }, count);
    // A rate of 100 Mbit/s yields 12,500 bytes in a millisecond, and the depth is 50,000 bytes.
    let p = bits(100_000_000);
    assert_eq!(p.batch(32), 1, "an unknown sender may send large segments");
    for _ in 0..400 {
        p.refill(Nanos(p.at.load(Ordering::Relaxed) + 4_000_000));
        p.charge(of(2_500, 20));
    }
    assert_eq!((p.wait(), p.batch(32)), (Nanos(0), 5), "frames of 2,500 bytes");
    p.charge([SEGMENT].into_iter());
    assert_eq!(p.wait(), Nanos(u64::from(SEGMENT.bytes) * 80), "80 ns a byte");
    assert_eq!((p.batch(32), p.batch(1)), (1, 1), "a large segment");
    // Short frames after the segment do not make the sender's next segment a surprise.
    p.refill(Nanos(u64::MAX));
    p.charge(of(60, 5));
    assert!((3..=4).contains(&p.batch(32)), "{}", p.batch(32));
    let p = bits(10_000_000_000);
    p.charge(of(60, 32));
    assert_eq!(p.batch(32), 32);
    let p = waiting(Limit::Packets { rate: PacketsPerSecond(2_000), burst: 8 });
    p.charge(of(1_500, 8));
    assert_eq!((p.wait(), p.batch(32)), (Nanos(0), 1), "a segment of 46 frames may follow");
    p.charge(of(1_500, 2));
    assert_eq!(p.wait(), Nanos(1_000_000));
    let p = waiting(Limit::TwoRate {
        cir: BitsPerSecond(BYTE_A_US),
        cbs: 1_000,
        pir: BitsPerSecond(2 * BYTE_A_US),
        pbs: 2_000,
    });
    assert!(p.charge(of(1_000, 1)) && !p.charge(of(2_000, 1)), "green, then yellow");
    assert_eq!(p.wait(), Nanos(500 * US), "of the peak rate");
}
