//! Tests the invariants of the cycle buckets under any order of events: no cycles are lost, and
//! weights divide the pool.

use penstock_qos::c2tb::{BucketSet, Mode, Terms};
use penstock_units::{Cycles, CyclesPerSecond, TscRate, Weight};
use proptest::prelude::*;

const HZ: u64 = 2_200_000_000;
const SLOTS: usize = 12;
/// Number of cycles in a refill interval of 50 µs.
const INTERVAL: u64 = 110_000;

fn terms(entitlement: u64, weight: u64, mode: Mode, depth: u64) -> Terms {
    let weight = Weight::new(weight).unwrap();
    Terms { entitlement: CyclesPerSecond(entitlement), weight, mode, depth: Cycles(depth) }
}

fn set(capacity: u64) -> BucketSet {
    BucketSet::new(SLOTS, TscRate::from_hz(HZ), CyclesPerSecond(capacity))
}

#[derive(Clone, Debug)]
enum Event {
    Join(usize, Terms),
    Change(usize, Terms),
    Leave(usize),
    Charge(usize, u64, bool),
    Lend(usize, u64),
    Elsewhere(usize, u64),
    Spend(u64),
    Waiting(usize, bool),
    Refill(u64),
}

fn some_terms() -> impl Strategy<Value = Terms> {
    let mode = prop_oneof![Just(Mode::Strict), Just(Mode::MinMax), Just(Mode::Free)];
    (0..HZ / 4, 1..=10_000_u64, mode, 1..2_000_000_u64)
        .prop_map(|(rate, weight, mode, depth)| terms(rate, weight, mode, depth))
}

fn event() -> impl Strategy<Value = Event> {
    let slot = 0..SLOTS;
    prop_oneof![
        1 => (slot.clone(), some_terms()).prop_map(|(s, t)| Event::Join(s, t)),
        1 => (slot.clone(), some_terms()).prop_map(|(s, t)| Event::Change(s, t)),
        1 => slot.clone().prop_map(Event::Leave),
        8 => (slot.clone(), 1..200_000_u64, any::<bool>())
            .prop_map(|(s, c, m)| Event::Charge(s, c, m)),
        1 => (slot.clone(), 1..50_000_u64).prop_map(|(s, c)| Event::Lend(s, c)),
        1 => (slot.clone(), 1..50_000_u64).prop_map(|(s, c)| Event::Elsewhere(s, c)),
        1 => (1..50_000_u64).prop_map(Event::Spend),
        1 => (slot, any::<bool>()).prop_map(|(s, w)| Event::Waiting(s, w)),
        6 => (1..3 * INTERVAL).prop_map(Event::Refill),
    ]
}

fn apply(set: &mut BucketSet, event: &Event) {
    match *event {
        Event::Join(slot, ref terms) => set.join(slot, terms, 0),
        Event::Change(slot, ref terms) => set.change(slot, terms),
        Event::Leave(slot) => drop(set.leave(slot)),
        Event::Charge(slot, cost, more) => drop(set.charge(slot, Cycles(cost), more)),
        // Only cycles that were charged before can be refunded.
        Event::Lend(slot, cost) if !set.may_run(slot) => {
            set.charge(slot, Cycles(cost), true);
            set.lend(slot, Cycles(cost));
        }
        Event::Lend(..) => {}
        Event::Elsewhere(slot, cost) => set.charge_elsewhere(slot, Cycles(cost)),
        Event::Spend(cost) => set.spend(Cycles(cost)),
        Event::Waiting(slot, waiting) => set.note_waiting(slot, waiting),
        Event::Refill(elapsed) => set.refill(Cycles(elapsed)),
    }
}

/// Returns the sum of the tokens in all buckets, without the pool that `Ledger::stored` includes.
fn tokens(set: &BucketSet) -> i64 {
    (0..SLOTS).map(|slot| set.tokens(slot)).sum()
}

