//! The tests of the classifier check that tenants are isolated, and that the cache gives the same
//! answers as the full path.

use core::net::Ipv4Addr;
use std::sync::Arc;

use penstock_units::{MacAddr, Vid};

use super::*;
use crate::counters::PortReading;
use crate::headers::test_frames::*;
use crate::snapshot::*;

const ME: [u8; 4] = [10, 0, 0, 1];
const YOU: [u8; 4] = [10, 0, 0, 2];
const BROADCAST: u64 = 0xffff_ffff_ffff;

fn vid(v: u32) -> Vid {
    Vid::new(v).unwrap()
}

fn mac(m: u64) -> MacAddr {
    MacAddr(m.to_be_bytes()[2..].try_into().unwrap())
}

/// Test bench with a classifier but without real ports, which records the classifier's decision
/// about each frame.
struct Bench {
    classifier: Classifier,
    snapshot: Snapshot,
    counters: Vec<PortCounters>,
    batch: Box<Batch>,
    now_s: u32,
}

impl Bench {
    fn new(ports: Vec<PortPolicy>, domains: Vec<Domain>) -> Self {
        let config = ClassifierConfig { fdb_entries: 8192, seed: 11, max_ports: 64 };
        let ports: Vec<_> = ports.into_iter().map(|p| Some(Arc::new(p.finish()))).collect();
        Self {
            classifier: Classifier::new(&config),
            counters: ports.iter().map(|_| PortCounters::default()).collect(),
            snapshot: Snapshot::new(1, ports, domains, vec![Box::new([1, 2])], 300),
            batch: Batch::new(),
            now_s: 0,
        }
    }

    fn send_all<'a>(
        &mut self,
        port: u16,
        frames: impl IntoIterator<Item = &'a Vec<u8>>,
    ) -> Vec<Verdict> {
        self.batch.clear();
        for frame in frames {
            self.batch.push(frame, Offload::NONE).unwrap();
        }
        let policy = Arc::clone(self.snapshot.port(port).unwrap());
        self.classifier.classify(
            &mut self.batch,
            port,
            &policy,
            &self.snapshot,
            self.now_s,
            u64::from(self.now_s) * 1_000_000_000,
            &self.counters[usize::from(port)],
        );
        self.batch.frames().iter().map(|f| f.verdict).collect()
    }

    fn send(&mut self, port: u16, frame: &Vec<u8>) -> Verdict {
        self.send_all(port, [frame])[0]
    }

    fn count(&self, port: u16) -> PortReading {
        self.counters[usize::from(port)].read()
    }
}

fn domain(tenant: u16, vid: u16, members: &[u16]) -> Domain {
    Domain { tenant: Some(tenant), vid, members: members.into(), fdb_limit: 64 }
}

/// Returns a classifier with ports 0 and 1 of tenant 1 and ports 2 and 3 of tenant 2. Each of the
/// two tenants has a network with VLAN 10.
fn two_tenants() -> Bench {
    let port = |id, tenant, domain| PortPolicy::access(id, Some(tenant), vid(10), domain);
    Bench::new(
        vec![port(0, 1, 0), port(1, 1, 0), port(2, 2, 1), port(3, 2, 1)],
        vec![domain(1, 10, &[0, 1]), domain(2, 10, &[2, 3])],
    )
}

fn with_rules(policy: PortPolicy, rules: &[Rule]) -> PortPolicy {
    let own = Some(Arc::new(RuleTable::build(rules, SUBTABLES_DEFAULT).unwrap()));
    PortPolicy { rules: RuleTables { own, ..RuleTables::default() }, ..policy }
}

fn ipv4() -> Match {
    Match { ethertype: Some(0x0800), ..Match::default() }
}

fn rule(id: u32, priority: u16, matching: Match, actions: Actions) -> Rule {
    Rule { priority, matching, actions, id }
}

#[test]
fn tenants_with_the_same_vlan_and_addresses_do_not_meet() {
    let mut b = two_tenants();
    let hello = udp4(A, BROADCAST, ME, YOU, 1, 2);
    assert_eq!(b.send(0, &hello), Verdict::Flood(0));
    assert_eq!(b.send(2, &hello), Verdict::Flood(1));
    // Both tenants now have an address `A`. Each tenant's frames reach its own `A`.
    let answer = udp4(B, A, YOU, ME, 2, 1);
    for _ in 0..4 {
        assert_eq!(b.send(1, &answer), Verdict::Output(0));
        assert_eq!(b.send(3, &answer), Verdict::Output(2));
    }
    assert!(b.count(1).cache_hits > 0 && b.count(3).cache_hits > 0);
    // An address that only the other tenant has is unknown.
    b.send(2, &udp4(0x5254_0000_00cc, A, ME, YOU, 1, 2));
    assert_eq!(b.send(1, &udp4(B, 0x5254_0000_00cc, YOU, ME, 2, 1)), Verdict::Flood(0));
}

