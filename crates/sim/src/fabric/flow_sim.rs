//! The flow-level simulator, which advances time and runs connections and their flows.
//!
//! # Problem
//!
//! Ten tenants on a link of 1 Gbit/s send a hundred million packets in some minutes, but only a
//! hundred thousand flows.
//!
//! # Approach
//!
//! Between two events every flow has a constant rate, which [`Rates`] computes. An event is the
//! completion or request of a flow, a change of limits, a change that the controller made to a port
//! or a host ([`super::control`]), or a sample. At each event the simulator first adds the bits
//! that were transferred since the last event. Afterwards the simulator recomputes the rates of all
//! flows.
//!
//! All flows between two VMs have the same path, queue and limit, and therefore the same rate. All
//! flows of a pair of VMs are simulated as one stream, because their rates are equal. For each pair
//! of VMs, one number counts the bits that each flow of the pair has received since the pair became
//! active.
//!
//! Each connection has its own random number generator, so every compared system gets the same
//! flows in the same order. Runs with the same seed are identical.
//!
//! # Limits
//!
//! The simulator has no packets, and therefore no queuing delay. A flow has its full rate from the
//! first bit, unless the simulation has windows of TCP ([`FlowSim::with_ramp`]). Tests compare the
//! rates with [`super::packets`], which simulates the packets of one bottleneck.

use std::collections::VecDeque;

use penstock_units::{BitsPerSecond, Nanos};

use super::active::ActivePair;
use super::client::Client;
use super::control::{Change, HostUsage, QueueControl, Terms, Timeline, queues};
use super::kept::Kept;
use super::link_share::Queue;
use super::pair_limits::{Ends, Limits, secs};
use super::ramp::{Ramp, Windows};
use super::rates::{LinkId, Rates, StreamId};
use super::record::{FlowRecord, Record, Sample};
use super::spec::{Connection, HostNo, Spec, SpecError, TenantNo, VmNo};
use super::system::System;
use crate::{EventQueue, Rng};

/// Events of the simulation at the same time happen in the order of their posting
/// ([`EventQueue`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask(usize),
    Rates,
    Divide,
    Control,
    Change,
    Round,
    Sample,
}

/// A sending and a receiving VM of a tenant, with the flows between the two VMs.
#[derive(Clone, Debug)]
struct Pair {
    tenant: TenantNo,
    vms: [VmNo; 2],
    stream: StreamId,
    /// Stream of lower priority between the pair's VMs, which exists only for Trinity.
    low: Option<StreamId>,
    entitled: Option<StreamId>,
    /// Code point with which the sending VM's host marks frames. 0 selects the shared queue.
    dscp: u8,
    /// Bit n is set if the pair's path includes the watched link number n.
    watched: u32,
    /// For each flow: the value of [`ActivePair::served`] at which the flow is complete, and the
    /// index of its connection.
    flows: Vec<(f64, usize)>,
    /// Number of bits that the pair of VMs has sent so far. While the pair has flows, the number is
    /// [`ActivePair::bits`]. The field `sampled` is the number of bits sent until the last sample,
    /// and `measured` the number of bits sent until the end of the last control interval.
    bits: f64,
    sampled: f64,
    measured: f64,
    entitled_bits: f64,
    /// Index of the pair in [`FlowSim::active`], or `usize::MAX` if the pair has no flows.
    place: usize,
}

/// A running simulation of a network at the level of flows.
#[derive(Debug)]
pub struct FlowSim {
    spec: Spec,
    system: System,
    now: Nanos,
    events: EventQueue<Event>,
    rates: Rates,
    entitled: Option<Rates>,
    pairs: Vec<Pair>,
    /// For each tenant: the index of its first pair of VMs, and its number of VMs.
    pair_of: Vec<(usize, usize)>,
    vm_base: Vec<usize>,
    /// All pairs of VMs that have flows.
    active: Vec<ActivePair>,
    /// Pairs with complete flows, which is empty between events.
    whole: Vec<u32>,
    clients: Vec<Client>,
    limits: Option<Limits>,
    windows: Option<Windows>,
    /// Changes of ports and hosts that the controller has decided, in the order of their events.
    to_come: VecDeque<Change>,
    /// Only with QShare, if the controller's limits apply in the shared queue.
    kept: Option<Kept>,
    last_control: Nanos,
    settled: u64,
    record: Record,
}

