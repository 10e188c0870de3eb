//! Counters, bucket and last question of a pair. All fields are atomic, so that workers and the
//! control plane share a slot without a lock.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

use penstock_units::{BitsPerSecond, Nanos};

use super::lines::subtract;
use super::pressure::{Pressure, SIGNAL_EVERY, SIGNAL_FRAMES, is_due};
use super::{
    GUARANTEE_PERIOD, NEW_QUESTIONS, PairLimits, PairRef, QUESTION_BYTES, ReceiveReading,
    SendReading,
};
use crate::bottleneck::FRAME_OVERHEAD;
use crate::bucket::{Bucket, PARTS_OF_BYTE};
use crate::policer::{DEPTH_MAX, RATE_MAX, Size};

/// A bucket's depth is the number of bytes that pass in 1/20 s at the bucket's rate.
const BURSTS_PER_SECOND: u64 = 20;
/// Smallest depth of a bucket in bytes: several segments of 64 KiB. A segment that a VM wants to be
/// cut into very small packets takes up to three times its length.
const DEPTH_MIN: u64 = 262_144;
/// Smallest depth in bytes of a bucket for a guarantee ([`PairLimits::Guarantees`]): ten frames of
/// Ethernet, with which a TCP connection begins. Larger segments put the bucket in debt.
const GUARANTEE_DEPTH_MIN: u64 = 16_384;
/// Divisor of the depth of an account's bucket for a guarantee.
const ACCOUNT_DIVISOR: i64 = 4;
/// Bytes that a full frame of Ethernet takes on a link, with preamble and gap.
pub(super) const FULL_FRAME: u64 = 1_538;

/// The frames of a pair that may wait are as long as the bytes that pass in 1/20 s at the rate of
/// the pair, but at least [`LINE_MIN`].
const LINES_PER_SECOND: u64 = 20;
/// Bytes of a pair that may wait at any rate: 20 frames of Ethernet. A TCP connection uses a slow
/// rate only if more frames than a few may wait.
const LINE_MIN: u64 = 32_768;
/// Largest number of bytes of a pair from which on no more frames wait.
const LINE_MAX: u64 = 1 << 20;

/// Largest debt in bytes in which a bucket still passes frames ([`PacedBucket::spend`]): the size
/// of two batches of 32 segments of 64 KiB.
const SPENT_MAX: i64 = 4_194_304;

/// Number of bits of [`Question::epoch`], which wraps. A question on the network has the number of
/// flows in the other bits.
pub const EPOCH_BITS: u32 = 27;

/// Question of a sending host about a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Number of the question, which counts from 1.
    pub number: u32,
    /// Number of the pair's beginning at the sending host.
    pub epoch: u32,
    /// Frames that the pair has sent, as a total that wraps.
    pub sent: u64,
    /// Part of the sender's guarantee for the pair.
    pub part: BitsPerSecond,
    /// Demand that the sender estimates.
    pub want: BitsPerSecond,
    /// Rate at which the sender may send.
    pub rate: BitsPerSecond,
    /// Estimated number of the pair's active flows; 0 if the sender does not tell it.
    pub flows: u32,
}

/// Answer of a receiving host to a [`Question`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// [`Question::number`].
    pub number: u32,
    /// [`Question::epoch`].
    pub epoch: u32,
    /// [`Question::sent`].
    pub sent: u64,
    /// Number of the pair's beginning at the receiving host.
    pub receive_epoch: u32,
    /// Frames that have arrived, as a total that wraps.
    pub received: u64,
    /// Frames that have arrived with a congestion mark, as a total that wraps.
    pub marked: u64,
    /// Part of the receiver's guarantee for the pair.
    pub part: BitsPerSecond,
}

/// Token bucket for bytes, with a rate that may change at any time.
///
/// With [`PairLimits::Guarantees`], the depth follows the rate down to [`GUARANTEE_DEPTH_MIN`]. A
/// frame that is larger than the remaining tokens puts the bucket in debt, so the depth need not be
/// as large as a segment.
#[derive(Debug)]
pub(super) struct PacedBucket {
    rate: AtomicU64,
    /// Time in ns of the last refill.
    at: AtomicU64,
    bucket: Bucket,
    limits: PairLimits,
    /// Divisor of the depth.
    divisor: AtomicI64,
}

