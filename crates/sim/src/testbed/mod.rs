//! Runs the production worker at the scale of a published testbed. VMs send millions of frames per
//! second through an uplink to a second server, for tens of seconds.
//!
//! # Problem
//!
//! A figure in a paper shows 30 s of four VMs that send 2 million frames/s. The replay of a figure
//! must take only seconds, because it runs with many seeds.
//!
//! # Approach
//!
//! Workers, classifier, cycle buckets and schedule are the production code of the data path. The
//! simulation replaces the ports, the uplink, the second server and the cycle costs of a real
//! testbed:
//!
//! - Ports create a frame's header when the worker receives the frame, and discard it on delivery.
//!   The simulation stores no frames and posts no event for a frame.
//! - The uplink is a link with a given rate and a finite ring.
//! - The second server and the clients of the testbed are simple models.
//! - Costs ([`Costs`]) are fixed before the run. The cost models of the switch do not know the
//!   simulated costs.
//!
//! All random numbers of a testbed come from one seed. Runs with the same seed give the same
//! results.
//!
//! # Time
//!
//! A core's cycle counter advances at the end of a stage, so a delivered frame leaves at the time
//! at which the egress stage starts. The worker that serves a VM also receives the inbound frames
//! for this VM.

mod frame;
mod nic;
mod traffic;
mod vm;

use std::sync::{Arc, Mutex};

use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_dataplane::schedule::{Readiness, ScheduleKind};
use penstock_dataplane::snapshot::PortQos;
use penstock_dataplane::snapshot::{
    Actions, Domain, IpMatch, Match, PortPolicy, Rule, RuleTable, RuleTables, SlowPathLimit, Then,
};
use penstock_dataplane::tsc::CycleCounter as _;
use penstock_dataplane::unit::Unit;
use penstock_dataplane::worker::{Ledger, Turn};
use penstock_qos::c2tb::Spare;
use penstock_units::{Cycles, CyclesPerSecond, Nanos, PortId, QueueId, Rng, TscRate, Vid};

use crate::cores::{Cores, WorldConfig};
use crate::cost::Costs;
use crate::notified::Notice;

pub use nic::{Carried, Link};
pub use traffic::{Flows, Pace, Probe, Requests, ToVm, Traffic};

use frame::Mark;
use nic::{Nic, NicPort};
use vm::{SMALL, Vm, VmPort, lock};

/// Port number of the testbed's uplink.
const UPLINK: u16 = 0;
const TENANT: u16 = 1;

/// Configuration of a simulated testbed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Frequency of each core, in cycles per second.
    pub core: TscRate,
    /// Cycles per second that each worker may spend on frames. If `capacity` is `None`, a worker
    /// may spend all cycles of its core.
    pub capacity: Option<CyclesPerSecond>,
    /// Number of I/O cores. Each core has one worker.
    pub workers: u16,
    pub costs: Costs,
    pub link: Link,
    /// Purchased cycles and latency class of the uplink's port.
    pub uplink: PortQos,
    /// Maximum number of VMs in the testbed.
    pub vms: usize,
    /// Schedule of the testbed's workers.
    pub schedule: ScheduleKind,
    /// Treatment of queue pairs without frames by the schedule `hbs`.
    pub readiness: Readiness,
    /// Rule by which ports get the cycles that no port bought or used.
    pub spare: Spare,
    /// Time between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Seed of all random numbers of the testbed.
    pub seed: u64,
}

/// Number of a VM in the testbed, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmId(u16);

impl VmId {
    #[must_use]
    pub const fn port(self) -> PortId {
        PortId(self.0 + 1)
    }
}

/// Counters of a VM: in the switch, on the uplink's link, and in the VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmReading {
    /// The switch's counters for the VM's port.
    pub port: PortReading,
    /// Counters of the VM's traffic on the uplink's link.
    pub carried: Carried,
    /// Number of frames that the VM dropped because its ring was full.
    pub held_back: u64,
}

