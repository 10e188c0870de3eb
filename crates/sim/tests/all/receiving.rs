//! Limits on what VMs and tenants receive, policed at the switch's output.

use std::sync::Arc;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, World, WorldConfig};
use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, TscRate};

fn world(workers: u16) -> World {
    let config = WorldConfig { workers, ..WorldConfig::default() };
    World::with_config(&config, TscRate::from_hz(2_000_000_000), Costs::EXAMPLE, 16, 7)
}

fn frames(rate: u64, depth: u32) -> Terms {
    Terms { frames: Some((PacketsPerSecond(rate), depth)), ..Terms::default() }
}

fn vm(world: &mut World) -> PortHandle {
    world.add_vm(1, 1_024, SinkSpec::default()).expect("possible")
}

/// Frames of `size` bytes for VM number `to`.
fn flood(to: u16, size: usize, per_second: u64, from: Nanos, until: Nanos) -> SourceSpec {
    SourceSpec {
        target: World::mac_of(to),
        sizes: vec![(size, 1)],
        frames_per_second: per_second,
        flows: 1,
        from,
        until,
        loss_ppm: 0,
    }
}

fn limit(world: &mut World, port: PortHandle, policer: EgressPolicer) {
    let policer = Arc::new(policer);
    world.set_policy(port, |policy| policy.egress_policer = Some(Arc::clone(&policer)));
}

/// FS-VDE's Eq. (3) as printed would pass 70,000 frames of this flood.
#[test]
fn a_minute_of_silence_earns_no_more_than_the_depth() {
    let mut world = world(1);
    let (to, from) = (vm(&mut world), vm(&mut world));
    world.introduce(to);
    limit(&mut world, to, EgressPolicer::new(Meter::new(frames(1_000, 50)), None, Sharing::Strict));
    let (start, end) = (Nanos::from_secs(60), Nanos::from_secs(70));
    world.set_source(from, flood(0, 60, 10_000, start, end));
    world.run_until(end);
    let (port, sender) = (world.port(to), world.port(from));
    assert!((10_045..=10_050).contains(&port.tx_frames), "{}", port.tx_frames);
    assert_eq!(port.tx_drops[DropReason::ReceiveLimit as usize], sender.rx_frames - port.tx_frames);
    assert_eq!(sender.unaccounted(), 0);
}

#[test]
fn the_tenants_contract_holds_over_workers_and_siblings_keep_their_parts() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let vms = [vm(&mut world), vm(&mut world)];
        let senders = [vm(&mut world), vm(&mut world)];
        vms.iter().for_each(|port| world.introduce(*port));
        let rate = |rate, depth| Terms {
            bytes: Some((BitsPerSecond(rate), depth)),
            per_frame: 4,
            ..Terms::default()
        };
        let tenant = Arc::new(Meter::new(rate(80_000_000, 100_000)));
        for port in vms {
            let part = Meter::new(rate(40_000_000, 20_000));
            limit(
                &mut world,
                port,
                EgressPolicer::new(part, Some(Arc::clone(&tenant)), Sharing::Borrow),
            );
        }
        // A frame has 996 bytes plus FCS, so the contract allows 10,000 frames per second.
        let end = Nanos::from_secs(2);
        world.set_source(senders[0], flood(0, 996, 50_000, Nanos(0), end));
        world.set_source(senders[1], flood(1, 996, 4_500, Nanos(0), end));
        world.run_until(end);
        let [borrower, sibling] = vms.map(|port| world.port(port));
        assert_eq!(sibling.tx_drops, [0; DropReason::COUNT], "{workers}");
        let sent = world.port(senders[1]).forwarded;
        assert!((8_990..=9_000).contains(&sent), "{sent}");
        let all = borrower.tx_frames + sibling.tx_frames;
        assert!((20_000..=20_102).contains(&all), "{workers}: {all}");
        assert!(borrower.tx_drops[DropReason::ReceiveLimit as usize] > 80_000);
        senders.iter().for_each(|port| assert_eq!(world.port(*port).unaccounted(), 0));
    }
}

#[test]
fn a_strict_vm_gets_no_more_than_its_part() {
    let mut world = world(1);
    let (to, from) = (vm(&mut world), vm(&mut world));
    world.introduce(to);
    let tenant = Some(Arc::new(Meter::new(frames(100_000, 100))));
    limit(
        &mut world,
        to,
        EgressPolicer::new(Meter::new(frames(5_000, 10)), tenant, Sharing::Strict),
    );
    let end = Nanos::from_secs(1);
    world.set_source(from, flood(0, 200, 50_000, Nanos(0), end));
    world.run_until(end);
    let got = world.port(to).tx_frames;
    assert!((5_005..=5_011).contains(&got), "{got}");
}

/// Frames dropped by the limit never enter the queue behind it, and traffic of another VM does not
/// wait there.
#[test]
fn a_queue_takes_permitted_traffic_from_outside() {
    let mut world = world(1);
    let (to, outside, neighbour) = (vm(&mut world), vm(&mut world), vm(&mut world));
    let bound = Bound { excess: Excess::Drop, ..Bound::default() };
    let terms = QueueTerms { order: Order::Fifo, pacing: Pacing::None, bound, frames: 512 };
    let home = QueueHome::new(terms, 16, 16);
    world.set_policy(to, |policy| policy.queue = Some(home));
    world.set_policy(outside, |policy| policy.tenant = None);
    world.introduce(to);
    limit(&mut world, to, EgressPolicer::new(Meter::new(frames(2_000, 32)), None, Sharing::Strict));
    let end = Nanos::from_secs(1);
    world.set_source(outside, flood(0, 60, 1_000_000, Nanos(0), end));
    world.run_until(end);
    let (port, sender) = (world.port(to), world.port(outside));
    assert!((2_025..=2_033).contains(&port.tx_frames), "{}", port.tx_frames);
    assert_eq!(sender.drops[DropReason::QueueFull as usize], 0);
    assert!(port.tx_queue_p50 > 0 || port.cycles > 0, "delivered on the receiver's account");
    let before = world.port(to).cycles;
    world.set_source(neighbour, flood(0, 60, 1_000, end, Nanos::from_secs(2)));
    world.run_until(Nanos::from_secs(2));
    assert!((998..=1_000).contains(&world.port(neighbour).forwarded));
    assert_eq!(world.port(to).cycles, before, "the neighbour paid");
}
