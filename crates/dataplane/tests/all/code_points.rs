//! Two hosts of a fabric, which overwrite the code points of their VMs: what the VMs of the other
//! host see.

use std::sync::Arc;

use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame};
use penstock_dataplane::snapshot::{
    Domain, DomainMap, PortPolicy, SlowPathLimit, Snapshot, VidSet,
};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_qos::pair_table::{PairLimits, PairTable};
use penstock_units::{Cycles, Vid};

use crate::common::{self, attach};

const HZ: u64 = 1_000_000_000;
const UPLINK: usize = 0;
/// Ports of the VMs of two tenants, whose addresses are the same.
const BLUE: usize = 1;
const RED: usize = 2;
const NEAR: u8 = 1;
const FAR: u8 = 9;
/// Code points of the tenants in the fabric, by port.
const FABRIC: [u8; 3] = [0, 8, 16];
const EF: u8 = 46;
const AF41: u8 = 34;
/// Length of a marker with a VLAN tag.
const MARKER_BYTES: usize = 70;

type Core = common::Core<10>;

/// A host with an uplink and a VM of each tenant.
struct Host {
    worker: Worker<Core>,
    core: Core,
    drivers: Vec<MemoryDriver>,
    counters: Vec<Arc<PortCounters>>,
}

/// Returns the VLAN of the tenant with the VM at `port`.
fn vlan(port: usize) -> Vid {
    Vid::new(if port == BLUE { 5 } else { 6 }).unwrap()
}

fn snapshot() -> Arc<Snapshot> {
    let vlans = [BLUE, RED].map(vlan);
    let allowed: VidSet = vlans.into_iter().collect();
    let domains = DomainMap::trunk(vlans.into_iter().zip(0..));
    let mut uplink = PortPolicy::trunk(0, None, None, allowed, domains);
    uplink.marks = true;
    uplink.pairs = Some(Arc::new(PairTable::with_limits(3, 3, PairLimits::Guarantees)));
    let vm = |port: usize| {
        let number = u16::try_from(port).unwrap();
        let mut policy = PortPolicy::access(number, Some(number), vlan(port), number - 1);
        policy.dscp = Some(FABRIC[port]);
        policy
    };
    let policies = [uplink, vm(BLUE), vm(RED)].map(|mut policy| {
        policy.slow_path = SlowPathLimit::UNLIMITED;
        Some(Arc::new(policy.finish()))
    });
    let domain = |port: u16| Domain {
        tenant: Some(port),
        vid: vlan(port.into()).get(),
        members: [0, port].into(),
        fdb_limit: 64,
    };
    let domains = [1, 2].map(domain).into();
    Arc::new(Snapshot::new(1, policies.into(), domains, vec![], 300))
}

