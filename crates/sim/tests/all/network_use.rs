//! Network traffic of tenants is counted separately from traffic that stays on the host.

use std::sync::Arc;

use penstock_dataplane::counters::PortReading;
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, World, WorldConfig};
use penstock_units::{BitsPerSecond, Nanos, TscRate};

const END: Nanos = Nanos::from_millis(50);
/// Frames from VM 1 to the uplink, from VM 2 to VM 1, and from the uplink to VM 2. Each kind has
/// its own size.
const FLOWS: [(u16, u16, usize); 3] = [(1, 0, 300), (2, 1, 500), (0, 2, 900)];

/// Port 0 is shared and may have a queue. Ports 1 and 2 are VMs of two tenants on one network.
fn world(workers: u16, queued: bool) -> (World, [PortHandle; 3]) {
    let config = WorldConfig { workers, ..WorldConfig::default() };
    let rate = TscRate::from_hz(2_000_000_000);
    let mut world = World::with_config(&config, rate, Costs::EXAMPLE, 64, 7);
    let ports = [0, 1, 2].map(|_| world.add_vm(1, 1_024, SinkSpec::default()).expect("possible"));
    for (tenant, port) in (0..).zip(&ports[1..]) {
        world.set_policy(*port, |policy| policy.tenant = Some(tenant));
    }
    world.set_policy(ports[0], |policy| policy.tenant = None);
    if queued {
        let terms = QueueTerms {
            order: Order::Wfq,
            pacing: Pacing::Link(BitsPerSecond(1_000_000_000)),
            bound: Bound { bytes: 256 * 1024, wait: Nanos::from_secs(1), excess: Excess::Drop },
            frames: 4_096,
        };
        let home = QueueHome::new(terms, 64, 64);
        world.set_policy(ports[0], |policy| policy.queue = Some(Arc::clone(&home)));
    }
    ports.iter().for_each(|port| world.introduce(*port));
    (world, ports)
}

fn net(reading: &PortReading) -> [u64; 4] {
    [
        reading.net_sent_frames,
        reading.net_sent_bytes,
        reading.net_received_frames,
        reading.net_received_bytes,
    ]
}

#[test]
fn a_tenants_network_traffic_is_limited_but_not_its_traffic_within_the_host() {
    for (workers, queued) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut world, ports) = world(workers, queued);
        world.run_until(Nanos::from_millis(5));
        let bytes = Some((BitsPerSecond(8_000_000), 30_000));
        let terms = Terms { bytes, frames: None, per_frame: 4 };
        let limit = Arc::new(EgressPolicer::new(Meter::new(terms), None, Sharing::Strict));
        world.set_policy(ports[1], |policy| policy.tenant_policer = Some(Arc::clone(&limit)));
        let before = ports.map(|port| world.port(port));
        for (to, size) in [(0, 300), (2, 500)] {
            let spec = SourceSpec {
                target: World::mac_of(to),
                sizes: vec![(size, 1)],
                frames_per_second: 20_000,
                flows: 3,
                from: world.now(),
                until: world.now() + Nanos::from_millis(100),
                loss_ppm: 0,
            };
            world.set_source(ports[1], spec);
            world.run_until(world.now() + Nanos::from_millis(110));
        }
        let [_, one, two] = [0, 1, 2].map(|at| world.port(ports[at]).since(&before[at]));
        let case = format!("{workers} workers, queue {queued}");
        let above = one.drops[DropReason::SendLimit as usize];
        // The limit is a burst of 30,000 bytes and 1,000,000 bytes per second, FCS included.
        let most = (30_000 + 100_000) / 304;
        assert!(one.net_sent_frames <= most && one.net_sent_frames >= most - 10, "{case}: {one:?}");
        assert_eq!(one.net_sent_frames + above, 2_000, "{case}");
        assert_eq!(two.tx_frames, 2_000, "{case}: within the host nobody counts");
    }
}

#[test]
fn only_traffic_that_leaves_or_enters_the_host_is_network_use() {
    for (workers, queued) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut world, ports) = world(workers, queued);
        // The world runs until the switch knows all addresses.
        world.run_until(Nanos::from_millis(5));
        let before = ports.map(|port| world.port(port));
        assert_eq!(before[1].net_sent_frames, 1, "of a flood the copy that left");
        for (from, to, size) in FLOWS {
            let spec = SourceSpec {
                target: World::mac_of(to),
                sizes: vec![(size, 1)],
                frames_per_second: 20_000,
                flows: 3,
                from: world.now(),
                until: END,
                loss_ppm: 0,
            };
            world.set_source(ports[usize::from(from)], spec);
        }
        world.run_until(END + Nanos::from_millis(10));
        let [up, one, two] = [0, 1, 2].map(|at| world.port(ports[at]).since(&before[at]));
        let case = format!("{workers} workers, queue {queued}");
        assert!([&up, &one, &two].iter().all(|port| port.forwarded > 800), "{case}");
        assert_eq!(net(&up), [0; 4], "{case}: it is the network");
        assert_eq!(net(&one), [one.forwarded, one.forwarded * 300, 0, 0], "{case}");
        assert_eq!(net(&two), [0, 0, up.forwarded, up.forwarded * 900], "{case}");
        assert_eq!((one.tx_frames, up.tx_frames), (two.forwarded, one.forwarded), "{case}");
    }
}
