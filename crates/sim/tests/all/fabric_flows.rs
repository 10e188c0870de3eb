//! Tests that compare the flow-level simulator with results computed by hand.

use std::sync::{Arc, Mutex};

use penstock_fabric::rate_alloc::RateSettings;
use penstock_sim::fabric::{
    Always, Change, Connection, Controller, FlowSim, HostUsage, Network, Order, PairLimits,
    QueueControl, Ramp, Record, SizeTable, Spec, System, TenantSpec, Terms, Timeline,
};
use penstock_units::{BitsPerSecond, Nanos};

const MBIT: u64 = 1_000_000;
const GBIT: BitsPerSecond = BitsPerSecond(1000 * MBIT);

/// Creates tenants that have `vms` VMs in each rack. Each tenant has a guarantee of 94 Mbit/s on
/// the core link.
fn spec(tenants: usize, vms: u64) -> Spec {
    let rack = |from: usize| (0..usize::try_from(vms).unwrap()).map(move |vm| from + vm % 5);
    let tenant =
        TenantSpec { vms: rack(0).chain(rack(5)).collect(), hose: BitsPerSecond(94 * MBIT / vms) };
    Spec {
        network: Network::two_racks(5, GBIT, GBIT),
        tenants: vec![tenant; tenants],
        connections: Vec::new(),
        sample: Nanos::from_millis(100),
        watched: vec![Network::core(0), Network::core(1)],
        seed: 7,
    }
}

/// Creates an endless flow from VM `from` in the first rack to the VM with the same number in the
/// second rack.
fn across(tenant: usize, vms: usize, from: usize) -> Connection {
    Connection::endless(tenant, vms + from, vec![from])
}

fn ended(spec: Spec, system: System, secs: u64) -> FlowSim {
    let mut sim = FlowSim::new(spec, system).unwrap();
    sim.run_until(Nanos::from_secs(secs));
    let (cut, of) = sim.cuts();
    assert!(cut * 100 <= of, "{cut} of {of}");
    sim
}

/// Returns a tenant's rate on the core link in the last sample, in Mbit/s.
fn last_mbps(record: &Record, tenant: usize) -> f64 {
    record.samples.last().unwrap().bits[2 * tenant] / 1e5
}

fn limits(rates: RateSettings) -> PairLimits {
    let partition = Nanos::from_millis(50);
    PairLimits { rates, partition, slack: 100_000, forget: partition }
}

fn qshare(spec: &Spec, dedicated: &[usize], shared: Option<PairLimits>) -> System {
    let controller = Box::new(Always::new(spec, dedicated));
    System::QShare(QueueControl { interval: Nanos::from_secs(4), controller, shared })
}

fn close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() < 1e-6 * wanted.max(1.0)
}

#[test]
fn tcp_shares_by_flows_static_reservation_wastes_and_a_queue_shares_by_guarantees() {
    // One tenant has one flow, and the other has five.
    let mut spec = spec(2, 5);
    spec.connections.push(across(0, 5, 0));
    spec.connections.extend((0..5).map(|vm| across(1, 5, vm)));
    let tcp = ended(spec.clone(), System::PlainTcp, 1);
    assert!(close(last_mbps(tcp.record(), 0), 1000.0 / 6.0));
    let fixed = ended(spec.clone(), System::StaticReservation, 1);
    assert!(close(last_mbps(fixed.record(), 0), 94.0 / 5.0));
    assert!(close(last_mbps(fixed.record(), 1), 94.0));
    let own = ended(spec.clone(), qshare(&spec, &[0, 1], None), 1);
    assert!(close(last_mbps(own.record(), 0), 500.0) && close(last_mbps(own.record(), 1), 500.0));
    // One tenant has a dedicated queue. The other tenant is limited to its guarantee, or gets spare
    // bandwidth by rate allocation.
    let held = ended(spec.clone(), qshare(&spec, &[0], None), 1);
    assert!(close(last_mbps(held.record(), 1), 94.0) && close(last_mbps(held.record(), 0), 906.0));
    let shared = RateSettings::shared_queue(GBIT);
    let system = qshare(&spec, &[0], Some(limits(shared)));
    let found = ended(spec, system, 20);
    assert!(last_mbps(found.record(), 1) > 400.0, "{}", last_mbps(found.record(), 1));
}

/// Controller with given changes, which records the times of the intervals.
#[derive(Debug)]
struct Scripted {
    start: Vec<Change>,
    changes: Vec<(Nanos, Change)>,
    intervals: Arc<Mutex<Vec<Nanos>>>,
}

impl Controller for Scripted {
    fn start(&mut self) -> Vec<Change> {
        self.start.clone()
    }

    fn interval(&mut self, now: Nanos, _: &[Vec<HostUsage>]) -> Timeline {
        self.intervals.lock().unwrap().push(now);
        let changes = std::mem::take(&mut self.changes);
        let end = changes.last().map_or(now, |(at, _)| *at);
        Timeline { changes, end }
    }
}

