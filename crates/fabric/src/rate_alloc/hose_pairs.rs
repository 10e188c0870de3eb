//! Limits the pairs of a host to the receivers' parts of the hose guarantees, once per period.
//!
//! # Problem
//!
//! A link between two groups of hosts has room for a tenant's hose guarantee: the smaller of what
//! the tenant's VMs on one side may send and what its VMs on the other side may receive. A host
//! limits what its own VMs of a tenant send in sum. If more of the tenant's VMs send than receive,
//! they can send more than the receivers' guarantees over the link, and the receivers' hosts drop
//! the excess only behind the link.
//!
//! # Approach
//!
//! Each receiving host divides the guaranteed receiving rate of a tenant among the pairs that ask,
//! and the answers tell the senders' hosts the parts. A sender's host limits each pair to its part.
//! The tenant's VMs on a host have one account for what they send in sum, so the sender's guarantee
//! is not divided among pairs here. The sender only reports the part of it that the pair can use,
//! so that a receiver does not keep bandwidth for a pair that its sender's guarantee limits.
//!
//! - The guarantees of all VMs of a tenant on a host are one guarantee, as in the limit of what the
//!   host sends. A VM may use what the tenant's other VMs on the host do not use.
//! - A pair's demand is the rate at which it sent in the last [`WINDOW`] periods. It is
//!   [`UNLIMITED`] for [`HELD_PERIODS`] after the pair reached its limit, and for a new pair. A
//!   host may measure a pair whose limit is not in force. Such a pair reaches its limit if it sends
//!   as much.
//! - A pair is new until its first answer comes. All new pairs of a tenant on a host together may
//!   use half of the tenant's sending guarantee there, in equal parts. Without a limit, they could
//!   use the whole guarantee. The tenant would then exceed its guarantee on the link if one side of
//!   the link has more of its VMs. With half of it, the tenant keeps its guarantee if one side has
//!   at most twice the VMs of the other. A new pair asks at once, so this takes a few periods.
//! - Pairs whose demand is not met get parts in proportion to the numbers of their active flows
//!   ([`share`]), as TCP would share the guarantee by connection. The sender's host estimates the
//!   number ([`super::flow_count`]), and its questions report it. With equal parts, a pair with
//!   many connections would get less than TCP would give it, and the tenant less in sum. A pair
//!   with less demand gets its demand and room to grow, but for each flow not more than the pairs
//!   whose demand is not met. The others get what it does not use.
//! - A new pair whose questions stay without an answer for [`NEW_PERIODS`] has no limit: the other
//!   host probably does not answer. If answers stop, the last part is in force for
//!   [`SILENT_PERIODS`], because a full network also loses answers.
//! - While more than the guarantee arrives, less than the guarantee is divided, and while less
//!   arrives, up to 1.02 times as much ([`Arrivals`]).
//! - A question and its answer take a hundredth of the pair's part of its sender's guarantee. More
//!   often, they would take several percent of what the slow pairs of a tenant may send. A new pair
//!   asks more often, because many pairs may begin at the same time.
//! - A pair whose limit is not in force asks a quarter as often. Its questions and answers have no
//!   code point, so they take bandwidth from the tenants in the shared queue. When the limits of a
//!   tenant come into force, its pairs ask at once.
//! - A receiver counts a pair whose sender sent no question for [`QUIET_PERIODS`], or for more than
//!   one and a half times the time between its questions, as without demand.
//!
//! Frames above a pair's limit or the account wait in a line of the pair.
//!
//! # Bounds
//!
//! The parts of a receiver never exceed 1.5 times the rate that is divided in sum. If each pair
//! keeps its rate, the pairs send no more than that rate in sum after a few periods.
//!
//! After each period, the limits of a tenant's new pairs on a host are half of its sending
//! guarantee in sum. A pair that begins within a period has the limit that one more pair would have
//! got ([`HoseLimits::first`]). So the sum can be larger until the next period.
//!
//! # Departures
//!
//! ElasticSwitch limits a pair to the smaller part of both sides. Here, the sender's guarantee
//! limits the tenant's VMs on the host and not their pairs, so a pair need not wait for a period
//! until it may use what another one leaves. ElasticSwitch divides a guarantee equally among pairs.
//!
//! # Cost
//!
//! A period costs O(n log n) time for n pairs.