impl FlowSim {
    /// Creates a simulation of `spec` with `system`.
    ///
    /// # Errors
    /// Returns an error if the specification is invalid.
    pub fn new(spec: Spec, system: System) -> Result<Self, SpecError> {
        spec.check()?;
        let mut vm_base = Vec::new();
        let mut vms = 0;
        for tenant in &spec.tenants {
            vm_base.push(vms);
            vms += tenant.vms.len();
        }
        let seed = Rng::new(spec.seed);
        let client = |number: u64| Client::new(seed.fork(number));
        let clients: Vec<_> = (0..).take(spec.connections.len()).map(client).collect();
        let mut sim = Self {
            now: Nanos(0),
            events: EventQueue::new(),
            rates: Rates::new(&capacities(&spec, &system, vms)),
            entitled: None,
            pairs: Vec::new(),
            pair_of: Vec::new(),
            vm_base,
            active: Vec::new(),
            whole: Vec::new(),
            clients,
            limits: None,
            windows: None,
            to_come: VecDeque::new(),
            kept: None,
            last_control: Nanos(0),
            settled: 0,
            record: Record::default(),
            spec,
            system,
        };
        sim.add_pairs();
        sim.start(vms);
        Ok(sim)
    }

    /// Makes the simulation also compute the entitlements of tenants: the rates of their flows if
    /// only the hose guarantees limited the flows.
    #[must_use]
    pub fn with_entitlements(mut self) -> Self {
        let vms: usize = self.spec.tenants.iter().map(|t| t.vms.len()).sum();
        let hoses = hoses(&self.spec, vms);
        let mut rates = Rates::new(&hoses);
        for pair in &mut self.pairs {
            let path = hose_path(0, self.vm_base[pair.tenant], pair.vms);
            pair.entitled = Some(rates.add(0, &path));
        }
        for active in &mut self.active {
            active.entitled = self.pairs[active.pair as usize].entitled;
        }
        self.entitled = Some(rates);
        self
    }

    /// Limits flows by windows of TCP, which grow from a small size and halve after losses. The
    /// present flows start again with their initial windows.
    #[must_use]
    pub fn with_ramp(mut self, ramp: Ramp) -> Self {
        self.events.post(self.now + ramp.rtt, Event::Round);
        let mut windows = Windows::new(ramp, self.pairs.len());
        for active in &self.active {
            let number = active.pair as usize;
            (0..self.pairs[number].flows.len()).for_each(|n| windows.joined(number, count(n)));
        }
        self.windows = Some(windows);
        self.set_all_streams();
        self
    }

    /// Returns a copy of the simulation, which continues on its own. `change` may change the sizes
    /// and the number of the flows that connections of the copy request from now on. Returns `None`
    /// if the simulation has a controller, which cannot be copied.
    #[must_use]
    pub fn fork(&self, change: impl FnMut(&mut Connection)) -> Option<Self> {
        let mut spec = self.spec.clone();
        spec.connections.iter_mut().for_each(change);
        Some(Self {
            spec,
            system: self.system.copied()?,
            now: self.now,
            events: self.events.clone(),
            rates: self.rates.clone(),
            entitled: self.entitled.clone(),
            pairs: self.pairs.clone(),
            pair_of: self.pair_of.clone(),
            vm_base: self.vm_base.clone(),
            active: self.active.clone(),
            whole: Vec::new(),
            clients: self.clients.clone(),
            limits: self.limits.clone(),
            windows: self.windows.clone(),
            to_come: self.to_come.clone(),
            kept: self.kept.clone(),
            last_control: self.last_control,
            settled: self.settled,
            record: self.record.clone(),
        })
    }

