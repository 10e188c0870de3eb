//! Two hosts of a fabric with a lossy link between them: pairs of VMs use idle bandwidth, and keep
//! their guarantees if the link is full.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_control::pair_control::{PairControl, PairUse, VmTerms};
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::snapshot::{
    Domain, DomainMap, PortPolicy, SlowPathLimit, Snapshot, VidSet,
};
use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_qos::pair_table::PairTable;
use penstock_units::{Cycles, Nanos, PortId, Rng, TscRate, Vid};

const HZ: u64 = 1_000_000_000;
const MS: u64 = HZ / 1_000;
const MBIT: u64 = 1_000_000;
/// Rate of the hosts' interfaces.
const LINK: u64 = 100 * MBIT;
const VMS: usize = 2;
/// Length of the VMs' frames.
const FRAME: usize = 1_000;
/// Time in ms for which frames may wait for the link. A VM whose frames wait for its rate sends a
/// whole batch at once.
const QUEUE_MS: usize = 50;
/// Time between two periods in ms.
const PERIOD_MS: u64 = 50;

/// Core on which a frame takes 10 cycles in each stage.
#[derive(Clone, Debug, Default)]
struct Core(VirtualCounter);

impl CycleCounter for Core {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, work: &Work) {
        let frames = u64::try_from(work.frames).unwrap();
        let cost = match stage {
            Stage::Look | Stage::Refill => 0,
            Stage::Idle => 200,
            _ => 10 * frames.max(1),
        };
        self.0.advance(Cycles(cost));
    }
}

/// A host with an uplink, port 0, and the VMs 1 and 2 of two tenants.
struct Host {
    number: u8,
    worker: Worker<Core>,
    core: Core,
    drivers: Vec<MemoryDriver>,
    counters: Vec<Arc<PortCounters>>,
    table: Arc<PairTable>,
    control: PairControl,
    vms: BTreeMap<u16, VmTerms>,
    used: PairUse,
}

impl Host {
    /// Creates a host whose VMs have `guarantees`. If `allocates` is false, the host does not know
    /// about pairs.
    fn new(number: u8, guarantees: [u64; VMS], allocates: bool) -> Self {
        let core = Core::default();
        let config =
            WorkerConfig { tsc: TscRate::from_hz(HZ), max_ports: 3, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let table = Arc::new(PairTable::new(3, 5));
        let (mut drivers, mut counters) = (Vec::new(), Vec::new());
        for port in 0..3 {
            let (pair, driver) = memory_queue(1_024, OffloadCaps::ALL);
            let of_port = Arc::new(PortCounters::default());
            let pair: Box<dyn PortQueue> = Box::new(pair);
            let attached = worker.attach(PortId(port), vec![pair], Arc::clone(&of_port));
            assert!(attached.is_ok());
            drivers.push(driver);
            counters.push(of_port);
        }
        let vids = [5, 6].map(|vid| Vid::new(vid).unwrap());
        let allowed: VidSet = vids.into_iter().collect();
        let domains = DomainMap::trunk([(vids[0], 0), (vids[1], 1)]);
        let mut uplink = PortPolicy::trunk(0, None, None, allowed, domains);
        uplink.marks = true;
        uplink.pairs = allocates.then(|| Arc::clone(&table));
        let one = PortPolicy::access(1, Some(1), vids[0], 0);
        let two = PortPolicy::access(2, Some(2), vids[1], 1);
        let policies = [uplink, one, two].map(|mut policy| {
            policy.slow_path = SlowPathLimit::UNLIMITED;
            Some(Arc::new(policy.finish()))
        });
        let domain = |tenant: u16| Domain {
            tenant: Some(tenant),
            vid: vids[usize::from(tenant) - 1].get(),
            members: [0, tenant].into(),
            fdb_limit: 64,
        };
        let domains = vec![domain(1), domain(2)];
        worker.swap_snapshot(Arc::new(Snapshot::new(1, policies.into(), domains, vec![], 300)));
        let terms = |rate| VmTerms { send: rate, receive: rate, headroom_permille: 1_000 };
        let vms = (1..).zip(guarantees.map(terms)).collect();
        let (control, used) = (PairControl::new(LINK), PairUse::default());
        Self { number, worker, core, drivers, counters, table, control, vms, used }
    }

    fn run(&mut self, until: u64) {
        while self.core.now().0 < until {
            if self.worker.turn() == Turn::Idle {
                let next = self.worker.next_due().map_or(until, |due| due.0);
                let now = self.core.now().0;
                self.core.0.advance_to(Cycles(next.min(until).max(now + 1_000)));
                self.worker.rested();
            }
        }
    }

    fn period_ends(&mut self, now: Nanos, confined: bool) {
        self.used = self.control.period_ends(&self.table, &self.vms, confined, now);
    }

    /// Sends a frame of VM `vm` to the VM of the same tenant on the other host.
    fn send(&self, vm: usize) {
        let (own, other) = (self.number, 1 - self.number);
        let vm_number = u8::try_from(vm).unwrap();
        let mut bytes = vec![2, 0, 0, 0, other, vm_number, 2, 0, 0, 0, own, vm_number, 0x88, 0xb6];
        bytes.resize(FRAME, 0);
        self.drivers[vm].send(MemoryFrame::plain(bytes));
    }

    fn take(&self, port: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.drivers[port].receive().map(|frame| frame.bytes)).collect()
    }
}