/// Gives a tenant a code point and a limit on all ten hosts.
fn on_all_hosts(tenant: usize, dscp: u8, limit_permille: Option<u32>) -> Vec<Change> {
    let terms = vec![(tenant, Terms { dscp, limit_permille })];
    (0..10).map(|host| Change::Host { host, terms: terms.clone() }).collect()
}

#[test]
fn whole_weights_maps_and_marks_are_in_force_from_their_time_on() {
    let mut spec = spec(2, 5);
    for tenant in 0..2 {
        spec.connections.extend((0..5).map(|vm| across(tenant, 5, vm)));
    }
    let ms = Nanos::from_millis;
    let port = |at, weights: &[u32], map: &[(u8, u8)]| {
        let map = map.iter().copied().collect();
        (ms(at), Change::Port { link: Network::core(0), weights: weights.to_vec(), map })
    };
    let hosts = |at, tenant, dscp, limit| {
        on_all_hosts(tenant, dscp, limit).into_iter().map(move |change| (ms(at), change))
    };
    let mut changes = vec![port(1_100, &[3, 7], &[(8, 1)])];
    changes.extend(hosts(1_300, 0, 8, None));
    changes.extend(hosts(1_500, 1, 0, None));
    changes.push(port(1_700, &[1, 2], &[(8, 1)]));
    // Without a map, both tenants are in queue 0 and share by flows.
    changes.push(port(1_900, &[1, 2], &[]));
    changes.push(port(2_500, &[1, 3], &[(8, 1)]));
    let start = (0..2).flat_map(|tenant| on_all_hosts(tenant, 0, Some(1_000))).collect();
    let intervals = Arc::new(Mutex::new(Vec::new()));
    let controller = Box::new(Scripted { start, changes, intervals: Arc::clone(&intervals) });
    let control = QueueControl { interval: Nanos::from_secs(1), controller, shared: None };
    let sim = ended(spec, System::QShare(control), 4);
    let samples = &sim.record().samples;
    // The sample number n has the 0.1 s before (n + 1) / 10 s.
    let rates = |at: usize| (samples[at].bits[0] / 1e5, samples[at].bits[2] / 1e5);
    for (at, first, second) in [
        (9, 94.0, 94.0),
        (12, 94.0, 94.0),
        (14, 906.0, 94.0),
        (16, 700.0, 300.0),
        (18, 2_000.0 / 3.0, 1_000.0 / 3.0),
        (20, 500.0, 500.0),
        (39, 750.0, 250.0),
    ] {
        let (a, b) = rates(at);
        assert!(close(a, first) && close(b, second), "{at}: {a} and {b}");
    }
    // A plan that takes longer than an interval delays the next interval.
    let times: Vec<u64> = intervals.lock().unwrap().iter().map(|at| at.0 / 1_000_000).collect();
    assert_eq!(times, [1_000, 2_500, 3_500]);
    // While the second tenant had no limit and shared the queue, nothing was sure.
    let kept = &sim.record().kept;
    let at = |at: u64| kept.iter().rev().find(|(from, _)| *from <= ms(at)).unwrap().1;
    assert_eq!((at(0), at(1_200)), (1.0, 1.0));
    assert!(at(2_000) < 1e-6, "{}", at(2_000));
}

#[test]
fn a_flow_takes_its_size_over_its_rate_and_the_latency() {
    let mut spec = spec(1, 1);
    let sizes = Some(Arc::new(SizeTable::parse("125000 1").unwrap()));
    let latency = Nanos::from_millis(1);
    let one = Connection { sizes, flows_max: 3, latency, ..Connection::endless(0, 1, vec![0]) };
    spec.connections = vec![one.clone(), one];
    let mut sim = FlowSim::new(spec, System::PlainTcp).unwrap();
    sim.run_until(Nanos::from_millis(20));
    // Two flows of 1 Mbit share 1 Gbit/s, so each takes 2 ms plus latency. This happens three
    // times.
    let flows = &sim.record().flows;
    assert_eq!((flows.len(), flows[5].done), (6, Nanos::from_millis(9)));
    assert!(flows.iter().all(|f| f.done.0 - f.asked.0 == 3_000_000 && f.bytes == 125_000));
    assert!(flows.iter().all(|f| f.far));
}

#[test]
fn with_windows_a_flow_needs_some_rounds_more_and_losses_do_not_empty_a_link() {
    let ms = Nanos::from_millis;
    let mut one = spec(1, 1);
    let sizes = Some(Arc::new(SizeTable::fixed(1_000_000)));
    one.connections =
        vec![Connection { sizes, flows_max: 1, ..Connection::endless(0, 1, vec![0]) }];
    let mut sim = FlowSim::new(one, System::PlainTcp).unwrap().with_ramp(Ramp::new(ms(1), ms(1)));
    sim.run_until(Nanos::from_secs(1));
    // The first four rounds of 1 ms carry 10, 20, 40 and 80 segments of 1,460 bytes: 1.752 Mbit.
    // The other 6.248 Mbit have the link's rate of 1 Gbit/s.
    let done = sim.record().flows[0].done;
    assert!(done.0.abs_diff(10_248_000) < 10, "{done:?}");
    // Endless flows halve their windows again and again, but the queue never runs empty.
    let mut many = spec(1, 5);
    many.connections = (0..5).map(|vm| across(0, 5, vm)).collect();
    let mut sim = FlowSim::new(many, System::PlainTcp).unwrap().with_ramp(Ramp::new(ms(1), ms(1)));
    sim.run_until(Nanos::from_secs(2));
    assert!(close(last_mbps(sim.record(), 0), 1_000.0), "{}", last_mbps(sim.record(), 0));
}

