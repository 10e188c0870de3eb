use super::*;

const RATES: [u64; 8] = [
    256_000,
    2_000_000,
    4_000_000,
    19_999_999,
    20_000_000,
    200_000_000,
    2_000_000_000,
    10_000_000_000,
];

fn smooth(rate: u64) -> Smooth {
    Smooth::new(BitsPerSecond(rate)).unwrap()
}

/// Shapes the frames of a VM for `secs` seconds in which a frame always waits, and returns the
/// departures of the frames.
fn backlogged(smooth: &mut Smooth, bytes: u32, secs: u64) -> Vec<(Nanos, u32)> {
    let mut sent = Vec::new();
    loop {
        let at = smooth.depart(Nanos(0), bytes);
        if at > Nanos::from_secs(secs) {
            return sent;
        }
        sent.push((at, bytes));
    }
}

/// Returns the mean rate of the departures between the times `from` and `to`, as a multiple of
/// `rate`.
fn rate_in(sent: &[(Nanos, u32)], from: u64, to: u64, rate: u64) -> f64 {
    let within = sent.iter().filter(|s| s.0 >= Nanos(from) && s.0 < Nanos(to));
    let bytes: u64 = within.map(|s| u64::from(s.1)).sum();
    #[expect(clippy::cast_precision_loss, reason = "a test")]
    let (bits, ns) = (bytes as f64 * 8e9, (to - from) as f64);
    #[expect(clippy::cast_precision_loss, reason = "a test")]
    let rate = rate as f64;
    bits / ns / rate
}

const SEC: u64 = 1_000_000_000;

#[test]
fn frames_at_2_mbit_s_are_six_milliseconds_apart() {
    let mut smooth = smooth(2_000_000);
    let sent = backlogged(&mut smooth, 1_500, 10);
    for pair in sent.windows(2) {
        assert!((pair[1].0.0 - pair[0].0.0).abs_diff(6_000_000) < 60_000, "{pair:?}");
    }
    let Window { low, centre, high } = smooth.window();
    for (got, want) in [(low, 3_000.0), (centre, 4_000.0), (high, 5_000.0)] {
        assert!((got / want - 1.0).abs() < 0.01, "{got} is not {want}");
    }
}

#[test]
fn the_mean_is_the_rate_at_any_rate_and_size() {
    for rate in RATES {
        for bytes in [64, 700, 1_514, 9_014, 65_000] {
            if u64::from(bytes) * 8 * 1_000 > rate * 130 {
                continue;
            }
            let secs = if rate > 1_000_000_000 && bytes < 1_000 { 2 } else { 10 };
            let sent = backlogged(&mut smooth(rate).frames_up_to(bytes), bytes, secs);
            let got = rate_in(&sent, SEC, secs * SEC, rate);
            assert!((got - 1.0).abs() < 0.005, "{rate} bit/s, {bytes} B: {got}");
        }
    }
}

#[test]
fn departures_have_the_rate_from_the_third_interval_after_a_step_by_four() {
    for rate in [256_000, 2_000_000, 2_000_000_000] {
        for factor in [4.0, 0.25] {
            let mut smooth = smooth(rate).off_by(factor);
            let sent = backlogged(&mut smooth, 1_514, 8);
            let first = rate_in(&sent, 0, SEC, rate);
            assert!(factor < 1.0 || first < 0.5, "{rate} x {factor}: {first} is no step");
            for k in 2..8 {
                let got = rate_in(&sent, k * SEC, (k + 1) * SEC, rate);
                // A second is not a whole number of frames.
                #[expect(clippy::cast_precision_loss, reason = "a test")]
                let frame = 1_514.0 * 8.0 / rate as f64;
                assert!((got - 1.0).abs() < 0.01 + frame, "{rate} x {factor}, {k}: {got}");
            }
            let middle = smooth.window().centre / due(BitsPerSecond(rate));
            assert!((middle - 1.0).abs() < 0.02, "{rate} x {factor}: {middle}");
        }
    }
}

/// Shapes batches of frames of the given lengths for `secs` seconds, and returns the departures.
/// Each batch arrives `pause` after the last departure of the batch before.
fn in_batches(smooth: &mut Smooth, batch: &[u32], pause: Nanos, secs: u64) -> Vec<(Nanos, u32)> {
    let (mut sent, mut arrival) = (Vec::new(), Nanos(0));
    loop {
        let mut last = arrival;
        for bytes in batch {
            last = smooth.depart(arrival, *bytes);
            if last > Nanos::from_secs(secs) {
                return sent;
            }
            sent.push((last, *bytes));
        }
        arrival = last + pause;
    }
}

#[test]
fn frames_that_arrive_late_get_the_rate() {
    let same: &[u32] = &[1_514; 12];
    let mixed: &[u32] = &[1_514_u32, 900, 1_514, 400].repeat(4);
    let senders =
        [(2_000_000, same, 28_000), (2_000_000, mixed, 24_000), (20_000_000, same, 2_800)];
    for (rate, batch, pause) in senders {
        for factor in [1.0, 4.0, 0.25] {
            let mut smooth = smooth(rate).off_by(factor);
            let sent = in_batches(&mut smooth, batch, Nanos::from_micros(pause), 8);
            // With a window that stays at the nominal spacing, these senders lose 3 to 8 %.
            let got = rate_in(&sent, 2 * SEC, 8 * SEC, rate);
            assert!((got - 1.0).abs() < 0.01, "{rate} x {factor}: {got}");
            let (window, due) = (smooth.window(), due(BitsPerSecond(rate)));
            assert!(window.low < due && window.high > 0.999 * due, "{window:?}");
        }
    }
}

