//! Benchmarks the classification of batches of 32 UDP frames of 60 bytes, by number of flows and
//! rules.
//!
//! Each round writes the UDP ports of the next 32 flows into the batch, and classifies the batch.
//! The case `write-flows` only writes the ports: subtract its cost from the other cases. One
//! Criterion element is one frame.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::classify::{Classifier, ClassifierConfig};
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::snapshot::{
    Actions, Domain, IpMatch, Match, PortPolicy, Rule, RuleTable, RuleTables, Snapshot, Then,
};
use penstock_units::Vid;

const MAC_A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0x0a];
const MAC_B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0x0b];

fn udp4(src: [u8; 6], dst: [u8; 6]) -> Vec<u8> {
    let mut f = [&dst[..], &src, &[8, 0]].concat();
    f.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend([0, 1, 0, 2, 0, 26, 0, 0]);
    f.resize(60, 0);
    f
}

fn udp6(src: [u8; 6], dst: [u8; 6]) -> Vec<u8> {
    let mut f = [&dst[..], &src, &[0x86, 0xdd]].concat();
    f.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
    f.extend([0x20; 32]);
    f.extend([0, 1, 0, 2, 0, 8, 0, 0]);
    f
}

/// Returns `n` rules with four masks. None of the rules matches the benchmark's frames.
fn rules(n: u16) -> Vec<Rule> {
    let rule = |i: u16| {
        let base = Match { ethertype: Some(0x0800), ..Match::default() };
        let net = Ipv4Addr::from_bits(0xc0a8_0000 + u32::from(i) * 256);
        let matching = match i % 4 {
            0 => Match { src_ip: Some(IpMatch::v4_prefix(net, 24)), ..base },
            1 => Match { dst_ip: Some(IpMatch::v4_prefix(net, 32)), ..base },
            2 => Match { proto: Some(6), dst_port: Some((i, 0xffff)), ..base },
            _ => Match { proto: Some(6), src_port: Some((i, 0xffff)), ..base },
        };
        Rule { priority: i, matching, actions: Actions::only(Then::Drop), id: u32::from(i) }
    };
    (0..n).map(rule).collect()
}

struct Rig {
    classifier: Classifier,
    snapshot: Snapshot,
    policy: Arc<PortPolicy>,
    counters: PortCounters,
    batch: Box<Batch>,
    l4: usize,
    next: u32,
}

impl Rig {
    fn new(frame: &[u8], l4: usize, rules: &[Rule]) -> Self {
        let mut policy = PortPolicy::access(0, Some(1), Vid::UNTAGGED, 0);
        if !rules.is_empty() {
            let own = Some(Arc::new(RuleTable::build(rules, 32).unwrap()));
            policy.rules = RuleTables { own, ..RuleTables::default() };
        }
        let policy = Arc::new(policy.finish());
        let other = Arc::new(PortPolicy::access(1, Some(1), Vid::UNTAGGED, 0).finish());
        let domain = Domain { tenant: Some(1), vid: 0, members: Box::new([0, 1]), fdb_limit: 1000 };
        let ports = vec![Some(Arc::clone(&policy)), Some(Arc::clone(&other))];
        let snapshot = Snapshot::new(1, ports, vec![domain], Vec::new(), 300);
        let config = ClassifierConfig { fdb_entries: 8192, seed: 7, max_ports: 2 };
        let mut classifier = Classifier::new(&config);
        let counters = PortCounters::default();
        let mut batch = Batch::new();
        batch.push(&udp4(MAC_B, MAC_A), Offload::NONE).unwrap();
        classifier.classify(&mut batch, 1, &other, &snapshot, 1, 1, &counters);
        batch.clear();
        for _ in 0..BATCH_FRAMES {
            batch.push(frame, Offload::NONE).unwrap();
        }
        Self { classifier, snapshot, policy, counters, batch, l4, next: 0 }
    }

    /// Writes the UDP ports of the next of `flows` flows into each frame.
    fn write_flows(&mut self, flows: u32) {
        for i in 0..BATCH_FRAMES {
            self.next = if self.next + 1 >= flows { 0 } else { self.next + 1 };
            let n = self.next.wrapping_mul(0x9e37_79b1);
            self.batch.head_mut(i)[self.l4..self.l4 + 4].copy_from_slice(&n.to_be_bytes());
        }
    }

    fn classify(&mut self) {
        let (batch, counters) = (&mut self.batch, &self.counters);
        self.classifier.classify(batch, 0, &self.policy, &self.snapshot, 1, 1_000_000, counters);
        black_box(&self.batch);
    }

    fn hit_share(&self) -> String {
        let c = self.counters.read();
        format!("{} cache hits, {} rule lookups", c.cache_hits, c.rule_lookups)
    }
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("classify");
    group.throughput(Throughput::Elements(BATCH_FRAMES as u64));
    let v4 = udp4(MAC_A, MAC_B);
    let v6 = udp6(MAC_A, MAC_B);
    let catch_all = Rule {
        priority: 1,
        matching: Match::default(),
        actions: Actions::only(Then::Output(1)),
        id: 1,
    };

    let mut rig = Rig::new(&v4, 34, &[]);
    group.bench_function("write-flows", |b| {
        b.iter(|| {
            rig.write_flows(1000);
            black_box(&rig.batch);
        });
    });
    let mut rig = Rig::new(&v4, 34, &[catch_all]);
    group.bench_function("patch", |b| b.iter(|| rig.classify()));
    for (name, frame, l4) in [("ipv4", &v4, 34), ("ipv6", &v6, 54)] {
        for rule_count in [0, 1, 1000] {
            for flows in [1, 1000, 100_000] {
                let mut rig = Rig::new(frame, l4, &rules(rule_count));
                // Many rounds are needed until the filter for new flows has admitted all flows.
                for _ in 0..flows.min(1000) * 20 {
                    rig.write_flows(flows);
                    rig.classify();
                }
                rig.counters = PortCounters::default();
                group.bench_function(format!("{name}/{flows}-flows/{rule_count}-rules"), |b| {
                    b.iter(|| {
                        if flows > 1 {
                            rig.write_flows(flows);
                        }
                        rig.classify();
                    });
                });
                println!("    {}", rig.hit_share());
            }
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
