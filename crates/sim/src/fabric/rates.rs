//! The rates of all streams of a network: at every link as [`super::link_share`] divides it.
//!
//! **Problem.** What a stream asks of a link is what all its other links let it have, and what they
//! let it have depends on what others get here. **Rule.** Every link tells each of its streams the
//! most that it may have there, by what its streams may have elsewhere. When one link's answer
//! changes, the links of the streams concerned answer again, until no answer changes any more. A
//! stream's rate is the least of its limit and its links' answers.
//!
//! With one queue a link this is the known way to max-min fair rates by advertised rates (Bertsekas
//! and Gallager, "Data Networks", §6.5.2): settled links stay settled, one bottleneck after the
//! other. With several queues a link there is no such proof here; [`Rates::unsettled`] counts when
//! it did not end within its bound, and tests say that it does.
//!
//! **Quantities.** Bits per second; a stream is a number of flows with the same way, queue and
//! limit. **Cost.** What changed and what that touches: most changes touch the links of one stream
//! and those of its neighbours at a bottleneck.

use std::collections::VecDeque;

use super::link_share::{Asker, Level, Queue, Scratch, divide};

/// A link, by its number in the list that [`Rates::new`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A stream, as [`Rates::add`] named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(u32);

/// Links answer at most so often on average in one [`Rates::settle`].
const ROUNDS_MAX: usize = 200;
/// An answer that differs by less, relatively, is the same.
const SAME: f64 = 1e-10;

#[derive(Debug)]
struct Hop {
    link: u32,
    /// Where the link's list of members has this stream.
    place: u32,
    /// What the link lets the stream have.
    offer: f64,
}

#[derive(Debug)]
struct Stream {
    class: usize,
    flows: f64,
    limit: f64,
    hops: Vec<Hop>,
}

impl Stream {
    /// What it asks of a link, given all others.
    fn demand(&self, except: usize) -> f64 {
        let others = self.hops.iter().enumerate().filter(|(hop, _)| *hop != except);
        others.map(|(_, hop)| hop.offer).fold(self.limit, f64::min)
    }
}

#[derive(Debug)]
struct Link {
    capacity: f64,
    queues: Vec<Queue>,
    /// The queue of each class; classes beyond its end are in queue 0.
    queue_of: Vec<usize>,
    members: Vec<(u32, u32)>,
    levels: Vec<Level>,
    waits: bool,
}

impl Link {
    fn queue(&self, class: usize) -> usize {
        self.queue_of.get(class).copied().unwrap_or(0)
    }
}

/// Links, streams, and the rates that follow.
#[derive(Debug)]
pub struct Rates {
    links: Vec<Link>,
    streams: Vec<Stream>,
    /// Links that must answer again.
    waiting: VecDeque<u32>,
    askers: Vec<Asker>,
    scratch: Scratch,
    unsettled: u64,
}

impl Rates {
    /// Links of these capacities, bits/s, each with one queue.
    #[must_use]
    pub fn new(capacities: &[f64]) -> Self {
        let link = |capacity: &f64| Link {
            capacity: *capacity,
            queues: vec![Queue::ONLY],
            queue_of: Vec::new(),
            members: Vec::new(),
            levels: Vec::new(),
            waits: false,
        };
        Self {
            links: capacities.iter().map(link).collect(),
            streams: Vec::new(),
            waiting: VecDeque::new(),
            askers: Vec::new(),
            scratch: Scratch::default(),
            unsettled: 0,
        }
    }

    /// Adds a stream of a class over `path`, without flows yet.
    pub fn add(&mut self, class: usize, path: &[LinkId]) -> StreamId {
        let hop = |link: &LinkId| Hop { link: link.0, place: 0, offer: f64::INFINITY };
        let hops = path.iter().map(hop).collect();
        let id = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        self.streams.push(Stream { class, flows: 0.0, limit: f64::INFINITY, hops });
        StreamId(id)
    }

