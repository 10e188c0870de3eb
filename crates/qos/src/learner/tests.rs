use super::*;
use penstock_units::BitsPerSecond;

const INTERVAL: Nanos = Nanos::from_millis(100);
const SIZE: u64 = 1_024;
const A: PortId = PortId(1);
const B: PortId = PortId(2);

fn contract(bits: u64) -> Contract {
    Contract {
        rate: Rate::Bits(BitsPerSecond(bits)),
        sizes: SIZE.to_string().parse().unwrap(),
        flows: Flows::Single,
    }
}

/// Contract of a port that purchased 819.2 Mbit/s in frames of 1,024 bytes, which are 100,000
/// frames a second.
fn terms(model_cost: f64) -> Terms {
    let contract = contract(819_200_000);
    let base =
        CyclesPerSecond(crate::cost_model::whole_up(contract.frames_per_second() * model_cost));
    let (capped, workers) = (false, WorkerSet::one(0));
    Terms { contract: Some(contract), capped, model_cost, base, workers }
}

/// Returns an observation of a port that always had frames of `size` bytes, each with a cost of
/// `cost` cycles. The port has a strict bucket with the entitlement `entitlement`.
fn flood(entitlement: CyclesPerSecond, cost: u64, size: u64) -> Observation {
    let cycles = entitlement.0 / 10;
    let frames = cycles / cost;
    Observation {
        elapsed: INTERVAL,
        frames,
        bytes: frames * (size - 4),
        cycles,
        lookups: frames,
        cache_hits: frames,
        throttled: true,
        backlogged: true,
    }
}

/// Returns an observation of a throttled port that sent `frames` declared frames for `cycles`.
fn throttled(frames: u64, cycles: u64) -> Observation {
    let few = flood(CyclesPerSecond(10_000), 1_000, SIZE);
    let bytes = frames * (SIZE - 4);
    Observation { frames, bytes, cycles, lookups: frames, cache_hits: frames, ..few }
}

fn learner(capacity: u64, ports: &[(PortId, Terms)]) -> Learner {
    let three = Nanos::from_millis(300);
    let config = LearnConfig { return_after: three, drift_after: three, ..LearnConfig::default() };
    let mut learner = Learner::new(config, &[CyclesPerSecond(capacity)]);
    learner.set_ports(ports.iter().cloned());
    learner
}

fn entitlement(learner: &Learner, id: PortId) -> CyclesPerSecond {
    learner.port(id).unwrap().entitlement
}

fn deviation(learner: &Learner, id: PortId) -> f64 {
    learner.port(id).unwrap().delivered.unwrap() - 1.0
}

#[test]
fn a_model_ten_per_cent_wrong_either_way_is_corrected_in_a_few_intervals() {
    for cost in [1_100, 900] {
        let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
        for _ in 0..4 {
            let seen = flood(entitlement(&learner, A), cost, SIZE);
            learner.step([(A, seen)]);
        }
        let seen = flood(entitlement(&learner, A), cost, SIZE);
        learner.step([(A, seen)]);
        let state = learner.port(A).unwrap();
        assert!(deviation(&learner, A).abs() < 0.01, "{state:?}");
        let error = state.model_error.unwrap() - (to_f64(cost) / 1_000.0 - 1.0);
        assert!(error.abs() < 1e-3, "{state:?}");
    }
}

#[test]
fn only_unsold_cycles_bound_a_correction() {
    // Frames to an AF_XDP uplink cost three times what the model says.
    for (capacity, due) in [(400_000_000, 300_000_000), (250_000_000, 250_000_000)] {
        let mut learner = learner(capacity, &[(A, terms(1_000.0))]);
        let mut events = Vec::new();
        for _ in 0..8 {
            let seen = flood(entitlement(&learner, A), 3_000, SIZE);
            events.extend(learner.step([(A, seen)]).events);
        }
        let got = entitlement(&learner, A).0;
        assert!(got.abs_diff(due) < due / 500, "{got} of {due}");
        let short = events.iter().any(|event| matches!(event, Event::Short(A, _)));
        assert_eq!(short, capacity < 300_000_000, "{events:?}");
    }
}

