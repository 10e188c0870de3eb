//! The rates of all streams in a network. Each link divides its rate as in [`super::link_share`].
//!
//! # Problem
//!
//! The demand of a stream at a link is the rate that the stream's other links permit. The permitted
//! rate depends on other streams, and the demands of these streams depend on the link.
//!
//! # Approach
//!
//! Each link offers a maximum rate to each of its streams. The offers of a stream's other links
//! limit the stream's demand at a link. If an offer changes, the other links of the affected stream
//! recompute their offers. The computation of rates ends when no link's offer changes. A stream's
//! rate is the minimum of its limit and its offers.
//!
//! With one queue per link, the method is known from the literature: advertised rates yield max-min
//! fair rates (Bertsekas and Gallager, "Data Networks", §6.5.2). With one queue per link, the
//! offers of bottleneck links become stable one after the other, and stay stable. With several
//! queues per link, several sets of rates may be solutions. For example, two streams may share two
//! saturated links with opposite weights. Every ratio between the two weights is a solution, so the
//! offers of the links can alternate forever. If a link recomputes its offers often, the link is
//! damped. A damped link moves an offer only half of the way to its new value. For a damped link,
//! offers that differ by less than 0.1 % are equal. If the final rates exceed a link's capacity,
//! the rates are reduced in proportion. [`Rates::cut`] counts the reductions of rates to the
//! capacity of a link.
//!
//! Rates are in bits per second. A stream is a group of flows with the same path, queue and limit.
//!
//! # Cost
//!
//! The computing time is proportional to the number of changed offers of links. Most changes affect
//! only the links of one stream, and the links of other streams with the same bottleneck.
//!
//! A link would compute the same offers again if no demand at the link has changed, for example
//! because the changed offer is not the one that limits the stream. Such a link keeps its offers,
//! but takes its turn, so that all other links recompute in the same order. A link also keeps
//! infinite offers while a bound of the demands is below the link's capacity. The results are
//! therefore the same bits as if each link recomputed its offers in each turn.

use std::collections::VecDeque;

use super::link_share::{Asker, Level, Queue, Scratch, divide};

/// Index of a link in the list passed to [`Rates::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl LinkId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identifier of a stream, which [`Rates::add`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(u32);

/// Number of times that a link recomputes its offers without damping in one [`Rates::settle`]. With
/// damping, offers move only half of the way to their new value, and offers that differ by less
/// than [`NEAR`] count as equal.
const TURNS_FREE: u32 = 8;
/// Maximum number of times that a link recomputes its offers in one [`Rates::settle`].
const TURNS_MAX: u32 = 64;
/// Relative difference below which two offers of a damped link count as equal, after more than
/// [`TURNS_FREE`] computations of the link's offers.
const NEAR: f64 = 1e-3;
/// Relative difference below which two rates count as equal.
const SAME: f64 = 1e-10;
/// Fraction of a link's capacity up to which [`Work::most`] proves that the link meets all demands.
/// The rest of the capacity is far more than the rounding errors of the bound.
const SURE: f64 = 0.999;

/// Maximum number of links in a stream's path: two interfaces, a core link, two virtual links for
/// the hose guarantees, and one spare link.
pub const HOPS_MAX: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Hop {
    link: u32,
    /// Index of the stream in `Link::members`.
    place: u32,
    /// Maximum rate that the link offers to the stream, in bits/s.
    offer: f64,
}

impl Hop {
    const NONE: Self = Self { link: 0, place: 0, offer: f64::INFINITY };
}

#[derive(Clone, Debug)]
struct Path {
    hops: [Hop; HOPS_MAX],
    len: usize,
}

impl Path {
    fn hops(&self) -> &[Hop] {
        &self.hops[..self.len]
    }
}

/// The two smallest offers that links make to a stream. They are cached, because links read offers
/// far more often than offers change.
#[derive(Clone, Copy, Debug)]
struct Least {
    /// The smallest offers in bits/s, the smallest first.
    offers: [f64; 2],
    /// Index of the link in the stream's path that makes the smallest offer.
    at: usize,
}

impl Least {
    const NONE: Self = Self { offers: [f64::INFINITY; 2], at: 0 };

    fn of(hops: &[Hop]) -> Self {
        let mut least = Self::NONE;
        for (at, hop) in hops.iter().enumerate() {
            if hop.offer < least.offers[0] {
                least = Self { offers: [hop.offer, least.offers[0]], at };
            } else {
                least.offers[1] = least.offers[1].min(hop.offer);
            }
        }
        least
    }

    /// Returns the smallest offer of all links except that of hop `except`.
    fn without(&self, except: usize) -> f64 {
        self.offers[usize::from(except == self.at)]
    }

