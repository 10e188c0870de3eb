//! EgressPolicer towards VMs: limits a tenant to its contract and its VMs to their parts, in bytes
//! and in frames.
//!
//! # Problem
//!
//! The switch cannot slow down traffic that arrives from outside. It must drop the traffic above
//! the contract as early as possible. A timer per bucket would cost more than the frames.
//!
//! # Source
//!
//! FS-VDE §4.2, Fig. 5, Eq. (3).
//!
//! # Approach
//!
//! A bucket has a level c and a depth m. Both are in parts of a byte (1/8,000,000,000) or of a
//! frame (1/1,000,000,000), so that a rate r yields exactly r parts in a nanosecond. When a frame
//! arrives at t, c = min(m, c + (t - t_r) r) and t_r = t, where t_r is the time of the last refill.
//! The frame passes if every bucket that must pay covers it. All of these buckets then pay.
//! Otherwise none pays. A frame longer than a bucket's depth passes if the bucket is full, and the
//! bucket then goes into debt.
//!
//! The tenant's buckets must always cover a frame. Under [`Sharing::Strict`], the VM's buckets must
//! also cover the frame. Under [`Sharing::Borrow`], a VM above its part uses the bandwidth that its
//! siblings leave: the frame passes while the tenant's bucket is more than half full. The lower
//! half is reserved for the siblings. If the siblings stay within their parts, with bursts of up to
//! half the tenant's depth in total, the borrower never empties the bucket for them.
//!
//! # Example
//!
//! In a test with 1,000 frames/s and depth 50, a flood of 10 s follows 60 s of silence. 10,049
//! frames pass, where 50 + 10,000 are permitted. By the formula as printed, 70,049 would pass.
//!
//! # Departures
//!
//! Eq. (3) advances t_r by the tokens *accepted*, `c'/r`, so a full bucket accumulates idle time
//! without bound. Here t_r advances to t. "More than one token" is read as at least one. Nothing is
//! rounded to whole tokens.
//!
//! # Bounds
//!
//! Over any time t, at most max(depth, one frame) + rate × t passes for a tenant and for a strict
//! VM. Several threads may police one VM or tenant, as with [`crate::policer`]. If two threads pay
//! at the same moment, one frame may be refused although tokens were available. The threads never
//! overspend.
//!
//! # Cost
//!
//! A batch that passes as a whole takes up to four refills (a multiplication each) and as many
//! compare-and-swaps. Otherwise each frame takes this many. There are no timers and no allocations.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, Weight};

use crate::bucket::{Bucket, PARTS_OF_BYTE, PARTS_OF_FRAME};
use crate::policer::{DEPTH_MAX, PACKETS_MAX, RATE_MAX, Size};

/// Rates and depths of a tenant or a VM. Rates above [`RATE_MAX`] or [`PACKETS_MAX`] and depths
/// above [`DEPTH_MAX`] are reduced to these limits. A depth of 0 counts as 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Rate in bits of frames per second and burst in bytes. `None` for no limit.
    pub bytes: Option<(BitsPerSecond, u32)>,
    /// Rate in frames per second and burst in frames. `None` for no limit.
    pub frames: Option<(PacketsPerSecond, u32)>,
    /// Bytes added to the length of each frame, such as 4 for the FCS.
    pub per_frame: u8,
}

/// Which bandwidth of its tenant's contract a VM may use above its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// The VM may use nothing beyond its own part.
    #[default]
    Strict,
    /// The VM may use the bandwidth that its siblings leave.
    Borrow,
}

/// Result of policing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policed {
    /// The frame is delivered to its VM.
    Pass,
    /// The frame is dropped because the VM exceeds its part.
    AboveVm,
    /// The frame is dropped because the tenant exceeds its contract.
    AboveTenant,
}

/// A bucket and its rate.
#[derive(Debug)]
struct Filled {
    /// Rate in parts per nanosecond.
    rate: u64,
    bucket: Bucket,
}

