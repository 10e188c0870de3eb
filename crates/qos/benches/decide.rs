//! Measures the cost that C2TB and HBS add to a batch, for 1 to 4,096 ports. The cost that C2TB and
//! HBS add to a batch consists of a scheduling decision, a charge, and a part of a refill. In the
//! benchmark `busy`, all ports send. In the benchmark `idle`, four ports send. In the benchmark
//! `idle`, the buckets of the other ports are full. Like a worker, the benchmark does not poll the
//! queue pairs of idle ports.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use penstock_qos::c2tb::{BucketSet, Mode, Terms};
use penstock_qos::hbs::{BatchScheduler, RELEASE_MOST, Readiness};
use penstock_units::{Cycles, CyclesPerSecond, Priority, TscRate, Weight};

const HZ: u64 = 2_000_000_000;
/// Assumed cost of a batch in cycles: 32 frames of 1,518 bytes at about 300 cycles per frame.
const BATCH: Cycles = Cycles(10_000);
const INTERVAL: u64 = 100_000;

struct Bed {
    buckets: BucketSet,
    scheduler: BatchScheduler,
    now: u64,
    refilled: u64,
}

impl Bed {
    fn new(ports: usize, busy: usize) -> Self {
        let mut buckets = BucketSet::new(ports, TscRate::from_hz(HZ), CyclesPerSecond(HZ));
        let mut scheduler = BatchScheduler::new(ports * 8, Readiness::Pending);
        for slot in 0..ports {
            let entitlement = CyclesPerSecond(HZ / ports as u64 / 2);
            let depth = Cycles(200_000);
            let terms = Terms { entitlement, weight: Weight::ONE, mode: Mode::MinMax, depth };
            buckets.join(slot, &terms, 0);
            if slot < busy {
                let class = Priority::new(slot as u64 % 8 + 1).unwrap();
                scheduler.add(slot * 8, class);
            }
        }
        // All buckets start full.
        buckets.refill(Cycles(HZ));
        Self { buckets, scheduler, now: 0, refilled: 0 }
    }

    #[inline(never)]
    fn batch(&mut self) {
        self.scheduler.begin();
        let slot = loop {
            let Some(candidate) = self.scheduler.next_look() else {
                // If no port has tokens, time passes until a refill.
                self.now += INTERVAL / 8;
                self.refill();
                self.scheduler.begin();
                continue;
            };
            if self.buckets.may_run(candidate.slot / 8) {
                break candidate.slot;
            }
            self.scheduler.hold(candidate.slot);
        };
        self.now += BATCH.0;
        let left = self.buckets.charge(slot / 8, BATCH, true);
        self.scheduler.ran(slot);
        if !left {
            self.scheduler.hold(slot);
        }
        if self.now - self.refilled >= INTERVAL {
            self.refill();
        }
    }

    fn refill(&mut self) {
        self.buckets.refill(Cycles(self.now - self.refilled));
        self.refilled = self.now;
        self.scheduler.release(RELEASE_MOST, |slot| self.buckets.may_run(slot / 8));
    }
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("batch");
    group.throughput(Throughput::Elements(1));
    for ports in [1, 4, 16, 28, 64, 256, 1024, 4096] {
        for (name, busy) in [("busy", ports), ("idle", ports.min(4))] {
            let mut bed = Bed::new(ports, busy);
            (0..10_000).for_each(|_| bed.batch());
            group.bench_function(BenchmarkId::new(name, ports), |b| b.iter(|| bed.batch()));
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
