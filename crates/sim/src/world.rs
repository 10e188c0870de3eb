//! A simulated switch, its VMs and their traffic, with one virtual clock.
//!
//! Frames of a world are real bytes in memory queues. Events make VMs send and receive. For
//! simulations of tens of seconds, [`crate::testbed`] is faster.

use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading, WorkerReading};
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::snapshot::PortQos;
use penstock_dataplane::snapshot::{Domain, PortPolicy};
use penstock_dataplane::tsc::CycleCounter as _;
use penstock_dataplane::unit::Unit;
use penstock_dataplane::worker::{Turn, bell_of};
use penstock_units::{Cycles, MacAddr, Nanos, PortId, QueueId, Rng, TscRate, Vid};

use crate::cores::{Cores, WorldConfig};
use crate::cost::Costs;
use crate::events::EventQueue;
use crate::frames::udp_frame;
use crate::notified::Notice;
use crate::sink::{Arrival, SinkSpec, SinkStats};
use crate::source::{SourceSpec, SourceStats};

/// Number of a VM in a simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortHandle(u16);

/// Reason for which a simulated world cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The number of ports (first field) exceeds `max_ports` (second field).
    #[error("{0} ports: more than max_ports ({1}); create the world with a larger max_ports")]
    TooManyPorts(usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(u16),
    Drain(u16),
}

#[derive(Debug)]
struct Vm {
    mac: MacAddr,
    driver: MemoryDriver,
    counters: PortCounterSets,
    source: Option<(SourceSpec, SourceStats, Rng)>,
    sink: SinkSpec,
    received: SinkStats,
    last_sequence: Vec<u64>,
    /// Received frames since the last call of [`World::take_arrivals`]. `None` if the VM's frames
    /// are not recorded.
    arrivals: Option<Vec<Arrival>>,
}

/// A simulated switch, its VMs and their traffic.
#[derive(Debug)]
pub struct World {
    cores: Cores,
    events: EventQueue<Event>,
    vms: Vec<Vm>,
    policies: Vec<Option<Arc<PortPolicy>>>,
    domains: Vec<Domain>,
    seed: Rng,
    max_ports: usize,
    stolen: Cycles,
}

impl World {
    /// Creates a world with one core of `rate` cycles per second, for up to `max_ports` ports.
    #[must_use]
    pub fn new(rate: TscRate, costs: Costs, max_ports: usize, seed: u64) -> Self {
        Self::with_workers(1, rate, costs, max_ports, seed)
    }

    /// Does the same as [`Self::new`], with several workers. Each worker has its own core. The
    /// world assigns VMs to the workers in round-robin order.
    #[must_use]
    pub fn with_workers(
        workers: u16,
        rate: TscRate,
        costs: Costs,
        max_ports: usize,
        seed: u64,
    ) -> Self {
        Self::with_config(
            &WorldConfig { workers, ..WorldConfig::default() },
            rate,
            costs,
            max_ports,
            seed,
        )
    }

    /// Creates a world like [`Self::new`], but configures the workers with `config`.
    #[must_use]
    pub fn with_config(
        config: &WorldConfig,
        rate: TscRate,
        costs: Costs,
        max_ports: usize,
        seed: u64,
    ) -> Self {
        Self {
            cores: Cores::new(config, rate, costs, max_ports, seed),
            events: EventQueue::new(),
            vms: Vec::new(),
            policies: Vec::new(),
            domains: Vec::new(),
            seed: Rng::new(seed),
            max_ports,
            stolen: Cycles::ZERO,
        }
    }

    /// Returns the MAC address of VM number `n`.
    #[must_use]
    pub fn mac_of(n: u16) -> MacAddr {
        let [high, low] = n.to_be_bytes();
        MacAddr([0x52, 0x54, 0, 0, high, low])
    }