/// A measured duration, with the time of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Time at which the measured duration began.
    pub at: Nanos,
    pub took: Nanos,
}

/// A simulated testbed: a switch with VMs, an uplink, and a second server.
#[derive(Debug)]
pub struct Testbed {
    cores: Cores,
    vms: Vec<Arc<Mutex<Vm>>>,
    /// Numbers of the VMs that each core serves.
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
    /// Creates a testbed with a switch and its uplink, but without VMs.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let seed = Rng::new(setup.seed);
        let ports = setup.vms + 1;
        let config = WorldConfig {
            workers: setup.workers,
            schedule: setup.schedule,
            readiness: setup.readiness,
            spare: setup.spare,
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
            let (nic, cost) = (Arc::clone(&bed.nic), setup.link.cost);
            let pair = Box::new(NicPort { nic, worker, counter, cost });
            let unit = Unit { port: PortId(UPLINK), queue: QueueId(queue) };
            let attached = bed.cores.attach(unit, workers, worker, pair, &counters);
            debug_assert!(attached, "the place is free");
        }
        bed.add_policy(setup.uplink);
        bed
    }

    /// Adds a VM with a ring of `ring` frames. Worker number `worker` polls the VM's ring.
    ///
    /// # Panics
    /// Panics if the testbed has no room for the VM, or if there is no worker with the number
    /// `worker`.
    pub fn add_vm(&mut self, ring: usize, qos: PortQos, worker: usize) -> VmId {
        self.add_notified_vm((ring, Notice::Poll), qos, worker)
    }

    /// Adds a VM as [`Self::add_vm`] does, which learns of frames for it by `notice`.
    ///
    /// # Panics
    /// Panics if the testbed has no room for the VM, or if there is no worker with the number
    /// `worker`.
    pub fn add_notified_vm(
        &mut self,
        (ring, notice): (usize, Notice),
        qos: PortQos,
        worker: usize,
    ) -> VmId {
        let number = self.vms.len();
        assert!(
            number + 1 < self.max && worker < self.homes.len(),
            "VM {number}: the testbed is full or has no worker {worker}"
        );
        let id = VmId(u16::try_from(number).unwrap_or(u16::MAX));
        let port = id.port();
        let mut vm = Vm::new(port.0, self.cores.rate, ring, self.seed.fork(u64::from(port.0)));
        // The switch learns the server's address first, then the VM's. So no later frame is
        // flooded.
        vm.post(self.cycles(Nanos::from_micros(5)), SMALL, |_| Mark::Greeting);
        let vm = Arc::new(Mutex::new(vm));
        let counter = self.cores.all[worker].counter.clone();
        let queue = VmPort { vm: Arc::clone(&vm), counter: counter.clone() };
        let pair = notice.pair(queue, counter, self.cores.costs.overheads);
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

    /// Sets a VM's purchased cycles and latency class.
    pub fn set_qos(&mut self, vm: VmId, qos: PortQos) {
        self.set_all_qos(&[(vm, qos)]);
    }

    /// Sets the purchased cycles and latency classes of several VMs, in one snapshot of the
    /// configuration.
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

    /// Sets the rate limits of a VM, or removes the limits if `limits` is `None`.
    pub fn set_limits(&mut self, vm: VmId, limits: Option<Arc<IngressPolicer>>) {
        if let Some(Some(policy)) = self.policies.get_mut(vm.port().index()) {
            Arc::make_mut(policy).ingress_policer = limits;
        }
        self.swap();
    }

    /// Returns a VM's purchased cycles and latency class.
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

    /// Makes `traffic` the VM's bulk traffic from the time `from` on. Successive calls of `send`
    /// for the same VM must have increasing times `from`.
    pub fn send(&mut self, vm: VmId, from: Nanos, traffic: Traffic) {
        lock(&self.vms[usize::from(vm.0)]).send_from(from, traffic);
    }

    /// Makes a VM measure round trips with a probe, in addition to its other traffic.
    pub fn probe(&mut self, vm: VmId, probe: Probe) {
        lock(&self.vms[usize::from(vm.0)]).probe(probe);
        lock(&self.nic).set_server(vm.port().0, probe.server);
    }

    /// Adds `per_second` small frames per second to a VM's ring, at random times. Measures the time
    /// of each frame from the ring to the link.
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

    /// Makes clients behind the uplink send requests to a VM, and makes the VM answer the requests.
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
            // A turn uses the time of the end of the last turn. Thus only the second idle turn in a
            // row has seen all frames.
            let skips = idle && core.idle;
            core.idle = idle && !skips;
            if skips {
                self.skip(at, end);
            }
        }
    }

    /// Advances the cycle counter of the idle core `at` to the time at which the core may find a
    /// frame, at most to `end`.
    fn skip(&mut self, at: usize, end: u64) {
        let core = &self.cores.all[at];
        let now = core.counter.now().0;
        let mut next = lock(&self.nic).next_at(at).min(end);
        // Frames in a ring at this time wait for cycles, or arrived after the last poll.
        let refill = core.worker.next_due().map_or(now, |refill| refill.0);
        for vm in &self.homes[at] {
            let mut vm = lock(&self.vms[*vm]);
            next = next.min(if vm.waits(now) { refill } else { vm.next_at() });
        }
        core.counter.advance_to(Cycles(next));
    }

    /// Returns the time on the core with the lowest counter.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.cores.now()
    }

    /// Returns the counters of a VM and of its traffic on the link.
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

    /// Returns a worker's account of the cycles that its buckets received and spent.
    #[must_use]
    pub fn ledger(&self, worker: usize) -> Ledger {
        self.cores.all[worker].worker.ledger()
    }

    /// Returns the tokens (in cycles) of a VM's bucket, summed over all workers.
    #[must_use]
    pub fn tokens(&self, vm: VmId) -> i64 {
        self.cores.tokens(vm.port())
    }

    fn timed(&self, all: &[(u64, u64)]) -> Vec<Timed> {
        let at = |at: u64| self.cores.rate.to_nanos(Cycles(at));
        all.iter().map(|&(from, took)| Timed { at: at(from), took: Nanos(took) }).collect()
    }

    /// Returns the round trips of a VM's probe.
    #[must_use]
    pub fn round_trips(&self, vm: VmId) -> Vec<Timed> {
        let round_trips = lock(&self.vms[usize::from(vm.0)]).round_trips.clone();
        self.timed(&round_trips)
    }

    /// Returns a duration for each sample frame: from its entry into the VM's ring until the link
    /// has sent the frame.
    #[must_use]
    pub fn one_way(&self, vm: VmId) -> Vec<Timed> {
        let one_way = lock(&self.nic).far[vm.port().index()].one_way.clone();
        self.timed(&one_way)
    }

    /// Returns the response times that the VM's clients measured.
    #[must_use]
    pub fn responses(&self, vm: VmId) -> Vec<Timed> {
        let responses = lock(&self.nic).far[vm.port().index()].responses.clone();
        self.timed(&responses)
    }

    /// Returns the number of bytes sent on the uplink's link, including preambles and gaps.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        lock(&self.nic).wire_bytes
    }
}

/// Returns a rule that reads the whole five-tuple and never matches, so that the switch
/// distinguishes flows by five-tuple. OVS's exact-match cache also distinguishes flows by
/// five-tuple, because the cache's key is the whole header.
#[must_use]
pub fn five_tuple() -> RuleTables {
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

/// Converts the fraction `share` of a core with the frequency `core` to cycles per second.
#[must_use]
pub fn share(core: TscRate, share: f64) -> CyclesPerSecond {
    #[expect(clippy::cast_precision_loss, reason = "a frequency")]
    let cycles = core.hz() as f64 * share;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a core")]
    let cycles = cycles.round() as u64;
    CyclesPerSecond(cycles)
}