/// Two hosts. A link from host 0 to host 1 loses frames at random if it is full.
struct Bed {
    hosts: [Host; 2],
    capacity: u64,
    /// Bytes that the link may still carry.
    credit: usize,
    rng: Rng,
    ms: u64,
    confined: bool,
}

impl Bed {
    fn new(guarantees: [u64; VMS], capacity: u64, far_allocates: bool) -> Self {
        let hosts = [Host::new(0, guarantees, true), Host::new(1, guarantees, far_allocates)];
        let mut bed = Self { hosts, capacity, credit: 0, rng: Rng::new(1), ms: 0, confined: false };
        // The hosts learn the addresses of all VMs.
        for vm in 1..=VMS {
            bed.hosts.iter().for_each(|host| host.send(vm));
        }
        bed.millis(5, |_| 0);
        bed
    }

    /// Runs for `millis` ms, in which each VM of host 0 sends `frames` frames per ms. Returns the
    /// bits per second that each VM of host 1 received.
    fn millis(&mut self, millis: u64, frames: impl Fn(usize) -> usize) -> [u64; VMS] {
        let mut received = [0; VMS];
        for _ in 0..millis {
            self.ms += 1;
            for vm in 1..=VMS {
                (0..frames(vm)).for_each(|_| self.hosts[0].send(vm));
            }
            self.hosts.iter_mut().for_each(|host| host.run(self.ms * MS));
            self.carry();
            for (vm, bits) in (1..).zip(&mut received) {
                let frames = self.hosts[1].take(vm);
                *bits += frames.iter().filter(|frame| frame.len() == FRAME).count() * FRAME * 8;
                self.hosts[0].take(vm);
            }
            if self.ms.is_multiple_of(PERIOD_MS) {
                let (now, confined) = (Nanos(self.ms * MS), self.confined);
                self.hosts.iter_mut().for_each(|host| host.period_ends(now, confined));
            }
        }
        received.map(|bits| u64::try_from(bits).unwrap() * 1_000 / millis)
    }

    /// Carries frames between the hosts' uplinks.
    fn carry(&mut self) {
        let forth = self.hosts[0].take(0);
        let back = self.hosts[1].take(0);
        let each = usize::try_from(self.capacity / 8_000).unwrap();
        self.credit = (self.credit + each).min(QUEUE_MS * each);
        let offered: usize = forth.iter().map(Vec::len).sum();
        let share = self.credit * 1_000_000 / offered.max(1);
        let share = u32::try_from(share.min(1_000_000)).unwrap();
        for frame in forth {
            if self.rng.chance_ppm(share) {
                self.credit = self.credit.saturating_sub(frame.len());
                self.hosts[1].drivers[0].send(MemoryFrame::plain(frame));
            }
        }
        for frame in back {
            self.hosts[0].drivers[0].send(MemoryFrame::plain(frame));
        }
    }
}