    /// Returns the smallest offers after the offer of hop `changed` has changed from `before`.
    fn after(self, hops: &[Hop], changed: usize, before: f64) -> Self {
        let offer = hops[changed].offer;
        let [first, second] = self.offers;
        if changed == self.at && offer <= second {
            Self { offers: [offer, second], at: changed }
        } else if changed != self.at && offer < first {
            Self { offers: [offer, first], at: changed }
        } else if changed != self.at && before > second {
            Self { offers: [first, second.min(offer)], at: self.at }
        } else {
            Self::of(hops)
        }
    }
}

/// What links read of a stream, apart from its path.
#[derive(Clone, Debug)]
struct Stream {
    class: usize,
    flows: f64,
    limit: f64,
    least: Least,
}

impl Stream {
    /// Returns the stream's demand at the link of hop `except`: the rate that the stream's other
    /// links permit.
    fn demand(&self, except: usize) -> f64 {
        self.limit.min(self.least.without(except))
    }

    fn rate(&self) -> f64 {
        self.limit.min(self.least.offers[0])
    }
}

#[derive(Clone, Debug)]
struct Link {
    capacity: f64,
    queues: Vec<Queue>,
    /// Index of the queue for each class of streams. Streams of a class beyond the end of
    /// `queue_of` use the first queue of the link.
    queue_of: Vec<usize>,
    members: Vec<(u32, u32)>,
    levels: Vec<Level>,
    /// Whether all offers of the link are infinite, and no queue has a maximum rate.
    is_open: bool,
}

/// Work of a link in [`Rates::settle`].
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Whether the link must recompute its offers.
    waits: bool,
    /// Whether recomputed offers may differ from the present offers, because a demand, a flow or
    /// the link itself has changed, or because the present offers are those of a damped link.
    is_stale: bool,
    /// Number of times that the link recomputed its offers in the current [`Rates::settle`].
    turns: u32,
    /// Upper bound of the sum of all demands at the link, in bits/s.
    most: f64,
}

impl Work {
    const NONE: Self = Self { waits: false, is_stale: false, turns: 0, most: f64::INFINITY };

    /// Records that any offers of the link may have to change.
    fn renew(&mut self) {
        (self.is_stale, self.most) = (true, f64::INFINITY);
    }

    /// Records that the demand of a stream at the link changes from `before` to `after`.
    fn note_demand(&mut self, before: f64, after: f64) {
        if before != after {
            self.is_stale = true;
            self.most += (after - before).max(0.0);
        }
    }
}

impl Link {
    fn queue(&self, class: usize) -> usize {
        self.queue_of.get(class).copied().unwrap_or(0)
    }
}

/// All links and streams of a network, and the rates of the streams.
#[derive(Clone, Debug)]
pub struct Rates {
    links: Vec<Link>,
    /// Work of each link.
    work: Vec<Work>,
    streams: Vec<Stream>,
    /// Path of each stream.
    paths: Vec<Path>,
    /// Indices of the links that must recompute their offers.
    waiting: VecDeque<u32>,
    askers: Vec<Asker>,
    scratch: Scratch,
    /// Indices of the links that recomputed their offers in the current [`Rates::settle`].
    asked: Vec<u32>,
    cut: u64,
}

impl Rates {
    /// Creates links with the given capacities in bits/s. Each link has one queue.
    #[must_use]
    pub fn new(capacities: &[f64]) -> Self {
        let link = |capacity: &f64| Link {
            capacity: *capacity,
            queues: vec![Queue::ONLY],
            queue_of: Vec::new(),
            members: Vec::new(),
            levels: Vec::new(),
            is_open: true,
        };
        Self {
            links: capacities.iter().map(link).collect(),
            work: vec![Work::NONE; capacities.len()],
            streams: Vec::new(),
            paths: Vec::new(),
            waiting: VecDeque::new(),
            askers: Vec::new(),
            scratch: Scratch::default(),
            asked: Vec::new(),
            cut: 0,
        }
    }

    /// Adds a stream that uses the links in `path` and has no flows.
    pub fn add(&mut self, class: usize, path: &[LinkId]) -> StreamId {
        assert!(path.len() <= HOPS_MAX, "a path has {} links, the limit is {HOPS_MAX}", path.len());
        let mut hops = [Hop::NONE; HOPS_MAX];
        for (hop, link) in hops.iter_mut().zip(path) {
            hop.link = link.0;
        }
        let id = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let limit = f64::INFINITY;
        self.streams.push(Stream { class, flows: 0.0, limit, least: Least::NONE });
        self.paths.push(Path { hops, len: path.len() });
        StreamId(id)
    }

