//! Tests of output queues: shares, rates and back-pressure. The counters must include every lost
//! frame.

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::queue::{
    Order, Pacing, QueueHome, QueueTerms, ShapeTerms, ShaperKind, ShareTerms,
};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_qos::delay_scale::percentile;
use penstock_qos::fair_share::{Bound, Excess};
use penstock_qos::shaper::Smoothing;
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, World, WorldConfig, tcp_segment};
use penstock_units::{BitsPerSecond, CyclesPerSecond, Nanos, Priority, TscRate, Weight};

const RATE: u64 = 2_000_000_000;
const LINK: u64 = 1_000_000_000;
/// Number of bytes that Ethernet adds to a frame on a link.
const OVERHEAD: u64 = 24;

fn fair(link: u64) -> QueueTerms {
    QueueTerms {
        order: Order::FairShare,
        pacing: Pacing::Link(BitsPerSecond(link)),
        ..QueueTerms::default()
    }
}

fn shaped(rate: u64, kind: ShaperKind) -> QueueTerms {
    let pacing = Pacing::Shaped(ShapeTerms { rate: BitsPerSecond(rate), kind });
    let bound = Bound { bytes: 256 * 1024, wait: Nanos::from_secs(1), excess: Excess::Drop };
    QueueTerms { pacing, bound, frames: 512, ..QueueTerms::default() }
}

fn world(config: &WorldConfig) -> World {
    World::with_config(config, TscRate::from_hz(RATE), Costs::EXAMPLE, 64, 7)
}

fn to_vm0(size: usize, frames_per_second: u64, from: Nanos, until: Nanos) -> SourceSpec {
    SourceSpec {
        target: World::mac_of(0),
        sizes: vec![(size, 1)],
        frames_per_second,
        flows: 1,
        from,
        until,
        loss_ppm: 0,
    }
}

/// A world in which VMs of several tenants flood one VM, which receives through an output queue.
struct Uplink {
    world: World,
    up: PortHandle,
    /// The flooding VMs: each has a frame size in bytes, and the weight of its tenant.
    vms: Vec<(PortHandle, usize, u64)>,
}

/// Creates the world. An element of `tenants` contains a tenant's weight, and the frame sizes
/// (bytes) of its VMs.
fn uplink(config: &WorldConfig, terms: QueueTerms, tenants: &[(u64, &[usize])]) -> Uplink {
    let mut world = world(config);
    let up = world.add_vm(1, 1_024, SinkSpec::default()).expect("possible");
    let home = QueueHome::new(terms, 64, 64);
    world.set_policy(up, |policy| policy.queue = Some(home));
    let mut vms = Vec::new();
    for (&(weight, sizes), tenant) in tenants.iter().zip(0..) {
        for &size in sizes {
            let vm = world.add_vm(1, 256, SinkSpec::default()).expect("possible");
            world.set_policy(vm, |policy| {
                policy.tenant = Some(tenant);
                let tenant = Weight::new(weight).expect("possible");
                policy.share = ShareTerms { tenant, vm: Weight::ONE };
            });
            vms.push((vm, size, weight));
        }
    }
    Uplink { world, up, vms }
}

/// Makes every VM offer twice the link's rate for `secs` seconds. Returns the bytes of each VM on
/// the link, without the bytes in the first tenth of the time.
fn flood(case: &mut Uplink, secs: u64) -> Vec<u64> {
    let end = Nanos::from_secs(secs);
    for (&(vm, size, _), n) in case.vms.iter().zip(0..) {
        // Start times differ, so that senders are not synchronised.
        let frames = 2 * LINK / 8 / size as u64 * (100 + n) / 100;
        case.world.set_source(vm, to_vm0(size, frames, Nanos(0), end));
    }
    case.world.introduce(case.up);
    let sent = |case: &Uplink| -> Vec<u64> {
        let of = |&(vm, size, _): &(PortHandle, usize, u64)| {
            case.world.port(vm).forwarded * (size as u64 + OVERHEAD)
        };
        case.vms.iter().map(of).collect()
    };
    case.world.run_until(Nanos(end.0 / 10));
    let before = sent(case);
    case.world.run_until(end);
    let sent = sent(case);
    sent.iter().zip(before).map(|(after, before)| after - before).collect()
}

