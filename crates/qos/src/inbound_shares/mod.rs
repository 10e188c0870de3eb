//! Shares an input among tenants and their VMs: decides which frames from outside pass, signal
//! congestion or are refused, before they are copied.
//!
//! # Problem
//!
//! The switch cannot slow down what arrives from outside. A tenant that receives too much takes the
//! link, and the time of the core, from the other tenants. A fixed rate for each tenant would waste
//! what a tenant does not use. And nobody knows the rate of a core in advance.
//!
//! # Source
//!
//! FS-VDE §4.2 polices incoming frames with a token bucket for each VM. FS-VDE §6 asks for fair
//! shares that lose no rate. The phantom queue, whose marks begin before a real queue exists, is
//! from HULL (Alizadeh et al., NSDI 2012 §3).
//!
//! # Approach
//!
//! Each VM has a token bucket. At most once per interval, a worker adds the tokens that the input
//! earned since the last refill:
//!
//! 1. The tokens are divided among the tenants by their weights. A tenant gets no more than its
//!    buckets have room for, and what it leaves goes to the other tenants by weight.
//! 2. Each tenant's tokens are divided among its VMs in the same way.
//! 3. If all buckets are full, the rest goes to a bucket of the input, the *spare* bucket.
//!
//! So the room of the buckets is the measure of demand: a VM that receives less than its share soon
//! has a full bucket, and the others get its tokens. No demand is estimated. While the input has
//! more frames than tokens, the spare bucket is empty, and each tenant gets its share by weight.
//!
//! A frame to a VM takes tokens for the bytes that the frame occupies on the link:
//!
//! | Bucket of the VM | Spare bucket | Decision | Tokens from |
//! |---|---|---|---|
//! | more than half full | any | the frame passes | the VM |
//! | at most half full | enough | the frame passes | the spare bucket |
//! | at most half full | too few | the frame passes and signals congestion | the VM |
//! | empty | too few | the frame is refused | nobody |
//!
//! The upper half of a VM's bucket thus is a phantom queue: a sender with ECN slows down before a
//! frame is refused. For other senders, one early drop per [`EARLY_GAP`] is allowed
//! ([`InboundShares::may_drop_early`]).
//!
//! # Rate of the input
//!
//! The rate is at most the configured rate. If frames wait in the input's ring all the time, the
//! core is slower than that, and the rate follows what the core delivers (module `capacity`). It is
//! the highest rate at which each VM uses up its share. If a VM needs less than its share, the rate
//! is so low that the ring loses no frame, as far as refusals leave time for it.
//!
//! # Example
//!
//! Tenants of the weights 5, 3 and 1 share 900 Mbit/s. If all receive too much, they get 500, 300
//! and 100 Mbit/s. If the first receives nothing, its bucket is full after 4 ms, and the others get
//! 675 and 225 Mbit/s.
//!
//! # Bounds
//!
//! In any time t, a VM gets no more than the depth of its bucket and of the spare bucket, a frame
//! per worker, and its share of t. The bucket of a VM holds [`SHARE_TIME`] of its share, and at
//! least two large segments. The spare bucket holds [`SHARE_TIME`] of the input's rate. While the
//! core is the limit, the bucket of a VM holds at least its share of [`SLOW_DEPTH`].
//!
//! With more than [`FEW`] VMs, the least depths are smaller: those of all VMs that receive nothing
//! add up to those of [`FEW`] VMs, and so do those of all VMs that receive. A frame passes if the
//! VM's bucket is not empty, so even a small bucket passes a large segment, and is then in debt.
//!
//! # A worker without its core
//!
//! If a worker was away for longer than [`SHARE_TIME`], the frames of that time wait in the input's
//! ring. If no frame was refused before, the spare bucket gets the tokens of at most [`AWAY_MAX`],
//! and loses the rest of them after [`CATCH_UP`]. If frames were refused before, tenants get no
//! more than their shares. If several workers receive from the input, only a pause of all of them
//! counts.
//!
//! # A slow core
//!
//! While the core is the limit and frames wait, a refill adds the tokens of the work since the last
//! refill: those of the time that the core usually takes for as much work. A core that pauses, or
//! becomes slower, delivers less at once, but its estimated rate follows after many batches. The
//! tokens of the time would meanwhile fill all buckets, and each VM would get what arrives for it.
//!
//! The ring loses a part of the frames, often most packets of a large segment. A VM that receives
//! little more than its share then has times without frames. Its bucket must not become full in
//! such a time, because other VMs would get its tokens, so buckets are deeper on a slow core.
//!
//! # Departures
//!
//! FS-VDE gives each VM a fixed rate. Here, VMs get what others leave.
//!
//! # Cost
//!
//! A frame takes one or two compare-and-swaps. A refill takes O(VMs) for each tenant that becomes
//! full, usually one round. The interval grows with the number of VMs, so that refills take a small
//! part of the core. Several workers may use the same shares: one of them refills, and the others
//! do not wait.

