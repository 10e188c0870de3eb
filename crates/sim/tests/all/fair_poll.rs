//! Tests of an output with fair shares if the core is the bottleneck: the output chooses whom the
//! worker polls, and nearly all frames pass without waiting.

use std::sync::Arc;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms, ShareTerms};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{IngressPolicy, PortQos};
use penstock_sim::{Costs, PortHandle, SinkSpec, World, WorldConfig, udp_frame};
use penstock_units::{BitsPerSecond, CyclesPerSecond, Nanos, Priority, TscRate, Weight};

const RATE: u64 = 2_000_000_000;
/// Frames in a VM's ring.
const RING: usize = 256;
const PORTS: usize = 64;
const STEP: Nanos = Nanos::from_micros(50);
/// Costs of a core that is slower than the link and than all senders.
const SLOW: Costs = Costs { factor: 20.0, ..Costs::EXAMPLE };
const FAST: Costs = Costs::EXAMPLE;
/// Bytes of a full batch of long frames on a link.
const BATCH: u64 = 32 * 1_538;

/// A VM that sends numbered frames.
struct Vm {
    port: PortHandle,
    /// Numbers of the ports to which the VM sends in turn.
    to: Vec<u16>,
    /// Number of frames that the VM sent.
    sent: u64,
    /// Number of the frame that arrives next at the uplink, if the VM sends only to the uplink.
    next: u64,
    /// Number of frames that arrived at the uplink.
    arrived: u64,
    /// Bytes of the VM's frames that arrived at the uplink, on a link.
    wire: u64,
}

/// An uplink with a fair-share queue, port 0, and the VMs that send to it.
struct Uplink {
    world: World,
    up: PortHandle,
    /// A VM that only receives, port 1.
    neighbour: PortHandle,
    vms: Vec<Vm>,
}

fn home(pacing: Pacing) -> Arc<QueueHome> {
    let terms = QueueTerms { order: Order::FairShare, pacing, ..QueueTerms::default() };
    QueueHome::new(terms, PORTS, PORTS)
}

impl Uplink {
    /// Creates an uplink of 400 Gbit/s, which is faster than the core, and a VM for each tenant of
    /// the given weights.
    fn new(config: &WorldConfig, weights: &[u64]) -> Self {
        Self::of((config, SLOW), Some(400), weights)
    }

    /// Creates an uplink of `gbit` Gbit/s. If `gbit` is `None`, the uplink has no queue.
    fn of((config, costs): (&WorldConfig, Costs), gbit: Option<u64>, weights: &[u64]) -> Self {
        let mut world = World::with_config(config, TscRate::from_hz(RATE), costs, PORTS, 5);
        let up = world.add_vm(1, 4_096, SinkSpec::default()).unwrap();
        if let Some(gbit) = gbit {
            let home = home(Pacing::Link(BitsPerSecond(gbit * 1_000_000_000)));
            world.set_policy(up, |policy| policy.queue = Some(home));
        }
        world.record(up);
        let neighbour = world.add_vm(1, 4_096, SinkSpec::default()).unwrap();
        [up, neighbour].iter().for_each(|port| world.introduce(*port));
        let mut vms = Vec::new();
        for (tenant, weight) in (0..).zip(weights) {
            let port = world.add_vm(1, RING, SinkSpec::default()).unwrap();
            let share = ShareTerms { tenant: Weight::new(*weight).unwrap(), vm: Weight::ONE };
            world.set_policy(port, |policy| (policy.tenant, policy.share) = (Some(tenant), share));
            vms.push(Vm { port, to: vec![0], sent: 0, next: 0, arrived: 0, wire: 0 });
        }
        world.run_until(Nanos::from_millis(5));
        Self { world, up, neighbour, vms }
    }

    /// Puts a frame into the ring of a VM.
    fn send(&mut self, vm: usize, len: usize) {
        let number = u16::try_from(vm).unwrap();
        let (from, of) = (World::mac_of(2 + number), &mut self.vms[vm]);
        let at = usize::try_from(of.sent).unwrap() % of.to.len();
        let frame = udp_frame(from, World::mac_of(of.to[at]), len, 1 + number, of.sent);
        assert!(self.world.offer(of.port, MemoryFrame::plain(frame)));
        of.sent += 1;
    }

    /// Fills the ring of a VM up to `most` frames.
    fn fill(&mut self, vm: usize, len: usize, most: usize) {
        while self.world.unsent(self.vms[vm].port) < most {
            self.send(vm, len);
        }
    }

