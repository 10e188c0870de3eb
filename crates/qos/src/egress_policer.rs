//! Polices traffic to VMs, in bytes and in frames. The policer limits a tenant to the rate of its
//! contract, and each of the tenant's VMs to a part of this rate.
//!
//! # Problem
//!
//! The switch cannot slow down traffic that arrives from outside. The switch must drop frames above
//! the contract as early as possible. The switch must not use a timer for each bucket, because
//! timers would cost more cycles than the frames themselves.
//!
//! # Source
//!
//! The egress policer is from FS-VDE §4.2, Fig. 5 and Eq. (3).
//!
//! # Approach
//!
//! A tenant and each VM have a bucket for bytes and a bucket for frames. A bucket has a level c and
//! a depth m. The level and the depth are counted in parts of a byte (1/8,000,000,000) or of a
//! frame (1/1,000,000,000). A rate of r bits or frames per second adds exactly r parts to a
//! bucket's level in a nanosecond. The symbol t_r is the time of a bucket's last refill. When a
//! frame arrives at time t, a refill sets the bucket's level c to min(m, c + (t - t_r) r), and t_r
//! to t.
//!
//! A frame passes if the tenant's buckets and the VM's buckets have enough tokens for the frame. A
//! frame that passes takes tokens from the buckets of the tenant and of the VM. A frame that does
//! not pass takes no tokens. A frame longer than a bucket's depth passes if the bucket is full, and
//! the bucket then goes into debt.
//!
//! Under [`Sharing::Borrow`], a VM above its part may use the unused bandwidth of the tenant's
//! other VMs. If the VM's buckets have too few tokens, its frame still passes while the tenant's
//! buckets are more than half full. The lower half of the tenant's buckets is reserved for VMs that
//! stay within their own parts of the rate. A VM that borrows causes no loss for the other VMs if
//! their bursts are in total at most half the tenant's depth.
//!
//! # Frames that wait
//!
//! A limit for which the operator states no burst ([`Terms::waits`]) drops no frame by itself. The
//! frame at the head of the output's queue waits until no bucket that applies to the frame is in
//! debt ([`EgressPolicer::wait`]). The frame is then charged ([`EgressPolicer::charge`]) and may
//! put the buckets into debt. A VM that borrows waits until the tenant's buckets are more than half
//! full. In any time t, a limit that delays frames passes at most one frame more than its depth and
//! the tokens of t.
//!
//! # Example
//!
//! In a test of the egress policer, the rate is 1,000 frames/s and the depth is 50 frames. In the
//! test, a flood of frames for 10 s follows 60 s without frames. The depth and the rate permit 50 +
//! 10,000 frames in the flood, and 10,049 frames pass. With FS-VDE's Eq. (3) as printed, 70,049
//! frames of the flood would pass.
//!
//! # Departures
//!
//! - With FS-VDE's Eq. (3) as printed, a refill advances t_r only by the time in which the rate
//!   yields the added tokens. With FS-VDE's Eq. (3) as printed, a full bucket saves idle time
//!   without limit and later gets tokens for this time. In Penstock, each refill sets the time of
//!   the last refill t_r to the present time t.
//! - In FS-VDE, a frame needs "more than one token". In Penstock, a bucket with one token lets a
//!   frame pass.
//! - Penstock does not round tokens to whole numbers.
//!
//! # Bounds
//!
//! In any time t, a tenant and a strict VM get at most max(depth, one frame) + rate × t. Several
//! threads may police the same VM or tenant, as with [`crate::policer`]. If two threads take tokens
//! at the same moment, a frame may be refused although tokens were available. All threads together
//! never spend more tokens than a bucket has.
//!
//! # Cost
//!
//! A batch that passes as a whole takes up to four refills (with a multiplication each) and four
//! compare-and-swaps. If a batch does not pass as a whole, each of its frames takes four
//! compare-and-swaps. The policer has no timers and allocates no memory.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, Weight};

