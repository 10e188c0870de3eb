//! Tests of invariants of the rates in any network. No link exceeds its capacity. Every stream has
//! its full demand or a bottleneck. Rates do not depend on earlier states of the network.

use penstock_sim::fabric::link_share::Queue;
use penstock_sim::fabric::rates::{LinkId, Rates, StreamId};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Stream {
    class: usize,
    flows: f64,
    limit: f64,
    path: Vec<LinkId>,
}

#[derive(Debug, Clone)]
struct Net {
    capacities: Vec<f64>,
    /// Priority and weight of each link's queues. A stream of class c uses the queue with the index
    /// c modulo the number of queues.
    queues: Vec<Vec<Queue>>,
    streams: Vec<Stream>,
}

const CLASSES: usize = 4;

fn queue(priorities: u8) -> impl Strategy<Value = Queue> {
    (0..priorities, 1..20_u32)
        .prop_map(|(priority, weight)| Queue { priority, weight: f64::from(weight) })
}

fn stream(links: usize) -> impl Strategy<Value = Stream> {
    let path = prop::sample::subsequence(
        (0..u32::try_from(links).unwrap()).collect::<Vec<_>>(),
        1..=links.min(4),
    );
    let limit = prop_oneof![Just(f64::INFINITY), (1..2000_u32).prop_map(f64::from)];
    (0..CLASSES, 1..5_u32, limit, path).prop_map(|(class, flows, limit, path)| Stream {
        class,
        flows: f64::from(flows),
        limit,
        path: path.into_iter().map(LinkId).collect(),
    })
}

fn net(links: usize, priorities: u8) -> impl Strategy<Value = Net> {
    let capacities = prop::collection::vec((10..1000_u32).prop_map(f64::from), links);
    let queues =
        prop::collection::vec(prop::collection::vec(queue(priorities), 1..=CLASSES), links);
    let streams = prop::collection::vec(stream(links), 1..40);
    (capacities, queues, streams).prop_map(|(capacities, queues, streams)| Net {
        capacities,
        queues,
        streams,
    })
}

impl Net {
    fn queue_of(&self, link: usize, class: usize) -> usize {
        class % self.queues[link].len()
    }

    fn build(&self) -> (Rates, Vec<StreamId>) {
        let mut rates = Rates::new(&self.capacities);
        for (number, queues) in (0_u32..).zip(&self.queues) {
            let of = |class| self.queue_of(number as usize, class);
            rates.set_queues(LinkId(number), queues.clone(), (0..CLASSES).map(of).collect());
        }
        let ids = self.streams.iter().map(|s| rates.add(s.class, &s.path)).collect();
        (rates, ids)
    }

    fn settled(&self) -> (Rates, Vec<f64>) {
        let (mut rates, ids) = self.build();
        for (id, stream) in ids.iter().zip(&self.streams) {
            rates.set(*id, stream.flows, stream.limit);
        }
        rates.settle();
        let found = ids.iter().map(|id| rates.rate(*id)).collect();
        (rates, found)
    }

