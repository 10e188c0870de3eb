//! Tests that the switch counts tenants' network traffic separately from traffic that stays on the
//! host.

use std::sync::Arc;

use penstock_dataplane::counters::PortReading;
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_qos::policer::wait_depth;
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, World, WorldConfig};
use penstock_units::{BitsPerSecond, Nanos, TscRate};

const END: Nanos = Nanos::from_millis(50);
/// Source port, destination port and frame size in bytes of three flows: from VM 1 to the uplink,
/// from VM 2 to VM 1, and from the uplink to VM 2.
const FLOWS: [(u16, u16, usize); 3] = [(1, 0, 300), (2, 1, 500), (0, 2, 900)];

/// Creates a world with three ports. Port 0 is the uplink, which tenants share and which may have a
/// queue. Ports 1 and 2 are VMs of two tenants in one network.
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
            ..QueueTerms::default()
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
        let terms = Terms { bytes, frames: None, per_frame: 4, waits: false };
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

fn waiting(rate: u64) -> Terms {
    let rate = BitsPerSecond(rate);
    let bytes = Some((rate, wait_depth(rate)));
    Terms { bytes, per_frame: 4, waits: true, ..Terms::default() }
}

/// Returns a policer of a port's part of its tenant's limit, for which frames wait.
fn part(tenant: &Arc<Meter>, rate: u64) -> Arc<EgressPolicer> {
    let (part, tenant) = (Meter::new(waiting(rate)), Some(Arc::clone(tenant)));
    Arc::new(EgressPolicer::new(part, tenant, Sharing::Borrow))
}

fn flood(to: u16, size: usize, per_second: u64, until: Nanos) -> SourceSpec {
    SourceSpec {
        target: World::mac_of(to),
        sizes: vec![(size, 1)],
        frames_per_second: per_second,
        flows: 3,
        from: Nanos::from_millis(5),
        until,
        loss_ppm: 0,
    }
}

#[test]
fn frames_above_a_send_limit_wait_and_neighbours_of_the_host_do_not() {
    for (workers, queued) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut world, ports) = world(workers, queued);
        let tenant = Arc::new(Meter::new(waiting(100_000_000)));
        let end = Nanos::from_secs(2);
        for port in &ports[1..] {
            let limit = part(&tenant, 50_000_000);
            world.set_policy(*port, |policy| policy.tenant_policer = Some(Arc::clone(&limit)));
        }
        // VM 1 floods the uplink with twice the limit. VM 2 sends to its neighbour.
        world.set_source(ports[1], flood(0, 1_514, 16_500, end));
        world.set_source(ports[2], flood(1, 1_514, 10_000, end));
        world.run_until(Nanos::from_secs(1));
        let before = ports.map(|port| world.port(port));
        world.run_until(end);
        let [_, one, two] = [0, 1, 2].map(|at| world.port(ports[at]).since(&before[at]));
        let case = format!("{workers} workers, queue {queued}");
        let bits = one.net_sent_frames * 1_518 * 8;
        assert!((99_000_000..=101_000_000).contains(&bits), "{case}: {bits}");
        assert!(one.send_waits > 100 && one.dropped() == 0, "{case}: {one:?}");
        assert!((9_990..=10_010).contains(&two.forwarded), "{case}: {}", two.forwarded);
        assert_eq!(two.send_waits, 0, "{case}: it sends nothing out of the host");
    }
}

#[test]
fn a_vm_with_short_frames_has_its_part_of_a_send_limit_beside_one_with_long_frames() {
    for workers in [1, 2] {
        let (mut world, ports) = world(workers, false);
        let tenant = Arc::new(Meter::new(waiting(100_000_000)));
        let end = Nanos::from_secs(2);
        for port in &ports[1..] {
            let limit = part(&tenant, 50_000_000);
            world.set_policy(*port, |policy| policy.tenant_policer = Some(Arc::clone(&limit)));
        }
        world.set_source(ports[1], flood(0, 1_514, 16_500, end));
        // 80,000 frames of 64 bytes are 41 Mbit/s, which is below the VM's part.
        world.set_source(ports[2], flood(0, 60, 80_000, end));
        world.run_until(Nanos::from_secs(1));
        let before = ports.map(|port| world.port(port));
        world.run_until(end);
        let [_, long, short] = [0, 1, 2].map(|at| world.port(ports[at]).since(&before[at]));
        let case = format!("{workers} workers");
        assert!((79_000..=81_000).contains(&short.net_sent_frames), "{case}: {short:?}");
        let all = (long.net_sent_frames * 1_518 + short.net_sent_frames * 64) * 8;
        assert!((98_000_000..=101_000_000).contains(&all), "{case}: {all}");
    }
}