use std::collections::{BTreeMap, BTreeSet};

use penstock_units::{BitsPerSecond, Nanos};

use super::arrivals::Arrivals;
use super::flow_count::{FLOWS_MAX, FlowCount};
use super::host_rates::{Hose, PairId, ReceivedPair, SentPair};
use super::{UNLIMITED, partition, scaled};

/// Periods over which the rate of a pair is measured.
pub const WINDOW: usize = 4;
/// Periods after a pair reached its limit in which its demand counts as unlimited.
pub const HELD_PERIODS: u32 = 4;
/// Periods with an unanswered question after which a pair loses its limit.
pub const SILENT_PERIODS: u32 = 120;
/// Periods with an unanswered question after which a new pair has no limit.
pub const NEW_PERIODS: u32 = 10;
/// Periods without a question after which a receiver counts a pair as without demand.
pub const QUIET_PERIODS: u32 = 8;
/// Periods without frames after which the sender's host forgets a pair. A pair that begins again
/// is new, so this time is longer than for the receiver's host.
pub const FORGET_PERIODS: u32 = 100;
/// Periods without a question after which the receiver's host forgets a pair.
const END_PERIODS: u32 = 100;

const NOTHING: BitsPerSecond = BitsPerSecond(0);
/// Length of a period.
const PERIOD: Nanos = Nanos::from_millis(50);
/// Bits of a question and its answer on a link, times 100.
const QUESTION_BITS: u64 = 2 * 90 * 8 * 100;
/// Shortest and longest time between two questions about a pair whose limit is in force.
const QUESTIONS: [Nanos; 2] = [Nanos::from_millis(100), Nanos::from_millis(1_200)];
/// A pair whose limit is not in force asks a question in this many times the time, at most
/// [`MEASURED_MAX`].
const MEASURED: u64 = 4;
const MEASURED_MAX: Nanos = Nanos::from_millis(2_400);
/// Fraction of its limit, in percent, from which on a pair has reached it.
const HELD_PERCENT: u64 = 90;
/// Room of a pair to grow: its demand, and its part by weight of the guarantee, divided by this
/// number.
const ROOM: u64 = 4;
/// Limit of all new pairs of a tenant: its sending guarantee divided by this number.
const NEW: u64 = 2;

/// Tenant of a VM, and the guarantees of all VMs of the tenant on this host together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Number of the tenant on this host.
    pub tenant: u16,
    /// Guarantees of the tenant's VMs on this host together. All members of a tenant have the same
    /// value.
    pub hose: Hose,
    /// Whether the limits of the tenant's pairs are in force.
    pub is_held: bool,
}

/// Limit of a pair with its sender on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimit {
    /// Number of the pair.
    pub id: PairId,
    /// Limit of the pair; `None` if the receiver's host does not answer.
    pub limit: Option<BitsPerSecond>,
    /// Part of the sender's guarantee that the pair can use.
    pub part: BitsPerSecond,
    /// Estimated demand of the pair.
    pub want: BitsPerSecond,
    /// Estimated number of the pair's active flows, which is its weight.
    pub flows: u32,
    /// Time between two questions about the pair.
    pub ask_every: Nanos,
}

/// Result of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoseLimits {
    /// Limits of the pairs with their sender on this host.
    pub send: Vec<SendLimit>,
    /// Limit of a pair of each VM that begins before the next period.
    pub first: Vec<(u16, BitsPerSecond)>,
    /// Parts of the receivers' guarantees, by pair.
    pub parts: Vec<(PairId, BitsPerSecond)>,
    /// Idle pairs with their sender on this host, which the host should remove.
    pub idle_senders: Vec<PairId>,
    /// Idle pairs with their receiver on this host, which the host should remove.
    pub idle_receivers: Vec<PairId>,
}