    /// Lets each VM have `window` frames on their way to the uplink for `length`, like a flow with
    /// this window.
    fn with_windows(&mut self, window: u64, length: Nanos) {
        let until = self.world.now() + length;
        while self.world.now() < until {
            for vm in 0..self.vms.len() {
                while self.vms[vm].sent - self.vms[vm].arrived < window {
                    self.send(vm, 1_514);
                }
            }
            self.step();
        }
    }

    /// Advances the time by [`STEP`], and checks that each frame at the uplink is later than the
    /// VM's frame before it.
    fn step(&mut self) {
        self.world.run_until(self.world.now() + STEP);
        for arrival in self.world.take_arrivals(self.up) {
            // Flow 0 has the frames by which the switch learns addresses.
            let Some(at) = usize::from(arrival.flow).checked_sub(1) else { continue };
            let vm = &mut self.vms[at];
            assert!(arrival.sequence >= vm.next, "VM {at}: {arrival:?} after {}", vm.next);
            vm.next = arrival.sequence + 1;
            vm.arrived += 1;
            vm.wire += arrival.wire;
        }
    }

    /// Keeps the rings of all VMs full for `length`.
    fn flood(&mut self, len: usize, length: Nanos) {
        let until = self.world.now() + length;
        while self.world.now() < until {
            (0..self.vms.len()).for_each(|vm| self.fill(vm, len, RING));
            self.step();
        }
    }

    /// Returns the bytes of each VM that arrive at the uplink within `length`.
    fn measure(&mut self, len: usize, length: Nanos) -> Vec<u64> {
        self.vms.iter_mut().for_each(|vm| vm.wire = 0);
        self.flood(len, length);
        self.vms.iter().map(|vm| vm.wire).collect()
    }

    fn forwarded(&self, vm: usize) -> u64 {
        self.world.port(self.vms[vm].port).forwarded
    }

    /// Returns the number of frames that waited in the uplink's queue.
    fn waited(&self) -> u64 {
        self.world.port(self.up).tx_waited.iter().sum()
    }

    /// Checks that no frame of the VMs was lost.
    fn nothing_is_lost(&self) {
        for vm in &self.vms {
            let port = self.world.port(vm.port);
            assert_eq!((port.dropped(), port.unaccounted()), (0, 0), "{port:?}");
        }
    }
}

#[test]
fn tenants_share_a_slow_core_by_weight_and_no_frame_waits() {
    let forty: Vec<u64> = (0..40).map(|tenant| 1 + u64::from(tenant == 7)).collect();
    for weights in [&[1][..], &[2, 1][..], &[5, 3, 1, 1, 7][..], &forty[..]] {
        for (len, schedule) in [
            (60, ScheduleKind::RoundRobin),
            (1_514, ScheduleKind::RoundRobin),
            (60, ScheduleKind::Hbs),
            (1_514, ScheduleKind::Hbs),
        ] {
            let case = format!("{weights:?}, {len} B, {schedule:?}");
            let config = WorldConfig { schedule, ..WorldConfig::default() };
            let mut uplink = Uplink::new(&config, weights);
            uplink.flood(len, Nanos::from_millis(40));
            let waited = uplink.waited();
            let wire = uplink.measure(len, Nanos::from_millis(300));
            let (all, sum) = (wire.iter().sum::<u64>(), weights.iter().sum::<u64>());
            for (wire, weight) in wire.iter().zip(weights) {
                let due = all * weight / sum;
                // A batch passes as a whole, and a turn has about 4 KiB.
                let apart = due / 100 + 4 * 32 * (len as u64 + 24) + 8_192;
                assert!(wire.abs_diff(due) <= apart, "{case}: {wire} not {due}");
            }
            assert_eq!(uplink.waited(), waited, "{case}");
            uplink.nothing_is_lost();
        }
    }
}

/// Each VM has fewer frames on their way than a batch, so that no batch is full.
#[test]
fn frames_of_short_batches_do_not_wait() {
    for schedule in [ScheduleKind::RoundRobin, ScheduleKind::Hbs] {
        let config = WorldConfig { schedule, ..WorldConfig::default() };
        let mut uplink = Uplink::new(&config, &[1, 1, 1]);
        uplink.with_windows(20, Nanos::from_millis(10));
        let arrived = |uplink: &Uplink| uplink.vms.iter().map(|vm| vm.arrived).sum::<u64>();
        let before = (uplink.waited(), arrived(&uplink));
        uplink.with_windows(20, Nanos::from_millis(100));
        let waited = uplink.waited() - before.0;
        let arrived = arrived(&uplink) - before.1;
        assert!(arrived > 10_000 && waited * 50 < arrived, "{schedule:?}: {waited} of {arrived}");
        uplink.nothing_is_lost();
    }
}

