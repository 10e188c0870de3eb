//! The production worker at the scale of a published testbed: VMs that send millions of frames a
//! second through an uplink to a second server, for tens of seconds.
//!
//! **Problem.** A figure takes 30 s of four VMs at 2 M frames/s and must replay in seconds, for
//! many
//! seeds. **Rule.** Workers, classifier, cycle buckets and schedule are those of the data path.
//! What
//! is simulated stands around them: ports that make a frame's head when it is taken and forget it
//! when it is delivered, so that nothing is kept or posted a frame; a link of a rate behind a
//! finite
//! ring; the second server; clients; and the costs ([`TrueCosts`]), that were given beforehand and
//! that no model sees. Everything random comes from one seed; the same seed, the same numbers.
//!
//! **What is where in time.** A stage's cycles pass when it is over: what is delivered leaves at
//! the start of egress. The core that is furthest behind has the next turn. A VM is served by one
//! worker, and so are the frames that come for it.

mod cost;
mod frame;
mod nic;
mod traffic;
mod vm;

use std::sync::{Arc, Mutex};

use penstock_dataplane::classify::{
    Actions, Domain, IpMatch, Match, PortPolicy, Rule, RuleTable, RuleTables, SlowPathLimit,
    Snapshot, Then,
};
use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::police::Limits;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::schedule::{PortQos, Readiness, ScheduleKind};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Arrival, Ledger, Mesh, QUEUES_MAX, Turn, Worker, WorkerConfig};
use penstock_units::{CyclesPerSecond, Nanos, PortId, QueueId, TscRate, Vid, WorkerId};

pub use cost::{NOT_CHARGED, TrueCosts};
pub use nic::{Carried, Link};
pub use traffic::{Flows, Pace, Probe, Requests, Traffic};

use cost::BatchCounter;
use frame::Mark;
use nic::{Nic, NicPort};
use penstock_units::Rng;
use vm::{SMALL, Vm, VmPort, lock};

/// The uplink's port.
const UPLINK: u16 = 0;
const TENANT: u16 = 1;

/// A testbed as it is built.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Cycles a second of each core.
    pub core: TscRate,
    /// How many of them may be spent on frames; `None`: all.
    pub capacity: Option<CyclesPerSecond>,
    /// How many I/O cores, a worker each.
    pub workers: u16,
    /// What frames cost.
    pub costs: TrueCosts,
    /// The uplink.
    pub link: Link,
    /// What the uplink's port is to the workers: its class.
    pub uplink: PortQos,
    /// Most VMs.
    pub vms: usize,
    /// Whose batch is next.
    pub schedule: ScheduleKind,
    /// How `hbs` treats who has no frames.
    pub readiness: Readiness,
    /// Between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Of everything random.
    pub seed: u64,
}

/// A VM, by number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmId(u16);

impl VmId {
    /// Its port.
    #[must_use]
    pub const fn port(self) -> PortId {
        PortId(self.0 + 1)
    }
}

/// What a VM has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmReading {
    /// The switch's counters.
    pub port: PortReading,
    /// What of it went over the link.
    pub carried: Carried,
    /// Frames that found its ring full.
    pub held_back: u64,
}

/// A time that was measured, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When it began.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
}

#[derive(Debug)]
struct Core {
    worker: Worker<BatchCounter>,
    counter: BatchCounter,
    vms: Vec<usize>,
    idle: bool,
}

/// See the module's text.
#[derive(Debug)]
pub struct Testbed {
    core: TscRate,
    cores: Vec<Core>,
    vms: Vec<Arc<Mutex<Vm>>>,
    counters: Vec<PortCounterSets>,
    uplink: PortCounterSets,
    nic: Arc<Mutex<Nic>>,
    policies: Vec<Option<Arc<PortPolicy>>>,
    rules: RuleTables,
    generation: u64,
    seed: Rng,
    max: usize,
}