    /// Sets a stream's number of flows, and the limit of all its flows together in bits/s.
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
        self.path_changed(id);
    }

    /// Sets the class of a stream, which selects the stream's queue on each link.
    pub fn set_class(&mut self, id: StreamId, class: usize) {
        let stream = &mut self.streams[id.0 as usize];
        if std::mem::replace(&mut stream.class, class) == class || stream.flows <= 0.0 {
            return;
        }
        self.path_changed(id);
    }

    /// Sets a link's capacity in bits/s.
    pub fn set_capacity(&mut self, link: LinkId, capacity: f64) {
        if !same(self.links[link.index()].capacity, capacity) {
            self.links[link.index()].capacity = capacity;
            self.link_changed(link.0);
        }
    }

    /// Sets a link's queues. `queue_of[class]` is the index of the queue that streams of the class
    /// use. Classes beyond the end of `queue_of` use the first queue.
    pub fn set_queues(&mut self, link: LinkId, queues: Vec<Queue>, queue_of: Vec<usize>) {
        assert!(queue_of.iter().all(|q| *q < queues.len()), "queue_of names a missing queue");
        let at = &mut self.links[link.index()];
        (at.queues, at.queue_of) = (queues, queue_of);
        at.levels.clear();
        self.link_changed(link.0);
    }

    /// Makes the links in a stream's path recompute their offers, because the stream has changed.
    fn path_changed(&mut self, id: StreamId) {
        for at in 0..self.paths[id.0 as usize].len {
            let link = self.paths[id.0 as usize].hops[at].link;
            self.link_changed(link);
        }
    }

    /// Makes a link recompute its offers, because the link or one of its streams has changed.
    fn link_changed(&mut self, link: u32) {
        self.work[link as usize].renew();
        ask(&mut self.work, &mut self.waiting, link);
    }

    /// Returns the rate of a stream in bits/s, according to the last [`Self::settle`].
    #[must_use]
    pub fn rate(&self, id: StreamId) -> f64 {
        let stream = &self.streams[id.0 as usize];
        if stream.flows > 0.0 { stream.rate() } else { 0.0 }
    }

    /// Returns the largest fraction of its demand that any queue on the stream's path refuses.
    #[must_use]
    pub fn refused(&self, id: StreamId) -> f64 {
        let stream = &self.streams[id.0 as usize];
        let at = |hop: &Hop| {
            let link = &self.links[hop.link as usize];
            if link.is_open {
                return 0.0;
            }
            link.levels.get(link.queue(stream.class)).map_or(0.0, |level| level.refused)
        };
        self.paths[id.0 as usize].hops().iter().map(at).fold(0.0, f64::max)
    }

    /// Returns how many times rates had to be reduced to fit a link.
    #[must_use]
    pub const fn cut(&self) -> u64 {
        self.cut
    }

    /// Recomputes the offers of links until the offers are stable.
    pub fn settle(&mut self) {
        let mut rough = false;
        while let Some(number) = self.waiting.pop_front() {
            let work = &mut self.work[number as usize];
            work.waits = false;
            if work.turns == 0 {
                self.asked.push(number);
            }
            work.turns += 1;
            let is_damped = work.turns > TURNS_FREE;
            rough |= is_damped;
            if work.turns <= TURNS_MAX && (work.is_stale || is_damped) {
                work.is_stale = is_damped;
                self.answer(number, is_damped);
            }
        }
        while let Some(number) = self.asked.pop() {
            self.work[number as usize].turns = 0;
        }
        if rough {
            self.fit();
        }
    }

    /// Reduces the rates on each link on which their sum exceeds the capacity. No rate increases.
    fn fit(&mut self) {
        let Self { links, streams, paths, .. } = self;
        let mut cut = false;
        for link in links.iter_mut().filter(|link| link.capacity.is_finite()) {
            let rates = link.members.iter().map(|(stream, _)| streams[*stream as usize].rate());
            let sum: f64 = rates.sum();
            if sum <= link.capacity * (1.0 + 1e-9) {
                continue;
            }
            cut = true;
            link.is_open = false;
            for (id, hop) in &link.members {
                let (stream, path) = (&mut streams[*id as usize], &mut paths[*id as usize]);
                path.hops[*hop as usize].offer = stream.rate() * link.capacity / sum;
                stream.least = Least::of(path.hops());
            }
        }
        if cut {
            // The offers of these links and the demands at other links have changed.
            self.work.iter_mut().for_each(Work::renew);
        }
        self.cut += u64::from(cut);
    }

    fn join(&mut self, id: u32) {
        self.streams[id as usize].least = Least::NONE;
        let path = &mut self.paths[id as usize];
        for (at, hop) in (0_u32..).zip(&mut path.hops[..path.len]) {
            let members = &mut self.links[hop.link as usize].members;
            hop.place = u32::try_from(members.len()).unwrap_or(u32::MAX);
            hop.offer = f64::INFINITY;
            members.push((id, at));
        }
    }

    fn leave(&mut self, id: u32) {
        for at in 0..self.paths[id as usize].len {
            let Hop { link, place, .. } = self.paths[id as usize].hops[at];
            let members = &mut self.links[link as usize].members;
            members.swap_remove(place as usize);
            if let Some((moved, hop)) = members.get(place as usize).copied() {
                self.paths[moved as usize].hops[hop as usize].place = place;
            }
        }
    }

    /// Recomputes the offers of a link.
    fn answer(&mut self, number: u32, is_damped: bool) {
        let Self { links, work, streams, askers, scratch, .. } = self;
        let (link, work) = (&mut links[number as usize], &mut work[number as usize]);
        if link.is_open && (link.capacity.is_infinite() || work.most <= SURE * link.capacity) {
            // All offers stay infinite.
            return;
        }
        askers.clear();
        askers.extend(link.members.iter().map(|(id, hop)| {
            let stream = &streams[*id as usize];
            let demand = stream.demand(*hop as usize);
            Asker { queue: link.queue(stream.class), flows: stream.flows, demand }
        }));
        work.most = divide(link.capacity, &link.queues, askers, scratch, &mut link.levels);
        let is_full = work.most > link.capacity;
        if link.is_open && !is_full {
            return;
        }
        // A damped link reaches infinite offers only in several steps.
        link.is_open = !is_full && !is_damped;
        self.offer(number, is_damped);
    }

    /// Makes the offers of a link that follow from the levels of its queues, and asks the other
    /// links of each stream for which the offer changes.
    fn offer(&mut self, number: u32, is_damped: bool) {
        let Self { links, work, streams, paths, waiting, askers, .. } = self;
        let link = &links[number as usize];
        for ((id, hop), asker) in link.members.iter().zip(&*askers) {
            let (path, hop) = (&mut paths[*id as usize], *hop as usize);
            let offer = asker.flows * link.levels[asker.queue].per_flow;
            let before = path.hops[hop].offer;
            let offer = if is_damped { between(before, offer) } else { offer };
            if before == offer {
                continue;
            }
            path.hops[hop].offer = offer;
            let stream = &mut streams[*id as usize];
            let (limit, least) = (stream.limit, stream.least);
            stream.least = least.after(path.hops(), hop, before);
            // Changes above the stream's limit do not affect other links.
            let (before, offer) = (before.min(limit), offer.min(limit));
            if before == offer {
                continue;
            }
            let is_near = is_damped && (before - offer).abs() <= NEAR * before.min(offer);
            let asks = !same(before, offer) && !is_near;
            for (at, other) in path.hops().iter().enumerate().filter(|(at, _)| *at != hop) {
                let (was, is) = (least.without(at), stream.least.without(at));
                work[other.link as usize].note_demand(limit.min(was), limit.min(is));
                if asks && other.link != number {
                    ask(work, waiting, other.link);
                }
            }
        }
    }
}