impl Filled {
    fn new(rate: u64, depth: u32, parts: i64) -> Self {
        Self { rate, bucket: Bucket::new(depth.clamp(1, DEPTH_MAX), parts) }
    }
}

/// The terms of a tenant or a VM, and the buckets that enforce them.
#[derive(Debug)]
pub struct Meter {
    terms: Terms,
    /// Time up to which tokens were added, in ns.
    at: AtomicU64,
    bytes: Option<Filled>,
    frames: Option<Filled>,
}

impl Meter {
    /// A meter with full buckets.
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

    /// A meter with new terms. Spent tokens stay spent.
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

    /// The terms that the meter was made with.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Eq. (3), corrected: the clock advances to `now` even if the buckets could not take all
    /// tokens.
    fn refill(&self, now: Nanos) {
        let at = self.at.load(Ordering::Relaxed);
        // The loser of a race leaves the remaining time to the next refill.
        if now.0 <= at
            || self.at.compare_exchange(at, now.0, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        for filled in [&self.bytes, &self.frames].into_iter().flatten() {
            // A product beyond 64 bits exceeds any two buckets.
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

    /// Pays from both buckets with `take`, or from neither.
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

/// EgressPolicer of one VM.
#[derive(Debug)]
pub struct EgressPolicer {
    vm: Meter,
    /// Meter that all VMs of the tenant share. `None` without a contract.
    tenant: Option<Arc<Meter>>,
    sharing: Sharing,
}

impl EgressPolicer {
    /// EgressPolicer of a VM, under its tenant's contract if there is one.
    #[must_use]
    pub const fn new(vm: Meter, tenant: Option<Arc<Meter>>, sharing: Sharing) -> Self {
        Self { vm, tenant, sharing }
    }

    /// Terms and buckets of the VM's part.
    #[must_use]
    pub const fn vm(&self) -> &Meter {
        &self.vm
    }

    /// Terms and buckets of the tenant's contract. `None` without a contract.
    #[must_use]
    pub const fn tenant(&self) -> Option<&Arc<Meter>> {
        self.tenant.as_ref()
    }

    /// The bandwidth that the VM may use above its part.
    #[must_use]
    pub const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Adds the tokens earned up to `now`. All threads must use the same clock. A time before the
    /// last one is ignored.
    #[inline]
    pub fn refill(&self, now: Nanos) {
        self.vm.refill(now);
        if let Some(tenant) = &self.tenant {
            tenant.refill(now);
        }
    }

    /// Decides about a frame for the VM and charges it if it passes.
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

    /// Passes all frames of a batch if each of them would pass. Otherwise it charges nothing.
    #[inline]
    pub fn all_pass(&self, sum: Size) -> bool {
        // A sum longer than a bucket's depth is refused here, because the exception for a full
        // bucket is for single frames.
        let covered = self.vm.covers(sum) && self.tenant.as_ref().is_none_or(|t| t.covers(sum));
        covered && self.arrive(sum) == Policed::Pass
    }
}

/// Divides a rate by weight into parts that sum to it exactly. Each part is rounded down. The
/// remainder goes in single units to the first parts.
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

    /// Number of frames that pass in a flood from `from` to `to`, with a frame every 100 µs.
    fn flood(policer: &EgressPolicer, from: u64, to: u64) -> u64 {
        let times = (from * 10_000..to * 10_000).map(|n| n * 100_000);
        times.filter(|now| arrive(policer, FRAME, *now) == Policed::Pass).count() as u64
    }

    /// FS-VDE Eq. (3) as printed passes 70,049 frames of this flood. 50 + 1,000/s × 10 s are
    /// permitted.
    #[test]
    fn sixty_idle_seconds_earn_no_more_than_the_depth() {
        assert_eq!(flood(&alone(frames(1_000, 50)), 60, 70), 10_049);
        // As printed, c' = min(floor((t - t_r) r), m - c), c += c', t_r += c'/r. Here r is one
        // token per millisecond.
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
