use penstock_units::{CyclesPerSecond, QueueId, TscRate};
use proptest::prelude::*;

use super::*;
use crate::peers::Mesh;
use crate::snapshot::{IngressPolicy, PortQos};

const PORTS: u16 = 4;
const HZ: u64 = 1_000_000_000;

/// Test bench with a worker's account, the ports' counters, and the current cycle.
struct Bench {
    account: Account,
    counters: Vec<Option<Arc<PortCounters>>>,
    peers: Peers,
    now: u64,
}

impl Bench {
    /// Creates an account in which the last port is not attached to the worker.
    fn new() -> Self {
        let mut counters: Vec<_> = (1..PORTS).map(|_| Some(Arc::default())).collect();
        counters.push(None);
        let ports = usize::from(PORTS);
        let peers = Mesh::new(1, ports).peers.remove(0);
        let tsc = TscRate::from_hz(HZ);
        let config = WorkerConfig { tsc, max_ports: ports, ..WorkerConfig::default() };
        let account = Account::new(&config, Cycles::ZERO, None);
        Self { account, counters, peers, now: 0 }
    }

    fn sell(&mut self, port: u16, entitlement: u64, ingress: IngressPolicy) {
        let entitlement = CyclesPerSecond(entitlement);
        let qos = PortQos { entitlement, ingress, ..PortQos::default() };
        self.account.buckets_mut().set(PortId(port), &qos, 0, Cycles(self.now));
    }

    fn settle(&mut self, cost: u64, payer: Payer<std::vec::IntoIter<(PortId, u64)>>) -> Settled {
        self.now += cost;
        let books = Books { counters: &self.counters, peers: &self.peers };
        self.account.settle(Cycles(self.now), payer, || None, books)
    }

    fn batch(&mut self, port: u16, cost: u64, more: bool) -> Settled {
        let unit = Unit { port: PortId(port), queue: QueueId(0) };
        let class = Priority::LAST;
        self.settle(cost, Payer::Unit(OwnBatch { unit, class, frames: 32, more, lent: false }))
    }

    fn on_behalf_of(&mut self, cost: u64, parts: &[(u16, u64)]) {
        let frames = parts.iter().map(|(_, frames)| frames).sum();
        let parts: Vec<_> = parts.iter().map(|&(port, frames)| (PortId(port), frames)).collect();
        self.settle(cost, Payer::Ports { parts: parts.into_iter(), frames });
    }

    fn refill(&mut self) {
        let last = self.account.last();
        self.account.buckets_mut().refill(last);
    }

    fn charged(&self) -> Vec<u64> {
        let of = |counters: &Option<Arc<PortCounters>>| {
            counters.as_ref().map_or(0, |counters| counters.cycles.get())
        };
        self.counters.iter().map(of).collect()
    }
}

#[derive(Clone, Debug)]
enum Work {
    Batch(u16, bool),
    Ports(Vec<(u16, u64)>),
    Host,
    Nothing,
}

fn work() -> impl Strategy<Value = (Work, u64)> {
    let parts = prop::collection::vec((0..PORTS, 0..100_u64), 0..6);
    let kind = prop_oneof![
        (0..PORTS, any::<bool>()).prop_map(|(port, more)| Work::Batch(port, more)),
        parts.prop_map(Work::Ports),
        Just(Work::Host),
        Just(Work::Nothing),
    ];
    (kind, 0..200_000_u64)
}

fn play(bench: &mut Bench, all: &[(Work, u64)]) {
    for (work, cost) in all {
        match work {
            Work::Batch(port, more) => drop(bench.batch(*port, *cost, *more)),
            Work::Ports(parts) => bench.on_behalf_of(*cost, parts),
            Work::Host => drop(bench.settle(*cost, Payer::Host)),
            Work::Nothing => drop(bench.settle(*cost, Payer::Nobody)),
        }
    }
}