    fn add_pairs(&mut self) {
        let links = self.spec.network.links.len();
        for (tenant, spec) in self.spec.tenants.iter().enumerate() {
            self.pair_of.push((self.pairs.len(), spec.vms.len()));
            for from in 0..spec.vms.len() {
                for to in 0..spec.vms.len() {
                    let hosts = &self.spec.network.paths[spec.vms[from]];
                    let mut path = hosts[spec.vms[to]].clone();
                    let on = |(bit, link): (u32, &LinkId)| u32::from(path.contains(link)) << bit;
                    let watched = (0..).zip(&self.spec.watched).map(on).sum();
                    if self.system.has_hoses() {
                        path.extend(hose_path(links, self.vm_base[tenant], [from, to]));
                    }
                    let trinity = matches!(self.system, System::Trinity(_));
                    let stream = self.rates.add(0, &path);
                    let low = trinity.then(|| self.rates.add(1, &path));
                    self.pairs.push(Pair::new(tenant, [from, to], (stream, low), watched));
                }
            }
        }
    }

    fn start(&mut self, vms: usize) {
        for (number, connection) in self.spec.connections.iter().enumerate() {
            self.events.post(connection.from + connection.latency, Event::Ask(number));
        }
        self.events.post(self.spec.sample, Event::Sample);
        let mut state = Vec::new();
        let limits = match &mut self.system {
            System::ElasticSwitch(limits) | System::Trinity(limits) => Some(*limits),
            System::QShare(control) => {
                state = control.controller.start();
                self.events.post(control.interval, Event::Control);
                self.kept = control.shared.is_none().then(|| Kept::new(&self.spec));
                control.shared
            }
            System::PlainTcp | System::StaticReservation => None,
        };
        if let Some(limits) = limits {
            self.events.post(limits.rates.period, Event::Rates);
            self.events.post(limits.partition, Event::Divide);
            self.limits = Some(Limits::new(limits, self.pairs.len(), vms));
        }
        if matches!(self.system, System::Trinity(_)) {
            let queue = |priority| Queue { priority, weight: 1.0 };
            for link in 0..self.spec.network.links.len() {
                let queues = vec![queue(0), queue(1)];
                self.rates.set_queues(link_id(link), queues, vec![0, 1]);
            }
        }
        state.into_iter().for_each(|change| self.change(change));
        self.note_kept();
    }

    pub fn run_until(&mut self, end: Nanos) {
        while self.now < end {
            self.step(end);
        }
    }

    /// Returns the results of the simulation so far.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Returns how many times rates had to be reduced to fit a link ([`Rates::cut`]), and how many
    /// times rates were computed.
    #[must_use]
    pub const fn cuts(&self) -> (u64, u64) {
        (self.rates.cut(), self.settled)
    }

    fn step(&mut self, end: Nanos) {
        let finish = self.settle();
        let next = self.events.next_at().unwrap_or(end).min(finish).min(end);
        let seconds = secs(next) - secs(self.now);
        self.now = next;
        self.account(seconds);
        while let Some((_, event)) = self.events.pop_due(self.now) {
            self.happens(event);
        }
    }