/// Returns the mean of a link's old and new offer. If only the new offer of the link is infinite,
/// returns twice the old offer. If the old offer of the link is infinite, returns the new offer.
fn between(before: f64, offer: f64) -> f64 {
    match (before.is_finite(), offer.is_finite()) {
        (true, true) => f64::midpoint(before, offer),
        (true, false) => 2.0 * before,
        (false, _) => offer,
    }
}

/// Adds a link to the queue of links that must recompute their offers.
fn ask(work: &mut [Work], waiting: &mut VecDeque<u32>, link: u32) {
    if !std::mem::replace(&mut work[link as usize].waits, true) {
        waiting.push_back(link);
    }
}

fn same(a: f64, b: f64) -> bool {
    // The difference of two infinite values is NaN.
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
        // The textbook example: links with capacities 1, 1 and 2. Two streams share the first link,
        // and three streams share the second link.
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
        // One stream leaves. The other two get half each on the second link.
        rates.set(streams[2], 0.0, ANY);
        rates.settle();
        assert!(close(rates.rate(streams[0]), 0.5) && close(rates.rate(streams[3]), 0.5));
        assert!(close(rates.rate(streams[4]), 1.5) && rates.rate(streams[2]) == 0.0);
        assert_eq!(rates.cut(), 0);
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
        // Without a queue of its own, the single flow shares with the others.
        rates.set_class(few, 0);
        rates.settle();
        assert!(close(rates.rate(few), 0.4) && close(rates.rate(many), 39.6));
    }
}