/// Each frame wakes a guest, so that the port can send only 100 frames a second.
#[test]
fn a_port_that_gets_a_thousandth_of_its_rate_learns_too() {
    let mut learner = learner(20_000_000_000, &[(A, terms(1_000.0))]);
    for _ in 0..10 {
        let slow = entitlement(&learner, A);
        let frames = slow.0 / 1_000_000;
        learner
            .step([(A, Observation { elapsed: Nanos::from_secs(1), ..throttled(frames, slow.0) })]);
    }
    assert_eq!(entitlement(&learner, A).0, 20_000_000_000, "{:?}", learner.port(A));
}

#[test]
fn a_lack_and_a_breach_have_lasted_since_they_began() {
    let mut learner = learner(100_000_000, &[(A, terms(1_000.0))]);
    let times = |learner: &Learner| {
        let state = learner.port(A).unwrap();
        [state.less_for, state.breach_for]
    };
    let base = CyclesPerSecond(100_000_000);
    (0..3).for_each(|_| drop(learner.step([(A, flood(base, 1_200, SIZE))])));
    assert_eq!(times(&learner), [Nanos::from_millis(300), Nanos::ZERO]);
    (0..2).for_each(|_| drop(learner.step([(A, flood(base, 1_200, 512))])));
    assert_eq!(times(&learner), [Nanos::from_millis(500), Nanos::from_millis(200)]);
    learner.step([(A, flood(base, 1_000, SIZE))]);
    assert_eq!(times(&learner), [Nanos::ZERO; 2]);
}

#[test]
fn the_example_of_the_module_documentation() {
    let mut learner = learner(110_000_000, &[(A, terms(1_000.0))]);
    let before = learner.step([(A, flood(CyclesPerSecond(100_000_000), 1_100, SIZE))]);
    assert_eq!(before.changes, []);
    let step = learner.step([(A, flood(CyclesPerSecond(100_000_000), 1_100, SIZE))]);
    let [(A, got)] = step.changes.as_slice() else { panic!("{step:?}") };
    assert!(got.0.abs_diff(110_000_000) < 100_000, "{got}");
}

#[test]
fn a_vm_outside_its_profile_gains_nothing_and_loses_what_it_had_gained() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    for _ in 0..4 {
        learner.step([(A, flood(entitlement(&learner, A), 1_100, SIZE))]);
    }
    assert!(entitlement(&learner, A).0 > 109_000_000);
    let step = learner.step([(A, flood(entitlement(&learner, A), 800, 64))]);
    assert_eq!(step.changes, [(A, CyclesPerSecond(100_000_000))]);
    assert!(matches!(step.events.as_slice(), [Event::Left(A, Breach::Size { .. })]), "{step:?}");
    for _ in 0..20 {
        assert_eq!(
            learner.step([(A, flood(CyclesPerSecond(100_000_000), 800, 64))]),
            Step::default()
        );
    }
    // The port sends declared frames again and counts as inside its profile after three intervals.
    for n in 1..=3 {
        let step = learner.step([(A, flood(CyclesPerSecond(100_000_000), 1_100, SIZE))]);
        assert_eq!(step.events.contains(&Event::Returned(A)), n == 3);
    }
    assert!(entitlement(&learner, A).0 > 109_000_000);
}

#[test]
fn many_flows_instead_of_one_are_a_breach_and_one_instead_of_many_is_not() {
    let mut many = flood(CyclesPerSecond(100_000_000), 1_500, SIZE);
    many.cache_hits = many.frames / 2;
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    let step = learner.step([(A, many)]);
    assert!(matches!(step.events.as_slice(), [Event::Left(A, Breach::Flows { .. })]), "{step:?}");
    let mut declared = terms(1_000.0);
    declared.contract = declared.contract.map(|c| Contract { flows: Flows::Multiple, ..c });
    learner.set_ports([(A, declared)]);
    learner.step([(A, many)]);
    assert_eq!(learner.port(A).unwrap().breach, None);
}