/// No batch is full, so each VM's ring is empty after its batch.
#[test]
fn tenants_with_short_batches_share_a_slow_core_by_weight() {
    for schedule in [ScheduleKind::RoundRobin, ScheduleKind::Hbs] {
        let config = WorldConfig { schedule, ..WorldConfig::default() };
        let mut uplink = Uplink::new(&config, &[2, 1, 1]);
        uplink.with_windows(20, Nanos::from_millis(20));
        uplink.vms.iter_mut().for_each(|vm| vm.wire = 0);
        uplink.with_windows(20, Nanos::from_millis(200));
        let wire: Vec<u64> = uplink.vms.iter().map(|vm| vm.wire).collect();
        let due = wire.iter().sum::<u64>() / 4;
        for (wire, weight) in wire.iter().zip([2, 1, 1]) {
            assert!(wire.abs_diff(weight * due) <= due / 20, "{schedule:?}: {wire} of {due}");
        }
        uplink.nothing_is_lost();
    }
}

/// A VM of the first class sends a few frames to a neighbour in each step. The output chooses only
/// among the VMs of the last class, and their batches are short.
#[test]
fn tenants_of_a_later_class_share_the_rest_of_the_core_by_weight() {
    let config = WorldConfig { schedule: ScheduleKind::Hbs, ..WorldConfig::default() };
    let mut uplink = Uplink::new(&config, &[2, 1, 1]);
    let first = uplink.vms[2].port;
    uplink.world.set_qos(first, PortQos { priority: Priority::FIRST, ..PortQos::default() });
    uplink.vms[2].to = vec![1];
    let flood = |uplink: &mut Uplink, steps| {
        for _ in 0..steps {
            [(0, RING), (1, RING), (2, 2)].iter().for_each(|vm| uplink.fill(vm.0, 1_514, vm.1));
            uplink.step();
            assert_eq!(uplink.world.unsent(first), 0, "the first class waits");
        }
    };
    flood(&mut uplink, 200);
    let waited = uplink.waited();
    uplink.vms.iter_mut().for_each(|vm| vm.wire = 0);
    flood(&mut uplink, 4_000);
    let [heavy, light] = [0, 1].map(|vm: usize| uplink.vms[vm].wire);
    assert!(heavy.abs_diff(2 * light) <= light / 50 + 4 * BATCH, "{heavy} and {light}");
    assert_eq!(uplink.waited(), waited);
    uplink.nothing_is_lost();
}

/// A VM of the first class sends a few frames to the uplink in each step. They leave within the
/// step, although VMs of the last class have claims there.
#[test]
fn frames_of_the_first_class_do_not_wait_for_a_later_class() {
    let config = WorldConfig { schedule: ScheduleKind::Hbs, ..WorldConfig::default() };
    let mut uplink = Uplink::new(&config, &[1, 1, 1]);
    let first = uplink.vms[2].port;
    uplink.world.set_qos(first, PortQos { priority: Priority::FIRST, ..PortQos::default() });
    for _ in 0..2_000 {
        [(0, RING), (1, RING), (2, 2)].iter().for_each(|vm| uplink.fill(vm.0, 1_514, vm.1));
        uplink.step();
        // Only the frames of this step may still wait.
        let vm = &uplink.vms[2];
        assert!(vm.arrived + 2 >= vm.sent, "{} of {} frames arrived", vm.arrived, vm.sent);
    }
    assert!([0, 1].iter().all(|vm: &usize| uplink.vms[*vm].arrived > 1_000));
    uplink.nothing_is_lost();
}

/// Each VM stops for a while and sends again, at an uplink that is sometimes the bottleneck.
#[test]
fn senders_that_stop_and_go_keep_the_order_and_lose_nothing() {
    // On a fast core, links of 1 and 11 Gbit/s are the bottleneck. The former lets no batch pass.
    for (gbit, costs) in [(1, SLOW), (1, FAST), (11, FAST), (400, SLOW), (400, FAST)] {
        for schedule in [ScheduleKind::RoundRobin, ScheduleKind::Hbs] {
            let config = WorldConfig { schedule, ..WorldConfig::default() };
            let mut uplink = Uplink::of((&config, costs), Some(gbit), &[1, 2, 3, 4]);
            for step in 0..1_000_usize {
                for vm in 0..4 {
                    // Full batches and short ones alternate, of short and long frames.
                    let most = [RING, 0, 40, 3][(step / 7 + vm) % 4];
                    uplink.fill(vm, [60, 1_514, 9_000][(step / 50 + vm) % 3], most);
                }
                uplink.step();
            }
            (0..6_000).for_each(|_| uplink.step());
            for vm in &uplink.vms {
                let left = uplink.world.unsent(vm.port);
                assert_eq!((left, vm.arrived), (0, vm.sent), "{gbit} Gbit/s, {schedule:?}");
            }
            uplink.nothing_is_lost();
        }
    }
}