impl PacedBucket {
    /// Creates the bucket of a pair.
    pub(super) const fn of_pair(limits: PairLimits) -> Self {
        Self::new(limits, 1)
    }

    /// Creates a bucket for all frames of a VM. With [`PairLimits::Guarantees`], it has a quarter
    /// of the depth of a pair's bucket. So the frames of a VM with one pair wait before the pair's
    /// bucket is half empty and signals congestion.
    pub(super) const fn of_vm(limits: PairLimits) -> Self {
        let divisor = match limits {
            PairLimits::Rates => 1,
            PairLimits::Guarantees => ACCOUNT_DIVISOR,
        };
        Self::new(limits, divisor)
    }

    const fn new(limits: PairLimits, divisor: i64) -> Self {
        let bucket = Bucket::new(DEPTH_MAX, PARTS_OF_BYTE);
        let (rate, at, divisor) = (AtomicU64::new(0), AtomicU64::new(0), AtomicI64::new(divisor));
        Self { rate, at, bucket, limits, divisor }
    }

    /// Notes whether frames can wait in a line for this bucket of a pair. If they can, the depth is
    /// that of an account: the bursts of many pairs together would exceed their receiver's
    /// guarantee, and TCP loses no frame at a bucket with a line.
    pub(super) fn set_line(&self, line: bool) {
        self.divisor.store(if line { ACCOUNT_DIVISOR } else { 1 }, Ordering::Relaxed);
    }

    pub(super) fn set(&self, rate: BitsPerSecond) {
        self.rate.store(rate.0.min(RATE_MAX.0), Ordering::Relaxed);
    }

    /// Fills the bucket, as if it were new.
    pub(super) fn fill(&self) {
        self.bucket.give(u64::MAX);
    }

    /// Whether a rate above 0 is set.
    pub(super) fn is_set(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    fn refill(&self, now: Nanos) {
        let rate = self.rate.load(Ordering::Relaxed);
        let at = self.at.load(Ordering::Relaxed);
        // If another thread refilled first, the next refill adds the remaining time.
        if now.0 > at
            && self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            // A product above 64 bits fills any bucket.
            self.bucket.give(rate.saturating_mul(now.0 - at));
        }
        let depth = self.depth(rate);
        if self.bucket.level() > depth {
            self.bucket.lower_to(depth);
        }
    }

    /// Takes tokens for `bytes`. Returns false if the bucket has too few tokens, or with
    /// [`PairLimits::Guarantees`] none.
    pub(super) fn take(&self, bytes: u32, now: Nanos) -> bool {
        self.refill(now);
        match self.limits {
            PairLimits::Rates => self.bucket.take(parts(bytes)),
            PairLimits::Guarantees => self.bucket.take_on_credit(parts(bytes)),
        }
    }

    /// Takes tokens for `bytes`, even if the bucket then is in debt. Returns false and takes
    /// nothing if the debt already exceeds [`SPENT_MAX`].
    pub(super) fn spend(&self, bytes: u32, now: Nanos) -> bool {
        self.refill(now);
        let may_spend = self.bucket.level() >= -SPENT_MAX * PARTS_OF_BYTE;
        if may_spend {
            self.bucket.spend(parts(bytes));
        }
        may_spend
    }

    /// Takes tokens for a question or an announcement, even if the bucket then is in debt.
    pub(super) fn spend_marker(&self, now: Nanos) {
        let overhead = match self.limits {
            PairLimits::Rates => 0,
            PairLimits::Guarantees => u32::from(FRAME_OVERHEAD),
        };
        self.spend(QUESTION_BYTES + overhead, now);
    }

    /// Takes tokens for `bytes` of a frame that does not wait behind others. Returns false and
    /// takes nothing if the debt already exceeds the depth of a bucket without a line.
    pub(super) fn take_ahead(&self, bytes: u32, now: Nanos) -> bool {
        self.refill(now);
        let burst = self.burst(self.rate.load(Ordering::Relaxed));
        let may_take = self.bucket.level() > -(burst * PARTS_OF_BYTE);
        if may_take {
            self.bucket.spend(parts(bytes));
        }
        may_take
    }

