//! The simulated switch of `uplink-shares`: VMs that send streams of frames to outputs with queues.
//!
//! # Approach
//!
//! The bed advances the simulated world in steps. Before each step, every [`Stream`] puts its
//! frames into its VM's transmit ring. After the step, the bed counts the frames that the outputs
//! delivered, for each stream. Each stream has its own flow numbers (source ports).
//!
//! # Rates
//!
//! A large segment takes 68 kB of the wire at once, and a tenant with a twelfth of 100 Mbit/s sends
//! a segment every 65 ms. The bytes of such a stream between two points in time are uncertain by a
//! whole segment. So a stream's rate is the slope of a line that is fitted to its bytes by least
//! squares, with one point for each step.
//!
//! # Cost
//!
//! All work on the simulated core takes a tenth of [`Costs::EXAMPLE`], so that the core is never
//! the bottleneck, even at 10 Gbit/s in 64-byte frames.

use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms, ShapeTerms, ShareTerms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_sim::{Costs, PortHandle, Rng, SinkSpec, World, tcp_segment, udp_frame, wire_bytes};
use penstock_units::{MacAddr, Nanos, TscRate, Weight};

pub(super) use crate::evidence::stats::float;
use crate::evidence::stats::{fit, ms};

pub(super) const CORE: TscRate = TscRate::from_hz(2_000_000_000);
pub(super) const COSTS: Costs = Costs { factor: 0.1, ..Costs::EXAMPLE };
/// Frames and payload bytes of a large segment: 64 KiB of an MTU of 1,500.
const SEGMENT: (u16, u16) = (44, 1_460);
/// Frames in a VM's transmit ring.
const RING: usize = 256;
/// Frames in the ring of an output.
const OUTPUT_RING: usize = 1_024;
/// Maximum number of VMs and outputs.
const PORTS: usize = 16;
const TENANTS: usize = 8;
/// Time in which the switch learns the addresses, before any stream begins.
const SETTLE: Nanos = Nanos::from_millis(10);
/// Number of flow numbers that belong to each stream.
const FLOWS: u16 = 100;
/// Bytes that may wait for an output by default (`queue.bytes`) with `fair-share`, for each VM, and
/// with `fq-codel`.
pub(super) const QUEUE_BYTES: u64 = 8 << 20;

/// Returns the default terms of an output's queue.
pub(super) fn terms(order: Order, pacing: Pacing) -> QueueTerms {
    let holds = order == Order::FairShare;
    let bound = Bound {
        bytes: QUEUE_BYTES,
        wait: Nanos::from_millis(if holds { 10 } else { 1_000 }),
        excess: if holds { Excess::Hold } else { Excess::Drop },
    };
    QueueTerms { order, pacing, bound, held_bytes: QUEUE_BYTES, ..QueueTerms::default() }
}

/// Returns the default terms of a `fair-share` output at which each flow of a VM has its own queue.
pub(super) fn terms_with_flows(pacing: Pacing) -> QueueTerms {
    let bound = terms(Order::FqCodel, pacing).bound;
    QueueTerms { bound, flows: true, ..terms(Order::FairShare, pacing) }
}

/// Frames that a stream sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frames {
    /// UDP frames of one length, in bytes without FCS.
    Of(usize),
    /// Large TCP segments (TSO). `ecn` is true if the sender supports ECN, so that a mark signals
    /// congestion. Otherwise, a segment signals by the loss of its first part.
    Segments { ecn: bool },
    /// At random, frames of 60, 600 and 1,514 bytes, and large segments with ECN.
    Mixed,
}

/// Rule by which a stream sends its next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// The stream keeps the VM's ring full.
    Greedy,
    /// At most this number of bytes, counted on the wire, are between the VM and the far side of
    /// the output, as with a TCP window. The stream does not react to signals of congestion.
    Window(u64),
    /// Gaps between frames are random, from half to one and a half times this mean. If the ring is
    /// full, the VM drops the frame.
    Every(Nanos),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub frames: Frames,
    pub flows: u16,
    pub pace: Pace,
}

/// Frames and bytes of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count {
    /// Number of frames that the VM's program generated.
    pub made: u64,
    /// Bytes on the wire of the frames that entered the VM's ring.
    pub sent: u64,
    /// Number of frames that outputs delivered.
    pub frames: u64,
    /// Bytes on the wire of the frames that outputs delivered.
    pub wire: u64,
}

