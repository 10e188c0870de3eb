//! Tests of a `wfq` output with the production worker. Tenants have code points (DSCP), each code
//! point has a queue, and queues share the link by weight. Some tests change the map from code
//! points to queues, or the queues' weights, while the link is full.

use std::sync::Arc;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::queue::{Classes, LaneReading, Order, Pacing, QueueHome, QueueTerms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, World, WorldConfig};
use penstock_units::{BitsPerSecond, Nanos, TscRate, Weight};

const RATE: u64 = 2_000_000_000;
const LINK: u64 = 1_000_000_000;
/// Number of bytes that Ethernet adds to a frame on a link.
const OVERHEAD: u64 = 24;

/// A tenant with one VM: the code point (DSCP) of its frames, or `None` for frames without a code
/// point, and their size in bytes.
type Tenant = (Option<u8>, usize);

struct Uplink {
    world: World,
    up: PortHandle,
    home: Arc<QueueHome>,
    vms: Vec<(PortHandle, usize)>,
}

fn classes(map: &[(u8, u8)], weights: &[u64]) -> Arc<Classes> {
    let mut classes = Classes::new(8);
    for (dscp, queue) in map {
        classes = classes.with_mapped(*dscp, *queue);
    }
    for (queue, weight) in weights.iter().enumerate() {
        classes = classes.with_weight(queue, Weight::new(*weight).expect("possible"));
    }
    Arc::new(classes)
}

fn uplink(config: &WorldConfig, classes: Arc<Classes>, tenants: &[Tenant]) -> Uplink {
    let mut world = World::with_config(config, TscRate::from_hz(RATE), Costs::EXAMPLE, 64, 7);
    let up = world.add_vm(1, 1_024, SinkSpec::default()).expect("possible");
    let terms = QueueTerms {
        order: Order::Wfq,
        pacing: Pacing::Link(BitsPerSecond(LINK)),
        bound: Bound { bytes: 256 * 1024, wait: Nanos::from_secs(1), excess: Excess::Drop },
        ..QueueTerms::default()
    };
    let home = QueueHome::new(terms, 64, 64);
    home.set_classes(classes);
    let queue = Arc::clone(&home);
    world.set_policy(up, |policy| {
        policy.queue = Some(queue);
        policy.marks = true;
    });
    let mut vms = Vec::new();
    for (&(dscp, size), tenant) in tenants.iter().zip(0..) {
        let vm = world.add_vm(1, 256, SinkSpec::default()).expect("possible");
        world.set_policy(vm, |policy| {
            policy.tenant = Some(tenant);
            policy.dscp = dscp;
        });
        vms.push((vm, size));
    }
    world.introduce(up);
    Uplink { world, up, home, vms }
}

impl Uplink {
    /// Makes VM `n` offer `bits` bits per second in one flow.
    fn offer(&mut self, n: usize, bits: u64, until: Nanos) {
        let (vm, size) = self.vms[n];
        let spec = SourceSpec {
            target: World::mac_of(0),
            sizes: vec![(size, 1)],
            // Start times differ, so that senders are not synchronised.
            frames_per_second: bits / 8 / size as u64 * (100 + n as u64) / 100,
            flows: 1,
            from: self.world.now(),
            until,
            loss_ppm: 0,
        };
        self.world.set_source(vm, spec);
    }

    fn lanes(&self) -> Vec<LaneReading> {
        let lanes = self.home.lanes().expect("it has queues");
        (0..8).map(|queue| lanes.read(queue)).collect()
    }

    /// Runs the world until `end`. Returns the bytes that each queue has sent on the link.
    fn bytes_until(&mut self, end: Nanos) -> Vec<u64> {
        let before = self.lanes();
        self.world.run_until(end);
        let on_link = |lane: &LaneReading| lane.bytes + OVERHEAD * lane.frames;
        self.lanes().iter().zip(before).map(|(now, old)| on_link(now) - on_link(&old)).collect()
    }

