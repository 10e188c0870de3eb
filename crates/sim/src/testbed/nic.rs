//! The uplink of the testbed: a link with a given rate and a finite ring, and the second server on
//! the far side.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};

use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::{Pending, PortQueue, TxOutcome};
use penstock_dataplane::tsc::CycleCounter;
use penstock_units::{BitsPerSecond, Cycles, Nanos, TscRate};

use super::frame::{Mark, Writer, read};
use super::traffic::Requests;
use super::vm::{SMALL, around, lock};
use crate::cost::{SimCounter, StageCost};
use penstock_units::Rng;

/// Number of bytes that Ethernet adds to a frame on the wire, for FCS, preamble, start delimiter
/// and gap.
const OVERHEAD: u64 = 24;
const FCS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Rate of the link in bits per second, including preambles and gaps.
    pub rate: BitsPerSecond,
    /// Number of frames that fit in the uplink's ring.
    pub ring: usize,
    /// Cycles that a frame to the uplink costs more than a frame to a VM.
    pub cost: StageCost,
}

/// Counters of one VM's traffic on the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub frames: u64,
    /// Number of bytes in the VM's frames on the link, FCS included.
    pub bytes: u64,
    /// Number of the VM's frames that were dropped because the uplink's ring was full.
    pub dropped: u64,
}

/// State of the second server and the clients behind the uplink, for one VM of the switch.
#[derive(Debug, Default)]
pub(super) struct Far {
    pub(super) carried: Carried,
    /// One entry per sample frame: the cycle counter when the frame entered the VM's ring, and the
    /// time in ns until the link has sent the frame.
    pub(super) one_way: Vec<(u64, u64)>,
    /// For each request: the cycle counter when a client sent the request, and the response time in
    /// ns.
    pub(super) responses: Vec<(u64, u64)>,
    server: u64,
    outside: u64,
    clients: Option<(Requests, Rng)>,
    unacknowledged: bool,
    worker: usize,
}

/// An inbound frame on the uplink: arrival time, order of posting, port and mark.
type Inbound = (u64, u64, u16, Mark);

#[derive(Debug)]
pub(super) struct Nic {
    rate: TscRate,
    /// Cycles that one byte takes on the link, in units of 2^-32.
    byte: u64,
    ring: usize,
    free_at: u64,
    fraction: u64,
    departures: VecDeque<u64>,
    /// State of the far side for each port of the switch.
    pub(super) far: Vec<Far>,
    /// For each worker: the inbound frames that have not reached the worker yet.
    inbound: Vec<BinaryHeap<Reverse<Inbound>>>,
    writers: Vec<Writer>,
    posted: u64,
    rng: Rng,
    /// Number of bytes sent on the link, including preambles and gaps.
    pub(super) wire_bytes: u64,
}

impl Nic {
    pub(super) fn new(rate: TscRate, link: Link, workers: usize, rng: Rng) -> Self {
        let byte = ((u128::from(rate.hz()) * 8) << 32) / u128::from(link.rate.0.max(1));
        Self {
            rate,
            byte: u64::try_from(byte).unwrap_or(u64::MAX),
            ring: link.ring,
            free_at: 0,
            fraction: 0,
            departures: VecDeque::with_capacity(link.ring),
            far: vec![Far::default()],
            inbound: (0..workers).map(|_| BinaryHeap::new()).collect(),
            writers: vec![Writer::new(0, 0)],
            posted: 0,
            rng,
            wire_bytes: 0,
        }
    }

    /// Adds the VM at `port`, which `worker` serves.
    pub(super) fn add_vm(&mut self, port: u16, worker: usize) {
        self.far.push(Far { worker, ..Far::default() });
        self.writers.push(Writer::new(0, port));
        self.post(0, port, Mark::Greeting);
    }

    pub(super) fn set_server(&mut self, port: u16, server: Nanos) {
        self.far[usize::from(port)].server = self.rate.to_cycles(server).0;
    }

    pub(super) fn set_clients(&mut self, port: u16, requests: Requests, rng: Rng) {
        let outside = self.rate.to_cycles(requests.outside).0;
        let far = &mut self.far[usize::from(port)];
        (far.outside, far.clients) = (outside, Some((requests, rng)));
        let from = self.rate.to_cycles(requests.from).0;
        self.next_burst(port, from);
    }

    fn post(&mut self, at: u64, port: u16, mark: Mark) {
        let worker = self.far.get(usize::from(port)).map_or(0, |far| far.worker);
        self.inbound[worker].push(Reverse((at, self.posted, port, mark)));
        self.posted += 1;
    }