#[derive(Debug)]
struct Stream {
    vm: usize,
    to: Vec<usize>,
    traffic: Traffic,
    /// First flow number of the stream.
    flow: u16,
    count: Count,
    /// Time of the next frame with [`Pace::Every`].
    next: Nanos,
    /// Times in ms from the VM's ring to the far side of the output, with [`Pace::Every`].
    waits: Vec<f64>,
}

impl Stream {
    fn is_due(&self, now: Nanos) -> bool {
        match self.traffic.pace {
            Pace::Greedy => true,
            Pace::Window(bytes) => self.count.sent.saturating_sub(self.count.wire) < bytes,
            Pace::Every(_) => self.next <= now,
        }
    }

    /// Returns the stream's next frame. A UDP frame contains the time at which it was sent.
    fn frame(&self, rng: &mut Rng, now: Nanos) -> MemoryFrame {
        let number = u16::try_from(self.count.made % u64::from(self.traffic.flows.max(1)));
        let flow = self.flow + number.unwrap_or(0);
        let to = match self.to[..] {
            [only] => only,
            _ => usize::try_from(rng.below(self.to.len() as u64)).map_or(0, |at| self.to[at]),
        };
        let (source, target) = (mac(self.vm), mac(to));
        let udp = |len| MemoryFrame::plain(udp_frame(source, target, len, flow, now.0));
        let large = |ecn| tcp_segment(source, target, SEGMENT, flow, ecn);
        match self.traffic.frames {
            Frames::Of(len) => udp(len),
            Frames::Segments { ecn } => large(ecn),
            Frames::Mixed => match rng.below(4) {
                0 => udp(60),
                1 => udp(600),
                2 => udp(1_514),
                _ => large(true),
            },
        }
    }
}

fn mac(port: usize) -> MacAddr {
    World::mac_of(u16::try_from(port).unwrap_or(u16::MAX))
}

/// A simulated switch with its VMs, outputs and streams. Ports have numbers from 0, in the order in
/// which they were added.
#[derive(Debug)]
pub(super) struct Bed {
    world: World,
    rng: Rng,
    now: Nanos,
    ports: Vec<PortHandle>,
    streams: Vec<Stream>,
    /// Frames that the switch dropped while it learned the addresses.
    dropped_before: u64,
}

impl Bed {
    pub fn new(seed: u64) -> Self {
        let world = World::new(CORE, COSTS, PORTS, seed);
        Self {
            world,
            rng: Rng::new(seed),
            now: Nanos::ZERO,
            ports: Vec::new(),
            streams: Vec::new(),
            dropped_before: 0,
        }
    }

    /// Adds a port that only receives, with a queue if there are `terms`.
    pub fn add_output(&mut self, terms: Option<QueueTerms>) -> anyhow::Result<usize> {
        let port = self.world.add_vm(1, OUTPUT_RING, SinkSpec::default())?;
        if let Some(terms) = terms {
            let home = QueueHome::new(terms, PORTS, TENANTS);
            self.world.set_policy(port, |policy| policy.queue = Some(home));
        }
        self.world.record(port);
        self.world.introduce(port);
        Ok(self.add(port))
    }

    /// Adds a VM that sends. The argument is the number and the weight of the VM's tenant, and the
    /// shaper of the VM's frames if there is one.
    pub fn add_vm(
        &mut self,
        (tenant, weight): (u16, u64),
        shape: Option<ShapeTerms>,
    ) -> anyhow::Result<usize> {
        let port = self.world.add_vm(1, RING, SinkSpec::default())?;
        let share = ShareTerms { tenant: Weight::new(weight)?, vm: Weight::ONE };
        self.world.set_policy(port, |policy| {
            policy.tenant = Some(tenant);
            policy.share = share;
            policy.shape = shape;
        });
        Ok(self.add(port))
    }

    fn add(&mut self, port: PortHandle) -> usize {
        self.ports.push(port);
        self.ports.len() - 1
    }

    /// Adds a stream from the VM `vm` to the outputs `to`, one of which each frame chooses at
    /// random. Returns the stream's number. In each step, earlier streams send first.
    pub fn send(&mut self, vm: usize, to: &[usize], traffic: Traffic) -> usize {
        let number = self.streams.len();
        self.streams.push(Stream {
            vm,
            to: to.to_vec(),
            traffic,
            // Flow number 0 belongs to the frames by which the switch learns addresses.
            flow: FLOWS * u16::try_from(number + 1).unwrap_or(1),
            count: Count::default(),
            next: SETTLE,
            waits: Vec::new(),
        });
        number
    }

