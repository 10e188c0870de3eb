//! Tests that compare the computed rates of flows with the rates of simulated packets, on one link.

use std::sync::Arc;

use penstock_sim::Rng;
use penstock_sim::fabric::link_share::Queue;
use penstock_sim::fabric::packets::{Pace, PacketFlow, PacketLink, Sent};
use penstock_sim::fabric::rates::{LinkId, Rates};
use penstock_sim::fabric::{
    Always, Connection, FlowSim, Network, QueueControl, SizeTable, Spec, System, TenantSpec,
};
use penstock_units::{BitsPerSecond, Nanos};

const LINK: BitsPerSecond = BitsPerSecond(1_000_000_000);
const BYTES: u32 = 1_500;
const SECS: u64 = 2;

fn weighted(weight: f64) -> Queue {
    Queue { priority: 0, weight }
}

fn endless(queue: usize, pace: Pace) -> PacketFlow {
    PacketFlow { queue, from: Nanos(0), packets: None, bytes: BYTES, pace }
}

fn paced(queue: usize, mbps: u64) -> PacketFlow {
    endless(queue, Pace::Rate(BitsPerSecond(mbps * 1_000_000)))
}

fn packets(queues: &[Queue], flows: &[PacketFlow]) -> Vec<Sent> {
    let link = PacketLink { rate: LINK, queues: queues.to_vec(), room: 1_000 };
    link.carry(flows, Nanos::from_secs(SECS))
}

/// Returns the computed rate of each flow, and the refused fraction of the demand in the flow's
/// queue.
fn fluid(queues: &[Queue], flows: &[PacketFlow]) -> Vec<(f64, f64)> {
    let mut rates = Rates::new(&[1e9]);
    rates.set_queues(LinkId(0), queues.to_vec(), (0..queues.len()).collect());
    let ids: Vec<_> = flows.iter().map(|f| rates.add(f.queue, &[LinkId(0)])).collect();
    for (id, flow) in ids.iter().zip(flows) {
        let limit = match flow.pace {
            Pace::Window(_) => f64::INFINITY,
            Pace::Rate(rate) => f64::from(u32::try_from(rate.0).unwrap()),
        };
        rates.set(*id, 1.0, limit);
    }
    rates.settle();
    ids.iter().map(|id| (rates.rate(*id), rates.refused(*id))).collect()
}

fn rate(sent: &Sent) -> f64 {
    let secs = u32::try_from(SECS).unwrap();
    f64::from(u32::try_from(sent.packets).unwrap()) * f64::from(BYTES) * 8.0 / f64::from(secs)
}

#[test]
fn fluid_rates_match_those_of_packets() {
    let window = |queue| endless(queue, Pace::Window(8));
    let worlds: [(&[Queue], Vec<PacketFlow>); 4] = [
        (&[weighted(1.0), weighted(3.0)], vec![window(0), window(1), window(1), window(1)]),
        // A queue has a small demand. The other queues share the rest by weight.
        (&[weighted(4.0), weighted(2.0), weighted(1.0)], vec![paced(0, 200), window(1), window(2)]),
        // A flow in a queue has a small demand. The other flows of the queue share the rest.
        (&[weighted(1.0), weighted(1.0)], vec![paced(0, 50), window(0), window(0), window(1)]),
        (&[Queue::ONLY], vec![window(0), window(0), paced(0, 100), paced(0, 30)]),
    ];
    for (queues, flows) in worlds {
        let sent = packets(queues, &flows);
        for ((fluid, _), sent) in fluid(queues, &flows).into_iter().zip(&sent) {
            let found = rate(sent);
            assert!((found / fluid - 1.0).abs() < 0.01, "{found} by packets, {fluid}: {flows:?}");
        }
    }
}

#[test]
fn a_strict_priority_starves_the_other_in_both() {
    let queues = [Queue { priority: 0, weight: 1.0 }, Queue { priority: 1, weight: 1.0 }];
    let flows = [paced(0, 700), endless(1, Pace::Window(8)), endless(1, Pace::Window(8))];
    let sent = packets(&queues, &flows);
    for ((fluid, _), sent) in fluid(&queues, &flows).into_iter().zip(&sent) {
        assert!((rate(sent) / fluid - 1.0).abs() < 0.01, "{} and {fluid}", rate(sent));
    }
}

