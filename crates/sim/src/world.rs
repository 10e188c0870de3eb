//! A switch, its VMs and their traffic on one virtual clock.

use std::sync::Arc;

use penstock_dataplane::classify::{Domain, PortPolicy, Snapshot};
use penstock_dataplane::counters::{PortCounters, PortReading, WorkerReading};
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::schedule::{ScheduleKind, Unit};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig, bell_of};
use penstock_units::{Cycles, MacAddr, Nanos, PortId, QueueId, TscRate, Vid, WorkerId};

use crate::cost::{CostTable, SimCounter};
use crate::events::EventQueue;
use crate::frames::udp_frame;
use crate::rng::Rng;
use crate::sink::{SinkSpec, SinkStats};
use crate::source::{SourceSpec, SourceStats};

/// A VM of the world, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortHandle(u16);

/// The world cannot be built so.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// More ports than the worker was made for.
    #[error("{0} ports; the world was made for {1}")]
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
    counters: Arc<PortCounters>,
    source: Option<(SourceSpec, SourceStats, Rng)>,
    sink: SinkSpec,
    received: SinkStats,
    last_sequence: Vec<u64>,
}

/// See the module's text.
#[derive(Debug)]
pub struct World {
    worker: Worker<SimCounter>,
    counter: SimCounter,
    rate: TscRate,
    events: EventQueue<Event>,
    vms: Vec<Vm>,
    policies: Vec<Option<Arc<PortPolicy>>>,
    domains: Vec<Domain>,
    generation: u64,
    seed: Rng,
    max_ports: usize,
}

impl World {
    /// A core of `rate` cycles per second with the given costs, for up to `max_ports` ports.
    #[must_use]
    pub fn new(rate: TscRate, costs: CostTable, max_ports: usize, seed: u64) -> Self {
        let counter = SimCounter::new(costs);
        let config = WorkerConfig {
            id: WorkerId(0),
            core: None,
            idle_backoff: Nanos::ZERO,
            schedule: ScheduleKind::RoundRobin,
            fdb_entries: 8192,
            seed,
            tsc: rate,
            max_ports,
        };
        Self {
            worker: Worker::new(&config, counter.clone(), None),
            counter,
            rate,
            events: EventQueue::new(),
            vms: Vec::new(),
            policies: Vec::new(),
            domains: Vec::new(),
            generation: 0,
            seed: Rng::new(seed),
            max_ports,
        }
    }

    /// The address of VM number `n`.
    #[must_use]
    pub fn mac_of(n: u16) -> MacAddr {
        let [high, low] = n.to_be_bytes();
        MacAddr([0x52, 0x54, 0, 0, high, low])
    }

    /// Adds a VM with an access port in `tenant`'s untagged network; its ring holds `ring` frames
    /// each way.
    ///
    /// # Errors
    /// [`WorldError::TooManyPorts`].
    pub fn add_vm(
        &mut self,
        tenant: u16,
        ring: usize,
        sink: SinkSpec,
    ) -> Result<PortHandle, WorldError> {
        let id = u16::try_from(self.vms.len()).unwrap_or(u16::MAX);
        let (queue, driver) = memory_queue(ring, OffloadCaps::ALL);
        let counters = Arc::new(PortCounters::default());
        let port = PortId(id);
        driver.connect_bell(self.worker.doorbell(), bell_of(Unit { port, queue: QueueId(0) }));
        self.worker
            .attach(port, vec![Box::new(queue)], Arc::clone(&counters))
            .map_err(|_| WorldError::TooManyPorts(self.vms.len() + 1, self.max_ports))?;
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
        self.vms.push(Vm { mac, driver, counters, source: None, sink, received, last_sequence });
        self.swap();
        if let Some(rate) = sink.frames_per_second {
            let gap = Nanos(1_000_000_000 / rate.max(1));
            self.events.post(self.now() + gap, Event::Drain(id));
        }
        Ok(PortHandle(id))
    }

    /// Lets a VM send.
    pub fn set_source(&mut self, vm: PortHandle, spec: SourceSpec) {
        self.events.post(spec.due(0), Event::Send(vm.0));
        let rng = self.seed.fork(u64::from(vm.0));
        self.vms[usize::from(vm.0)].source = Some((spec, SourceStats::default(), rng));
    }

    fn swap(&mut self) {
        self.generation += 1;
        let (policies, domains) = (self.policies.clone(), self.domains.clone());
        let snapshot = Snapshot::new(self.generation, policies, domains, Vec::new(), 300);
        drop(self.worker.swap_snapshot(Arc::new(snapshot)));
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.rate.to_nanos(self.counter.now())
    }

    /// Lets the world go on until `end`.
    pub fn run_until(&mut self, end: Nanos) {
        loop {
            let now = self.now();
            while let Some((at, event)) = self.events.pop_due(now) {
                self.act(at, event);
            }
            if now >= end {
                return;
            }
            let turn = self.worker.turn();
            self.drain_fast_sinks();
            if turn == Turn::Idle {
                // Nothing changes before the next event: jump there, or to the end.
                let next = self.events.next_at().unwrap_or(end).min(end);
                // The counter's rounding must not leave us a nanosecond short of it.
                let cycles = self.rate.to_cycles(next);
                self.counter.advance_to(Cycles(
                    cycles.0.saturating_add(self.rate.hz() / 1_000_000_000 + 1),
                ));
            }
        }
    }

    fn act(&mut self, at: Nanos, event: Event) {
        match event {
            Event::Send(id) => self.send(id),
            Event::Drain(id) => {
                self.receive(id);
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
        for id in 0..u16::try_from(self.vms.len()).unwrap_or(u16::MAX) {
            if self.vms[usize::from(id)].sink.frames_per_second.is_none() {
                while self.receive(id) {}
            }
        }
    }

    fn receive(&mut self, id: u16) -> bool {
        let vm = &mut self.vms[usize::from(id)];
        let Some(frame) = vm.driver.receive() else { return false };
        vm.received.frames += 1;
        vm.received.bytes += frame.bytes.len() as u64;
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

    /// What a VM's source made.
    #[must_use]
    pub fn sent(&self, vm: PortHandle) -> SourceStats {
        self.vms[usize::from(vm.0)].source.as_ref().map(|s| s.1).unwrap_or_default()
    }

    /// What a VM received.
    #[must_use]
    pub fn received(&self, vm: PortHandle) -> SinkStats {
        self.vms[usize::from(vm.0)].received
    }

    /// Frames in a VM's transmit ring.
    #[must_use]
    pub fn unsent(&self, vm: PortHandle) -> usize {
        self.vms[usize::from(vm.0)].driver.unsent()
    }

    /// A port's counters.
    #[must_use]
    pub fn port(&self, vm: PortHandle) -> PortReading {
        self.vms[usize::from(vm.0)].counters.read()
    }

    /// The worker's counters.
    #[must_use]
    pub fn worker(&self) -> WorkerReading {
        self.worker.counters().read()
    }
}
