//! A worker that handles only the changes of a snapshot must have the same state afterwards as a
//! worker that handles all ports.

use penstock_qos::shaper::Smoothing;
use penstock_units::{BitsPerSecond, CyclesPerSecond, QueueId, Vid, Weight};
use proptest::prelude::*;

use super::*;
use crate::counters::PortCounters;
use crate::offload::OffloadCaps;
use crate::port::PortQueue;
use crate::port::memory_queue::memory_queue;
use crate::queue::{Order, Pacing, QueueHome, QueueTerms, ShapeTerms, ShaperKind};
use crate::schedule::ScheduleKind;
use crate::snapshot::{Domain, IngressPolicy, PortPolicy};
use crate::tsc::VirtualCounter;
use crate::unit::Unit;
use crate::worker::WorkerConfig;

const PORTS: u16 = 6;

fn worker(max_ports: usize) -> Worker<VirtualCounter> {
    let config = WorkerConfig { schedule: ScheduleKind::Hbs, max_ports, ..WorkerConfig::default() };
    Worker::new(&config, VirtualCounter::default(), None)
}

fn attach(worker: &mut Worker<VirtualCounter>, port: PortId) {
    let (pair, _driver) = memory_queue(4, OffloadCaps::ALL);
    let pairs: Vec<Box<dyn PortQueue>> = vec![Box::new(pair)];
    assert!(worker.attach(port, pairs, Arc::new(PortCounters::default())).is_ok());
}

fn policy(port: u16) -> PortPolicy {
    PortPolicy::access(port, Some(1), Vid::UNTAGGED, 0)
}

fn snapshot(generation: u64, ports: Vec<Option<PortPolicy>>) -> Arc<Snapshot> {
    let members = (0_u16..).zip(&ports).filter(|(_, port)| port.is_some()).map(|(id, _)| id);
    let members = members.collect();
    let domain = Domain { tenant: Some(1), vid: 0, members, fdb_limit: 64 };
    let ports = ports.into_iter().map(|port| Some(Arc::new(port?.finish()))).collect();
    Arc::new(Snapshot::new(generation, ports, vec![domain], Vec::new(), 300))
}

fn pacing(rate: u64) -> Pacing {
    Pacing::Link(BitsPerSecond(rate * 1_000_000))
}

fn home(port: u16) -> Arc<QueueHome> {
    let terms = QueueTerms {
        order: if port.is_multiple_of(2) { Order::FairShare } else { Order::Fifo },
        pacing: pacing(1),
        frames: 64,
        ..QueueTerms::default()
    };
    QueueHome::new(terms, usize::from(PORTS), 4)
}

/// A worker with its own output queues.
struct Bed {
    worker: Worker<VirtualCounter>,
    homes: Vec<Option<Arc<QueueHome>>>,
    snapshot: Arc<Snapshot>,
    /// Whether the worker's snapshots say what they change.
    follows: bool,
}

impl Bed {
    fn new(follows: bool) -> Self {
        let mut worker = worker(PORTS.into());
        (0..PORTS).for_each(|port| attach(&mut worker, PortId(port)));
        let homes = vec![None; PORTS.into()];
        Self { worker, homes, snapshot: Arc::default(), follows }
    }

    fn swap(&mut self, generation: u64, policies: &[Option<PortPolicy>]) {
        let mut policies = policies.to_vec();
        for (policy, home) in policies.iter_mut().zip(&self.homes) {
            if let Some(policy) = policy {
                policy.queue.clone_from(home);
            }
        }
        let new = snapshot(generation, policies);
        let new = if self.follows { new.following(&self.snapshot) } else { new };
        self.worker.swap_snapshot(Arc::clone(&new));
        self.snapshot = new;
    }

    /// Moves a port away from the worker or back to it.
    fn move_port(&mut self, port: PortId) {
        if self.worker.ctx.ports[port.index()].owned == 0 {
            attach(&mut self.worker, port);
        } else {
            self.worker.detach(port);
        }
    }

    /// Returns all state that a worker derives from its snapshot.
    fn state(&self) -> Vec<String> {
        let Worker { ctx, roster, input, outputs, .. } = &self.worker;
        let of = |port: PortId| {
            let bucket = ctx.account.buckets().state(port);
            let class = roster.schedule.state(Unit { port, queue: QueueId(0) });
            let queue = ctx.output(port).map(|queue| *queue.terms());
            format!("{port} {bucket} {class:?} {queue:?}")
        };
        let worker = format!("{:?} {}", ctx.account.first(), outputs.lacks_queue());
        (0..PORTS).map(|port| of(PortId(port))).chain([worker, input.state()]).collect()
    }
}