#[test]
fn frames_to_a_neighbour_do_not_wait_for_the_uplink() {
    let neighbours = |gbit| {
        let config = WorldConfig::default();
        let mut uplink = Uplink::of((&config, SLOW), gbit, &[1, 1, 1, 1]);
        // The first VM sends to the neighbour and to the uplink in turn.
        uplink.vms[0].to = vec![1, 0];
        uplink.flood(600, Nanos::from_millis(20));
        let before = uplink.world.received(uplink.neighbour).frames;
        uplink.flood(600, Nanos::from_millis(100));
        uplink.nothing_is_lost();
        uplink.world.received(uplink.neighbour).frames - before
    };
    let (without, with) = (neighbours(None), neighbours(Some(400)));
    assert!(without > 1_000 && with * 100 >= without * 85, "{with} of {without}");
}

/// A VM with purchased cycles and a large weight gets no more cycles than it purchased, and the
/// other VM uses the rest of the core.
#[test]
fn a_vm_without_tokens_is_not_polled_because_of_its_claim() {
    for schedule in [ScheduleKind::RoundRobin, ScheduleKind::Hbs] {
        let config = WorldConfig { schedule, ..WorldConfig::default() };
        let mut uplink = Uplink::new(&config, &[50, 1]);
        let bought = PortQos {
            ingress: IngressPolicy::CyclesStrict,
            entitlement: CyclesPerSecond(RATE / 5),
            ..PortQos::default()
        };
        uplink.world.set_qos(uplink.vms[0].port, bought);
        uplink.flood(600, Nanos::from_millis(20));
        let cycles =
            |uplink: &Uplink| [0, 1].map(|vm| uplink.world.port(uplink.vms[vm].port).cycles);
        let before = cycles(&uplink);
        uplink.flood(600, Nanos::from_millis(200));
        let after = cycles(&uplink);
        let [first, second] = [0, 1].map(|vm| (after[vm] - before[vm]) * 100 / (RATE / 5));
        assert!((18..=21).contains(&first) && second >= 75, "{schedule:?}: {first}, {second}");
        uplink.nothing_is_lost();
    }
}

/// Half of the VMs belong to another worker, which hands their frames over.
#[test]
fn frames_of_another_worker_have_their_turns_beside_claims() {
    let config = WorldConfig { workers: 2, ..WorldConfig::default() };
    let mut uplink = Uplink::new(&config, &[1, 1, 1, 1]);
    let wire = uplink.measure(1_514, Nanos::from_millis(100));
    let all: u64 = wire.iter().sum();
    assert!(wire.iter().all(|wire| wire * 8 >= all), "{wire:?}");
    for vm in &uplink.vms {
        let port = uplink.world.port(vm.port);
        assert_eq!(port.drops[DropReason::QueueFull as usize], 0, "{port:?}");
    }
}

/// The uplink loses its queue and gets another one while VMs have claims.
#[test]
fn claims_end_with_the_queue() {
    let mut uplink = Uplink::new(&WorldConfig::default(), &[1, 3]);
    uplink.flood(1_514, Nanos::from_millis(20));
    for (round, weight) in (0..4).zip([3_u64, 1, 5, 1]) {
        let home = (round % 2 == 0).then(|| home(Pacing::None));
        uplink.world.set_policy(uplink.up, |policy| policy.queue = home);
        let tenant = Weight::new(weight).unwrap();
        let share = ShareTerms { tenant, vm: Weight::ONE };
        uplink.world.set_policy(uplink.vms[1].port, |policy| policy.share = share);
        uplink.flood(1_514, Nanos::from_millis(10));
        let before = [0, 1].map(|vm| uplink.forwarded(vm));
        let wire = uplink.measure(1_514, Nanos::from_millis(100));
        assert!([0, 1].iter().all(|vm| uplink.forwarded(*vm) > before[*vm]));
        if round % 2 == 0 {
            let due = wire.iter().sum::<u64>() / (1 + weight);
            assert!(wire[0].abs_diff(due) <= due / 50 + 3 * BATCH, "{weight}: {wire:?}");
        }
    }
}