mod capacity;
mod water_fill;

use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use penstock_units::{BitsPerSecond, Nanos, Weight};

use crate::bucket::{Bucket, PARTS_OF_BYTE};
use crate::policer::{DEPTH_MAX, RATE_MAX, RATE_MIN, SEGMENT, Size};
use capacity::{Capacity, Interval, work};
use water_fill::{Taker, water_fill};

/// Time of a VM's share that its bucket holds, and time of the input's rate that the spare bucket
/// holds.
pub const SHARE_TIME: Nanos = Nanos::from_millis(4);
/// Least time between two early drops of frames to a VM. TCP needs a round trip to react.
pub const EARLY_GAP: Nanos = Nanos::from_millis(10);
/// Depth in bytes of which the bucket of a VM holds at least the VM's share while the core is the
/// limit: twelve large segments.
pub const SLOW_DEPTH: u32 = 12 * SEGMENT.bytes;
/// Number of VMs with the full least depth. More VMs divide the least depths of so many.
pub const FEW: usize = 16;
/// Longest absence of a worker whose tokens the spare bucket gets.
pub const AWAY_MAX: Nanos = Nanos::from_millis(100);
/// Time in which a worker that was away takes the frames that wait in the ring.
pub const CATCH_UP: Nanos = Nanos::from_millis(2);
/// Number of queue pairs of an input that have separate backlogs.
pub const QUEUES_MAX: usize = 8;

/// Time between two refills: a constant, and a time for each VM.
const INTERVAL: Nanos = Nanos::from_micros(50);
const INTERVAL_PER_VM: Nanos = Nanos(100);
/// Time for which a VM that received frames with a full bucket has tokens left.
const QUIET: Nanos = Nanos::from_secs(1);
/// Least depth of a VM's bucket, in bytes: two large segments.
const DEPTH_MIN: u32 = 2 * SEGMENT.bytes;
/// Number of a port that is no VM's.
const NONE: u16 = u16::MAX;

/// A VM that shares an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the VM's port.
    pub port: u16,
    /// Number of the VM's tenant.
    pub tenant: u16,
    /// Weight of the tenant among all tenants. It must be the same for all VMs of the tenant.
    pub tenant_weight: Weight,
    /// Weight of the VM among the VMs of its tenant.
    pub vm_weight: Weight,
}

/// Decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The frame passes.
    Pass,
    /// The frame passes and takes no tokens, because its port is no VM of the shares.
    Unshared,
    /// The frame passes, and should signal congestion to its sender.
    Signal,
    /// The frame is above the VM's share and must be dropped.
    Refuse,
}

/// Frames of a batch, after the decisions about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchLoad {
    /// Frames that passed and took tokens, in bytes on the link.
    pub passed: Size,
    /// Number of frames that were refused.
    pub refused: u32,
}

#[derive(Debug)]
struct Account {
    bucket: Bucket,
    /// Level in parts from which frames pass without a signal: half of what the bucket may hold.
    half: AtomicI64,
    /// Parts that the bucket may always hold: [`SHARE_TIME`] of the VM's share.
    own: i64,
    /// Parts that the bucket may hold while the core is the limit.
    slow: i64,
    /// Time in ns at which the next early drop is allowed.
    early: AtomicU64,
}

