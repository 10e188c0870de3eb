//! Tests that the hosts of a tenant together send no more than the tenant's hose guarantee over a
//! link between senders and receivers, for any demands, and that they can use the guarantee.

use std::collections::BTreeMap;

use penstock_fabric::rate_alloc::UNLIMITED;
use penstock_fabric::rate_alloc::flow_count::FLOWS_MAX;
use penstock_fabric::rate_alloc::hose_pairs::{HosePairs, Member, NEW_PERIODS, share};
use penstock_fabric::rate_alloc::host_rates::{Answer, Hose, PairId, ReceivedPair, SentPair};
use penstock_units::{BitsPerSecond, Nanos};
use proptest::prelude::*;

const MBIT: u64 = 1_000_000;
const PERIOD: Nanos = Nanos::from_millis(50);
/// Number of periods of a second.
const SECOND: usize = 20;
/// Periods of a second, for rates.
const PERIODS: u64 = 20;
/// Number of the only VM of each host.
const VM: u16 = 1;

/// A pair of a sender's VM and a receiver's VM.
#[derive(Clone, Copy, Debug)]
struct Pair {
    sent: SentPair,
    limit: Option<BitsPerSecond>,
    /// Part of the sender's guarantee, demand and number of flows, for the next question.
    told: Option<([BitsPerSecond; 2], u32)>,
    asked: ([BitsPerSecond; 2], u32),
    questions: u64,
    part: Option<BitsPerSecond>,
    /// Period of the next question, and periods between two questions.
    asks: (u64, u64),
}

impl Pair {
    fn new(receiver: usize) -> Self {
        let id = PairId { vm: VM, peer: u64::try_from(receiver).unwrap(), epoch: 1 };
        Self {
            sent: SentPair { id, bytes: 0, refused: 0, asked: 0, answer: None, flows: 0 },
            limit: None,
            told: None,
            asked: ([BitsPerSecond(0); 2], 0),
            questions: 0,
            part: None,
            asks: (0, 2),
        }
    }

    /// Asks the receiver's host if it is time. The host answers at once if it knows the part.
    fn ask(&mut self, period: u64) {
        let Some(told) = self.told.filter(|_| period >= self.asks.0) else { return };
        self.asks.0 = period + self.asks.1;
        self.asked = told;
        self.questions += 1;
        self.sent.asked += 1;
        if let Some(part) = self.part {
            let question = self.sent.asked;
            self.sent.answer = Some(Answer { question, part, ..Answer::default() });
        }
    }
}

/// Hosts with one VM each of the same tenant. All frames cross a link from the senders to the
/// receivers.
struct Net {
    hose: Hose,
    senders: Vec<HosePairs>,
    receivers: Vec<HosePairs>,
    pairs: Vec<Vec<Option<Pair>>>,
    /// Sketch of the flows of each sender's pairs.
    sketches: Vec<u64>,
    /// Limit of a new pair of each sender.
    firsts: Vec<BitsPerSecond>,
    /// Bytes that arrived at each receiver.
    totals: Vec<u64>,
    periods: u64,
    /// Periods between two questions of each pair; `None` if the hosts determine them.
    ask_every: Option<u64>,
}

/// Reduces `rates` in proportion, so that their sum is at most `most`.
fn scale(rates: &mut [u64], most: u64) {
    let sum: u64 = rates.iter().sum();
    for rate in rates.iter_mut().filter(|_| sum > most) {
        let wide = u128::from(*rate) * u128::from(most) / u128::from(sum);
        *rate = u64::try_from(wide).unwrap();
    }
}

impl Net {
    fn new((senders, receivers): (usize, usize), [send, receive]: [u64; 2]) -> Self {
        Self {
            hose: Hose { send: BitsPerSecond(send), receive: BitsPerSecond(receive) },
            senders: vec![HosePairs::new(); senders],
            receivers: vec![HosePairs::new(); receivers],
            pairs: vec![vec![None; receivers]; senders],
            sketches: vec![1; senders],
            firsts: vec![BitsPerSecond(send / 2); senders],
            totals: vec![0; receivers],
            periods: 0,
            ask_every: None,
        }
    }

    /// Sets the flows of each sender's pairs.
    fn flows(&mut self, sketches: &[u64]) {
        self.sketches.iter_mut().zip(sketches).for_each(|(own, sketch)| *own = *sketch);
    }

