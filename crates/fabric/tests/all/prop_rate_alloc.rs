//! Tests the invariants of rate allocation for any measurements and signals: guarantees, bounds and
//! steady states.

use penstock_fabric::rate_alloc::seawall::RATE_MIN;
use penstock_fabric::rate_alloc::{
    PairRate, RateSettings, SeawallRate, Signal, UNLIMITED, WHOLE, partition,
};
use penstock_units::{BitsPerSecond, Nanos, Weight};
use proptest::prelude::*;

const MBIT: u64 = 1_000_000;
const NIC: BitsPerSecond = BitsPerSecond(10_000 * MBIT);

fn want() -> impl Strategy<Value = BitsPerSecond> {
    prop_oneof![
        1 => Just(BitsPerSecond(0)),
        2 => Just(UNLIMITED),
        6 => (0..2_000 * MBIT).prop_map(BitsPerSecond),
    ]
}

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        4 => Just(Signal::Lost(0)),
        2 => (0..=2 * WHOLE).prop_map(Signal::Lost),
        2 => (0..=2 * WHOLE).prop_map(Signal::Marked),
    ]
}

fn settings() -> impl Strategy<Value = RateSettings> {
    let numbers = (1..500 * MBIT, 0..=WHOLE, 0..100_u32, 0..500_u64);
    (numbers, any::<bool>()).prop_map(|((step, cut, loss_gain, hold), caution)| RateSettings {
        step: BitsPerSecond(step),
        cut,
        loss_gain,
        hold: Nanos::from_millis(hold),
        caution,
        ..RateSettings::cautious(NIC)
    })
}

/// Fraction of frames, in parts per million, that a link of `capacity` loses at a load of
/// `offered`.
fn lost(offered: u64, capacity: u64) -> u32 {
    let above = u128::from(offered.saturating_sub(capacity));
    u32::try_from(above * 1_000_000 / u128::from(offered.max(1))).unwrap()
}

proptest! {
    #[test]
    fn parts_never_sum_to_more_than_the_hose_and_no_pair_loses_its_equal_part(
        hose in 0..20_000 * MBIT, wants in prop::collection::vec(want(), 0..40),
    ) {
        let hose = BitsPerSecond(hose);
        let mut parts = Vec::new();
        partition::fill(hose, &wants, &mut parts);
        let sum: u64 = parts.iter().map(|part| part.0).sum();
        prop_assert!(sum <= hose.0);
        let pairs = u64::try_from(wants.len()).unwrap();
        // Results are rounded down twice, by less than 1 bit/s per pair each time.
        prop_assert!(wants.is_empty() || sum + 2 * pairs >= hose.0, "{sum} of {}", hose.0);
        let equal = partition::equal(hose, wants.len());
        for (part, want) in parts.iter().zip(&wants) {
            prop_assert!(*part >= (*want).min(equal), "{part} for {want} of {hose}");
        }
    }

    #[test]
    fn the_guarantees_of_a_vms_pairs_fit_into_its_hose_whatever_the_other_sides_report(
        hose in 1..20_000 * MBIT, pairs in prop::collection::vec((want(), want()), 1..40),
    ) {
        let mut parts = Vec::new();
        let wants: Vec<_> = pairs.iter().map(|(want, other)| *want.min(other)).collect();
        partition::fill(BitsPerSecond(hose), &wants, &mut parts);
        let sides = parts.iter().zip(&pairs);
        let guarantees = sides.map(|(mine, (_, other))| partition::pair(*mine, *other));
        prop_assert!(guarantees.map(|g| g.0).sum::<u64>() <= hose);
    }

    #[test]
    fn a_pair_is_never_below_its_guarantee_nor_above_its_interface(
        settings in settings(),
        steps in prop::collection::vec((signal(), prop::option::of(0..20_000 * MBIT)), 1..200),
    ) {
        let mut pair = PairRate::new(BitsPerSecond(50 * MBIT), &settings);
        let mut now = Nanos(0);
        for (signal, guarantee) in steps {
            if let Some(guarantee) = guarantee {
                pair.set_guarantee(BitsPerSecond(guarantee), &settings);
                prop_assert_eq!(pair.guarantee(), BitsPerSecond(guarantee).min(NIC));
            }
            let before = pair.rate();
            let rate = pair.period_ends(now, signal, &settings);
            prop_assert!(rate >= pair.guarantee() && rate <= NIC);
            if let Signal::Lost(share) | Signal::Marked(share) = signal && share > 0 {
                prop_assert!(rate <= before, "grew from {before} to {rate} on {signal:?}");
            }
            now += settings.period;
        }
    }

    #[test]
    fn a_tunnel_without_guarantee_stays_between_its_floor_and_its_interface(
        settings in settings(), weight in 1..=10_000_u64,
        signals in prop::collection::vec(prop_oneof![Just(0), 0..=2 * WHOLE], 1..200),
    ) {
        let mut tunnel = SeawallRate::new(Weight::new(weight).unwrap(), &settings);
        for lost in signals {
            let rate = tunnel.period_ends(lost, &settings);
            prop_assert!(rate >= RATE_MIN && rate <= NIC);
        }
    }

    #[test]
    fn pairs_of_one_link_use_it_and_share_what_is_spare_by_their_guarantees(
        parts in prop::collection::vec(10..100_u64, 2..8), step in 2..40_u64,
        caution in any::<bool>(),
    ) {
        let settings = RateSettings {
            step: BitsPerSecond(step * MBIT), caution, hold: Nanos(0),
            ..RateSettings::cautious(NIC)
        };
        // The guarantees fill a third of a link of 1 Gbit/s.
        let all: u64 = parts.iter().sum();
        let guarantee = |part: &u64| BitsPerSecond(part * 333 * MBIT / all);
        let mut pairs: Vec<_> =
            parts.iter().map(|part| PairRate::new(guarantee(part), &settings)).collect();
        let mut sums = vec![0_u64; pairs.len()];
        let (settle, look) = (6000_u64, 2000_u64);
        for period in 0..settle + look {
            let offered = pairs.iter().map(|pair| pair.rate().0).sum();
            let signal = Signal::Lost(lost(offered, 1000 * MBIT));
            let now = Nanos::from_millis(50 * period);
            for (pair, sum) in pairs.iter_mut().zip(&mut sums) {
                let rate = pair.period_ends(now, signal, &settings);
                *sum += if period >= settle { rate.0 } else { 0 };
            }
        }
        let mean: u64 = sums.iter().map(|sum| sum / look).sum();
        prop_assert!((850 * MBIT..1150 * MBIT).contains(&mean), "{mean} on average");
        // A pair gets three times its guarantee.
        for (sum, part) in sums.iter().zip(&parts) {
            let (got, due) = (sum / look, 3 * guarantee(part).0);
            prop_assert!((due * 7 / 10..=due * 14 / 10).contains(&got), "{got} of {due}");
        }
    }
}
