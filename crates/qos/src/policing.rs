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
//! (always) no more passes than max(depth, one frame) + rate x t. **Cost.** A frame: up to four
//! refills, each a multiplication; no timer, no allocation.

use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, Weight};

use crate::policer::{DEPTH_MAX, PACKETS_MAX, RATE_MAX, Size};

const PARTS_OF_BYTE: i64 = 8_000_000_000;
const PARTS_OF_FRAME: i64 = 1_000_000_000;

/// Rates and depths of a tenant or a VM. Rates above [`RATE_MAX`] and [`PACKETS_MAX`], and depths
/// above [`DEPTH_MAX`], count as those; a depth of 0 counts as 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Bits of frames per second, and bytes at once; `None`: as many as come.
    pub bytes: Option<(BitsPerSecond, u32)>,
    /// Frames per second, and frames at once.
    pub frames: Option<(PacketsPerSecond, u32)>,
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

#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: i64,
    depth: i64,
    /// Parts a nanosecond.
    rate: u64,
    at: Nanos,
}

impl Bucket {
    const fn new(rate: u64, depth: u32, parts: i64, now: Nanos) -> Self {
        let depth = if depth > DEPTH_MAX { DEPTH_MAX } else { depth };
        let depth = if depth == 0 { parts } else { depth as i64 * parts };
        Self { level: depth, depth, rate, at: now }
    }

    /// Eq. (3), corrected: the clock moves to `now`, whether or not the bucket could take all.
    fn refill(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.at);
        if passed.0 == 0 {
            return;
        }
        self.at = now;
        // Neither a full bucket nor one in debt is further apart than 63 bits.
        let room = (self.depth - self.level).unsigned_abs();
        let more = self.rate.saturating_mul(passed.0).min(room);
        self.level += i64::try_from(more).unwrap_or(0);
    }

    fn covers(&self, parts: i64) -> bool {
        self.level >= parts.min(self.depth)
    }

    /// Whether it does so out of its upper half.
    fn spares(&self, parts: i64) -> bool {
        self.level >= parts.min(self.depth / 2) + self.depth / 2
    }
}

#[derive(Clone, Copy, Debug)]
struct Meter {
    bytes: Option<Bucket>,
    frames: Option<Bucket>,
}

impl Meter {
    fn new(terms: &Terms, now: Nanos) -> Self {
        let bytes = terms
            .bytes
            .map(|(rate, depth)| Bucket::new(rate.0.min(RATE_MAX.0), depth, PARTS_OF_BYTE, now));
        let frames = terms.frames.map(|(rate, depth)| {
            Bucket::new(rate.0.min(PACKETS_MAX.0), depth, PARTS_OF_FRAME, now)
        });
        Self { bytes, frames }
    }

    /// The same buckets with other terms: no deeper than they were full.
    fn change(&mut self, terms: &Terms, now: Nanos) {
        self.refill(now);
        let old = *self;
        *self = Self::new(terms, now);
        for (new, old) in [(&mut self.bytes, old.bytes), (&mut self.frames, old.frames)] {
            if let (Some(new), Some(old)) = (new, old) {
                new.level = old.level.min(new.depth);
            }
        }
    }

    fn refill(&mut self, now: Nanos) {
        for bucket in [&mut self.bytes, &mut self.frames].into_iter().flatten() {
            bucket.refill(now);
        }
    }

    fn all(&self, parts: [i64; 2], holds: impl Fn(&Bucket, i64) -> bool) -> bool {
        let one = |bucket: &Option<Bucket>, parts| bucket.as_ref().is_none_or(|b| holds(b, parts));
        one(&self.bytes, parts[0]) && one(&self.frames, parts[1])
    }

    fn pay(&mut self, parts: [i64; 2]) {
        for (bucket, parts) in [(&mut self.bytes, parts[0]), (&mut self.frames, parts[1])] {
            if let Some(bucket) = bucket {
                bucket.level -= parts;
            }
        }
    }
}

