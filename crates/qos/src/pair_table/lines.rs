//! Frames that wait for the limits of their VMs and pairs, in a line for each pair.
//!
//! # Problem
//!
//! VMs send more than their limit, and TCP makes them do so all the time. In a VM's ring, its
//! acknowledgements would wait behind its data. Then the senders to the VM have the same round trip
//! as the VM itself, and the direction with the smaller windows gets less than its part.
//!
//! # Approach
//!
//! If an output has lines, a frame waits in the line of its pair while the account or the pair is
//! in debt. The table decides when the first frame of a line leaves; the frame pays then. Lines
//! that wait for the same account take turns, and a pair with more flows has more bytes in a turn
//! ([`PairTable::bytes_of_turn`]), as TCP would share the account by connection. Pure
//! acknowledgements pass the line, up to a burst.
//!
//! # End of the limits
//!
//! A VM may have frames for 2 s in its lines when its tenant gets a queue and the limits end. If
//! all frames left at once, most would be lost: the next switch has room for 25 ms in this queue.
//! TCP notices the loss after a round trip, which lasts as long as the frames waited. So frames
//! first leave little faster than the former rates of the account and of the pair allow, by
//! [`SURPLUS`].
//! New frames of a pair follow its frames that wait. TCP refills the line until the line sends the
//! whole window in a round trip, so no fixed speed is high enough. The surplus therefore doubles
//! every [`SPEED_STEP`]. After [`SPEED_STEPS`] steps, all frames leave at once. Until then, the VM
//! stays measured ([`PairTable::unlimit`]), and pairs with frames that wait keep their slots
//! ([`PairTable::end_sender`]).
//!
//! # Bounds
//!
//! A line has a number of bytes from which on no more frames wait, and frames become late. A VM
//! waits in its ring only if its lines have frames for [`LATE_MAX`].

use core::sync::atomic::{AtomicU64, Ordering};

use penstock_units::Nanos;

use super::slots::FULL_FRAME;
use super::{PERIOD, PacedBucket, PairTable, SendSlot, Vm};
use crate::policer::Size;

/// A frame is late after the time of this many full frames at the rate of its pair, if this is
/// longer than the output's limit on waits. TCP needs a few frames in flight to notice the loss of
/// one of them without a retransmission timeout.
const LATE_FRAMES: u64 = 16;
/// Time after which a frame is late at any rate of its pair, if the output's limit is not longer.
const LATE_MAX: Nanos = Nanos::from_secs(2);
/// Former rate at which frames leave lines after the end of the limits, in the unit of speeds.
const FORMER: u64 = 16;
/// What the speed first has above the former rate: an eighth.
const SURPLUS: u64 = 2;
/// Time after which the surplus doubles. It is about a round trip of TCP whose frames wait in
/// lines.
const SPEED_STEP: Nanos = Nanos::from_millis(500);
/// Number of steps after which all frames leave at once.
const SPEED_STEPS: u64 = 8;

/// Returns the speed after `steps` steps, in units of 1/16 of the former rate.
const fn speed_after(steps: u64) -> u64 {
    FORMER + (SURPLUS << steps)
}

/// Frames of an account that left lines after the end of the limits.
#[derive(Debug)]
pub(super) struct Emptying {
    /// Time in ns at which the first frame left; 0 if none has left yet.
    since: AtomicU64,
    bytes: AtomicU64,
}