#[test]
fn a_port_that_is_not_throttled_keeps_its_entitlement() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    let mut calm = flood(CyclesPerSecond(50_000_000), 1_200, SIZE);
    calm.throttled = false;
    for _ in 0..10 {
        let step = learner.step([(A, calm)]);
        assert_eq!(step.changes, []);
    }
    assert!((learner.port(A).unwrap().model_error.unwrap() - 0.2).abs() < 1e-3);
}

/// In batches that are not full, each frame costs more. Tests that the learner does not report the
/// higher cost of partly filled batches as an error of the model.
#[test]
fn a_port_that_is_not_throttled_has_no_drift() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    let mut calm = flood(CyclesPerSecond(50_000_000), 1_500, SIZE);
    calm.throttled = false;
    for _ in 0..10 {
        assert_eq!(learner.step([(A, calm)]), Step::default());
    }
    let state = learner.port(A).unwrap();
    assert!((state.model_error.unwrap() - 0.5).abs() < 1e-3, "it is reported: {state:?}");
    assert_eq!(state.full_error, None);
    for _ in 0..2 {
        learner.step([(A, flood(CyclesPerSecond(100_000_000), 1_100, SIZE))]);
    }
    let state = learner.port(A).unwrap();
    assert!((state.full_error.unwrap() - 0.1).abs() < 1e-3, "{state:?}");
    assert_eq!(state.model_error, state.full_error);
}

/// A purchased rate counts frames after segmentation requests were split. Tests a port that sends
/// segmentation requests (TSO), each of which needs one cache lookup.
#[test]
fn a_segmentation_request_that_hits_the_cache_keeps_to_a_single_flow() {
    let mut large = flood(CyclesPerSecond(100_000_000), 1_000, SIZE);
    (large.lookups, large.cache_hits) = (large.frames / 40, large.frames / 40);
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    learner.step([(A, large)]);
    assert_eq!(learner.port(A).unwrap().breach, None);
    // A quarter of the requests belongs to new connections, but only one in 160 frames.
    large.cache_hits -= large.cache_hits / 4;
    learner.step([(A, large)]);
    assert_eq!(learner.port(A).unwrap().breach, None);
}

#[test]
fn one_interval_without_its_core_changes_nothing() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    for n in 0..20 {
        let mut seen = flood(entitlement(&learner, A), 1_000, SIZE);
        if n == 10 {
            seen.cycles *= 50;
        }
        learner.step([(A, seen)]);
        assert!(entitlement(&learner, A).0.abs_diff(100_000_000) < 500_000);
    }
}

#[test]
fn a_port_that_always_has_frames_gets_its_rate_even_if_its_mean_cost_is_covered() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    // The cost varies within an interval, so that a part of the entitlement is of no use.
    for part in [98, 60] {
        for _ in 0..60 {
            let effective = CyclesPerSecond(entitlement(&learner, A).0 / 100 * part);
            learner.step([(A, flood(effective, 1_000, SIZE))]);
        }
        assert!(deviation(&learner, A).abs() < 0.005, "{:?}", learner.port(A));
    }
    assert!(entitlement(&learner, A).0 <= 170_000_000, "{:?}", learner.port(A));
    // The whole entitlement is of use again.
    for _ in 0..40 {
        learner.step([(A, flood(entitlement(&learner, A), 1_000, SIZE))]);
    }
    assert!(entitlement(&learner, A).0.abs_diff(100_000_000) < 500_000, "{:?}", learner.port(A));
}

#[test]
fn a_port_that_offers_too_little_gets_little_more() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    for _ in 0..40 {
        let half = flood(CyclesPerSecond(entitlement(&learner, A).0 / 2), 1_000, SIZE);
        learner.step([(A, Observation { backlogged: false, ..half })]);
    }
    assert!(entitlement(&learner, A).0 <= 105_100_000, "{:?}", learner.port(A));
}