/// Counts since the last change of the estimated rate.
#[derive(Debug)]
struct Counts {
    /// Work since the last refill.
    work: AtomicU64,
    batches: AtomicU32,
    bytes: AtomicU64,
    frames: AtomicU64,
    refused: AtomicU64,
    /// Frames that passed and were then lost.
    lost: AtomicU64,
    /// Least number of frames that waited after a batch, by queue pair; `u32::MAX` without a batch.
    backlogs: [AtomicU32; QUEUES_MAX],
}

/// State of the refills, which one worker at a time uses.
#[derive(Debug)]
struct State {
    /// Time of the last refill.
    at: Nanos,
    /// Time of the last change of the estimated rate.
    adapted: Nanos,
    /// Tokens that rounding left.
    carry: u64,
    /// Work since the last change of the estimated rate, up to the last refill.
    worked: u64,
    /// Whether frames were refused before the last change of the estimated rate.
    refused: bool,
    /// Whether a VM had tokens left since the last change of the estimated rate.
    left: bool,
    /// Time until which each VM has tokens left, because its bucket was full when it received.
    left_until: Box<[Nanos]>,
    /// Time until which the spare bucket may hold the tokens of an absence.
    late_until: Nanos,
    /// Level of each VM's bucket after the last refill.
    levels: Box<[i64]>,
    capacity: Capacity,
    vms: Box<[Taker]>,
    tenants: Box<[Taker]>,
}

/// The shares of an input.
#[derive(Debug)]
pub struct InboundShares {
    rate: BitsPerSecond,
    /// VMs in the order of their tenants.
    members: Box<[Member]>,
    /// Accounts of the VMs, in the order of [`Self::members`].
    accounts: Box<[Account]>,
    /// For each tenant, its VMs in [`Self::members`].
    tenants: Box<[Range<usize>]>,
    /// Place of a VM in [`Self::members`] by the number of its port, or [`NONE`].
    places: Box<[u16]>,
    spare: Bucket,
    /// Parts that the spare bucket may hold if no worker was away.
    spare_usual: i64,
    /// Least depth in parts of a VM's bucket, if there are at most [`FEW`] VMs.
    least: i64,
    interval: Nanos,
    /// Time in ns of the next refill.
    due: AtomicU64,
    counts: Counts,
    state: Mutex<State>,
}

impl InboundShares {
    /// Returns shares of an input with `rate` bits per second on the link, FCS, preamble and gap
    /// included. The rate is limited to [`RATE_MIN`] to [`RATE_MAX`]. All buckets hold as much as
    /// they may. Each port must occur once, and at most 65,534 ports are shared.
    #[must_use]
    pub fn new(rate: BitsPerSecond, members: &[Member]) -> Self {
        let rate = BitsPerSecond(rate.0.clamp(RATE_MIN.0, RATE_MAX.0));
        let members = in_order(members);
        let tenants = spans(&members);
        let interval = Nanos(INTERVAL.0 + INTERVAL_PER_VM.0 * members.len() as u64);
        let taker = |weight: u64| Taker { weight, ..Taker::default() };
        let weight_of = |span: &Range<usize>| u64::from(members[span.start].tenant_weight.get());
        let least = bytes_in(rate.0, Nanos(2 * interval.0)).max(DEPTH_MIN);
        let idle = share_of(in_parts(least), members.len());
        let account = |part: u64| {
            let own = bytes_in(part, SHARE_TIME);
            let slow = own.max(bytes_of(SLOW_DEPTH, (part, rate.0)));
            let bucket = Bucket::new(slow.max(least).min(DEPTH_MAX), PARTS_OF_BYTE);
            let (own, slow) = (in_parts(own), in_parts(slow));
            let most = own.max(idle);
            bucket.lower_to(most);
            let half = AtomicI64::new(half(most));
            Account { bucket, half, own, slow, early: AtomicU64::new(0) }
        };
        let accounts: Box<[Account]> =
            parts(rate.0, &members, &tenants).into_iter().map(account).collect();
        let state = State {
            at: Nanos::ZERO,
            adapted: Nanos::ZERO,
            carry: 0,
            worked: 0,
            refused: false,
            left: false,
            left_until: vec![Nanos::ZERO; members.len()].into_boxed_slice(),
            late_until: Nanos::ZERO,
            levels: accounts.iter().map(|account| account.bucket.level()).collect(),
            capacity: Capacity::new(rate.0),
            vms: members.iter().map(|member| taker(member.vm_weight.get().into())).collect(),
            tenants: tenants.iter().map(|span| taker(weight_of(span))).collect(),
        };
        let spare_usual = bytes_in(rate.0, SHARE_TIME).max(DEPTH_MIN);
        let spare = Bucket::new(bytes_in(rate.0, AWAY_MAX).max(spare_usual), PARTS_OF_BYTE);
        spare.lower_to(in_parts(spare_usual));
        Self {
            rate,
            places: places(&members),
            members,
            accounts,
            tenants,
            spare,
            spare_usual: in_parts(spare_usual),
            least: in_parts(least),
            interval,
            due: AtomicU64::new(0),
            counts: Counts::new(),
            state: Mutex::new(state),
        }
    }