    /// Posts the clients' next burst after `now`.
    fn next_burst(&mut self, port: u16, now: u64) {
        let hz = self.rate.hz();
        let Some((requests, rng)) = &mut self.far[usize::from(port)].clients else { return };
        #[expect(clippy::cast_precision_loss, reason = "a frequency")]
        let mean = hz as f64 / requests.bursts_per_second.max(1e-9);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
        let gap = (-(1.0 - rng.unit()).ln() * mean) as u64;
        let at = now + gap.max(1);
        let (burst, until) = (requests.burst, requests.until);
        if at >= self.rate.to_cycles(until).0 {
            return;
        }
        let wire = ((SMALL as u64 + OVERHEAD - FCS) * self.byte) >> 32;
        for i in 0..u64::from(burst) {
            // The last frame of a burst triggers the next burst.
            let at = at + i * wire;
            let mark = if i + 1 == u64::from(burst) { Mark::Sample(at) } else { Mark::Request(at) };
            self.post(at, port, mark);
        }
    }

    fn waits(&self, worker: usize, now: u64) -> bool {
        self.inbound[worker].peek().is_some_and(|Reverse(first)| first.0 <= now)
    }

    pub(super) fn next_at(&self, worker: usize) -> u64 {
        self.inbound[worker].peek().map_or(u64::MAX, |Reverse(first)| first.0)
    }

    fn fill(&mut self, worker: usize, batch: &mut Batch, now: u64) {
        while self.waits(worker, now) && batch.has_room() {
            let Some(Reverse((at, _, port, mut mark))) = self.inbound[worker].pop() else { return };
            if let Mark::Sample(sent) = mark {
                mark = Mark::Request(sent);
                self.next_burst(port, at);
            }
            let flow = matches!(mark, Mark::Request(_) | Mark::Ack).then(|| self.rng.next_u64());
            let _ = self.writers[usize::from(port)].push(batch, SMALL, flow, Some(mark));
        }
    }

    /// Sends a frame of `len` bytes (without FCS) on the link. Returns `false` if the uplink's ring
    /// is full.
    fn send(&mut self, head: &[u8], len: u64, now: u64) -> bool {
        while self.departures.front().is_some_and(|at| *at <= now) {
            self.departures.pop_front();
        }
        let Some((from, _, mark)) = read(head) else { return true };
        if self.departures.len() >= self.ring {
            if let Some(far) = self.far.get_mut(usize::from(from)) {
                far.carried.dropped += 1;
            }
            return false;
        }
        let cost = self.fraction + (len + OVERHEAD) * self.byte;
        self.fraction = cost & 0xffff_ffff;
        self.free_at = self.free_at.max(now) + (cost >> 32);
        self.wire_bytes += len + OVERHEAD;
        self.departures.push_back(self.free_at);
        let at = self.free_at;
        let nanos = |cycles: u64| self.rate.to_nanos(Cycles(cycles)).0;
        let Some(far) = self.far.get_mut(usize::from(from)) else { return true };
        far.carried.frames += 1;
        far.carried.bytes += len + FCS;
        match mark {
            Some(Mark::Probe(sent)) => {
                let back = at + around(&mut self.rng, far.server);
                self.post(back, from, Mark::Reply(sent));
            }
            Some(Mark::Sample(sent)) => far.one_way.push((sent, nanos(at - sent))),
            None if far.clients.is_some() => {
                // TCP acknowledges every second segment.
                far.unacknowledged = !far.unacknowledged;
                if !far.unacknowledged {
                    let back = at + far.outside;
                    self.post(back, from, Mark::Ack);
                }
            }
            Some(Mark::Response(sent)) => {
                far.responses.push((sent, nanos(at - sent + far.outside)));
            }
            _ => {}
        }
        true
    }
}

/// Queue pair of the simulated uplink that one worker polls.
#[derive(Debug)]
pub(super) struct NicPort {
    pub(super) nic: Arc<Mutex<Nic>>,
    pub(super) worker: usize,
    pub(super) counter: SimCounter,
    pub(super) cost: StageCost,
}

impl PortQueue for NicPort {
    fn pending(&mut self, now: Cycles) -> Pending {
        if lock(&self.nic).waits(self.worker, now.0) { Pending::Yes } else { Pending::No }
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        let now = self.counter.now().0;
        lock(&self.nic).fill(self.worker, batch, now);
    }

    fn tx_ready(&self) -> bool {
        true
    }

    fn caps(&self) -> OffloadCaps {
        OffloadCaps::ALL
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let mut nic = lock(&self.nic);
        let mut out = TxOutcome::default();
        let now = self.counter.now().0;
        let lens = frames.iter().map(|&i| batch.frame(usize::from(i)).len as usize);
        self.counter.spend(self.cost, frames.len(), lens.sum());
        for &i in frames {
            let i = usize::from(i);
            let len = u64::from(batch.frame(i).len);
            if nic.send(batch.head(i), len, now) {
                out.frames += 1;
                out.bytes += len;
            } else {
                out.ring_full += 1;
            }
        }
        out
    }
}
