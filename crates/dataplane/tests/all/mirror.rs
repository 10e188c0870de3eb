//! Copies for a mirror port: of what a port sends and receives, and of what a rule matches. The
//! copies change nothing for the ports whose frames are copied.

use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::{F_NEEDS_CSUM, GSO_TCPV4, GSO_UDP_L4, Offload, OffloadCaps};
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_dataplane::snapshot::{
    Actions, Domain, DomainMap, Match, Mirror, PortPolicy, Rule, RuleTable, RuleTables, Snapshot,
    Then, VidSet,
};
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_units::{BitsPerSecond, Vid};

use crate::common::{self, frame, join, workers};

type Core = common::Core<50>;

const VM: usize = 0;
const PEER: usize = 1;
const PROBE: usize = 2;
const RING: usize = 64;

struct Bed {
    workers: Vec<Worker<Core>>,
    drivers: Vec<MemoryDriver>,
    counters: Vec<PortCounterSets>,
}

impl Bed {
    /// Three ports; the probe belongs to another tenant. `home` gives the worker of each port.
    fn new(home: [usize; 3], change: impl Fn(&mut PortPolicy)) -> Self {
        let config = WorkerConfig { max_ports: 4, ..WorkerConfig::default() };
        let mut workers = workers(&config, &[Core::default(), Core::default()]);
        let (mut drivers, mut counters, mut policies) = (Vec::new(), Vec::new(), Vec::new());
        for (id, home) in (0_u16..).zip(home) {
            let is_probe = usize::from(id) == PROBE;
            // The probe cannot finish anything, like a TAP interface without offloads.
            let caps = if is_probe { OffloadCaps::NONE } else { OffloadCaps::ALL };
            let (driver, set) = join(&mut workers, id, &[home], (RING, caps));
            drivers.extend(driver);
            counters.push(set);
            let (tenant, domain) = if is_probe { (2, 1) } else { (1, 0) };
            let mut policy = PortPolicy::access(id, Some(tenant), Vid::UNTAGGED, domain);
            change(&mut policy);
            policies.push(Some(Arc::new(policy.finish())));
        }
        let domain = |tenant: u16, members: &[u16]| Domain {
            tenant: Some(tenant),
            vid: 0,
            members: members.into(),
            fdb_limit: 64,
        };
        let domains = vec![domain(1, &[0, 1]), domain(2, &[2])];
        let snapshot = Arc::new(Snapshot::new(1, policies, domains, Vec::new(), 300));
        for worker in &mut workers {
            worker.swap_snapshot(Arc::clone(&snapshot));
        }
        let mut bed = Self { workers, drivers, counters };
        bed.send(VM, [frame(VM, PEER, 60)]);
        bed.send(PEER, [frame(PEER, VM, 60)]);
        bed.run();
        for port in [VM, PEER, PROBE] {
            bed.got(port);
        }
        bed
    }

    fn run(&mut self) {
        for _ in 0..50 {
            for worker in &mut self.workers {
                while matches!(worker.turn(), Turn::Busy(_)) {}
            }
        }
    }

    fn send(&self, from: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        for bytes in frames {
            assert!(self.drivers[from].send(MemoryFrame::plain(bytes)));
        }
    }

    /// Takes what a port has received, in the order of the frames' lengths.
    fn got(&self, port: usize) -> Vec<Vec<u8>> {
        let frames = std::iter::from_fn(|| self.drivers[port].receive());
        let mut frames: Vec<_> = frames.map(|frame| frame.bytes).collect();
        frames.sort_by_key(Vec::len);
        frames
    }

    fn port(&self, port: usize) -> PortReading {
        self.counters[port].read()
    }

    /// Checks that each frame of a port is counted once, with its copies.
    fn balance(&self, port: usize) {
        let read = self.port(port);
        let gone = read.forwarded + read.drops.iter().sum::<u64>() + read.queued;
        assert_eq!(read.rx_frames + read.replicated, gone, "port {port}: {read:?}");
    }
}