/// Makes change number `kind` to a port. Returns whether the change is in the snapshot.
fn change(
    (kind, port, value): (u8, u16, u64),
    policies: &mut [Option<PortPolicy>],
    beds: &mut [Bed],
) -> bool {
    let at = usize::from(port);
    match kind {
        0 => beds.iter_mut().for_each(|bed| bed.move_port(PortId(port))),
        1 => {
            for bed in beds {
                bed.homes[at] = if bed.homes[at].is_some() { None } else { Some(home(port)) };
            }
        }
        2 => {
            for home in beds.iter().filter_map(|bed| bed.homes[at].as_ref()) {
                home.set_pacing(pacing(value));
            }
        }
        3 => {
            policies[at] = if policies[at].is_some() { None } else { Some(policy(port)) };
        }
        _ => {
            if let Some(policy) = &mut policies[at] {
                change_policy(kind, value, policy);
            }
        }
    }
    kind != 0
}

fn change_policy(kind: u8, value: u64, policy: &mut PortPolicy) {
    let weight = Weight::new(value).unwrap();
    match kind {
        4 => policy.qos.weight = weight,
        5 => policy.qos.priority = Priority::new(value).unwrap(),
        6 => policy.qos.entitlement = CyclesPerSecond(value * 150_000_000),
        7 => policy.qos.ingress = IngressPolicy::CyclesMinmax,
        8 => policy.qos.ingress = IngressPolicy::CyclesStrict,
        9 => policy.qos.ingress = IngressPolicy::None,
        10 => {
            let rate = BitsPerSecond(value * 1_000_000);
            let kind = ShaperKind::Smooth(Smoothing::DEFAULT);
            policy.shape = Some(ShapeTerms { rate, kind });
        }
        11 => policy.shape = None,
        12 => policy.share.vm = weight,
        13 => policy.isolated = !policy.isolated,
        _ => policy.watched = !policy.watched,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn changes_lead_to_the_same_state_as_a_whole_snapshot(
        all in prop::collection::vec((0_u8..15, 0..PORTS, 1_u64..9), 1..40)
    ) {
        let mut beds = [Bed::new(true), Bed::new(false)];
        let mut policies: Vec<_> = (0..PORTS).map(|port| Some(policy(port))).collect();
        for (generation, one) in (1..).zip(all) {
            if change(one, &mut policies, &mut beds) {
                beds.iter_mut().for_each(|bed| bed.swap(generation, &policies));
            }
            prop_assert_eq!(beds[0].state(), beds[1].state(), "after {:?}", one);
        }
    }
}

/// Returns the work for a change of port 7 of 4,096 ports.
fn work(change: impl FnOnce(&mut PortPolicy)) -> SwapWork {
    const MANY: u16 = 4_096;
    let policies = || (0..MANY).map(|port| Some(policy(port))).collect::<Vec<_>>();
    let mut worker = worker(MANY.into());
    (0..16).for_each(|port| attach(&mut worker, PortId(port)));
    let old = snapshot(1, policies());
    worker.swap_snapshot(Arc::clone(&old));
    assert_eq!(worker.swapped(), SwapWork { ports: 4_096, ranks: true, decisions: true });
    let mut new = policies();
    new[7].iter_mut().for_each(|policy| policy.qos.ingress = IngressPolicy::CyclesMinmax);
    let before = snapshot(2, new.clone()).following(&old);
    worker.swap_snapshot(Arc::clone(&before));
    assert_eq!(worker.swapped(), SwapWork { ports: 1, ranks: true, decisions: false });
    new[7].iter_mut().for_each(|policy| policy.qos.weight = Weight::new(2).unwrap());
    new[7].as_mut().map(change).unwrap();
    worker.swap_snapshot(snapshot(3, new).following(&before));
    worker.swapped()
}

#[test]
fn the_work_for_a_snapshot_follows_from_its_changes() {
    let one = SwapWork { ports: 1, ranks: false, decisions: false };
    assert_eq!(work(|_| {}), one, "a changed weight");
    let class = |port: &mut PortPolicy| port.qos.priority = Priority::FIRST;
    assert_eq!(work(class), one, "a changed class");
    // The 15 other ports share what port 7 leaves.
    let floor = |port: &mut PortPolicy| port.qos.entitlement = CyclesPerSecond(998_000_000);
    assert_eq!(work(floor), SwapWork { ranks: true, ..one });
    let decisions = |port: &mut PortPolicy| port.up = false;
    assert_eq!(work(decisions), SwapWork { decisions: true, ..one });
}

#[test]
fn a_changed_purchase_costs_one_port_if_all_ports_purchased() {
    let policies = |cycles: u64| -> Vec<Option<PortPolicy>> {
        let purchased = |port| {
            let mut policy = policy(port);
            policy.qos.ingress = IngressPolicy::CyclesMinmax;
            policy.qos.entitlement = CyclesPerSecond(if port == 3 { cycles } else { 1_000 });
            Some(policy)
        };
        (0..PORTS).map(purchased).collect()
    };
    let mut worker = worker(PORTS.into());
    (0..PORTS).for_each(|port| attach(&mut worker, PortId(port)));
    let old = snapshot(1, policies(1_000));
    worker.swap_snapshot(Arc::clone(&old));
    worker.swap_snapshot(snapshot(2, policies(998_000_000)).following(&old));
    assert_eq!(worker.swapped(), SwapWork { ports: 1, ranks: false, decisions: false });
}
