//! Tests of the simulated testbed. The throughput must follow from the costs, and runs with the
//! same seed must give the same result.

use penstock_dataplane::schedule::{Readiness, ScheduleKind};
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_qos::c2tb::Spare;
use penstock_sim::testbed::{Link, Probe, Requests, Setup, Testbed, Traffic, VmId, VmReading};
use penstock_sim::{Costs, Overheads, SnapshotCost, StageCost};
use penstock_units::{BitsPerSecond, Cycles, CyclesPerSecond, Nanos, TscRate};

const CORE: TscRate = TscRate::from_hz(2_000_000_000);

fn setup(seed: u64) -> Setup {
    Setup {
        core: CORE,
        capacity: None,
        workers: 1,
        costs: Costs {
            ingress: StageCost { batch: 0.0, frame: 400.0, byte: 0.5 },
            classification: StageCost { batch: 0.0, frame: 100.0, byte: 0.0 },
            miss: 400.0,
            egress: StageCost { batch: 0.0, frame: 100.0, byte: 0.0 },
            factor: 1.0,
            noise: 0.05,
            idle: Cycles(200),
            overheads: Overheads::ASSUMED,
            snapshot: SnapshotCost::NONE,
        },
        link: Link { rate: BitsPerSecond(10_000_000_000), ring: 512, cost: StageCost::default() },
        uplink: PortQos::default(),
        vms: 16,
        schedule: ScheduleKind::RoundRobin,
        readiness: Readiness::Pending,
        spare: Spare::Pool,
        refill: Nanos::from_micros(50),
        seed,
    }
}

fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

fn run(bed: &mut Testbed, vms: &[VmId], until: Nanos) -> Vec<VmReading> {
    bed.run_until(until);
    vms.iter().map(|&vm| bed.vm(vm)).collect()
}

#[test]
fn a_full_core_carries_what_the_costs_say() {
    for (traffic, cost) in [
        (Traffic::greedy(64), 632),
        (Traffic::greedy(512), 856),
        (Traffic::greedy(512).with_many_flows(), 1_156),
    ] {
        let mut bed = Testbed::new(&setup(1));
        let vm = bed.add_vm(256, PortQos::default(), 0);
        bed.send(vm, Nanos::ZERO, traffic);
        let seen = run(&mut bed, &[vm], ms(50))[0];
        let due = CORE.hz() / 20 / cost;
        assert!(seen.carried.frames.abs_diff(due) < due / 50, "{} of {due}", seen.carried.frames);
        assert_eq!(seen.port.unaccounted(), 0);
        assert_eq!(seen.carried.dropped, 0);
    }
}

#[test]
fn a_paced_vm_gets_its_pace_and_a_link_no_more_than_its_rate() {
    let mut bed = Testbed::new(&setup(1));
    let slow = bed.add_vm(256, PortQos::default(), 0);
    bed.send(slow, ms(10), Traffic::paced(1024, 123_456.0));
    bed.run_until(ms(110));
    let carried = bed.vm(slow).carried;
    assert!(carried.frames.abs_diff(12_346) <= 2, "{carried:?}");
    assert_eq!(carried.bytes - 64, (carried.frames - 1) * 1024);

    let mut setup = setup(1);
    setup.link.rate = BitsPerSecond(1_000_000_000);
    let mut bed = Testbed::new(&setup);
    let fast = bed.add_vm(256, PortQos::default(), 0);
    bed.send(fast, Nanos::ZERO, Traffic::greedy(1500));
    bed.run_until(ms(100));
    // The bytes of 0.1 s, plus those of the frames in the ring.
    let due = 100_000_000 / 8 + 512 * 1520;
    assert!(bed.wire_bytes().abs_diff(due) < due / 50, "{} of {due}", bed.wire_bytes());
    assert!(bed.vm(fast).carried.dropped > 1_000);
}

#[test]
fn an_entitlement_bounds_a_strict_vm() {
    let mut bed = Testbed::new(&setup(1));
    let qos = PortQos {
        ingress: IngressPolicy::CyclesStrict,
        entitlement: CyclesPerSecond(500_000_000),
        ..PortQos::default()
    };
    let vm = bed.add_vm(256, qos, 0);
    bed.send(vm, Nanos::ZERO, Traffic::greedy(512));
    bed.run_until(ms(200));
    let due = 500_000_000 / 5;
    let used = bed.vm(vm).port.cycles;
    assert!(used.abs_diff(due) < due / 100, "{used} of {due}");
}