use crate::bucket::{Bucket, PARTS_OF_BYTE, PARTS_OF_FRAME};
use crate::frame_sizes::FrameSizes;
use crate::policer::{
    CUT_BELOW, CUT_BELOW_PACKETS, DEPTH_MAX, PACKETS_MAX, RATE_MAX, SEGMENT, Size,
};

/// Rate limits of a tenant or a VM: rates and bursts in bytes and in frames. A meter reduces rates
/// to [`RATE_MAX`] or [`PACKETS_MAX`], and bursts to [`DEPTH_MAX`]. A burst of 0 bytes or frames
/// counts as 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Rate in bits per second, and burst in bytes. `None` means that bytes are not limited.
    pub bytes: Option<(BitsPerSecond, u32)>,
    /// Rate in frames per second, and burst in frames. `None` means that frames are not limited.
    pub frames: Option<(PacketsPerSecond, u32)>,
    /// Number of bytes that the policer adds to each frame's length, such as 4 for the FCS.
    pub per_frame: u8,
    /// Whether frames above the limit wait instead of being dropped.
    pub waits: bool,
}

impl Terms {
    fn time_for(&self, size: Size) -> Nanos {
        let bits = self.bytes.map(|(rate, _)| size.time_at(rate, self.per_frame));
        let frames = self.frames.map(|(rate, _)| size.time_at_packets(rate));
        bits.max(frames).unwrap_or_default()
    }
}

/// Whether a VM may use more of its tenant's bandwidth than the VM's own part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// A VM may not use more than its own part of the tenant's limit.
    #[default]
    Strict,
    /// The VM may use the unused bandwidth of the tenant's other VMs.
    Borrow,
}

/// Decision of the policer: the frame passes, or the frame is dropped because of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policed {
    /// The frame passes and is delivered to its VM.
    Pass,
    /// The frame is dropped because the VM exceeds its own part of the limit.
    AboveVm,
    /// The frame is dropped because the tenant exceeds its contract.
    AboveTenant,
}

/// A bucket that refills at a constant rate.
#[derive(Debug)]
struct Filled {
    /// Refill rate in parts of a byte or frame per nanosecond.
    rate: u64,
    bucket: Bucket,
    /// Parts in a byte or a frame.
    unit: i64,
    /// Sizes of the recent batches' frames in bytes or frames ([`EgressPolicer::charge_batch`]).
    sizes: FrameSizes,
}

impl Filled {
    fn new(rate: u64, depth: u32, unit: i64) -> Self {
        let bucket = Bucket::new(depth.clamp(1, DEPTH_MAX), unit);
        // A sender that is not known yet may send large segments.
        let most = if unit == PARTS_OF_FRAME { SEGMENT.frames } else { SEGMENT.bytes };
        Self { rate, bucket, unit, sizes: FrameSizes::new(most) }
    }

    fn batch(&self) -> usize {
        self.sizes.batch(&self.bucket, self.rate, self.unit)
    }
}

/// Limits of a tenant or a VM, and the buckets that enforce them.
#[derive(Debug)]
pub struct Meter {
    terms: Terms,
    /// Time in ns of the last refill: the buckets contain the tokens up to this time.
    at: AtomicU64,
    bytes: Option<Filled>,
    frames: Option<Filled>,
}

