//! Computes the rates of all pairs of a host, once per period.
//!
//! # Problem
//!
//! A host sees only its own end of a pair. The sending host knows how many frames it sent, and the
//! receiving host knows how many frames arrived. The sending host must not exceed the pair's
//! guarantee unless the other host confirms that the frames arrive.
//!
//! # Approach
//!
//! The sending host asks the receiving host about each active pair ([`SentPair::asked`]). The
//! answer ([`Answer`]) contains the receiving host's counters and its part of the guarantee. From
//! two successive answers, [`signal`] computes the fraction of the frames between them that was
//! lost or marked. [`HostRates::period_ends`] then changes the rates:
//!
//! - A pair without an answer has exactly its guarantee, which is the sender's part. With the first
//!   answer, the pair gets the smaller of both hosts' parts.
//! - A pair's rate grows only if the pair uses at least half of it. An idle application would
//!   otherwise get a rate that nobody has tried. A rate of which less is used falls towards the
//!   guarantee.
//! - If questions stay unanswered for [`SILENT_PERIODS`], the pair returns to its guarantee. Until
//!   then, the pair keeps its rate.
//! - A pair that sends nothing for [`IDLE_PERIODS`] is removed.
//!
//! The receiving host divides each VM's guarantee among the pairs whose senders asked
//! ([`ReceivedPair`]), by the demand that the senders report.
//!
//! # Bounds
//!
//! The guarantees of a VM's pairs never exceed the VM's guarantee in sum. Without answers, the
//! rates do not either. Frames of pairs that have no entry share the rate of the VM's default
//! bucket, at most an equal part of the guarantee.
//!
//! # Cost
//!
//! A period costs O(n log n) time for n pairs.

use std::collections::BTreeMap;

use penstock_units::{BitsPerSecond, Nanos};

use super::{
    DemandEstimate, LimitedPair, Parts, RECEIVER, RateSettings, SENDER, Signal, UNLIMITED, WHOLE,
    partition, scaled,
};

/// Periods with an unanswered question after which a pair returns to its guarantee.
pub const SILENT_PERIODS: u32 = 4;
/// Periods without frames or questions after which a pair is removed.
pub const IDLE_PERIODS: u32 = 20;

/// Settings of the rates of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRatesSettings {
    /// Settings of the pairs' rates.
    pub rates: RateSettings,
    /// Additional demand that a VM assumes for a pair, in parts per million of the rate that the
    /// pair sent.
    pub slack: Parts,
}

/// Guaranteed rates of a VM to and from all other VMs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hose {
    /// Guaranteed sending rate.
    pub send: BitsPerSecond,
    /// Guaranteed receiving rate.
    pub receive: BitsPerSecond,
}

/// Number of a pair. A pair that ends and begins again gets another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairId {
    /// Number of the VM on this host.
    pub vm: u16,
    /// Address of the other VM.
    pub peer: u64,
    /// Number of the pair's beginning.
    pub epoch: u32,
}

/// Answer of the receiving host to a question about a pair. All counters are totals that wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Number of the question.
    pub question: u32,
    /// Frames that the sending host had sent when it asked.
    pub sent: u64,
    /// Number of the pair's beginning at the receiving host, which changes if the counters restart.
    pub epoch: u32,
    /// Frames that had arrived before the question.
    pub received: u64,
    /// Frames that had arrived with a congestion mark before the question.
    pub marked: u64,
    /// Part of the receiver's guarantee for the pair; zero if it is not known yet.
    pub part: BitsPerSecond,
}

/// Counters of a pair with its sender on this host. All counters are totals that wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentPair {
    /// Number of the pair.
    pub id: PairId,
    /// Bytes that the pair sent.
    pub bytes: u64,
    /// Frames that exceeded the pair's rate.
    pub refused: u64,
    /// Number of the last question, which counts from 1; 0 if none was asked.
    pub asked: u32,
    /// Last answer, if one came.
    pub answer: Option<Answer>,
    /// Sketch of the flows that sent since the last reading ([`super::flow_count`]).
    pub flows: u64,
}

