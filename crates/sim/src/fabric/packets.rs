//! Simulation of packets at one bottleneck link, to validate the computed rates.
//!
//! # Problem
//!
//! [`super::link_share`] computes rates as if flows were fluids. Tests must compare the computed
//! rates with the rates of simulated packets.
//!
//! # Approach
//!
//! The simulated link has strict priorities, and self-clocked fair queuing (Golestani, INFOCOM
//! 1994) between queues of a priority. A queue is first come, first served. A queue has a maximum
//! number of packets, and drops packets that arrive while it is full.
//!
//! A flow with a window keeps a fixed number of packets at the link, and sends a packet when a
//! packet leaves. Flows with a window represent TCP flows with equal windows, if all delay is in
//! the queue. A paced flow sends at a fixed rate regardless of losses. A paced flow represents a
//! flow with a rate limit above the queue's share.
//!
//! The virtual time of the link is the tag of the packet that the link sends at present. A packet
//! at the head of queue q gets the tag max(virtual time, last tag of q) + bits / weight.

use std::collections::VecDeque;

use penstock_units::{BitsPerSecond, Nanos};

use super::link_share::Queue;
use crate::EventQueue;

/// Sending behaviour of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The flow keeps the given number of packets at the link.
    Window(u32),
    /// The flow sends at the given fixed rate.
    Rate(BitsPerSecond),
}

/// A flow of packets that all have the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFlow {
    /// Index of the flow's queue.
    pub queue: usize,
    /// Time at which the flow begins to send.
    pub from: Nanos,
    /// Number of packets that the flow sends, or `None` for an endless flow.
    pub packets: Option<u64>,
    /// Size of each packet of the flow in bytes.
    pub bytes: u32,
    pub pace: Pace,
}

/// Result of one flow of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of the flow's packets that left the link.
    pub packets: u64,
    pub lost: u64,
    /// Time at which the flow's last packet left the link.
    pub done: Option<Nanos>,
}

#[derive(Clone, Debug)]
pub struct PacketLink {
    pub rate: BitsPerSecond,
    pub queues: Vec<Queue>,
    /// Maximum number of packets in each queue.
    pub room: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Departs(usize),
    Begins(usize),
    Paced(usize),
}

#[derive(Debug)]
struct Run<'a> {
    link: &'a PacketLink,
    flows: &'a [PacketFlow],
    events: EventQueue<Event>,
    lines: Vec<VecDeque<usize>>,
    /// For each queue: the last tag of self-clocked fair queuing, and the tag of the packet at the
    /// head of the queue.
    tags: Vec<(f64, f64)>,
    virtual_time: f64,
    busy: bool,
    emitted: Vec<u64>,
    sent: Vec<Sent>,
}

impl PacketLink {
    /// Simulates the packets of `flows` until the time `until`. Returns the result of each flow.
    #[must_use]
    pub fn carry(&self, flows: &[PacketFlow], until: Nanos) -> Vec<Sent> {
        let mut run = Run {
            link: self,
            flows,
            events: EventQueue::new(),
            lines: vec![VecDeque::new(); self.queues.len()],
            tags: vec![(0.0, 0.0); self.queues.len()],
            virtual_time: 0.0,
            busy: false,
            emitted: vec![0; flows.len()],
            sent: vec![Sent::default(); flows.len()],
        };
        for (number, flow) in flows.iter().enumerate() {
            run.events.post(flow.from, Event::Begins(number));
        }
        while let Some((now, event)) = run.events.pop_due(until) {
            run.happens(now, event);
            run.serve(now);
        }
        run.sent
    }
}

impl Run<'_> {
    fn happens(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Begins(flow) => match self.flows[flow].pace {
                Pace::Window(packets) => (0..packets).for_each(|_| self.emit(flow)),
                Pace::Rate(_) => self.happens(now, Event::Paced(flow)),
            },
            Event::Paced(flow) => {
                self.emit(flow);
                if let Pace::Rate(rate) = self.flows[flow].pace {
                    self.events.post(now + self.time(flow, rate), event);
                }
            }
            Event::Departs(flow) => {
                self.busy = false;
                self.sent[flow].packets += 1;
                let all = self.sent[flow].packets + self.sent[flow].lost;
                if self.flows[flow].packets == Some(all) {
                    self.sent[flow].done = Some(now);
                }
                if matches!(self.flows[flow].pace, Pace::Window(_)) {
                    self.emit(flow);
                }
            }
        }
    }

    /// Puts a flow's next packet into its queue, unless the flow has sent all packets.
    fn emit(&mut self, flow: usize) {
        let PacketFlow { queue, packets, .. } = self.flows[flow];
        if packets.is_some_and(|packets| self.emitted[flow] >= packets) {
            return;
        }
        self.emitted[flow] += 1;
        if self.lines[queue].len() >= self.link.room {
            self.sent[flow].lost += 1;
            return;
        }
        self.lines[queue].push_back(flow);
        if self.lines[queue].len() == 1 {
            self.tag(queue);
        }
    }

    /// Computes the tag of the packet at the head of a queue, for self-clocked fair queuing.
    fn tag(&mut self, queue: usize) {
        let Some(flow) = self.lines[queue].front() else { return };
        let bits = f64::from(self.flows[*flow].bytes) * 8.0;
        let tag = self.virtual_time.max(self.tags[queue].0) + bits / self.link.queues[queue].weight;
        self.tags[queue] = (tag, tag);
    }

    /// If the link is idle, sends the packet with the smallest tag in the first priority that has
    /// packets.
    fn serve(&mut self, now: Nanos) {
        if self.busy {
            return;
        }
        let waiting = (0..self.lines.len()).filter(|queue| !self.lines[*queue].is_empty());
        let order = |queue: &usize| (self.link.queues[*queue].priority, self.tags[*queue].1);
        let next = waiting.min_by(|a, b| {
            let (a, b) = (order(a), order(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let Some(queue) = next else {
            // A new busy period starts with equal tags.
            self.virtual_time = 0.0;
            self.tags.fill((0.0, 0.0));
            return;
        };
        let Some(flow) = self.lines[queue].pop_front() else { return };
        self.virtual_time = self.tags[queue].1;
        self.tag(queue);
        self.busy = true;
        self.events.post(now + self.time(flow, self.link.rate), Event::Departs(flow));
    }

    /// Returns the time that a link with the rate `rate` needs to send one packet of the flow.
    fn time(&self, flow: usize, rate: BitsPerSecond) -> Nanos {
        let bits = u128::from(self.flows[flow].bytes) * 8 * 1_000_000_000;
        Nanos(u64::try_from(bits / u128::from(rate.0.max(1))).unwrap_or(u64::MAX).max(1))
    }
}
