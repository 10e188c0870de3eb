//! Benchmarks a worker's turn from split ring to split ring, and the turn's parts. A batch has 32
//! frames, and one Criterion element is one frame. The case `prepare` is the guests' share of a
//! round: subtract its cost from the other cases.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

mod rig;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    group.throughput(Throughput::Elements(BATCH_FRAMES as u64));
    for len in [60, 508, 1514] {
        let mut guest = rig::Guest::new(Some(&rig::udp(len)));
        let (mut ring, mut batch) = (guest.ring(), Batch::new());
        group.bench_function(format!("take/{len}"), |b| {
            b.iter(|| {
                guest.offer_batch();
                batch.clear();
                ring.take(&mut batch);
                ring.complete_taken();
                ring.publish();
            });
        });
        let mut guest = rig::Guest::new(None);
        let (mut ring, mut batch) = (guest.ring(), Batch::new());
        let all: [u8; BATCH_FRAMES] = core::array::from_fn(|i| u8::try_from(i).unwrap());
        for _ in all {
            batch.push(&rig::udp(len), Offload::NONE).unwrap();
        }
        group.bench_function(format!("give/{len}"), |b| {
            b.iter(|| {
                guest.offer_batch();
                let mut outcome = TxOutcome::default();
                ring.give(&batch, &all, &mut outcome);
                ring.publish();
                assert_eq!(outcome.frames, 32);
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("turn");
    group.throughput(Throughput::Elements(BATCH_FRAMES as u64));
    for (len, flows, ports) in [
        (60, 1, false),
        (60, 100_000, false),
        (60, 100_000, true),
        (508, 1, false),
        (1514, 1, false),
    ] {
        let mut switch = rig::Switch::new(len, flows, ports);
        let rules = if ports { "/port-rules" } else { "" };
        group.bench_function(format!("{len}/{flows}-flows{rules}"), |b| b.iter(|| switch.round()));
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