fn to_probe(received: bool, sent: bool) -> impl Fn(&mut PortPolicy) {
    move |policy| {
        if policy.id == 0 {
            let probe = |on: bool| on.then_some(2);
            policy.mirror = Mirror { received: probe(received), sent: probe(sent) };
        }
    }
}

const HOMES: [[usize; 3]; 5] = [[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0]];

#[test]
fn the_probe_gets_what_the_port_sends_and_receives_and_nothing_else() {
    for home in HOMES {
        for (received, sent) in [(true, false), (false, true), (true, true), (false, false)] {
            let mut bed = Bed::new(home, to_probe(received, sent));
            bed.send(VM, [frame(VM, PEER, 100), frame(VM, VM, 101)]);
            bed.send(PEER, [frame(PEER, VM, 200), frame(PEER, PEER, 201)]);
            bed.run();
            assert_eq!(bed.got(PEER), [frame(VM, PEER, 100)]);
            assert_eq!(bed.got(VM), [frame(PEER, VM, 200)]);
            let mut wanted = Vec::new();
            if received {
                wanted.extend([frame(VM, PEER, 100), frame(VM, VM, 101)]);
            }
            if sent {
                wanted.push(frame(PEER, VM, 200));
            }
            assert_eq!(bed.got(PROBE), wanted, "{home:?} {received} {sent}");
            bed.balance(VM);
            bed.balance(PEER);
        }
    }
}

#[test]
fn a_rule_copies_its_frames_and_then_forwards_rewrites_or_drops_them() {
    for home in HOMES {
        for then in [Then::Normal, Then::Drop, Then::Output(1)] {
            let rule = Rule {
                priority: 1,
                matching: Match { ethertype: Some(0x88b6), ..Match::default() },
                actions: Actions { mirror: Some(2), ..Actions::only(then) },
                id: 0,
            };
            let table = Arc::new(RuleTable::build(&[rule], 16).unwrap());
            let mut bed = Bed::new(home, |policy| {
                policy.rules =
                    RuleTables { own: Some(Arc::clone(&table)), ..RuleTables::default() };
            });
            let special = |len| {
                let mut bytes = frame(VM, PEER, len);
                bytes[13] = 0xb6;
                bytes
            };
            // The second batch finds the decision in the cache.
            for round in 0..2 {
                let lens = [300, 302, 304].map(|len| len + 10 * round);
                let mixed = lens.map(|len| [special(len), frame(VM, PEER, len + 1)]);
                bed.send(VM, mixed.into_iter().flatten());
                bed.run();
                assert_eq!(bed.got(PROBE), lens.map(special), "{home:?} {then:?}");
                let passed = if then == Then::Drop { 3 } else { 6 };
                assert_eq!(bed.got(PEER).len(), passed);
            }
            bed.balance(VM);
        }
    }
}

#[test]
fn a_frame_has_one_copy_if_port_and_rule_have_the_same_mirror() {
    let rule = Rule {
        priority: 1,
        matching: Match::default(),
        actions: Actions { mirror: Some(2), ..Actions::only(Then::Normal) },
        id: 0,
    };
    let table = Arc::new(RuleTable::build(&[rule], 16).unwrap());
    let mut bed = Bed::new([0, 0, 0], |policy| {
        to_probe(true, false)(policy);
        policy.rules = RuleTables { own: Some(Arc::clone(&table)), ..RuleTables::default() };
    });
    bed.send(VM, [frame(VM, PEER, 100)]);
    bed.run();
    assert_eq!(bed.got(PROBE).len(), 1);
}