impl Host {
    fn new() -> Self {
        let core = Core::default();
        let config = WorkerConfig { max_ports: 3, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let ports = [0, 1, 2].map(|port| attach(&mut worker, port, 1_024));
        let (drivers, counters) = ports.into_iter().unzip();
        worker.swap_snapshot(snapshot());
        Self { worker, core, drivers, counters }
    }

    fn run(&mut self, cycles: u64) {
        let end = self.core.now().0 + cycles;
        while self.core.now().0 < end {
            if self.worker.turn() == Turn::Idle {
                let next = self.worker.next_due().map_or(end, |due| due.0);
                let at = next.clamp(self.core.now().0 + 1_000, end.max(self.core.now().0 + 1_000));
                self.core.0.advance_to(Cycles(at));
                self.worker.rested();
            }
        }
    }

    /// Sends frames into a port. Returns the frames that left through the port `to`.
    fn pass(&mut self, port: usize, to: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            assert!(self.drivers[port].send(MemoryFrame::plain(frame.clone())));
        }
        self.run(HZ / 1_000);
        let left = |port: usize| {
            let next = || self.drivers[port].receive().map(|frame| frame.bytes);
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        for other in (0..3).filter(|other| *other != to) {
            assert!(left(other).is_empty(), "port {other}");
        }
        left(to)
    }

    fn assert_sums(&self) {
        for (port, counters) in self.counters.iter().enumerate() {
            assert_eq!(counters.read().unaccounted(), 0, "port {port}");
        }
    }
}

/// Returns a UDP packet with a correct IP header and the given DSCP and ECN.
fn packet(from: u8, to: u8, version: u8, (dscp, ecn): (u8, u8)) -> Vec<u8> {
    let mut frame = vec![0x52, 0, 0, 0, 0, to, 0x52, 0, 0, 0, 0, from];
    let class = dscp << 2 | ecn;
    if version == 4 {
        frame.extend([8, 0, 0x45, class, 0, 46, 1, 2, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, from, 10, 0, 0, to]);
        let words = frame[14..34].chunks(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
        let sum = words.map(u32::from).sum::<u32>();
        frame[24..26].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0, 0, 26, 17, 64]);
        for station in [from, to] {
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, station]);
        }
    }
    frame.extend([0, 5, 0, 6, 0, 26, 0, 0]);
    frame.extend([7; 18]);
    frame
}

/// Returns the DSCP of a frame of the network, which has a VLAN tag, or `None` for a marker.
fn on_wire(frame: &[u8]) -> Option<u8> {
    match frame[16..18] {
        [8, 0] => Some(frame[19] >> 2),
        [0x86, 0xdd] => Some((frame[18] & 0xf) << 2 | frame[19] >> 6),
        _ => {
            assert_eq!(frame.len(), MARKER_BYTES);
            None
        }
    }
}

/// Two hosts, whose VMs have the addresses [`NEAR`] and [`FAR`].
struct Bed {
    near: Host,
    far: Host,
}

impl Bed {
    /// Creates the hosts, which know where the VMs are.
    fn new() -> Self {
        let mut bed = Self { near: Host::new(), far: Host::new() };
        for vm in [BLUE, RED] {
            let sent = bed.far.pass(vm, UPLINK, &[packet(FAR, NEAR, 4, (0, 0))]);
            assert_eq!(sent.len(), 1, "a code point of 0 needs no marker");
            bed.near.pass(UPLINK, vm, &sent);
            bed.near.pass(vm, UPLINK, &[packet(NEAR, FAR, 4, (0, 0))]);
        }
        bed
    }

    /// Sends frames from a VM of the near host. Returns the frames of the network.
    fn send(&mut self, vm: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let wire = self.near.pass(vm, UPLINK, frames);
        assert!(wire.iter().filter_map(|frame| on_wire(frame)).all(|dscp| dscp == FABRIC[vm]));
        wire
    }

    /// Sends frames from a VM of the near host to the same tenant's VM of the far host. Returns the
    /// frames that arrive, and the number of markers.
    fn cross(&mut self, vm: usize, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
        let wire = self.send(vm, frames);
        let markers = wire.iter().filter(|frame| on_wire(frame).is_none()).count();
        (self.far.pass(UPLINK, vm, &wire), markers)
    }

    fn run(&mut self, cycles: u64) {
        self.near.run(cycles);
        self.far.run(cycles);
    }

    fn assert_sums(&self) {
        self.near.assert_sums();
        self.far.assert_sums();
    }
}

#[test]
fn the_far_vm_sees_the_code_points_that_the_vm_wrote() {
    let mut bed = Bed::new();
    for version in [4, 6] {
        // The last code point is that of the tenant in the fabric.
        for dscp in [EF, AF41, 0, EF, FABRIC[BLUE]] {
            bed.run(HZ / 5);
            let frames = [0, 1, 2, 3].map(|ecn| packet(NEAR, FAR, version, (dscp, ecn)));
            let (arrived, markers) = bed.cross(BLUE, &frames);
            assert_eq!(arrived, frames, "IPv{version}, code point {dscp}");
            assert_eq!(markers, 1, "ahead of the first frame");
            let (arrived, markers) = bed.cross(BLUE, &frames);
            assert_eq!((arrived, markers), (frames.to_vec(), 0));
        }
    }
    bed.assert_sums();
}

