//! Compares the rates of streams with a plain calculation, bit for bit, after any sequence of
//! changes.
//!
//! In the plain calculation, each link recomputes all offers in each turn, each pass over the flows
//! visits all flows, and nothing is cached.

use std::collections::VecDeque;

use penstock_sim::fabric::link_share::Queue;
use penstock_sim::fabric::rates::{LinkId, Rates, StreamId};
use proptest::prelude::*;

const ANY: f64 = f64::INFINITY;
/// Number of classes of streams.
const CLASSES: usize = 4;
const LINKS: usize = 5;

#[derive(Debug, Clone)]
enum Change {
    Set { stream: usize, flows: f64, limit: f64 },
    Class { stream: usize, class: usize },
    Capacity { link: usize, capacity: f64 },
    Queues { link: usize, queues: Vec<Queue>, queue_of: Vec<usize> },
    Settle,
}

#[derive(Debug, Clone, Copy)]
struct Hop {
    link: usize,
    offer: f64,
}

#[derive(Debug)]
struct PlainStream {
    class: usize,
    flows: f64,
    limit: f64,
    path: Vec<Hop>,
}

impl PlainStream {
    /// Returns the rate that the limit and all links except that of hop `except` permit.
    fn demand(&self, except: Option<usize>) -> f64 {
        let others = self.path.iter().enumerate().filter(|(at, _)| Some(*at) != except);
        others.map(|(_, hop)| hop.offer).fold(self.limit, f64::min)
    }
}

#[derive(Debug)]
struct PlainLink {
    capacity: f64,
    queues: Vec<Queue>,
    queue_of: Vec<usize>,
    /// Pairs of stream and hop.
    members: Vec<(usize, usize)>,
    /// Maximum rate of a flow and refused fraction, by queue.
    levels: Vec<(f64, f64)>,
    turns: u32,
}

#[derive(Debug)]
struct Plain {
    links: Vec<PlainLink>,
    streams: Vec<PlainStream>,
    waiting: VecDeque<usize>,
    cut: u64,
}

fn same(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-10 * a.abs().min(b.abs())
}

fn damped(before: f64, offer: f64) -> f64 {
    match (before.is_finite(), offer.is_finite()) {
        (true, true) => f64::midpoint(before, offer),
        (true, false) => 2.0 * before,
        (false, _) => offer,
    }
}

impl PlainLink {
    fn queue(&self, class: usize) -> usize {
        self.queue_of.get(class).copied().unwrap_or(0)
    }

    /// Divides the capacity among `askers`: queue, flows and demand.
    fn divide(&mut self, askers: &[(usize, f64, f64)]) {
        let count = self.queues.len();
        let (mut asked, mut flows) = (vec![0.0_f64; count], vec![0.0_f64; count]);
        for (queue, number, demand) in askers {
            asked[*queue] += demand;
            flows[*queue] += number;
        }
        self.levels = vec![(ANY, 0.0); count];
        if asked.iter().sum::<f64>() <= self.capacity {
            return;
        }
        let (mut share, open) = self.among_queues(&asked);
        for queue in (0..count).filter(|q| !open[*q]) {
            let met = share[queue] / asked[queue];
            let refused = if asked[queue].is_finite() { 1.0 - met } else { 1.0 };
            self.levels[queue] = (share[queue] / flows[queue], refused.clamp(0.0, 1.0));
        }
        let mut done: Vec<bool> = askers.iter().map(|asker| open[asker.0]).collect();
        loop {
            let mut settled = false;
            for (at, (queue, number, demand)) in askers.iter().enumerate() {
                if !done[at] && *demand < number * self.levels[*queue].0 {
                    share[*queue] -= demand;
                    flows[*queue] -= number;
                    (done[at], settled) = (true, true);
                }
            }
            if !settled {
                return;
            }
            for queue in (0..count).filter(|q| !open[*q] && flows[*q] > 0.5) {
                let level = share[queue] / flows[queue];
                self.levels[queue].0 = level.max(self.levels[queue].0);
            }
        }
    }

    /// Returns the rate of each queue, and whether the queue gets its whole demand.
    fn among_queues(&self, asked: &[f64]) -> (Vec<f64>, Vec<bool>) {
        let count = self.queues.len();
        let (mut share, mut open, mut done) =
            (vec![0.0; count], vec![true; count], vec![false; count]);
        let mut left = self.capacity;
        for priority in 0..=self.queues.iter().map(|q| q.priority).max().unwrap() {
            loop {
                let here = |q: &usize| self.queues[*q].priority == priority;
                let waiting: Vec<_> = (0..count).filter(|q| here(q) && !done[*q]).collect();
                let weights: f64 = waiting.iter().map(|q| self.queues[*q].weight).sum();
                let fair = |q: usize| self.queues[q].weight * (left / weights);
                if let Some(queue) = waiting.iter().copied().find(|q| asked[*q] <= fair(*q)) {
                    (share[queue], done[queue]) = (asked[queue], true);
                    left = (left - asked[queue]).max(0.0);
                    continue;
                }
                for queue in waiting {
                    (share[queue], open[queue], done[queue]) = (fair(queue), false, true);
                }
                if weights > 0.0 {
                    left = 0.0;
                }
                break;
            }
        }
        (share, open)
    }
}