#[test]
fn a_slow_probe_loses_copies_and_no_frame_of_the_port() {
    for home in HOMES {
        let queue = |policy: &mut PortPolicy| {
            to_probe(true, true)(policy);
            if policy.id == 2 {
                let terms = QueueTerms {
                    order: Order::FairShare,
                    pacing: Pacing::Link(BitsPerSecond(1_000_000)),
                    frames: 8,
                    ..QueueTerms::default()
                };
                policy.queue = Some(QueueHome::new(terms, 4, 4));
            }
        };
        for has_queue in [false, true] {
            let mut bed = if has_queue {
                Bed::new(home, queue)
            } else {
                Bed::new(home, to_probe(true, true))
            };
            let mut got = 0;
            for _ in 0..10 {
                bed.send(VM, (0..30).map(|_| frame(VM, PEER, 1_000)));
                bed.run();
                got += bed.got(PEER).len();
            }
            assert_eq!(got, 300, "{home:?} {has_queue}");
            let refused: u64 = bed.port(PROBE).tx_drops.iter().sum();
            assert!(refused > 100, "{home:?} {has_queue}: {refused}");
            assert_eq!(bed.port(VM).held_back, 0, "nobody waits for the probe");
            bed.balance(VM);
        }
    }
}

#[test]
fn a_copy_has_a_tag_on_a_trunk_none_on_an_access_port_and_is_dropped_without_its_vlan() {
    let vid = |number: u16| Vid::new(u32::from(number)).unwrap();
    let trunk = |carried: u16| {
        let (mut allowed, domains) = (VidSet::default(), DomainMap::trunk([(vid(carried), 1)]));
        allowed.insert(vid(carried));
        PortPolicy::trunk(2, Some(2), None, allowed, domains)
    };
    let mut tagged = frame(VM, PEER, 100);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let access = PortPolicy::access(2, Some(2), vid(5), 1);
    let cases = [(access, Some(frame(VM, PEER, 100))), (trunk(5), Some(tagged)), (trunk(6), None)];
    for (probe, copy) in cases {
        let mut bed = Bed::new([0, 0, 0], |policy| {
            if policy.id == 2 {
                *policy = probe.clone();
            } else {
                *policy = PortPolicy::access(policy.id, Some(1), vid(5), 0);
                to_probe(true, false)(policy);
            }
        });
        let before = bed.port(PROBE).tx_drops[DropReason::VlanEgress as usize];
        bed.send(VM, [frame(VM, PEER, 100)]);
        bed.run();
        let lost = bed.port(PROBE).tx_drops[DropReason::VlanEgress as usize] - before;
        assert_eq!(bed.got(PEER), [frame(VM, PEER, 100)], "the frame itself has no tag");
        assert_eq!((bed.got(PROBE).pop(), lost), (copy.clone(), u64::from(copy.is_none())));
        bed.balance(VM);
    }
}

/// Headers and metadata are the guest's, and every one of them may be a lie.
#[test]
fn a_copy_of_a_refused_frame_does_not_bring_its_metadata() {
    let offload = |gso_type, hdr_len, csum_start| Offload {
        flags: F_NEEDS_CSUM,
        gso_type,
        hdr_len,
        gso_size: 1,
        csum_start,
        csum_offset: 6,
    };
    for (ethertype, version) in [(0x08_u8, 0x60_u8), (0x08, 0x45), (0x86, 0x40), (0x86, 0x60)] {
        for len in [14, 34, 48, 54, 61, 200] {
            let mut bed = Bed::new([0, 0, 0], to_probe(true, false));
            let mut bytes = frame(VM, PEER, len.max(15));
            (bytes[12], bytes[13]) = (ethertype, if ethertype == 8 { 0 } else { 0xdd });
            bytes[14] = version;
            let kinds = [GSO_UDP_L4, GSO_TCPV4, 4, 0, 200];
            for (kind, l4) in
                kinds.into_iter().flat_map(|kind| [14, 34, 40, 54].map(|l4| (kind, l4)))
            {
                let offload = offload(kind, l4 + 8, l4);
                bed.drivers[VM].send(MemoryFrame { bytes: bytes.clone(), offload });
                bed.run();
                bed.got(PROBE);
                bed.got(PEER);
            }
            bed.balance(VM);
        }
    }
}