/// State of a pair with its receiver on this host, as its sender reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPair {
    /// Number of the pair.
    pub id: PairId,
    /// Total number of questions.
    pub questions: u64,
    /// Part of the sender's guarantee for the pair.
    pub part: BitsPerSecond,
    /// Demand that the sender estimates.
    pub want: BitsPerSecond,
    /// Rate at which the sender may send.
    pub rate: BitsPerSecond,
    /// Number of active flows that the sender estimates; 0 if it does not tell the number.
    pub flows: u32,
}

/// Bytes that frames without an entry of their own sent from a VM, as a total that wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultUse {
    /// Number of the VM.
    pub vm: u16,
    /// Bytes that the VM sent.
    pub bytes: u64,
    /// Frames that exceeded the default bucket's rate.
    pub refused: u64,
}

/// What a host reads at the end of a period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readings<'a> {
    /// Pairs with their sender on this host.
    pub sent: &'a [SentPair],
    /// Pairs with their receiver on this host.
    pub received: &'a [ReceivedPair],
    /// Use of the VMs' default buckets.
    pub defaults: &'a [DefaultUse],
}

/// Rate of a pair with its sender on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRate {
    /// Number of the pair.
    pub id: PairId,
    /// Rate at which the pair may send.
    pub rate: BitsPerSecond,
    /// Part of the sender's guarantee for the pair.
    pub part: BitsPerSecond,
    /// Estimated demand of the pair.
    pub want: BitsPerSecond,
}

/// Result of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Rates of the pairs with their sender on this host.
    pub send: Vec<SendRate>,
    /// Rates of the VMs' default buckets.
    pub default: Vec<(u16, BitsPerSecond)>,
    /// Parts of the receivers' guarantees, by pair.
    pub parts: Vec<(PairId, BitsPerSecond)>,
    /// Sums of the rates at which the pairs to a VM may send, by VM.
    pub towards: Vec<(u16, BitsPerSecond)>,
    /// Idle pairs with their sender on this host, which the host should remove.
    pub idle_senders: Vec<PairId>,
    /// Idle pairs with their receiver on this host, which the host should remove.
    pub idle_receivers: Vec<PairId>,
}

/// What a period showed about a pair.
enum News {
    /// Two answers show the fraction of lost or marked frames.
    Signal(Signal),
    /// A first answer came, so the next answer gives a signal.
    First,
    /// Nothing new is known.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Sender {
    pair: LimitedPair,
    bytes: u64,
    refused: u64,
    /// Last answer, if the other host is not silent.
    answer: Option<Answer>,
    /// Whether the other host answered in this period for the first time.
    is_fresh: bool,
    /// Question of the last answer that was used.
    answered: u32,
    /// Periods in which a question stayed unanswered.
    silent: u32,
    idle: u32,
}

#[derive(Clone, Copy, Debug)]
struct Receiver {
    questions: u64,
    idle: u32,
}

#[derive(Clone, Copy, Debug)]
struct DefaultBucket {
    bytes: u64,
    refused: u64,
    demand: DemandEstimate,
}

/// State of all pairs of a host.
#[derive(Clone, Debug)]
pub struct HostRates {
    settings: HostRatesSettings,
    senders: BTreeMap<PairId, Sender>,
    receivers: BTreeMap<PairId, Receiver>,
    defaults: BTreeMap<u16, DefaultBucket>,
    last: Option<Nanos>,
}

/// Returns the fraction of the frames between two questions that was lost, or that was marked if
/// none was lost. Returns `None` if the answers cannot be compared: nothing was sent, a counter
/// went backwards, or the receiving host's counters restarted.
#[must_use]
pub fn signal(before: &Answer, now: &Answer) -> Option<Signal> {
    let delta = |from: u64, to: u64| {
        let delta = to.wrapping_sub(from);
        (delta <= u64::MAX / 2).then_some(delta)
    };
    if before.epoch != now.epoch {
        return None;
    }
    let sent = delta(before.sent, now.sent).filter(|sent| *sent > 0)?;
    let received = delta(before.received, now.received)?;
    let marked = delta(before.marked, now.marked)?;
    let share = |part: u64, of: u64| {
        let share = scaled(part.min(of), WHOLE.into(), of);
        Parts::try_from(share).unwrap_or(WHOLE)
    };
    // Frames may overtake the question, so more frames may arrive than were sent meanwhile.
    let lost = sent.saturating_sub(received);
    Some(if lost > 0 {
        Signal::Lost(share(lost, sent).max(1))
    } else if marked > 0 {
        Signal::Marked(share(marked, received.max(1)).max(1))
    } else {
        Signal::Lost(0)
    })
}