    /// Returns the hose guarantee of the link in bits per second.
    fn guarantee(&self) -> u64 {
        let count = |hosts: &[HosePairs]| u64::try_from(hosts.len()).unwrap();
        let send = self.hose.send.0 * count(&self.senders);
        send.min(self.hose.receive.0 * count(&self.receivers))
    }

    /// Runs a period, in which each sender's VM offers `demands` bits per second to each receiver.
    /// Returns the bits that arrived at each receiver.
    fn period(&mut self, demands: &[Vec<u64>]) -> Vec<u64> {
        self.periods += 1;
        let mut arrived = vec![0; self.receivers.len()];
        for (sender, demands) in demands.iter().enumerate() {
            self.send(sender, demands, &mut arrived);
        }
        let now = Nanos(PERIOD.0 * self.periods);
        let members: BTreeMap<u16, Member> =
            [(VM, Member { tenant: 0, hose: self.hose, is_held: true })].into();
        for (receiver, bits) in arrived.iter().enumerate() {
            self.totals[receiver] += bits / 8;
            let total = [(VM, self.totals[receiver])].into_iter();
            self.receivers[receiver].arrived(now, &members, total);
            self.divide(receiver, now, &members);
        }
        for sender in 0..self.senders.len() {
            let sent: Vec<SentPair> =
                self.pairs[sender].iter().flatten().map(|pair| pair.sent).collect();
            let limits = self.senders[sender].period_ends(now, &members, &sent, &[]);
            for send in limits.send {
                let receiver = usize::try_from(send.id.peer).unwrap();
                let pair = self.pairs[sender][receiver].as_mut().unwrap();
                pair.limit = send.limit;
                pair.told = Some(([send.part, send.want], send.flows));
                pair.asks.1 = self.ask_every.unwrap_or(send.ask_every.0.div_ceil(PERIOD.0));
            }
            self.firsts[sender] = limits.first[0].1;
        }
        arrived
    }

    fn divide(&mut self, receiver: usize, now: Nanos, members: &BTreeMap<u16, Member>) {
        let mut received = Vec::new();
        for (sender, pairs) in self.pairs.iter().enumerate() {
            let Some(pair) = pairs[receiver].filter(|pair| pair.questions > 0) else { continue };
            let id = PairId { vm: VM, peer: u64::try_from(sender).unwrap(), epoch: 1 };
            let (([part, want], flows), questions) = (pair.asked, pair.questions);
            let rate = BitsPerSecond(0);
            received.push(ReceivedPair { id, questions, part, want, rate, flows });
        }
        let limits = self.receivers[receiver].period_ends(now, members, &[], &received);
        for (id, part) in limits.parts {
            let sender = usize::try_from(id.peer).unwrap();
            self.pairs[sender][receiver].as_mut().unwrap().part = Some(part);
        }
    }

    fn send(&mut self, sender: usize, demands: &[u64], arrived: &mut [u64]) {
        let mut rates = Vec::new();
        for (receiver, demand) in demands.iter().enumerate() {
            if *demand == 0 {
                rates.push(0);
                continue;
            }
            let first = Some(self.firsts[sender]);
            let pair = self.pairs[sender][receiver]
                .get_or_insert_with(|| Pair { limit: first, ..Pair::new(receiver) });
            // A bucket's rate is a little above the limit.
            let most = pair.limit.map_or(u64::MAX, |limit| limit.0 * 102 / 100);
            pair.sent.refused += u64::from(*demand > most);
            rates.push(most.min(*demand));
        }
        // Frames above the account wait.
        scale(&mut rates, self.hose.send.0);
        for (pair, rate) in self.pairs[sender].iter_mut().zip(&rates) {
            let Some(pair) = pair.as_mut().filter(|_| *rate > 0) else { continue };
            pair.sent.bytes += rate / 8 / PERIODS;
            pair.sent.flows = self.sketches[sender];
            pair.ask(self.periods);
        }
        for (bits, rate) in arrived.iter_mut().zip(&rates) {
            *bits += rate / PERIODS;
        }
    }