    /// Returns shares that replace `old`, for another rate or other VMs. Buckets contain at most as
    /// many tokens as before, and the estimated rate remains.
    #[must_use]
    pub fn in_place_of(old: &Self, rate: BitsPerSecond, members: &[Member]) -> Self {
        let mut new = Self::new(rate, members);
        new.spare.lower_to(old.spare.level());
        for (member, account) in new.members.iter().zip(new.accounts.iter()) {
            if let Some(before) = old.account(member.port) {
                account.bucket.lower_to(before.bucket.level());
                account.early.store(before.early.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let before = old.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = new.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.at, state.adapted) = (before.at, before.adapted);
        (state.refused, state.late_until) = (before.refused, before.late_until);
        state.capacity = Capacity::in_place_of(&before.capacity, new.rate.0);
        state.levels = new.accounts.iter().map(|account| account.bucket.level()).collect();
        drop(before);
        new
    }

    /// Whether the shares are those of an input of `rate` with `members`.
    #[must_use]
    pub fn are(&self, rate: BitsPerSecond, members: &[Member]) -> bool {
        self.rate.0 == rate.0.clamp(RATE_MIN.0, RATE_MAX.0) && *self.members == *in_order(members)
    }

    /// Returns the rate that is divided now: the rate of the input, or less if the core is slower.
    #[must_use]
    pub fn rate(&self) -> BitsPerSecond {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        BitsPerSecond(state.capacity.rate())
    }

    fn account(&self, port: u16) -> Option<&Account> {
        let place = *self.places.get(usize::from(port))?;
        self.accounts.get(usize::from(place))
    }

    /// Adds the tokens that the input earned up to `now`, if a refill is due. All workers must use
    /// the same clock. Call before the frames of a batch arrive.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        if now.0 >= self.due.load(Ordering::Relaxed) {
            self.refill_now(now);
        }
    }