/// The host account pays for each refill. The host account also pays for the poll of the empty
/// uplink if the poll came just before the refill.
#[test]
fn refills_are_charged_to_the_host() {
    let mut bed = Testbed::new(&setup(1));
    let entitlement = CyclesPerSecond(CORE.hz() / 5);
    let qos = PortQos { ingress: IngressPolicy::CyclesStrict, entitlement, ..PortQos::default() };
    let vm = bed.add_vm(256, qos, 0);
    bed.send(vm, Nanos::ZERO, Traffic::greedy(512));
    bed.run_until(ms(50));
    let worker = bed.worker(0);
    assert!(worker.refills > 900, "{worker:?}");
    let Overheads { look, refill, .. } = Overheads::ASSUMED;
    let looks = worker.cycles_host - worker.refills * refill.0;
    assert_eq!(looks % look.0, 0, "{worker:?}");
    assert!(looks <= worker.refills * look.0, "{worker:?}");
}

#[test]
fn a_probe_alone_takes_its_configured_times_and_two_batches() {
    let mut bed = Testbed::new(&setup(1));
    let vm = bed.add_vm(256, PortQos::default(), 0);
    let (server, guest) = (Nanos::from_micros(20), Nanos::from_micros(30));
    bed.probe(vm, Probe { from: ms(1), until: ms(51), server, guest });
    bed.run_until(ms(60));
    let trips = bed.round_trips(vm);
    assert!((900..1_100).contains(&trips.len()), "{}", trips.len());
    let us: Vec<u64> = trips.iter().map(|t| t.took.0 / 1_000).collect();
    assert!(us.iter().all(|us| (10..33).contains(us)), "{us:?}");
    let mean = us.iter().sum::<u64>() / us.len() as u64;
    assert!((19..23).contains(&mean), "{mean}");
}

#[test]
fn clients_get_their_responses() {
    let mut bed = Testbed::new(&setup(1));
    let vm = bed.add_vm(256, PortQos::default(), 0);
    bed.serve(
        vm,
        Requests {
            from: ms(1),
            until: ms(101),
            bursts_per_second: 1_000.0,
            burst: 20,
            response_frames: 3,
            service: Nanos::from_micros(50),
            outside: Nanos::from_micros(10),
            size: 256,
        },
    );
    bed.run_until(ms(110));
    let responses = bed.responses(vm);
    assert!((1_500..2_500).contains(&responses.len()), "{}", responses.len());
    assert!(responses.len().is_multiple_of(20));
    assert!(responses.iter().all(|r| r.took > Nanos::from_micros(35)));
}

fn busy(workers: u16, seed: u64) -> (Vec<VmReading>, Vec<u64>, u64) {
    let setup = Setup { workers, schedule: ScheduleKind::Hbs, ..setup(seed) };
    let mut bed = Testbed::new(&setup);
    let vms: Vec<VmId> = (0..4)
        .map(|n| {
            let qos = PortQos {
                ingress: IngressPolicy::CyclesMinmax,
                entitlement: CyclesPerSecond(300_000_000),
                ..PortQos::default()
            };
            bed.add_vm(256, qos, n % usize::from(workers))
        })
        .collect();
    for vm in &vms[1..] {
        bed.send(*vm, Nanos::ZERO, Traffic::greedy(64).with_many_flows());
        bed.send(*vm, ms(10), Traffic::paced(1024, 300_000.0).with_sizes(&[(64, 1), (1024, 2)]));
        bed.sample(*vm, (ms(1), ms(20)), 5_000);
    }
    let us = Nanos::from_micros(10);
    bed.probe(vms[0], Probe { from: ms(1), until: ms(20), server: us, guest: us });
    let seen = run(&mut bed, &vms, ms(30));
    let trips = bed.round_trips(vms[0]).iter().map(|t| t.took.0).collect();
    (seen, trips, bed.wire_bytes())
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    for workers in [1, 2] {
        let (a, b, c) = (busy(workers, 7), busy(workers, 7), busy(workers, 8));
        assert!(a == b);
        assert!(a != c);
        assert!(a.0.iter().all(|vm| vm.port.unaccounted() == 0));
    }
}