impl Emptying {
    pub(super) const fn new() -> Self {
        Self { since: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn begin_again(&self) {
        self.since.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Returns the number of steps since the first frame left, and the time since the last step.
    fn steps(&self, now: Nanos) -> (u64, Nanos) {
        let since = Some(self.since.load(Ordering::Relaxed)).filter(|since| *since != 0);
        let elapsed = since.map_or(0, |since| now.0.saturating_sub(since));
        (elapsed / SPEED_STEP.0, Nanos(elapsed % SPEED_STEP.0))
    }

    /// Returns how often the present speed contains the former rates, rounded up.
    pub(super) fn speed(&self, now: Nanos) -> u64 {
        speed_after(self.steps(now).0.min(SPEED_STEPS)).div_ceil(FORMER)
    }
}

impl Vm {
    /// Takes tokens of this VM's account for a frame that leaves the line of the pair with this
    /// bucket.
    fn pay(&self, bucket: &PacedBucket, bytes: u32, now: Nanos) -> Result<(), Nanos> {
        let debt = self.send.debt(now);
        if debt > Nanos::ZERO {
            return Err(debt.min(PERIOD));
        }
        let pays = self.take(bucket, bytes, now);
        if pays { Ok(()) } else { Err(bucket.debt(now).min(PERIOD)) }
    }

    /// Lets a frame leave the line of the pair in `slot` after the end of the limits of this VM's
    /// account. The buckets keep their tokens, so that limits that return find no debt.
    fn empty(&self, slot: &SendSlot, bytes: u32, now: Nanos) -> Result<(), Nanos> {
        let Emptying { since, bytes: left } = &self.emptying;
        let begin = now.0.max(1);
        let _ = since.compare_exchange(0, begin, Ordering::Relaxed, Ordering::Relaxed);
        let (steps, rest) = self.emptying.steps(now);
        if steps < SPEED_STEPS {
            let of_account = self.send.time_of(left.load(Ordering::Relaxed));
            let of_pair = slot.bucket.time_of(slot.emptied(since.load(Ordering::Relaxed)));
            // The sums of the former rate and of the surplus over time.
            let former = FORMER * (steps * SPEED_STEP.0 + rest.0);
            let surplus = SURPLUS * (((SPEED_STEP.0 + rest.0) << steps) - SPEED_STEP.0);
            let sent = of_account.max(of_pair).0.saturating_mul(FORMER);
            let early = sent.saturating_sub(former + surplus);
            if early > 0 {
                let wait = early.div_ceil(speed_after(steps));
                return Err(Nanos(wait.min(SPEED_STEP.0 - rest.0)));
            }
        }
        left.fetch_add(bytes.into(), Ordering::Relaxed);
        slot.emptied.fetch_add(bytes.into(), Ordering::Relaxed);
        Ok(())
    }
}

impl PairTable {
    /// Sets whether the rates of a VM are in force.
    pub(super) fn set_limited(&self, vm: &Vm, limited: bool) {
        if vm.limited.swap(limited, Ordering::Relaxed) && !limited {
            self.account(vm).emptying.begin_again();
        }
    }

    /// Notes that a frame of the VM at `port` waits in the line of the pair in `slot`. Returns
    /// false if there is no such slot.
    pub fn waits(&self, port: u16, slot: usize, size: Size) -> bool {
        let Some(slot) = self.send.get(slot) else { return false };
        slot.count(size, true);
        slot.waits(size.bytes);
        if let Some(vm) = self.vms.get(usize::from(port)) {
            vm.waiting.fetch_add(size.bytes.into(), Ordering::Relaxed);
        }
        true
    }

    /// Notes that a frame no longer waits.
    fn ends_waiting(&self, port: u16, slot: &SendSlot, bytes: u32) {
        slot.ends_waiting(bytes);
        if let Some(vm) = self.vms.get(usize::from(port)) {
            subtract(&vm.waiting, bytes);
        }
    }

    /// Lets a frame pass that should wait in the line of the pair in `slot`, but that may pass the
    /// frames there, because it is small and others depend on it. Returns false if such frames have
    /// used a whole burst of the pair in advance, or if the account owes 4 MiB.
    pub fn passes_line(&self, port: u16, slot: usize, size: Size, now: Nanos) -> bool {
        let Some(slot) = self.send.get(slot) else { return false };
        if !slot.bucket.take_ahead(size.bytes, now) {
            return false;
        }
        let passes = |vm| self.account(vm).send.spend(size.bytes, now);
        let passes = self.vm(port).is_none_or(passes);
        if passes {
            slot.count(size, true);
        } else {
            slot.bucket.give_back(size.bytes);
        }
        passes
    }

    /// Counts a frame that cannot wait in the line of the pair in `slot`, and is dropped.
    pub fn refuse(&self, slot: usize, size: Size) {
        if let Some(slot) = self.send.get(slot) {
            slot.count(size, false);
        }
    }

    /// Decides whether the first frame in the line of the pair in `slot` leaves now. The frame has
    /// `bytes` bytes and came from the VM at `port`. It leaves if neither the account nor the pair
    /// is in debt. If the VM has no limits any more, its lines become empty within four seconds. A
    /// frame of a VM that is not measured leaves at once, because new frames do not wait.
    ///
    /// # Errors
    /// Returns the time for which the frame must still wait. The time is at most [`PERIOD`],
    /// because rates change.
    pub fn departs(&self, port: u16, slot: usize, bytes: u32, now: Nanos) -> Result<(), Nanos> {
        let Some(slot) = self.send.get(slot) else { return Ok(()) };
        if let Some(vm) = self.measured_vm(port).filter(|_| slot.bucket.is_set()) {
            if vm.limited.load(Ordering::Relaxed) {
                self.account(vm).pay(&slot.bucket, bytes, now)?;
            } else {
                self.account(vm).empty(slot, bytes, now)?;
            }
        }
        self.ends_waiting(port, slot, bytes);
        Ok(())
    }

    /// Notes that a frame of the VM at `port` in the line of the pair in `slot` was dropped.
    pub fn lost(&self, port: u16, slot: usize, size: Size) {
        if let Some(slot) = self.send.get(slot) {
            self.ends_waiting(port, slot, size.bytes);
            slot.discount(size, true);
        }
    }

    /// Returns the time after which a frame in the line of the pair in `slot` is late. The time is
    /// `least`, or the time of several frames at the pair's rate if this is longer.
    #[must_use]
    pub fn longest_wait(&self, slot: usize, least: Nanos) -> Nanos {
        let several = |slot: &SendSlot| slot.frame_time().0.saturating_mul(LATE_FRAMES);
        let longest = self.send.get(slot).map_or(0, several);
        least.max(LATE_MAX.min(Nanos(longest)))
    }

    /// Returns the number of bytes after which the turn of the line of the pair in `slot` ends, if
    /// lines take turns: a full frame for each flow of the pair.
    #[must_use]
    pub fn bytes_of_turn(&self, slot: usize) -> u64 {
        self.send.get(slot).map_or(1, SendSlot::flows_told) * FULL_FRAME
    }

    /// Notes whether frames can wait in lines of their pairs.
    pub fn set_lines(&self, lines: bool) {
        if self.lines.swap(lines, Ordering::Relaxed) != lines {
            self.send.iter().for_each(|slot| slot.bucket.set_line(lines));
        }
    }

    pub(super) fn has_lines(&self) -> bool {
        self.lines.load(Ordering::Relaxed)
    }

    /// Returns the time for which the next frames of the VM at `port` should wait in its ring. The
    /// time is at most [`PERIOD`], because rates change.
    ///
    /// If frames can wait in the lines of their pairs, they wait in the ring only if frames for 2 s
    /// at the account's rate wait in the lines. Otherwise they wait while the account is in debt.
    #[must_use]
    pub fn wait(&self, port: u16, now: Nanos) -> Nanos {
        let wait = |vm: &Vm| {
            let account = &self.account(vm).send;
            if !self.has_lines() {
                return account.debt(now);
            }
            let waiting = vm.waiting.load(Ordering::Relaxed);
            account.time_of(waiting).saturating_sub(LATE_MAX)
        };
        self.vm(port).map_or(Nanos::ZERO, |vm| wait(vm).min(PERIOD))
    }
}

/// Subtracts `bytes`, at least to 0.
pub(super) fn subtract(from: &AtomicU64, bytes: u32) {
    let less = |value: u64| Some(value.saturating_sub(bytes.into()));
    let _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}