    /// Returns whether `link` is the bottleneck of stream `of`. A bottleneck is a full link on
    /// which no flow of the stream's queue has a higher rate. On the bottleneck of a stream, no
    /// queue of equal priority has a higher rate per weight than the stream's queue, and queues of
    /// later priority have rate 0.
    fn holds_back(&self, link: usize, of: usize, rates: &[f64]) -> bool {
        let on = |s: &&(usize, &Stream)| s.1.path.iter().any(|l| l.index() == link);
        let numbered: Vec<_> = self.streams.iter().enumerate().collect();
        let members: Vec<_> = numbered.iter().filter(on).collect();
        let sum: f64 = members.iter().map(|(i, _)| rates[*i]).sum();
        if sum < self.capacities[link] * (1.0 - 1e-6) {
            return false;
        }
        let queue = self.queue_of(link, self.streams[of].class);
        let mine = self.queues[link][queue];
        let per_flow = rates[of] / self.streams[of].flows;
        let in_queue = |q: usize| {
            let members = members.iter().filter(move |m| self.queue_of(link, m.1.class) == q);
            members.map(|(i, s)| (rates[*i], s.flows))
        };
        let most = in_queue(queue).map(|(rate, flows)| rate / flows).fold(0.0, f64::max);
        let level = |q: usize| in_queue(q).map(|m| m.0).sum::<f64>() / self.queues[link][q].weight;
        let ahead = (0..self.queues[link].len()).filter(|q| *q != queue).all(|q| {
            let other = self.queues[link][q];
            match other.priority.cmp(&mine.priority) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => level(q) <= level(queue) * (1.0 + 1e-6) + 1e-6,
                std::cmp::Ordering::Greater => level(q) <= 1e-6,
            }
        });
        per_flow >= most * (1.0 - 1e-6) - 1e-9 && ahead
    }

    fn sum_on(&self, link: usize, rates: &[f64]) -> f64 {
        let on = |s: &Stream| s.path.iter().any(|l| l.index() == link);
        self.streams.iter().zip(rates).filter(|(s, _)| on(s)).map(|(_, rate)| rate).sum()
    }

    /// Checks that the streams' rates exceed no link's capacity. Returns the rates of all streams.
    fn within_capacities(&self) -> Result<(Rates, Vec<f64>), TestCaseError> {
        let (rates, found) = self.settled();
        for (link, capacity) in self.capacities.iter().enumerate() {
            let sum = self.sum_on(link, &found);
            prop_assert!(sum <= capacity * (1.0 + 1e-6), "link {link}: {sum} of {capacity}");
        }
        Ok((rates, found))
    }

    fn free(&self, of: usize, rates: &[f64]) -> bool {
        rates[of] >= self.streams[of].limit * (1.0 - 1e-6)
    }

    /// Checks that every stream gets its demand or has a bottleneck.
    fn check(&self) -> Result<(), TestCaseError> {
        let (rates, found) = self.within_capacities()?;
        prop_assert_eq!(rates.cut(), 0);
        for (of, stream) in self.streams.iter().enumerate() {
            let held = || stream.path.iter().any(|l| self.holds_back(l.index(), of, &found));
            let has = found[of];
            prop_assert!(self.free(of, &found) || held(), "nothing holds {of} back at {has}");
        }
        Ok(())
    }

    /// Checks that every stream gets its demand or uses a full link.
    fn conserves_work(&self) -> Result<(), TestCaseError> {
        let (_, found) = self.within_capacities()?;
        for (of, stream) in self.streams.iter().enumerate() {
            let full =
                |l: &LinkId| self.sum_on(l.index(), &found) >= 0.98 * self.capacities[l.index()];
            let has = found[of];
            prop_assert!(self.free(of, &found) || stream.path.iter().any(full), "{of}: {has}");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn on_one_link_every_stream_is_limited_by_it_or_gets_its_demand(net in net(1, 2)) {
        net.check()?;
    }

    #[test]
    fn without_queues_rates_are_max_min_fair_on_any_network(mut net in net(6, 1)) {
        net.queues.iter_mut().for_each(|queues| queues.truncate(1));
        net.check()?;
    }

    #[test]
    fn with_queues_on_a_tree_every_stream_gets_its_demand_or_passes_a_full_link(
        mut net in net(5, 1),
    ) {
        // As in a tree, each path consists of a host link up, one core link, and a host link down.
        for (number, stream) in net.streams.iter_mut().enumerate() {
            let (up, down) = (number % 2, 3 + number / 2 % 2);
            let link = |number: usize| LinkId(u32::try_from(number).unwrap());
            stream.path = vec![link(up), link(2), link(down)];
        }
        net.conserves_work()?;
    }

    #[test]
    fn rates_depend_on_the_present_network_and_not_on_its_history(
        net in net(4, 1), others in prop::collection::vec((0..40_usize, 0..4_u32), 0..40),
    ) {
        let mut net = net;
        net.queues.iter_mut().for_each(|queues| queues.truncate(1));
        let (mut rates, ids) = net.build();
        for (at, flows) in others {
            rates.set(ids[at % ids.len()], f64::from(flows), f64::INFINITY);
            rates.settle();
        }
        for (id, stream) in ids.iter().zip(&net.streams) {
            rates.set(*id, stream.flows, stream.limit);
            rates.settle();
        }
        let (_, fresh) = net.settled();
        for (id, fresh) in ids.iter().zip(&fresh) {
            let found = rates.rate(*id);
            prop_assert!((found - fresh).abs() <= 1e-6 * fresh.max(1.0), "{found}, anew {fresh}");
        }
    }
}