/// Creates clients with mixed traffic: flow sizes from a table, pauses, and servers on all other
/// hosts.
fn mixed(seed: u64) -> Spec {
    let mut spec = Spec { seed, ..spec(4, 6) };
    let sizes = Some(Arc::new(SizeTable::parse("1000 0.5\n1000000 0.95\n20000000 1").unwrap()));
    for tenant in 0..4 {
        for client in 0..12 {
            let host = spec.tenants[tenant].vms[client];
            let far = |vm: &usize| spec.tenants[tenant].vms[*vm] != host;
            spec.connections.push(Connection {
                sizes: sizes.clone(),
                order: if tenant == 0 { Order::Rounds } else { Order::Random },
                pause_ppm: 500_000,
                pause_max: Nanos::from_millis(200),
                latency: Nanos::from_micros(100),
                ..Connection::endless(tenant, client, (0..12).filter(far).collect())
            });
        }
    }
    spec
}

fn systems() -> Vec<System> {
    let spec = mixed(1);
    vec![
        System::PlainTcp,
        System::StaticReservation,
        System::ElasticSwitch(limits(RateSettings::cautious(GBIT))),
        System::Trinity(limits(RateSettings::shared_queue(GBIT))),
        qshare(&spec, &[0, 2], None),
        qshare(&spec, &[0, 2], Some(limits(RateSettings::shared_queue(GBIT)))),
    ]
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_another() {
    for (again, system) in systems().into_iter().zip(systems()) {
        let run = |seed, system| ended(mixed(seed), system, 3).record().clone();
        let first = run(1, system);
        assert!(first.flows.len() > 100);
        assert!(first == run(1, again));
    }
    let run = |seed| ended(mixed(seed), System::PlainTcp, 3).record().clone();
    assert!(run(1) != run(2));
}

#[test]
fn a_copy_continues_as_its_original_unless_it_changes() {
    for system in systems() {
        let has_controller = matches!(system, System::QShare(_));
        let mut sim = FlowSim::new(mixed(2), system).unwrap();
        sim.run_until(Nanos::from_secs(1));
        let before = sim.record().flows.len();
        let copies =
            (sim.fork(|_| ()), sim.fork(|of| of.sizes = Some(Arc::new(SizeTable::fixed(9)))));
        sim.run_until(Nanos::from_secs(2));
        let (Some(mut copy), Some(mut other)) = copies else {
            assert!(has_controller);
            continue;
        };
        assert!(!has_controller);
        copy.run_until(Nanos::from_secs(2));
        assert!(copy.record() == sim.record() && copy.cuts() == sim.cuts());
        other.run_until(Nanos::from_secs(2));
        let flows = &other.record().flows;
        assert!(flows[..before] == sim.record().flows[..before]);
        assert!(flows.len() > before && flows[before..].iter().any(|flow| flow.bytes == 9));
    }
}

#[test]
fn bits_over_the_core_are_those_that_arrived_and_never_exceed_its_capacity() {
    for system in systems() {
        let name = format!("{system:?}");
        let record = ended(mixed(3), system, 5).record().clone();
        let passed: f64 = record.samples.iter().flat_map(|s| &s.bits).sum();
        let far = record.flows.iter().filter(|f| f.far);
        #[expect(clippy::cast_precision_loss, reason = "bits of five seconds")]
        let arrived = far.map(|f| f.bytes as f64 * 8.0).sum::<f64>();
        // The total includes bits of unfinished flows: at most one flow of 20 MB per client.
        assert!(passed >= arrived * (1.0 - 1e-9) && passed - arrived < 48.0 * 1.6e8, "{name}");
        for sample in &record.samples {
            for link in 0..2 {
                let bits: f64 = sample.bits.iter().skip(link).step_by(2).sum();
                assert!(bits <= 1e8 * (1.0 + 1e-6), "{name}: {bits} bits in 0.1 s");
            }
        }
    }
}

#[test]
fn a_tenant_limited_to_its_guarantee_gets_its_entitlement() {
    let sim = FlowSim::new(mixed(5), System::StaticReservation).unwrap();
    let mut sim = sim.with_entitlements();
    sim.run_until(Nanos::from_secs(5));
    for sample in &sim.record().samples {
        let pairs = sample.bits.iter().zip(&sample.entitled);
        assert!(pairs.into_iter().all(|(got, due)| close(got / 1e6, due / 1e6)), "{sample:?}");
    }
}