    #[inline(never)]
    fn refill_now(&self, now: Nanos) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another worker refills.
            Err(TryLockError::WouldBlock) => return,
        };
        self.due.store(now.0.saturating_add(self.interval.0), Ordering::Relaxed);
        let elapsed = now.saturating_sub(state.adapted);
        let was_away = state.at > Nanos::ZERO && now.saturating_sub(state.at) > SHARE_TIME;
        let (batches, backlog) = self.counts.shown();
        let work = self.counts.work.swap(0, Ordering::Relaxed);
        state.worked = state.worked.saturating_add(work);
        if capacity::is_over(elapsed, (batches, backlog), was_away) {
            let left = core::mem::take(&mut state.left);
            let work = core::mem::take(&mut state.worked);
            let seen = Interval { left, work, ..self.counts.take(elapsed) };
            if was_away && !state.refused && seen.refused == 0 {
                state.late_until = now + CATCH_UP;
            }
            (state.adapted, state.refused) = (now, seen.refused > 0);
            if state.capacity.adapt(&seen) && now >= state.late_until {
                // The core is the bottleneck, so no tokens are spare.
                self.spare.lower_to(0);
            }
        }
        self.give(&mut state, now, (backlog > capacity::BACKLOG).then_some(work));
        if now >= state.late_until {
            self.spare.lower_to(self.spare_usual);
        }
    }

    /// Notes whether a VM has tokens left: it received frames since the last refill, and its bucket
    /// is still at least a quarter full. A VM that receives frames with a full bucket has tokens
    /// left for [`QUIET`], or until its bucket is empty.
    fn note_left(&self, state: &mut State, now: Nanos) {
        let State { left, levels, left_until, .. } = state;
        let vms = self.accounts.iter().zip(levels.iter()).zip(left_until.iter_mut());
        for ((account, before), until) in vms {
            let (level, half) = (account.bucket.level(), account.half.load(Ordering::Relaxed));
            if level <= 0 {
                *until = Nanos::ZERO;
            } else if level < *before {
                *left |= level >= half / 2;
                if *before >= 2 * (half - 1) {
                    *until = now + QUIET;
                }
            }
            *left |= *until > now;
        }
    }

    /// Sets the room of each VM, and returns the tokens of buckets that hold more than they may.
    /// `slow` is true if the core is the limit.
    fn make_room(&self, state: &mut State, slow: bool) -> u64 {
        let (vms, levels) = (&mut state.vms, &*state.levels);
        let accounts = || self.accounts.iter().zip(levels.iter());
        // A VM in debt waits for tokens, even if all its frames were refused.
        let receives = |level: i64, before: i64| level < before || level <= 0;
        let busy = accounts().filter(|(of, before)| receives(of.bucket.level(), **before)).count();
        let (idle, busy) = (share_of(self.least, levels.len()), share_of(self.least, busy));
        let mut back = 0_u64;
        for ((account, before), vm) in accounts().zip(vms.iter_mut()) {
            let level = account.bucket.level();
            let own = if slow { account.slow } else { account.own };
            let most = own.max(if receives(level, *before) { busy } else { idle });
            account.half.store(half(most), Ordering::Relaxed);
            vm.room = (most - level).max(0).unsigned_abs();
            if level > most {
                account.bucket.spend(level - most);
                back = level.abs_diff(most).saturating_add(back);
            }
        }
        back
    }

    /// Adds the tokens that the input earned since the last refill. `work` is the work since then,
    /// if frames waited behind each batch since the last change of the estimated rate.
    fn give(&self, state: &mut State, now: Nanos, work: Option<u64>) {
        let elapsed = now.saturating_sub(state.at);
        state.at = state.at.max(now);
        self.note_left(state, now);
        let slow = state.capacity.is_below_link();
        let back = self.make_room(state, slow);
        let State { carry, capacity, vms, tenants, levels, .. } = state;
        let usual = work.filter(|_| slow).and_then(|work| capacity.time_of(work));
        // A rate of R bits per second earns R parts per nanosecond.
        let earned = capacity.rate().saturating_mul(usual.unwrap_or(elapsed).0);
        let earned = earned.saturating_add(*carry).saturating_add(back);
        for (tenant, span) in tenants.iter_mut().zip(self.tenants.iter()) {
            tenant.room = vms[span.clone()].iter().fold(0, |sum, vm| vm.room.saturating_add(sum));
        }
        let left = water_fill(earned, tenants);
        let mut rounded = 0;
        for (tenant, span) in tenants.iter().zip(self.tenants.iter()) {
            rounded += water_fill(tenant.part, &mut vms[span.clone()]);
        }
        for ((vm, account), level) in vms.iter().zip(self.accounts.iter()).zip(levels.iter_mut()) {
            account.bucket.give(vm.part);
            *level = account.bucket.level();
        }
        *carry = if tenants.iter().all(|tenant| tenant.part == tenant.room) {
            self.spare.give(left);
            rounded
        } else {
            left + rounded
        };
    }

    /// Decides about a frame to `port` that occupies `bytes` on the link, and charges the frame if
    /// it passes. Frames to ports that are no VMs of the shares always pass, for example frames
    /// from one uplink to another.
    #[inline]
    #[must_use]
    pub fn arrive(&self, port: u16, bytes: u32) -> Admission {
        let Some(Account { bucket, half, .. }) = self.account(port) else {
            return Admission::Unshared;
        };
        let parts = in_parts(bytes);
        let level = bucket.level();
        if level >= half.load(Ordering::Relaxed) {
            bucket.spend(parts);
            return Admission::Pass;
        }
        if self.spare.take(parts) {
            return Admission::Pass;
        }
        if level <= 0 {
            return Admission::Refuse;
        }
        bucket.spend(parts);
        Admission::Signal
    }

    /// Gives back the tokens of `bytes` bytes to the VM of `port`, because a frame that passed was
    /// dropped or made shorter as a signal. Without this, early drops would reduce the shares of
    /// VMs whose senders do not slow down.
    pub fn give_back(&self, port: u16, bytes: u32) {
        if let Some(Account { bucket, .. }) = self.account(port) {
            bucket.give(in_parts(bytes).unsigned_abs());
        }
    }

    /// Gives back the tokens of frames to `port` that passed and were then dropped, for example
    /// because the VM's ring is full. The frames do not count as delivered, but they took time of
    /// the core. `size` is in bytes on the link.
    pub fn not_delivered(&self, port: u16, size: Size) {
        self.give_back(port, size.bytes);
        let less = |count: &AtomicU64, by: u32| {
            let subtract = |count: u64| Some(count.saturating_sub(by.into()));
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        };
        less(&self.counts.bytes, size.bytes);
        less(&self.counts.frames, size.frames);
        self.counts.lost.fetch_add(size.frames.into(), Ordering::Relaxed);
    }

    /// Whether a frame to `port` whose sender does not support ECN may be dropped as a signal at
    /// `now`. True at most once per [`EARLY_GAP`] for a port.
    #[must_use]
    pub fn may_drop_early(&self, port: u16, now: Nanos) -> bool {
        let Some(Account { early, .. }) = self.account(port) else { return false };
        let due = early.load(Ordering::Relaxed);
        let next = now.0.saturating_add(EARLY_GAP.0);
        now.0 >= due
            && early.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Counts a batch of the input's queue pair `queue`, behind which about `backlog` frames wait.
    /// If the batch was full with fewer than 32 frames, the number must be in proportion larger, so
    /// that a backlog of 32 is one batch.
    pub fn note(&self, queue: usize, backlog: usize, load: BatchLoad) {
        let Counts { batches, bytes, frames, refused, backlogs, .. } = &self.counts;
        self.counts.work.fetch_add(work(load.passed, load.refused), Ordering::Relaxed);
        if let Some(least) = backlogs.get(queue) {
            let backlog = u32::try_from(backlog).unwrap_or(u32::MAX).min(u32::MAX - 1);
            least.fetch_min(backlog, Ordering::Relaxed);
        }
        batches.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(load.passed.bytes.into(), Ordering::Relaxed);
        frames.fetch_add(load.passed.frames.into(), Ordering::Relaxed);
        refused.fetch_add(load.refused.into(), Ordering::Relaxed);
    }

    /// Notes that no frame waits at the input's queue pair `queue`. Call if a queue pair cannot
    /// tell its backlog, and a look at the queue pair found no frame.
    pub fn note_empty(&self, queue: usize) {
        if let Some(least) = self.counts.backlogs.get(queue)
            && least.load(Ordering::Relaxed) != 0
        {
            least.store(0, Ordering::Relaxed);
        }
    }
}

