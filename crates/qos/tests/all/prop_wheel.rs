//! Compares the timing wheel with a list of entries. For any sequence of calls, every armed entry
//! fires exactly once, never early and at most one slot late.

use std::collections::BTreeMap;

use penstock_qos::wheel::Wheel;
use penstock_units::Nanos;
use proptest::prelude::*;

const ENTRIES: usize = 12;

#[derive(Clone, Debug)]
enum Event {
    Arm(usize, u64),
    Cancel(usize),
    Pass(u64),
    /// The test's clock advances to the next event of the wheel (`Wheel::next_event`).
    Jump,
}

/// Returns random offsets from the present time: below a slot, some slots, around and beyond the
/// horizon, and negative.
fn ahead() -> impl Strategy<Value = u64> {
    let horizon = Wheel::HORIZON.0;
    prop_oneof![
        3 => 0..3 * Wheel::SLOT.0,
        4 => 0..horizon,
        2 => horizon - 3 * Wheel::SLOT.0..horizon + 3 * Wheel::SLOT.0,
        1 => 0..20 * horizon,
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..ENTRIES, ahead()).prop_map(|(entry, at)| Event::Arm(entry, at)),
        1 => (0..ENTRIES).prop_map(Event::Cancel),
        3 => ahead().prop_map(Event::Pass),
        3 => Just(Event::Jump),
    ]
}

fn fire(
    wheel: &mut Wheel,
    model: &mut BTreeMap<usize, u64>,
    now: u64,
) -> Result<(), TestCaseError> {
    let mut last = 0;
    while let Some((entry, at)) = wheel.expire(Nanos(now)) {
        prop_assert_eq!(model.remove(&entry), Some(at.0), "it was armed for that");
        prop_assert!(at.0 <= now, "{} fired at {}", at.0, now);
        prop_assert!(at.0 >> 11 >= last, "slots in their order");
        last = at.0 >> 11;
    }
    for (entry, at) in &*model {
        prop_assert!(at + Wheel::SLOT.0 > now, "{entry}, {at}, is still there at {now}");
    }
    prop_assert_eq!(wheel.len() as usize, model.len());
    Ok(())
}

proptest! {
    #[test]
    fn no_entry_fires_early_or_late_or_gets_lost(
        start in prop_oneof![Just(0), 0..1_u64 << 60],
        events in prop::collection::vec(event(), 1..200),
    ) {
        let mut now = start;
        let mut wheel = Wheel::new(ENTRIES, Nanos(now));
        let mut model = BTreeMap::new();
        for event in events {
            match event {
                Event::Arm(entry, ahead) => {
                    wheel.arm(entry, Nanos(now + ahead));
                    model.insert(entry, now + ahead);
                }
                Event::Cancel(entry) => {
                    let was = wheel.cancel(entry).map(|at| at.0);
                    prop_assert_eq!(was, model.remove(&entry));
                }
                Event::Pass(time) => {
                    now += time;
                    fire(&mut wheel, &mut model, now)?;
                }
                Event::Jump => {
                    let Some(next) = wheel.next_event() else {
                        prop_assert!(model.is_empty());
                        continue;
                    };
                    // Before the time that the wheel returns, no entry is due.
                    let before = next.0.saturating_sub(1).max(now);
                    prop_assert_eq!(wheel.expire(Nanos(before)), None);
                    now = now.max(next.0);
                    fire(&mut wheel, &mut model, now)?;
                }
            }
        }
        fire(&mut wheel, &mut model, now + 40 * Wheel::HORIZON.0)?;
        prop_assert!(model.is_empty() && wheel.is_empty());
    }
}
