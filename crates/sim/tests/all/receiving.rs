//! Tests of limits on the traffic to VMs and tenants. The switch polices received traffic at the
//! output.

use std::sync::Arc;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::queue::{QueueHome, QueueTerms};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_qos::policer::wait_depth;
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

/// Creates traffic of `size`-byte frames to VM number `to`, with `per_second` frames per second.
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

/// With Eq. (3) as printed in FS-VDE, 70,000 frames of the flood in this test would pass.
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
            waits: false,
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

/// Frames that the limit drops do not enter the output queue. Traffic of another VM does not wait
/// behind dropped frames.
#[test]
fn a_queue_takes_permitted_traffic_from_outside() {
    let mut world = world(1);
    let (to, outside, neighbour) = (vm(&mut world), vm(&mut world), vm(&mut world));
    let bound = Bound { excess: Excess::Drop, ..Bound::default() };
    let terms = QueueTerms { bound, frames: 512, ..QueueTerms::default() };
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

fn waiting(rate: u64) -> Terms {
    let rate = BitsPerSecond(rate);
    Terms { bytes: Some((rate, wait_depth(rate))), per_frame: 4, waits: true, ..Terms::default() }
}

/// Gives the port a queue in which its frames wait for `policer`.
fn wait_for(world: &mut World, port: PortHandle, policer: EgressPolicer) {
    let bound = Bound { bytes: 256 << 10, wait: Nanos::from_millis(200), excess: Excess::Drop };
    let terms = QueueTerms { bound, ..QueueTerms::default() };
    let home = QueueHome::new(terms, 16, 16);
    let policer = Arc::new(policer);
    home.set_limit(Some(Arc::clone(&policer)));
    world.set_policy(port, |policy| {
        policy.egress_policer = Some(Arc::clone(&policer));
        policy.queue = Some(Arc::clone(&home));
    });
}

/// Traffic below the limit loses nothing in bursts, and a flood gets the rate within 1 %.
#[test]
fn frames_above_a_limit_without_a_burst_wait_and_the_limit_is_exact() {
    for (size, per_second) in [(60, 400_000), (1_514, 20_000)] {
        let mut world = world(1);
        let (to, from) = (vm(&mut world), vm(&mut world));
        world.introduce(to);
        let policer = EgressPolicer::new(Meter::new(waiting(100_000_000)), None, Sharing::Strict);
        wait_for(&mut world, to, policer);
        let (begin, end) = (Nanos::from_secs(1), Nanos::from_secs(3));
        world.set_source(from, flood(0, size, per_second, Nanos(0), end));
        world.run_until(begin);
        let before = world.port(to);
        world.run_until(end);
        let (port, sender) = (world.port(to), world.port(from));
        let bits = (port.tx_frames - before.tx_frames) * (size as u64 + 4) * 8 / 2;
        assert!((99_000_000..=101_000_000).contains(&bits), "{size}: {bits}");
        // Only the full queue, which names the limit, and the early signals drop frames.
        let named = port.tx_drops[DropReason::ReceiveLimit as usize];
        let signals = port.tx_drops[DropReason::EarlySignal as usize];
        let all = port.tx_drops.iter().sum::<u64>();
        assert!(named > 0 && all == named + signals, "{:?}", port.tx_drops);
        assert_eq!(sender.unaccounted(), 0);
    }
    let mut world = world(1);
    let (to, from) = (vm(&mut world), vm(&mut world));
    world.introduce(to);
    let policer = EgressPolicer::new(Meter::new(waiting(100_000_000)), None, Sharing::Strict);
    wait_for(&mut world, to, policer);
    // 8,000 frames/s of 1,518 bytes are 97 Mbit/s.
    world.set_source(from, flood(0, 1_514, 8_000, Nanos(0), Nanos::from_secs(2)));
    world.run_until(Nanos::from_secs(3));
    let (port, sender) = (world.port(to), world.port(from));
    assert_eq!(port.tx_drops, [0; DropReason::COUNT]);
    assert!(port.tx_frames == sender.rx_frames && port.tx_frames >= 15_990, "{}", port.tx_frames);
}

#[test]
fn a_tenants_vms_wait_for_its_limit_together_and_share_what_a_sibling_leaves() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let vms = [vm(&mut world), vm(&mut world)];
        let senders = [vm(&mut world), vm(&mut world)];
        vms.iter().for_each(|port| world.introduce(*port));
        let tenant = Arc::new(Meter::new(waiting(80_000_000)));
        for port in vms {
            let part = Meter::new(waiting(40_000_000));
            let tenant = Some(Arc::clone(&tenant));
            wait_for(&mut world, port, EgressPolicer::new(part, tenant, Sharing::Borrow));
        }
        // A frame has 996 bytes plus FCS, so the limit allows 10,000 frames per second.
        let end = Nanos::from_secs(2);
        world.set_source(senders[0], flood(0, 996, 50_000, Nanos(0), end));
        world.set_source(senders[1], flood(1, 996, 4_500, Nanos(0), end));
        world.run_until(end);
        let [borrower, sibling] = vms.map(|port| world.port(port));
        assert_eq!(sibling.tx_drops, [0; DropReason::COUNT], "{workers}");
        assert!((8_900..=9_001).contains(&sibling.tx_frames), "{}", sibling.tx_frames);
        let all = borrower.tx_frames + sibling.tx_frames;
        assert!((19_900..=20_102).contains(&all), "{workers}: {all}");
        senders.iter().for_each(|port| assert_eq!(world.port(*port).unaccounted(), 0));
    }
}

/// The parts of two VMs may sum to more than their tenant's limit, and both may flood.
#[test]
fn vms_that_all_want_more_than_the_tenants_limit_take_turns() {
    for sharing in [Sharing::Strict, Sharing::Borrow] {
        let mut world = world(1);
        let vms = [vm(&mut world), vm(&mut world), vm(&mut world)];
        let senders = [vm(&mut world), vm(&mut world), vm(&mut world)];
        vms.iter().for_each(|port| world.introduce(*port));
        let tenant = Arc::new(Meter::new(waiting(80_000_000)));
        for port in vms {
            let part = Meter::new(waiting(80_000_000));
            let tenant = Some(Arc::clone(&tenant));
            wait_for(&mut world, port, EgressPolicer::new(part, tenant, sharing));
        }
        let end = Nanos::from_secs(2);
        for (to, from) in (0..).zip(senders) {
            world.set_source(from, flood(to, 996, 20_000, Nanos(0), end));
        }
        world.run_until(Nanos::from_secs(1));
        let before = vms.map(|port| world.port(port).tx_frames);
        world.run_until(end);
        let after = vms.map(|port| world.port(port).tx_frames);
        let got = [0, 1, 2].map(|vm| after[vm] - before[vm]);
        let all: u64 = got.iter().sum();
        assert!((9_900..=10_100).contains(&all), "{sharing:?}: {got:?}");
        assert!(got.iter().all(|got| *got > 2_500), "{sharing:?}: {got:?}");
    }
}