#[derive(Clone, Copy, Debug)]
struct Sender {
    /// Totals of bytes and their times in the last periods.
    past: [(u64, Nanos); WINDOW],
    /// Place in `past` of the oldest total.
    oldest: usize,
    /// Rate in the last periods.
    rate: BitsPerSecond,
    refused: u64,
    limit: Option<BitsPerSecond>,
    /// Periods in which the demand still counts as unlimited.
    held: u32,
    /// Question of the last answer that was used.
    answered: u32,
    /// Periods in which a question stayed unanswered.
    silent: u32,
    idle: u32,
    /// Periods since the pair began.
    age: u32,
    /// Whether the pair's limit comes into force in this period.
    begins: bool,
    flows: FlowCount,
}

#[derive(Clone, Copy, Debug)]
struct Receiver {
    questions: u64,
    /// Periods without a question.
    quiet: u32,
}

/// State of all pairs of a host.
#[derive(Clone, Debug, Default)]
pub struct HosePairs {
    senders: BTreeMap<PairId, Sender>,
    receivers: BTreeMap<PairId, Receiver>,
    arrivals: Arrivals,
    /// Tenants whose limits were in force in the last period.
    held: BTreeSet<u16>,
}

/// Divides the rate `hose` among pairs with the demands and weights `wants`. Stores the part of
/// each pair in `parts`, in the order of `wants`.
///
/// Pairs whose demand is not met get parts by weight of what the others do not use
/// ([`partition::fill_by_weight`]). Each of the others gets its demand and a quarter of it, or its
/// demand and a quarter of its part by weight if that is more. In proportion to its weight, no pair
/// gets more than a pair whose demand is not met.
pub fn share(hose: BitsPerSecond, wants: &[(BitsPerSecond, u32)], parts: &mut Vec<BitsPerSecond>) {
    partition::fill_by_weight(hose, wants, parts);
    let total = partition::weights(wants);
    let unmet = wants.iter().zip(parts.iter()).filter(|((want, _), part)| want > *part);
    let unmet = unmet.map(|((_, weight), part)| (*part, *weight));
    let level = unmet.max_by(|a, b| partition::by_ratio(*a, *b));
    for ((want, weight), part) in wants.iter().zip(parts.iter_mut()) {
        if *want > *part {
            continue;
        }
        let room = (want.0 / ROOM).max(partition::weighted(hose, *weight, total).0 / ROOM);
        let most = BitsPerSecond(want.0.saturating_add(room)).min(hose);
        let level = level.map_or(hose, |(part, of)| partition::weighted(part, *weight, of.into()));
        *part = most.min(level).max(*part);
    }
}

