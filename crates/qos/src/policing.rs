//! Policing towards VMs: a tenant's contract above, its VMs' parts below, in bytes and in frames.
//!
//! **Problem.** What comes from outside for a VM is not ours to slow down; what is above the
//! contract must be dropped where it is cheapest. A timer for each bucket would cost more than the
//! frames. **Source.** FS-VDE §4.2, Fig. 5, Eq. (3).
//!
//! **Quantities.** A bucket: level c and depth m, in parts of a byte (1/8,000,000,000) or of a
//! frame (1/1,000,000,000), so that a nanosecond at rate r is exactly r parts; time of its last
//! refill t_r. **Rule.** A frame comes at t: c = min(m, c + (t - t_r) r), t_r = t. It passes if
//! every bucket that it must pay covers it, and then all of them are paid; if one does not, none
//! is. A frame longer than a bucket is deep passes when that is full, and the rest is owed.
//!
//! **Two levels.** Always the tenant's buckets must cover a frame. The VM's must too, under
//! [`Sharing::Strict`]; under [`Sharing::Borrow`] a VM that is above its part has what its siblings
//! leave: it passes while the tenant's bucket is more than half full. The lower half is
//! the siblings': within their parts, and bursts of half the tenant's depth in sum, they never find
//! it empty because of the borrower.
//!
//! **Example** (a test). 1,000 frames/s, depth 50, 60 s idle, then a flood of 10 s: 10,049 pass (of
//! 50 + 10,000 due). By the formula as printed it would be 70,049.
//!
//! **Departures.** Eq. (3) moves t_r by the tokens *accepted*, `c'/r`, so a full bucket banks idle
//! time without bound; here it moves to t. "More than one token" is read as at least one. Nothing
//! is rounded to whole tokens. **Bound.** Over any time t, of a VM (strict) and of a tenant
//! (always) no more passes than max(depth, one frame) + rate x t. **Several threads** may police
//! one VM or tenant together, as with [`crate::policer`]: what two of them pay at the same moment
//! may be refused to one of them although it was there, never passed to both although it was not.
//! **Cost.** A batch that passes as a whole: up to four refills, each a multiplication, and as
//! many compare-and-swaps; else so much a frame. No timer, no allocation.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, Weight};

use crate::bucket::{Bucket, PARTS_OF_BYTE, PARTS_OF_FRAME};
use crate::policer::{DEPTH_MAX, PACKETS_MAX, RATE_MAX, Size};

/// Rates and depths of a tenant or a VM. Rates above [`RATE_MAX`] and [`PACKETS_MAX`], and depths
/// above [`DEPTH_MAX`], count as those; a depth of 0 counts as 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Bits of frames per second, and bytes at once; `None`: as many as come.
    pub bytes: Option<(BitsPerSecond, u32)>,
    /// Frames per second, and frames at once.
    pub frames: Option<(PacketsPerSecond, u32)>,
    /// Bytes that each frame counts besides: 4 with the FCS.
    pub per_frame: u8,
}

/// What a VM that is above its part may have of its tenant's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing.
    #[default]
    Strict,
    /// What its siblings leave.
    Borrow,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policed {
    /// It goes to its VM.
    Pass,
    /// The VM is above its part.
    AboveVm,
    /// The tenant is above its contract.
    AboveTenant,
}

/// A rate with its bucket.
#[derive(Debug)]
struct Filled {
    /// Parts a nanosecond.
    rate: u64,
    bucket: Bucket,
}

impl Filled {
    fn new(rate: u64, depth: u32, parts: i64) -> Self {
        Self { rate, bucket: Bucket::new(depth.clamp(1, DEPTH_MAX), parts) }
    }
}

/// What a tenant or a VM may have: its terms and the buckets that hold it to them.
#[derive(Debug)]
pub struct Meter {
    terms: Terms,
    /// Up to when tokens have been brought.
    at: AtomicU64,
    bytes: Option<Filled>,
    frames: Option<Filled>,
}

impl Meter {
    /// With full buckets.
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

    /// The same under other terms: what was used of the buckets stays used.
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

