//! One bottleneck, packet by packet: what the fluid rates are held against.
//!
//! **Problem.** [`super::link_share`] says what a link would do if flows were fluids. **Rule.** The
//! same link with packets: strict priorities, between the queues of one priority self-clocked fair
//! queuing (Golestani, INFOCOM 1994), within a queue first come, first served, and a bound on what
//! a queue holds; what comes above it is lost.
//!
//! **Sources.** With a window: so many packets of the flow are at the link, another comes when one
//! leaves, which is TCP with equal windows on a link whose delay is its queue. Paced: one packet
//! after the other at a rate, whatever becomes of them, which is a limit that lets out more than
//! the queue gets.
//!
//! **Quantities.** The virtual time of the link is the tag of the packet in service; a packet that
//! comes to the head of queue q gets the tag max(virtual time, last tag of q) + bits / weight.

use std::collections::VecDeque;

use penstock_units::{BitsPerSecond, Nanos};

use super::link_share::Queue;
use crate::EventQueue;

/// How a flow sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// So many packets at the link at once.
    Window(u32),
    /// At this rate.
    Rate(BitsPerSecond),
}

/// A flow of packets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFlow {
    /// Number of its queue.
    pub queue: usize,
    /// When it begins.
    pub from: Nanos,
    /// How many packets it has; `None`: it does not end.
    pub packets: Option<u64>,
    /// Bytes of a packet.
    pub bytes: u32,
    /// How it sends.
    pub pace: Pace,
}

/// What became of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets that left the link.
    pub packets: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// When its last packet left.
    pub done: Option<Nanos>,
}

/// A link with queues.
#[derive(Clone, Debug)]
pub struct PacketLink {
    /// Its rate.
    pub rate: BitsPerSecond,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Packets that each of them holds.
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
    /// The last tag of each queue, and the tag of the packet at its head.
    tags: Vec<(f64, f64)>,
    virtual_time: f64,
    busy: bool,
    emitted: Vec<u64>,
    sent: Vec<Sent>,
}

impl PacketLink {
    /// Carries `flows` until a time; what became of each.
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

    /// A flow's next packet comes, if it has one.
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

    /// The packet at the head of a queue gets its tag.
    fn tag(&mut self, queue: usize) {
        let Some(flow) = self.lines[queue].front() else { return };
        let bits = f64::from(self.flows[*flow].bytes) * 8.0;
        let tag = self.virtual_time.max(self.tags[queue].0) + bits / self.link.queues[queue].weight;
        self.tags[queue] = (tag, tag);
    }

    /// An idle link takes the packet with the smallest tag of the first priority that has one.
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
            // Between busy periods nobody has anything to catch up with.
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

    /// How long a packet of a flow takes at a rate.
    fn time(&self, flow: usize, rate: BitsPerSecond) -> Nanos {
        let bits = u128::from(self.flows[flow].bytes) * 8 * 1_000_000_000;
        Nanos(u64::try_from(bits / u128::from(rate.0.max(1))).unwrap_or(u64::MAX).max(1))
    }
}
