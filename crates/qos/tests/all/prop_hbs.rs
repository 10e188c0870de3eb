//! Tests the invariants of the batch scheduler HBS under any order of events. No unit (queue pair)
//! is lost, no class runs before an earlier class, and every unit gets its turn.

use penstock_qos::hbs::{BatchScheduler, DEMOTE_AFTER, Readiness};
use penstock_units::Priority;
use proptest::prelude::*;

const SLOTS: usize = 10;

#[derive(Clone, Debug)]
enum Event {
    Add(usize, u64),
    Remove(usize),
    Class(usize, u64),
    /// The scheduler makes a decision for one batch. Bit n of the number is set if unit n has
    /// frames.
    Decide(u16),
    /// The scheduler makes a decision for one batch, and the batch uses all tokens of the unit's
    /// port.
    Exhaust(u16),
    Hold(usize),
    Release(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let (slot, class) = (0..SLOTS, 1..=8_u64);
    prop_oneof![
        2 => (slot.clone(), class.clone()).prop_map(|(s, c)| Event::Add(s, c)),
        1 => slot.clone().prop_map(Event::Remove),
        1 => (slot.clone(), class).prop_map(|(s, c)| Event::Class(s, c)),
        4 => any::<u16>().prop_map(Event::Decide),
        3 => any::<u16>().prop_map(Event::Exhaust),
        1 => slot.prop_map(Event::Hold),
        2 => any::<u16>().prop_map(Event::Release),
    ]
}

fn priority(class: u64) -> Priority {
    Priority::new(class).unwrap()
}

fn has(set: u16, slot: usize) -> bool {
    set & 1 << slot != 0
}

fn decide(hbs: &mut BatchScheduler, frames: u16) -> Option<usize> {
    hbs.begin();
    while let Some(candidate) = hbs.next_look() {
        if has(frames, candidate.slot) {
            hbs.ran(candidate.slot);
            return Some(candidate.slot);
        }
    }
    None
}

/// Reference model of the scheduler: which units joined, and which units wait for tokens.
#[derive(Default)]
struct Model {
    there: [Option<u64>; SLOTS],
    waits: [bool; SLOTS],
}

fn check(hbs: &BatchScheduler, model: &Model) {
    for slot in 0..SLOTS {
        let state = hbs.state(slot).map(|(_, ready)| !ready);
        assert_eq!(state, model.there[slot].map(|_| model.waits[slot]), "unit {slot}");
    }
    let there = model.there.iter().flatten().count();
    let waits = (0..SLOTS).filter(|&s| model.there[s].is_some() && model.waits[s]).count();
    assert_eq!((hbs.len(), hbs.waiting()), (there, waits));
}

fn apply(hbs: &mut BatchScheduler, model: &mut Model, event: &Event) {
    match *event {
        Event::Add(slot, class) => {
            hbs.add(slot, priority(class));
            if model.there[slot].is_none() {
                (model.there[slot], model.waits[slot]) = (Some(class), false);
            }
        }
        Event::Remove(slot) => {
            hbs.remove(slot);
            model.there[slot] = None;
        }
        Event::Class(slot, class) => {
            hbs.set_class(slot, priority(class));
            model.there[slot] = model.there[slot].map(|_| class);
        }
        Event::Decide(frames) | Event::Exhaust(frames) => {
            let ready = |s: usize| model.there[s].is_some() && !model.waits[s] && has(frames, s);
            let before: Vec<_> = (0..SLOTS).map(|s| hbs.state(s)).collect();
            let ran = decide(hbs, frames);
            assert_eq!(ran.is_some(), (0..SLOTS).any(ready), "work was passed over");
            if let Some(ran) = ran {
                assert!(ready(ran));
                let class = |s: usize| before[s].map(|(class, _)| class).unwrap();
                for other in (0..SLOTS).filter(|&s| ready(s)) {
                    // If the unit was demoted within the decision, its class may have changed.
                    assert!(class(ran) <= class(other), "{ran} before {other}");
                }
                if matches!(event, Event::Exhaust(_)) {
                    hbs.hold(ran);
                    model.waits[ran] = true;
                }
            }
        }
        Event::Hold(slot) => {
            hbs.hold(slot);
            model.waits[slot] |= model.there[slot].is_some();
        }
        Event::Release(tokens) => {
            hbs.release(usize::MAX, |slot| has(tokens, slot));
            (0..SLOTS).filter(|&s| has(tokens, s)).for_each(|s| model.waits[s] = false);
        }
    }
}

proptest! {
    #[test]
    fn lower_class_never_runs_while_higher_is_ready_and_no_unit_is_lost(
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let mut hbs = BatchScheduler::new(SLOTS, Readiness::Pending);
        let mut model = Model::default();
        for event in &events {
            apply(&mut hbs, &mut model, event);
            check(&hbs, &model);
        }
    }

    #[test]
    fn demotion_orders_by_effective_class_and_loses_no_unit(
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let mut hbs = BatchScheduler::new(SLOTS, Readiness::Demotion);
        let mut model = Model::default();
        for event in &events {
            apply(&mut hbs, &mut model, event);
            check(&hbs, &model);
        }
    }

    /// In this test, `n` units of one class have frames. Tests that each unit with frames runs once
    /// in `n` decisions.
    #[test]
    fn a_class_is_first_in_first_out(
        classes in proptest::collection::vec(1..=3_u64, 1..SLOTS),
        readiness in prop_oneof![Just(Readiness::Pending), Just(Readiness::Demotion)],
    ) {
        let mut hbs = BatchScheduler::new(SLOTS, readiness);
        for (slot, class) in classes.iter().enumerate() {
            hbs.add(slot, priority(*class));
        }
        let first = *classes.iter().min().unwrap();
        let members: Vec<usize> = (0..classes.len()).filter(|&s| classes[s] == first).collect();
        for _ in 0..3 {
            let ran: Vec<_> = members.iter().filter_map(|_| decide(&mut hbs, u16::MAX)).collect();
            prop_assert_eq!(&ran, &members);
        }
    }

    /// Tests that a unit runs at the latest when the units of earlier classes have no more tokens.
    #[test]
    fn tokens_of_earlier_classes_bound_starvation(
        above in proptest::collection::vec((1..=7_u64, 0..6_u32), 0..SLOTS - 1),
    ) {
        let mut hbs = BatchScheduler::new(SLOTS, Readiness::Pending);
        let mut tokens: Vec<u32> = above.iter().map(|a| a.1).collect();
        for (slot, (class, _)) in above.iter().enumerate() {
            hbs.add(slot, priority(*class));
        }
        let last = SLOTS - 1;
        hbs.add(last, Priority::LAST);
        let bound: u32 = tokens.iter().map(|t| (*t).max(1)).sum();
        let mut decisions = 0;
        while let Some(ran) = decide(&mut hbs, u16::MAX) {
            if ran == last {
                break;
            }
            tokens[ran] = tokens[ran].saturating_sub(1);
            if tokens[ran] == 0 {
                hbs.hold(ran);
            }
            decisions += 1;
        }
        prop_assert!(decisions <= bound, "{decisions} of {bound}");
    }

    /// Tests that units without frames in earlier classes are demoted. Until they are demoted,
    /// units without frames delay other units only by the time of a check.
    #[test]
    fn silent_units_fall_out_of_the_way(silent in 1..SLOTS - 1) {
        let mut hbs = BatchScheduler::new(SLOTS, Readiness::Demotion);
        (0..silent).for_each(|slot| hbs.add(slot, Priority::FIRST));
        let busy = SLOTS - 1;
        hbs.add(busy, priority(4));
        let mut looks = 0;
        for _ in 0..100 {
            hbs.begin();
            while let Some(candidate) = hbs.next_look() {
                looks += 1;
                if candidate.slot == busy {
                    hbs.ran(busy);
                    break;
                }
            }
        }
        let falls = silent * usize::from(DEMOTE_AFTER) * 4;
        prop_assert!(looks <= 100 + falls, "{looks}");
    }
}

/// Tests all placements of three units in two classes, with all combinations of frames and tokens.
#[test]
fn three_units_in_two_classes_exhaustively() {
    for bits in 0..8_u16 {
        for frames in 0..8_u16 {
            for held in 0..8_u16 {
                let mut hbs = BatchScheduler::new(3, Readiness::Pending);
                let class = |slot: usize| if has(bits, slot) { 1 } else { 2 };
                (0..3).for_each(|slot| hbs.add(slot, priority(class(slot))));
                (0..3).filter(|&slot| has(held, slot)).for_each(|slot| hbs.hold(slot));
                let runnable = (0..3).filter(|&s| has(frames, s) && !has(held, s));
                let want = runnable.min_by_key(|&slot| (class(slot), slot));
                assert_eq!(decide(&mut hbs, frames), want, "{bits} {frames} {held}");
            }
        }
    }
}