proptest! {
    #[test]
    fn every_cycle_is_in_one_account(all in prop::collection::vec(work(), 0..60)) {
        let mut bench = Bench::new();
        play(&mut bench, &all);
        let worker = bench.account.counters().read();
        let sum = worker.cycles_charged + worker.cycles_host + worker.cycles_idle
            + worker.cycles_stolen;
        prop_assert_eq!(sum, bench.now);
        prop_assert_eq!(bench.account.last(), Cycles(bench.now));
        prop_assert_eq!(bench.charged().iter().sum::<u64>(), worker.cycles_charged);
    }

    #[test]
    fn a_port_pays_for_its_frames_and_for_no_others(all in prop::collection::vec(work(), 0..60)) {
        let mut bench = Bench::new();
        for port in 0..PORTS - 1 {
            bench.sell(port, HZ / 4, IngressPolicy::CyclesStrict);
        }
        play(&mut bench, &all);
        for (port, charged) in (0..PORTS).zip(bench.charged()) {
            let takes_part = |work: &Work| match work {
                Work::Batch(of, _) => *of == port,
                Work::Ports(parts) => parts.iter().any(|&(of, _)| of == port),
                Work::Host | Work::Nothing => false,
            };
            if !all.iter().any(|(work, _)| takes_part(work)) {
                prop_assert_eq!(charged, 0);
            }
            let tokens = bench.account.buckets().tokens(PortId(port));
            if port < PORTS - 1 {
                prop_assert_eq!(tokens, -i64::try_from(charged).unwrap());
            }
        }
    }

    #[test]
    fn the_order_of_bills_changes_no_charge(
        (all, shuffled) in prop::collection::vec(work(), 0..40)
            .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let (mut one, mut other) = (Bench::new(), Bench::new());
        play(&mut one, &all);
        play(&mut other, &shuffled);
        prop_assert_eq!(one.charged(), other.charged());
        let host = |bench: &Bench| bench.account.counters().cycles_host.get();
        prop_assert_eq!(host(&one), host(&other));
    }
}

/// In this test, a min-max port uses the cycles that port 0 does not use. As long as frames wait in
/// the ring of port 0, port 0 keeps tokens above the depth of its bucket (arrears). Port 0 keeps
/// its surplus tokens even if its last bills are for frames that left an output queue.
#[test]
fn arrears_are_kept_while_a_ring_has_frames() {
    let left_with = |more: bool| {
        let mut bench = Bench::new();
        bench.sell(0, HZ / 5, IngressPolicy::CyclesStrict);
        bench.sell(1, HZ / 2, IngressPolicy::CyclesMinmax);
        bench.batch(0, 1_000, more);
        for _ in 0..40 {
            bench.batch(1, 45_000, true);
            bench.on_behalf_of(5_000, &[(1, 32)]);
            bench.refill();
        }
        bench.on_behalf_of(1_000, &[(0, 32)]);
        bench.refill();
        bench.account.buckets().tokens(PortId(0))
    };
    let (with_frames, without) = (left_with(true), left_with(false));
    assert!(with_frames >= without, "{with_frames} with frames, {without} without");
    assert!(with_frames > 0, "{with_frames}");
}

#[test]
fn lent_time_is_charged_to_the_port_and_not_to_its_tokens() {
    let mut bench = Bench::new();
    bench.sell(0, HZ / 5, IngressPolicy::CyclesMinmax);
    let unit = Unit { port: PortId(0), queue: QueueId(0) };
    let batch = OwnBatch { unit, class: Priority::LAST, frames: 32, more: true, lent: true };
    bench.settle(7_000, Payer::Unit(batch));
    assert_eq!(bench.charged()[0], 7_000);
    assert_eq!(bench.account.buckets().tokens(PortId(0)), 0);
    assert_eq!(bench.account.counters().lent_batches.get(), 1);
}

#[test]
fn an_output_does_not_change_the_next_batch_of_the_port() {
    let mut bench = Bench::new();
    bench.account.set_first(Priority::FIRST);
    let unit = Unit { port: PortId(0), queue: OUTPUT };
    let class = Priority::LAST;
    let batch = OwnBatch { unit, class, frames: 1, more: true, lent: false };
    bench.settle(90_000, Payer::Unit(batch));
    assert_eq!(bench.account.batch_limit(PortId(0), class), 32);
}

#[test]
fn the_hosts_work_takes_nothing_from_a_purchase_that_fits_beside_it() {
    let mut bench = Bench::new();
    bench.sell(0, HZ / 5, IngressPolicy::CyclesStrict);
    while bench.now < HZ {
        // The host takes 4 % of the core. Most of the rest is idle.
        bench.refill();
        bench.settle(400, Payer::Host);
        for _ in 0..8 {
            let payer = bench.account.buckets().may_run(PortId(0));
            match payer {
                true => bench.batch(0, 1_200, true),
                false => bench.settle(1_200, Payer::Nobody),
            };
        }
    }
    let charged = bench.charged()[0];
    assert!((199 * HZ / 1_000..=201 * HZ / 1_000).contains(&charged), "{charged}");
}