    /// Adds a VM with an access port in `tenant`'s untagged network. The port's rings hold `ring`
    /// frames in each direction.
    ///
    /// # Errors
    /// Returns [`WorldError::TooManyPorts`] if the world has no room for another port.
    pub fn add_vm(
        &mut self,
        tenant: u16,
        ring: usize,
        sink: SinkSpec,
    ) -> Result<PortHandle, WorldError> {
        self.add_notified(tenant, ring, sink, Notice::Poll)
    }

    /// Adds a VM like [`Self::add_vm`]. `notice` says how the VM learns of frames that the switch
    /// delivered.
    ///
    /// # Errors
    /// Returns [`WorldError::TooManyPorts`] if the world has no room for another port.
    pub fn add_notified(
        &mut self,
        tenant: u16,
        ring: usize,
        sink: SinkSpec,
        notice: Notice,
    ) -> Result<PortHandle, WorldError> {
        let id = u16::try_from(self.vms.len()).unwrap_or(u16::MAX);
        let (queue, driver) = memory_queue(ring, OffloadCaps::ALL);
        let counters = PortCounterSets::new(self.cores.all.len());
        let unit = Unit { port: PortId(id), queue: QueueId(0) };
        let home = usize::from(id) % self.cores.all.len();
        driver.connect_bell(self.cores.all[home].worker.doorbell(), bell_of(unit));
        let overheads = self.cores.costs.overheads;
        let counter = self.cores.all[home].counter.clone();
        let pair = notice.pair(queue, counter, overheads);
        if !self.cores.attach(unit, 1, home, pair, &counters) {
            return Err(WorldError::TooManyPorts(self.vms.len() + 1, self.max_ports));
        }
        let domain = self.domains.iter().position(|d| d.tenant == Some(tenant));
        let domain = domain.unwrap_or_else(|| {
            let tenant = Some(tenant);
            self.domains.push(Domain { tenant, vid: 0, members: Box::new([]), fdb_limit: 1024 });
            self.domains.len() - 1
        });
        let mut members = self.domains[domain].members.to_vec();
        members.push(id);
        self.domains[domain].members = members.into_boxed_slice();
        let domain = u16::try_from(domain).unwrap_or(u16::MAX);
        let policy = PortPolicy::access(id, Some(tenant), Vid::UNTAGGED, domain).finish();
        self.policies.push(Some(Arc::new(policy)));
        let (mac, received) = (Self::mac_of(id), SinkStats::default());
        let last_sequence = vec![0; self.max_ports];
        let (source, arrivals) = (None, None);
        self.vms.push(Vm {
            mac,
            driver,
            counters,
            source,
            sink,
            received,
            last_sequence,
            arrivals,
        });
        self.swap();
        if let Some(rate) = sink.frames_per_second {
            let gap = Nanos(1_000_000_000 / rate.max(1));
            self.events.post(self.now() + gap, Event::Drain(id));
        }
        Ok(PortHandle(id))
    }

    /// Starts the traffic that a VM sends.
    pub fn set_source(&mut self, vm: PortHandle, spec: SourceSpec) {
        self.events.post(spec.due(0), Event::Send(vm.0));
        let rng = self.seed.fork(u64::from(vm.0));
        self.vms[usize::from(vm.0)].source = Some((spec, SourceStats::default(), rng));
    }

    /// Makes a VM send one frame to an unused address, so that the switch learns the VM's port.
    pub fn introduce(&mut self, vm: PortHandle) {
        let mac = self.vms[usize::from(vm.0)].mac;
        let frame = udp_frame(mac, Self::mac_of(u16::MAX), 60, 0, 0);
        self.vms[usize::from(vm.0)].driver.send(MemoryFrame::plain(frame));
        self.cores.stir();
    }

    /// Puts a frame into a VM's transmit ring at once. Returns false if the ring is full.
    pub fn offer(&mut self, vm: PortHandle, frame: MemoryFrame) -> bool {
        let taken = self.vms[usize::from(vm.0)].driver.send(frame);
        self.cores.stir();
        taken
    }