impl Testbed {
    /// The switch and its uplink, without VMs yet.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let seed = Rng::new(setup.seed);
        let ports = setup.vms + 1;
        let mesh = Mesh::new(setup.workers.max(1), ports);
        let cores: Vec<Core> = (0..)
            .zip(mesh.peers)
            .map(|(id, peers)| {
                let counter = BatchCounter::new(setup.costs, seed.fork(0x1000 + u64::from(id)));
                let config = WorkerConfig {
                    id: WorkerId(id),
                    schedule: setup.schedule,
                    readiness: setup.readiness,
                    refill: setup.refill,
                    capacity: setup.capacity,
                    fdb_entries: 1024,
                    seed: setup.seed,
                    tsc: setup.core,
                    max_ports: ports,
                    ..WorkerConfig::default()
                };
                let worker = Worker::new(&config, counter.clone(), None).with_peers(peers);
                Core { worker, counter, vms: Vec::new(), idle: false }
            })
            .collect();
        let nic = Nic::new(setup.core, setup.link, cores.len(), seed.fork(0x2000));
        let mut bed = Self {
            core: setup.core,
            uplink: PortCounterSets::new(cores.len()),
            cores,
            vms: Vec::new(),
            counters: Vec::new(),
            nic: Arc::new(Mutex::new(nic)),
            policies: Vec::new(),
            rules: five_tuple(),
            generation: 0,
            seed,
            max: ports,
        };
        let counters = bed.uplink.clone();
        for worker in 0..bed.cores.len() {
            let counter = bed.cores[worker].counter.clone();
            let pair = NicPort { nic: Arc::clone(&bed.nic), worker, counter };
            let pair: Box<dyn PortQueue> = Box::new(pair);
            bed.attach(PortId(UPLINK), worker, worker, bed.cores.len(), pair, &counters);
        }
        bed.add_policy(setup.uplink);
        bed
    }

    /// Adds a VM whose ring holds `ring` frames, on worker number `worker`.
    ///
    /// # Panics
    /// If there are more VMs than the testbed was made for, or fewer workers.
    pub fn add_vm(&mut self, ring: usize, qos: PortQos, worker: usize) -> VmId {
        let number = self.vms.len();
        assert!(number + 1 < self.max && worker < self.cores.len(), "VM {number} has no place");
        let id = VmId(u16::try_from(number).unwrap_or(u16::MAX));
        let port = id.port();
        let mut vm = Vm::new(port.0, self.core, ring, self.seed.fork(u64::from(port.0)));
        // After the server's greeting, so that nothing is ever flooded afterwards.
        vm.post(self.cycles(Nanos::from_micros(5)), SMALL, |_| Mark::Greeting);
        let vm = Arc::new(Mutex::new(vm));
        let counter = self.cores[worker].counter.clone();
        let pair = Box::new(VmPort { vm: Arc::clone(&vm), counter });
        let counters = PortCounterSets::new(self.cores.len());
        self.attach(port, 0, worker, 1, pair, &counters);
        lock(&self.nic).add_vm(port.0, worker);
        self.cores[worker].vms.push(number);
        self.vms.push(vm);
        self.counters.push(counters);
        self.add_policy(qos);
        id
    }

    fn attach(
        &mut self,
        port: PortId,
        queue: usize,
        worker: usize,
        of: usize,
        pair: Box<dyn PortQueue>,
        counters: &PortCounterSets,
    ) {
        if queue == 0 {
            for (core, id) in self.cores.iter_mut().zip(0..) {
                let set = Arc::clone(counters.of(WorkerId(id)));
                let joined = core.worker.join(port, Vec::with_capacity(QUEUES_MAX), set);
                debug_assert!(joined.is_ok(), "the slot is free");
            }
        }
        let queue = QueueId(u16::try_from(queue).unwrap_or(0));
        let adopted = self.cores[worker].worker.adopt(Arrival { port, queue, of, pair });
        debug_assert!(adopted.is_ok(), "the place is free");
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

    /// What a VM buys from now on.
    pub fn set_qos(&mut self, vm: VmId, qos: PortQos) {
        self.set_all_qos(&[(vm, qos)]);
    }

    /// What several VMs buy from now on, in one snapshot.
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

    /// Holds a VM's frames to rates, or no longer.
    pub fn set_limits(&mut self, vm: VmId, limits: Option<Arc<Limits>>) {
        if let Some(Some(policy)) = self.policies.get_mut(vm.port().index()) {
            Arc::make_mut(policy).limits = limits;
        }
        self.swap();
    }

    /// What a VM has bought.
    #[must_use]
    pub fn qos(&self, vm: VmId) -> PortQos {
        let policy = self.policies.get(vm.port().index()).and_then(Option::as_ref);
        policy.map(|policy| policy.qos).unwrap_or_default()
    }

    fn swap(&mut self) {
        self.generation += 1;
        let members = (0..u16::try_from(self.policies.len()).unwrap_or(u16::MAX)).collect();
        let domain = Domain { tenant: Some(TENANT), vid: 0, members, fdb_limit: 1024 };
        let policies = self.policies.clone();
        // Addresses never age: a figure is not about learning.
        let snapshot = Snapshot::new(self.generation, policies, vec![domain], Vec::new(), 0);
        let snapshot = Arc::new(snapshot);
        for core in &mut self.cores {
            drop(core.worker.swap_snapshot(Arc::clone(&snapshot)));
        }
    }

    /// From `from` on a VM sends `traffic` as its bulk. Phases are given in the order of time.
    pub fn send(&mut self, vm: VmId, from: Nanos, traffic: Traffic) {
        lock(&self.vms[usize::from(vm.0)]).send_from(from, traffic);
    }

    /// Lets a VM measure its round trip, beside what else it sends.
    pub fn probe(&mut self, vm: VmId, probe: Probe) {
        lock(&self.vms[usize::from(vm.0)]).probe(probe);
        lock(&self.nic).set_server(vm.port().0, probe.server);
    }

    /// Puts small frames at random times into a VM's ring, so many a second, whose way to the link
    /// is timed.
    pub fn sample(&mut self, vm: VmId, (from, until): (Nanos, Nanos), per_second: u64) {
        let mut rng = self.seed.fork(0x3000 + u64::from(vm.0));
        let (from, until) = (self.cycles(from), self.cycles(until));
        let count = u128::from(per_second) * u128::from(until - from) / u128::from(self.core.hz());
        let mut shared = lock(&self.vms[usize::from(vm.0)]);
        for _ in 0..count {
            shared.post(from + rng.below(until - from), SMALL, Mark::Sample);
        }
    }

    /// Lets clients on the far side send requests to a VM, which answers them.
    pub fn serve(&mut self, vm: VmId, requests: Requests) {
        lock(&self.vms[usize::from(vm.0)]).serve(requests);
        let rng = self.seed.fork(0x4000 + u64::from(vm.0));
        lock(&self.nic).set_clients(vm.port().0, requests, rng);
    }

    fn cycles(&self, time: Nanos) -> u64 {
        self.core.to_cycles(time).0
    }

    /// Lets the world go on until `end`.
    pub fn run_until(&mut self, end: Nanos) {
        let end = self.cycles(end);
        loop {
            let Some(at) = self.behind(end) else { return };
            let core = &mut self.cores[at];
            let idle = core.worker.turn() == Turn::Idle;
            // A turn looks at the time of the last one's end: two in a row have seen all there is.
            let skips = idle && core.idle;
            core.idle = idle && !skips;
            if skips {
                self.skip(at, end);
            }
        }
    }

    /// The core that is furthest behind, of those before `end`.
    fn behind(&self, end: u64) -> Option<usize> {
        let now = |core: &Core| core.counter.now().0;
        let at = match &self.cores[..] {
            [_] => 0,
            cores => (0..cores.len()).min_by_key(|at| now(&cores[*at]))?,
        };
        (now(&self.cores[at]) < end).then_some(at)
    }

    /// Lets the time pass in which an idle core would go on finding nothing.
    fn skip(&mut self, at: usize, end: u64) {
        let core = &self.cores[at];
        let now = core.counter.now().0;
        let mut next = lock(&self.nic).next_at(at).min(end);
        // Who waits now waits for cycles, or came after the last look.
        let refill = core.worker.next_due().map_or(now, |refill| refill.0);
        for vm in &core.vms {
            let mut vm = lock(&self.vms[*vm]);
            next = next.min(if vm.waits(now) { refill } else { vm.next_at() });
        }
        core.counter.advance_to(next);
    }

    /// Now, on the core that is furthest behind.
    #[must_use]
    pub fn now(&self) -> Nanos {
        let now = self.cores.iter().map(|core| core.counter.now()).min();
        now.map_or(Nanos::ZERO, |now| self.core.to_nanos(now))
    }

    /// What a VM has done so far.
    #[must_use]
    pub fn vm(&self, vm: VmId) -> VmReading {
        let number = usize::from(vm.0);
        VmReading {
            port: self.counters[number].read(),
            carried: lock(&self.nic).far[number + 1].carried,
            held_back: lock(&self.vms[number]).held_back,
        }
    }

    /// The uplink's counters.
    #[must_use]
    pub fn uplink(&self) -> PortReading {
        self.uplink.read()
    }

    /// A worker's counters.
    #[must_use]
    pub fn worker(&self, worker: usize) -> WorkerReading {
        self.cores[worker].worker.counters().read()
    }

    /// Where a worker's cycles went.
    #[must_use]
    pub fn ledger(&self, worker: usize) -> Ledger {
        self.cores[worker].worker.ledger()
    }

    /// A VM's tokens.
    #[must_use]
    pub fn tokens(&self, vm: VmId) -> i64 {
        self.cores.iter().map(|core| core.worker.tokens(vm.port())).sum()
    }

    fn timed(&self, all: &[(u64, u64)]) -> Vec<Timed> {
        let at = |at: u64| self.core.to_nanos(penstock_units::Cycles(at));
        all.iter().map(|&(from, took)| Timed { at: at(from), took: Nanos(took) }).collect()
    }

    /// Round trips of a VM's probe.
    #[must_use]
    pub fn round_trips(&self, vm: VmId) -> Vec<Timed> {
        let round_trips = lock(&self.vms[usize::from(vm.0)]).round_trips.clone();
        self.timed(&round_trips)
    }

    /// Times from a VM's ring to the end of its frame on the link.
    #[must_use]
    pub fn one_way(&self, vm: VmId) -> Vec<Timed> {
        let one_way = lock(&self.nic).far[vm.port().index()].one_way.clone();
        self.timed(&one_way)
    }

    /// Response times that a VM's clients have seen.
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

/// A rule that looks at all of the five-tuple and never matches: flows then differ in it, as they
/// do in OVS's exact-match cache, where its key is all of the header.
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

/// Cycles a second that a share of a core is.
#[must_use]
pub fn share(core: TscRate, share: f64) -> CyclesPerSecond {
    #[expect(clippy::cast_precision_loss, reason = "a frequency")]
    let cycles = core.hz() as f64 * share;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a core")]
    let cycles = cycles.round() as u64;
    CyclesPerSecond(cycles)
}