impl Counts {
    fn new() -> Self {
        Self {
            work: AtomicU64::new(0),
            batches: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            backlogs: core::array::from_fn(|_| AtomicU32::new(u32::MAX)),
        }
    }

    /// Returns the numbers of batches and of frames that waited all the time so far.
    fn shown(&self) -> (u32, u32) {
        let backlogs = self.backlogs.iter().map(|least| least.load(Ordering::Relaxed));
        (self.batches.load(Ordering::Relaxed), largest(backlogs))
    }

    /// Returns the counts, and sets them to zero. The backlog is that of the queue pair with the
    /// largest one.
    fn take(&self, elapsed: Nanos) -> Interval {
        let small =
            |count: &AtomicU64| u32::try_from(count.swap(0, Ordering::Relaxed)).unwrap_or(u32::MAX);
        let backlogs = self.backlogs.iter().map(|least| least.swap(u32::MAX, Ordering::Relaxed));
        Interval {
            elapsed,
            batches: self.batches.swap(0, Ordering::Relaxed),
            backlog: largest(backlogs),
            passed: Size { bytes: small(&self.bytes), frames: small(&self.frames) },
            refused: small(&self.refused),
            lost: small(&self.lost),
            ..Interval::default()
        }
    }
}

/// Returns the backlog of the queue pair with the largest one. Queue pairs without a batch have no
/// backlog, and their entry is `u32::MAX`.
fn largest(backlogs: impl Iterator<Item = u32>) -> u32 {
    backlogs.filter(|least| *least != u32::MAX).max().unwrap_or(0)
}

