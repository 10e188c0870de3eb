//! Runs the production worker at the scale of a published testbed: VMs send millions of frames a
//! second through an uplink to a second server, for tens of seconds.
//!
//! # Problem
//!
//! A figure covers 30 s of four VMs at 2 M frames/s. It must replay in seconds, for many seeds.
//!
//! # Approach
//!
//! Workers, classifier, cycle buckets and schedule are those of the data path. The simulation
//! replaces their surroundings:
//!
//! - Ports create a frame's header when the frame is taken and forget it when the frame is
//!   delivered. No frame is stored and no event is posted per frame.
//! - The uplink is a link of a given rate behind a finite ring.
//! - The second server and the clients are modelled.
//! - Costs ([`Costs`]) are fixed before the run, and no cost model sees them.
//!
//! All random numbers come from one seed. The same seed gives the same results.
//!
//! # Time
//!
//! The cycles of a stage pass at its end, so a delivered frame leaves at the start of egress. One
//! worker serves a VM and the frames that arrive for it.

mod frame;
mod nic;
mod traffic;
mod vm;

use std::sync::{Arc, Mutex};

use penstock_dataplane::classify::{
    Actions, Domain, IpMatch, Match, PortPolicy, Rule, RuleTable, RuleTables, SlowPathLimit, Then,
};
use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_dataplane::schedule::{PortQos, Readiness, ScheduleKind, Unit};
use penstock_dataplane::tsc::CycleCounter as _;
use penstock_dataplane::worker::{Ledger, Turn};
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, QueueId, Rng, TscRate, Vid};

use crate::cores::{Cores, WorldConfig};
use crate::cost::Costs;

pub use nic::{Carried, Link};
pub use traffic::{Flows, Pace, Probe, Requests, Traffic};

use frame::Mark;
use nic::{Nic, NicPort};
use vm::{SMALL, Vm, VmPort, lock};

/// Port number of the uplink.
const UPLINK: u16 = 0;
const TENANT: u16 = 1;

/// Configuration of a testbed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Cycles per second of each core.
    pub core: TscRate,
    /// Cycles per second of each core that may be spent on frames; `None` for all.
    pub capacity: Option<CyclesPerSecond>,
    /// Number of I/O cores, with a worker each.
    pub workers: u16,
    /// Cost of frames.
    pub costs: Costs,
    pub link: Link,
    /// Purchased cycles and class of the uplink's port.
    pub uplink: PortQos,
    /// Maximum number of VMs.
    pub vms: usize,
    /// Schedule of the workers.
    pub schedule: ScheduleKind,
    /// How `hbs` treats units without frames.
    pub readiness: Readiness,
    /// Time between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Number of a VM, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmId(u16);

impl VmId {
    #[must_use]
    pub const fn port(self) -> PortId {
        PortId(self.0 + 1)
    }
}

/// Counters of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmReading {
    /// The switch's counters of the VM's port.
    pub port: PortReading,
    /// Traffic that went over the link.
    pub carried: Carried,
    /// Frames that found the VM's ring full.
    pub held_back: u64,
}

/// A measured duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Time at which the measurement began.
    pub at: Nanos,
    /// The duration itself.
    pub took: Nanos,
}

/// A simulated testbed.
#[derive(Debug)]
pub struct Testbed {
    cores: Cores,
    vms: Vec<Arc<Mutex<Vm>>>,
    /// Numbers of the VMs of each core.
    homes: Vec<Vec<usize>>,
    counters: Vec<PortCounterSets>,
    uplink: PortCounterSets,
    nic: Arc<Mutex<Nic>>,
    policies: Vec<Option<Arc<PortPolicy>>>,
    rules: RuleTables,
    seed: Rng,
    max: usize,
}