impl HosePairs {
    /// Creates the state of a host without pairs.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            arrivals: Arrivals::new(),
            held: BTreeSet::new(),
        }
    }

    /// Takes the totals of bytes on a link that arrived for each VM until the time `now`, before a
    /// period ends. Without it, parts do not depend on what arrives.
    pub fn arrived(
        &mut self,
        now: Nanos,
        members: &BTreeMap<u16, Member>,
        totals: impl Iterator<Item = (u16, u64)>,
    ) {
        self.arrivals.period_ends(now, members, totals);
    }

    /// Ends a period at time `now`, and returns the new limits. `members` has the VMs under limits.
    /// A pair of another VM is removed.
    pub fn period_ends(
        &mut self,
        now: Nanos,
        members: &BTreeMap<u16, Member>,
        sent: &[SentPair],
        received: &[ReceivedPair],
    ) -> HoseLimits {
        let mut limits = HoseLimits::default();
        self.begin_limits(members);
        self.take_sent(now, members, sent, &mut limits);
        self.limit_senders(members, &mut limits);
        self.divide_receiving(members, received, &mut limits);
        limits
    }

    /// Lets the pairs of tenants whose limits come into force ask soon. Until they did, their
    /// receivers count them as pairs with demand.
    fn begin_limits(&mut self, members: &BTreeMap<u16, Member>) {
        let held = members.values().filter(|member| member.is_held).map(|member| member.tenant);
        let before = std::mem::replace(&mut self.held, held.collect());
        let begins =
            |vm: &u16| members.get(vm).is_some_and(|of| of.is_held && !before.contains(&of.tenant));
        self.senders.iter_mut().for_each(|(id, sender)| sender.begins = begins(&id.vm));
        let receivers = self.receivers.iter_mut().filter(|(id, _)| begins(&id.vm));
        receivers.for_each(|(_, receiver)| receiver.quiet = 0);
    }

    /// Updates the pairs with their sender on this host from their counters and answers.
    fn take_sent(
        &mut self,
        now: Nanos,
        members: &BTreeMap<u16, Member>,
        sent: &[SentPair],
        limits: &mut HoseLimits,
    ) {
        let mut old = std::mem::take(&mut self.senders);
        for pair in sent {
            if !members.contains_key(&pair.id.vm) {
                limits.idle_senders.push(pair.id);
                continue;
            }
            let mut sender = old.remove(&pair.id).unwrap_or_else(|| Sender::new(now, pair));
            if sender.period_ends(now, pair) {
                limits.idle_senders.push(pair.id);
            } else {
                self.senders.insert(pair.id, sender);
            }
        }
    }

    /// Divides what each tenant's VMs may send by the pairs' demands, and limits the pairs.
    fn limit_senders(&self, members: &BTreeMap<u16, Member>, limits: &mut HoseLimits) {
        let mut of_tenant: BTreeMap<u16, Vec<(&PairId, &Sender)>> = BTreeMap::new();
        for (id, sender) in &self.senders {
            let Some(member) = members.get(&id.vm) else { continue };
            of_tenant.entry(member.tenant).or_default().push((id, sender));
        }
        let (mut new, mut parts) = (BTreeMap::new(), Vec::new());
        for (tenant, pairs) in &of_tenant {
            let member = pairs.first().and_then(|(id, _)| members.get(&id.vm));
            let Member { hose: Hose { send: hose, .. }, is_held, .. } =
                member.copied().unwrap_or_default();
            let count = pairs.iter().filter(|(_, sender)| sender.is_new()).count();
            new.insert(*tenant, count);
            let want = |(_, sender): &(&PairId, &Sender)| (sender.uses(), sender.flows.estimate());
            let wants: Vec<_> = pairs.iter().map(want).collect();
            partition::fill_by_weight(hose, &wants, &mut parts);
            for (((id, sender), part), (_, flows)) in pairs.iter().zip(&parts).zip(&wants) {
                let first = sender.is_new().then(|| first_limit(hose, count));
                let (limit, want) = (sender.limit.or(first), sender.want());
                let (id, part, flows) = (**id, *part, *flows);
                let ask_every = sender.asks_every(part, is_held);
                limits.send.push(SendLimit { id, limit, part, want, flows, ask_every });
            }
        }
        for (vm, Member { tenant, hose, .. }) in members {
            let count = new.get(tenant).copied().unwrap_or(0);
            limits.first.push((*vm, first_limit(hose.send, count + 1)));
        }
    }

    /// Divides each tenant's guaranteed receiving rate among the pairs whose senders asked.
    fn divide_receiving(
        &mut self,
        members: &BTreeMap<u16, Member>,
        received: &[ReceivedPair],
        limits: &mut HoseLimits,
    ) {
        let mut old = std::mem::take(&mut self.receivers);
        let mut of_tenant: BTreeMap<u16, (Hose, Vec<(PairId, _)>)> = BTreeMap::new();
        let mut every: BTreeMap<u16, Nanos> = BTreeMap::new();
        for pair in received {
            let before = old.remove(&pair.id);
            let asked = before.is_none_or(|before| before.questions != pair.questions);
            let quiet = if asked { 0 } else { before.map_or(0, |before| before.quiet) + 1 };
            let member = members.get(&pair.id.vm).filter(|_| quiet < END_PERIODS);
            let Some(member) = member else {
                limits.idle_receivers.push(pair.id);
                continue;
            };
            self.receivers.insert(pair.id, Receiver { questions: pair.questions, quiet });
            let is_active = quiet < quiet_periods(pair.part, member.is_held);
            let want = if is_active { pair.want.min(pair.part) } else { NOTHING };
            if is_active {
                let asks_every = question_period(pair.part, member.is_held);
                let longest = every.entry(member.tenant).or_default();
                *longest = asks_every.max(*longest);
            }
            let of = of_tenant.entry(member.tenant).or_insert((member.hose, Vec::new()));
            of.1.push((pair.id, (want, pair.flows.clamp(1, FLOWS_MAX))));
        }
        for (tenant, every) in every {
            self.arrivals.asks_every(tenant, u32::try_from(every.0 / PERIOD.0).unwrap_or(u32::MAX));
        }
        let (mut wants, mut parts) = (Vec::new(), Vec::new());
        for (tenant, (hose, pairs)) in &of_tenant {
            wants.clear();
            wants.extend(pairs.iter().map(|(_, want)| *want));
            share(self.arrivals.divided(*tenant, hose.receive), &wants, &mut parts);
            // A part of 0 means that the part is not known.
            let parts = parts.iter().map(|part| (*part).max(BitsPerSecond(1)));
            limits.parts.extend(pairs.iter().map(|(id, _)| *id).zip(parts));
        }
    }
}