/// Each VM sends as many frames as its interface carries.
fn flood(_vm: usize) -> usize {
    12
}

/// Only VM 1 sends.
fn alone(vm: usize) -> usize {
    if vm == 1 { 12 } else { 0 }
}

#[test]
fn a_pair_on_an_idle_link_grows_far_above_its_guarantee() {
    let mut bed = Bed::new([10 * MBIT; VMS], LINK, true);
    bed.millis(3_000, alone);
    let [rate, other] = bed.millis(1_000, alone);
    assert!(rate > 70 * MBIT, "{rate}");
    assert_eq!(other, 0);
    let PairUse { sending, rate, guaranteed, .. } = bed.hosts[0].used;
    assert_eq!((sending, guaranteed), (1, 20 * MBIT));
    assert!(rate > 70 * MBIT, "{rate}");
    assert_eq!(bed.hosts[1].used.receiving, 1);
    // While queues change hands, the pair has its guarantee.
    bed.confined = true;
    bed.millis(200, alone);
    let [rate, _] = bed.millis(1_000, alone);
    assert!((96 * MBIT / 10..104 * MBIT / 10).contains(&rate), "{rate}");
    // An idle pair is forgotten.
    bed.millis(3_000, |_| 0);
    let (near, far) = (bed.hosts[0].used, bed.hosts[1].used);
    assert_eq!((near.sending, far.receiving), (0, 0));
    assert_eq!(bed.hosts[0].table.sending().count(), 0);
    assert_eq!(bed.hosts[1].table.receiving().count(), 0);
}

#[test]
fn two_tenants_in_a_full_queue_keep_their_guarantees() {
    let guarantees = [10 * MBIT, 5 * MBIT];
    let capacity = 30 * MBIT;
    let mut bed = Bed::new(guarantees, capacity, true);
    bed.millis(2_000, flood);
    let rates = bed.millis(5_000, flood);
    for (rate, guarantee) in rates.iter().zip(guarantees) {
        assert!(*rate >= guarantee, "{rate} of {guarantee}");
    }
    let used = rates[0] + rates[1];
    assert!(used * 100 >= capacity * 80, "{used} of {capacity}");
    // The rest waited in the VMs' rings before it reached the link.
    let waits = bed.hosts[0].counters[1].send_waits.get();
    assert!(waits > 100, "{waits}");
}

#[test]
fn a_pair_stays_at_its_guarantee_if_the_far_host_does_not_answer() {
    let mut bed = Bed::new([10 * MBIT; VMS], LINK, false);
    let drops = |bed: &Bed| bed.hosts[0].counters[1].drops[DropReason::PairLimit as usize].get();
    bed.millis(2_000, alone);
    let before = drops(&bed);
    let [rate, _] = bed.millis(1_000, alone);
    // Frames above the guarantee wait in the VM's ring. Only the VM's first burst is larger than
    // that of a pair.
    assert!((96 * MBIT / 10..104 * MBIT / 10).contains(&rate), "{rate}");
    assert_eq!(bed.hosts[0].used.rate, 10 * MBIT);
    assert!(before < 200, "{before}");
    assert_eq!(drops(&bed), before);
}

#[test]
fn a_pair_falls_back_when_the_link_breaks_for_answers() {
    let mut bed = Bed::new([10 * MBIT; VMS], LINK, true);
    bed.millis(3_000, alone);
    assert!(bed.hosts[0].used.rate > 70 * MBIT);
    // The far host stops to answer: its VMs have no guarantees any more.
    bed.hosts[1].vms.clear();
    bed.millis(500, alone);
    assert_eq!(bed.hosts[0].used.rate, 10 * MBIT);
}