#[test]
fn the_lost_fraction_of_packets_is_what_the_fluid_refuses() {
    // The limits of two flows in one queue permit 600 Mbit/s, but the queue's share of the link is
    // 500 Mbit/s.
    let queues = [weighted(1.0), weighted(1.0)];
    let flows = [paced(0, 450), paced(0, 150), endless(1, Pace::Window(8))];
    let sent = packets(&queues, &flows);
    let (lost, all) = sent[..2]
        .iter()
        .fold((0, 0), |(lost, all), sent| (lost + sent.lost, all + sent.lost + sent.packets));
    let refused = fluid(&queues, &flows)[0].1;
    assert!((refused - 1.0 / 6.0).abs() < 1e-9);
    let share = f64::from(u32::try_from(lost).unwrap()) / f64::from(u32::try_from(all).unwrap());
    assert!((share - refused).abs() < 0.01, "{share} lost, {refused} refused");
}

/// Three tenants with one queue each send flows of 1.5 MB. The packet model and the flow model use
/// the same random times.
#[test]
fn completion_times_match_those_of_packets() {
    let mut rng = Rng::new(11);
    let guarantees = [100, 200, 400];
    let arrivals: Vec<(usize, Nanos)> = (0..60)
        .map(|_| (usize::try_from(rng.below(3)).unwrap(), Nanos(rng.below(800_000_000))))
        .collect();
    let flow = |(tenant, from): &(usize, Nanos)| PacketFlow {
        from: *from,
        packets: Some(1_000),
        ..endless(*tenant, Pace::Window(8))
    };
    let flows: Vec<_> = arrivals.iter().map(flow).collect();
    let queues: Vec<_> = guarantees.iter().map(|g| weighted(f64::from(*g))).collect();
    let sent = packets(&queues, &flows);
    let by_packets: Vec<f64> =
        sent.iter().zip(&flows).map(|(s, f)| secs(s.done.unwrap()) - secs(f.from)).collect();

    // The hosts' interfaces are so fast that they are never the bottleneck.
    let fast = BitsPerSecond(100_000_000_000);
    let tenant =
        |g: &u32| TenantSpec { vms: vec![0, 1], hose: BitsPerSecond(u64::from(*g) * 1_000_000) };
    let sizes = Some(Arc::new(SizeTable::fixed(1_500_000)));
    let connection = |(tenant, from): &(usize, Nanos)| Connection {
        sizes: sizes.clone(),
        from: *from,
        flows_max: 1,
        ..Connection::endless(*tenant, 1, vec![0])
    };
    let spec = Spec {
        network: Network::two_racks(1, fast, LINK),
        tenants: guarantees.iter().map(tenant).collect(),
        connections: arrivals.iter().map(connection).collect(),
        sample: Nanos::from_secs(1),
        watched: vec![Network::core(0)],
        seed: 1,
    };
    let controller = Box::new(Always::new(&spec, &[0, 1, 2]));
    let interval = Nanos::from_secs(100);
    let system = System::QShare(QueueControl { interval, controller, shared: None });
    let mut sim = FlowSim::new(spec, system).unwrap();
    sim.run_until(Nanos::from_secs(SECS));
    assert_eq!(sim.record().flows.len(), flows.len());
    let mut by_fluid: Vec<(Nanos, f64)> =
        sim.record().flows.iter().map(|f| (f.asked, f.seconds())).collect();
    by_fluid.sort_by_key(|(asked, _)| *asked);
    let mut pairs: Vec<(Nanos, f64)> = flows.iter().map(|f| f.from).zip(by_packets).collect();
    pairs.sort_by_key(|(from, _)| *from);
    let mean = |times: &[(Nanos, f64)]| times.iter().map(|t| t.1).sum::<f64>() / 60.0;
    let off = mean(&by_fluid) / mean(&pairs) - 1.0;
    assert!(off.abs() < 0.01, "the mean is {off:+.4} off");
    for ((at, fluid), (_, packets)) in by_fluid.iter().zip(&pairs) {
        assert!((fluid / packets - 1.0).abs() < 0.05, "{at:?}: {fluid} s, {packets} by packets");
    }
}

fn secs(time: Nanos) -> f64 {
    f64::from(u32::try_from(time.0).unwrap()) / 1e9
}