    /// Records the frames that a VM receives from now on, for [`Self::take_arrivals`].
    pub fn record(&mut self, vm: PortHandle) {
        self.vms[usize::from(vm.0)].arrivals = Some(Vec::new());
    }

    /// Returns the frames that a VM received since the last call, in order. Returns no frames if
    /// the VM's frames are not recorded ([`Self::record`]).
    pub fn take_arrivals(&mut self, vm: PortHandle) -> Vec<Arrival> {
        self.vms[usize::from(vm.0)].arrivals.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Sets a VM's purchased cycles and latency class.
    pub fn set_qos(&mut self, vm: PortHandle, qos: PortQos) {
        if let Some(policy) = &mut self.policies[usize::from(vm.0)] {
            let policy = Arc::make_mut(policy);
            policy.qos = qos;
        }
        self.swap();
    }

    /// Changes the policy of a VM's port.
    pub fn set_policy(&mut self, vm: PortHandle, change: impl FnOnce(&mut PortPolicy)) {
        if let Some(policy) = &mut self.policies[usize::from(vm.0)] {
            change(Arc::make_mut(policy));
        }
        self.swap();
    }

    /// Returns the tokens (in cycles) of a VM's bucket, summed over all workers.
    #[must_use]
    pub fn tokens(&self, vm: PortHandle) -> i64 {
        self.cores.tokens(PortId(vm.0))
    }

    fn swap(&mut self) {
        self.cores.swap(self.policies.clone(), self.domains.clone(), 300);
    }

    /// Returns the time on the core with the lowest counter.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.cores.now()
    }

    /// Runs the simulated world until the time `end`.
    pub fn run_until(&mut self, end: Nanos) {
        let end_cycles = self.cores.first_at(end);
        loop {
            let at = self.cores.behind();
            // Only events need the time in nanoseconds.
            if self.events.next_at().is_some() {
                let now = self.now();
                while let Some((at, event)) = self.events.pop_due(now) {
                    self.act(at, event);
                    self.cores.stir();
                }
            }
            if self.cores.all[at].counter.now() >= end_cycles {
                return;
            }
            let turn = self.cores.all[at].worker.turn();
            self.drain_fast_sinks();
            if turn == Turn::Idle {
                self.cores.all[at].idle = true;
                self.skip_idle(at, end);
            } else {
                self.cores.stir();
            }
        }
    }

    /// Lets another program take all cores for a time, between two turns. On a host, the worker
    /// learns of the stolen time from the kernel, so the counters are those of [`Self::worker`].
    pub fn steal(&mut self, time: Nanos) {
        let taken = self.cores.rate.to_cycles(time);
        for core in &mut self.cores.all {
            let now = core.counter.now();
            core.jump(Cycles(now.0 + taken.0));
        }
        self.stolen = Cycles(self.stolen.0 + taken.0 * self.cores.all.len() as u64);
        self.cores.stir();
    }

    /// Advances the idle core `at` to the time at which the core may find a frame.
    fn skip_idle(&mut self, at: usize, end: Nanos) {
        // A busy core may send a frame to this core at any time, so the time must not exceed that
        // of a busy core.
        let cores = &mut self.cores.all;
        let busy = cores.iter().filter(|core| !core.idle).map(|core| core.counter.now()).min();
        if let Some(busy) = busy {
            cores[at].jump(Cycles(busy.0 + 1));
            return;
        }
        // No state changes before the next event, so the time advances to the event or to the end.
        let next = self.events.next_at().unwrap_or(end).min(end);
        // Rounding must not result in a time that is a nanosecond too early.
        let rate = self.cores.rate;
        let to = Cycles(rate.to_cycles(next).0.saturating_add(rate.hz() / 1_000_000_000 + 1));
        // After a refill, a port may have cycles to send.
        let refill = cores.iter().filter_map(|core| core.worker.next_due()).min();
        let to = refill.map_or(to, |refill| refill.min(to));
        cores.iter_mut().for_each(|core| core.jump(to));
    }