impl Meter {
    /// Returns a meter with full buckets.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        let bytes = terms
            .bytes
            .map(|(rate, depth)| Filled::new(rate.0.min(RATE_MAX.0), depth, PARTS_OF_BYTE));
        let frames = terms
            .frames
            .map(|(rate, depth)| Filled::new(rate.0.min(PACKETS_MAX.0), depth, PARTS_OF_FRAME));
        Self { terms, at: AtomicU64::new(0), bytes, frames }
    }

    /// Returns a meter with the limits `terms`, which replaces the meter `self`. Each bucket of the
    /// new meter contains at most as many tokens as the old meter's bucket.
    #[must_use]
    pub fn changed(&self, terms: Terms) -> Self {
        let new = Self::new(terms);
        new.at.store(self.at.load(Ordering::Relaxed), Ordering::Relaxed);
        for (new, old) in [(&new.bytes, &self.bytes), (&new.frames, &self.frames)] {
            if let (Some(new), Some(old)) = (new, old) {
                new.bucket.lower_to(old.bucket.level());
            }
        }
        new
    }

    /// Returns the rates and bursts that the meter enforces.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Adds tokens by Eq. (3) with a correction: the time of the last refill becomes `now`, even if
    /// the buckets could not take all tokens.
    fn refill(&self, now: Nanos) {
        let at = self.at.load(Ordering::Relaxed);
        // If another thread refilled first, the next refill adds the remaining time.
        if now.0 <= at
            || self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        for filled in [&self.bytes, &self.frames].into_iter().flatten() {
            // A product above 64 bits fills any bucket.
            filled.bucket.give(filled.rate.saturating_mul(now.0 - at));
        }
    }

    fn parts(&self, size: Size) -> [i64; 2] {
        let more = u64::from(size.frames) * u64::from(self.terms.per_frame);
        let parts = |n: u64, of: i64| {
            i64::try_from(n.min(DEPTH_MAX.into())).unwrap_or(i64::MAX).saturating_mul(of)
        };
        let bytes = u64::from(size.bytes) + more;
        [parts(bytes, PARTS_OF_BYTE), parts(size.frames.into(), PARTS_OF_FRAME)]
    }

    /// Takes the frame's tokens from the bucket for bytes and from the bucket for frames, or from
    /// neither bucket. Returns false if either bucket has too few tokens for the frame.
    fn pay(&self, size: Size, take: impl Fn(&Bucket, i64) -> bool) -> bool {
        let [bytes, frames] = self.parts(size);
        if let Some(filled) = &self.bytes
            && !take(&filled.bucket, bytes)
        {
            return false;
        }
        let paid = self.frames.as_ref().is_none_or(|filled| take(&filled.bucket, frames));
        if !paid && let Some(filled) = &self.bytes {
            filled.bucket.give_back(bytes);
        }
        paid
    }

    fn give_back(&self, size: Size) {
        for (filled, parts) in [&self.bytes, &self.frames].into_iter().zip(self.parts(size)) {
            if let Some(filled) = filled {
                filled.bucket.give_back(parts);
            }
        }
    }

    /// Subtracts the frame's tokens from the buckets, whatever their levels.
    fn spend(&self, size: Size) {
        for (filled, parts) in [&self.bytes, &self.frames].into_iter().zip(self.parts(size)) {
            if let Some(filled) = filled {
                filled.bucket.spend(parts);
            }
        }
    }

    /// Notes the sizes of a batch's frames, from which [`Self::batch`] determines the next batch.
    fn note(&self, frames: impl Iterator<Item = Size> + Clone) {
        for (at, filled) in [&self.bytes, &self.frames].into_iter().enumerate() {
            let Some(Filled { sizes, unit, .. }) = filled else { continue };
            let units = |size| u64::try_from(self.parts(size)[at] / unit).unwrap_or(0);
            sizes.note(frames.clone().map(units));
        }
    }

    /// Returns the number of frames of the next batch, at least one.
    fn batch(&self) -> usize {
        let limits = [&self.bytes, &self.frames].into_iter().flatten();
        limits.map(Filled::batch).min().unwrap_or(usize::MAX)
    }

    /// Returns the time until the levels of both buckets are at least `part` of their depths, which
    /// is 0 for "not in debt".
    fn until(&self, part: impl Fn(&Bucket) -> i64) -> Nanos {
        let time = |filled: &Filled| {
            let missing = part(&filled.bucket).saturating_sub(filled.bucket.level()).max(0);
            Nanos(missing.unsigned_abs().div_ceil(filled.rate.max(1)))
        };
        [&self.bytes, &self.frames].into_iter().flatten().map(time).max().unwrap_or_default()
    }

    /// Returns the time until no bucket is in debt.
    fn debt(&self) -> Nanos {
        self.until(|_| 0)
    }

    fn covers(&self, size: Size) -> bool {
        let [bytes, frames] = self.parts(size);
        self.bytes.as_ref().is_none_or(|filled| filled.bucket.covers(bytes))
            && self.frames.as_ref().is_none_or(|filled| filled.bucket.covers(frames))
    }
}