    /// Returns the demands for the codes of a test. Code 0 is a demand of `least`, 21 is much more
    /// than the sender may send, and other codes are quarters of Mbit/s.
    fn demands(&self, codes: &[Vec<u64>], least: u64) -> Vec<Vec<u64>> {
        let demand = |code: &u64| match code {
            0 => least,
            21 => 10 * self.hose.send.0,
            code => code * MBIT / 4,
        };
        let of_sender = |codes: &Vec<u64>| -> Vec<u64> {
            codes.iter().take(self.receivers.len()).map(demand).collect()
        };
        codes.iter().take(self.senders.len()).map(of_sender).collect()
    }
}

fn net() -> impl Strategy<Value = ((usize, usize), [u64; 2])> {
    let rates = [1..=20_u64, 1..=20_u64].prop_map(|rates| rates.map(|rate| rate * MBIT));
    ((1..=6_usize, 1..=4_usize), rates)
}

fn codes() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let code = prop_oneof![Just(0_u64), Just(21_u64), 1..=20_u64];
    prop::collection::vec(prop::collection::vec(code, 4), 6)
}

/// Returns sketches of the flows of each sender.
fn sketches() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((1..=16_u32).prop_map(|flows| (1_u64 << flows) - 1), 6)
}

/// Returns demands and weights of pairs.
fn wants() -> impl Strategy<Value = Vec<(BitsPerSecond, u32)>> {
    let rate = |want: u64| if want > 1_000 * MBIT { UNLIMITED } else { BitsPerSecond(want) };
    let want = (0..1_200 * MBIT, 1..=FLOWS_MAX).prop_map(move |(want, of)| (rate(want), of));
    prop::collection::vec(want, 1..12)
}

/// Returns the largest number of bits in a second from the period `from` on.
fn largest_second(bits: &[u64], from: usize) -> u64 {
    bits.windows(SECOND).skip(from).map(|second| second.iter().sum::<u64>()).max().unwrap()
}

