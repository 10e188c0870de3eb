use super::*;
use penstock_units::{BitsPerSecond, PacketsPerSecond};

/// Returns model data with costs that are linear in the frame size (C2QoS Fig. 5(b)), and higher
/// with many flows.
fn parts() -> Parts {
    let mut cells = BTreeMap::new();
    for ring in [RingKind::Split, RingKind::Packed] {
        for flows in Flows::ALL {
            for rules in RULES {
                for size in SIZES {
                    let misses = match flows {
                        Flows::Single => 0.0,
                        Flows::Multiple => f64::from(rules).log10() * 10.0,
                    };
                    let cell = Cell {
                        ingress: Spread::exact(40.0 + 0.1 * f64::from(size)),
                        classification: Spread::exact(30.0 + misses),
                        egress: Spread::exact(if ring == RingKind::Split { 20.0 } else { 18.0 }),
                        source: Source::Measured,
                    };
                    cells.insert(CellKey { ring, flows, rules, size }, cell);
                }
            }
        }
    }
    let term = |per_frame, per_byte| ActionTerm {
        per_frame: Spread::exact(per_frame),
        per_byte,
        source: Source::Measured,
    };
    let of = |pairs: &[(u32, f64)]| {
        pairs.iter().map(|(n, factor)| (*n, Coefficient::published(*factor))).collect()
    };
    Parts {
        about: About {
            host: "h".into(),
            date: "2026-11-21T13:00:00Z".into(),
            cpu: "c".into(),
            made_by: "test".into(),
            core_distance_ns: None,
            tsc: TscRate::from_hz(2_000_000_000),
        },
        cells,
        batch: BatchTerm { per_batch: Spread::exact(320.0), frames: 32, source: Source::Measured },
        actions: [(Action::VlanPush, term(6.0, 0.0)), (Action::Checksum, term(10.0, 0.05))].into(),
        vms: of(&VMS_PUBLISHED),
        cores: of(&CORES_PUBLISHED),
        numa_remote: Coefficient::published(NUMA_PUBLISHED),
        verified: None,
    }
}

fn model() -> CostModel {
    CostModel::new(parts()).unwrap()
}

fn profile(sizes: &str) -> Profile {
    Profile { sizes: sizes.parse().unwrap(), rules: 1, ..Profile::default() }
}

#[test]
fn the_papers_coefficients_multiply_out() {
    // C2QoS §III-C: "4 VMs are deployed in NUMA node 1, and two IO-dedicated CPU cores".
    let at = Deployment { vms: 4, cores: 2, numa_remote: true };
    let factor = model().factor(at);
    assert!((factor - 1.4 * 1.14 * 1.47).abs() < 1e-12 && (factor - 2.34612).abs() < 1e-9);
    let one = model().per_frame(&profile("1000"), Deployment::SINGLE);
    assert!((model().per_frame(&profile("1000"), at) - 2.34612 * one).abs() < 1e-6);
}

#[test]
fn a_size_between_two_cells_lies_on_their_line_and_a_larger_one_beyond() {
    let total = |size: &str| model().single(&profile(size)).total();
    for (size, want) in [("64", 96.4), ("96", 99.6), ("1500", 240.0), ("9000", 990.0)] {
        assert!((total(size) - want).abs() < 1e-9, "{size}: {}", total(size));
    }
}

#[test]
fn a_mix_costs_what_its_parts_cost() {
    let of = |text| model().single(&profile(text)).total();
    let want = (7.0 * of("64") + 4.0 * of("594") + of("1518")) / 12.0;
    assert!((of("imix") - want).abs() < 1e-9);
}

#[test]
fn rules_count_by_their_logarithm_and_not_beyond_the_table() {
    let at = |rules| model().at(RingKind::Split, Flows::Multiple, rules, 64.0).classification;
    assert!((at(1) - 30.0).abs() < 1e-9 && (at(0) - 30.0).abs() < 1e-9);
    assert!((at(100) - 50.0).abs() < 1e-9 && (at(1_000) - 60.0).abs() < 1e-9);
    assert!((at(1_000_000) - 70.0).abs() < 1e-9);
}

#[test]
fn actions_add_their_terms_and_unknown_ones_nothing() {
    let plain = model().single(&profile("1000"));
    let mut with = profile("1000");
    with.actions =
        [Action::VlanPush, Action::Checksum, Action::Dscp].into_iter().map(Work::from).collect();
    let dear = model().single(&with);
    assert!((dear.classification - plain.classification - 6.0).abs() < 1e-9);
    assert!((dear.egress - plain.egress - 60.0).abs() < 1e-9);
}