/// Refills the buckets `refills` times; between refills, each port spends all its tokens in batches
/// that cost `costs`. Returns the number of cycles that each port was charged.
fn run_backlogged(set: &mut BucketSet, costs: &[u64], refills: u32) -> Vec<u64> {
    let mut charged = vec![0; costs.len()];
    for _ in 0..refills {
        set.refill(Cycles(INTERVAL));
        for (slot, cost) in costs.iter().enumerate() {
            while set.may_run(slot) {
                set.charge(slot, Cycles(*cost), true);
                charged[slot] += cost;
            }
        }
    }
    charged
}

proptest! {
    #[test]
    fn generated_is_charged_or_stored_or_discarded(
        capacity in 1..HZ,
        events in proptest::collection::vec(event(), 1..400),
    ) {
        let mut set = set(capacity);
        for event in &events {
            apply(&mut set, event);
            let ledger = set.ledger();
            prop_assert_eq!(ledger.unaccounted(), 0, "{:?} after {:?}", ledger, event);
            // Stored cycles that are not in the buckets are in the pool, up to rounding.
            let pool = ledger.stored - tokens(&set);
            prop_assert!(pool > -16 - (HZ / 1_000).cast_signed(), "{} after {:?}", pool, event);
        }
    }

    #[test]
    fn nothing_is_discarded_while_a_minmax_bucket_has_room(
        capacity in HZ / 2..HZ,
        events in proptest::collection::vec(event(), 1..300),
        deep in 0..SLOTS,
    ) {
        let mut set = set(capacity);
        for event in &events {
            // The depth of this one bucket is so large that no event fills it.
            let before = set.ledger().discarded;
            set.join(deep, &terms(0, 1, Mode::MinMax, 1 << 45), 0);
            apply(&mut set, event);
            prop_assert_eq!(set.ledger().discarded, before, "{:?}", event);
        }
    }

    #[test]
    fn no_bucket_holds_more_than_its_depth_unless_frames_wait(
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let mut set = set(HZ);
        for slot in 0..SLOTS {
            set.join(slot, &terms(HZ / 16, 1, Mode::MinMax, 50_000), 0);
        }
        let keeps = |e: &&Event| matches!(e, Event::Charge(_, _, false) | Event::Refill(_));
        for event in events.iter().filter(keeps) {
            apply(&mut set, event);
            prop_assert!((0..SLOTS).all(|slot| set.tokens(slot) <= 50_000));
        }
    }

    /// Tests that the ports that send use all cycles of the capacity, for any depths and batch
    /// costs.
    #[test]
    fn backlogged_minmax_ports_use_the_whole_capacity(
        ports in proptest::collection::vec(
            (0..HZ / 8, 1..100_u64, 20_000..600_000_u64, 500..60_000_u64),
            1..8,
        ),
        idle in 0..4_usize,
    ) {
        let mut set = set(HZ);
        let costs: Vec<u64> = ports.iter().map(|p| p.3).collect();
        for (slot, (rate, weight, depth, _)) in ports.iter().enumerate() {
            // The depth must exceed the tokens of one interval, or refills would have to be more
            // frequent.
            set.join(slot, &terms(*rate, *weight, Mode::MinMax, *depth + INTERVAL), 0);
        }
        for slot in 0..idle {
            set.join(SLOTS - 1 - slot, &terms(HZ / 40, 3, Mode::MinMax, 100_000), 0);
        }
        run_backlogged(&mut set, &costs, 200);
        let (before, refills) = (set.ledger(), 1_000);
        let charged: u64 = run_backlogged(&mut set, &costs, refills).iter().sum();
        let after = set.ledger();
        let generated = after.generated - before.generated;
        let slack: u64 = costs.iter().sum::<u64>() + INTERVAL;
        prop_assert_eq!(after.discarded, before.discarded);
        prop_assert!(charged.abs_diff(generated) <= slack, "{} of {}", charged, generated);
    }

    /// In this test, all buckets are empty, and only one port continues to send frames. Tests that
    /// the core is never idle while one port has frames. The cycles lent to a port never exceed the
    /// tokens that the other buckets need to become full.
    #[test]
    fn a_core_with_a_backlogged_minmax_port_never_idles(
        ports in proptest::collection::vec((0..HZ / 12, 1..100_u64, 500..60_000_u64), 2..SLOTS),
    ) {
        let mut set = set(HZ);
        let costs: Vec<u64> = ports.iter().map(|p| p.2).collect();
        let depth = 3 * INTERVAL;
        for (slot, (rate, weight, _)) in ports.iter().enumerate() {
            set.join(slot, &terms(*rate, *weight, Mode::MinMax, depth), 0);
        }
        run_backlogged(&mut set, &costs, 200);
        (1..costs.len()).for_each(|slot| set.note_waiting(slot, false));
        let (before, cost) = (set.ledger(), Cycles(costs[0]));
        let (mut now, mut refilled) = (0, 0);
        while now < 400 * INTERVAL {
            let had = set.may_run(0);
            set.charge(0, cost, true);
            if !had {
                set.lend(0, cost);
            }
            now += cost.0;
            if now - refilled >= INTERVAL {
                set.refill(Cycles(now - refilled));
                refilled = now;
            }
        }
        let after = set.ledger();
        prop_assert_eq!(after.unaccounted(), 0);
        prop_assert_eq!(after.charged - before.charged + after.lent - before.lent, now);
        // Each port may be in debt by a batch, and tokens are generated one interval late.
        let room: u64 = costs.iter().map(|cost| depth + cost).sum();
        let lent = after.lent - before.lent;
        prop_assert!(lent <= room + 2 * (INTERVAL + cost.0), "{lent} lent, room for {room}");
        prop_assert_eq!(after.discarded, before.discarded, "it always had room");
    }

    /// Tests that weights divide the cycles beyond the entitlements. A port's cycles differ from
    /// its exact part by at most the cost of a batch.
    #[test]
    fn shares_are_within_one_batch_of_weight(
        ports in proptest::collection::vec((0..HZ / 10, 1..50_u64, 500..60_000_u64), 2..8),
    ) {
        let mut set = set(HZ);
        let costs: Vec<u64> = ports.iter().map(|p| p.2).collect();
        for (slot, (rate, weight, _)) in ports.iter().enumerate() {
            set.join(slot, &terms(*rate, *weight, Mode::MinMax, 3 * INTERVAL), 0);
        }
        run_backlogged(&mut set, &costs, 100);
        let start: Vec<i64> = (0..ports.len()).map(|slot| set.tokens(slot)).collect();
        let refills = 2_000_u64;
        let charged = run_backlogged(&mut set, &costs, 2_000);
        let sold: u64 = ports.iter().map(|p| p.0).sum();
        let weights: u64 = ports.iter().map(|p| p.1).sum();
        let seconds = (refills * INTERVAL) as f64 / HZ as f64;
        for (slot, (rate, weight, cost)) in ports.iter().enumerate() {
            let idle = (HZ - sold) as f64 * *weight as f64 / weights as f64;
            let due = seconds * (*rate as f64 + idle) + start[slot] as f64;
            let off = (charged[slot] as f64 - due).abs();
            prop_assert!(off <= *cost as f64 + due * 1e-6 + 8.0, "{off} of {due}");
        }
    }
}

/// In this test, the port's entitlement is not a whole number of cycles per refill. Tests that no
/// cycle is missing after an hour of refills with a fractional entitlement.
#[test]
fn fractions_of_cycles_add_up() {
    let mut set = set(HZ);
    set.join(0, &terms(333_333_333, 1, Mode::Strict, 1 << 45), 0);
    let refills = 3_600_000;
    for _ in 0..refills {
        set.refill(Cycles(HZ / 1_000 + 7));
    }
    let elapsed = u128::from((HZ / 1_000 + 7) * refills);
    let due = elapsed * 333_333_333 / u128::from(HZ);
    let have = u128::from(set.tokens(0).cast_unsigned());
    assert!(due - have <= 1, "{have} of {due}");
}
