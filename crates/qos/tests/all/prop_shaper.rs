//! Tests the invariants of shapers for any traffic: the order of frames, the bound on departures,
//! and the window of `smooth`.

use penstock_qos::shaper::{FRAME, PERIOD_OF_XEN, Shaper, Smooth, Smoothing, TokenBucket};
use penstock_units::{BitsPerSecond, Nanos};
use proptest::prelude::*;

fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![256_000..2_000_000_u64, 2_000_000..200_000_000_u64, 200_000_000..10_000_000_000_u64]
}

fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![8 => Just(0), 4 => 0..2_000_000_u64, 1 => 0..2_000_000_000_u64,
        1 => 0..100_000_000_000_u64]
}

fn frame() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(64_u32), 3 => Just(FRAME), 3 => 64..FRAME, 1 => 64..=65_536_u32]
}

/// Shapes frames with the given arrivals and lengths. Returns the arrival time, departure time and
/// length of each frame.
fn run(shaper: &mut Shaper, frames: &[(u64, u32)]) -> Vec<(u64, u64, u32)> {
    let mut now = 0;
    let mut one = |(gap, bytes): &(u64, u32)| {
        now += gap;
        (now, shaper.depart(Nanos(now), *bytes).0, *bytes)
    };
    frames.iter().map(&mut one).collect()
}