#[test]
fn flows_of_a_pair_keep_their_own_code_points() {
    let mut bed = Bed::new();
    let frames: Vec<_> = (0..30)
        .map(|port| {
            let mut frame = packet(NEAR, FAR, 4, (port % 3 * 17, 0));
            frame[37] = port;
            frame
        })
        .collect();
    for announced in [20, 0] {
        assert_eq!(bed.cross(BLUE, &frames), (frames.clone(), announced));
    }
    bed.assert_sums();
}

#[test]
fn a_lost_announcement_is_repeated_after_a_second() {
    let mut bed = Bed::new();
    let [ef, plain] = [EF, 0].map(|dscp| [packet(NEAR, FAR, 4, (dscp, 0))]);
    let mut wire = bed.send(BLUE, &ef);
    wire.retain(|frame| on_wire(frame).is_some());
    assert_eq!(bed.far.pass(UPLINK, BLUE, &wire), plain, "never the fabric's code point");
    bed.run(HZ / 2);
    assert_eq!(bed.cross(BLUE, &ef), (plain.to_vec(), 0));
    bed.run(HZ * 6 / 10);
    assert_eq!(bed.cross(BLUE, &ef), (ef.to_vec(), 1));
    bed.assert_sums();
}

#[test]
fn a_hostile_vm_changes_no_frames_of_another_tenant() {
    let mut bed = Bed::new();
    let [ef, af41] = [EF, AF41].map(|dscp| [packet(NEAR, FAR, 4, (dscp, 0))]);
    let wire = bed.send(BLUE, &ef);
    assert_eq!(bed.far.pass(UPLINK, BLUE, &wire), ef);
    // The same addresses and ports in another tenant's network.
    for _ in 0..2 {
        bed.run(HZ / 5);
        assert_eq!(bed.cross(RED, &af41).0, af41);
        assert_eq!(bed.cross(BLUE, &ef).0, ef);
    }
    // The announcement of the other tenant's host, sent by a VM.
    let mut forged = wire[0].clone();
    assert_eq!(on_wire(&forged), None);
    for tagged in [true, false] {
        if !tagged {
            forged.drain(12..16);
        }
        assert!(bed.send(RED, std::slice::from_ref(&forged)).is_empty());
    }
    let drops = &bed.near.counters[RED].drops;
    assert_eq!(
        drops[DropReason::ForgedMarker as usize].get(),
        1,
        "the VLAN of the other is refused"
    );
    // A flood of announcements in the hostile tenant's own network.
    let mut flood = Vec::new();
    for port in 0..1_000_u16 {
        let mut frame = packet(NEAR, FAR, 4, (AF41, 0));
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        flood.push(frame);
    }
    for frames in flood.chunks(100) {
        bed.cross(RED, frames);
    }
    assert_eq!(bed.cross(BLUE, &ef).0, ef);
    bed.assert_sums();
}

#[test]
fn frames_from_a_host_without_announcements_lose_only_the_fabrics_code_point() {
    let mut bed = Bed::new();
    let tagged = |dscp| {
        let frame = packet(NEAR, FAR, 4, (dscp, 1));
        [&frame[..12], &[0x81, 0, 0, 5][..], &frame[12..]].concat()
    };
    let arrived = bed.far.pass(UPLINK, BLUE, &[FABRIC[BLUE], EF, FABRIC[RED]].map(tagged));
    let seen = [0, EF, FABRIC[RED]].map(|dscp| packet(NEAR, FAR, 4, (dscp, 1)));
    assert_eq!(arrived, seen, "others come from outside the fabric");
    bed.assert_sums();
}