#[test]
fn a_foreign_tag_is_not_admitted_and_the_own_is() {
    let mut b = two_tenants();
    let hello = udp4(A, BROADCAST, ME, YOU, 1, 2);
    assert_eq!(b.send(0, &tagged(&hello, 11)), Verdict::Drop(DropReason::VlanIngress));
    assert_eq!(b.send(0, &tagged(&hello, 0xefff)), Verdict::Drop(DropReason::VlanIngress));
    assert_eq!(b.send(0, &tagged(&hello, 10)), Verdict::Flood(0));
    assert_eq!(b.send(0, &tagged(&hello, 0xa000)), Verdict::Flood(0));
    // The frame's priority is kept, and its VLAN id becomes that of the port.
    assert_eq!(b.batch.frame(0).tci, 0xa00a);
}

#[test]
fn impossible_and_reserved_addresses_are_refused() {
    let mut b = two_tenants();
    let group = udp4(0x0100_5e00_0001, B, ME, YOU, 1, 2);
    assert_eq!(b.send(0, &group), Verdict::Drop(DropReason::BadHeader));
    let lldp = udp4(A, 0x0180_c200_000e, ME, YOU, 1, 2);
    assert_eq!(b.send(0, &lldp), Verdict::Drop(DropReason::ReservedMac));
    assert_eq!(b.send(0, &udp4(A, 0x0180_c200_0010, ME, YOU, 1, 2)), Verdict::Flood(0));
    assert_eq!(b.send(0, &group[..14].to_vec()), Verdict::Drop(DropReason::BadHeader));
}

#[test]
fn a_bound_port_cannot_use_the_addresses_of_another() {
    let binding = Binding::new(Some(&[mac(A)]), Some(&[Ipv4Addr::from(ME)]), Some(&[]));
    let mut b = two_tenants();
    let bound = PortPolicy { binding: Some(binding), ..PortPolicy::access(0, Some(1), vid(10), 0) };
    b.snapshot.ports[0] = Some(Arc::new(bound.finish()));
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let spoofed_ip = Verdict::Drop(DropReason::SpoofedIp);
    for _ in 0..3 {
        assert_eq!(b.send(0, &udp4(A, B, ME, YOU, 1, 2)), Verdict::Output(1));
        assert_eq!(b.send(0, &arp4(A, A, 2, ME, YOU)), Verdict::Flood(0));
        assert_eq!(b.send(0, &udp4(B, A, ME, YOU, 1, 2)), Verdict::Drop(DropReason::SpoofedMac));
        assert_eq!(b.send(0, &udp4(A, B, YOU, ME, 1, 2)), spoofed_ip);
        assert_eq!(b.send(0, &arp4(A, A, 2, YOU, ME)), spoofed_ip);
        assert_eq!(b.send(0, &arp4(A, B, 2, ME, YOU)), spoofed_ip);
        let neighbour = nd(A, B, ip6_addr(1), ip6_addr(2), 136, ip6_addr(2), Some(A));
        assert_eq!(b.send(0, &neighbour), spoofed_ip);
    }
    // The source of a spoofed frame was not learned.
    assert_eq!(b.classifier.fdb().lookup(0, B).map(|e| e.1), Some(1));
}

#[test]
fn a_flood_of_addresses_stays_in_its_domain_and_its_allowance() {
    let mut b = two_tenants();
    b.send(0, &udp4(A, BROADCAST, ME, YOU, 1, 2));
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let flow = udp4(A, B, ME, YOU, 1000, 2000);
    for _ in 0..3 {
        b.send(0, &flow);
    }
    let hits = b.count(0).cache_hits;
    let mut limited = 0;
    for n in 0..20_000 {
        let frame = udp4(0x0200_0000_0000 + n, B, ME, YOU, 1, 2);
        limited += usize::from(b.send(2, &frame) == Verdict::Drop(DropReason::SlowPathLimit));
    }
    // The burst is 1,000 frames. After the burst, no frame passes in this second.
    assert!(limited >= 18_000, "{limited}");
    assert_eq!(b.classifier.fdb().domain_len(1), 64);
    assert_eq!(b.classifier.fdb().domain_len(0), 2);
    for _ in 0..100 {
        assert_eq!(b.send(0, &flow), Verdict::Output(1));
    }
    assert_eq!(b.count(0).cache_hits, hits + 100);
    assert_eq!(b.classifier.cached(2), 0);
}

