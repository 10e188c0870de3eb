//! Tests of the check for ElasticSwitch and Trinity. ElasticSwitch and Trinity must guarantee
//! bandwidth in the tests, because QShare is compared with ElasticSwitch and Trinity.

use penstock_fabric::rate_alloc::RateSettings;
use penstock_sim::fabric::peers::{Check, candidates, check, passes};
use penstock_sim::fabric::{PairLimits, System};
use penstock_units::BitsPerSecond;

fn swept(system: fn(PairLimits) -> System) -> Vec<(PairLimits, Check)> {
    let one = |limits: PairLimits| (limits, check(|| system(limits)).unwrap());
    candidates().into_iter().map(one).collect()
}

#[test]
fn every_setting_uses_a_spare_link_and_only_some_hold_guarantees() {
    for (name, system) in [
        ("ElasticSwitch", System::ElasticSwitch as fn(PairLimits) -> System),
        ("Trinity", System::Trinity),
    ] {
        let swept = swept(system);
        let held = swept.iter().filter(|(_, check)| check.holds()).count();
        assert!(held >= 10 && held < swept.len(), "{name}: {held} of {}", swept.len());
        assert!(swept.iter().all(|(_, check)| check.spare >= 0.9), "{name}");
        for (limits, check) in swept.iter().step_by(9) {
            assert_eq!(passes(|| system(*limits)).unwrap(), check.holds(), "{name}: {limits:?}");
        }
    }
}

#[test]
fn fast_growth_without_hold_or_head_room_breaks_guarantees_unless_there_are_two_priorities() {
    let fast = |limits: &PairLimits| {
        limits.rates.step >= BitsPerSecond(200_000_000)
            && limits.rates.hold.0 == 0
            && limits.rates.head_room == 0
    };
    let fast: Vec<_> = candidates().into_iter().filter(fast).collect();
    assert!(!fast.is_empty());
    for limits in fast {
        let one = check(|| System::ElasticSwitch(limits)).unwrap();
        let two = check(|| System::Trinity(limits)).unwrap();
        assert!(one.guarantee < 0.6, "{limits:?}: {one:?}");
        assert!(two.guarantee >= 0.99 && two.bursts >= 0.99, "{limits:?}: {two:?}");
    }
}

#[test]
fn systems_without_guarantees_or_work_conservation_fail_the_check() {
    let tcp = check(|| System::PlainTcp).unwrap();
    assert!(tcp.guarantee < 0.1 && tcp.spare >= 0.99, "{tcp:?}");
    let fixed = check(|| System::StaticReservation).unwrap();
    assert!(fixed.guarantee >= 0.999 && fixed.spare < 0.5, "{fixed:?}");
}

#[test]
fn the_checks_numbers_are_pinned_for_the_proposed_setting() {
    let rates = RateSettings::cautious(BitsPerSecond(1_000_000_000));
    let limits =
        PairLimits { rates, partition: rates.period, slack: 100_000, forget: rates.period };
    let found = check(|| System::ElasticSwitch(limits)).unwrap();
    // The system protects the guarantee of a steady flow. It needs one or two periods to make room
    // for a burst.
    assert!((1.15..1.30).contains(&found.guarantee), "{found:?}");
    assert!((0.85..0.95).contains(&found.bursts) && found.spare >= 0.99, "{found:?}");
}
