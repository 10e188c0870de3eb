//! One link that clients' flows share in FS-VDE's figures: first come, first served, or by
//! `fair-share`.
//!
//! # Problem
//!
//! FS-VDE compares the clients' shares of an undivided link with their shares under its schedule.
//!
//! # Approach
//!
//! Flows behave as TCP does between hosts of one network without loss. Each flow has a window of
//! [`WINDOW`] frames under way. When a frame has arrived, the next one comes [`BACK`] later, plus a
//! random part by the seed. First come, first served thus gives each *flow* the same rate (max-min
//! among flows, FS-VDE §1). The paper says this of the legacy switch.
//!
//! `fair-share` is [`penstock_qos::fair_share`] with its default bound. A frame that it holds waits
//! in its VM's ring until a frame of that VM has left.
//!
//! # Cost
//!
//! The link takes a frame's bytes by its rate. Nothing else costs time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use penstock_qos::fair_share::{Bound, Capacity, FairShare, Offer};
use penstock_sim::Rng;
use penstock_units::{BitsPerSecond, Nanos, Weight};

/// Frames of a flow that are under way.
pub(super) const WINDOW: u32 = 44;
/// Bytes of a frame: an MTU and Ethernet's header.
pub(super) const FRAME: u32 = 1_514;
/// Minimum time from a frame's departure to the next frame of its flow. The maximum is twice that.
pub(super) const BACK: Nanos = Nanos::from_micros(200);

/// A client: its weight, and the number of flows of each of its VMs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub weight: u64,
    pub flows: &'static [usize],
}

/// Discipline that divides the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Egress {
    /// First come, first served, as in the legacy switch.
    Fifo,
    /// The schedule of FS-VDE.
    FairShare,
}

impl Egress {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::FairShare => "fair-share",
        }
    }
}

/// Client and VM that a flow belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub client: usize,
    pub vm: usize,
}

/// Bytes that each flow sent after the first second, which is not counted.
#[derive(Debug)]
pub(super) struct Sent {
    pub flows: Vec<Flow>,
    pub bytes: Vec<u64>,
    /// Seconds in which the bytes were sent.
    pub secs: f64,
}

impl Sent {
    /// Rate of one flow in Mbit/s.
    pub fn mbps(&self, flow: usize) -> f64 {
        megabits(self.bytes[flow]) / self.secs
    }

    /// Rate of one client in Mbit/s.
    pub fn client_mbps(&self, client: usize) -> f64 {
        let of = |flow: &usize| self.flows[*flow].client == client;
        (0..self.flows.len()).filter(of).map(|flow| self.mbps(flow)).sum()
    }

    /// Rate of all flows together in Mbit/s.
    pub fn all_mbps(&self) -> f64 {
        (0..self.flows.len()).map(|flow| self.mbps(flow)).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn megabits(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / 1e6
}

/// Frames that wait for the link, in the order of the discipline.
enum Line {
    Fifo(VecDeque<u32>),
    Fair { fair: Box<FairShare<u32>>, rings: Vec<VecDeque<u32>> },
}

impl Line {
    fn new(clients: &[Client], egress: Egress) -> anyhow::Result<Self> {
        if egress == Egress::Fifo {
            return Ok(Self::Fifo(VecDeque::new()));
        }
        let vms = clients.iter().map(|client| client.flows.len()).sum();
        let mut fair = FairShare::new(Capacity { tenants: clients.len(), vms, frames: 65_536 });
        let mut slot = 0;
        for (tenant, client) in clients.iter().enumerate() {
            fair.set_tenant(tenant, Weight::new(client.weight)?);
            for _ in client.flows {
                fair.set_vm(slot, tenant, Weight::ONE, Bound::default());
                slot += 1;
            }
        }
        Ok(Self::Fair { fair: Box::new(fair), rings: vec![VecDeque::new(); vms] })
    }

    /// Adds a frame of `flow` that comes from its VM.
    fn come(&mut self, flow: u32, vm: usize, now: Nanos) {
        match self {
            Self::Fifo(queue) => queue.push_back(flow),
            Self::Fair { fair, rings } => {
                rings[vm].push_back(flow);
                Self::take(fair, &mut rings[vm], vm, now);
            }
        }
    }

    /// Takes frames out of a VM's ring until there is no more room.
    fn take(fair: &mut FairShare<u32>, ring: &mut VecDeque<u32>, vm: usize, now: Nanos) {
        while let Some(flow) = ring.front() {
            if fair.offer(vm, *flow, FRAME, now) != Offer::Queued {
                return;
            }
            ring.pop_front();
        }
    }

    fn next(&mut self, now: Nanos) -> Option<u32> {
        match self {
            Self::Fifo(queue) => queue.pop_front(),
            Self::Fair { fair, rings } => {
                let departure = fair.next(now, |_, _| {})?;
                Self::take(fair, &mut rings[departure.vm], departure.vm, now);
                Some(departure.item)
            }
        }
    }
}

/// Runs the link for `secs` after a second that is not counted.
///
/// # Errors
/// If a weight is out of range.
pub(super) fn run(
    clients: &[Client],
    egress: Egress,
    rate: BitsPerSecond,
    (secs, seed): (u64, u64),
) -> anyhow::Result<Sent> {
    let mut line = Line::new(clients, egress)?;
    let flows = flows(clients);
    let mut noise = Rng::new(seed);
    // Frames that are on their way back to their senders.
    let mut back = BinaryHeap::new();
    for (flow, _) in (0_u32..).zip(&flows) {
        for _ in 0..WINDOW {
            back.push(Reverse((noise.below(2 * BACK.0), flow)));
        }
    }
    let wire = u64::from(FRAME) * 8_000_000_000 / rate.0;
    let (from, until) = (1_000_000_000, (1 + secs) * 1_000_000_000);
    let mut bytes = vec![0; flows.len()];
    let mut now = 0;
    while now < until {
        while let Some(Reverse((at, flow))) = back.peek().copied() {
            if at > now {
                break;
            }
            back.pop();
            line.come(flow, flows[flow as usize].vm, Nanos(now));
        }
        let Some(flow) = line.next(Nanos(now)) else {
            let Some(Reverse((at, _))) = back.peek() else { break };
            now = *at;
            continue;
        };
        now += wire;
        if now > from && now <= until {
            bytes[flow as usize] += u64::from(FRAME);
        }
        back.push(Reverse((now + BACK.0 + noise.below(BACK.0), flow)));
    }
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let secs = secs as f64;
    Ok(Sent { flows, bytes, secs })
}

/// Lists all flows, client by client.
fn flows(clients: &[Client]) -> Vec<Flow> {
    let mut flows = Vec::new();
    let mut vm = 0;
    for (client, of) in clients.iter().enumerate() {
        for n in of.flows {
            flows.extend((0..*n).map(|_| Flow { client, vm }));
            vm += 1;
        }
    }
    flows
}