    /// Checks that the counters of the VMs, the queues and the port include every frame.
    fn adds_up(&self) {
        let (mut came, mut refused) = (0, 0);
        for (vm, _) in &self.vms {
            let port = self.world.port(*vm);
            assert_eq!(port.unaccounted(), 0, "{port:?}");
            came += port.rx_frames;
            let lost = [DropReason::QueueFull, DropReason::QueueLate];
            refused += lost.iter().map(|reason| port.drops[*reason as usize]).sum::<u64>();
        }
        let lanes = self.lanes();
        let sum = |of: fn(&LaneReading) -> u64| lanes.iter().map(of).sum::<u64>();
        let up = self.world.port(self.up);
        assert_eq!(sum(|lane| lane.frames), up.tx_frames);
        assert_eq!(sum(|lane| lane.bytes), up.tx_bytes);
        assert_eq!(sum(|lane| lane.backlog_frames), up.tx_queued);
        assert_eq!(sum(|lane| lane.drops), refused);
        assert_eq!(sum(|lane| lane.frames + lane.drops + lane.backlog_frames), came);
    }
}

/// Checks that each queue's share matches its weight, within 0.1 % or two of the longest frames.
fn shares(bytes: &[u64], weights: &[u64], longest: u64) {
    let (all, sum) = (bytes.iter().sum::<u64>(), weights.iter().sum::<u64>());
    for (queue, weight) in weights.iter().enumerate() {
        let due = all * weight / sum;
        let allowed = (due / 1_000).max(2 * longest);
        assert!(bytes[queue].abs_diff(due) <= allowed, "queue {queue}: {bytes:?}, {due} is due");
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn load(bytes: u64, frames: u64, nanos: u64) -> f64 {
    ((bytes + OVERHEAD * frames) * 8) as f64 / (LINK as f64 * nanos as f64 / 1e9)
}

#[test]
fn a_full_link_is_divided_by_weight_for_any_sizes() {
    let weights = [1, 10, 30, 7];
    let map = classes(&[(8, 1), (16, 2), (24, 3)], &weights);
    for workers in [1, 2] {
        let config = WorldConfig { workers, ..WorldConfig::default() };
        let tenants = [(None, 1_514), (Some(8), 300), (Some(16), 9_000), (Some(24), 1_514)];
        let mut case = uplink(&config, Arc::clone(&map), &tenants);
        let end = Nanos::from_millis(600);
        (0..4).for_each(|n| case.offer(n, LINK, end));
        case.world.run_until(Nanos::from_millis(100));
        let before = case.world.port(case.up);
        let bytes = case.bytes_until(end);
        shares(&bytes, &weights, 9_000);
        let up = case.world.port(case.up).since(&before);
        let load = load(up.tx_bytes, up.tx_frames, 500_000_000);
        assert!((0.985..1.002).contains(&load), "{load}, {workers} workers");
        assert!(case.lanes()[0].drops > 0, "more came than its part");
        case.adds_up();
    }
}

#[test]
fn unused_shares_go_to_others_and_due_frames_are_never_dropped() {
    let weights = [1, 50, 50];
    let map = classes(&[(8, 1), (16, 2)], &weights);
    let tenants = [(None, 1_000), (Some(8), 1_000), (Some(16), 1_000)];
    let mut case = uplink(&WorldConfig::default(), map, &tenants);
    let end = Nanos::from_millis(400);
    case.offer(0, 2 * LINK, end);
    // The second VM offers much less than its half, and another queue is empty.
    case.offer(1, LINK / 10, end);
    case.world.run_until(Nanos::from_millis(100));
    let before = case.lanes();
    let bytes = case.bytes_until(end);
    let load = load(bytes.iter().sum(), 0, 300_000_000);
    assert!((0.985..1.002).contains(&load), "{load}");
    assert!(bytes[0] > 8 * bytes[1] && bytes[2] == 0, "{bytes:?}");
    assert_eq!((before[1].drops, case.lanes()[1].drops), (0, 0));
    case.adds_up();
}

#[test]
fn classes_change_between_two_batches_and_nothing_is_lost() {
    let tenants = [(Some(8), 1_000), (Some(16), 1_000)];
    let map = classes(&[(8, 1), (16, 2)], &[1, 3, 1]);
    let mut case = uplink(&WorldConfig::default(), map, &tenants);
    let end = Nanos::from_millis(900);
    (0..2).for_each(|n| case.offer(n, LINK, end));
    case.world.run_until(Nanos::from_millis(100));
    let bytes = case.bytes_until(Nanos::from_millis(300));
    shares(&bytes[1..3], &[3, 1], 1_000);
    let waiting = |case: &Uplink| -> Vec<u64> {
        case.lanes().iter().map(|lane| lane.backlog_frames).collect()
    };
    // A new weight applies from the next frame on, and waiting frames stay queued.
    let (before, drops) = (waiting(&case), case.lanes()[1].drops + case.lanes()[2].drops);
    assert!(before[1] > 100 && before[2] > 100, "{before:?}");
    case.home.set_classes(classes(&[(8, 1), (16, 2)], &[1, 1, 4]));
    case.world.set_policy(case.up, |_| {});
    let gone = case.lanes()[1].drops + case.lanes()[2].drops;
    assert_eq!((waiting(&case), gone), (before, drops));
    let bytes = case.bytes_until(Nanos::from_millis(500));
    shares(&bytes[1..3], &[1, 4], 1_000);
    assert_eq!(case.world.received(case.up).reordered, 0);
    // With the new map the first tenant uses the shared queue. Its old queue sends its waiting
    // frames. Because the old queue was full, these frames arrive in the next 100 ms.
    case.home.set_classes(classes(&[(16, 2)], &[1, 1, 4]));
    case.world.set_policy(case.up, |_| {});
    assert!(waiting(&case)[1] > 100 && waiting(&case)[0] == 0);
    case.world.run_until(Nanos::from_millis(700));
    assert_eq!(waiting(&case)[1], 0, "it has sent them");
    let bytes = case.bytes_until(end);
    shares(&[bytes[0], bytes[2]], &[1, 4], 1_000);
    assert_eq!(bytes[1], 0);
    let late = case.vms.iter().map(|(vm, _)| {
        let drops = case.world.port(*vm).drops;
        drops[DropReason::QueueLate as usize] + drops[DropReason::QueueGone as usize]
    });
    assert_eq!(late.sum::<u64>(), 0, "only what found no room was dropped");
    case.adds_up();
}

#[test]
fn a_flow_whose_code_point_moves_keeps_its_order() {
    let tenants = [(Some(8), 1_000), (Some(16), 1_000)];
    let map = classes(&[(8, 1), (16, 2)], &[100, 1, 1]);
    let mut case = uplink(&WorldConfig::default(), map, &tenants);
    // Both VMs offer more than half of the link for a short time, and then less.
    (0..2).for_each(|n| case.offer(n, LINK * 6 / 10, Nanos::from_millis(10)));
    case.world.run_until(Nanos::from_millis(10));
    (0..2).for_each(|n| case.offer(n, LINK * 3 / 10, Nanos::from_millis(100)));
    assert!(case.lanes()[1].backlog_frames > 50, "{:?}", case.lanes());
    // The link serves the shared queue a hundred times as fast, so its frames could overtake frames
    // of other queues.
    case.home.set_classes(classes(&[(16, 2)], &[100, 1, 1]));
    case.world.set_policy(case.up, |_| {});
    let bytes = case.bytes_until(Nanos::from_millis(60));
    assert!(bytes[0] > 0 && bytes[1] > 50_000, "{bytes:?}");
    assert_eq!(case.lanes()[1].backlog_frames, 0);
    let up = case.world.received(case.up);
    // Each source restarted its sequence numbers once.
    assert!(up.frames > 1_000 && up.reordered == 2, "{up:?}");
    assert!(case.lanes().iter().all(|lane| lane.drops == 0));
    case.adds_up();
}