fn parts(size: Size) -> [i64; 2] {
    let parts = |n: u32, of: i64| i64::from(n.min(DEPTH_MAX)).saturating_mul(of);
    [parts(size.bytes, PARTS_OF_BYTE), parts(size.frames, PARTS_OF_FRAME)]
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Policing {
    sharing: Sharing,
    tenants: Box<[Option<Meter>]>,
    vms: Box<[Option<(usize, Meter)>]>,
}

impl Policing {
    /// Room for so many tenants and VMs; none is there, and what is not there passes.
    #[must_use]
    pub fn new(tenants: usize, vms: usize, sharing: Sharing) -> Self {
        Self {
            sharing,
            tenants: vec![None; tenants].into_boxed_slice(),
            vms: vec![None; vms].into_boxed_slice(),
        }
    }

    /// A tenant's contract; `None`: it has none any more. Buckets begin full, and keep what they
    /// have when the terms change.
    pub fn set_tenant(&mut self, slot: usize, terms: Option<&Terms>, now: Nanos) {
        let Some(tenant) = self.tenants.get_mut(slot) else { return };
        match (tenant.as_mut(), terms) {
            (Some(meter), Some(terms)) => meter.change(terms, now),
            (_, terms) => *tenant = terms.map(|terms| Meter::new(terms, now)),
        }
    }

    /// A VM's part of its tenant's contract, likewise.
    pub fn set_vm(&mut self, slot: usize, tenant: usize, terms: Option<&Terms>, now: Nanos) {
        let Some(vm) = self.vms.get_mut(slot) else { return };
        match (vm.as_mut(), terms) {
            (Some((of, meter)), Some(terms)) if *of == tenant => meter.change(terms, now),
            (_, terms) => *vm = terms.map(|terms| (tenant, Meter::new(terms, now))),
        }
    }

    /// A frame for a VM comes.
    pub fn arrive(&mut self, vm: usize, size: Size, now: Nanos) -> Policed {
        let Some(Some((tenant, part))) = self.vms.get_mut(vm) else { return Policed::Pass };
        let parts = parts(size);
        part.refill(now);
        let within = part.all(parts, Bucket::covers);
        if !within && self.sharing == Sharing::Strict {
            return Policed::AboveVm;
        }
        if let Some(Some(contract)) = self.tenants.get_mut(*tenant) {
            contract.refill(now);
            if !contract.all(parts, Bucket::covers) {
                return Policed::AboveTenant;
            }
            if !within && !contract.all(parts, Bucket::spares) {
                return Policed::AboveVm;
            }
            contract.pay(parts);
        } else if !within {
            // There is nothing to borrow from.
            return Policed::AboveVm;
        }
        if within {
            part.pay(parts);
        }
        Policed::Pass
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
        Terms { bytes: None, frames: Some((PacketsPerSecond(rate), depth)) }
    }

    fn bytes(rate: u64, depth: u32) -> Terms {
        Terms { bytes: Some((BitsPerSecond(rate), depth)), frames: None }
    }

    /// What passes of a flood from `from` to `to`, a frame every 100 us.
    fn flood(policing: &mut Policing, vm: usize, from: u64, to: u64) -> u64 {
        let times = (from * 10_000..to * 10_000).map(|n| Nanos(n * 100_000));
        let passed = times.filter(|now| policing.arrive(vm, FRAME, *now) == Policed::Pass);
        passed.count() as u64
    }

    /// FS-VDE Eq. (3) as printed passes 70,049 of this flood; 50 + 1,000/s x 10 s are due.
    #[test]
    fn sixty_idle_seconds_are_worth_no_more_than_the_depth() {
        let mut policing = Policing::new(0, 1, Sharing::Strict);
        policing.set_vm(0, 0, Some(&frames(1_000, 50)), Nanos(0));
        assert_eq!(flood(&mut policing, 0, 60, 70), 10_049);
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
        let mut policing = Policing::new(1, 3, Sharing::Strict);
        policing.set_tenant(0, Some(&bytes(8_000_000, 10_000)), Nanos(0));
        policing.set_vm(0, 0, Some(&bytes(6_000_000, 2_000)), Nanos(0));
        policing.set_vm(1, 0, Some(&Terms::default()), Nanos(0));
        assert_eq!([(); 3].map(|()| policing.arrive(0, FRAME, Nanos(0))), {
            [Policed::Pass, Policed::Pass, Policed::AboveVm]
        });
        let free = [(); 9].map(|()| policing.arrive(1, FRAME, Nanos(0)));
        assert_eq!(free[7..], [Policed::Pass, Policed::AboveTenant]);
        assert_eq!(policing.arrive(2, FRAME, Nanos(0)), Policed::Pass, "nobody's");
        // A millisecond is a frame of the tenant's and three quarters of one of the VM's.
        assert_eq!(policing.arrive(0, FRAME, Nanos(1_000_000)), Policed::AboveVm);
        assert_eq!(policing.arrive(0, FRAME, Nanos(1_333_334)), Policed::Pass);
    }

    #[test]
    fn who_borrows_has_what_siblings_leave_and_takes_nothing_from_them() {
        let bed = |sharing| {
            let mut policing = Policing::new(1, 2, sharing);
            policing.set_tenant(0, Some(&frames(1_000, 40)), Nanos(0));
            for vm in 0..2 {
                policing.set_vm(vm, 0, Some(&frames(500, 10)), Nanos(0));
            }
            policing
        };
        assert_eq!(flood(&mut bed(Sharing::Strict), 0, 0, 10), 5_009);
        let alone = flood(&mut bed(Sharing::Borrow), 0, 0, 10);
        assert!((10_000..=10_040).contains(&alone), "{alone}");
        // Its sibling sends its part, a frame every 2 ms.
        let mut policing = bed(Sharing::Borrow);
        let (mut flooded, mut lost) = (0, 0);
        for n in 0..100_000_u64 {
            let now = Nanos(n * 100_000);
            flooded += u64::from(policing.arrive(0, FRAME, now) == Policed::Pass);
            if n % 20 == 0 {
                lost += u64::from(policing.arrive(1, FRAME, now) != Policed::Pass);
            }
        }
        assert_eq!(lost, 0);
        assert!((5_000..=5_040).contains(&flooded), "{flooded}");
    }

    #[test]
    fn a_frame_longer_than_the_bucket_passes_when_it_is_full_and_is_owed() {
        let mut policing = Policing::new(0, 1, Sharing::Strict);
        policing.set_vm(0, 0, Some(&bytes(8_000_000, 1_500)), Nanos(0));
        let segment = Size { bytes: 64_000, frames: 45 };
        assert_eq!(policing.arrive(0, segment, Nanos(0)), Policed::Pass);
        assert_eq!(policing.arrive(0, FRAME, Nanos(63_499_999)), Policed::AboveVm);
        assert_eq!(policing.arrive(0, FRAME, Nanos(63_500_000)), Policed::Pass);
    }

    #[test]
    fn new_terms_keep_what_a_bucket_has() {
        let mut policing = Policing::new(1, 1, Sharing::Strict);
        policing.set_vm(0, 0, Some(&frames(1, 100)), Nanos(0));
        for _ in 0..95 {
            assert_eq!(policing.arrive(0, FRAME, Nanos(0)), Policed::Pass);
        }
        policing.set_vm(0, 0, Some(&frames(1, 1_000)), Nanos(0));
        let more = (0..10).filter(|_| policing.arrive(0, FRAME, Nanos(0)) == Policed::Pass);
        assert_eq!(more.count(), 5);
        policing.set_vm(0, 0, None, Nanos(0));
        assert_eq!(policing.arrive(0, FRAME, Nanos(0)), Policed::Pass);
    }

    #[test]
    fn parts_by_weight_add_up() {
        let weights = [1, 1, 2, 3].map(|w| Weight::new(w).unwrap());
        assert_eq!(split(1_000, &weights), [143, 143, 286, 428]);
        assert_eq!(split(u64::MAX, &weights).iter().sum::<u64>(), u64::MAX);
        assert_eq!(split(7, &[]), [0; 0]);
    }
}