/// Returns the time between two questions about a pair with the part `part` of its sender's
/// guarantee. `is_held` is whether the pair's limit is in force.
fn question_period(part: BitsPerSecond, is_held: bool) -> Nanos {
    let [least, most] = QUESTIONS;
    let time = scaled(QUESTION_BITS, 1_000_000_000, part.0);
    Nanos(if is_held {
        time.clamp(least.0, most.0)
    } else {
        time.saturating_mul(MEASURED).clamp(least.0, MEASURED_MAX.0)
    })
}

/// Returns the number of periods without a question after which a pair is without demand.
fn quiet_periods(part: BitsPerSecond, is_held: bool) -> u32 {
    let periods = question_period(part, is_held).0 * 3 / 2 / PERIOD.0;
    u32::try_from(periods).unwrap_or(u32::MAX).max(QUIET_PERIODS)
}

/// Returns the limit of each of `count` new pairs of a tenant with the sending guarantee `hose`.
fn first_limit(hose: BitsPerSecond, count: usize) -> BitsPerSecond {
    partition::equal(BitsPerSecond(hose.0 / NEW), count)
}

impl Sender {
    fn new(now: Nanos, counters: &SentPair) -> Self {
        Self {
            past: [(counters.bytes, now); WINDOW],
            oldest: 0,
            rate: NOTHING,
            refused: counters.refused,
            limit: None,
            held: HELD_PERIODS + 1,
            answered: 0,
            silent: 0,
            idle: 0,
            age: 0,
            begins: false,
            flows: FlowCount::default(),
        }
    }

    /// Ends a period of the pair. Returns true if the pair is idle and should be removed.
    fn period_ends(&mut self, now: Nanos, counters: &SentPair) -> bool {
        let last = self.past[(self.oldest + WINDOW - 1) % WINDOW].0;
        let refused = counters.refused != self.refused;
        self.refused = counters.refused;
        let is_idle = counters.bytes == last && !refused;
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.age = self.age.saturating_add(1);
        if self.idle >= FORGET_PERIODS {
            return true;
        }
        self.flows.add(counters.flows);
        self.measure(now, counters.bytes);
        self.hear(counters);
        let reached = |limit: BitsPerSecond| self.rate.0 >= scaled(limit.0, HELD_PERCENT, 100);
        let is_held = refused || self.limit.is_some_and(reached);
        self.held = if is_held { HELD_PERIODS } else { self.held.saturating_sub(1) };
        false
    }

