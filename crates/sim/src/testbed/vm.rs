//! A VM of the testbed: its transmit ring, the traffic that fills the ring, and the reaction to
//! received frames.
//!
//! The testbed has no events for frames. The number of bulk frames in a VM's ring is computed from
//! the current time. Each marked frame has a position among the bulk frames, after the frames that
//! were in the ring when the marked frame arrived.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::{Pending, PortQueue, TxOutcome};
use penstock_dataplane::tsc::CycleCounter;
use penstock_units::{Cycles, Nanos, TscRate};

use super::frame::{Mark, Writer, read};
use super::traffic::{Flows, Pace, Probe, Requests, Traffic};
use crate::cost::SimCounter;
use penstock_units::Rng;

/// Size of a probe, sample or request frame in bytes, FCS included.
pub(super) const SMALL: usize = 64;

/// A phase of a VM's bulk traffic.
#[derive(Debug)]
struct Phase {
    from: u64,
    traffic: Traffic,
    /// Rate of the bulk traffic in frames per cycle, in units of 2^-64.
    rate: u64,
    /// Number of bulk frames that enter the ring together.
    burst: u64,
    weights: u64,
}

/// State of a VM, which the VM's port and the testbed share.
#[derive(Debug)]
pub(super) struct Vm {
    port: u16,
    rate: TscRate,
    rng: Rng,
    writer: Writer,
    ring: u64,
    phases: Vec<Phase>,
    phase: usize,
    /// Number of bulk frames that the VM generated in the current phase.
    made: u64,
    /// Number of frames that the VM put into its transmit ring. The field `taken` is the number of
    /// frames that left the ring.
    put: u64,
    taken: u64,
    /// Marked frames in the ring, each with its position, size and mark.
    marked: VecDeque<(u64, usize, Mark)>,
    /// Marked frames that will enter the ring later, each with its time, order of posting, size and
    /// mark.
    to_come: BinaryHeap<Reverse<(u64, u64, usize, Mark)>>,
    posted: u64,
    /// Time, in cycles, up to which the number of frames in the field `put` has been computed.
    at: u64,
    probe: Option<Probe>,
    requests: Option<Requests>,
    /// For each probe message: the cycle counter when the VM sent the message, and the round trip
    /// in ns.
    pub(super) round_trips: Vec<(u64, u64)>,
    /// Number of bulk frames that the VM dropped because its ring was full.
    pub(super) held_back: u64,
    /// Number of frames that the VM received.
    pub(super) received: u64,
}

impl Vm {
    pub(super) fn new(port: u16, rate: TscRate, ring: usize, rng: Rng) -> Self {
        Self {
            port,
            rate,
            rng,
            writer: Writer::new(port, 0),
            ring: ring as u64,
            phases: Vec::new(),
            phase: 0,
            made: 0,
            put: 0,
            taken: 0,
            marked: VecDeque::new(),
            to_come: BinaryHeap::new(),
            posted: 0,
            at: 0,
            probe: None,
            requests: None,
            round_trips: Vec::new(),
            held_back: 0,
            received: 0,
        }
    }

    fn cycles(&self, time: Nanos) -> u64 {
        self.rate.to_cycles(time).0
    }