fn all_add_up(case: &Uplink) {
    for &(vm, ..) in &case.vms {
        let port = case.world.port(vm);
        assert_eq!(port.unaccounted(), 0, "{port:?}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

#[test]
fn tenants_get_their_shares_and_nothing_is_dropped() {
    let tenants: &[(u64, &[usize])] = &[(5, &[1_514, 60, 600]), (3, &[300, 1_514]), (1, &[60])];
    let mut case = uplink(&WorldConfig::default(), fair(LINK), tenants);
    let bytes = flood(&mut case, 1);
    let all: u64 = bytes.iter().sum();
    let tenant = |from: usize, to: usize| bytes[from..to].iter().sum::<u64>();
    for (got, due) in [(tenant(0, 3), 5), (tenant(3, 5), 3), (tenant(5, 6), 1)] {
        let due = all * due / 9;
        assert!(got.abs_diff(due) <= (due / 1_000).max(2 * 1_514), "{got} of {due}: {bytes:?}");
    }
    // Within a tenant, VMs get the same link time for any frame sizes.
    for pair in [(0, 1), (1, 2), (3, 4)] {
        let (a, b) = (bytes[pair.0], bytes[pair.1]);
        assert!((0.99..1.01).contains(&ratio(a, b)), "{bytes:?}");
    }
    // The link is full and no frame was dropped. Excess frames stay in the VMs' rings.
    let up = case.world.port(case.up);
    let wire = (up.tx_bytes + OVERHEAD * up.tx_frames) * 8;
    assert!((0.985..1.002).contains(&ratio(wire, LINK)), "{wire}");
    for &(vm, ..) in &case.vms {
        let port = case.world.port(vm);
        assert_eq!(port.dropped(), 0, "{port:?}");
        assert!(port.held_back > 0 && case.world.sent(vm).refused > 0);
    }
    all_add_up(&case);
}

/// Checks that every tenant gets its share of the bytes over 10 s, for any number of tenants and
/// any frame sizes. A tenant's bytes may differ from the tenant's share by 0.1 % or by two of the
/// longest segments. The VMs of a tenant get equal parts of the tenant's share.
fn shares_hold(tenants: u16, link: u64) {
    const VMS: [&[usize]; 5] = [&[60], &[60, 1_514], &[1_514], &[600, 65_000], &[65_000, 9_000]];
    const SEGMENT: u64 = 65_000;
    let config = WorldConfig::default();
    let ports = 2 * usize::from(tenants) + 1;
    let hz = TscRate::from_hz(RATE);
    let mut world = World::with_config(&config, hz, Costs::EXAMPLE, ports, 7);
    let up = world.add_vm(1, 1_024, SinkSpec::default()).expect("possible");
    // The queue has room for some tens of frames of each VM.
    let frames = 40 * u32::from(tenants).max(100);
    let terms = QueueTerms { frames, ..fair(link) };
    let home = QueueHome::new(terms, ports, tenants.into());
    world.set_policy(up, |policy| policy.queue = Some(home));
    world.introduce(up);
    let weight_of = |tenant: u16| 1 + u64::from(tenant % 7);
    let weights: u64 = (0..tenants).map(weight_of).sum();
    let end = Nanos::from_secs(11);
    let mut vms: Vec<(u16, PortHandle, u64)> = Vec::new();
    for tenant in 0..tenants {
        for &size in VMS[usize::from(tenant) % VMS.len()] {
            let vm = world.add_vm(1, 256, SinkSpec::default()).expect("possible");
            world.set_policy(vm, |policy| {
                policy.tenant = Some(tenant);
                let tenant = Weight::new(weight_of(tenant)).expect("possible");
                policy.share = ShareTerms { tenant, vm: Weight::ONE };
            });
            // The VM offers twice its tenant's share.
            let bytes = 2 * link / 8 * weight_of(tenant) / weights;
            let frames = (bytes / size as u64).max(2);
            world.set_source(vm, to_vm0(size, frames, Nanos(0), end));
            vms.push((tenant, vm, size as u64));
        }
    }
    let sent = |world: &World| -> Vec<u64> {
        vms.iter().map(|(_, vm, size)| world.port(*vm).forwarded * (size + OVERHEAD)).collect()
    };
    world.run_until(Nanos::from_secs(1));
    let before = sent(&world);
    world.run_until(end);
    let got: Vec<u64> = sent(&world).iter().zip(before).map(|(now, then)| now - then).collect();
    let all: u64 = got.iter().sum();
    assert!(all * 8 > link * 10 * 7 / 10, "{tenants}: {all}");
    for tenant in 0..tenants {
        let of_tenant: Vec<u64> =
            vms.iter().zip(&got).filter(|(vm, _)| vm.0 == tenant).map(|(_, got)| *got).collect();
        let (got, due) = (of_tenant.iter().sum::<u64>(), all * weight_of(tenant) / weights);
        let allowed = (due / 1_000).max(2 * SEGMENT);
        assert!(got.abs_diff(due) <= allowed, "{tenant} of {tenants}: {got} of {due}");
        let (most, least) = (of_tenant.iter().max(), of_tenant.iter().min());
        let apart = most.zip(least).map_or(0, |(most, least)| most - least);
        // With a thousand tenants, a VM with short frames does not have enough frames queued for
        // its whole turn. The tenant's other VMs use the rest of the turn.
        let few = tenants <= 40;
        assert!(!few || apart <= (got / 200).max(2 * SEGMENT), "{tenant}: {of_tenant:?}");
    }
}

#[test]
fn shares_hold_for_few_and_many_tenants_and_any_sizes() {
    shares_hold(2, 100_000_000);
    shares_hold(40, 100_000_000);
}

/// Without compiler optimisation, the test with a thousand tenants takes minutes. Run the test with
/// `cargo test --release -p penstock-sim -- --ignored`.
#[test]
#[ignore = "takes long without optimisation"]
fn shares_hold_for_a_thousand_tenants() {
    shares_hold(300, 200_000_000);
    shares_hold(1_000, 300_000_000);
}

#[test]
fn first_come_first_served_favours_the_vm_with_most_frames() {
    let bound = Bound { bytes: 1 << 20, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let terms = QueueTerms { order: Order::Fifo, bound, ..fair(LINK) };
    let tenants: &[(u64, &[usize])] = &[(1, &[1_000, 1_000, 1_000]), (1, &[1_000])];
    let mut case = uplink(&WorldConfig::default(), terms, tenants);
    let bytes = flood(&mut case, 1);
    let share = ratio(bytes[0] + bytes[1] + bytes[2], bytes[3]);
    assert!((2.7..3.3).contains(&share), "{bytes:?}");
    assert!(case.world.port(case.vms[0].0).drops[DropReason::QueueFull as usize] > 0);
    all_add_up(&case);
}

/// With flow queues, the frames of a sparse flow wait for about one frame of a flood, and only the
/// flood loses frames.
#[test]
fn a_sparse_flow_does_not_wait_behind_a_flood() {
    let bound = Bound { bytes: 8 << 20, wait: Nanos::from_secs(1), excess: Excess::Drop };
    let terms = QueueTerms { order: Order::FqCodel, bound, ..fair(LINK / 10) };
    let mut case = uplink(&WorldConfig::default(), terms, &[(1, &[1_514, 100])]);
    let (flood, sparse) = (case.vms[0].0, case.vms[1].0);
    let end = Nanos::from_secs(2);
    case.world.set_source(flood, to_vm0(1_514, 16_000, Nanos(0), end));
    case.world.set_source(sparse, to_vm0(100, 200, Nanos(0), end));
    case.world.introduce(case.up);
    case.world.run_until(end);
    let (flood, sparse) = (case.world.port(flood), case.world.port(sparse));
    assert!(sparse.dropped() == 0 && sparse.forwarded >= 398, "{sparse:?}");
    let waited = percentile(&sparse.waited, 99_000).expect("frames waited");
    assert!(waited < Nanos::from_millis(1), "{waited:?}");
    let drops = [DropReason::EarlySignal, DropReason::QueueFull];
    let drops = drops.map(|reason| flood.drops[reason as usize]);
    assert!(drops[0] > 0 && drops.iter().sum::<u64>() == flood.dropped(), "{flood:?}");
    let up = case.world.port(case.up);
    let wire = (up.tx_bytes + OVERHEAD * up.tx_frames) * 8;
    assert!((0.98..1.002).contains(&ratio(wire * 5, LINK)), "{wire}");
    all_add_up(&case);
}

#[test]
fn an_idle_tenants_share_is_used_by_the_others() {
    let mut case = uplink(&WorldConfig::default(), fair(LINK), &[(9, &[1_000]), (1, &[1_000])]);
    let idle = case.vms.remove(0);
    let bytes = flood(&mut case, 1);
    assert!((0.88..0.91).contains(&ratio(bytes[0] * 8, LINK)), "{bytes:?}");
    assert_eq!(case.world.port(idle.0).forwarded, 0);
}

#[test]
fn two_workers_that_feed_one_uplink_keep_the_shares() {
    let config = WorldConfig { workers: 2, ..WorldConfig::default() };
    let tenants: &[(u64, &[usize])] = &[(3, &[1_000, 400]), (1, &[1_000, 400])];
    let mut case = uplink(&config, fair(LINK), tenants);
    let bytes = flood(&mut case, 1);
    let share = ratio(bytes[0] + bytes[1], bytes[2] + bytes[3]);
    assert!((2.97..3.03).contains(&share), "{bytes:?}");
    all_add_up(&case);
}

#[test]
fn a_sending_limit_keeps_its_rate_and_frames_wait_in_the_ring() {
    for (rate, size) in [(2_000_000, 1_514), (32_000_000, 200), (200_000_000, 1_514)] {
        let mut world = world(&WorldConfig::default());
        let sink = world.add_vm(1, 1_024, SinkSpec::default()).expect("possible");
        let vm = world.add_vm(1, 256, SinkSpec::default()).expect("possible");
        let terms =
            ShapeTerms { rate: BitsPerSecond(rate), kind: ShaperKind::Smooth(Smoothing::DEFAULT) };
        world.set_policy(vm, |policy| policy.shape = Some(terms));
        world.introduce(sink);
        let secs = if rate < 10_000_000 { 20 } else { 4 };
        let offered = 2 * rate / 8 / size as u64;
        world.set_source(vm, to_vm0(size, offered, Nanos(0), Nanos::from_secs(secs)));
        world.run_until(Nanos::from_secs(secs));
        let port = world.port(vm);
        let bits = port.forwarded * (size as u64 + 4) * 8;
        let off = ratio(bits, rate * secs);
        assert!((0.99..1.03).contains(&off), "{rate}: {off}");
        assert_eq!((port.dropped(), port.unaccounted()), (0, 0));
        assert!(world.received(sink).reordered == 0 && world.sent(vm).refused > 0);
    }
}

#[test]
fn a_receiving_limit_keeps_its_rate_and_order() {
    for kind in
        [ShaperKind::Smooth(Smoothing::DEFAULT), ShaperKind::TokenBucket(Nanos::from_millis(50))]
    {
        let mut case = uplink(
            &WorldConfig::default(),
            shaped(8_000_000, kind),
            &[(1, &[1_000]), (1, &[1_000])],
        );
        let bytes = flood(&mut case, 4);
        let up = case.world.port(case.up);
        let off = ratio((up.tx_bytes + 4 * up.tx_frames) * 8, 8_000_000 * 4);
        assert!((0.98..1.04).contains(&off), "{kind:?}: {off}, {bytes:?}");
        assert_eq!(case.world.received(case.up).reordered, 0);
        all_add_up(&case);
    }
}

#[test]
fn a_removed_or_changed_queue_counts_its_waiting_frames() {
    let mut case =
        uplink(&WorldConfig::default(), fair(LINK / 100), &[(1, &[1_000]), (2, &[1_000])]);
    flood(&mut case, 1);
    let queued: u64 = case.vms.iter().map(|vm| case.world.port(vm.0).queued).sum();
    assert!(queued > 20, "{queued}");
    assert_eq!(case.world.port(case.up).tx_queued, queued);
    let up = case.up;
    case.world.set_policy(up, |policy| policy.queue = None);
    let gone = |case: &Uplink| -> u64 {
        let of = |vm: &(PortHandle, usize, u64)| {
            case.world.port(vm.0).drops[DropReason::QueueGone as usize]
        };
        case.vms.iter().map(of).sum()
    };
    assert_eq!(gone(&case), queued);
    all_add_up(&case);
    // The worker polls ports again that it had held back, and their frames leave immediately.
    let end = Nanos::from_secs(2);
    let before = case.world.port(case.vms[0].0).forwarded;
    case.world.set_source(case.vms[0].0, to_vm0(1_000, 10_000, Nanos::from_secs(1), end));
    case.world.run_until(end);
    assert!(case.world.port(case.vms[0].0).forwarded >= before + 9_000);
    assert_eq!(case.world.port(up).tx_queued, 0);
    all_add_up(&case);
}

#[test]
fn a_flooded_vm_pays_for_its_frames_and_the_others_keep_their_rate() {
    let run = |flooded: bool| {
        let config = WorldConfig { schedule: ScheduleKind::Hbs, ..WorldConfig::default() };
        let mut world = world(&config);
        let (sink, victim) =
            (world.add_vm(1, 256, SinkSpec::default()), world.add_vm(1, 256, SinkSpec::default()));
        let (sink, victim) = (sink.expect("possible"), victim.expect("possible"));
        let bought = |cycles, class| PortQos {
            ingress: IngressPolicy::CyclesStrict,
            entitlement: CyclesPerSecond(cycles),
            priority: Priority::new(class).expect("possible"),
            ..PortQos::default()
        };
        world.set_qos(victim, bought(RATE / 20, 2));
        let bound = Bound { excess: Excess::Drop, ..Bound::default() };
        let terms = QueueTerms { bound, frames: 512, ..QueueTerms::default() };
        let home = QueueHome::new(terms, 64, 64);
        world.set_policy(victim, |policy| policy.queue = Some(home));
        let other = world.add_vm(1, 256, SinkSpec::default()).expect("possible");
        world.set_qos(other, bought(RATE / 4, 1));
        let outside = world.add_vm(1, 1_024, SinkSpec::default()).expect("possible");
        world.set_policy(outside, |policy| policy.tenant = None);
        let end = Nanos::from_millis(500);
        world.introduce(sink);
        world.introduce(victim);
        world.set_source(other, to_vm0(600, 300_000, Nanos(0), end));
        if flooded {
            let spec = to_vm0(60, 9_000_000, Nanos(0), end);
            world.set_source(outside, SourceSpec { target: World::mac_of(1), ..spec });
        }
        world.run_until(end);
        let _ = sink;
        (world.port(other).forwarded, world.port(victim), world.port(outside))
    };
    let (alone, ..) = run(false);
    let (beside, victim, outside) = run(true);
    assert!(beside * 100 >= alone * 99, "{beside} of {alone}");
    // The VM got no more cycles than it purchased. The other frames were dropped before they were
    // copied.
    assert!(victim.cycles <= RATE / 20 / 2 * 21 / 20, "{}", victim.cycles);
    assert!(victim.tx_frames > 0);
    assert!(outside.drops[DropReason::QueueFull as usize] > outside.rx_frames / 2);
    assert_eq!((outside.unaccounted(), victim.unaccounted()), (0, 0));
}

/// A VM of the last class purchased a fifth of the core, and sends through an output with a queue.
/// A VM of the first class takes as many cycles as it can get. While the VM of the last class waits
/// for its turn, it cannot use some of its tokens. When the VM's frames leave the output queue, the
/// VM must not lose the tokens that it could not use.
#[test]
fn a_late_class_keeps_its_purchase_with_an_output_queue() {
    let run = |order: Order, both: bool| {
        let config = WorldConfig { schedule: ScheduleKind::Hbs, ..WorldConfig::default() };
        let mut world = world(&config);
        let up = world.add_vm(1, 4_096, SinkSpec::default()).expect("possible");
        let terms = QueueTerms { order, pacing: Pacing::None, ..fair(LINK) };
        let home = QueueHome::new(terms, 64, 64);
        world.set_policy(up, |policy| policy.queue = Some(home));
        let sink = world.add_vm(1, 4_096, SinkSpec::default()).expect("possible");
        let mut vm = |ingress, cycles, class| {
            let vm = world.add_vm(1, 256, SinkSpec::default()).expect("possible");
            let qos = PortQos {
                ingress,
                entitlement: CyclesPerSecond(cycles),
                priority: Priority::new(class).expect("possible"),
                ..PortQos::default()
            };
            world.set_qos(vm, qos);
            vm
        };
        let first = vm(IngressPolicy::CyclesMinmax, RATE / 10, 1);
        let late = vm(IngressPolicy::CyclesMinmax, RATE / 5, 8);
        world.introduce(up);
        world.introduce(sink);
        let end = Nanos::from_millis(100);
        let flood = |target| SourceSpec {
            target: World::mac_of(target),
            ..to_vm0(60, 20_000_000, Nanos(0), end)
        };
        world.set_source(first, flood(if both { 0 } else { 1 }));
        world.set_source(late, flood(0));
        world.run_until(end);
        ratio(world.port(late).cycles * 10, RATE)
    };
    // The VM gets its purchased cycles and half of the unsold 70 %.
    for (order, both) in [(Order::FairShare, true), (Order::Wfq, true), (Order::Wfq, false)] {
        let share = run(order, both);
        assert!((0.54..0.56).contains(&share), "{order:?}, both there {both}: {share}");
    }
}

/// Four tenants have weights 3:1:1:7, and the first tenant sends short frames. The tenants' shares
/// of the link's time must match the weights.
#[test]
fn short_frames_gain_no_larger_share_of_the_link() {
    let tenants: &[(u64, &[usize])] = &[(3, &[60]), (1, &[1_514]), (1, &[1_514]), (7, &[1_514])];
    let mut case = uplink(&WorldConfig::default(), fair(LINK / 10), tenants);
    let bytes = flood(&mut case, 1);
    let short = ratio(bytes[0], bytes.iter().sum());
    assert!((0.249..0.251).contains(&short), "{short} of the link where 0.25 is due: {bytes:?}");
}

#[test]
fn a_recorded_segment_has_its_time_and_its_bytes_on_the_wire() {
    let mut case = uplink(&WorldConfig::default(), fair(LINK), &[(1, &[1_000])]);
    let (up, vm) = (case.up, case.vms[0].0);
    let [before, after] = [1, 2].map(Nanos::from_millis);
    case.world.record(up);
    case.world.introduce(up);
    case.world.run_until(before);
    let segment = tcp_segment(World::mac_of(1), World::mac_of(0), (44, 1_460), 7, true);
    assert!(case.world.offer(vm, segment));
    case.world.run_until(after);
    let [arrival] = case.world.take_arrivals(up)[..] else { panic!("one segment arrives") };
    assert_eq!((arrival.flow, arrival.wire), (7, 44 * 1_538));
    assert!(arrival.at >= before && arrival.at < after, "{arrival:?}");
    assert!(case.world.take_arrivals(up).is_empty());
    all_add_up(&case);
}