#[test]
fn a_vm_that_sends_little_moves_the_window_no_further_than_its_rate() {
    let rate = 2_000_000;
    let mut smooth = smooth(rate);
    // The VM sends at most six tenths of the rate, whatever the spacing is.
    let sent = in_batches(&mut smooth, &[1_514; 4], Nanos::from_millis(30), 10);
    let got = rate_in(&sent, 2 * SEC, 10 * SEC, rate);
    assert!((0.4..0.7).contains(&got), "{got}");
    let due = due(BitsPerSecond(rate));
    let high = smooth.window().high / due;
    assert!((high - 1.0).abs() < 0.01, "{high}");
    // The VM begins to send more.
    let sent = backlogged(&mut smooth, 1_514, 20);
    let from = sent[0].0.0;
    let got = rate_in(&sent, from + 2 * SEC, from + 8 * SEC, rate);
    assert!((got - 1.0).abs() < 0.01, "{got}");
    let centre = smooth.window().centre / due;
    assert!((centre - 1.0).abs() < 0.02, "{centre}");
}

#[test]
fn the_window_does_not_depend_on_the_lengths_of_frames() {
    for lengths in [&[1_514_u32, 64][..], &[64, 64, 64, 1_514], &[300, 1_500, 700]] {
        let mut smooth = smooth(2_000_000);
        let before = smooth.window();
        for bytes in lengths.iter().cycle().take(4_000) {
            smooth.depart(Nanos(0), *bytes);
        }
        assert!(smooth.intervals() >= 5);
        let moved = smooth.window().centre / before.centre;
        assert!((moved - 1.0).abs() < 1e-6, "{lengths:?}: {moved}");
    }
}

#[test]
fn a_change_of_the_rate_takes_effect_at_once() {
    let mut smooth = smooth(2_000_000);
    let _ = backlogged(&mut smooth, 1_514, 5);
    smooth.set_rate(BitsPerSecond(32_000_000)).unwrap();
    let sent = backlogged(&mut smooth, 1_514, 10);
    let from = sent[0].0.0;
    let got = rate_in(&sent, from, from + SEC / 2, 32_000_000);
    assert!((got - 1.0).abs() < 0.02, "{got}");
    assert!(smooth.set_rate(BitsPerSecond(1)).is_err());
    assert_eq!(smooth.rate(), BitsPerSecond(32_000_000));
}

#[test]
fn frames_slower_than_the_rate_do_not_wait() {
    let mut smooth = smooth(8_000_000);
    // 1,000 bytes take 1 ms, and one frame arrives every 1.5 ms.
    let late = (0..10_000_u64)
        .map(|n| n * 1_500_000)
        .filter(|at| smooth.depart(Nanos(*at), 1_000) > Nanos(*at));
    assert_eq!(late.count(), 0);
}

#[test]
fn an_idle_minute_earns_no_more_than_the_depth() {
    let mut smooth = smooth(8_000_000);
    let from = 60 * SEC;
    let mut passed = 0;
    while smooth.depart(Nanos(from), 1_000) <= Nanos(from + SEC) {
        passed += 1_000;
    }
    // The bound is 50 ms and a second, at a byte per microsecond.
    assert!((1_000_000..=1_050_000).contains(&passed), "{passed}");
}

#[test]
fn a_narrow_window_spaces_evenly_and_a_short_interval_corrects_sooner() {
    let rate = BitsPerSecond(2_000_000);
    let spacing = |smoothing: Smoothing| {
        let mut smooth = Smooth::new(rate).unwrap().smoothed(smoothing);
        let window = smooth.window();
        // Frames always wait, and every third frame is short, so the credit varies.
        let mut departures = Vec::new();
        for n in 0..600 {
            departures.push(smooth.depart(Nanos(0), if n % 3 == 0 { 300 } else { 1_500 }));
        }
        (window, departures, smooth.intervals())
    };
    let narrow = Smoothing { width: Nanos::from_micros(100), interval: Nanos::from_millis(100) };
    let (wide_window, wide, seconds) = spacing(Smoothing::DEFAULT);
    let (window, even, tenths) = spacing(narrow);
    let width = |window: Window| (window.high - window.low) * REFERENCE;
    assert!((width(window) - 100_000.0).abs() < 1.0, "{window:?}");
    assert!((width(wide_window) - 3_000_000.0).abs() < 1.0, "{wide_window:?}");
    // The frames take 2.6 s.
    assert_eq!((seconds, tenths), (2, 26));
    for times in [wide, even] {
        let mean = 8.0 * 660_000.0 / (times[599].0 as f64 / 1e9);
        assert!((0.97..1.05).contains(&(mean / 2e6)), "{mean}");
    }
}