proptest! {
    #[test]
    fn in_any_second_a_tenant_sends_no_more_than_its_hose(
        (hosts, rates) in net(), codes in codes(), sketches in sketches(),
    ) {
        let mut net = Net::new(hosts, rates);
        net.flows(&sketches);
        let demands = net.demands(&codes, 0);
        let bits: Vec<u64> = (0..100).map(|_| net.period(&demands).iter().sum()).collect();
        let guarantee = net.guarantee();
        let most = guarantee + guarantee / 20;
        let later = largest_second(&bits, SECOND);
        prop_assert!(later <= most, "{later} of {guarantee}");
        // Until the first answers, the senders' guarantees are the only limit.
        let start = u64::try_from(hosts.0).unwrap() * rates[0] / 4;
        let first = largest_second(&bits, 0);
        prop_assert!(first <= most + start, "{first} of {guarantee} and {start}");
    }

    #[test]
    fn changing_demands_do_not_exceed_the_hose(
        (hosts, rates) in net(),
        codes in prop::collection::vec(codes(), 8),
        every in 1..12_usize,
        sketches in sketches(),
    ) {
        let net = Net::new(hosts, rates);
        let all: Vec<_> = codes.iter().map(|codes| net.demands(codes, rates[0] / 50)).collect();
        // Parts of pairs that ask seldom are old when the demands change.
        for (ask_every, part) in [(Some(2), 10), (None, 5)] {
            let mut net = Net { ask_every, ..Net::new(hosts, rates) };
            net.flows(&sketches);
            let mut bits: Vec<u64> = Vec::new();
            for period in 0..160 {
                bits.push(net.period(&all[period / every % all.len()]).iter().sum());
            }
            let (most, guarantee) = (largest_second(&bits, SECOND), net.guarantee());
            prop_assert!(most <= guarantee + guarantee / part, "{most} of {guarantee}");
        }
    }

    #[test]
    fn each_receiver_gets_its_whole_guarantee(
        (hosts, rates) in net(), codes in codes(), sketches in sketches(),
    ) {
        let (senders, receivers) = hosts;
        let mut net = Net::new(hosts, rates);
        net.flows(&sketches);
        let mut demands = net.demands(&codes, 0);
        // Each sender sends to one receiver.
        for (sender, of) in demands.iter_mut().enumerate() {
            let only = |(receiver, demand): (usize, &mut u64)| {
                if receiver != sender % receivers {
                    *demand = 0;
                }
            };
            of.iter_mut().enumerate().for_each(only);
        }
        let mut last = vec![0; receivers];
        for period in 0..100 {
            let arrived = net.period(&demands);
            for (sum, bits) in last.iter_mut().zip(arrived).filter(|_| period >= 80) {
                *sum += bits;
            }
        }
        for (receiver, bits) in last.iter().enumerate() {
            let offers = (0..senders).map(|sender| demands[sender][receiver].min(rates[0]));
            let due = offers.sum::<u64>().min(rates[1]);
            prop_assert!(*bits >= due - due / 15, "{bits} of {due}");
        }
    }

    #[test]
    fn pairs_without_an_answer_share_half_of_the_senders_guarantee(
        pairs in prop::collection::vec((0..3_u16, 0..30_u64, prop::option::of(1..15_u64)), 1..20),
        send in MBIT..100 * MBIT,
    ) {
        let hose = Hose { send: BitsPerSecond(send), receive: BitsPerSecond(send) };
        let member = Member { tenant: 7, hose, is_held: true };
        let members: BTreeMap<u16, Member> = (0..3).map(|vm| (vm, member)).collect();
        let part = BitsPerSecond(MBIT);
        let mut state = HosePairs::new();
        for period in 0..60_u64 {
            // The number of a pair's last question is its age in periods.
            let sent = |(peer, (vm, begin, after)): (u64, &(u16, u64, Option<u64>))| {
                let age = (period + 1).checked_sub(*begin).filter(|age| *age > 0)?;
                let asked = u32::try_from(age).unwrap();
                let answer = Answer { question: asked, part, ..Answer::default() };
                let answer = after.filter(|after| age > *after).map(|_| answer);
                let id = PairId { vm: *vm, peer, epoch: 1 };
                Some(SentPair { id, bytes: 1_000 * age, refused: 0, asked, answer, flows: 1 })
            };
            let sent: Vec<SentPair> = (0..).zip(&pairs).filter_map(sent).collect();
            let now = Nanos(PERIOD.0 * (period + 1));
            let limits = state.period_ends(now, &members, &sent, &[]);
            prop_assert_eq!(limits.send.len(), sent.len());
            let mut new = 0;
            for of in &limits.send {
                let pair = sent.iter().find(|pair| pair.id == of.id).unwrap();
                match of.limit {
                    limit if pair.answer.is_some() => prop_assert_eq!(limit, Some(part)),
                    Some(limit) => new += limit.0,
                    None => prop_assert!(pair.asked >= NEW_PERIODS, "after {}", pair.asked),
                }
            }
            prop_assert!(new <= send / 2, "{new} of {send}");
            prop_assert!(limits.first.iter().all(|(_, first)| first.0 <= send / 2));
        }
    }

    #[test]
    fn a_tenant_of_new_pairs_has_its_guarantee_soon((hosts, rates) in net()) {
        let mut net = Net::new(hosts, rates);
        let demands = vec![vec![10 * rates[0]; hosts.1]; hosts.0];
        let bits: Vec<u64> = (0..30).map(|_| net.period(&demands).iter().sum()).collect();
        let least = net.guarantee() / PERIODS * 95 / 100;
        prop_assert!(bits[12..].iter().all(|bits| *bits >= least), "{bits:?}, {least}");
    }

    #[test]
    fn parts_give_each_pair_its_demand_or_a_part_by_weight(
        hose in 1..1_000 * MBIT, wants in wants(),
    ) {
        let mut parts = Vec::new();
        share(BitsPerSecond(hose), &wants, &mut parts);
        let total: u64 = wants.iter().map(|(_, weight)| u64::from(*weight)).sum();
        prop_assert_eq!(parts.len(), wants.len());
        for (part, (want, weight)) in parts.iter().zip(&wants) {
            let due = hose * u64::from(*weight) / total;
            prop_assert!(part.0 >= want.0.min(due), "{part:?} of {want:?} and {due}");
            prop_assert!(part.0 <= hose);
        }
        let sum: u64 = parts.iter().map(|part| part.0).sum();
        prop_assert!(sum <= hose + hose / 2, "{sum} of {hose}");
    }

    #[test]
    fn no_pair_has_more_by_weight_than_a_pair_whose_demand_is_not_met(
        hose in 1..1_000 * MBIT, wants in wants(),
    ) {
        let mut parts = Vec::new();
        share(BitsPerSecond(hose), &wants, &mut parts);
        // Parts are rounded down, so a pair can miss a few bit/s.
        let rounded = u64::try_from(wants.len()).unwrap() + 2;
        let pairs: Vec<_> =
            wants.iter().zip(&parts).map(|((want, of), part)| (want.0, part.0, *of)).collect();
        for (_, less, of_less) in pairs.iter().filter(|(want, part, _)| want > part) {
            for (_, more, of_more) in &pairs {
                let (of_less, of_more) = (u64::from(*of_less), u64::from(*of_more));
                prop_assert!(
                    more * of_less <= (less + rounded * of_less) * of_more,
                    "{more} of weight {of_more}, {less} of weight {of_less}"
                );
            }
        }
    }

    #[test]
    fn weights_from_the_network_have_bounds(
        flows in prop::collection::vec(any::<u32>(), 2..8),
    ) {
        let hose = Hose { send: BitsPerSecond(MBIT), receive: BitsPerSecond(100 * MBIT) };
        let member = Member { tenant: 0, hose, is_held: true };
let members: BTreeMap<u16, Member> = [(VM, member)].into();
        let of = |(peer, flows): (u64, &u32)| ReceivedPair {
            id: PairId { vm: VM, peer, epoch: 1 },
            questions: 1,
            part: UNLIMITED,
            want: UNLIMITED,
            rate: BitsPerSecond(0),
            flows: *flows,
        };
        let received: Vec<ReceivedPair> = (0..).zip(&flows).map(of).collect();
        let parts = HosePairs::new().period_ends(PERIOD, &members, &[], &received).parts;
        let parts: Vec<u64> = parts.iter().map(|(_, part)| part.0).collect();
        let (least, most) = (parts.iter().min().unwrap(), parts.iter().max().unwrap());
        prop_assert!(*most <= (least + 10) * u64::from(FLOWS_MAX), "{parts:?}");
    }
}