/// Checks that the frames depart in order. Checks that at most `depth` bytes plus the bytes that
/// the rate yields depart in every time window.
fn bounded(sent: &[(u64, u64, u32)], rate: u64, depth: u64) -> Result<(), TestCaseError> {
    for (came, went, _) in sent {
        prop_assert!(went >= came);
    }
    prop_assert!(sent.is_sorted_by_key(|(_, went, _)| *went));
    for (first, (_, start, _)) in sent.iter().enumerate() {
        let mut bytes = 0_u128;
        for (_, went, of) in &sent[first..] {
            bytes += u128::from(*of);
            let brought = u128::from(rate) * u128::from(went - start);
            let bound = u128::from(depth) * 8_000_000_000 + brought;
            prop_assert!(bytes * 8_000_000_000 <= bound, "{bytes} in {}", went - start);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn smooth_never_lets_more_than_its_depth_and_the_rate_depart(
        rate in rate(), off in 0.25..4.0_f64,
        frames in prop::collection::vec((gap(), frame()), 1..200),
    ) {
        let smooth = Smooth::new(BitsPerSecond(rate)).unwrap().off_by(off);
        let depth = u64::try_from(smooth.depth()).unwrap();
        let longest = frames.iter().map(|(_, bytes)| u64::from(*bytes)).max().unwrap();
        let sent = run(&mut Shaper::Smooth(smooth), &frames);
        bounded(&sent, rate, 1 + depth.max(longest))?;
    }

    #[test]
    fn a_token_bucket_never_lets_more_than_its_depth_and_the_rate_depart(
        rate in rate(), period in 1_000..PERIOD_OF_XEN.0 * 2,
        frames in prop::collection::vec((gap(), frame()), 1..200),
    ) {
        let bucket = TokenBucket::new(BitsPerSecond(rate), Nanos(period)).unwrap();
        let worth = rate * period / 8_000_000_000 + 1;
        let longest = frames.iter().map(|(_, bytes)| u64::from(*bytes)).max().unwrap();
        let sent = run(&mut Shaper::TokenBucket(bucket), &frames);
        // The bound is the bucket's depth plus the tokens of one more period than the window has.
        let depth = worth + u64::from(FRAME);
        bounded(&sent, rate, depth.max(longest) + worth)?;
    }

    /// In this test, a VM always has a frame, and the shaper starts with an arbitrary window. Tests
    /// that, after ten seconds, the spacing of all groups is in the window and the mean rate is the
    /// configured rate.
    #[test]
    fn spacing_stays_in_the_window_in_steady_state(
        rate in 256_000..20_000_000_u64, off in 0.25..4.0_f64, seed in any::<u64>(),
        shortest in 64..=FRAME,
    ) {
        let mut smooth = Smooth::new(BitsPerSecond(rate)).unwrap().off_by(off);
        let mut lengths = seed;
        let mut length = || {
            lengths = lengths.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shortest + u32::try_from((lengths >> 33) % u64::from(FRAME - shortest + 1)).unwrap()
        };
        let (mut last, mut before) = (Nanos(0), 0);
        let (settled, until) = (Nanos::from_secs(10), Nanos::from_secs(20));
        let mut sent = 0_u64;
        while last < until {
            let bytes = length();
            let departs = smooth.depart(Nanos(0), bytes);
            let window = smooth.window();
            if last >= settled {
                let spacing = (departs.0 - last.0) as f64;
                let (low, high) = (window.low * f64::from(before), window.high * f64::from(before));
                prop_assert!(spacing + 1.0 >= low && spacing - 1.0 <= high,
                    "{spacing} is not in {low} to {high}");
                sent += u64::from(bytes);
            }
            (last, before) = (departs, bytes);
        }
        let due = rate as f64 / 8.0 * 10.0;
        let off = (sent as f64 - due).abs();
        prop_assert!(off <= due * 0.01 + 2.0 * f64::from(FRAME), "{sent} of {due}");
    }

    /// Tests that the window always contains the spacing that yields the rate, for any traffic. In
    /// this test, the window at the start is arbitrary, and the VM is idle for ten seconds first.
    #[test]
    fn the_window_contains_the_spacing_that_yields_the_rate(
        rate in rate(), off in 0.25..4.0_f64, interval in 10_000_000..2_000_000_000_u64,
        frames in prop::collection::vec((gap(), 64..=FRAME), 1..200),
    ) {
        let smoothing = Smoothing { interval: Nanos(interval), ..Smoothing::DEFAULT };
        let smooth = Smooth::new(BitsPerSecond(rate)).unwrap().smoothed(smoothing);
        let mut smooth = smooth.off_by(off);
        smooth.depart(Nanos(0), FRAME);
        let mut now = Nanos::from_secs(10);
        let nominal = 8e9 / rate as f64;
        for (gap, bytes) in frames {
            now += Nanos(gap);
            smooth.depart(now, bytes);
            let window = smooth.window();
            prop_assert!(window.low <= 1.001 * nominal, "{window:?}, {nominal}");
            prop_assert!(window.high >= 0.99 * nominal, "{window:?}, {nominal}");
        }
    }

    /// Tests that frames depart in groups at high rates. Tests that the spacing of all groups is in
    /// the window, and that the mean rate is the configured rate.
    #[test]
    fn groups_are_spaced_where_frames_are_too_short_for_it(
        rate in 20_000_000..1_000_000_000_u64, seed in any::<u64>(),
    ) {
        let mut smooth = Smooth::new(BitsPerSecond(rate)).unwrap();
        let mut lengths = seed;
        let mut length = || {
            lengths = lengths.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            64 + u32::try_from((lengths >> 33) % 1_451).unwrap()
        };
        let (mut last, mut group, mut sent) = (Nanos(0), 0_u32, 0_u64);
        while last < Nanos::from_secs(2) {
            let bytes = length();
            let departs = smooth.depart(Nanos(0), bytes);
            let window = smooth.window();
            if departs > last && last > Nanos(0) {
                let spacing = (departs.0 - last.0) as f64;
                let (low, high) = (window.low * f64::from(group), window.high * f64::from(group));
                prop_assert!(spacing + 1.0 >= low && spacing - 1.0 <= high,
                    "{spacing} is not in {low} to {high}, {group} B");
            }
            group = if departs > last { bytes } else { group + bytes };
            sent += u64::from(bytes);
            last = departs;
        }
        let due = rate as f64 / 8.0 * last.0 as f64 / 1e9;
        prop_assert!((sent as f64 / due - 1.0).abs() < 0.03, "{sent} of {due}");
    }
}