#[test]
fn many_flows_of_one_port_leave_the_others_in_the_cache() {
    let port = |id, tenant, domain| {
        with_rules(PortPolicy::access(id, Some(tenant), vid(10), domain), &[looks_at_ports()])
    };
    let mut b = Bench::new(
        vec![port(0, 1, 0), port(1, 1, 0), port(2, 2, 1), port(3, 2, 1)],
        vec![domain(1, 10, &[0, 1]), domain(2, 10, &[2, 3])],
    );
    for (port, own, other) in [(0, A, B), (1, B, A), (2, A, B), (3, B, A)] {
        b.send(port, &udp4(own, BROADCAST, ME, YOU, 1, 2));
        b.send(port, &udp4(own, other, ME, YOU, 1, 2));
    }
    let mine: Vec<Vec<u8>> = (0..32).map(|n| udp4(A, B, ME, YOU, 1000 + n, 9)).collect();
    for _ in 0..3 {
        b.send_all(0, &mine);
    }
    assert_eq!(b.classifier.cached(0), 32);
    let burst = |n: u16| (0..16).map(move |k| udp4(A, B, ME, YOU, n * 16 + k, 7));
    for round in 0..4000_u16 {
        let frames: Vec<Vec<u8>> = burst(round % 4000).flat_map(|f| [f.clone(), f]).collect();
        b.send_all(2, &frames);
    }
    assert!(b.classifier.cached(2) > 4000);
    let before = b.count(0).cache_hits;
    b.send_all(0, &mine);
    assert_eq!(b.count(0).cache_hits, before + 32);
}

/// Returns a rule that matches no test frame, but makes decisions depend on the UDP or TCP ports.
fn looks_at_ports() -> Rule {
    let ports = Some((1, u16::MAX));
    let tcp = Match { proto: Some(6), src_port: ports, dst_port: ports, ..ipv4() };
    rule(99, 1, tcp, Actions::only(Then::Drop))
}

#[test]
fn flows_that_differ_in_irrelevant_bits_share_a_decision() {
    let mut b = two_tenants();
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let flows: Vec<Vec<u8>> = (0..1000).map(|n| udp4(A, B, ME, [10, 1, 2, 3], n, 9)).collect();
    for burst in flows.chunks(32) {
        let verdicts = b.send_all(0, burst);
        assert!(verdicts.iter().all(|v| *v == Verdict::Output(1)), "{verdicts:?}");
    }
    assert!(b.classifier.cached(0) <= 1);
    let spread: std::collections::BTreeSet<u32> = b.batch.frames().iter().map(|f| f.hash).collect();
    assert!(spread.len() >= flows.len() % 32, "flows are told apart where queues are picked");
}

#[test]
fn bits_that_a_rule_reads_are_compared_within_a_burst() {
    let drop_port = Match { proto: Some(17), dst_port: Some((9, u16::MAX)), ..ipv4() };
    let dropping = [rule(1, 5, drop_port, Actions::only(Then::Drop))];
    let bound = Binding::new(None, Some(&[Ipv4Addr::from(ME)]), None);
    let first = PortPolicy {
        binding: Some(bound),
        ..with_rules(PortPolicy::access(0, Some(1), vid(10), 0), &dropping)
    };
    let second = PortPolicy::access(1, Some(1), vid(10), 0);
    let mut b = Bench::new(vec![first, second], vec![domain(1, 10, &[0, 1])]);
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let (passes, dropped) = (udp4(A, B, ME, YOU, 1, 8), udp4(A, B, ME, YOU, 1, 9));
    let (spoofed, elsewhere) = (udp4(A, B, YOU, ME, 1, 8), udp4(A, B, ME, ME, 7, 8));
    let dhcp = udp4(A, B, [0; 4], [255; 4], 68, 67);
    let no_dhcp = udp4(A, B, [0; 4], [255; 4], 68, 68);
    let (out, no) = (Verdict::Output(1), Verdict::Drop(DropReason::SpoofedIp));
    let rule = Verdict::Drop(DropReason::Rule);
    for _ in 0..4 {
        let burst = [
            (&passes, out),
            (&elsewhere, out),
            (&dropped, rule),
            (&passes, out),
            (&spoofed, no),
            (&passes, out),
            (&dhcp, out),
            (&no_dhcp, no),
            (&dhcp, out),
        ];
        let verdicts = b.send_all(0, burst.iter().map(|(frame, _)| *frame));
        assert_eq!(verdicts, burst.map(|(_, verdict)| verdict));
    }
    assert!(b.count(0).cache_hits > 0);
}