/// Policer of the traffic that one VM receives.
#[derive(Debug)]
pub struct EgressPolicer {
    vm: Meter,
    /// Meter of the contract that all VMs of the tenant share. `None` if the tenant has no
    /// contract.
    tenant: Option<Arc<Meter>>,
    sharing: Sharing,
}

impl EgressPolicer {
    /// Returns a policer for a VM, and for its tenant's contract if there is a contract.
    #[must_use]
    pub const fn new(vm: Meter, tenant: Option<Arc<Meter>>, sharing: Sharing) -> Self {
        Self { vm, tenant, sharing }
    }

    /// Returns the meter with the limits and buckets of the VM's own part of the rate.
    #[must_use]
    pub const fn vm(&self) -> &Meter {
        &self.vm
    }

    /// Returns the meter with the limits and buckets of the tenant's contract. Returns `None` if
    /// the tenant has no contract.
    #[must_use]
    pub const fn tenant(&self) -> Option<&Arc<Meter>> {
        self.tenant.as_ref()
    }

    /// Whether the VM may use bandwidth beyond its own part of the tenant's limit.
    #[must_use]
    pub const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Adds to all buckets of the VM and its tenant the tokens earned up to the time `now`. All
    /// threads must use the same clock. If `now` is before the last refill, the buckets do not
    /// change.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        self.vm.refill(now);
        if let Some(tenant) = &self.tenant {
            tenant.refill(now);
        }
    }

    /// Decides whether a frame for the VM passes, and charges the frame if it passes.
    pub fn arrive(&self, size: Size) -> Policed {
        let within = self.vm.pay(size, Bucket::take);
        match &self.tenant {
            None if within => Policed::Pass,
            // Without a contract there is no bandwidth to borrow.
            None => Policed::AboveVm,
            Some(_) if !within && self.sharing == Sharing::Strict => Policed::AboveVm,
            Some(tenant) if within => {
                if tenant.pay(size, Bucket::take) {
                    return Policed::Pass;
                }
                self.vm.give_back(size);
                Policed::AboveTenant
            }
            Some(tenant) => {
                if tenant.pay(size, Bucket::take_spare) {
                    return Policed::Pass;
                }
                if tenant.covers(size) { Policed::AboveVm } else { Policed::AboveTenant }
            }
        }
    }

    /// Whether frames above the limit wait. The tenant's contract decides, if there is one.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.tenant.as_ref().map_or(self.vm.terms.waits, |tenant| tenant.terms.waits)
    }

    /// Whether large segments must be cut before the limit, because their frames wait and one
    /// segment takes too long at the limit's rate ([`CUT_BELOW`]).
    #[must_use]
    pub fn cuts(&self) -> bool {
        let slow = |meter: &Meter| {
            meter.terms.bytes.is_some_and(|(rate, _)| rate < CUT_BELOW)
                || meter.terms.frames.is_some_and(|(rate, _)| rate < CUT_BELOW_PACKETS)
        };
        let own = self.tenant.is_none() || self.sharing == Sharing::Strict;
        self.waits() && (own && slow(&self.vm) || self.tenant.as_deref().is_some_and(slow))
    }

    /// Returns the time in which the limits pass frames of the size `size`. A VM that may borrow
    /// counts as if it had the whole rate of its tenant.
    #[must_use]
    pub fn time_for(&self, size: Size) -> Nanos {
        let own = self.tenant.is_none() || self.sharing == Sharing::Strict;
        let vm = if own { self.vm.terms.time_for(size) } else { Nanos(0) };
        self.tenant.as_ref().map_or(vm, |tenant| vm.max(tenant.terms.time_for(size)))
    }

    /// Returns the time until the next frame may pass, and the limit that makes the frame wait, for
    /// limits whose frames wait. Returns `None` if the next frame may pass now. The caller must
    /// refill the buckets first.
    #[must_use]
    pub fn wait(&self) -> Option<(Nanos, Policed)> {
        let own = self.vm.debt();
        let wait = match &self.tenant {
            None => (own, Policed::AboveVm),
            Some(tenant) => {
                let whole = tenant.debt();
                let own = match self.sharing {
                    Sharing::Strict => own,
                    // While the VM is above its own part, it may borrow what no other VM uses.
                    Sharing::Borrow => own.min(tenant.until(Bucket::half)),
                };
                if own > whole { (own, Policed::AboveVm) } else { (whole, Policed::AboveTenant) }
            }
        };
        Some(wait).filter(|(time, _)| time.0 > 0)
    }

    /// Charges a frame that passes, for limits whose frames wait. A frame that a VM receives above
    /// its own part is charged only to the tenant.
    pub fn charge(&self, size: Size) {
        if self.tenant.is_none() || self.vm.debt().0 == 0 {
            self.vm.spend(size);
        }
        if let Some(tenant) = &self.tenant {
            tenant.spend(size);
        }
    }

    /// Charges a batch that passes, for limits whose frames wait in the sender's ring.
    pub fn charge_batch(&self, frames: impl Iterator<Item = Size> + Clone) {
        self.vm.note(frames.clone());
        let mut sum = Size::default();
        frames.for_each(|size| sum += size);
        self.charge(sum);
    }

    /// Returns the number of frames of the next batch, at most `most` and at least one, for limits
    /// whose frames wait in the sender's ring.
    #[must_use]
    pub fn batch(&self, most: usize) -> usize {
        self.vm.batch().min(most)
    }

    /// Charges the whole batch if all of its frames pass, and otherwise charges nothing. Returns
    /// false if the batch was not charged; the caller must then check each frame.
    #[inline]
    pub fn all_pass(&self, sum: Size) -> bool {
        // A sum above a bucket's depth is refused, because only a single frame may exceed the
        // depth.
        let covered = self.vm.covers(sum) && self.tenant.as_ref().is_none_or(|t| t.covers(sum));
        covered && self.arrive(sum) == Policed::Pass
    }
}