    /// Returns the time until the bucket is out of debt, or 0 if the bucket has no rate.
    pub(super) fn debt(&self, now: Nanos) -> Nanos {
        self.refill(now);
        let missing = self.bucket.level().min(0).unsigned_abs();
        // A rate of R bits per second adds R parts of a byte in each nanosecond.
        let rate = self.rate.load(Ordering::Relaxed);
        Nanos(if rate == 0 { 0 } else { missing.div_ceil(rate) })
    }

    /// Returns tokens of bytes that were not sent.
    pub(super) fn give_back(&self, bytes: u32) {
        self.bucket.give_back(parts(bytes));
    }

    /// Whether the bucket is at least half full now.
    pub(super) fn is_relaxed(&self, now: Nanos) -> bool {
        self.refill(now);
        !self.is_low()
    }

    /// Whether the bucket was less than half full after the last refill.
    fn is_low(&self) -> bool {
        self.bucket.level() < self.depth(self.rate.load(Ordering::Relaxed)) / 2
    }

    /// Returns the depth of the bucket at the rate `rate` in bits per second, in parts of a byte.
    fn depth(&self, rate: u64) -> i64 {
        self.burst(rate) * PARTS_OF_BYTE / self.divisor.load(Ordering::Relaxed)
    }

    /// Returns the bytes of a burst at the rate `rate` in bits per second.
    fn burst(&self, rate: u64) -> i64 {
        let least = match self.limits {
            PairLimits::Rates => DEPTH_MIN,
            PairLimits::Guarantees => GUARANTEE_DEPTH_MIN,
        };
        let burst = (rate / (8 * BURSTS_PER_SECOND)).clamp(least, DEPTH_MAX.into());
        i64::try_from(burst).unwrap_or(i64::from(DEPTH_MAX))
    }

    /// Whether the bucket was in debt after the last refill.
    pub(super) fn is_in_debt(&self) -> bool {
        self.bucket.level() < 0
    }

    /// Returns the time of `bytes` bytes at the bucket's rate, or 0 if the bucket has no rate.
    pub(super) fn time_of(&self, bytes: u64) -> Nanos {
        time_at(self.rate.load(Ordering::Relaxed), bytes)
    }

    /// Returns the time of a full frame at the bucket's rate.
    pub(super) fn frame_time(&self) -> Nanos {
        self.time_of(FULL_FRAME)
    }

    /// Returns the number of full frames that the bucket's tokens and 1 ms of its rate allow, at
    /// least 1. The number leaves out tokens since the last refill.
    pub(super) fn frames(&self) -> usize {
        let tokens = self.bucket.level().max(0).unsigned_abs() / PARTS_OF_BYTE.unsigned_abs();
        let bytes = tokens + self.rate.load(Ordering::Relaxed) / 8_000;
        usize::try_from(bytes / FULL_FRAME + 1).unwrap_or(usize::MAX)
    }
}

/// Returns the time of `bytes` bytes at the rate `rate` in bits per second, or 0 at the rate 0.
fn time_at(rate: u64, bytes: u64) -> Nanos {
    Nanos(bytes.saturating_mul(8_000_000_000).checked_div(rate).unwrap_or(0))
}

fn parts(bytes: u32) -> i64 {
    i64::from(bytes.min(DEPTH_MAX)).saturating_mul(PARTS_OF_BYTE)
}

/// A pair with its sender on this host.
#[derive(Debug)]
pub(super) struct SendSlot {
    epoch: AtomicU32,
    pub(super) bucket: PacedBucket,
    bytes: AtomicU64,
    frames: AtomicU64,
    refused: AtomicU64,
    /// Bytes that wait for the bucket. The callers that make frames wait change the number, so a
    /// new pair in the slot does not reset it.
    waiting: AtomicU64,
    /// Bytes that left the line after the end of the VM's limits, and the time in ns at which the
    /// VM's first frame left then.
    pub(super) emptied: AtomicU64,
    emptied_since: AtomicU64,
    /// Signals of congestion while frames wait.
    pub(super) pressure: Pressure,
    /// Time in ns at which the next question is due.
    pub(super) next: AtomicU64,
    /// Time in ns between two questions in a table for guarantees.
    pub(super) every: AtomicU64,
    /// Time in ns from which a frame may signal congestion.
    signal: AtomicU64,
    /// Number of frames at the last signal.
    signalled: AtomicU64,
    /// Bits of the flows that sent frames since the last reading ([`Self::note_flow`]).
    flows: AtomicU64,
    /// Number of the last question.
    asked: AtomicU32,
    told: [AtomicU64; 3],
    /// Number of flows that the next question reports.
    told_flows: AtomicU32,
    /// Even while the answer is complete.
    version: AtomicU32,
    answer: [AtomicU64; 6],
}