#[test]
fn a_pair_alone_has_the_smaller_guarantee() {
    for rates in [[3 * MBIT, 5 * MBIT], [5 * MBIT, 3 * MBIT], [4 * MBIT, 4 * MBIT]] {
        let mut net = Net::new((1, 1), rates);
        let demands = vec![vec![100 * MBIT]];
        let bits: Vec<u64> = (0..60).map(|_| net.period(&demands)[0]).collect();
        let last: u64 = bits[40..].iter().sum();
        let guarantee = net.guarantee();
        let range = guarantee - guarantee / 100..=guarantee + guarantee / 25;
        assert!(range.contains(&last), "{last} of {guarantee}");
    }
}

#[test]
fn more_senders_than_receivers_send_no_more_than_the_receivers_guarantees() {
    let mut net = Net::new((3, 2), [2_350_000; 2]);
    let demands = vec![vec![MBIT * 2; 2]; 3];
    let bits: Vec<u64> = (0..60).map(|_| net.period(&demands).iter().sum()).collect();
    let last: u64 = bits[40..].iter().sum();
    assert!((4_600_000..=4_850_000).contains(&last), "{last}");
}

#[test]
fn a_pair_that_sends_more_than_its_part_wants_more() {
    let hose = Hose { send: BitsPerSecond(100 * MBIT), receive: BitsPerSecond(100 * MBIT) };
    let member = Member { tenant: 0, hose, is_held: true };
    let members: BTreeMap<u16, Member> = [(VM, member)].into();
    let part = BitsPerSecond(10 * MBIT);
    // The limit is not in force while the pair sends 50 Mbit/s. Then the pair sends 5 Mbit/s.
    let mut pairs = HosePairs::new();
    let mut sent = Pair::new(0).sent;
    let mut wants = Vec::new();
    for period in 1..=60 {
        let rate = if period <= 30 { 50 * MBIT } else { 5 * MBIT };
        sent.bytes += rate / 8 / PERIODS;
        sent.asked += 1;
        sent.answer = Some(Answer { question: sent.asked, part, ..Answer::default() });
        let limits = pairs.period_ends(Nanos(PERIOD.0 * period), &members, &[sent], &[]);
        wants.push(limits.send[0].want);
        assert_eq!(limits.send[0].limit, Some(part));
    }
    assert!(wants[..30].iter().all(|want| *want == UNLIMITED), "{wants:?}");
    assert_eq!(wants[59], BitsPerSecond(5 * MBIT));
}