/// Divides a rate by weight into parts that sum exactly to the rate. Each part of the divided rate
/// is first rounded down to a whole number. The first parts are then increased by 1 each, until the
/// sum of all parts is the rate.
#[must_use]
pub fn split(rate: u64, weights: &[Weight]) -> Vec<u64> {
    let all: u128 = weights.iter().map(|weight| u128::from(weight.get())).sum();
    let part = |weight: &Weight| {
        let part = u128::from(rate) * u128::from(weight.get()) / all.max(1);
        u64::try_from(part).unwrap_or(rate)
    };
    let mut parts: Vec<u64> = weights.iter().map(part).collect();
    let mut left = rate.saturating_sub(parts.iter().sum());
    for part in &mut parts {
        if left > 0 {
            *part += 1;
            left -= 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Size = Size { bytes: 1_000, frames: 1 };

    fn frames(rate: u64, depth: u32) -> Terms {
        Terms { frames: Some((PacketsPerSecond(rate), depth)), ..Terms::default() }
    }

    fn bytes(rate: u64, depth: u32) -> Terms {
        Terms { bytes: Some((BitsPerSecond(rate), depth)), ..Terms::default() }
    }

    fn alone(terms: Terms) -> EgressPolicer {
        EgressPolicer::new(Meter::new(terms), None, Sharing::Strict)
    }

    fn arrive(policer: &EgressPolicer, size: Size, nanos: u64) -> Policed {
        policer.refill(Nanos(nanos));
        policer.arrive(size)
    }

    /// Returns the number of frames that pass in a flood from second `from` to second `to`, with a
    /// frame every 100 µs.
    fn flood(policer: &EgressPolicer, from: u64, to: u64) -> u64 {
        let times = (from * 10_000..to * 10_000).map(|n| n * 100_000);
        times.filter(|now| arrive(policer, FRAME, *now) == Policed::Pass).count() as u64
    }

    /// Tests a flood of 10 s after 60 idle seconds: a limit of 1,000 frames/s with depth 50 permits
    /// 50 + 10,000 frames. With FS-VDE's Eq. (3) as printed, 70,049 frames of the flood would pass.
    #[test]
    fn sixty_idle_seconds_earn_no_more_than_the_depth() {
        assert_eq!(flood(&alone(frames(1_000, 50)), 60, 70), 10_049);
        // The formula as printed is c' = min(floor((t - t_r) r), m - c), c += c', t_r += c'/r. Here
        // r is one token per millisecond.
        let (mut level, mut refilled, mut passed) = (50, 0, 0);
        for now in (600_000..700_000).map(|n| n * 100) {
            let more = u64::min((now - refilled) / 1_000, 50 - level);
            level += more;
            refilled += more * 1_000;
            if level > 0 {
                level -= 1;
                passed += 1;
            }
        }
        assert_eq!(passed, 70_049);
    }

    #[test]
    fn a_vm_is_limited_to_its_part_and_the_tenant_to_its_contract() {
        let tenant = Some(Arc::new(Meter::new(bytes(8_000_000, 10_000))));
        let vm = |terms| EgressPolicer::new(Meter::new(terms), tenant.clone(), Sharing::Strict);
        let (held, free) = (vm(bytes(6_000_000, 2_000)), vm(Terms::default()));
        assert_eq!([(); 3].map(|()| arrive(&held, FRAME, 0)), {
            [Policed::Pass, Policed::Pass, Policed::AboveVm]
        });
        let passed = [(); 9].map(|()| arrive(&free, FRAME, 0));
        assert_eq!(passed[7..], [Policed::Pass, Policed::AboveTenant]);
        // A millisecond earns the tenant one frame and the VM three quarters of a frame.
        assert_eq!(arrive(&held, FRAME, 1_000_000), Policed::AboveVm);
        assert_eq!(arrive(&held, FRAME, 1_333_334), Policed::Pass);
    }

    #[test]
    fn a_frame_that_the_tenant_cannot_pay_costs_the_vm_nothing() {
        let tenant = Arc::new(Meter::new(frames(1_000, 2)));
        let part = Terms { bytes: Some((BitsPerSecond(8_000), 3_000)), ..frames(1_000, 3) };
        let vm = EgressPolicer::new(Meter::new(part), Some(tenant), Sharing::Strict);
        let got = [(); 4].map(|()| arrive(&vm, FRAME, 0));
        assert_eq!(got, {
            [Policed::Pass, Policed::Pass, Policed::AboveTenant, Policed::AboveTenant]
        });
        assert_eq!(arrive(&vm, FRAME, 1_000_000), Policed::Pass, "its third frame");
    }

    #[test]
    fn a_borrower_uses_only_what_its_siblings_leave() {
        let bed = |sharing| {
            let tenant = Arc::new(Meter::new(frames(1_000, 40)));
            let vm = || {
                EgressPolicer::new(Meter::new(frames(500, 10)), Some(Arc::clone(&tenant)), sharing)
            };
            [vm(), vm()]
        };
        assert_eq!(flood(&bed(Sharing::Strict)[0], 0, 10), 5_009);
        let alone = flood(&bed(Sharing::Borrow)[0], 0, 10);
        assert!((10_000..=10_040).contains(&alone), "{alone}");
        // The sibling sends its full part: a frame every 2 ms.
        let [borrower, sibling] = bed(Sharing::Borrow);
        let (mut flooded, mut lost) = (0, 0);
        for n in 0..100_000_u64 {
            flooded += u64::from(arrive(&borrower, FRAME, n * 100_000) == Policed::Pass);
            if n % 20 == 0 {
                lost += u64::from(arrive(&sibling, FRAME, n * 100_000) != Policed::Pass);
            }
        }
        assert_eq!(lost, 0);
        assert!((5_000..=5_040).contains(&flooded), "{flooded}");
    }

    #[test]
    fn a_full_bucket_passes_a_longer_frame_and_goes_into_debt() {
        let policer = alone(bytes(8_000_000, 1_500));
        let segment = Size { bytes: 64_000, frames: 45 };
        assert!(!policer.all_pass(segment), "as a batch it would pass with others");
        assert_eq!(arrive(&policer, segment, 0), Policed::Pass);
        assert_eq!(arrive(&policer, FRAME, 63_499_999), Policed::AboveVm);
        assert_eq!(arrive(&policer, FRAME, 63_500_000), Policed::Pass);
    }

    #[test]
    fn a_batch_passes_as_a_whole_or_pays_nothing() {
        let policer = alone(frames(1_000, 40));
        let batch = |frames| Size { bytes: 64 * frames, frames };
        assert!(policer.all_pass(batch(32)));
        assert!(!policer.all_pass(batch(9)));
        assert!(policer.all_pass(batch(8)));
        assert_eq!(policer.arrive(FRAME), Policed::AboveVm);
    }

    #[test]
    fn the_check_sequence_counts_if_configured() {
        let with = |per_frame| alone(Terms { per_frame, ..bytes(8_000, 6_400) });
        let minimal = Size { bytes: 60, frames: 1 };
        let passed = |policer: EgressPolicer| {
            (0..200).take_while(|_| policer.arrive(minimal) == Policed::Pass).count()
        };
        assert_eq!((passed(with(0)), passed(with(4))), (106, 100));
    }

    #[test]
    fn new_terms_keep_spent_tokens_spent() {
        let policer = alone(frames(1, 100));
        for _ in 0..95 {
            assert_eq!(arrive(&policer, FRAME, 0), Policed::Pass);
        }
        let changed =
            EgressPolicer::new(policer.vm().changed(frames(1, 1_000)), None, Sharing::Strict);
        let more = (0..10).filter(|_| arrive(&changed, FRAME, 0) == Policed::Pass);
        assert_eq!(more.count(), 5);
    }

    #[test]
    fn two_threads_together_get_no_more_than_the_bucket() {
        let tenant = Arc::new(Meter::new(frames(1, 10_000)));
        let passed = std::thread::scope(|scope| {
            let run = || {
                let vm = EgressPolicer::new(Meter::new(frames(1, 8_000)), Some(tenant.clone()), {
                    Sharing::Borrow
                });
                (0..50_000).filter(|_| vm.arrive(FRAME) == Policed::Pass).count()
            };
            let other = scope.spawn(run);
            run() + other.join().expect("it ends")
        });
        assert!((9_990..=10_000).contains(&passed), "{passed}");
    }

    #[test]
    fn parts_by_weight_sum_to_the_rate() {
        let weights = [1, 1, 2, 3].map(|w| Weight::new(w).unwrap());
        assert_eq!(split(1_000, &weights), [143, 143, 286, 428]);
        assert_eq!(split(u64::MAX, &weights).iter().sum::<u64>(), u64::MAX);
        assert_eq!(split(7, &[]), [0; 0]);
    }
}
