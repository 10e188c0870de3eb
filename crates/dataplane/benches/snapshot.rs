//! Benchmarks the time for which a worker with 4,096 ports adopts a new snapshot. The benchmark
//! builds and compares the snapshots outside of the measured time, as the control plane does.
//!
//! `SnapshotCost` of the crate `sim` has a part for each case:
//!
//! | Case | Part |
//! |---|---|
//! | `nothing` | `request`, without the request's way between two threads |
//! | `weights/N` | `port`: the increase for each port of which the weight changes |
//! | `entitlement` | like `weights/1`, because the other ports' buckets do not change |
//! | `floor` | `rank`: the floor of 64 ports changes, and the worker looks at 4,096 ports |
//! | `isolation` | `slot`: 8,192 slots of the MAC table |
//! | `whole` | a snapshot that was not compared with the worker's snapshot |
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::cell::RefCell;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::port::memory_queue::memory_queue;
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{Domain, IngressPolicy, PortPolicy, Snapshot};
use penstock_dataplane::tsc::Tsc;
use penstock_dataplane::worker::{Reply, Request, Worker, WorkerConfig};
use penstock_units::{CyclesPerSecond, MacAddr, PortId, TscRate, Vid, Weight};

const PORTS: u16 = 4_096;
const FDB_ENTRIES: usize = 8_192;
const HZ: u64 = 2_000_000_000;
/// All ports together purchase nine tenths of the core.
const ENTITLEMENT: CyclesPerSecond = CyclesPerSecond(HZ / 10 * 9 / PORTS as u64);
/// Ports without purchased cycles in the case `floor`.
const FREE: u16 = 64;

fn policy(port: u16) -> PortPolicy {
    let mut policy = PortPolicy::access(port, Some(1), Vid::UNTAGGED, 0);
    policy.qos.ingress = IngressPolicy::CyclesMinmax;
    policy.qos.entitlement = ENTITLEMENT;
    policy.finish()
}

/// Returns a snapshot with new policies of all ports. The first `changed` ports have the weight
/// `weight`.
fn snapshot(generation: u64, changed: u16, weight: u64) -> Snapshot {
    let mut policies: Vec<PortPolicy> = (0..PORTS).map(policy).collect();
    for policy in &mut policies[..usize::from(changed)] {
        policy.qos.weight = Weight::new(weight).unwrap();
    }
    let ports = policies.into_iter().map(|policy| Some(Arc::new(policy))).collect();
    let members = (0..PORTS).collect();
    let domain = Domain { tenant: Some(1), vid: 0, members, fdb_limit: 16_384 };
    Snapshot::new(generation, ports, vec![domain], Vec::new(), 300)
}

fn worker(first: &Arc<Snapshot>) -> Worker<Tsc> {
    let config = WorkerConfig {
        schedule: ScheduleKind::Hbs,
        fdb_entries: FDB_ENTRIES,
        tsc: TscRate::from_hz(HZ),
        max_ports: usize::from(PORTS),
        ..WorkerConfig::default()
    };
    let mut worker = Worker::new(&config, Tsc, None);
    for port in 0..PORTS {
        let (queue, _) = memory_queue(4, OffloadCaps::ALL);
        let pairs: Vec<Box<dyn PortQueue>> = vec![Box::new(queue)];
        let attached = worker.attach(PortId(port), pairs, Arc::new(PortCounters::default()));
        assert!(attached.is_ok());
    }
    drop(worker.swap_snapshot(Arc::clone(first)));
    let mut pinned = 0;
    for port in 0..PORTS {
        let [high, low] = port.to_be_bytes();
        let mac = MacAddr([0x52, 0x54, 0, 0, high, low]);
        let reply = worker.serve(Request::FdbStatic(0, mac, PortId(port), true));
        pinned += u32::from(matches!(reply, Reply::Done));
    }
    assert!(pinned > u32::from(PORTS) / 2, "the MAC table has {pinned} addresses");
    worker
}

/// Measures the swap of snapshots, beginning with `first`. `next` derives a snapshot from the
/// snapshot before it and from its number.
fn case(
    c: &mut Criterion,
    name: &str,
    first: &Arc<Snapshot>,
    next: impl Fn(&Arc<Snapshot>, u64) -> Arc<Snapshot>,
) {
    let mut worker = worker(first);
    let present = RefCell::new((Arc::clone(first), 1_u64));
    c.bench_function(&format!("snapshot/{name}"), |b| {
        b.iter_batched(
            || {
                let mut present = present.borrow_mut();
                present.1 += 1;
                let new = next(&present.0, present.1);
                present.0 = Arc::clone(&new);
                new
            },
            // Criterion frees the former snapshot after the measured time.
            |new| worker.serve(Request::Swap(new)),
            // The worker must get each snapshot before the next one is compared.
            BatchSize::PerIteration,
        );
    });
    let work = worker.swapped();
    eprintln!("snapshot/{name}: {work:?}");
}

/// Returns a snapshot in which port 0 purchases `cycles` more than [`ENTITLEMENT`].
fn purchase(old: &Arc<Snapshot>, cycles: u64) -> Arc<Snapshot> {
    let new = old.with_qos(|port, qos| {
        if port == PortId(0) {
            qos.entitlement = CyclesPerSecond(ENTITLEMENT.0 + cycles);
        }
    });
    Arc::new(new).following(old)
}

fn bench(c: &mut Criterion) {
    let first = || Arc::new(snapshot(1, 0, 1));
    case(c, "nothing", &first(), |old, number| Arc::new(snapshot(number, 0, 1)).following(old));
    for changed in [1, 16, 256] {
        case(c, &format!("weights/{changed}"), &first(), |old, number| {
            Arc::new(snapshot(number, changed, 1 + number % 2)).following(old)
        });
    }
    case(c, "entitlement", &first(), |old, number| purchase(old, number % 2));
    let free = first().with_qos(|port, qos| {
        if port.0 >= PORTS - FREE {
            qos.ingress = IngressPolicy::None;
        }
    });
    // Port 0 purchases nearly all cycles that the other ports left.
    case(c, "floor", &Arc::new(free), |old, number| {
        purchase(old, HZ / 10 + number % 2 * 1_000_000)
    });
    case(c, "isolation", &first(), |old, number| {
        let mut new = snapshot(number, 0, 1);
        if let Some(port) = &mut new.ports[0] {
            Arc::make_mut(port).isolated = number.is_multiple_of(2);
        }
        Arc::new(new).following(old)
    });
    case(c, "whole", &first(), |_, number| Arc::new(snapshot(number, 0, 1)));
}

criterion_group!(benches, bench);
criterion_main!(benches);