    /// Computes the rates of all pairs. Returns the time at which the next flow will be complete.
    fn settle(&mut self) -> Nanos {
        self.rates.settle();
        self.settled += 1;
        let mut first = f64::INFINITY;
        for active in &mut self.active {
            first = first.min(active.set_rate(&self.rates));
        }
        if let Some(rates) = &mut self.entitled {
            rates.settle();
            for active in &mut self.active {
                active.entitled_rate = active.entitled.map_or(0.0, |stream| rates.rate(stream));
            }
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let wait = (first * 1e9).ceil() as u64;
        self.now + Nanos(wait.max(1))
    }

    /// Adds the bits that flows transfer in `seconds` at the current rates, and completes flows.
    fn account(&mut self, seconds: f64) {
        let mut whole = std::mem::take(&mut self.whole);
        for active in &mut self.active {
            if active.pass(seconds) {
                whole.push(active.pair);
            }
            let has_refused = active.is_limited && active.refused > 0.0;
            if let Some(limits) = self.limits.as_mut().filter(|_| has_refused) {
                limits.refused(active.pair, active.refused, seconds);
            }
        }
        for number in whole.drain(..) {
            self.flows_whole(number as usize);
        }
        self.whole = whole;
    }

    fn flows_whole(&mut self, number: usize) {
        let place = self.pairs[number].place;
        let (served, slack) = (self.active[place].served, self.active[place].slack());
        let mut at = 0;
        while let Some((end, client)) = self.pairs[number].flows.get(at).copied() {
            if end - served > slack {
                at += 1;
                continue;
            }
            self.pairs[number].flows.swap_remove(at);
            self.flow_done(number, client);
        }
        let ends = self.pairs[number].flows.iter().map(|flow| flow.0);
        self.active[place].next = ends.fold(f64::INFINITY, f64::min);
        self.flows_changed(number);
    }

    fn flow_done(&mut self, number: usize, client: usize) {
        let pair = &self.pairs[number];
        let connection = &self.spec.connections[client];
        let at = &mut self.clients[client];
        self.record.flows.push(FlowRecord {
            tenant: pair.tenant,
            far: pair.watched != 0,
            bytes: at.bytes,
            asked: at.asked,
            done: self.now,
        });
        at.done += 1;
        let sleeps = at.rng.chance_ppm(connection.pause_ppm);
        let pause = if sleeps { at.rng.below(connection.pause_max.0) } else { 0 };
        let again = self.now + Nanos(pause) + connection.latency;
        if at.done < connection.flows_max && again < connection.until {
            self.events.post(again, Event::Ask(client));
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Ask(client) => self.ask(client),
            Event::Rates => {
                let Some(limits) = &mut self.limits else { return };
                limits.period_ends(self.now);
                self.events.post(self.now + limits.settings().rates.period, event);
                self.limits_changed();
            }
            Event::Divide => {
                self.copy_counters();
                let Some(limits) = &mut self.limits else { return };
                let pairs = &self.pairs;
                limits.divide(self.now, |pair| pairs[pair as usize].bits);
                self.events.post(self.now + limits.settings().partition, event);
                self.limits_changed();
            }
            Event::Control => self.control(),
            Event::Change => {
                if let Some(change) = self.to_come.pop_front() {
                    self.change(change);
                    self.note_kept();
                }
            }
            Event::Round => self.round_ends(),
            Event::Sample => {
                self.sample();
                self.events.post(self.now + self.spec.sample, event);
            }
        }
    }

    fn ask(&mut self, client: usize) {
        let connection = &self.spec.connections[client];
        let at = &mut self.clients[client];
        at.asked = self.now.saturating_sub(connection.latency);
        let server = at.next_server(connection);
        let bits = match &connection.sizes {
            Some(sizes) => {
                at.bytes = sizes.draw(&mut at.rng);
                bits_of(at.bytes)
            }
            None => f64::INFINITY,
        };
        let (first, vms) = self.pair_of[connection.tenant];
        let number = first + server * vms + connection.client;
        if let Some(windows) = &mut self.windows {
            windows.joined(number, count(self.pairs[number].flows.len()));
        }
        let place = self.activate(number);
        let active = &mut self.active[place];
        let end = active.served + bits;
        active.next = active.next.min(end);
        self.pairs[number].flows.push((end, client));
        self.flows_changed(number);
    }

    /// Adds a pair to the list of pairs with flows, unless the list has the pair. Returns the
    /// pair's place in the list.
    fn activate(&mut self, number: usize) -> usize {
        let ends = self.ends(number);
        let pair = &mut self.pairs[number];
        if pair.place == usize::MAX {
            pair.place = self.active.len();
            let Pair { low, entitled, .. } = *pair;
            let mut active =
                ActivePair::new(ends.pair, pair.stream, [pair.bits, pair.entitled_bits]);
            if let Some(limits) = self.limits.as_mut().filter(|_| pair.dscp == 0) {
                limits.begins(ends, pair.bits);
                active.is_limited = true;
            }
            self.active.push(ActivePair { low, entitled, ..active });
        }
        pair.place
    }

    /// Updates the simulation after a change in the number of flows of an active pair.
    fn flows_changed(&mut self, number: usize) {
        let pair = &mut self.pairs[number];
        if pair.flows.is_empty() {
            // The next flow begins with `served` at 0, so that `served` stays small and exact.
            let place = std::mem::replace(&mut pair.place, usize::MAX);
            let idle = self.active.swap_remove(place);
            (pair.bits, pair.entitled_bits) = (idle.bits, idle.entitled_bits);
            if let Some(moved) = self.active.get(place) {
                self.pairs[moved.pair as usize].place = place;
            }
            if let Some(limits) = &mut self.limits {
                limits.ends(low32(number), self.now);
            }
        } else {
            self.active[pair.place].flows = count(pair.flows.len());
        }
        self.set_streams(number);
    }

    /// Copies the counters of active pairs to the list of all pairs.
    fn copy_counters(&mut self) {
        for active in &self.active {
            let pair = &mut self.pairs[active.pair as usize];
            (pair.bits, pair.entitled_bits) = (active.bits, active.entitled_bits);
        }
    }

    /// Sets the number of flows and the limit of all active pairs' streams.
    fn set_all_streams(&mut self) {
        for at in 0..self.active.len() {
            let number = self.active[at].pair as usize;
            self.set_streams(number);
        }
    }

    /// Sets the number of flows and the limit of a pair's streams.
    fn set_streams(&mut self, number: usize) {
        let pair = &self.pairs[number];
        let flows = count(pair.flows.len());
        let window = self.windows.as_ref().map_or(f64::INFINITY, |w| w.per_flow(number));
        let paced =
            |flow: &(f64, usize)| self.spec.connections[flow.1].paced.map_or(window, bits_per_sec);
        let wanted: f64 = pair.flows.iter().map(paced).sum();
        let any = (f64::INFINITY, f64::INFINITY);
        let (guarantee, rate) = self.limits.as_ref().map_or(any, |l| l.of(low32(number)));
        let (guarantee, rate) = (guarantee.min(wanted), rate.min(wanted));
        match pair.low {
            Some(low) => {
                self.rates.set(pair.stream, flows, guarantee);
                let above = if rate.is_finite() { rate - guarantee } else { rate };
                self.rates.set(low, flows, above);
            }
            None => self.rates.set(pair.stream, flows, rate),
        }
        if let (Some(rates), Some(stream)) = (&mut self.entitled, pair.entitled) {
            rates.set(stream, flows, wanted);
        }
    }

    /// Ends a round trip of all flows, after which windows change.
    fn round_ends(&mut self) {
        let Self { windows: Some(windows), active, .. } = self else { return };
        for active in &*active {
            windows.round_ends(active.pair as usize, active.per_flow);
        }
        let next = self.now + windows.rtt();
        self.events.post(next, Event::Round);
        self.set_all_streams();
    }

    fn limits_changed(&mut self) {
        let Some(limits) = &self.limits else { return };
        let pairs: Vec<u32> = limits.pairs().collect();
        for pair in pairs {
            if !self.pairs[pair as usize].flows.is_empty() {
                self.set_streams(pair as usize);
            }
        }
    }

    fn ends(&self, number: usize) -> Ends {
        let pair = &self.pairs[number];
        let vm = |vm: VmNo| low32(self.vm_base[pair.tenant] + vm);
        let hose = self.spec.tenants[pair.tenant].hose;
        Ends { pair: low32(number), vms: pair.vms.map(vm), hose }
    }

    /// Ends a control interval: measures the usage, decides about queues, and schedules the changes
    /// of ports and hosts that carry out the decision.
    fn control(&mut self) {
        let usage = self.usage();
        let System::QShare(QueueControl { interval, controller, .. }) = &mut self.system else {
            return;
        };
        let Timeline { changes, end } = controller.interval(self.now, &usage);
        for (at, change) in changes {
            self.events.post(at.max(self.now), Event::Change);
            self.to_come.push_back(change);
        }
        self.events.post((self.now + *interval).max(end), Event::Control);
    }

    /// Returns each host's measurements of each tenant since the end of the last control interval.
    fn usage(&mut self) -> Vec<Vec<HostUsage>> {
        self.copy_counters();
        let seconds = secs(self.now) - secs(self.last_control);
        self.last_control = self.now;
        let hosts = self.spec.network.paths.len();
        let mut bits = vec![vec![[0.0_f64; 2]; hosts]; self.spec.tenants.len()];
        for pair in &mut self.pairs {
            let sent = pair.bits - std::mem::replace(&mut pair.measured, pair.bits);
            for (side, vm) in pair.vms.into_iter().enumerate() {
                bits[pair.tenant][self.spec.tenants[pair.tenant].vms[vm]][side] += sent;
            }
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
        let rate = |bits: f64| BitsPerSecond((bits / seconds).round() as u64);
        let of = |tenant: Vec<[f64; 2]>| {
            let of = |(host, [sent, received]): (usize, [f64; 2])| HostUsage {
                host,
                sent: rate(sent),
                received: rate(received),
            };
            tenant.into_iter().enumerate().map(of).collect()
        };
        bits.into_iter().map(of).collect()
    }

    /// Applies a change that the controller made to a port or a host.
    fn change(&mut self, change: Change) {
        match change {
            Change::Port { link, weights, map } => {
                let (queues, queue_of) = queues(&weights, &map);
                if let Some(kept) = &mut self.kept {
                    kept.port(link, &queues, &queue_of);
                }
                self.rates.set_queues(link, queues, queue_of);
            }
            Change::Host { host, terms } => {
                for (tenant, terms) in terms {
                    self.set_terms(host, tenant, terms);
                }
                self.limit_pairs();
            }
        }
    }

    /// Sets the code point and the limits of a tenant's VMs on a host.
    fn set_terms(&mut self, host: HostNo, tenant: TenantNo, terms: Terms) {
        if let Some(kept) = &mut self.kept {
            kept.host(host, tenant, terms);
        }
        let spec = &self.spec.tenants[tenant];
        // Rate allocation replaces the limit of a tenant in the shared queue.
        let limit = terms.limit_permille.filter(|_| self.limits.is_none() || terms.dscp != 0);
        let capacity = limit.map_or(f64::INFINITY, |permille| {
            bits_per_sec(spec.hose) * f64::from(permille) / 1_000.0
        });
        let links = self.spec.network.links.len();
        let (first, vms) = self.pair_of[tenant];
        for (vm, _) in spec.vms.iter().enumerate().filter(|(_, at)| **at == host) {
            for link in hose_path(links, self.vm_base[tenant], [vm, vm]) {
                self.rates.set_capacity(link, capacity);
            }
            for pair in &mut self.pairs[first + vm * vms..][..vms] {
                pair.dscp = terms.dscp;
                self.rates.set_class(pair.stream, usize::from(terms.dscp));
            }
        }
    }

    /// Begins to limit pairs of VMs whose frames are now in the shared queue, and stops for pairs
    /// whose frames are not.
    fn limit_pairs(&mut self) {
        self.copy_counters();
        let Self { limits: Some(limits), pairs, .. } = self else { return };
        limits.lift(|ends| pairs[ends.pair as usize].dscp != 0);
        for at in 0..self.active.len() {
            let number = self.active[at].pair as usize;
            let ends = self.ends(number);
            let pair = &self.pairs[number];
            self.active[at].is_limited = pair.dscp == 0;
            if let Some(limits) = self.limits.as_mut().filter(|_| pair.dscp == 0) {
                limits.begins(ends, pair.bits);
            }
            self.set_streams(number);
        }
    }

    /// Records the least share of a guarantee that the ports leave now.
    fn note_kept(&mut self) {
        let Some(least) = self.kept.as_mut().map(Kept::least) else { return };
        let kept = &mut self.record.kept;
        match kept.last_mut().filter(|(at, _)| *at == self.now) {
            Some((_, last)) => *last = least,
            None => kept.push((self.now, least)),
        }
    }

    fn sample(&mut self) {
        self.copy_counters();
        self.active.iter_mut().for_each(|active| active.entitled_bits = 0.0);
        let watched = self.spec.watched.len();
        let empty = vec![0.0; self.spec.tenants.len() * watched];
        let mut sample = Sample { at: self.now, bits: empty.clone(), entitled: empty };
        for pair in &mut self.pairs {
            let sent = pair.bits - std::mem::replace(&mut pair.sampled, pair.bits);
            let entitled = std::mem::replace(&mut pair.entitled_bits, 0.0);
            for link in (0..watched).filter(|link| pair.watched >> link & 1 == 1) {
                sample.bits[pair.tenant * watched + link] += sent;
                sample.entitled[pair.tenant * watched + link] += entitled;
            }
        }
        self.record.samples.push(sample);
    }
}

impl Pair {
    fn new(
        tenant: TenantNo,
        vms: [VmNo; 2],
        (stream, low): (StreamId, Option<StreamId>),
        watched: u32,
    ) -> Self {
        Self {
            tenant,
            vms,
            stream,
            low,
            entitled: None,
            dscp: 0,
            watched,
            flows: Vec::new(),
            bits: 0.0,
            sampled: 0.0,
            measured: 0.0,
            entitled_bits: 0.0,
            place: usize::MAX,
        }
    }
}

impl System {
    /// Returns whether the simulated system can limit VMs to their guarantees.
    fn has_hoses(&self) -> bool {
        matches!(self, Self::StaticReservation | Self::QShare(_))
    }
}

/// Returns the capacities of the network's links. If the system can limit VMs to their guarantees,
/// also returns the capacities of the virtual links of [`hoses`].
fn capacities(spec: &Spec, system: &System, vms: usize) -> Vec<f64> {
    let mut links: Vec<_> = spec.network.links.iter().map(|link| bits_per_sec(*link)).collect();
    match system {
        System::StaticReservation => links.extend(hoses(spec, vms)),
        // The controller sets the limits of VMs.
        System::QShare(_) => links.extend(std::iter::repeat_n(f64::INFINITY, 2 * vms)),
        _ => {}
    }
    links
}

/// Returns two virtual links for each VM, with its sending and its receiving guarantee as capacity
/// (bits/s).
fn hoses(spec: &Spec, vms: usize) -> Vec<f64> {
    let mut hoses = Vec::with_capacity(2 * vms);
    for tenant in &spec.tenants {
        hoses.extend(std::iter::repeat_n(bits_per_sec(tenant.hose), 2 * tenant.vms.len()));
    }
    hoses
}

/// Returns the two links of [`hoses`] that a pair of VMs uses.
fn hose_path(links: usize, vm_base: usize, [from, to]: [VmNo; 2]) -> [LinkId; 2] {
    [link_id(links + 2 * (vm_base + from)), link_id(links + 2 * (vm_base + to) + 1)]
}

fn link_id(number: usize) -> LinkId {
    LinkId(low32(number))
}

fn low32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a pair has far fewer than 2^53 flows")]
fn count(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bits")]
fn bits_of(bytes: u64) -> f64 {
    bytes as f64 * 8.0
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
fn bits_per_sec(rate: BitsPerSecond) -> f64 {
    rate.0 as f64
}