/// Returns the VMs in the order of their tenants and ports.
fn in_order(members: &[Member]) -> Box<[Member]> {
    let mut members = members.to_vec();
    members.sort_unstable_by_key(|member| (member.tenant, member.port));
    members.truncate(NONE.into());
    members.into_boxed_slice()
}

/// Returns the VMs of each tenant, as ranges of `members`.
fn spans(members: &[Member]) -> Box<[Range<usize>]> {
    let mut first = 0;
    let span = |vms: &[Member]| {
        let span = first..first + vms.len();
        first = span.end;
        span
    };
    members.chunk_by(|a, b| a.tenant == b.tenant).map(span).collect()
}

/// Returns each VM's part of `rate` if all VMs receive too much.
fn parts(rate: u64, members: &[Member], tenants: &[Range<usize>]) -> Vec<u64> {
    let all: u128 =
        tenants.iter().map(|span| u128::from(members[span.start].tenant_weight.get())).sum();
    let of_tenant = |span: &Range<usize>| {
        let vms = &members[span.clone()];
        let of_vms: u128 = vms.iter().map(|vm| u128::from(vm.vm_weight.get())).sum();
        let part = move |vm: &Member| {
            let weight = u128::from(vm.tenant_weight.get()) * u128::from(vm.vm_weight.get());
            u64::try_from(u128::from(rate) * weight / (all * of_vms)).unwrap_or(rate)
        };
        vms.iter().map(part).collect::<Vec<u64>>()
    };
    tenants.iter().flat_map(of_tenant).collect()
}

fn places(members: &[Member]) -> Box<[u16]> {
    let ports = members.iter().map(|member| usize::from(member.port) + 1).max().unwrap_or(0);
    let mut places = vec![NONE; ports];
    for (place, member) in (0_u16..).zip(members) {
        places[usize::from(member.port)] = place;
    }
    places.into_boxed_slice()
}

/// Returns the least depth of a VM's bucket, if `vms` VMs divide the least depths of [`FEW`] VMs.
/// Both depths are in parts.
fn share_of(least: i64, vms: usize) -> i64 {
    let vms = i64::try_from(vms.max(FEW)).unwrap_or(i64::MAX);
    least / vms * i64::try_from(FEW).unwrap_or(1)
}

/// Returns the level from which frames pass without a signal, in parts. The bucket may hold `most`.
const fn half(most: i64) -> i64 {
    most / 2 + 1
}

/// Returns the part `part` of `all` of `bytes`. Both rates are in bits per second.
fn bytes_of(bytes: u32, (part, all): (u64, u64)) -> u32 {
    let bytes = u128::from(bytes) * u128::from(part) / u128::from(all.max(1));
    u32::try_from(bytes).unwrap_or(DEPTH_MAX)
}

fn in_parts(bytes: u32) -> i64 {
    i64::from(bytes.min(DEPTH_MAX)) * PARTS_OF_BYTE
}

/// Returns the bytes that a rate in bits per second passes in a time, at most [`DEPTH_MAX`].
fn bytes_in(rate: u64, time: Nanos) -> u32 {
    let bytes = u128::from(rate) * u128::from(time.0) / 8_000_000_000;
    u32::try_from(bytes).unwrap_or(DEPTH_MAX).min(DEPTH_MAX)
}

#[cfg(test)]
mod tests;