/// Bit above an answer's number, which is set if an answer exists.
const ANSWERED: u64 = 1 << 32;

impl SendSlot {
    pub(super) fn new(limits: PairLimits) -> Self {
        Self {
            epoch: AtomicU32::new(0),
            bucket: PacedBucket::of_pair(limits),
            bytes: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            emptied: AtomicU64::new(0),
            emptied_since: AtomicU64::new(0),
            pressure: Pressure::new(),
            next: AtomicU64::new(0),
            every: AtomicU64::new(GUARANTEE_PERIOD.0),
            signal: AtomicU64::new(0),
            signalled: AtomicU64::new(0),
            flows: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            told: [const { AtomicU64::new(0) }; 3],
            told_flows: AtomicU32::new(0),
            version: AtomicU32::new(0),
            answer: [const { AtomicU64::new(0) }; 6],
        }
    }

    /// Prepares the slot for a new pair, whose bucket has the rate `first`.
    pub(super) fn begin(&self, first: BitsPerSecond) {
        let most = BitsPerSecond(u64::MAX);
        self.tell(first, most, most);
        self.bucket.set(first);
        self.next.store(0, Ordering::Relaxed);
        self.every.store(GUARANTEE_PERIOD.0, Ordering::Relaxed);
        self.signal.store(0, Ordering::Relaxed);
        self.flows.store(0, Ordering::Relaxed);
        self.tell_flows(0);
        self.signalled.store(self.frames.load(Ordering::Relaxed), Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.answer.iter().for_each(|field| field.store(0, Ordering::Relaxed));
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed) & (u32::MAX >> (u32::BITS - EPOCH_BITS))
    }

