//! Table of the pairs of VMs that share a queue of a fabric, with a token bucket for each pair.
//!
//! # Problem
//!
//! A host limits each pair of VMs by its own rate, which changes 20 times a second
//! (`penstock_fabric::rate_alloc`). The workers must count the frames of each pair and apply the
//! pair's rate without a lock and without a new snapshot. VMs choose the addresses of pairs, so
//! they can create as many pairs as they like.
//!
//! # Approach
//!
//! The table has [`PAIRS_MAX`] slots for pairs with their sender on this host, and as many slots
//! for pairs with their receiver on this host. The slots contain only atomic numbers. A pair's key
//! is the number of the VM's port and the address of the other VM. A key can be in one of
//! [`WINDOW`] slots, which a seeded hash selects. A VM has at most [`PAIRS_OF_VM_MAX`] pairs in
//! each direction, so no VM can fill the table alone.
//!
//! - A frame of a VM takes tokens of its pair's bucket ([`PairTable::send`]). A pair without a slot
//!   and a pair whose rate is not set yet use the default bucket of the VM.
//! - Each frame of a VM also takes tokens of the VM's account, which is a bucket of the VM or of
//!   all VMs of its tenant ([`PairTable::share_account`]). If this bucket is in debt, the VM's next
//!   frames wait in the VM's ring ([`PairTable::wait`]). So TCP of a VM with one pair loses no
//!   frame at the limit, and a VM with 256 pairs cannot save the bursts of all its pairs and send
//!   them at once.
//! - With [`PairLimits::Rates`], frames above a pair's rate are dropped. If a pair's bucket is less
//!   than half full, one frame in 10 ms, and at most one of 32 frames, signals congestion to its
//!   sender ([`Sending::Signal`]). TCP then slows down before whole segments are dropped.
//! - A frame to a VM is counted only if the pair's sender has asked about the pair
//!   ([`PairTable::asked`]). All frames together take tokens of the VM's receive bucket
//!   ([`PairTable::receive`]).
//! - A table for guarantees ([`PairLimits::Guarantees`]) limits pairs only to their receivers'
//!   guarantees, and accounts to the sender's. Its buckets have tokens for 50 ms instead of the
//!   size of several segments. A VM with few tokens sends few frames at once
//!   ([`PairTable::batch_limit`]), so that its frames wait in its ring. If the account stays empty,
//!   frames signal congestion (`pressure`). Arriving frames are not counted.
//! - In a table for guarantees, frames above the limit of a pair or an account wait
//!   ([`Sending::Wait`]), and a VM's pairs do not wait for each other. The caller stores them in a
//!   line for each pair. It tells the table which frames wait ([`PairTable::waits`]), and asks when
//!   they may leave ([`PairTable::departs`]). A frame takes tokens when it leaves. A time
//!   that is fixed when the frame arrives, as in Carousel (SIGCOMM 2017), would be that of an old
//!   rate: rates change 20 times a second, and frames of a slow pair can wait longer than that. If
//!   a line is never empty for 100 ms, frames signal congestion. Frames that find their line full
//!   are dropped. When the limits of a VM end, its lines become empty within four seconds
//!   (`lines`).
//! - A table for guarantees also notes which flows of a pair send ([`PairTable::send_flow`]), in 64
//!   bits for each pair. The control plane estimates the number of flows from these bits, and
//!   questions report the number.
//! - The pairs of a VM may be measured without limits ([`PairTable::measure`]): frames are counted,
//!   and questions are asked and answered, but no bucket takes tokens. The pairs' limits are then
//!   known before [`PairTable::hold`] puts them into force.
//! - The table also remembers the code points that VMs wrote into their frames ([`CodePoints`]).
//! - The control plane reads the counters ([`PairTable::sending`], [`PairTable::receiving`]), sets
//!   rates and frees slots. Counters are never reset, so readers compare two readings.
//!
//! # Bounds
//!
//! Several threads may use the table at once. If a slot changes its pair between a reading and a
//! setting, the new pair can have the old pair's rate until the next setting.
//!
//! # Cost
//!
//! A frame that leaves costs a search in one or two cache lines of keys, and the operations of two
//! buckets. A frame that waits costs the operations of a bucket again when it leaves. If the VM is
//! only measured, a frame costs the search and two counters. A frame that arrives costs the same
//! search, and the operations of one bucket. The table allocates memory only when it is created.