/// A port got far more cycles than it needs, and offers less than they permit, so that its bucket
/// limits nothing.
#[test]
fn a_port_with_too_many_cycles_does_not_keep_more_than_it_bought() {
    let mut learner = learner(400_000_000, &[(A, terms(1_000.0))]);
    for _ in 0..8 {
        learner.step([(A, flood(entitlement(&learner, A), 2_500, SIZE))]);
    }
    for _ in 0..20 {
        let offered = CyclesPerSecond(180_000_000).min(entitlement(&learner, A));
        let throttled = offered == entitlement(&learner, A);
        learner.step([(A, Observation { throttled, ..flood(offered, 1_000, SIZE) })]);
    }
    assert!(deviation(&learner, A).abs() < 0.01, "{:?}", learner.port(A));
}

/// Frames became cheaper, and a rate limit keeps the port at its purchase for most of the time.
#[test]
fn a_port_at_a_limit_that_is_its_purchase_keeps_a_quarter_more() {
    let after = |capped| {
        let mut learner = learner(400_000_000, &[(A, Terms { capped, ..terms(1_000.0) })]);
        for _ in 0..8 {
            learner.step([(A, flood(entitlement(&learner, A), 1_500, SIZE))]);
        }
        for _ in 0..20 {
            let seen = flood(CyclesPerSecond(101_000_000), 1_000, SIZE);
            learner.step([(A, Observation { throttled: false, ..seen })]);
        }
        entitlement(&learner, A).0
    };
    assert!(after(true) > 125_000_000, "{}", after(true));
    assert!(after(false) < 102_000_000, "{}", after(false));
}

#[test]
fn a_port_that_slightly_exceeds_its_purchase_keeps_its_trim() {
    let mut learner = learner(200_000_000, &[(A, terms(1_000.0))]);
    for _ in 0..60 {
        let effective = CyclesPerSecond(entitlement(&learner, A).0 / 100 * 80);
        learner.step([(A, flood(effective, 1_000, SIZE))]);
    }
    let before = entitlement(&learner, A).0;
    assert!(before > 124_000_000, "{before}");
    // The port is at its maximum rate, which is its purchase.
    let at_most = flood(CyclesPerSecond(100_300_000), 1_000, SIZE);
    learner.step([(A, Observation { throttled: false, ..at_most })]);
    let after = entitlement(&learner, A).0;
    assert!(after <= before && after > 124_000_000, "{after} after {before}");
}

#[test]
fn a_port_that_is_not_throttled_gives_back_what_it_does_not_need() {
    let mut learner = learner(300_000_000, &[(A, terms(1_000.0))]);
    // The first frames were dear.
    for _ in 0..8 {
        learner.step([(A, flood(entitlement(&learner, A), 2_500, SIZE))]);
    }
    assert!(entitlement(&learner, A).0 > 240_000_000);
    for (cost, least) in [(1_200, 150_000_000), (500, 100_000_000)] {
        for _ in 0..3_000 {
            let calm = flood(CyclesPerSecond(100_000 * cost), cost, SIZE);
            learner.step([(A, Observation { throttled: false, ..calm })]);
        }
        let got = entitlement(&learner, A).0;
        assert!((least..least + 2_000_000).contains(&got), "{got} of {least}");
    }
}

#[test]
fn head_room_is_divided_and_a_shortage_is_reported_once() {
    let ports = [(A, terms(1_000.0)), (B, terms(1_000.0))];
    let mut learner = learner(210_000_000, &ports);
    let mut told = 0;
    for _ in 0..10 {
        let seen = [A, B].map(|id| (id, flood(entitlement(&learner, id), 1_100, SIZE)));
        told += learner.step(seen).events.len();
    }
    let (a, b) = (entitlement(&learner, A).0, entitlement(&learner, B).0);
    assert!(a + b <= 210_000_000 && a + b > 209_999_000, "{a} {b}");
    assert!(a.abs_diff(b) < 200_000, "{a} {b}");
    assert_eq!(told, 2);
    assert!(learner.port(A).unwrap().short.0 > 4_000_000);
}

