//! Tests the invariants of the NIC-bottleneck handler under any load.

use penstock_qos::bottleneck::{Bottleneck, Change, Hysteresis, Sent, limits};
use penstock_units::{BitsPerSecond, Nanos};
use proptest::prelude::*;

const LINK: BitsPerSecond = BitsPerSecond(10_000_000_000);

/// Returns a random load: the time to the next reading in ms, and the sent and held-back traffic in
/// thousandths of the link's rate.
fn load() -> impl Strategy<Value = (u64, u64, u64)> {
    let sent = prop_oneof![0..=1_000_u64, 960..=1_000_u64, 800..=860_u64];
    (20..400_u64, sent, prop_oneof![4 => Just(0_u64), 1 => 0..2_000_u64])
}

proptest! {
    #[test]
    fn changes_alternate_and_respect_their_minimum_times(
        loads in prop::collection::vec(load(), 1..600),
    ) {
        let mut handler = Bottleneck::new(LINK);
        let Hysteresis { enter_after, hold, .. } = Hysteresis::default();
        let (mut now, mut sent) = (0, Sent::default());
        handler.observe(Nanos(0), sent);
        let mut last: Option<(Change, u64)> = None;
        for (ms, part, held) in loads {
            now += ms;
            sent.bytes += part * ms * 1_250;
            sent.held_back += held * ms * 1_250;
            let Some(change) = handler.observe(Nanos::from_millis(now), sent) else { continue };
            prop_assert_eq!(handler.is_limited(), change == Change::Enter);
            match (last, change) {
                (None, Change::Enter) => {}
                (Some((Change::Enter, at)), Change::Leave) => {
                    prop_assert!(Nanos::from_millis(now - at) >= hold);
                }
                (Some((Change::Leave, at)), Change::Enter) => {
                    prop_assert!(Nanos::from_millis(now - at) >= enter_after);
                }
                other => prop_assert!(false, "{other:?}"),
            }
            last = Some((change, now));
        }
    }

    #[test]
    fn a_saturated_link_is_detected_within_300_ms_of_steady_readings(
        before in prop::collection::vec(0..969_u64, 0..50), offset in 0..100_u64,
    ) {
        let mut handler = Bottleneck::new(LINK);
        let (mut now, mut sent) = (0, Sent::default());
        handler.observe(Nanos(0), sent);
        for part in before {
            now += 100;
            sent.bytes += part * 125_000;
            prop_assert_eq!(handler.observe(Nanos::from_millis(now), sent), None);
        }
        // The link reaches full load at some time within an interval.
        let full_from = now + offset;
        sent.bytes += (100 - offset) * 1_250_000;
        now += 100;
        let mut found = handler.observe(Nanos::from_millis(now), sent);
        while found.is_none() {
            now += 100;
            sent.bytes += 125_000_000;
            found = handler.observe(Nanos::from_millis(now), sent);
        }
        prop_assert_eq!(found, Some(Change::Enter));
        prop_assert!(now - full_from <= 300, "{} ms", now - full_from);
    }

    #[test]
    fn limits_never_exceed_the_link_and_nobody_gets_nothing(
        link in 1_000_000_u64..400_000_000_000,
        bought in prop::collection::vec(prop::option::of(1_000_u64..100_000_000_000), 1..60),
    ) {
        let bought: Vec<_> = bought.into_iter().map(|rate| rate.map(BitsPerSecond)).collect();
        let parts = limits(BitsPerSecond(link), &bought);
        let sum: u128 = parts.iter().map(|rate| u128::from(rate.0)).sum();
        prop_assert!(sum <= u128::from(link) * 99 / 100);
        // The limits add up to the whole capacity for limits, except for rounding.
        prop_assert!(sum + parts.len() as u128 + 1 >= u128::from(link) * 99 / 100);
        for (bought, part) in bought.iter().zip(&parts) {
            prop_assert!(bought.is_some() || part.0 > 0);
        }
        // If the purchases fit into the link, a VM gets its purchased rate. One hundredth of the
        // link is subtracted for each VM without a purchase.
        let sold: u128 = bought.iter().flatten().map(|rate| u128::from(rate.0)).sum();
        if sold <= u128::from(link) * 99 / 100 && bought.iter().all(Option::is_some) {
            for (bought, part) in bought.iter().flatten().zip(&parts) {
                prop_assert!(part.0 >= bought.0);
            }
        }
    }
}
