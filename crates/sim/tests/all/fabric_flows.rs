//! Tests that compare the flow-level simulator with results computed by hand.

use std::sync::Arc;

use penstock_fabric::rate_alloc::RateSettings;
use penstock_sim::fabric::{
    Always, Connection, FlowSim, Network, Order, PairLimits, QueueControl, Record, SizeTable, Spec,
    System, TenantSpec,
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

fn qshare(dedicated: &[usize], shared: Option<PairLimits>) -> System {
    System::QShare(QueueControl {
        interval: Nanos::from_secs(4),
        delay: Nanos::from_millis(100),
        binder: Box::new(Always(dedicated.to_vec())),
        shared,
    })
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
    let own = ended(spec.clone(), qshare(&[0, 1], None), 1);
    assert!(close(last_mbps(own.record(), 0), 500.0) && close(last_mbps(own.record(), 1), 500.0));
    // One tenant has a dedicated queue. The other tenant is limited to its guarantee, or gets spare
    // bandwidth by rate allocation.
    let held = ended(spec.clone(), qshare(&[0], None), 1);
    assert!(close(last_mbps(held.record(), 1), 94.0) && close(last_mbps(held.record(), 0), 906.0));
    let shared = RateSettings::shared_queue(GBIT);
    let found = ended(spec, qshare(&[0], Some(limits(shared))), 20);
    assert!(last_mbps(found.record(), 1) > 400.0, "{}", last_mbps(found.record(), 1));
}

#[test]
fn a_flow_takes_its_size_over_its_rate_and_the_latency() {
    let mut spec = spec(1, 1);
    let sizes = Some(Arc::new(SizeTable::parse("125000 1").unwrap()));
    let latency = Nanos::from_millis(1);
    let one = Connection { sizes, flows_max: 3, latency, ..Connection::endless(0, 1, vec![0]) };
    spec.connections = vec![one.clone(), one];
    let mut sim = FlowSim::new(spec, System::PlainTcp).unwrap();
    sim.run_to_completion(Nanos::from_secs(9));
    // Two flows of 1 Mbit share 1 Gbit/s, so each takes 2 ms plus latency. This happens three
    // times.
    let flows = &sim.record().flows;
    assert_eq!((flows.len(), sim.now()), (6, Nanos::from_millis(9)));
    assert!(flows.iter().all(|f| f.done.0 - f.asked.0 == 3_000_000 && f.bytes == 125_000));
    assert!(flows.iter().all(|f| f.far));
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
    vec![
        System::PlainTcp,
        System::StaticReservation,
        System::ElasticSwitch(limits(RateSettings::cautious(GBIT))),
        System::Trinity(limits(RateSettings::low_priority(GBIT))),
        qshare(&[0, 2], None),
        qshare(&[0, 2], Some(limits(RateSettings::shared_queue(GBIT)))),
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