    /// The stream has so many flows now, and they may send `limit` together.
    pub fn set(&mut self, id: StreamId, flows: f64, limit: f64) {
        let stream = &mut self.streams[id.0 as usize];
        let (had, has) = (stream.flows > 0.0, flows > 0.0);
        if (stream.flows - flows).abs() < f64::EPSILON && same(stream.limit, limit) {
            return;
        }
        (stream.flows, stream.limit) = (flows, limit);
        if !had && !has {
            return;
        }
        match (had, has) {
            (false, true) => self.join(id.0),
            (true, false) => self.leave(id.0),
            _ => {}
        }
        let stream = &self.streams[id.0 as usize];
        for hop in &stream.hops {
            ask(&mut self.links, &mut self.waiting, hop.link);
        }
    }

    /// The link has another capacity now.
    pub fn set_capacity(&mut self, link: LinkId, capacity: f64) {
        if !same(self.links[link.index()].capacity, capacity) {
            self.links[link.index()].capacity = capacity;
            ask(&mut self.links, &mut self.waiting, link.0);
        }
    }

    /// The link has these queues now, and `queue_of[class]` says which a class uses; classes beyond
    /// its end use the first.
    pub fn set_queues(&mut self, link: LinkId, queues: Vec<Queue>, queue_of: Vec<usize>) {
        assert!(queue_of.iter().all(|q| *q < queues.len()), "a class without a queue");
        let at = &mut self.links[link.index()];
        (at.queues, at.queue_of) = (queues, queue_of);
        at.levels.clear();
        ask(&mut self.links, &mut self.waiting, link.0);
    }

    /// What a stream has, bits/s, as of the last [`Self::settle`].
    #[must_use]
    pub fn rate(&self, id: StreamId) -> f64 {
        let stream = &self.streams[id.0 as usize];
        if stream.flows > 0.0 { stream.demand(usize::MAX) } else { 0.0 }
    }

    /// Which share of what it asked for is refused to the worst of the queues on a stream's way.
    #[must_use]
    pub fn refused(&self, id: StreamId) -> f64 {
        let stream = &self.streams[id.0 as usize];
        let at = |hop: &Hop| {
            let link = &self.links[hop.link as usize];
            link.levels.get(link.queue(stream.class)).map_or(0.0, |level| level.refused)
        };
        stream.hops.iter().map(at).fold(0.0, f64::max)
    }

    /// How often rates were not settled within the bound.
    #[must_use]
    pub const fn unsettled(&self) -> u64 {
        self.unsettled
    }

    /// Has links answer until no answer changes.
    pub fn settle(&mut self) {
        let mut budget = ROUNDS_MAX * self.links.len();
        while let Some(link) = self.waiting.pop_front() {
            self.links[link as usize].waits = false;
            self.answer(link);
            budget -= 1;
            if budget == 0 {
                self.unsettled += 1;
                for link in self.waiting.drain(..) {
                    self.links[link as usize].waits = false;
                }
            }
        }
    }

    fn join(&mut self, id: u32) {
        for (at, hop) in (0_u32..).zip(&mut self.streams[id as usize].hops) {
            let members = &mut self.links[hop.link as usize].members;
            hop.place = u32::try_from(members.len()).unwrap_or(u32::MAX);
            hop.offer = f64::INFINITY;
            members.push((id, at));
        }
    }

    fn leave(&mut self, id: u32) {
        for at in 0..self.streams[id as usize].hops.len() {
            let Hop { link, place, .. } = self.streams[id as usize].hops[at];
            let members = &mut self.links[link as usize].members;
            members.swap_remove(place as usize);
            if let Some((moved, hop)) = members.get(place as usize).copied() {
                self.streams[moved as usize].hops[hop as usize].place = place;
            }
        }
    }