mod arrivals;
mod code_points;
mod keys;
mod lines;
mod pressure;
mod questions;
mod slots;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use penstock_units::{BitsPerSecond, Nanos};

use crate::policer::Size;
pub use code_points::{CodePoints, FLOWS_OF_VM};
use keys::Keys;
use lines::Emptying;
use pressure::Pressure;
pub use slots::{Answer, EPOCH_BITS, Question};
use slots::{PacedBucket, ReceiveSlot, SendSlot};

/// Number of pairs in each direction for which the table has slots.
pub const PAIRS_MAX: usize = 4_096;
/// Number of pairs in each direction that a VM can have.
pub const PAIRS_OF_VM_MAX: u32 = 256;
/// Number of slots in which a key can be.
pub const WINDOW: usize = 8;
/// Bytes of a question or an announcement, for which the VM pays. A VM with many pairs would
/// otherwise send them in addition to its rate. Limits to guarantees also count the overhead on a
/// link.
pub const QUESTION_BYTES: u32 = 66;
/// Time between two questions about a pair.
pub const PERIOD: Nanos = Nanos::from_millis(50);
/// Least time between two questions about a pair in a table for guarantees. Questions take a part
/// of slow guarantees, and guarantees change less often than rates ([`PairTable::ask_every`]). The
/// first [`NEW_QUESTIONS`] questions without an answer have [`PERIOD`] between them, because the
/// pair has a small limit until then.
pub const GUARANTEE_PERIOD: Nanos = Nanos::from_millis(100);

/// Number of questions in a table for guarantees that follow each other sooner until one is
/// answered.
pub const NEW_QUESTIONS: u32 = 10;

/// What a table limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairLimits {
    /// Each pair has a rate, which may exceed its guarantee while all its frames arrive.
    #[default]
    Rates,
    /// Each pair has at most its part of the receiver's guarantee, and the VMs with the same
    /// account have at most the sender's guarantee in sum.
    Guarantees,
}

/// Key of a pair: the port of the VM on this host, and the MAC address of the other VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairKey(u64);

impl PairKey {
    const MAC_BITS: u32 = 48;
    /// Group bit of a MAC address in the low 48 bits.
    const GROUP: u64 = 1 << 40;

    /// Returns the key of a pair, or `None` if `mac` is a group address or no address. `mac` is in
    /// the low 48 bits, as [`penstock_units::MacAddr::to_u64`] returns it.
    #[inline]
    #[must_use]
    pub fn new(port: u16, mac: u64) -> Option<Self> {
        let is_single = mac != 0 && mac & Self::GROUP == 0 && mac >> Self::MAC_BITS == 0;
        is_single.then_some(Self(u64::from(port) << Self::MAC_BITS | mac))
    }

    /// Returns the number of the VM's port.
    #[must_use]
    pub const fn port(self) -> u16 {
        let [first, second, ..] = self.0.to_be_bytes();
        u16::from_be_bytes([first, second])
    }

    /// Returns the MAC address of the other VM in the low 48 bits.
    #[must_use]
    pub const fn mac(self) -> u64 {
        self.0 & ((1 << Self::MAC_BITS) - 1)
    }
}

/// A pair in a slot of the table. A pair that ends and begins again has another `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairRef {
    /// Key of the pair.
    pub key: PairKey,
    /// Number of the slot's present use.
    pub epoch: u32,
    slot: usize,
}