impl Plain {
    fn new(capacities: &[f64], paths: &[Vec<usize>]) -> Self {
        let link = |capacity: &f64| PlainLink {
            capacity: *capacity,
            queues: vec![Queue::ONLY],
            queue_of: Vec::new(),
            members: Vec::new(),
            levels: Vec::new(),
            turns: 0,
        };
        let hop = |link: &usize| Hop { link: *link, offer: ANY };
        let stream = |path: &Vec<usize>| PlainStream {
            class: 0,
            flows: 0.0,
            limit: ANY,
            path: path.iter().map(hop).collect(),
        };
        Self {
            links: capacities.iter().map(link).collect(),
            streams: paths.iter().map(stream).collect(),
            waiting: VecDeque::new(),
            cut: 0,
        }
    }

    fn ask(&mut self, link: usize) {
        if !self.waiting.contains(&link) {
            self.waiting.push_back(link);
        }
    }

    fn ask_path(&mut self, stream: usize) {
        for hop in self.streams[stream].path.clone() {
            self.ask(hop.link);
        }
    }

    fn set(&mut self, id: usize, flows: f64, limit: f64) {
        let stream = &mut self.streams[id];
        let (had, has) = (stream.flows > 0.0, flows > 0.0);
        if (stream.flows - flows).abs() < f64::EPSILON && same(stream.limit, limit) {
            return;
        }
        (stream.flows, stream.limit) = (flows, limit);
        if !had && !has {
            return;
        }
        for (at, hop) in stream.path.iter_mut().enumerate() {
            let members = &mut self.links[hop.link].members;
            if !had {
                hop.offer = ANY;
                members.push((id, at));
            } else if !has {
                let place = members.iter().position(|member| *member == (id, at)).unwrap();
                members.swap_remove(place);
            }
        }
        self.ask_path(id);
    }

    fn change(&mut self, change: &Change) {
        match change.clone() {
            Change::Set { stream, flows, limit } => self.set(stream, flows, limit),
            Change::Class { stream, class } => {
                let before = std::mem::replace(&mut self.streams[stream].class, class);
                if before != class && self.streams[stream].flows > 0.0 {
                    self.ask_path(stream);
                }
            }
            Change::Capacity { link, capacity } => {
                if !same(self.links[link].capacity, capacity) {
                    self.links[link].capacity = capacity;
                    self.ask(link);
                }
            }
            Change::Queues { link, queues, queue_of } => {
                (self.links[link].queues, self.links[link].queue_of) = (queues, queue_of);
                self.links[link].levels.clear();
                self.ask(link);
            }
            Change::Settle => self.settle(),
        }
    }

    fn settle(&mut self) {
        let mut rough = false;
        while let Some(number) = self.waiting.pop_front() {
            self.links[number].turns += 1;
            rough |= self.links[number].turns > 8;
            if self.links[number].turns <= 64 {
                self.answer(number);
            }
        }
        self.links.iter_mut().for_each(|link| link.turns = 0);
        if rough {
            self.fit();
        }
    }

    fn answer(&mut self, number: usize) {
        let link = &mut self.links[number];
        let often = link.turns > 8;
        let asker = |(id, hop): &(usize, usize)| {
            let stream = &self.streams[*id];
            (link.queue(stream.class), stream.flows, stream.demand(Some(*hop)))
        };
        let askers: Vec<_> = link.members.iter().map(asker).collect();
        link.divide(&askers);
        for ((id, hop), (queue, flows, _)) in link.members.clone().into_iter().zip(askers) {
            let offer = flows * self.links[number].levels[queue].0;
            let stream = &mut self.streams[id];
            let before = stream.path[hop].offer;
            let offer = if often { damped(before, offer) } else { offer };
            stream.path[hop].offer = offer;
            let (before, offer) = (before.min(stream.limit), offer.min(stream.limit));
            if same(before, offer) || often && (before - offer).abs() <= 1e-3 * before.min(offer) {
                continue;
            }
            for other in stream.path.clone().iter().filter(|other| other.link != number) {
                self.ask(other.link);
            }
        }
    }