impl HostRates {
    /// Creates the state of a host without pairs.
    #[must_use]
    pub const fn new(settings: HostRatesSettings) -> Self {
        Self {
            settings,
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            defaults: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the settings of the host's rates.
    #[must_use]
    pub const fn settings(&self) -> &HostRatesSettings {
        &self.settings
    }

    /// Ends a period at time `now`, and returns the new rates. `hoses` has the guarantees of the
    /// host's VMs. A pair of another VM is removed. If `confined` is true, no pair gets more than
    /// its guarantee.
    pub fn period_ends(
        &mut self,
        now: Nanos,
        hoses: &BTreeMap<u16, Hose>,
        readings: Readings<'_>,
        confined: bool,
    ) -> Rates {
        let elapsed = self.last.replace(now).map_or(Nanos::ZERO, |last| now.saturating_sub(last));
        let mut rates = Rates::default();
        self.take_sent(now, elapsed, hoses, readings.sent, confined, &mut rates);
        self.take_defaults(elapsed, hoses, readings.defaults);
        self.divide_sending(hoses, confined, &mut rates);
        self.divide_receiving(hoses, readings.received, &mut rates);
        rates
    }

    /// Updates the pairs with their sender on this host from their counters and answers.
    fn take_sent(
        &mut self,
        now: Nanos,
        elapsed: Nanos,
        hoses: &BTreeMap<u16, Hose>,
        sent: &[SentPair],
        confined: bool,
        rates: &mut Rates,
    ) {
        let mut old = std::mem::take(&mut self.senders);
        let settings = self.settings;
        for pair in sent {
            if !hoses.contains_key(&pair.id.vm) {
                rates.idle_senders.push(pair.id);
                continue;
            }
            let Some(mut sender) = old.remove(&pair.id) else {
                // The sender's part follows when the VM's guarantee is divided.
                let sides = [BitsPerSecond(0), UNLIMITED];
                let limited = LimitedPair::new(sides, settings.slack, &settings.rates);
                self.senders.insert(pair.id, Sender::new(limited, pair));
                continue;
            };
            if sender.period_ends(now, elapsed, pair, &settings.rates, confined) {
                rates.idle_senders.push(pair.id);
            } else {
                self.senders.insert(pair.id, sender);
            }
        }
    }

    fn take_defaults(
        &mut self,
        elapsed: Nanos,
        hoses: &BTreeMap<u16, Hose>,
        defaults: &[DefaultUse],
    ) {
        let slack = self.settings.slack;
        self.defaults.retain(|vm, _| hoses.contains_key(vm));
        for used in defaults.iter().filter(|used| hoses.contains_key(&used.vm)) {
            let mut demand = DemandEstimate::new(slack);
            demand.measured(BitsPerSecond(0), false);
            let fresh = DefaultBucket { bytes: used.bytes, refused: used.refused, demand };
            let kept = self.defaults.entry(used.vm).or_insert(fresh);
            let rate = rate(used.bytes.wrapping_sub(kept.bytes), elapsed);
            kept.demand.measured(rate, used.refused != kept.refused);
            (kept.bytes, kept.refused) = (used.bytes, used.refused);
        }
    }

    /// Divides each VM's guaranteed sending rate among its pairs and its default bucket.
    fn divide_sending(&mut self, hoses: &BTreeMap<u16, Hose>, confined: bool, rates: &mut Rates) {
        let settings = self.settings.rates;
        let mut parts = Vec::new();
        for (vm, hose) in hoses {
            let given = given(hose.send, &settings);
            let default = self.defaults.get(vm).map_or(BitsPerSecond(0), |d| d.demand.want());
            let (from, to) = PairId::all_of(*vm);
            let mut wants = vec![default];
            wants.extend(self.senders.range(from..=to).map(|(_, s)| s.pair.want(SENDER)));
            partition::fill(given, &wants, &mut parts);
            // A new pair uses the default bucket until its first period ends.
            let bucket = parts.first().copied().unwrap_or_default();
            rates.default.push((*vm, bucket.max(partition::equal(given, wants.len()))));
            for ((id, sender), part) in self.senders.range_mut(from..=to).zip(parts.iter().skip(1))
            {
                sender.pair.assign(SENDER, *part);
                if confined || sender.is_fresh || sender.answer.is_none() {
                    sender.pair.restart(&settings);
                } else {
                    sender.pair.settle(&settings);
                }
                let (rate, want) = (sender.pair.rate(), sender.pair.demand());
                rates.send.push(SendRate { id: *id, rate, part: *part, want });
            }
        }
    }

    /// Divides each VM's guaranteed receiving rate among the pairs whose senders asked.
    fn divide_receiving(
        &mut self,
        hoses: &BTreeMap<u16, Hose>,
        received: &[ReceivedPair],
        rates: &mut Rates,
    ) {
        let mut old = std::mem::take(&mut self.receivers);
        let mut by_vm: BTreeMap<u16, Vec<&ReceivedPair>> = BTreeMap::new();
        for pair in received {
            let before = old.remove(&pair.id);
            let asked = before.is_none_or(|before| before.questions != pair.questions);
            let idle = if asked { 0 } else { before.map_or(0, |before| before.idle) + 1 };
            if idle >= IDLE_PERIODS || !hoses.contains_key(&pair.id.vm) {
                rates.idle_receivers.push(pair.id);
                continue;
            }
            self.receivers.insert(pair.id, Receiver { questions: pair.questions, idle });
            by_vm.entry(pair.id.vm).or_default().push(pair);
        }
        let settings = self.settings.rates;
        let mut parts = Vec::new();
        for (vm, hose) in hoses {
            let pairs = by_vm.get(vm).map_or(&[][..], Vec::as_slice);
            let wants: Vec<_> = pairs.iter().map(|pair| pair.want.min(pair.part)).collect();
            partition::fill(given(hose.receive, &settings), &wants, &mut parts);
            rates.parts.extend(pairs.iter().map(|pair| pair.id).zip(parts.iter().copied()));
            let sum = pairs
                .iter()
                .fold(0_u64, |sum, pair| sum.saturating_add(pair.rate.min(settings.most).0));
            rates.towards.push((*vm, BitsPerSecond(sum)));
        }
    }
}

impl PairId {
    /// Returns the lowest and the highest number of the pairs of a VM.
    const fn all_of(vm: u16) -> (Self, Self) {
        (Self { vm, peer: 0, epoch: 0 }, Self { vm, peer: u64::MAX, epoch: u32::MAX })
    }
}

impl Sender {
    const fn new(pair: LimitedPair, counters: &SentPair) -> Self {
        let SentPair { bytes, refused, .. } = *counters;
        let (answer, is_fresh, answered) = (None, false, 0);
        Self { pair, bytes, refused, answer, is_fresh, answered, silent: 0, idle: 0 }
    }

    /// Ends a period of the pair. Returns true if the pair is idle and should be removed.
    fn period_ends(
        &mut self,
        now: Nanos,
        elapsed: Nanos,
        counters: &SentPair,
        settings: &RateSettings,
        confined: bool,
    ) -> bool {
        let bytes = counters.bytes.wrapping_sub(self.bytes);
        let refused = counters.refused != self.refused;
        (self.bytes, self.refused) = (counters.bytes, counters.refused);
        let is_idle = bytes == 0 && !refused;
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        if self.idle >= IDLE_PERIODS {
            return true;
        }
        let rate = rate(bytes, elapsed);
        if refused {
            self.pair.press();
        }
        let uses = refused || rate.0 >= self.pair.rate().0 / 2;
        match self.news(counters) {
            News::Signal(signal) if !confined && (uses || signal.share() > 0) => {
                self.pair.period_ends(now, signal, settings);
            }
            News::Signal(_) | News::First | News::Nothing if !uses => self.pair.fade(),
            News::Signal(_) | News::First | News::Nothing => {}
        }
        self.pair.measured(rate);
        false
    }

    /// Compares the pair's last answer with the one before.
    fn news(&mut self, counters: &SentPair) -> News {
        // After the other host became silent, its last answer stays in the pair's counters.
        let new = counters.answer.filter(|answer| answer.question != self.answered);
        self.is_fresh = new.is_some() && self.answer.is_none();
        let Some(answer) = new else {
            self.silent = if counters.asked == self.answered { 0 } else { self.silent + 1 };
            if self.silent >= SILENT_PERIODS {
                self.forget();
            }
            return News::Nothing;
        };
        self.answered = answer.question;
        self.silent = 0;
        if answer.part.0 > 0 {
            self.pair.assign(RECEIVER, answer.part);
        }
        match self.answer.replace(answer).and_then(|before| signal(&before, &answer)) {
            Some(signal) => News::Signal(signal),
            None => News::First,
        }
    }

    /// Forgets the other host, so that the pair returns to its guarantee.
    fn forget(&mut self) {
        self.answer = None;
        self.pair.assign(RECEIVER, UNLIMITED);
    }
}

/// Returns the part of a guarantee that is divided among pairs.
fn given(hose: BitsPerSecond, settings: &RateSettings) -> BitsPerSecond {
    let kept = u64::from(WHOLE - settings.head_room.min(WHOLE));
    BitsPerSecond(scaled(hose.0, kept, WHOLE.into()))
}

/// Returns the rate of `bytes` in the time `elapsed`; zero if no time has passed.
fn rate(bytes: u64, elapsed: Nanos) -> BitsPerSecond {
    if elapsed == Nanos::ZERO {
        return BitsPerSecond(0);
    }
    BitsPerSecond(scaled(bytes, 8_000_000_000, elapsed.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;
    const NIC: BitsPerSecond = BitsPerSecond(1_000 * MBIT);
    const PERIOD: Nanos = Nanos::from_millis(50);
    const ID: PairId = PairId { vm: 3, peer: 7, epoch: 1 };

    fn mbps(rate: u64) -> BitsPerSecond {
        BitsPerSecond(rate * MBIT)
    }

    fn host() -> HostRates {
        let rates = RateSettings::shared_queue(NIC);
        HostRates::new(HostRatesSettings { rates, slack: 100_000 })
    }

    fn hoses() -> BTreeMap<u16, Hose> {
        [(3, Hose { send: mbps(100), receive: mbps(100) })].into()
    }

    /// A host with one pair whose application sends as fast as it may. In each period, the network
    /// loses `lost` of the pair's frames, and the other host answers if `answers` is true.
    struct Bed {
        host: HostRates,
        now: Nanos,
        pair: SentPair,
        rate: BitsPerSecond,
    }

    impl Bed {
        fn new() -> Self {
            let pair = SentPair { id: ID, bytes: 0, refused: 0, asked: 0, answer: None, flows: 0 };
            Self { host: host(), now: Nanos(0), pair, rate: mbps(100) }
        }

        fn period(&mut self, lost: u64, answers: bool, confined: bool) -> BitsPerSecond {
            self.now += PERIOD;
            self.pair.bytes += self.rate.0 / 8 / 20;
            self.pair.asked += 1;
            if answers {
                let before = self.pair.answer.unwrap_or_default();
                self.pair.answer = Some(Answer {
                    question: self.pair.asked,
                    sent: before.sent + 1_000,
                    received: before.received + 1_000 - lost,
                    part: mbps(80),
                    ..before
                });
            }
            let pairs = [self.pair];
            let of = Readings { sent: &pairs, ..Readings::default() };
            let rates = self.host.period_ends(self.now, &hoses(), of, confined);
            self.rate = rates.send[0].rate;
            self.rate
        }
    }

    #[test]
    fn a_pair_grows_while_the_other_host_answers_and_falls_back_when_it_is_silent() {
        let mut bed = Bed::new();
        for _ in 0..5 {
            assert_eq!(bed.period(0, false, false), mbps(100), "the sender's whole guarantee");
        }
        assert_eq!(bed.period(0, true, false), mbps(80), "the smaller part");
        for _ in 0..30 {
            bed.period(0, true, false);
        }
        assert!(bed.rate > mbps(500), "{}", bed.rate.0);
        let grown = bed.rate;
        for _ in 1..SILENT_PERIODS {
            assert_eq!(bed.period(0, false, false), grown, "no information");
        }
        assert_eq!(bed.period(0, false, false), mbps(100));
        assert_eq!(bed.period(0, false, false), mbps(100), "an old answer is none");
    }

    #[test]
    fn losses_cut_the_rate_to_no_less_than_the_smaller_part() {
        let mut bed = Bed::new();
        for _ in 0..30 {
            bed.period(0, true, false);
        }
        for _ in 0..60 {
            bed.period(500, true, false);
        }
        assert_eq!(bed.rate, mbps(80), "the receiver's part");
    }

    #[test]
    fn a_confined_pair_has_its_guarantee_at_once() {
        let mut bed = Bed::new();
        for _ in 0..30 {
            bed.period(0, true, false);
        }
        assert!(bed.rate > mbps(300));
        assert_eq!(bed.period(0, true, true), mbps(80));
    }

    #[test]
    fn an_unused_rate_falls_and_an_idle_pair_ends() {
        let mut bed = Bed::new();
        for _ in 0..3 {
            bed.period(0, true, false);
        }
        let before = bed.rate;
        assert!(before > mbps(80), "above the guarantee");
        bed.rate = mbps(10);
        let unused = bed.period(0, true, false);
        assert!(unused > mbps(80) && unused < before, "{} after {}", unused.0, before.0);
        let hoses = hoses();
        for period in 1..=IDLE_PERIODS {
            bed.now += PERIOD;
            let pairs = [bed.pair];
            let of = Readings { sent: &pairs, ..Readings::default() };
            let rates = bed.host.period_ends(bed.now, &hoses, of, false);
            let ended = period == IDLE_PERIODS;
            assert_eq!(rates.idle_senders.len(), usize::from(ended), "period {period}");
        }
    }

    #[test]
    fn counters_that_cannot_be_compared_are_no_signal() {
        let base = Answer { sent: 1_000, received: 900, marked: 10, ..Answer::default() };
        let next = Answer { sent: 2_000, received: 1_900, marked: 10, ..base };
        assert_eq!(signal(&base, &next), Some(Signal::Lost(0)));
        assert_eq!(signal(&next, &base), None, "backwards");
        assert_eq!(signal(&base, &base), None, "nothing was sent");
        assert_eq!(signal(&base, &Answer { epoch: 1, ..next }), None, "counters restarted");
        assert_eq!(signal(&base, &Answer { received: 899, ..next }), None);
        let lost = Answer { received: 1_400, ..next };
        assert_eq!(signal(&base, &lost), Some(Signal::Lost(500_000)));
        let marked = Answer { marked: 510, ..next };
        assert_eq!(signal(&base, &marked), Some(Signal::Marked(500_000)));
        let more = Answer { received: 5_000, ..next };
        assert_eq!(signal(&base, &more), Some(Signal::Lost(0)), "frames overtook the question");
    }

    #[test]
    fn a_receiver_divides_its_guarantee_among_those_who_ask() {
        let mut host = host();
        let pair = |peer, want, questions| ReceivedPair {
            id: PairId { vm: 3, peer, epoch: 1 },
            questions,
            part: mbps(100),
            want,
            rate: mbps(300),
            flows: 0,
        };
        let mut ask = |questions: u64| {
            let pairs = [pair(1, mbps(20), questions), pair(2, UNLIMITED, 5)];
            let of = Readings { received: &pairs, ..Readings::default() };
            host.period_ends(Nanos(0), &hoses(), of, false)
        };
        let rates = ask(1);
        let parts: Vec<_> = rates.parts.iter().map(|(id, part)| (id.peer, *part)).collect();
        assert_eq!(parts, [(1, mbps(20)), (2, mbps(80))]);
        assert_eq!(rates.towards, [(3, mbps(600))]);
        let idle = (2..2 + u64::from(IDLE_PERIODS)).map(ask).last().unwrap().idle_receivers;
        assert_eq!(idle, [PairId { vm: 3, peer: 2, epoch: 1 }]);
    }
}