    /// Measures the rate since the oldest total of bytes.
    fn measure(&mut self, now: Nanos, bytes: u64) {
        let (before, at) = self.past[self.oldest];
        let elapsed = now.saturating_sub(at);
        if elapsed > Nanos::ZERO {
            let sent = bytes.wrapping_sub(before);
            self.rate = BitsPerSecond(scaled(sent, 8_000_000_000, elapsed.0));
        }
        self.past[self.oldest] = (bytes, now);
        self.oldest = (self.oldest + 1) % WINDOW;
    }

    /// Takes the receiver's part from a new answer.
    fn hear(&mut self, counters: &SentPair) {
        if let Some(answer) = counters.answer.filter(|answer| answer.question != self.answered) {
            self.answered = answer.question;
            self.silent = 0;
            if answer.part > NOTHING {
                self.limit = Some(answer.part);
            }
            return;
        }
        self.silent = if counters.asked == self.answered { 0 } else { self.silent + 1 };
        if self.silent >= SILENT_PERIODS {
            self.limit = None;
        }
    }

    /// Whether no answer came yet, although the other host may answer.
    const fn is_new(&self) -> bool {
        self.limit.is_none() && self.silent < NEW_PERIODS
    }

    /// Returns the time between two questions about the pair, if `part` is its part of its sender's
    /// guarantee. Until the pair is as old as this time, its questions are as far apart as it is
    /// old.
    fn asks_every(&self, part: BitsPerSecond, is_held: bool) -> Nanos {
        let [least, _] = QUESTIONS;
        if self.begins {
            return least;
        }
        let age = PERIOD.0.saturating_mul(self.age.into()).max(least.0);
        Nanos(question_period(part, is_held).0.min(age))
    }

    /// Returns the estimated demand of the pair.
    const fn want(&self) -> BitsPerSecond {
        if self.held > 0 || self.is_new() { UNLIMITED } else { self.rate }
    }

    /// Returns the demand that the receiver's part allows.
    fn uses(&self) -> BitsPerSecond {
        self.want().min(self.limit.unwrap_or(UNLIMITED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_take_a_hundredth_of_a_slow_pairs_part() {
        let every = |rate, is_held| question_period(BitsPerSecond(rate), is_held).0 / 1_000_000;
        let rates = [0, 100_000, 288_000, 1_000_000, 5_000_000];
        assert_eq!(rates.map(|rate| every(rate, true)), [1_200, 1_200, 500, 144, 100]);
        assert_eq!(rates.map(|rate| every(rate, false)), [2_400, 2_400, 2_000, 576, 115]);
        // Question and answer of 90 bytes each on a link, twice a second.
        assert_eq!(2 * 90 * 8 * 2 * 100, 288_000);
        let quiet = |rate| quiet_periods(BitsPerSecond(rate), true);
        assert_eq!([0, 288_000, 5_000_000].map(quiet), [36, 15, QUIET_PERIODS]);
        assert!(quiet_periods(BitsPerSecond(0), false) < END_PERIODS);
    }

    #[test]
    fn pairs_ask_often_when_they_begin_and_soon_when_their_limits_come_into_force() {
        let hose = Hose { send: BitsPerSecond(100_000), receive: BitsPerSecond(100_000) };
        let id = PairId { vm: 1, peer: 2, epoch: 1 };
        let mut sent = SentPair { id, bytes: 0, refused: 0, asked: 0, answer: None, flows: 0 };
        let mut pairs = HosePairs::new();
        let mut asks_every = |number: u64, is_held| {
            sent.bytes += 1_500;
            let members = [(1, Member { tenant: 7, hose, is_held })].into();
            let limits = pairs.period_ends(Nanos(PERIOD.0 * number), &members, &[sent], &[]);
            limits.send[0].ask_every.0 / 1_000_000
        };
        let every: Vec<u64> = (1..=60).map(|number| asks_every(number, false)).collect();
        assert_eq!([every[0], every[5], every[59]], [100, 300, 2_400]);
        assert_eq!([61, 62, 63].map(|number| asks_every(number, true)), [100, 1_200, 1_200]);
    }
}