    pub(super) fn count(&self, size: Size, passes: bool) {
        if passes {
            self.bytes.fetch_add(size.bytes.into(), Ordering::Relaxed);
            self.frames.fetch_add(size.frames.into(), Ordering::Relaxed);
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that the flow with the hash `flow` sent a frame. A flow that has its bit already costs
    /// no write.
    pub(super) fn note_flow(&self, flow: u32) {
        let bit = 1_u64 << (flow >> (u32::BITS - u64::BITS.ilog2()));
        if self.flows.load(Ordering::Relaxed) & bit == 0 {
            self.flows.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether no question is answered yet, although few were asked.
    pub(super) fn is_new(&self) -> bool {
        let [number, ..] = &self.answer;
        number.load(Ordering::Relaxed) & ANSWERED == 0
            && self.asked.load(Ordering::Relaxed) < NEW_QUESTIONS
    }

    /// Whether frames wait for the bucket.
    #[inline]
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Returns the rate at which the pair may send while all pairs of its account send: that of its
    /// bucket, or its part of the sender's guarantee if this is less.
    fn rate(&self) -> u64 {
        let [_, part, _] = &self.told;
        self.bucket.rate.load(Ordering::Relaxed).min(part.load(Ordering::Relaxed))
    }

    /// Returns the time of a full frame at the rate of the pair.
    pub(super) fn frame_time(&self) -> Nanos {
        time_at(self.rate(), FULL_FRAME)
    }

    /// Whether a further frame may wait, if frames leave at `speed` times the rate of the pair. A
    /// large segment may exceed the room.
    pub(super) fn has_room(&self, speed: u64) -> bool {
        let line = (self.rate() / (8 * LINES_PER_SECOND)).clamp(LINE_MIN, LINE_MAX);
        self.waiting.load(Ordering::Relaxed) < line * speed
    }

    /// Notes that a frame of `bytes` bytes waits for the bucket.
    pub(super) fn waits(&self, bytes: u32) {
        self.waiting.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    /// Notes that a frame of `bytes` bytes no longer waits for the bucket.
    pub(super) fn ends_waiting(&self, bytes: u32) {
        subtract(&self.waiting, bytes);
    }

    /// Returns the bytes that left the line after the end of the VM's limits, if the VM's first
    /// frame left at the time `since` in ns. Limits may return while frames wait, and end again.
    pub(super) fn emptied(&self, since: u64) -> u64 {
        if self.emptied_since.swap(since, Ordering::Relaxed) != since {
            self.emptied.store(0, Ordering::Relaxed);
        }
        self.emptied.load(Ordering::Relaxed)
    }

    /// Whether a question is due. Returns true once in each time `every`.
    pub(super) fn asks(&self, now: Nanos, every: Nanos) -> bool {
        is_due(&self.next, now, every)
    }

    /// Whether a frame should signal congestion, because the bucket will soon be empty.
    pub(super) fn signals(&self, now: Nanos) -> bool {
        let frames = self.frames.load(Ordering::Relaxed);
        let since = frames.wrapping_sub(self.signalled.load(Ordering::Relaxed));
        let signals = since >= SIGNAL_FRAMES
            && self.bucket.is_low()
            && is_due(&self.signal, now, SIGNAL_EVERY);
        if signals {
            self.signalled.store(frames, Ordering::Relaxed);
        }
        signals
    }

    /// Corrects the counters after a signal: `size` was counted, but is not sent. `whole` is true
    /// if the whole frame was dropped.
    pub(super) fn take_back(&self, size: Size, whole: bool) {
        self.bucket.give_back(size.bytes);
        self.discount(size, whole);
    }

    /// Corrects the counters for a frame that was counted, but is not sent. `whole` is true if the
    /// whole frame was dropped.
    pub(super) fn discount(&self, size: Size, whole: bool) {
        self.bytes.fetch_sub(size.bytes.into(), Ordering::Relaxed);
        self.frames.fetch_sub(size.frames.into(), Ordering::Relaxed);
        if whole {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets what the next question reports.
    pub(super) fn tell(&self, rate: BitsPerSecond, part: BitsPerSecond, want: BitsPerSecond) {
        let [told_rate, told_part, told_want] = &self.told;
        told_rate.store(rate.0, Ordering::Relaxed);
        told_part.store(part.0, Ordering::Relaxed);
        told_want.store(want.0, Ordering::Relaxed);
    }

    /// Sets the number of flows that the next question reports.
    pub(super) fn tell_flows(&self, flows: u32) {
        self.told_flows.store(flows, Ordering::Relaxed);
    }

    /// Returns the number of flows that the next question reports, at least 1.
    pub(super) fn flows_told(&self) -> u64 {
        self.told_flows.load(Ordering::Relaxed).max(1).into()
    }

    pub(super) fn question(&self) -> Question {
        let [rate, part, want] = &self.told;
        let load = |told: &AtomicU64| BitsPerSecond(told.load(Ordering::Relaxed));
        Question {
            number: self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            epoch: self.epoch(),
            sent: self.frames.load(Ordering::Relaxed),
            part: load(part),
            want: load(want),
            rate: load(rate),
            flows: self.told_flows.load(Ordering::Relaxed),
        }
    }

    /// Stores an answer. Returns false if no question or a newer answer makes it impossible.
    pub(super) fn answered(&self, answer: &Answer) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        let [number, sent, epoch, received, marked, part] = &self.answer;
        let last = number.load(Ordering::Relaxed);
        let is_newer = last & ANSWERED == 0 || u64::from(answer.number) > last & !ANSWERED;
        let is_possible = answer.epoch == self.epoch()
            && (1..=asked).contains(&answer.number)
            && answer.marked <= answer.received
            && self.frames.load(Ordering::Relaxed).wrapping_sub(answer.sent) <= u64::MAX / 2;
        if !is_newer || !is_possible {
            return false;
        }
        let version = self.version.load(Ordering::Relaxed);
        let begun = version.wrapping_add(1);
        // Another thread writes an answer: this answer is lost, like a frame.
        if version & 1 != 0
            || self
                .version
                .compare_exchange(version, begun, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        number.store(u64::from(answer.number) | ANSWERED, Ordering::Relaxed);
        sent.store(answer.sent, Ordering::Relaxed);
        epoch.store(answer.receive_epoch.into(), Ordering::Relaxed);
        received.store(answer.received, Ordering::Relaxed);
        marked.store(answer.marked, Ordering::Relaxed);
        part.store(answer.part.0, Ordering::Relaxed);
        self.version.store(begun.wrapping_add(1), Ordering::Release);
        true
    }

    /// Returns the last answer. Returns `None` if there is none, or if a thread writes one.
    fn answer(&self) -> Option<Answer> {
        let version = self.version.load(Ordering::Acquire);
        let [number, sent, epoch, received, marked, part] =
            [0, 1, 2, 3, 4, 5].map(|at: usize| self.answer[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        if !is_whole || number & ANSWERED == 0 {
            return None;
        }
        let low = |wide: u64| u32::try_from(wide & u64::from(u32::MAX)).unwrap_or(0);
        Some(Answer {
            number: low(number),
            epoch: self.epoch(),
            sent,
            receive_epoch: low(epoch),
            received,
            marked,
            part: BitsPerSecond(part),
        })
    }

    /// Reads the pair, and empties the sketch of its flows.
    pub(super) fn read(&self, pair: PairRef) -> SendReading {
        SendReading {
            pair,
            bytes: self.bytes.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            asked: self.asked.load(Ordering::Relaxed),
            answer: self.answer(),
            flows: self.flows.swap(0, Ordering::Relaxed),
        }
    }
}

/// A pair with its receiver on this host.
#[derive(Debug)]
pub(super) struct ReceiveSlot {
    epoch: AtomicU32,
    frames: AtomicU64,
    marked: AtomicU64,
    questions: AtomicU64,
    /// Rate, part and demand that the sender reported.
    told: [AtomicU64; 3],
    /// Number of flows that the sender reported.
    flows: AtomicU32,
    /// Part of the receiver's guarantee, or -1 if it is not known yet.
    part: AtomicI64,
}

impl ReceiveSlot {
    pub(super) fn new() -> Self {
        Self {
            epoch: AtomicU32::new(0),
            frames: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            questions: AtomicU64::new(0),
            told: [const { AtomicU64::new(0) }; 3],
            flows: AtomicU32::new(0),
            part: AtomicI64::new(-1),
        }
    }

    /// Prepares the slot for a new pair.
    pub(super) fn begin(&self) {
        self.part.store(-1, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, size: Size, marked: bool) {
        self.frames.fetch_add(size.frames.into(), Ordering::Relaxed);
        if marked {
            self.marked.fetch_add(size.frames.into(), Ordering::Relaxed);
        }
    }

    pub(super) fn set_part(&self, part: BitsPerSecond) {
        self.part.store(i64::try_from(part.0).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Records a question, and returns the answer. Returns `None` if the part is not known yet.
    pub(super) fn asked(&self, question: &Question) -> Option<Answer> {
        let [rate, part, want] = &self.told;
        rate.store(question.rate.0, Ordering::Relaxed);
        part.store(question.part.0, Ordering::Relaxed);
        want.store(question.want.0, Ordering::Relaxed);
        self.flows.store(question.flows, Ordering::Relaxed);
        self.questions.fetch_add(1, Ordering::Relaxed);
        let part = u64::try_from(self.part.load(Ordering::Relaxed)).ok()?;
        // Marked frames are read first, so that they are never more than all frames.
        let marked = self.marked.load(Ordering::Relaxed);
        Some(Answer {
            number: question.number,
            epoch: question.epoch,
            sent: question.sent,
            receive_epoch: self.epoch(),
            received: self.frames.load(Ordering::Relaxed),
            marked,
            part: BitsPerSecond(part),
        })
    }

    pub(super) fn read(&self, pair: PairRef) -> ReceiveReading {
        let [rate, part, want] = &self.told;
        let load = |told: &AtomicU64| BitsPerSecond(told.load(Ordering::Relaxed));
        ReceiveReading {
            pair,
            questions: self.questions.load(Ordering::Relaxed),
            part: load(part),
            want: load(want),
            rate: load(rate),
            flows: self.flows.load(Ordering::Relaxed),
        }
    }
}