    fn fit(&mut self) {
        let mut cut = false;
        for link in &self.links {
            let rates = link.members.iter().map(|(id, _)| self.streams[*id].demand(None));
            let sum: f64 = rates.sum();
            if sum <= link.capacity * (1.0 + 1e-9) {
                continue;
            }
            cut = true;
            for (id, hop) in &link.members {
                let rate = self.streams[*id].demand(None) * link.capacity / sum;
                self.streams[*id].path[*hop].offer = rate;
            }
        }
        self.cut += u64::from(cut);
    }

    fn rate(&self, id: usize) -> f64 {
        let stream = &self.streams[id];
        if stream.flows > 0.0 { stream.demand(None) } else { 0.0 }
    }

    fn refused(&self, id: usize) -> f64 {
        let stream = &self.streams[id];
        let of = |hop: &Hop| {
            let link = &self.links[hop.link];
            link.levels.get(link.queue(stream.class)).map_or(0.0, |level| level.1)
        };
        stream.path.iter().map(of).fold(0.0, f64::max)
    }
}

fn link_id(link: usize) -> LinkId {
    LinkId(u32::try_from(link).unwrap())
}

fn path() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::subsequence((0..LINKS).collect::<Vec<_>>(), 1..=4).prop_shuffle()
}

fn capacity() -> impl Strategy<Value = f64> {
    prop_oneof![3 => (10..1000_u32).prop_map(f64::from), 1 => Just(ANY)]
}

fn queues() -> impl Strategy<Value = (Vec<Queue>, Vec<usize>)> {
    let queue = (0..2_u8, 1..20_u32)
        .prop_map(|(priority, weight)| Queue { priority, weight: f64::from(weight) });
    prop::collection::vec(queue, 1..=CLASSES).prop_flat_map(|queues| {
        let queue_of = prop::collection::vec(0..queues.len(), 0..=CLASSES);
        (Just(queues), queue_of)
    })
}

fn change(streams: usize) -> impl Strategy<Value = Change> {
    let limit = prop_oneof![Just(ANY), (1..600_u32).prop_map(f64::from)];
    prop_oneof![
        6 => (0..streams, 0..4_u32, limit)
            .prop_map(|(stream, n, limit)| Change::Set { stream, flows: f64::from(n), limit }),
        1 => (0..streams, 0..CLASSES).prop_map(|(stream, class)| Change::Class { stream, class }),
        1 => (0..LINKS, capacity())
            .prop_map(|(link, capacity)| Change::Capacity { link, capacity }),
        1 => (0..LINKS, queues())
            .prop_map(|(link, (queues, queue_of))| Change::Queues { link, queues, queue_of }),
        4 => Just(Change::Settle),
    ]
}

/// Capacities of the links, paths of the streams, and changes.
type Case = (Vec<f64>, Vec<Vec<usize>>, Vec<Change>);

fn case() -> impl Strategy<Value = Case> {
    prop::collection::vec(path(), 1..20).prop_flat_map(|paths| {
        let changes = prop::collection::vec(change(paths.len()), 1..80);
        (prop::collection::vec(capacity(), LINKS), Just(paths), changes)
    })
}

fn apply(rates: &mut Rates, ids: &[StreamId], change: &Change) {
    match change.clone() {
        Change::Set { stream, flows, limit } => rates.set(ids[stream], flows, limit),
        Change::Class { stream, class } => rates.set_class(ids[stream], class),
        Change::Capacity { link, capacity } => rates.set_capacity(link_id(link), capacity),
        Change::Queues { link, queues, queue_of } => {
            rates.set_queues(link_id(link), queues, queue_of);
        }
        Change::Settle => rates.settle(),
    }
}

proptest! {
    #[test]
    fn rates_are_the_bits_of_a_plain_calculation((capacities, paths, changes) in case()) {
        let mut plain = Plain::new(&capacities, &paths);
        let mut rates = Rates::new(&capacities);
        let links = |path: &Vec<usize>| path.iter().map(|link| link_id(*link)).collect();
        let links: Vec<Vec<LinkId>> = paths.iter().map(links).collect();
        let ids: Vec<_> = links.iter().map(|path| rates.add(0, path)).collect();
        for change in changes.iter().chain([&Change::Settle]) {
            plain.change(change);
            apply(&mut rates, &ids, change);
            if !matches!(change, Change::Settle) {
                continue;
            }
            for (at, id) in ids.iter().enumerate() {
                let (found, wanted) = (rates.rate(*id), plain.rate(at));
                prop_assert_eq!(found.to_bits(), wanted.to_bits(), "{} of {}", found, wanted);
                let (found, wanted) = (rates.refused(*id), plain.refused(at));
                prop_assert_eq!(found.to_bits(), wanted.to_bits(), "{} of {}", found, wanted);
            }
            prop_assert_eq!(rates.cut(), plain.cut);
        }
    }
}
