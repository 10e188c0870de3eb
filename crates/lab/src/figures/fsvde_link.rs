//! The simulated link of FS-VDE's figures. Flows of several clients share the link, either first
//! come, first served, or by `fair-share`.
//!
//! # Problem
//!
//! FS-VDE compares two shares of each client: on a first-come, first-served link, and under
//! FS-VDE's own schedule.
//!
//! # Approach
//!
//! Flows behave like TCP between hosts of one network without loss. Each flow has a window of
//! [`WINDOW`] frames in flight. When a frame has left the link, the next frame of its flow arrives
//! after a random time from [`BACK`] to twice [`BACK`]. A first-come, first-served link gives each
//! *flow* the same rate (max-min among flows, FS-VDE §1). The FS-VDE paper also says that the
//! legacy switch gives each flow the same rate.
//!
//! `fair-share` is [`penstock_qos::fair_share`] with the default limits of a VM's queue (256 KiB
//! and 10 ms). A frame that `fair-share` does not accept waits in its VM's ring until an earlier
//! frame of the VM has left.
//!
//! # Cost
//!
//! A frame occupies the link for the frame's bytes divided by the link's rate. Queueing and
//! scheduling take no simulated time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use penstock_qos::fair_share::{Bound, Capacity, FairShare, Offer};
use penstock_sim::Rng;
use penstock_units::{BitsPerSecond, Nanos, Weight};

/// Number of frames of a flow that are in flight.
pub(super) const WINDOW: u32 = 44;
/// Size of a frame in bytes: an MTU of 1500 and the Ethernet header.
pub(super) const FRAME: u32 = 1_514;
/// Shortest time from a frame's departure to the arrival of the next frame of its flow. The longest
/// time from a departure to the next arrival of the flow is twice [`BACK`].
pub(super) const BACK: Nanos = Nanos::from_micros(200);

/// A client with its weight, and with the number of flows of each of its VMs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub weight: u64,
    pub flows: &'static [usize],
}

/// Queue discipline that divides the link among flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Egress {
    /// The link serves frames first come, first served, as in the legacy switch.
    Fifo,
    /// The link serves frames by the `fair-share` schedule, as in FS-VDE.
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

/// Clients and VMs are numbered from 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub client: usize,
    pub vm: usize,
}

/// Bytes that each flow sent, without the bytes of the first second.
#[derive(Debug)]
pub(super) struct Sent {
    pub flows: Vec<Flow>,
    pub bytes: Vec<u64>,
    /// Length of the measurement in which the link sent `bytes`, in seconds.
    pub secs: f64,
}

impl Sent {
    /// Returns the rate of the flow `flow` in Mbit/s.
    pub fn mbps(&self, flow: usize) -> f64 {
        megabits(self.bytes[flow]) / self.secs
    }

    /// Returns the rate of all flows of the client `client` in Mbit/s.
    pub fn client_mbps(&self, client: usize) -> f64 {
        let of = |flow: &usize| self.flows[*flow].client == client;
        (0..self.flows.len()).filter(of).map(|flow| self.mbps(flow)).sum()
    }

    /// Returns the rate of all flows together in Mbit/s.
    pub fn all_mbps(&self) -> f64 {
        (0..self.flows.len()).map(|flow| self.mbps(flow)).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn megabits(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / 1e6
}

/// Frames that wait for the link. The queue discipline determines the order in which the link sends
/// the frames.
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

    /// Adds a frame of the flow `flow`, which the VM `vm` sends.
    fn come(&mut self, flow: u32, vm: usize, now: Nanos) {
        match self {
            Self::Fifo(queue) => queue.push_back(flow),
            Self::Fair { fair, rings } => {
                rings[vm].push_back(flow);
                Self::take(fair, &mut rings[vm], vm, now);
            }
        }
    }

    /// Moves frames from a VM's ring to the `fair-share` queue `fair` until the queue accepts no
    /// more frames.
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

/// Runs the link for `1 + secs` seconds. The link's results do not include the first simulated
/// second.
///
/// # Errors
/// Returns an error if a client's weight is out of range.
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

/// Returns the flows of all clients, in the order of the clients.
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