    /// What it was made with.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Eq. (3), corrected: the clock moves to `now`, whether or not the buckets could take all.
    fn refill(&self, now: Nanos) {
        let at = self.at.load(Ordering::Relaxed);
        // Who comes second leaves the rest of the time to the next refill.
        if now.0 <= at
            || self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        for filled in [&self.bytes, &self.frames].into_iter().flatten() {
            // A product that leaves 64 bits is more than two buckets of any depth hold.
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

    /// Pays from both buckets by `take`, or from none.
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

    fn covers(&self, size: Size) -> bool {
        let [bytes, frames] = self.parts(size);
        self.bytes.as_ref().is_none_or(|filled| filled.bucket.covers(bytes))
            && self.frames.as_ref().is_none_or(|filled| filled.bucket.covers(frames))
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Policing {
    vm: Meter,
    /// Shared by all VMs of the tenant.
    tenant: Option<Arc<Meter>>,
    sharing: Sharing,
}

impl Policing {
    /// A VM's, below its tenant's contract, if that has one.
    #[must_use]
    pub const fn new(vm: Meter, tenant: Option<Arc<Meter>>, sharing: Sharing) -> Self {
        Self { vm, tenant, sharing }
    }

    /// The VM's part.
    #[must_use]
    pub const fn vm(&self) -> &Meter {
        &self.vm
    }

    /// The tenant's contract.
    #[must_use]
    pub const fn tenant(&self) -> Option<&Arc<Meter>> {
        self.tenant.as_ref()
    }

    /// What the VM may have above its part.
    #[must_use]
    pub const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Brings the tokens of the time up to `now`, on a clock that all who police share. A time that
    /// lies before the last is no time.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        self.vm.refill(now);
        if let Some(tenant) = &self.tenant {
            tenant.refill(now);
        }
    }

    /// A frame for the VM comes.
    pub fn arrive(&self, size: Size) -> Policed {
        let within = self.vm.pay(size, Bucket::take);
        match &self.tenant {
            None if within => Policed::Pass,
            // There is nothing to borrow from.
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

    /// Lets all frames of a batch pass at once, if each of them would; else none is paid for.
    #[inline]
    pub fn all_pass(&self, sum: Size) -> bool {
        // Not so if the sum is longer than a bucket is deep: each would pass one frame alone.
        let covered = self.vm.covers(sum) && self.tenant.as_ref().is_none_or(|t| t.covers(sum));
        covered && self.arrive(sum) == Policed::Pass
    }
}

/// A rate in parts by weight, which add up to it exactly: each rounded down, and what that leaves
/// one by one from the first on.
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

    fn alone(terms: Terms) -> Policing {
        Policing::new(Meter::new(terms), None, Sharing::Strict)
    }

    fn arrive(policing: &Policing, size: Size, nanos: u64) -> Policed {
        policing.refill(Nanos(nanos));
        policing.arrive(size)
    }

    /// What passes of a flood from `from` to `to`, a frame every 100 us.
    fn flood(policing: &Policing, from: u64, to: u64) -> u64 {
        let times = (from * 10_000..to * 10_000).map(|n| n * 100_000);
        times.filter(|now| arrive(policing, FRAME, *now) == Policed::Pass).count() as u64
    }

    /// FS-VDE Eq. (3) as printed passes 70,049 of this flood; 50 + 1,000/s x 10 s are due.
    #[test]
    fn sixty_idle_seconds_are_worth_no_more_than_the_depth() {
        assert_eq!(flood(&alone(frames(1_000, 50)), 60, 70), 10_049);
        // As printed: c' = min(floor((t - t_r) r), m - c), c += c', t_r += c'/r; r is a token a
        // millisecond.
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
    fn a_vm_is_held_to_its_part_and_the_tenant_to_its_contract() {
        let tenant = Some(Arc::new(Meter::new(bytes(8_000_000, 10_000))));
        let vm = |terms| Policing::new(Meter::new(terms), tenant.clone(), Sharing::Strict);
        let (held, free) = (vm(bytes(6_000_000, 2_000)), vm(Terms::default()));
        assert_eq!([(); 3].map(|()| arrive(&held, FRAME, 0)), {
            [Policed::Pass, Policed::Pass, Policed::AboveVm]
        });
        let passed = [(); 9].map(|()| arrive(&free, FRAME, 0));
        assert_eq!(passed[7..], [Policed::Pass, Policed::AboveTenant]);
        // A millisecond is a frame of the tenant's and three quarters of one of the VM's.
        assert_eq!(arrive(&held, FRAME, 1_000_000), Policed::AboveVm);
        assert_eq!(arrive(&held, FRAME, 1_333_334), Policed::Pass);
    }

    #[test]
    fn what_the_tenant_cannot_pay_costs_the_vm_nothing() {
        let tenant = Arc::new(Meter::new(frames(1_000, 2)));
        let part = Terms { bytes: Some((BitsPerSecond(8_000), 3_000)), ..frames(1_000, 3) };
        let vm = Policing::new(Meter::new(part), Some(tenant), Sharing::Strict);
        let got = [(); 4].map(|()| arrive(&vm, FRAME, 0));
        assert_eq!(got, {
            [Policed::Pass, Policed::Pass, Policed::AboveTenant, Policed::AboveTenant]
        });
        assert_eq!(arrive(&vm, FRAME, 1_000_000), Policed::Pass, "its third frame");
    }

    #[test]
    fn who_borrows_has_what_siblings_leave_and_takes_nothing_from_them() {
        let bed = |sharing| {
            let tenant = Arc::new(Meter::new(frames(1_000, 40)));
            let vm =
                || Policing::new(Meter::new(frames(500, 10)), Some(Arc::clone(&tenant)), sharing);
            [vm(), vm()]
        };
        assert_eq!(flood(&bed(Sharing::Strict)[0], 0, 10), 5_009);
        let alone = flood(&bed(Sharing::Borrow)[0], 0, 10);
        assert!((10_000..=10_040).contains(&alone), "{alone}");
        // Its sibling sends its part, a frame every 2 ms.
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
    fn a_frame_longer_than_the_bucket_passes_when_it_is_full_and_is_owed() {
        let policing = alone(bytes(8_000_000, 1_500));
        let segment = Size { bytes: 64_000, frames: 45 };
        assert!(!policing.all_pass(segment), "as a batch it would pass with others");
        assert_eq!(arrive(&policing, segment, 0), Policed::Pass);
        assert_eq!(arrive(&policing, FRAME, 63_499_999), Policed::AboveVm);
        assert_eq!(arrive(&policing, FRAME, 63_500_000), Policed::Pass);
    }

    #[test]
    fn a_batch_passes_as_a_whole_or_pays_nothing() {
        let policing = alone(frames(1_000, 40));
        let batch = |frames| Size { bytes: 64 * frames, frames };
        assert!(policing.all_pass(batch(32)));
        assert!(!policing.all_pass(batch(9)));
        assert!(policing.all_pass(batch(8)));
        assert_eq!(policing.arrive(FRAME), Policed::AboveVm);
    }

    #[test]
    fn the_check_sequence_counts_when_it_is_asked_for() {
        let with = |per_frame| alone(Terms { per_frame, ..bytes(8_000, 6_400) });
        let minimal = Size { bytes: 60, frames: 1 };
        let passed = |policing: Policing| {
            (0..200).take_while(|_| policing.arrive(minimal) == Policed::Pass).count()
        };
        assert_eq!((passed(with(0)), passed(with(4))), (106, 100));
    }

    #[test]
    fn new_terms_keep_what_was_used() {
        let policing = alone(frames(1, 100));
        for _ in 0..95 {
            assert_eq!(arrive(&policing, FRAME, 0), Policed::Pass);
        }
        let changed = Policing::new(policing.vm().changed(frames(1, 1_000)), None, Sharing::Strict);
        let more = (0..10).filter(|_| arrive(&changed, FRAME, 0) == Policed::Pass);
        assert_eq!(more.count(), 5);
    }

    #[test]
    fn two_threads_have_no_more_than_the_bucket() {
        let tenant = Arc::new(Meter::new(frames(1, 10_000)));
        let passed = std::thread::scope(|scope| {
            let run = || {
                let vm = Policing::new(Meter::new(frames(1, 8_000)), Some(tenant.clone()), {
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
    fn parts_by_weight_add_up() {
        let weights = [1, 1, 2, 3].map(|w| Weight::new(w).unwrap());
        assert_eq!(split(1_000, &weights), [143, 143, 286, 428]);
        assert_eq!(split(u64::MAX, &weights).iter().sum::<u64>(), u64::MAX);
        assert_eq!(split(7, &[]), [0; 0]);
    }
}