    pub(super) fn send_from(&mut self, from: Nanos, traffic: Traffic) {
        let (frames, burst) = match traffic.pace {
            Pace::FramesPerSecond(frames) => (frames, 1),
            Pace::Bursts(frames, burst) => (frames, burst.max(1)),
            Pace::Off | Pace::Greedy => (0.0, 1),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a ratio")]
        #[expect(clippy::cast_precision_loss, reason = "a frequency")]
        let rate = (frames / self.rate.hz() as f64 * 2.0_f64.powi(64)) as u64;
        let weights = traffic.sizes.iter().map(|s| u64::from(s.1)).sum();
        self.phases.push(Phase { from: self.cycles(from), traffic, rate, burst, weights });
    }

    pub(super) fn probe(&mut self, probe: Probe) {
        self.probe = Some(probe);
        self.post(self.cycles(probe.from), SMALL, Mark::Probe);
    }

    pub(super) fn serve(&mut self, requests: Requests) {
        self.requests = Some(requests);
    }

    /// Schedules a marked frame that enters the VM's ring at the time `at`.
    pub(super) fn post(&mut self, at: u64, size: usize, mark: impl Fn(u64) -> Mark) {
        self.post_as(at, size, mark(at));
    }

    fn post_as(&mut self, at: u64, size: usize, mark: Mark) {
        self.to_come.push(Reverse((at.max(self.at), self.posted, size, mark)));
        self.posted += 1;
    }

    fn pace(&self) -> Pace {
        match self.phases.get(self.phase) {
            Some(phase) if phase.from <= self.at => phase.traffic.pace,
            _ => Pace::Off,
        }
    }

    /// Updates the VM's ring to the time `now`.
    fn advance(&mut self, now: u64) {
        loop {
            let next = self.phases.get(self.phase + 1).map_or(u64::MAX, |phase| phase.from);
            let come = self.to_come.peek().map_or(u64::MAX, |Reverse(first)| first.0);
            let to = next.min(come).min(now).max(self.at);
            self.add_bulk(to);
            if come <= to {
                if let Some(Reverse((_, _, size, mark))) = self.to_come.pop() {
                    self.marked.push_back((self.put, size, mark));
                    self.put += 1;
                }
            } else if next <= to {
                self.phase += 1;
                self.made = 0;
            } else {
                return;
            }
        }
    }

    /// Adds the bulk frames of the current phase up to the time `to`.
    fn add_bulk(&mut self, to: u64) {
        self.at = to;
        let Some(phase) = self.phases.get(self.phase) else { return };
        let room = self.ring.saturating_sub(self.put - self.taken);
        match phase.traffic.pace {
            Pace::Greedy if phase.from <= to => self.put += room,
            Pace::FramesPerSecond(_) | Pace::Bursts(..) if phase.from <= to => {
                let due = (u128::from(to - phase.from) * u128::from(phase.rate)) >> 64;
                let due = u64::try_from(due).unwrap_or(u64::MAX) / phase.burst * phase.burst;
                let more = due.saturating_sub(self.made);
                self.made = due;
                self.put += more.min(room);
                self.held_back += more.saturating_sub(room);
            }
            _ => {}
        }
    }

    /// Returns whether frames are in the ring at the time `now`.
    pub(super) fn waits(&mut self, now: u64) -> bool {
        if self.put == self.taken {
            self.advance(now);
        }
        self.put > self.taken
    }

    /// Returns the time at which the next frame enters the VM's ring, which must be empty.
    pub(super) fn next_at(&self) -> u64 {
        let come = self.to_come.peek().map_or(u64::MAX, |Reverse(first)| first.0);
        let next = self.phases.get(self.phase + 1).map_or(u64::MAX, |phase| phase.from);
        let bulk = match (self.pace(), self.phases.get(self.phase)) {
            (Pace::FramesPerSecond(_) | Pace::Bursts(..), Some(phase)) if phase.rate > 0 => {
                let cycles =
                    (u128::from(self.made + phase.burst) << 64).div_ceil(u128::from(phase.rate));
                phase.from.saturating_add(u64::try_from(cycles).unwrap_or(u64::MAX))
            }
            (_, Some(phase)) if phase.from > self.at => phase.from,
            _ => u64::MAX,
        };
        come.min(next).min(bulk)
    }

    fn fill(&mut self, batch: &mut Batch, now: u64) {
        self.advance(now);
        while self.taken < self.put && batch.has_room() {
            let marked = self.marked.front().map(|(place, _, _)| *place);
            if marked == Some(self.taken) {
                if self.push_marked(batch).is_none() {
                    return;
                }
                self.taken += 1;
            } else if let Some(size) = self.equal_frames() {
                let until = marked.unwrap_or(self.put).min(self.put);
                self.taken += self.writer.push_many(batch, size, until - self.taken);
            } else {
                if self.push_bulk(batch).is_none() {
                    return;
                }
                self.taken += 1;
            }
        }
    }

    /// Returns the size of the current phase's bulk frames if all of them are equal.
    fn equal_frames(&self) -> Option<usize> {
        match &self.phases.get(self.phase)?.traffic {
            Traffic { sizes, flows: Flows::Single, to: None, segments: 0 | 1, .. } => {
                match sizes[..] {
                    [(size, _)] => Some(size),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn push_marked(&mut self, batch: &mut Batch) -> Option<()> {
        let (_, size, mark) = *self.marked.front()?;
        // Each response belongs to its own flow, one per client.
        let flow = matches!(mark, Mark::Response(_) | Mark::Part(_)).then(|| self.rng.next_u64());
        self.writer.push(batch, size, flow, Some(mark)).ok()?;
        self.marked.pop_front();
        Some(())
    }

    fn push_bulk(&mut self, batch: &mut Batch) -> Option<()> {
        let phase = self.phases.get(self.phase)?;
        let sizes = &phase.traffic.sizes;
        let mut size = sizes.first()?.0;
        if sizes.len() > 1 {
            let mut draw = self.rng.below(phase.weights);
            for &(this, weight) in sizes {
                size = this;
                if draw < u64::from(weight) {
                    break;
                }
                draw -= u64::from(weight);
            }
        }
        let many = phase.traffic.flows == Flows::Multiple;
        let (segments, to) = (phase.traffic.segments, phase.traffic.to);
        let flow = many.then(|| self.rng.next_u64());
        let local =
            to.filter(|to| to.permille >= 1_000 || self.rng.below(1_000) < to.permille.into());
        let mut to_vm = local.map(|to| Writer::new(self.port, to.vm.port().0));
        let writer = to_vm.as_mut().unwrap_or(&mut self.writer);
        if segments > 1 {
            return writer.push_segments(batch, size, segments).ok();
        }
        writer.push(batch, size, flow, None).ok()
    }

    /// Handles a frame that the VM received.
    fn receive(&mut self, mark: Mark, now: u64) {
        self.received += 1;
        match mark {
            Mark::Reply(sent) => {
                self.round_trips.push((sent, self.nanos(now - sent)));
                let Some(probe) = self.probe else { return };
                let next = now + around(&mut self.rng, self.rate.to_cycles(probe.guest).0);
                if next < self.cycles(probe.until) {
                    self.post(next, SMALL, Mark::Probe);
                }
            }
            Mark::Request(sent) => {
                let Some(requests) = self.requests else { return };
                let at = now + around(&mut self.rng, self.rate.to_cycles(requests.service).0);
                for _ in 1..requests.response_frames {
                    self.post_as(at, requests.size, Mark::Part(sent));
                }
                self.post_as(at, requests.size, Mark::Response(sent));
            }
            _ => {}
        }
    }

    fn nanos(&self, cycles: u64) -> u64 {
        self.rate.to_nanos(Cycles(cycles)).0
    }
}

/// Returns a random time from half to one and a half times `mean`, in cycles. Real programs also
/// need varying times for an answer. A constant time could synchronise with the polling of the
/// switch.
pub(super) fn around(rng: &mut Rng, mean: u64) -> u64 {
    mean / 2 + rng.below(mean + 1)
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A VM's port: the switch's side of its rings.
#[derive(Debug)]
pub(super) struct VmPort {
    pub(super) vm: Arc<Mutex<Vm>>,
    pub(super) counter: SimCounter,
}

impl PortQueue for VmPort {
    fn pending(&mut self, now: Cycles) -> Pending {
        if lock(&self.vm).waits(now.0) { Pending::Yes } else { Pending::No }
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        let now = self.counter.now().0;
        lock(&self.vm).fill(batch, now);
    }

    fn tx_ready(&self) -> bool {
        true
    }

    fn caps(&self) -> OffloadCaps {
        OffloadCaps::ALL
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let mut vm = lock(&self.vm);
        let mut out = TxOutcome::default();
        let now = self.counter.now().0;
        for &i in frames {
            let i = usize::from(i);
            out.frames += 1;
            out.bytes += u64::from(batch.frame(i).len);
            if let Some((_, to, Some(mark))) = read(batch.head(i))
                && to == vm.port
            {
                vm.receive(mark, now);
            }
        }
        out
    }
}