/// Reading of a pair with its sender on this host. Counters are totals that wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendReading {
    /// The pair's place in the table.
    pub pair: PairRef,
    /// Bytes of the frames that passed the pair's bucket or waited for it.
    pub bytes: u64,
    /// Frames that did not pass the pair's bucket and were dropped.
    pub refused: u64,
    /// Number of the last question; 0 if none was asked.
    pub asked: u32,
    /// Last answer.
    pub answer: Option<Answer>,
    /// Sketch of the flows that sent frames since the last reading: each flow has one of the 64
    /// bits, which its hash selects.
    pub flows: u64,
}

/// Reading of a pair with its receiver on this host. Counters are totals that wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveReading {
    /// The pair's place in the table.
    pub pair: PairRef,
    /// Number of questions.
    pub questions: u64,
    /// Part of the sender's guarantee for the pair.
    pub part: BitsPerSecond,
    /// Demand that the sender estimates.
    pub want: BitsPerSecond,
    /// Rate at which the sender may send.
    pub rate: BitsPerSecond,
    /// Number of active flows that the sender estimates; 0 if the sender does not tell it. The
    /// number comes from the network and may have any value.
    pub flows: u32,
}

/// Rates of a VM under limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmRates {
    /// Rate of frames whose pair has no slot or no rate.
    pub default: BitsPerSecond,
    /// Rate of the VM's account: of all frames from the VM, and from the VMs that share its
    /// account.
    pub send: BitsPerSecond,
    /// Rate of all frames to the VM together.
    pub receive: BitsPerSecond,
}

/// Decision about a frame of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The pairs of the VM are neither limited nor measured.
    Free,
    /// The frame passes.
    Pass,
    /// The frame passes, and a question about the pair in this slot is due.
    Ask(usize),
    /// The frame passes, and should signal congestion to its sender: the bucket of the pair in this
    /// slot will soon be empty, or frames of the VM wait all the time. If the signal shortens or
    /// drops the frame, the caller must call [`PairTable::take_back`].
    Signal(usize),
    /// The frame exceeds the rate of its pair, or other frames of its pair wait. It should wait in
    /// the line of its pair ([`PairTable::waits`]). It takes no tokens and does not count before.
    Wait(Delayed),
    /// The frame exceeds the rate of its pair, and cannot wait.
    Refuse,
}

/// A frame that should wait in the line of its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delayed {
    /// Slot of the pair.
    pub slot: usize,
    /// Whether the frame should signal congestion to its sender before it waits.
    pub signals: bool,
    /// Whether a question about the pair is due.
    pub asks: bool,
}

/// A VM's limits and use.
#[derive(Debug)]
struct Vm {
    /// Whether the VM's frames are counted, and questions about its pairs are asked and answered.
    measured: AtomicBool,
    /// Whether the rates are in force. Only a measured VM has rates in force.
    limited: AtomicBool,
    default: PacedBucket,
    send: PacedBucket,
    receive: PacedBucket,
    /// Port of the VM with the account of this VM: its fields `send` and `emptying`.
    account: AtomicU16,
    /// First rate of a new pair's bucket, in bits per second; 0 if a new pair uses `default`.
    first: AtomicU64,
    /// Bytes that arrived from other hosts under limits, with [`PairLimits::Guarantees`].
    arrived: AtomicU64,
    /// Signals of congestion, with [`PairLimits::Guarantees`].
    pressure: Pressure,
    /// Bytes that wait in the lines of the VM's pairs.
    waiting: AtomicU64,
    emptying: Emptying,
    bytes: AtomicU64,
    refused: AtomicU64,
    /// Number of the VM's pairs in each direction.
    pairs: [AtomicU32; 2],
}