    fn act(&mut self, at: Nanos, event: Event) {
        match event {
            Event::Send(id) => self.send(id),
            Event::Drain(id) => {
                self.receive(id, &mut None);
                if let Some(rate) = self.vms[usize::from(id)].sink.frames_per_second {
                    self.events.post(at + Nanos(1_000_000_000 / rate.max(1)), Event::Drain(id));
                }
            }
        }
    }

    fn send(&mut self, id: u16) {
        let vm = &mut self.vms[usize::from(id)];
        let Some((spec, stats, rng)) = &mut vm.source else { return };
        let size = spec.size(rng.below(spec.weights()));
        let flow = u16::try_from(stats.made % u64::from(spec.flows.max(1))).unwrap_or(0);
        stats.made += 1;
        if rng.chance_ppm(spec.loss_ppm) {
            stats.lost += 1;
        } else {
            let frame = udp_frame(vm.mac, spec.target, size, flow, stats.made);
            if vm.driver.send(MemoryFrame::plain(frame)) {
                stats.sent += 1;
            } else {
                stats.refused += 1;
            }
        }
        let next = spec.due(stats.made);
        if next < spec.until {
            self.events.post(next, Event::Send(id));
        }
    }

    fn drain_fast_sinks(&mut self) {
        let mut now = None;
        for id in 0..u16::try_from(self.vms.len()).unwrap_or(u16::MAX) {
            if self.vms[usize::from(id)].sink.frames_per_second.is_none() {
                while self.receive(id, &mut now) {}
            }
        }
    }

    /// Lets a VM receive a frame. Returns false if no frame waits. `now` has the present time if it
    /// is known.
    fn receive(&mut self, id: u16, now: &mut Option<Nanos>) -> bool {
        let vm = &mut self.vms[usize::from(id)];
        let Some(frame) = vm.driver.receive() else { return false };
        vm.received.frames += 1;
        vm.received.bytes += frame.bytes.len() as u64;
        if let Some(arrivals) = &mut vm.arrivals {
            let now = *now.get_or_insert_with(|| self.cores.now());
            arrivals.push(Arrival::of(&frame, now));
        }
        if let (Some(sequence), Some(sender)) = (frame.bytes.get(42..50), frame.bytes.get(10..12)) {
            let sender = usize::from(u16::from_be_bytes([sender[0], sender[1]]));
            let mut number = [0; 8];
            number.copy_from_slice(sequence);
            let number = u64::from_be_bytes(number);
            if let Some(last) = vm.last_sequence.get_mut(sender) {
                vm.received.reordered += u64::from(number <= *last);
                *last = number;
            }
        }
        true
    }

    /// Returns the counters of the traffic that a VM sent.
    #[must_use]
    pub fn sent(&self, vm: PortHandle) -> SourceStats {
        self.vms[usize::from(vm.0)].source.as_ref().map(|s| s.1).unwrap_or_default()
    }

    /// Returns the counters of the traffic that a VM received.
    #[must_use]
    pub fn received(&self, vm: PortHandle) -> SinkStats {
        self.vms[usize::from(vm.0)].received
    }

    /// Returns the number of frames in a VM's transmit ring.
    #[must_use]
    pub fn unsent(&self, vm: PortHandle) -> usize {
        self.vms[usize::from(vm.0)].driver.unsent()
    }

    #[must_use]
    pub fn port(&self, vm: PortHandle) -> PortReading {
        self.vms[usize::from(vm.0)].counters.read()
    }

    /// Returns the cycles that passed on all cores together.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cores.all.iter().map(|core| core.counter.now().0).sum()
    }

    /// Returns the sums of the counters of all workers.
    #[must_use]
    pub fn worker(&self) -> WorkerReading {
        let mut sum = WorkerReading::default();
        self.cores.all.iter().for_each(|core| sum.merge(&core.worker.counters().read()));
        // The worker counts time between two turns as idle.
        sum.cycles_idle -= self.stolen.0;
        sum.cycles_stolen += self.stolen.0;
        sum
    }
}
