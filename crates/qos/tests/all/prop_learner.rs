//! Tests the invariants of the learner for any values of the counters.

use penstock_qos::admission::{Ledger, WorkerSet};
use penstock_qos::cost_model::{Contract, Flows, Rate};
use penstock_qos::learner::{LearnConfig, Learner, Observation, Terms};
use penstock_units::{BitsPerSecond, CyclesPerSecond, Nanos, PortId};
use proptest::prelude::*;

const INTERVAL: Nanos = Nanos::from_millis(100);

fn contract(megabits: u64, size: u16, flows: Flows) -> Contract {
    let sizes = size.to_string().parse().expect("a size");
    Contract { rate: Rate::Bits(BitsPerSecond(megabits * 1_000_000)), sizes, flows }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers")]
fn whole(value: f64) -> u64 {
    value.ceil() as u64
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn float(value: u64) -> f64 {
    value as f64
}

fn terms(megabits: u64, size: u16, cost: f64, workers: WorkerSet) -> Terms {
    let contract = contract(megabits, size, Flows::Single);
    let base = CyclesPerSecond(whole(contract.frames_per_second() * cost));
    Terms { contract: Some(contract), capped: false, model_cost: cost, base, workers }
}

fn observations() -> impl Strategy<Value = Observation> {
    (0..200_000_u64, 60..9_000_u64, 0..5_000_u64, 0..=100_u64, any::<[bool; 2]>()).prop_map(
        |(frames, bytes, cost, hits, [throttled, backlogged])| Observation {
            elapsed: INTERVAL,
            frames,
            bytes: frames * bytes,
            cycles: frames * cost,
            lookups: frames,
            cache_hits: frames * hits / 100,
            throttled,
            backlogged,
        },
    )
}

proptest! {
    #[test]
    fn entitlements_never_exceed_the_capacity_of_the_workers(
        ports in
            prop::collection::vec((1..400_u64, 64..1500_u16, 50..2_000_u32, 0..3_usize), 1..12),
        spare in 0..200_000_000_u64,
        steps in prop::collection::vec(prop::collection::vec(observations(), 12), 1..30),
    ) {
        let places = [WorkerSet::one(0), WorkerSet::one(1), WorkerSet::first(2)];
        let ports: Vec<Terms> = (ports.iter())
            .map(|(rate, size, cost, place)| terms(*rate, *size, f64::from(*cost), places[*place]))
            .collect();
        // The capacity of each worker covers all sold cycles, and worker 0 has a spare part.
        let sold: u64 = ports.iter().map(|terms| terms.base.0).sum();
        let capacity = [CyclesPerSecond(sold + spare), CyclesPerSecond(sold)];
        let mut learner = Learner::new(LearnConfig::default(), &capacity);
        learner.set_ports((0..).map(PortId).zip(ports.iter().cloned()));
        for step in steps {
            learner.step((0..).map(PortId).zip(step));
            let mut ledger = Ledger::new(&capacity);
            for (terms, (_, state)) in ports.iter().zip(learner.ports()) {
                ledger.claim(terms.workers, state.entitlement.0);
                let has_base = state.entitlement >= state.base;
                prop_assert!(state.short.0 == 0 || has_base, "{state:?} lacks what it bought");
            }
            prop_assert!(ledger.fits());
        }
    }

    #[test]
    fn a_liar_never_gains(
        cost in 100..3_000_u64,
        truth in 100..3_000_u64,
        wrong_size in prop_oneof![64..900_u64, 1_150..9_000_u64],
        steps in prop::collection::vec(any::<bool>(), 1..60),
    ) {
        // The declared size is 1,024 bytes. In each step that is true, the port sends frames of
        // another size.
        let terms = terms(800, 1_024, float(cost), WorkerSet::one(0));
        let base = terms.base;
        let mut learner = Learner::new(LearnConfig::default(), &[CyclesPerSecond(base.0 * 10)]);
        learner.set_ports([(PortId(0), terms)]);
        let mut before = base;
        for lies in steps {
            let size = if lies { wrong_size } else { 1_024 };
            let frames = before.0 / 10 / truth;
            let seen = Observation {
                elapsed: INTERVAL,
                frames: frames.max(1_000),
                bytes: frames.max(1_000) * (size - 4),
                cycles: frames.max(1_000) * truth,
                lookups: frames.max(1_000),
                cache_hits: frames.max(1_000),
                throttled: true,
                backlogged: true,
            };
            learner.step([(PortId(0), seen)]);
            let now = learner.port(PortId(0)).expect("it is there").entitlement;
            if lies {
                prop_assert!(now <= before.min(base), "{now} after {before}");
            }
            before = now;
        }
    }

    #[test]
    fn a_compliant_vm_gets_what_it_bought_within_a_per_cent_and_stays_there(
        error in -0.1..0.1_f64,
        cost in 200..3_000_u32,
        noise in prop::collection::vec(-0.02..0.02_f64, 60),
    ) {
        let truth = f64::from(cost);
        let terms = terms(800, 1_024, truth * (1.0 + error), WorkerSet::one(0));
        let capacity = CyclesPerSecond(whole(float(terms.base.0) * 1.3));
        let mut learner = Learner::new(LearnConfig::default(), &[capacity]);
        learner.set_ports([(PortId(0), terms)]);
        let (mut worst, mut sum): (f64, f64) = (0.0, 0.0);
        for (at, noise) in noise.iter().enumerate() {
            let now = learner.port(PortId(0)).expect("it is there").entitlement;
            let cycles = now.0 / 10;
            let frames = whole(float(cycles) / (truth * (1.0 + noise)));
            let seen = Observation {
                elapsed: INTERVAL,
                frames,
                bytes: frames * 1_020,
                cycles,
                lookups: frames,
                cache_hits: frames,
                throttled: true,
                backlogged: true,
            };
            learner.step([(PortId(0), seen)]);
            if at >= 8 {
                // The port's entitlement divided by the true cost of a frame, relative to its
                // purchase.
                let share = float(now.0) / truth / (800e6 / 8.0 / 1_024.0) - 1.0;
                worst = worst.max(share.abs());
                sum += share;
            }
        }
        prop_assert!((sum / 52.0).abs() < 0.01, "mean {}", sum / 52.0);
        prop_assert!(worst < 0.03, "{worst}");
    }
}