#[test]
fn a_station_that_moves_is_found_at_once() {
    let mut b = Bench::new(
        (0..3).map(|id| PortPolicy::access(id, Some(1), vid(10), 0)).collect(),
        vec![domain(1, 10, &[0, 1, 2])],
    );
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let flow = udp4(A, B, ME, YOU, 1, 2);
    for _ in 0..4 {
        assert_eq!(b.send(0, &flow), Verdict::Output(1));
    }
    b.send(2, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    assert_eq!(b.send(0, &flow), Verdict::Output(2));
    assert_eq!(b.send(2, &udp4(A, B, ME, YOU, 1, 2)), Verdict::Drop(DropReason::SamePort));
    assert_eq!(b.classifier.fdb().stats().moved, 2);
}

#[test]
fn cached_flows_keep_their_source_from_ageing() {
    let mut b = two_tenants();
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let flow = udp4(A, B, ME, YOU, 1, 2);
    for second in 0..400 {
        b.now_s = second;
        b.send(0, &flow);
        for _ in 0..16 {
            let snapshot = b.snapshot.clone();
            b.classifier.age(second, &snapshot);
        }
    }
    assert!(b.count(0).cache_hits > 290);
    assert!(b.classifier.fdb().lookup(0, A).is_some());
    assert!(b.classifier.fdb().lookup(0, B).is_none());
    assert_eq!(b.send(0, &flow), Verdict::Flood(0));
}

#[test]
fn isolated_ports_reach_only_the_others() {
    let mut b = two_tenants();
    for id in [0, 1] {
        let p = PortPolicy { isolated: true, ..PortPolicy::access(id, Some(1), vid(10), 0) };
        b.snapshot.ports[usize::from(id)] = Some(Arc::new(p.finish()));
    }
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let to_it = udp4(A, B, ME, YOU, 1, 2);
    assert_eq!(b.send(0, &to_it), Verdict::Drop(DropReason::NoDestination));
}

#[test]
fn a_port_alone_in_its_domain_has_no_destination() {
    let alone = PortPolicy::access(0, Some(1), vid(10), 0);
    let mut b = Bench::new(vec![alone], vec![domain(1, 10, &[0])]);
    let none = Verdict::Drop(DropReason::NoDestination);
    assert_eq!(b.send(0, &udp4(A, BROADCAST, ME, YOU, 1, 2)), none);
}

#[test]
fn edits_are_the_same_from_the_cache() {
    let actions =
        Actions { set_vlan: Some(vid(20)), set_dscp: Some(46), ..Actions::only(Then::Normal) };
    let web = Match {
        dst_ip: Some(IpMatch::v4_prefix(Ipv4Addr::from(YOU), 24)),
        vlan: Some(vid(10)),
        ..Match::default()
    };
    let port = with_rules(PortPolicy::access(0, Some(1), vid(10), 0), &[rule(7, 1, web, actions)]);
    let mut b = Bench::new(
        vec![port, PortPolicy::access(1, Some(1), vid(20), 1)],
        vec![domain(1, 10, &[0]), domain(1, 20, &[0, 1]), domain(2, 30, &[1])],
    );
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    let mut first = None;
    for _ in 0..5 {
        assert_eq!(b.send(0, &udp4(A, B, ME, YOU, 1, 2)), Verdict::Output(1));
        assert_eq!(b.batch.frame(0).tci, 20);
        assert_eq!(b.batch.head(0)[15], 46 << 2);
        let head = b.batch.head(0).to_vec();
        assert_eq!(*first.get_or_insert(head.clone()), head);
    }
    assert_eq!((b.count(0).cache_hits, b.count(0).rule_lookups), (3, 2));
    let table = b.snapshot.port(0).unwrap().rules.own.clone().unwrap();
    assert_eq!(table.rules().next().unwrap().1, 5);
}

#[test]
fn a_rule_cannot_lead_into_a_foreign_network() {
    let to = |v| Actions { set_vlan: Some(vid(v)), ..Actions::only(Then::Normal) };
    let port = with_rules(
        PortPolicy::access(0, Some(1), vid(10), 0),
        &[rule(7, 1, Match::default(), to(30))],
    );
    let mut b = Bench::new(
        vec![port, PortPolicy::access(1, Some(2), vid(30), 1)],
        vec![domain(1, 10, &[0]), domain(2, 30, &[1])],
    );
    let refused = Verdict::Drop(DropReason::VlanEgress);
    assert_eq!(b.send(0, &udp4(A, BROADCAST, ME, YOU, 1, 2)), refused);
}

#[test]
fn rules_drop_output_and_name_what_is_missing() {
    let port = |p| Match {
        ethertype: Some(0x0800),
        proto: Some(17),
        dst_port: Some((p, 0xffff)),
        ..Match::default()
    };
    let policy = with_rules(
        PortPolicy::access(0, Some(1), vid(10), 0),
        &[
            rule(1, 9, port(1), Actions::only(Then::Drop)),
            rule(2, 9, port(2), Actions::only(Then::Output(1))),
            rule(3, 9, port(3), Actions::only(Then::Output(40))),
            rule(4, 9, port(4), Actions::only(Then::OutputSet(0))),
            rule(5, 9, port(5), Actions::only(Then::OutputSet(1))),
            rule(6, 9, port(6), Actions::only(Then::Output(0))),
        ],
    );
    let mut b = two_tenants();
    b.snapshot.ports[0] = Some(Arc::new(policy.finish()));
    let no_port = Verdict::Drop(DropReason::NoPort);
    let want = [
        Verdict::Drop(DropReason::Rule),
        Verdict::Output(1),
        no_port,
        Verdict::OutputSet(0),
        no_port,
        Verdict::Drop(DropReason::SamePort),
    ];
    let frames: Vec<Vec<u8>> = (1..=6).map(|p| udp4(A, B, ME, YOU, 9, p)).collect();
    for _ in 0..4 {
        assert_eq!(b.send_all(0, &frames), want);
    }
    assert_eq!(b.count(0).cache_hits, 12);
    // Frames that a rule forwards are not learned.
    assert!(b.classifier.fdb().is_empty());
}

#[test]
fn a_patched_port_is_decided_without_parsing_and_still_checked() {
    let all = [rule(1, 9, Match::default(), Actions::only(Then::Output(1)))];
    let policy = with_rules(PortPolicy::access(0, Some(1), vid(10), 0), &all).finish();
    assert!(policy.patch.is_some());
    let mut b = two_tenants();
    b.snapshot.ports[0] = Some(Arc::new(policy));
    let plain = udp4(A, B, ME, YOU, 1, 2);
    let frames = [
        plain.clone(),
        tagged(&plain, 11),
        tagged(&plain, 10),
        udp4(A, 0x0180_c200_0000, ME, YOU, 1, 2),
    ];
    let out = Verdict::Output(1);
    let want =
        [out, Verdict::Drop(DropReason::VlanIngress), out, Verdict::Drop(DropReason::ReservedMac)];
    assert_eq!(b.send_all(0, &frames), want);
    assert_eq!((b.batch.frame(0).tci, b.batch.frame(2).tci), (10, 10));

    b.batch.clear();
    let lie = Offload { flags: 1, csum_start: 3, csum_offset: 9, ..Offload::NONE };
    b.batch.push(&plain, lie).unwrap();
    let policy = Arc::clone(b.snapshot.port(0).unwrap());
    b.classifier.classify(&mut b.batch, 0, &policy, &b.snapshot, 0, 0, &b.counters[0]);
    assert_eq!(b.batch.frame(0).verdict, Verdict::Drop(DropReason::BadOffload));
    assert_eq!(policy.rules.own.as_ref().unwrap().rules().next().unwrap().1, 2);
}

#[test]
fn a_snapshot_forgets_ports_that_left() {
    let mut b = two_tenants();
    b.send(0, &udp4(A, BROADCAST, ME, YOU, 1, 2));
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    assert!(b.classifier.fdb_static(0, mac(7), 1, true, &b.snapshot));
    assert!(!b.classifier.fdb_static(0, mac(7), 2, true, &b.snapshot));
    let mut ports = b.snapshot.ports.clone();
    ports[1] = None;
    b.snapshot = Snapshot::new(2, ports, b.snapshot.domains.clone(), Vec::new(), 300);
    let snapshot = b.snapshot.clone();
    b.classifier.on_snapshot(&snapshot);
    assert_eq!(b.classifier.fdb().len(), 1);
    assert_eq!(b.send(0, &udp4(A, B, ME, YOU, 1, 2)), Verdict::Flood(0));
    b.classifier.forget_port(0);
    assert!(b.classifier.fdb().is_empty());
}

#[test]
fn a_snapshot_with_the_same_decisions_keeps_the_cache() {
    let mut b = two_tenants();
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    for _ in 0..3 {
        b.send(0, &udp4(A, B, ME, YOU, 1, 2));
    }
    let (cached, known) = (b.classifier.cached(0), b.classifier.fdb().len());
    assert!(cached > 0 && known == 2);
    b.snapshot.generation = 2;
    b.classifier.on_like_snapshot(1, &b.snapshot);
    assert_eq!((b.classifier.cached(0), b.classifier.fdb().len()), (cached, known));
    assert_eq!(b.send(0, &udp4(A, B, ME, YOU, 1, 2)), Verdict::Output(1));
    assert_eq!(b.classifier.cached(0), cached, "the generation is known");
    // The classifier missed generation 3.
    b.snapshot.generation = 4;
    b.classifier.on_like_snapshot(3, &b.snapshot);
    assert_eq!(b.classifier.cached(0), 0);
}

#[test]
fn a_pinned_address_cannot_be_claimed_from_elsewhere() {
    let mut b = two_tenants();
    assert!(b.classifier.fdb_static(0, mac(A), 0, true, &b.snapshot));
    b.send(1, &udp4(B, BROADCAST, YOU, ME, 1, 2));
    for _ in 0..3 {
        let claim = b.send(1, &udp4(A, B, YOU, ME, 1, 2));
        assert_eq!(claim, Verdict::Drop(DropReason::SpoofedMac));
        assert_eq!(b.send(0, &udp4(A, B, ME, YOU, 1, 2)), Verdict::Output(1));
    }
    // A flush removes learned addresses (B) but not pinned ones.
    assert_eq!(b.classifier.fdb_flush(Some(0), Some(0)), 0);
    assert_eq!(b.classifier.fdb_flush(None, None), 1);
    assert_eq!(b.send(1, &udp4(B, A, YOU, ME, 1, 2)), Verdict::Output(0));
}

/// Returns `frame` with `bytes` inserted between the MAC addresses and the `EtherType`.
fn hidden_behind(bytes: &[u8], frame: &[u8]) -> Vec<u8> {
    [&frame[..12], bytes, &frame[12..]].concat()
}

#[test]
fn what_reads_headers_is_not_passed_by_one_that_is_hidden() {
    let forged = [
        arp4(B, B, 2, YOU, ME),
        udp4(B, A, YOU, ME, 1, 2),
        nd(B, A, ip6_addr(2), ip6_addr(1), 134, ip6_addr(2), None),
    ];
    // Tags of every kind, several tags, and a tag with VLAN id 0; LLC with and without SNAP, with a
    // correct length and with a wrong one.
    let hides: &[&[u8]] = &[
        &[0x88, 0xa8, 0, 10],
        &[0x91, 0, 0, 10],
        &[0x92, 0, 0, 10],
        &[0x81, 0, 0, 0, 0x81, 0, 0, 0],
        &[0x81, 0, 0, 10, 0x88, 0xa8, 0, 10],
        &[0x81, 0, 0, 0, 0x81, 0, 0, 0, 0x81, 0, 0, 0],
        &[0, 46, 0xaa, 0xaa, 3, 0, 0, 0],
        &[5, 220, 0xaa, 0xaa, 3, 0, 0, 0],
        &[0, 0, 0xaa, 0xab, 0, 0, 0, 0xf8],
        &[0x81, 0, 0, 10, 0, 46, 0xaa, 0xaa, 3, 0, 0, 0],
        &[0, 46, 0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0, 0, 10],
    ];
    let port = |id| PortPolicy::access(id, Some(1), vid(10), 0);
    let bound = |id| PortPolicy {
        binding: Some(Binding::new(None, Some(&[Ipv4Addr::from(ME)]), None)),
        ..port(id)
    };
    let ruled = |id| with_rules(port(id), &[rule(1, 1, ipv4(), Actions::only(Then::Normal))]);
    let coded = |id| PortPolicy { dscp: Some(8), ..port(id) };
    let wire = Actions::only(Then::Output(1));
    let coded_wire = |id| PortPolicy {
        dscp: Some(8),
        ..with_rules(port(id), &[rule(1, 1, Match::default(), wire)])
    };
    let mut b = Bench::new(
        vec![bound(0), ruled(1), coded(2), port(3), coded_wire(4)],
        vec![domain(1, 10, &[0, 1, 2, 3, 4])],
    );
    let refused = Verdict::Drop(DropReason::HiddenHeader);
    for hide in hides {
        for frame in &forged {
            let frame = hidden_behind(hide, frame);
            for id in [0, 1, 2, 4] {
                let verdict = b.send(id, &frame);
                assert_eq!(verdict, refused, "port {id}, behind {hide:x?}: {frame:x?}");
            }
            // A port without checks on its frames may send hidden headers.
            assert_ne!(b.send(3, &frame), refused, "behind {hide:x?}");
        }
    }
    // Frames without IP pass: spanning tree by LLC, other protocols by SNAP, and a frame that is
    // too short for LLC and SNAP headers.
    for other in [&[0, 38, 0x42, 0x42, 3][..], &[0, 46, 0xaa, 0xaa, 3, 0, 0, 0xc, 0x20, 0]] {
        let mut frame = [&udp4(A, BROADCAST, ME, YOU, 1, 2)[..12], other].concat();
        frame.resize(60, 0);
        assert_ne!(b.send(0, &frame), refused, "{other:x?}");
    }
}

#[test]
fn a_port_with_qinq_may_send_one_tag_more_and_no_other() {
    let port = PortPolicy::access(0, Some(1), vid(10), 0);
    let binding = Some(Binding::new(Some(&[mac(A)]), None, None));
    let mut b = Bench::new(
        vec![
            PortPolicy { binding, qinq: true, ..port },
            PortPolicy::access(1, Some(1), vid(10), 0),
        ],
        vec![domain(1, 10, &[0, 1])],
    );
    let mine = udp4(A, BROADCAST, ME, YOU, 1, 2);
    assert_eq!(b.send(0, &hidden_behind(&[0x88, 0xa8, 0, 7], &mine)), Verdict::Flood(0));
    assert_eq!(
        b.send(0, &hidden_behind(&[0x81, 0, 0, 10, 0x81, 0, 0, 7], &mine)),
        Verdict::Flood(0)
    );
    let another = udp4(B, BROADCAST, YOU, ME, 1, 2);
    let spoofed = b.send(0, &hidden_behind(&[0x88, 0xa8, 0, 7], &another));
    assert_eq!(spoofed, Verdict::Drop(DropReason::SpoofedMac));
    let hides: [&[u8]; 5] = [
        &[0x81, 0, 0, 0, 0x81, 0, 0xe0, 0],
        &[0x88, 0xa8, 0, 0],
        &[0x81, 0, 0, 10, 0x81, 0, 0, 7, 0x81, 0, 0, 8],
        &[0x88, 0xa8, 0, 7, 0, 46, 0xaa, 0xaa, 3, 0, 0, 0],
        &[0, 46, 0xaa, 0xaa, 3, 0, 0, 0],
    ];
    for hide in hides {
        let verdict = b.send(0, &hidden_behind(hide, &mine));
        assert_eq!(verdict, Verdict::Drop(DropReason::HiddenHeader), "behind {hide:x?}");
    }
    // The code point of a cut IP header cannot be overwritten.
    let tag = [0x88, 0xa8, 0, 7];
    for (ethertype, header) in [([0x08, 0x00], 20), ([0x86, 0xdd], 40), ([0x08, 0x06], 1)] {
        let frame = |length: usize| {
            [&mine[..12], &tag[..], &ethertype[..], &vec![0x45_u8; length][..]].concat()
        };
        assert_eq!(b.send(0, &frame(header)), Verdict::Flood(0), "{ethertype:x?}");
        let refused = Verdict::Drop(DropReason::HiddenHeader);
        let cut = if header > 1 { refused } else { Verdict::Flood(0) };
        assert_eq!(b.send(0, &frame(header - 1)), cut, "{ethertype:x?}");
    }
}