/// The pairs of an uplink, and the VMs under limits of pairs.
#[derive(Debug)]
pub struct PairTable {
    limits: PairLimits,
    vms: Box<[Vm]>,
    send_keys: Keys,
    send: Box<[SendSlot]>,
    receive_keys: Keys,
    receive: Box<[ReceiveSlot]>,
    code_points: CodePoints,
    /// Whether frames can wait in lines of their pairs.
    lines: AtomicBool,
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl PairTable {
    /// Creates a table for the rates of pairs of ports with numbers below `ports`, without pairs.
    /// VMs choose keys, so `seed` should be random.
    #[must_use]
    pub fn new(ports: usize, seed: u64) -> Self {
        Self::with_limits(ports, seed, PairLimits::Rates)
    }

    /// Creates a table like [`Self::new`] that limits pairs to `limits`.
    #[must_use]
    pub fn with_limits(ports: usize, seed: u64, limits: PairLimits) -> Self {
        let vm = |port| Vm {
            measured: AtomicBool::new(false),
            limited: AtomicBool::new(false),
            default: PacedBucket::of_vm(limits),
            send: PacedBucket::of_vm(limits),
            receive: PacedBucket::of_vm(limits),
            account: AtomicU16::new(port),
            first: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            pressure: Pressure::new(),
            waiting: AtomicU64::new(0),
            emptying: Emptying::new(),
            bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            pairs: [AtomicU32::new(0), AtomicU32::new(0)],
        };
        let slot = || SendSlot::new(limits);
        Self {
            limits,
            vms: (0..=u16::MAX).take(ports).map(vm).collect(),
            send_keys: Keys::new(PAIRS_MAX, seed),
            send: core::iter::repeat_with(slot).take(PAIRS_MAX).collect(),
            receive_keys: Keys::new(PAIRS_MAX, seed),
            receive: core::iter::repeat_with(ReceiveSlot::new).take(PAIRS_MAX).collect(),
            code_points: CodePoints::new(ports, seed),
            lines: AtomicBool::new(false),
        }
    }

    fn vm(&self, port: u16) -> Option<&Vm> {
        self.vms.get(usize::from(port)).filter(|vm| vm.limited.load(Ordering::Relaxed))
    }

    fn measured_vm(&self, port: u16) -> Option<&Vm> {
        // Pairs with `set_vm`.
        self.vms.get(usize::from(port)).filter(|vm| vm.measured.load(Ordering::Acquire))
    }

    /// Returns the VM that has the account of a VM.
    #[inline]
    fn account<'a>(&'a self, vm: &'a Vm) -> &'a Vm {
        self.vms.get(usize::from(vm.account.load(Ordering::Relaxed))).unwrap_or(vm)
    }

    /// Lets the VM at `port` share the account of the VM at `with`: the bucket for the rate
    /// [`VmRates::send`] of the latter. A VM has its own account until then.
    pub fn share_account(&self, port: u16, with: u16) {
        if let Some(vm) = self.vms.get(usize::from(port)) {
            vm.account.store(with, Ordering::Relaxed);
        }
    }

    /// Returns what the table limits.
    #[inline]
    #[must_use]
    pub const fn limits(&self) -> PairLimits {
        self.limits
    }

    /// Returns the code points that VMs wrote into the frames of their flows.
    #[inline]
    #[must_use]
    pub const fn code_points(&self) -> &CodePoints {
        &self.code_points
    }

    /// Like [`CodePoints::announces`]. The VM pays for the announcement.
    #[must_use]
    pub fn announces(&self, pair: PairKey, flow: u64, dscp: u8, now: Nanos) -> bool {
        let announces = self.code_points.announces(pair, flow, dscp, now);
        if announces && let Some(vm) = self.vm(pair.port()) {
            self.account(vm).send.spend_marker(now);
        }
        announces
    }

    /// Returns the number of frames that the VM at `port` may send at once, at least 1. A table for
    /// guarantees keeps a VM from sending a whole batch beyond its tokens, if no frame can wait in
    /// a line.
    #[inline]
    #[must_use]
    pub fn batch_limit(&self, port: u16) -> usize {
        match self.limits {
            PairLimits::Rates => usize::MAX,
            PairLimits::Guarantees if self.has_lines() => usize::MAX,
            PairLimits::Guarantees => {
                self.vm(port).map_or(usize::MAX, |vm| self.account(vm).send.frames())
            }
        }
    }

    /// Whether the VM at `port` is under limits of pairs.
    #[inline]
    #[must_use]
    pub fn is_limited(&self, port: u16) -> bool {
        self.vm(port).is_some()
    }

    /// Whether the pairs of the VM at `port` are measured, with or without limits.
    #[inline]
    #[must_use]
    pub fn is_measured(&self, port: u16) -> bool {
        self.measured_vm(port).is_some()
    }

    /// Decides about a frame of the VM at `port` to the address `mac`, and counts the frame.
    pub fn send(&self, port: u16, mac: u64, size: Size, now: Nanos) -> Sending {
        self.send_flow(port, mac, None, size, now)
    }

    /// Like [`Self::send`]. Also notes that the flow with the hash `flow` is active in its pair.
    pub fn send_flow(
        &self,
        port: u16,
        mac: u64,
        flow: Option<u32>,
        size: Size,
        now: Nanos,
    ) -> Sending {
        let Some(vm) = self.measured_vm(port) else { return Sending::Free };
        let slot = self.send_slot(vm, port, mac);
        if let (Some((_, slot)), Some(flow)) = (slot, flow) {
            slot.note_flow(flow);
        }
        if !vm.limited.load(Ordering::Relaxed) {
            return self.pass(vm, slot, size, now);
        }
        let Some((at, slot)) = slot.filter(|(_, slot)| slot.bucket.is_set()) else {
            let passes = self.account(vm).take(&vm.default, size.bytes, now);
            if passes {
                vm.bytes.fetch_add(size.bytes.into(), Ordering::Relaxed);
            } else {
                vm.refused.fetch_add(1, Ordering::Relaxed);
            }
            if let Some((_, slot)) = slot {
                slot.count(size, passes);
            }
            return if passes { Sending::Pass } else { Sending::Refuse };
        };
        if self.limits == PairLimits::Guarantees {
            return self.send_or_wait(vm, (at, slot), size, now);
        }
        let passes = self.account(vm).take(&slot.bucket, size.bytes, now);
        slot.count(size, passes);
        if !passes {
            Sending::Refuse
        } else if slot.signals(now) {
            Sending::Signal(at)
        } else if self.asks(vm, slot, now) {
            Sending::Ask(at)
        } else {
            Sending::Pass
        }
    }

    /// Decides about a frame that may wait in the line of its pair.
    fn send_or_wait(
        &self,
        vm: &Vm,
        (at, slot): (usize, &SendSlot),
        size: Size,
        now: Nanos,
    ) -> Sending {
        let (account, has_lines) = (self.account(vm), self.has_lines());
        let relaxed = account.send.is_relaxed(now);
        let must_wait = slot.is_waited_for() || has_lines && account.send.is_in_debt();
        if must_wait || !account.take(&slot.bucket, size.bytes, now) {
            if relaxed {
                vm.pressure.rest(now);
            }
            if !slot.has_room(1) {
                slot.count(size, false);
                return Sending::Refuse;
            }
            let signals = slot.pressure.signals(false, slot.frame_time(), size, now);
            let asks = !signals && self.asks(vm, slot, now);
            return Sending::Wait(Delayed { slot: at, signals, asks });
        }
        slot.count(size, true);
        slot.pressure.rest(now);
        // If there are lines, only flows that wait signal congestion.
        if !has_lines && vm.pressure.signals(relaxed, account.send.frame_time(), size, now) {
            Sending::Signal(at)
        } else if self.asks(vm, slot, now) {
            Sending::Ask(at)
        } else {
            Sending::Pass
        }
    }

    /// Whether a question about a pair is due. The VM pays for the question.
    fn asks(&self, vm: &Vm, slot: &SendSlot, now: Nanos) -> bool {
        let asks = slot.asks(now, self.asks_every(slot));
        if asks {
            self.account(vm).send.spend_marker(now);
        }
        asks
    }

    /// Counts a frame of a VM without limits. Nothing is asked about a pair before
    /// [`Self::set_sender`] has set what the question reports. While frames of the pair still wait
    /// for a former limit, the frame follows them.
    fn pass(&self, vm: &Vm, slot: Option<(usize, &SendSlot)>, size: Size, now: Nanos) -> Sending {
        let Some((at, slot)) = slot else { return Sending::Pass };
        let waits = slot.is_waited_for();
        if waits && !slot.has_room(self.account(vm).emptying.speed(now)) {
            slot.count(size, false);
            return Sending::Refuse;
        }
        let asks = slot.bucket.is_set() && slot.asks(now, self.asks_every(slot));
        if waits {
            return Sending::Wait(Delayed { slot: at, signals: false, asks });
        }
        slot.count(size, true);
        if asks { Sending::Ask(at) } else { Sending::Pass }
    }

    /// Returns the slot of a pair, and takes a free slot for a new pair.
    fn send_slot(&self, vm: &Vm, port: u16, mac: u64) -> Option<(usize, &SendSlot)> {
        let key = PairKey::new(port, mac)?;
        if let Some(at) = self.send_keys.find(key.0) {
            return Some((at, self.send.get(at)?));
        }
        let begin = |at: usize| {
            if let Some(slot) = self.send.get(at) {
                slot.begin(BitsPerSecond(vm.first.load(Ordering::Relaxed)));
            }
        };
        let at = vm.claim(SENDER, &self.send_keys, key, begin)?;
        Some((at, self.send.get(at)?))
    }

    /// Corrects the counters of the pair in `slot` after a signal: `size` was counted, but is not
    /// sent by the VM at `port`. `whole` is true if the whole frame was dropped.
    pub fn take_back(&self, port: u16, slot: usize, size: Size, whole: bool) {
        if let Some(slot) = self.send.get(slot) {
            slot.take_back(size, whole);
        }
        if let Some(vm) = self.vm(port) {
            self.account(vm).send.give_back(size.bytes);
        }
    }

    /// Returns the question about the pair in `slot`, whose frames passed before.
    #[must_use]
    pub fn question(&self, slot: usize) -> Option<Question> {
        self.send.get(slot).map(SendSlot::question)
    }

    /// Records the answer to a question about the pair of the VM at `port` and the address `mac`.
    /// Returns false if the answer does not fit to the pair's questions.
    pub fn answered(&self, port: u16, mac: u64, answer: &Answer) -> bool {
        let at = PairKey::new(port, mac).and_then(|key| self.send_keys.find(key.0));
        let slot = at.and_then(|at| self.send.get(at));
        self.measured_vm(port).is_some() && slot.is_some_and(|slot| slot.answered(answer))
    }

    /// Records a question about the pair of the address `mac` and the VM at `port`. Returns the
    /// answer, or `None` if the VM is not measured, the table is full, or the VM's part for the
    /// pair is not known yet.
    pub fn asked(&self, port: u16, mac: u64, question: &Question) -> Option<Answer> {
        let vm = self.measured_vm(port)?;
        let key = PairKey::new(port, mac)?;
        let at = match self.receive_keys.find(key.0) {
            Some(at) => at,
            None => {
                let begin = |at: usize| {
                    if let Some(slot) = self.receive.get(at) {
                        slot.begin();
                    }
                };
                vm.claim(RECEIVER, &self.receive_keys, key, begin)?
            }
        };
        self.receive.get(at)?.asked(question)
    }

    /// Decides whether a frame from the address `mac` to the VM at `port` passes, and counts the
    /// frame at its pair. `marked` is true if the frame has a congestion mark.
    pub fn receive(&self, port: u16, mac: u64, size: Size, marked: bool, now: Nanos) -> bool {
        let Some(vm) = self.vm(port) else { return true };
        if !vm.receive.take(size.bytes, now) {
            return false;
        }
        let at = PairKey::new(port, mac).and_then(|key| self.receive_keys.find(key.0));
        if let Some(slot) = at.and_then(|at| self.receive.get(at)) {
            slot.count(size, marked);
        }
        true
    }

    /// Puts the VM at `port` under limits of pairs, or changes its rates.
    pub fn limit(&self, port: u16, rates: VmRates) {
        self.set_vm(port, rates, true);
    }

    /// Measures the pairs of the VM at `port` without limits. The VM's rates and those of its pairs
    /// are in force from [`Self::hold`] on.
    pub fn measure(&self, port: u16, rates: VmRates) {
        self.set_vm(port, rates, false);
    }

    fn set_vm(&self, port: u16, rates: VmRates, limited: bool) {
        let Some(vm) = self.vms.get(usize::from(port)) else { return };
        if !vm.measured.load(Ordering::Relaxed) {
            // The debt may be that of another VM.
            [&vm.default, &vm.send, &vm.receive].into_iter().for_each(PacedBucket::fill);
        }
        vm.default.set(rates.default);
        vm.send.set(rates.send);
        vm.receive.set(rates.receive);
        self.set_limited(vm, limited);
        // A worker that sees a measured VM also sees its rates, and the first rate of its pairs.
        vm.measured.store(true, Ordering::Release);
    }

    /// Sets the rate of each new pair of the VM at `port` until [`Self::set_sender`] sets another.
    /// The first frame of such a pair brings a question, which reports an unlimited demand. The
    /// caller sets this rate before it limits or measures the VM.
    pub fn set_first(&self, port: u16, rate: BitsPerSecond) {
        if let Some(vm) = self.vms.get(usize::from(port)) {
            vm.first.store(rate.0, Ordering::Relaxed);
        }
    }

    /// Puts the rates of the VM at `port` into force, if the VM is measured.
    pub fn hold(&self, port: u16) {
        if let Some(vm) = self.measured_vm(port) {
            self.set_limited(vm, true);
        }
    }

    /// Removes the limits of pairs from the VM at `port`. The VM's pairs are still measured.
    pub fn release(&self, port: u16) {
        if let Some(vm) = self.vms.get(usize::from(port)) {
            self.set_limited(vm, false);
        }
    }

    /// Ends the limits of the VM at `port`, and its measurement if no frame of the VM waits. While
    /// frames wait, new frames must follow them, so the caller calls the function again later. The
    /// pairs keep their slots until [`Self::end_sender`] and [`Self::end_receiver`].
    pub fn unlimit(&self, port: u16) {
        if let Some(vm) = self.vms.get(usize::from(port)) {
            self.set_limited(vm, false);
            if vm.waiting.load(Ordering::Relaxed) == 0 {
                vm.measured.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Removes the VM at `port` with its limits and its pairs, because another VM may get the
    /// number of the port. No frame of the VM may wait in a line.
    pub fn forget(&self, port: u16) {
        self.unlimit(port);
        self.share_account(port, port);
        let Some(vm) = self.vms.get(usize::from(port)) else { return };
        for (side, keys) in [(SENDER, &self.send_keys), (RECEIVER, &self.receive_keys)] {
            for (at, key) in keys.all().filter(|(_, key)| PairKey(*key).port() == port) {
                if keys.free(at, key) {
                    vm.leaves(side);
                }
            }
        }
    }

    /// Returns the ports of the VMs under limits of pairs, with the bytes that passed their default
    /// buckets and the frames that did not.
    pub fn limited(&self) -> impl Iterator<Item = (u16, u64, u64)> + '_ {
        (0_u16..).zip(&self.vms).filter(|(_, vm)| vm.limited.load(Ordering::Relaxed)).map(
            |(port, vm)| {
                (port, vm.bytes.load(Ordering::Relaxed), vm.refused.load(Ordering::Relaxed))
            },
        )
    }

    /// Returns the pairs with their sender on this host. A reading empties the pair's sketch of
    /// flows, so only the control plane may read.
    pub fn sending(&self) -> impl Iterator<Item = SendReading> + '_ {
        self.send_keys.all().filter_map(|(at, key)| {
            let slot = self.send.get(at)?;
            let pair = PairRef { key: PairKey(key), epoch: slot.epoch(), slot: at };
            Some(slot.read(pair))
        })
    }

    /// Returns the pairs with their receiver on this host.
    pub fn receiving(&self) -> impl Iterator<Item = ReceiveReading> + '_ {
        self.receive_keys.all().filter_map(|(at, key)| {
            let slot = self.receive.get(at)?;
            let pair = PairRef { key: PairKey(key), epoch: slot.epoch(), slot: at };
            Some(slot.read(pair))
        })
    }

    /// Sets the rate of a pair's bucket, and what the next question reports: the rate `told`, the
    /// part of the sender's guarantee, and the pair's demand.
    pub fn set_sender(
        &self,
        pair: PairRef,
        rate: BitsPerSecond,
        (told, part, want): (BitsPerSecond, BitsPerSecond, BitsPerSecond),
    ) {
        if let Some(slot) = self.send.get(pair.slot)
            && slot.epoch() == pair.epoch
        {
            slot.tell(told, part, want);
            slot.bucket.set(rate);
        }
    }

    /// Sets the number of active flows that the next question about a pair reports.
    pub fn set_flows(&self, pair: PairRef, flows: u32) {
        if let Some(slot) = self.send.get(pair.slot)
            && slot.epoch() == pair.epoch
        {
            slot.tell_flows(flows);
        }
    }

    /// Sets the part of the receiver's guarantee that answers report for a pair.
    pub fn set_receiver(&self, pair: PairRef, part: BitsPerSecond) {
        if let Some(slot) = self.receive.get(pair.slot)
            && slot.epoch() == pair.epoch
        {
            slot.set_part(part);
        }
    }

    /// Removes a pair with its sender on this host. Does nothing while frames of the pair wait,
    /// because another pair in the slot would have them in its line.
    pub fn end_sender(&self, pair: PairRef) {
        let waits = self.send.get(pair.slot).is_some_and(SendSlot::is_waited_for);
        if !waits
            && self.send_keys.free(pair.slot, pair.key.0)
            && let Some(vm) = self.vms.get(usize::from(pair.key.port()))
        {
            vm.leaves(SENDER);
        }
    }

    /// Removes a pair with its receiver on this host.
    pub fn end_receiver(&self, pair: PairRef) {
        if self.receive_keys.free(pair.slot, pair.key.0)
            && let Some(vm) = self.vms.get(usize::from(pair.key.port()))
        {
            vm.leaves(RECEIVER);
        }
    }
}

impl Vm {
    /// Takes tokens of a bucket and of this VM's account, or of neither.
    fn take(&self, bucket: &PacedBucket, bytes: u32, now: Nanos) -> bool {
        if !bucket.take(bytes, now) {
            return false;
        }
        let passes = self.send.spend(bytes, now);
        if !passes {
            bucket.give_back(bytes);
        }
        passes
    }

    /// Gives a free place to a new pair of the VM, if the VM may have one more pair.
    fn claim(
        &self,
        side: usize,
        keys: &Keys,
        key: PairKey,
        begin: impl Fn(usize),
    ) -> Option<usize> {
        if !self.admits(side) {
            return None;
        }
        let claimed = keys.claim(key.0, begin);
        if claimed.is_none_or(|claimed| !claimed.is_new) {
            self.leaves(side);
        }
        claimed.map(|claimed| claimed.place)
    }

    /// Counts a new pair. Returns false if the VM has as many pairs as it can have.
    fn admits(&self, side: usize) -> bool {
        let Some(pairs) = self.pairs.get(side) else { return false };
        let more = |n: u32| (n < PAIRS_OF_VM_MAX).then_some(n + 1);
        pairs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn leaves(&self, side: usize) {
        if let Some(pairs) = self.pairs.get(side) {
            let less = |n: u32| n.checked_sub(1);
            let _ = pairs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}