    /// Lets the switch learn all addresses, and then runs all streams for about `warm_up`, varied
    /// by the seed.
    pub fn warm_up(&mut self, step: Nanos, warm_up: Nanos) {
        self.now = SETTLE;
        self.world.run_until(SETTLE);
        self.dropped_before = self.all_lost();
        let until = self.now + warm_up + Nanos(self.rng.below(warm_up.0 / 4 + 1));
        while self.now < until {
            self.step(step);
        }
        self.streams.iter_mut().for_each(|stream| stream.waits.clear());
    }

    /// Runs all streams for `length`, in steps of `step`.
    pub fn run(&mut self, step: Nanos, length: Nanos) {
        let until = self.now + length;
        while self.now < until {
            self.step(step);
        }
    }

    /// Runs all streams for `length`, in steps of `step`. Returns the rate of each stream on the
    /// wire, in bits per second.
    pub fn rates(&mut self, step: Nanos, length: Nanos) -> Vec<f64> {
        let (from, until) = (self.now, self.now + length);
        let mut points = vec![Vec::new(); self.streams.len()];
        while self.now < until {
            self.step(step);
            let secs = ms(self.now.saturating_sub(from)) / 1e3;
            for (points, stream) in points.iter_mut().zip(&self.streams) {
                points.push((secs, float(stream.count.wire) * 8.0));
            }
        }
        points.iter().map(|points| fit(points).slope).collect()
    }

    fn step(&mut self, length: Nanos) {
        (0..self.streams.len()).for_each(|at| self.fill(at));
        self.now += length;
        self.world.run_until(self.now);
        self.collect();
    }

    /// Puts the frames of a stream that are due into the VM's ring.
    fn fill(&mut self, at: usize) {
        let Self { world, rng, now, ports, streams, .. } = self;
        let stream = &mut streams[at];
        let vm = ports[stream.vm];
        let mut room = RING.saturating_sub(world.unsent(vm));
        while stream.is_due(*now) {
            if let Pace::Every(mean) = stream.traffic.pace {
                stream.next += Nanos(mean.0 / 2 + rng.below(mean.0));
            } else if room == 0 {
                return;
            }
            if room > 0 {
                let frame = stream.frame(rng, *now);
                stream.count.sent += wire_bytes(&frame);
                world.offer(vm, frame);
                room -= 1;
            }
            stream.count.made += 1;
        }
    }

    /// Counts the frames that the outputs delivered since the last step.
    fn collect(&mut self) {
        for port in &self.ports {
            for arrival in self.world.take_arrivals(*port) {
                let stream = usize::from(arrival.flow / FLOWS).checked_sub(1);
                let Some(stream) = stream.and_then(|at| self.streams.get_mut(at)) else { continue };
                stream.count.frames += 1;
                stream.count.wire += arrival.wire;
                if matches!(stream.traffic.pace, Pace::Every(_)) {
                    stream.waits.push(ms(arrival.at.saturating_sub(Nanos(arrival.sequence))));
                }
            }
        }
    }

    pub fn count(&self, stream: usize) -> Count {
        self.streams[stream].count
    }

    /// Returns the times of a stream's delivered frames from the VM's ring to the far side of the
    /// output, in ms, without those of the warm-up. Only a stream with [`Pace::Every`] has times.
    pub fn waits(&self, stream: usize) -> &[f64] {
        &self.streams[stream].waits
    }

    /// Returns the number of frames that the switch lost since it learned the addresses. A large
    /// segment that lost its first part counts as a lost frame, and so does a frame that no counter
    /// explains.
    pub fn lost(&self) -> u64 {
        self.all_lost().saturating_sub(self.dropped_before)
    }

    fn all_lost(&self) -> u64 {
        let lost = |port: &PortHandle| {
            let port = self.world.port(*port);
            let unexplained = u64::try_from(port.unaccounted().unsigned_abs()).unwrap_or(u64::MAX);
            unexplained.saturating_add(port.dropped() + port.rx_trimmed)
        };
        self.ports.iter().map(lost).fold(0, u64::saturating_add)
    }

    /// Returns how many times the switch held a VM back because too many of its frames waited at an
    /// output.
    pub fn held_back(&self, vm: usize) -> u64 {
        self.world.port(self.ports[vm]).held_back
    }
}