impl Testbed {
    /// The switch and its uplink, without VMs.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let seed = Rng::new(setup.seed);
        let ports = setup.vms + 1;
        let config = WorldConfig {
            workers: setup.workers,
            schedule: setup.schedule,
            readiness: setup.readiness,
            refill: setup.refill,
            capacity: setup.capacity,
        };
        let cores = Cores::new(&config, setup.core, setup.costs, ports, setup.seed);
        let workers = cores.all.len();
        let nic = Nic::new(setup.core, setup.link, workers, seed.fork(0x2000));
        let mut bed = Self {
            uplink: PortCounterSets::new(workers),
            cores,
            vms: Vec::new(),
            homes: vec![Vec::new(); workers],
            counters: Vec::new(),
            nic: Arc::new(Mutex::new(nic)),
            policies: Vec::new(),
            rules: five_tuple(),
            seed,
            max: ports,
        };
        let counters = bed.uplink.clone();
        for (worker, queue) in (0..workers).zip(0..) {
            let counter = bed.cores.all[worker].counter.clone();
            let pair = Box::new(NicPort { nic: Arc::clone(&bed.nic), worker, counter });
            let unit = Unit { port: PortId(UPLINK), queue: QueueId(queue) };
            let attached = bed.cores.attach(unit, workers, worker, pair, &counters);
            debug_assert!(attached, "the place is free");
        }
        bed.add_policy(setup.uplink);
        bed
    }

    /// Adds a VM with a ring of `ring` frames on worker number `worker`.
    ///
    /// # Panics
    /// The testbed has no room for the VM, or no such worker.
    pub fn add_vm(&mut self, ring: usize, qos: PortQos, worker: usize) -> VmId {
        let number = self.vms.len();
        assert!(number + 1 < self.max && worker < self.homes.len(), "VM {number} has no place");
        let id = VmId(u16::try_from(number).unwrap_or(u16::MAX));
        let port = id.port();
        let mut vm = Vm::new(port.0, self.cores.rate, ring, self.seed.fork(u64::from(port.0)));
        // This greeting follows the server's greeting, so that no later frame is flooded.
        vm.post(self.cycles(Nanos::from_micros(5)), SMALL, |_| Mark::Greeting);
        let vm = Arc::new(Mutex::new(vm));
        let counter = self.cores.all[worker].counter.clone();
        let pair = Box::new(VmPort { vm: Arc::clone(&vm), counter });
        let counters = PortCounterSets::new(self.homes.len());
        let attached =
            self.cores.attach(Unit { port, queue: QueueId(0) }, 1, worker, pair, &counters);
        debug_assert!(attached, "the place is free");
        lock(&self.nic).add_vm(port.0, worker);
        self.homes[worker].push(number);
        self.vms.push(vm);
        self.counters.push(counters);
        self.add_policy(qos);
        id
    }

    fn add_policy(&mut self, qos: PortQos) {
        let id = u16::try_from(self.policies.len()).unwrap_or(u16::MAX);
        let mut policy = PortPolicy::access(id, Some(TENANT), Vid::UNTAGGED, 0);
        policy.rules = self.rules.clone();
        policy.slow_path = SlowPathLimit::UNLIMITED;
        policy.qos = qos;
        self.policies.push(Some(Arc::new(policy.finish())));
        self.swap();
    }

    /// Sets a VM's purchased cycles and class.
    pub fn set_qos(&mut self, vm: VmId, qos: PortQos) {
        self.set_all_qos(&[(vm, qos)]);
    }

    /// Sets the purchased cycles and classes of several VMs, in one snapshot.
    pub fn set_all_qos(&mut self, all: &[(VmId, PortQos)]) {
        for (vm, qos) in all {
            if let Some(Some(policy)) = self.policies.get_mut(vm.port().index()) {
                Arc::make_mut(policy).qos = *qos;
            }
        }
        if !all.is_empty() {
            self.swap();
        }
    }

    /// Sets or removes the rate limits of a VM.
    pub fn set_limits(&mut self, vm: VmId, limits: Option<Arc<IngressPolicer>>) {
        if let Some(Some(policy)) = self.policies.get_mut(vm.port().index()) {
            Arc::make_mut(policy).ingress_policer = limits;
        }
        self.swap();
    }

    /// A VM's purchased cycles and class.
    #[must_use]
    pub fn qos(&self, vm: VmId) -> PortQos {
        let policy = self.policies.get(vm.port().index()).and_then(Option::as_ref);
        policy.map(|policy| policy.qos).unwrap_or_default()
    }

    fn swap(&mut self) {
        let members = (0..u16::try_from(self.policies.len()).unwrap_or(u16::MAX)).collect();
        let domain = Domain { tenant: Some(TENANT), vid: 0, members, fdb_limit: 1024 };
        // Addresses never age, because figures do not test learning.
        self.cores.swap(self.policies.clone(), vec![domain], 0);
    }

    /// Makes a VM send `traffic` as its bulk from `from` on. Call it in the order of time.
    pub fn send(&mut self, vm: VmId, from: Nanos, traffic: Traffic) {
        lock(&self.vms[usize::from(vm.0)]).send_from(from, traffic);
    }

    /// Makes a VM measure its round trip, in addition to its other traffic.
    pub fn probe(&mut self, vm: VmId, probe: Probe) {
        lock(&self.vms[usize::from(vm.0)]).probe(probe);
        lock(&self.nic).set_server(vm.port().0, probe.server);
    }

    /// Puts `per_second` small frames at random times into a VM's ring. The time that these frames
    /// take to the link is measured.
    pub fn sample(&mut self, vm: VmId, (from, until): (Nanos, Nanos), per_second: u64) {
        let mut rng = self.seed.fork(0x3000 + u64::from(vm.0));
        let (from, until) = (self.cycles(from), self.cycles(until));
        let count =
            u128::from(per_second) * u128::from(until - from) / u128::from(self.cores.rate.hz());
        let mut shared = lock(&self.vms[usize::from(vm.0)]);
        for _ in 0..count {
            shared.post(from + rng.below(until - from), SMALL, Mark::Sample);
        }
    }

    /// Makes clients on the far side send requests to a VM, which answers them.
    pub fn serve(&mut self, vm: VmId, requests: Requests) {
        lock(&self.vms[usize::from(vm.0)]).serve(requests);
        let rng = self.seed.fork(0x4000 + u64::from(vm.0));
        lock(&self.nic).set_clients(vm.port().0, requests, rng);
    }

    fn cycles(&self, time: Nanos) -> u64 {
        self.cores.rate.to_cycles(time).0
    }

    /// Runs the testbed until `end`.
    pub fn run_until(&mut self, end: Nanos) {
        let end = self.cycles(end);
        loop {
            let at = self.cores.behind();
            let core = &mut self.cores.all[at];
            if core.counter.now().0 >= end {
                return;
            }
            let idle = core.worker.turn() == Turn::Idle;
            // A turn uses the time at which the last turn ended. Thus only two idle turns in a row
            // have seen all frames.
            let skips = idle && core.idle;
            core.idle = idle && !skips;
            if skips {
                self.skip(at, end);
            }
        }
    }

    /// Skips the time in which an idle core would keep finding nothing.
    fn skip(&mut self, at: usize, end: u64) {
        let core = &self.cores.all[at];
        let now = core.counter.now().0;
        let mut next = lock(&self.nic).next_at(at).min(end);
        // Frames that wait at this time wait for cycles, or arrived after the last poll.
        let refill = core.worker.next_due().map_or(now, |refill| refill.0);
        for vm in &self.homes[at] {
            let mut vm = lock(&self.vms[*vm]);
            next = next.min(if vm.waits(now) { refill } else { vm.next_at() });
        }
        core.counter.advance_to(Cycles(next));
    }

    /// The current time on the core that is furthest behind.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.cores.now()
    }

    /// Counters of a VM.
    #[must_use]
    pub fn vm(&self, vm: VmId) -> VmReading {
        let number = usize::from(vm.0);
        VmReading {
            port: self.counters[number].read(),
            carried: lock(&self.nic).far[number + 1].carried,
            held_back: lock(&self.vms[number]).held_back,
        }
    }

    #[must_use]
    pub fn uplink(&self) -> PortReading {
        self.uplink.read()
    }

    #[must_use]
    pub fn worker(&self, worker: usize) -> WorkerReading {
        self.cores.all[worker].worker.counters().read()
    }

    /// Account of a worker's cycles.
    #[must_use]
    pub fn ledger(&self, worker: usize) -> Ledger {
        self.cores.all[worker].worker.ledger()
    }

    /// Tokens of a VM, summed over all workers.
    #[must_use]
    pub fn tokens(&self, vm: VmId) -> i64 {
        self.cores.tokens(vm.port())
    }

    fn timed(&self, all: &[(u64, u64)]) -> Vec<Timed> {
        let at = |at: u64| self.cores.rate.to_nanos(Cycles(at));
        all.iter().map(|&(from, took)| Timed { at: at(from), took: Nanos(took) }).collect()
    }

    /// Round trips of a VM's probe.
    #[must_use]
    pub fn round_trips(&self, vm: VmId) -> Vec<Timed> {
        let round_trips = lock(&self.vms[usize::from(vm.0)]).round_trips.clone();
        self.timed(&round_trips)
    }

    /// Times from a VM's ring to the end of the frame on the link.
    #[must_use]
    pub fn one_way(&self, vm: VmId) -> Vec<Timed> {
        let one_way = lock(&self.nic).far[vm.port().index()].one_way.clone();
        self.timed(&one_way)
    }

    /// Response times seen by a VM's clients.
    #[must_use]
    pub fn responses(&self, vm: VmId) -> Vec<Timed> {
        let responses = lock(&self.nic).far[vm.port().index()].responses.clone();
        self.timed(&responses)
    }

    /// Bytes that went over the link, with preambles and gaps.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        lock(&self.nic).wire_bytes
    }
}

/// A rule that reads the whole five-tuple and never matches. Flows then differ in the five-tuple,
/// as in OVS's exact-match cache, whose key is the whole header.
fn five_tuple() -> RuleTables {
    let host = |last| Some(IpMatch::v4_prefix(std::net::Ipv4Addr::new(240, 0, 0, last), 32));
    let matching = Match {
        src_ip: host(1),
        dst_ip: host(2),
        proto: Some(17),
        src_port: Some((1, u16::MAX)),
        dst_port: Some((2, u16::MAX)),
        ..Match::default()
    };
    let rule = Rule { priority: 1, matching, actions: Actions::only(Then::Drop), id: 1 };
    let table = RuleTable::build(&[rule], 32).ok().map(Arc::new);
    RuleTables { global: table, ..RuleTables::default() }
}

/// Cycles per second of a fraction of a core.
#[must_use]
pub fn share(core: TscRate, share: f64) -> CyclesPerSecond {
    #[expect(clippy::cast_precision_loss, reason = "a frequency")]
    let cycles = core.hz() as f64 * share;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a core")]
    let cycles = cycles.round() as u64;
    CyclesPerSecond(cycles)
}
