//! Tests the invariants of a host's rates for any counters, answers and demands.

use std::collections::BTreeMap;

use penstock_fabric::rate_alloc::host_rates::{
    Answer, DefaultUse, Hose, HostRates, HostRatesSettings, PairId, Readings, ReceivedPair,
    SentPair,
};
use penstock_fabric::rate_alloc::{RateSettings, UNLIMITED};
use penstock_units::{BitsPerSecond, Nanos};
use proptest::prelude::*;

const NIC: BitsPerSecond = BitsPerSecond(10_000_000_000);

fn answer() -> impl Strategy<Value = Option<Answer>> {
    let counters = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let numbers = (any::<u32>(), 0..3_u32, counters);
    prop::option::of(numbers.prop_map(|(question, epoch, (sent, received, marked, part))| Answer {
        question,
        sent,
        epoch,
        received,
        marked,
        part: BitsPerSecond(part),
    }))
}

fn id() -> impl Strategy<Value = PairId> {
    (0..3_u16, 0..6_u64, 0..2_u32).prop_map(|(vm, peer, epoch)| PairId { vm, peer, epoch })
}

fn sent() -> impl Strategy<Value = Vec<SentPair>> {
    let one = (id(), any::<u64>(), 0..2_u64, any::<u32>(), answer());
    let one = one.prop_map(|(id, bytes, refused, asked, answer)| SentPair {
        id,
        bytes,
        refused,
        asked,
        answer,
        flows: 0,
    });
    prop::collection::vec(one, 0..20).prop_map(|mut pairs| {
        pairs.sort_by_key(|pair| pair.id);
        pairs.dedup_by_key(|pair| pair.id);
        pairs
    })
}

fn received() -> impl Strategy<Value = Vec<ReceivedPair>> {
    let rate = || any::<u64>().prop_map(BitsPerSecond);
    let one = (id(), any::<u64>(), rate(), rate(), rate());
    let one = one.prop_map(|(id, questions, part, want, rate)| ReceivedPair {
        id,
        questions,
        part,
        want,
        rate,
        flows: 0,
    });
    prop::collection::vec(one, 0..20).prop_map(|mut pairs| {
        pairs.sort_by_key(|pair| pair.id);
        pairs.dedup_by_key(|pair| pair.id);
        pairs
    })
}

fn host() -> HostRates {
    let rates = RateSettings::shared_queue(NIC);
    HostRates::new(HostRatesSettings { rates, slack: 100_000 })
}

/// Returns the guarantees of the VMs 0 and 1. VM 2 has none.
fn hoses(send: u64, receive: u64) -> BTreeMap<u16, Hose> {
    let hose = Hose { send: BitsPerSecond(send), receive: BitsPerSecond(receive) };
    [(0, hose), (1, hose)].into()
}

/// Rate of the queue that the greedy pairs share.
const CAPACITY: u64 = 1_000_000_000;
/// Rate in bit/s of one frame of 1,250 bytes in each period.
const FRAME_RATE: u64 = 200_000;

/// A pair that always sends at its rate, and the host of its sender.
struct Greedy {
    guarantee: u64,
    host: HostRates,
    bytes: u64,
    answer: Answer,
    rate: u64,
    /// Frames that arrived after the first 100 periods.
    got: u64,
}

impl Greedy {
    fn new(guarantee: u64) -> Self {
        let answer = Answer { part: UNLIMITED, ..Answer::default() };
        Self { guarantee, host: host(), bytes: 0, answer, rate: guarantee, got: 0 }
    }

    /// Sends through a queue that serves all frames alike, which arrive at the rate `offered`.
    fn period(&mut self, period: u32, offered: u64) {
        let sent = (self.rate / FRAME_RATE).max(1);
        let arrived = sent * CAPACITY.min(offered) / offered;
        self.bytes += sent * 1_250;
        self.answer.question = period;
        self.answer.sent += sent;
        self.answer.received += arrived;
        if period > 100 {
            self.got += arrived;
        }
        let pair = SentPair {
            id: PairId { vm: 0, peer: 1, epoch: 0 },
            bytes: self.bytes,
            refused: period.into(),
            asked: period,
            answer: Some(self.answer),
            flows: 0,
        };
        let now = Nanos::from_millis(50 * u64::from(period));
        let hoses = hoses(self.guarantee, self.guarantee);
        let readings = Readings { sent: &[pair], ..Readings::default() };
        self.rate = self.host.period_ends(now, &hoses, readings, false).send[0].rate.0;
    }
}

proptest! {
    #[test]
    fn parts_of_a_vm_never_sum_to_more_than_its_guarantee(
        send in 0..NIC.0, receive in 0..NIC.0,
        periods in prop::collection::vec((sent(), received(), 0..200_u64, any::<bool>()), 1..12),
    ) {
        let (mut host, mut now, hoses) = (host(), Nanos(0), hoses(send, receive));
        for (sent, received, millis, confined) in periods {
            now += Nanos::from_millis(millis);
            let defaults = [DefaultUse { vm: 0, bytes: now.0, refused: 0 }];
            let readings = Readings { sent: &sent, received: &received, defaults: &defaults };
            let rates = host.period_ends(now, &hoses, readings, confined);
            for vm in [0, 1] {
                let of_vm = rates.send.iter().filter(|rate| rate.id.vm == vm);
                let parts: u64 = of_vm.clone().map(|rate| rate.part.0).sum();
                prop_assert!(parts <= send, "{parts} of {send}");
                prop_assert!(of_vm.clone().all(|rate| rate.rate <= NIC));
                let all: u64 = of_vm.map(|rate| rate.rate.0).sum();
                prop_assert!(!confined || all <= send, "{all} of {send}");
                let parts = rates.parts.iter().filter(|(id, _)| id.vm == vm);
                let parts: u64 = parts.map(|(_, part)| part.0).sum();
                prop_assert!(parts <= receive, "{parts} of {receive}");
            }
            prop_assert!(rates.send.iter().all(|rate| rate.id.vm != 2), "no guarantee, no pair");
        }
    }

    #[test]
    fn without_answers_no_pair_exceeds_its_part(
        send in 0..NIC.0, periods in prop::collection::vec(sent(), 1..30),
    ) {
        let (mut host, mut now, hoses) = (host(), Nanos(0), hoses(send, send));
        for mut sent in periods {
            now += Nanos::from_millis(50);
            sent.iter_mut().for_each(|pair| pair.answer = None);
            let readings = Readings { sent: &sent, ..Readings::default() };
            let rates = host.period_ends(now, &hoses, readings, false);
            prop_assert!(rates.send.iter().all(|rate| rate.rate == rate.part.min(NIC)));
        }
    }

    #[test]
    fn two_greedy_pairs_keep_their_guarantees_in_a_full_queue(
        first in 10..400_u64, second in 10..400_u64,
    ) {
        let mut pairs = [Greedy::new(first * 1_000_000), Greedy::new(second * 1_000_000)];
        for period in 1..=600_u32 {
            let offered: u64 = pairs.iter().map(|pair| pair.rate).sum();
            pairs.iter_mut().for_each(|pair| pair.period(period, offered));
        }
        for pair in &pairs {
            let mean = pair.got * FRAME_RATE / 500;
            prop_assert!(mean >= pair.guarantee, "{mean} of {}", pair.guarantee);
        }
        let used: u64 = pairs.iter().map(|pair| pair.got * FRAME_RATE / 500).sum();
        prop_assert!(used * 100 >= CAPACITY * 85, "{used} of {CAPACITY}");
    }
}