#[test]
fn a_contract_becomes_cycles_per_second() {
    let contract = Contract {
        rate: Rate::Bits(BitsPerSecond(4_000_000_000)),
        sizes: "1000".parse().unwrap(),
        flows: Flows::Single,
    };
    let profile = contract.profile(1, RingKind::Split);
    // The rate is 500,000 frames a second at 190 cycles each.
    let need = model().entitlement(&contract, &profile, Deployment::SINGLE);
    assert_eq!(need, CyclesPerSecond(95_000_000));
    let frames = Contract { rate: Rate::Packets(PacketsPerSecond(500_000)), ..contract };
    assert_eq!(model().entitlement(&frames, &profile, Deployment::SINGLE), need);
    let four = Deployment { vms: 4, ..Deployment::SINGLE };
    assert_eq!(model().entitlement(&frames, &profile, four), CyclesPerSecond(108_300_000));
}

#[test]
fn counts_between_and_beyond_the_measured_ones() {
    let vms = |vms| model().factor(Deployment { vms, ..Deployment::SINGLE });
    assert!((vms(0) - 1.0).abs() < 1e-12 && (vms(2) - 1.0 - 0.14 / 3.0).abs() < 1e-9);
    assert!((vms(100) - 1.14).abs() < 1e-12);
}

#[test]
fn a_full_batch_costs_its_cells_and_a_small_one_more_per_frame() {
    let (model, profile) = (model(), profile("64"));
    let full = model.batch(&profile, Deployment::SINGLE, 32, 32 * 60);
    assert!((full - 32.0 * 96.4).abs() < 1e-9);
    let one = model.batch(&profile, Deployment::SINGLE, 1, 60);
    assert!((one - (320.0 + 96.4 - 10.0)).abs() < 1e-9);
    assert!(model.batch(&profile, Deployment::SINGLE, 0, 0).abs() < 1e-9);
}

#[test]
fn the_price_in_whole_numbers_is_the_models_where_cells_lie_on_a_line() {
    let (model, at) = (model(), Deployment { vms: 4, ..Deployment::SINGLE });
    for (size, frames) in [(64_u64, 1_u32), (512, 7), (1500, 32)] {
        let profile = profile(&size.to_string());
        let bytes = u64::from(frames) * (size - 4);
        let want = model.batch(&profile, at, frames, bytes);
        let price = to_f64(model.price(&profile, at).of(frames.into(), bytes).0);
        assert!((price - want).abs() < 2.0, "{size} x {frames}: {price} for {want}");
    }
}

#[test]
fn a_ring_without_measurements_uses_those_of_the_other() {
    let mut parts = parts();
    parts.cells.retain(|key, _| key.ring == RingKind::Split);
    let model = CostModel::new(parts).unwrap();
    let egress = |ring| model.at(ring, Flows::Single, 1, 64.0).egress;
    assert!((egress(RingKind::Packed) - egress(RingKind::Split)).abs() < 1e-12);
}

#[test]
fn an_error_in_a_model_names_its_place() {
    let key = CellKey { ring: RingKind::Split, flows: Flows::Multiple, rules: 1_000, size: 256 };
    let refused = |change: &dyn Fn(&mut Parts)| {
        let mut parts = parts();
        change(&mut parts);
        CostModel::new(parts).unwrap_err()
    };
    assert_eq!(refused(&|p| _ = p.cells.remove(&key)), ModelError::Missing(key));
    let bad = Spread { median: f64::NAN, min: 0.0, max: 1.0 };
    let spoil = |p: &mut Parts| {
        if let Some(cell) = p.cells.get_mut(&key) {
            cell.egress = bad;
        }
    };
    assert_eq!(refused(&spoil), ModelError::Cell(key));
    assert_eq!(refused(&|p| p.cells.retain(|k, _| k.size == 64)), ModelError::Sizes);
    assert_eq!(refused(&|p| p.batch.frames = 0), ModelError::Batch);
    assert_eq!(refused(&|p| _ = p.vms.remove(&1)), ModelError::Vms(1));
    assert_eq!(
        refused(&|p| _ = p.cores.insert(8, Coefficient::published(0.0))),
        ModelError::Cores(8)
    );
    assert_eq!(refused(&|p| p.numa_remote = Coefficient::published(1e9)), ModelError::Numa);
    let text = ModelError::Missing(key).to_string();
    assert!(text.contains("size 256, multiple flows, 1000 rules, split ring"), "{text}");
}