    fn answer(&mut self, number: u32) {
        let Self { links, streams, waiting, askers, scratch, .. } = self;
        let link = &mut links[number as usize];
        askers.clear();
        askers.extend(link.members.iter().map(|(stream, hop)| {
            let stream = &streams[*stream as usize];
            let demand = stream.demand(*hop as usize);
            Asker { queue: link.queue(stream.class), flows: stream.flows, demand }
        }));
        divide(link.capacity, &link.queues, askers, scratch, &mut link.levels);
        for (at, asker) in askers.iter().enumerate() {
            let link = &links[number as usize];
            let (id, hop) = link.members[at];
            let offer = asker.flows * link.levels[asker.queue].per_flow;
            let stream = &mut streams[id as usize];
            let before = std::mem::replace(&mut stream.hops[hop as usize].offer, offer);
            // Beyond its limit it is the same to the other links.
            if same(before.min(stream.limit), offer.min(stream.limit)) {
                continue;
            }
            for other in stream.hops.iter().filter(|other| other.link != number) {
                ask(links, waiting, other.link);
            }
        }
    }
}

/// The link must answer again.
fn ask(links: &mut [Link], waiting: &mut VecDeque<u32>, link: u32) {
    if !std::mem::replace(&mut links[link as usize].waits, true) {
        waiting.push_back(link);
    }
}

fn same(a: f64, b: f64) -> bool {
    // Equal infinities have no difference that is a number.
    a == b || (a - b).abs() <= SAME * a.abs().min(b.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: f64 = f64::INFINITY;

    fn links(numbers: &[u32]) -> Vec<LinkId> {
        numbers.iter().map(|n| LinkId(*n)).collect()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6 * b.abs().max(1.0)
    }

    #[test]
    fn a_stream_held_back_elsewhere_leaves_its_part() {
        // The textbook's line: links of 1, 1 and 2; two streams share the first, three the second.
        let mut rates = Rates::new(&[1.0, 1.0, 2.0]);
        let ways = [&[0, 1][..], &[0], &[1], &[1, 2], &[2]];
        let streams: Vec<_> = ways.iter().map(|way| rates.add(0, &links(way))).collect();
        for stream in &streams {
            rates.set(*stream, 1.0, ANY);
        }
        rates.settle();
        let found: Vec<_> = streams.iter().map(|s| rates.rate(*s)).collect();
        let third = 1.0 / 3.0;
        let wanted = [third, 2.0 * third, third, third, 5.0 * third];
        assert!(found.iter().zip(wanted).all(|(f, w)| close(*f, w)), "{found:?}");
        // One leaves: half each on the second link.
        rates.set(streams[2], 0.0, ANY);
        rates.settle();
        assert!(close(rates.rate(streams[0]), 0.5) && close(rates.rate(streams[3]), 0.5));
        assert!(close(rates.rate(streams[4]), 1.5) && rates.rate(streams[2]) == 0.0);
        assert_eq!(rates.unsettled(), 0);
    }

    #[test]
    fn a_class_has_its_weight_on_a_link_however_many_flows_the_others_have() {
        let mut rates = Rates::new(&[100.0, 100.0]);
        let weight = |weight| Queue { priority: 0, weight };
        rates.set_queues(LinkId(1), vec![weight(3.0), weight(1.0)], vec![0, 1]);
        let (few, many) = (rates.add(1, &links(&[0, 1])), rates.add(0, &links(&[1])));
        rates.set(few, 1.0, ANY);
        rates.set(many, 99.0, ANY);
        rates.settle();
        assert!(close(rates.rate(few), 25.0) && close(rates.rate(many), 75.0));
        rates.set(many, 99.0, 60.0);
        rates.settle();
        assert!(close(rates.rate(few), 40.0) && close(rates.rate(many), 60.0));
        assert_eq!(rates.refused(many), 0.0);
        rates.set_capacity(LinkId(1), 40.0);
        rates.settle();
        assert!(close(rates.rate(few), 10.0) && close(rates.rate(many), 30.0));
        assert!(close(rates.refused(many), 0.5));
    }
}