#[test]
fn a_port_that_needs_less_lends_its_base_and_gets_it_back_at_once() {
    let ports = [(A, terms(1_000.0)), (B, terms(1_000.0))];
    let mut learner = learner(200_000_000, &ports);
    let mut step = |costs: [u64; 2]| {
        let seen = [(A, costs[0]), (B, costs[1])]
            .map(|(id, c)| (id, flood(entitlement(&learner, id), c, SIZE)));
        learner.step(seen);
        [A, B].map(|id| entitlement(&learner, id).0)
    };
    let settle = |step: &mut dyn FnMut([u64; 2]) -> [u64; 2], costs| {
        (0..10).map(|_| step(costs)).last().unwrap()
    };
    let [a, b] = settle(&mut step, [900, 1_100]);
    assert!(a < 91_000_000 && b > 109_500_000, "{a} {b}");
    // As soon as A's frames cost what was sold, A has its base, and B keeps its own.
    step([1_000, 1_100]);
    let [a, b] = step([1_000, 1_100]);
    assert!(a > 99_000_000, "{a}");
    assert!((100_000_000..=101_000_000).contains(&b) && a + b <= 200_000_000, "{a} {b}");
    let [a, b] = settle(&mut step, [1_100, 1_100]);
    assert_eq!([a, b], [100_000_000; 2], "nothing is unsold");
}

#[test]
fn cycles_set_by_hand_are_left_alone_and_count() {
    let hand = Terms { contract: None, base: CyclesPerSecond(60_000_000), ..terms(1_000.0) };
    let mut learner = learner(170_000_000, &[(A, terms(1_000.0)), (B, hand)]);
    for _ in 0..6 {
        let a = (A, flood(entitlement(&learner, A), 1_200, SIZE));
        let b = (B, flood(entitlement(&learner, B), 2_000, SIZE));
        learner.step([a, b]);
    }
    assert_eq!(entitlement(&learner, B).0, 60_000_000);
    assert_eq!(entitlement(&learner, A).0, 110_000_000);
}

#[test]
fn the_begin_and_end_of_drift_are_reported() {
    let mut learner = learner(500_000_000, &[(A, terms(1_000.0))]);
    let mut events = Vec::new();
    for n in 0..30 {
        let cost = if n < 10 { 1_250 } else { 1_020 };
        events.extend(learner.step([(A, flood(CyclesPerSecond(100_000_000), cost, SIZE))]).events);
    }
    let [Event::Drift(A, from), Event::Settled(A, to)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert!((from - 0.25).abs() < 0.01 && *to < 0.075);
}

#[test]
fn new_terms_keep_valid_knowledge_and_new_ports_take_head_room_back() {
    let mut learner = learner(220_000_000, &[(A, terms(1_000.0))]);
    for _ in 0..5 {
        learner.step([(A, flood(entitlement(&learner, A), 1_100, SIZE))]);
    }
    let high = entitlement(&learner, A);
    learner.set_ports([(A, terms(1_000.0))]);
    assert_eq!(entitlement(&learner, A), high);
    // Another VM arrived, so the coefficient and the base grew by 4 %.
    learner.set_ports([(A, terms(1_040.0)), (B, terms(1_040.0))]);
    assert!(entitlement(&learner, A).0 > 110_000_000);
    assert!(entitlement(&learner, A).0 + entitlement(&learner, B).0 <= 220_000_000);
    // Another contract means another VM.
    let other = Terms { contract: Some(contract(409_600_000)), ..terms(1_000.0) };
    learner.set_ports([(A, Terms { base: CyclesPerSecond(50_000_000), ..other })]);
    assert_eq!(entitlement(&learner, A).0, 50_000_000);
}
