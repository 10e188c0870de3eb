//! The exact-match cache must not change the classifier's decision about a frame. For every
//! sequence of frames, a classifier with a cache gives the same verdicts as a classifier that
//! clears its cache before each frame.

use std::sync::Arc;

use penstock_dataplane::batch::{Batch, Verdict};
use penstock_dataplane::classify::{Classifier, ClassifierConfig};
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::snapshot::{
    Actions, Domain, DomainMap, Match, PortPolicy, Rule, RuleTable, RuleTables, SlowPathLimit,
    Snapshot, Then,
};
use penstock_units::Vid;
use proptest::prelude::*;

fn vid(v: u32) -> Vid {
    Vid::new(v).unwrap()
}

/// Returns a snapshot in which ports 0 to 2 belong to tenant 1 and port 3 belongs to tenant 2, each
/// in VLAN 10. Port 4 is a trunk with the networks of the two tenants and VLAN 20.
fn snapshot() -> Snapshot {
    let udp = |port: u16| Match {
        ethertype: Some(0x0800),
        proto: Some(17),
        dst_port: Some((port, 0xffff)),
        ..Match::default()
    };
    let edit =
        Actions { set_vlan: Some(vid(20)), set_dscp: Some(10), ..Actions::only(Then::Normal) };
    let rules = [
        Rule { priority: 5, matching: udp(1), actions: Actions::only(Then::Drop), id: 1 },
        Rule { priority: 5, matching: udp(2), actions: Actions::only(Then::Output(4)), id: 2 },
        Rule { priority: 5, matching: udp(3), actions: edit, id: 3 },
    ];
    let global = Some(Arc::new(RuleTable::build(&rules, 32).unwrap()));
    let finish = |mut p: PortPolicy| {
        p.rules = RuleTables { global: global.clone(), ..RuleTables::default() };
        p.slow_path = SlowPathLimit::UNLIMITED;
        Some(Arc::new(p.finish()))
    };
    let trunk = PortPolicy::trunk(
        4,
        None,
        Some(vid(30)),
        [vid(10), vid(20)].into_iter().collect(),
        DomainMap::trunk([(vid(10), 0), (vid(20), 2), (vid(30), 1)]),
    );
    let domain = |tenant, vid, members: &[u16]| Domain {
        tenant: Some(tenant),
        vid,
        members: members.into(),
        fdb_limit: 5,
    };
    let access = |id, tenant, domain| PortPolicy::access(id, Some(tenant), vid(10), domain);
    Snapshot::new(
        1,
        vec![
            finish(access(0, 1, 0)),
            finish(access(1, 1, 0)),
            finish(access(2, 1, 0)),
            finish(access(3, 2, 1)),
            finish(trunk),
        ],
        vec![domain(1, 10, &[0, 1, 2, 4]), domain(2, 10, &[3, 4]), domain(1, 20, &[0, 1, 4])],
        Vec::new(),
        30,
    )
}

#[derive(Clone, Debug)]
struct Sent {
    port: u16,
    src: u8,
    dst: u8,
    dport: u16,
    tag: Option<u16>,
    times: usize,
    seconds: u32,
}

fn sent() -> impl Strategy<Value = Sent> {
    (
        0_u16..5,
        0_u8..7,
        0_u8..8,
        0_u16..5,
        prop::sample::select(vec![
            None,
            None,
            None,
            Some(10),
            Some(20),
            Some(30),
            Some(0),
            Some(40),
        ]),
        1_usize..4,
        prop::sample::select(vec![0, 0, 0, 0, 1, 12, 40]),
    )
        .prop_map(|(port, src, dst, dport, tag, times, seconds)| Sent {
            port,
            src,
            dst,
            dport,
            tag,
            times,
            seconds,
        })
}

fn frame(s: &Sent) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, s.dst, 2, 0, 0, 0, 0, s.src];
    if s.dst == 7 {
        f[..6].fill(0xff);
    }
    if let Some(tag) = s.tag {
        f.extend([0x81, 0]);
        f.extend(tag.to_be_bytes());
    }
    f.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, s.src, 10, 0, 0, s.dst]);
    f.extend([0, 9]);
    f.extend(s.dport.to_be_bytes());
    f.extend([0, 8, 0, 0]);
    f.resize(64, 0);
    f
}

struct Side {
    classifier: Classifier,
    batch: Box<Batch>,
    counters: PortCounters,
    forgetful: bool,
}

impl Side {
    fn new(forgetful: bool) -> Self {
        let config = ClassifierConfig { seed: 3, fdb_entries: 256, max_ports: 8 };
        Self {
            classifier: Classifier::new(&config),
            batch: Batch::new(),
            counters: PortCounters::default(),
            forgetful,
        }
    }

    fn send(&mut self, s: &Sent, snapshot: &Snapshot, now_s: u32) -> Vec<(Verdict, u16, Vec<u8>)> {
        self.batch.clear();
        for _ in 0..s.times {
            self.batch.push(&frame(s), Offload::NONE).unwrap();
        }
        if self.forgetful {
            self.classifier.flush_cache();
        }
        let policy = Arc::clone(snapshot.port(s.port).unwrap());
        let now_ns = u64::from(now_s) * 1_000_000_000;
        let (batch, counters) = (&mut self.batch, &self.counters);
        self.classifier.classify(batch, s.port, &policy, snapshot, now_s, now_ns, counters);
        let frames = self.batch.frames().iter().enumerate();
        frames
            .map(|(i, f)| {
                // The VLAN of a dropped frame has no meaning.
                let dropped = matches!(f.verdict, Verdict::Drop(_));
                (f.verdict, if dropped { 0 } else { f.tci }, self.batch.head(i).to_vec())
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_changes_no_answer(traffic in prop::collection::vec(sent(), 1..250)) {
        let snapshot = snapshot();
        let (mut with, mut without) = (Side::new(false), Side::new(true));
        let mut now_s = 100;
        for s in &traffic {
            now_s += s.seconds;
            with.classifier.fdb_mut().age(now_s, 256);
            without.classifier.fdb_mut().age(now_s, 256);
            let got = with.send(s, &snapshot, now_s);
            prop_assert_eq!(&got, &without.send(s, &snapshot, now_s), "{:?}", s);
            // No frame of tenant 1 goes to the port of tenant 2, and no frame of tenant 2 goes to a
            // port of tenant 1.
            for (verdict, ..) in got {
                let foreign = if s.port == 3 { 0..=2 } else { 3..=3 };
                let strays = matches!(verdict, Verdict::Output(p) if foreign.contains(&p));
                prop_assert!(s.port == 4 || !strays);
            }
        }
        prop_assert_eq!(without.counters.cache_hits.get(), 0);
    }
}
