//! Admission control of deadlines: whether a set of deadlines can be kept, and if not, what would
//! fit.
//!
//! # Problem
//! A deadline is missed if the other deadlines leave no room for it. A deadline that costs more
//! than its VM's share takes time from other VMs.
//!
//! # Source
//! The paper on VM jitter (§III-A) leaves both cases open. The bound on the sum is a parameter of
//! this implementation. The rule for the share was found by measurement (`docs/reference/vcpu.md`).
//!
//! # Quantities
//! D is the deadline and S the slice, 0.5 ms. Shares are in millionths of a processor.
//!
//! # Approach
//! These rules hold on each processor:
//! 1. The slices of a vCPU take at most its share: S / (D + S) <= share.
//! 2. The slices of all vCPUs together take at most 0.7 of the processor ([`Limits::density_ppm`]).
//! 3. The slots of all vCPUs can be laid out ([`crate::slots`]). Up to 0.7 of the processor, such a
//!    layout is nearly always possible.
//! 4. A vCPU takes at most its share even if other vCPUs bring its slices forward. Other vCPUs can
//!    do so because they own the slots before the vCPU's deadline
//!    ([`crate::slots::shortest_gaps`]).
//! 5. No vCPU with a deadline is on the driver domain's processor.
//!
//! # Example
//! D = 3 ms takes 1/7 of a processor and needs a share of 142,857 ppm. Each of six equal VMs has
//! 166,666 ppm, which suffices. Each of eight equal VMs has 125,000 ppm and would need D = 3.5 ms.
//! A test covers this.
//!
//! # Cost
//! The cost is that of [`crate::slots::layout`].

use penstock_units::Nanos;
use thiserror::Error;

use crate::deadline_queue::{SLICE, window};
use crate::slots::{layout, shortest_gaps};

/// A whole processor, in millionths.
pub const WHOLE_PPM: u64 = 1_000_000;
/// The shortest deadline that can be promised.
pub const DEADLINE_MIN: Nanos = SLICE;
/// The longest deadline that can be promised.
pub const DEADLINE_MAX: Nanos = Nanos::from_secs(1);

/// The deadline of a vCPU and the share that pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Deadline of the vCPU (D).
    pub deadline: Nanos,
    /// Share of a processor by the VM's weight when all VMs have work, in millionths.
    pub share_ppm: u64,
}

/// Limits that an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum part of a processor that slices of deadlines may take, in millionths.
    pub density_ppm: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { density_ppm: 700_000 }
    }
}

/// Part of a processor that slices for this deadline take, in millionths. The result is rounded
/// down, like shares.
#[must_use]
pub fn density_ppm(deadline: Nanos) -> u64 {
    let all = u128::from(deadline.0) + u128::from(SLICE.0);
    let taken = u128::from(SLICE.0) * u128::from(WHOLE_PPM) / all;
    u64::try_from(taken).unwrap_or(WHOLE_PPM)
}

/// The shortest deadline in whole slices that takes at most `ppm` millionths of a processor. `None`
/// if it exceeds [`DEADLINE_MAX`].
#[must_use]
pub fn deadline_within(ppm: u64) -> Option<Nanos> {
    if ppm == 0 {
        return None;
    }
    // The vCPU gets one of every `slots` slots. `slots` is the smallest number above 1 / (ppm + 1),
    // because both shares are rounded down.
    let slots = (WHOLE_PPM / ppm.saturating_add(1)).max(1);
    let deadline = Nanos(slots.saturating_mul(SLICE.0));
    (deadline <= DEADLINE_MAX).then_some(deadline)
}

/// Formats a time in milliseconds: `3`, `3.5`.
struct Ms(Nanos);

impl core::fmt::Display for Ms {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (whole, part) = (self.0.0 / 1_000_000, self.0.0 % 1_000_000);
        if part == 0 {
            return write!(f, "{whole} ms");
        }
        let digits = format!("{part:06}");
        write!(f, "{whole}.{} ms", digits.trim_end_matches('0'))
    }
}

/// Formats millionths as percent with two digits.
struct Pct(u64);

impl core::fmt::Display for Pct {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{:02} %", self.0 / 10_000, self.0 % 10_000 / 100)
    }
}

fn remedy(deadline: Option<Nanos>, what: &str) -> String {
    deadline.map_or_else(|| what.to_owned(), |at| format!("{what}, or a deadline of {}", Ms(at)))
}

/// Reason for which a set of deadlines is refused. `claim` is an index in the list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The deadline is outside [`DEADLINE_MIN`] to [`DEADLINE_MAX`].
    #[error(
        "deadline {} of vCPU {claim} is out of range; write {} to {}",
        Ms(*.deadline), Ms(DEADLINE_MIN), Ms(DEADLINE_MAX)
    )]
    Range {
        /// Index of the claim.
        claim: usize,
        /// The refused deadline.
        deadline: Nanos,
    },
    /// The share of a vCPU does not pay for its deadline.
    #[error(
        "vCPU {claim} would use {} of its processor for its deadline and has a share \
         of {}; {}",
        Pct(*.needs_ppm), Pct(*.share_ppm), remedy(*.fits, "give it more weight")
    )]
    Share {
        /// Index of the claim.
        claim: usize,
        /// Share that the deadline needs, S / (D + S), in millionths.
        needs_ppm: u64,
        /// Share of the vCPU, in millionths.
        share_ppm: u64,
        /// The shortest deadline that the share pays for.
        fits: Option<Nanos>,
    },
    /// The deadlines in the list up to `claim` take too much of the processor together.
    #[error(
        "deadlines up to vCPU {claim} take {} of the processor, {} are allowed; {}",
        Pct(*.sum_ppm), Pct(*.max_ppm), remedy(*.fits, "place it elsewhere")
    )]
    Density {
        /// Index of the first claim that exceeds the limit.
        claim: usize,
        /// Sum of the parts up to and including this claim, in millionths.
        sum_ppm: u64,
        /// The limit in millionths.
        max_ppm: u64,
        /// The shortest deadline of this claim that would fit.
        fits: Option<Nanos>,
    },
    /// No layout of slots keeps all deadlines.
    #[error(
        "the slices of vCPU {claim} have no place between the others'; {}",
        remedy(*.fits, "place it elsewhere")
    )]
    Slots {
        /// Index of the first claim that gets no slots.
        claim: usize,
        /// The shortest deadline of this claim that would fit.
        fits: Option<Nanos>,
    },
    /// With this claim, the slices of another claim take more than its share pays for.
    #[error(
        "beside vCPU {claim}, vCPU {other} would use up to {} of its processor for its deadline \
         and has a share of {}; {}",
        Pct(*.needs_ppm), Pct(*.share_ppm), remedy(*.fits, "place the first elsewhere")
    )]
    Beside {
        /// Index of the claim that causes the excess.
        claim: usize,
        /// Index of the claim that would use more than its share. It may equal `claim`.
        other: usize,
        /// Maximum part of a processor that claim `other` would use, in millionths.
        needs_ppm: u64,
        /// Share of claim `other`, in millionths.
        share_ppm: u64,
        /// The shortest deadline of `claim` that would fit.
        fits: Option<Nanos>,
    },
    /// A deadline is on the driver domain's processor, where the driver domain preempts all others.
    #[error(
        "vCPU {claim} has a deadline and is on the driver domain's processor; place it elsewhere"
    )]
    BesideDriver {
        /// Index of the first claim with a deadline.
        claim: usize,
    },
}

/// The shortest deadline in whole slots with which the last of `claims` fits.
fn shortest(claims: &[Claim], limits: Limits) -> Option<Nanos> {
    let (last, before) = claims.split_last()?;
    let (mut low, mut high) = (1, DEADLINE_MAX.0 / SLICE.0);
    let fits = |slots: u64| {
        let longer = Claim { deadline: Nanos(slots * SLICE.0), ..*last };
        let set: Vec<Claim> = before.iter().copied().chain([longer]).collect();
        sum(&set) <= limits.density_ppm && overuse(&set) == Some(None)
    };
    if !fits(high) {
        return None;
    }
    // A longer deadline takes less of the processor, so it also fits, except in corner cases of the
    // layout. The result itself has been tried.
    while low < high {
        let middle = low.midpoint(high);
        if fits(middle) { high = middle } else { low = middle + 1 }
    }
    Some(Nanos(high * SLICE.0))
}

fn sum(claims: &[Claim]) -> u64 {
    claims.iter().map(|claim| density_ppm(claim.deadline)).fold(0, u64::saturating_add)
}

/// The first claim that may use more than its share, with the part that it may use. The outer
/// `None` means that there is no layout.
fn overuse(claims: &[Claim]) -> Option<Option<(usize, u64)>> {
    let windows: Vec<u64> = claims.iter().map(|claim| window(claim.deadline)).collect();
    let gaps = shortest_gaps(&windows, &layout(&windows)?);
    let most = gaps.iter().map(|gap| WHOLE_PPM / gap);
    let mut uses = most.zip(claims).enumerate();
    Some(uses.find(|(_, (ppm, claim))| *ppm > claim.share_ppm).map(|(at, (ppm, _))| (at, ppm)))
}

/// Checks that all deadlines of one processor can be kept and paid for.
///
/// # Errors
/// Returns the first rule of the module's documentation that is broken, with a deadline that would
/// fit.
pub fn admit(claims: &[Claim], with_driver: bool, limits: Limits) -> Result<(), Refusal> {
    if with_driver && !claims.is_empty() {
        return Err(Refusal::BesideDriver { claim: 0 });
    }
    for (claim, Claim { deadline, share_ppm }) in claims.iter().copied().enumerate() {
        if !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline) {
            return Err(Refusal::Range { claim, deadline });
        }
        let needs_ppm = density_ppm(deadline);
        if needs_ppm > share_ppm {
            let fits = deadline_within(share_ppm);
            return Err(Refusal::Share { claim, needs_ppm, share_ppm, fits });
        }
    }
    for claim in 0..claims.len() {
        let first = &claims[..=claim];
        let fits = || shortest(first, limits);
        let (sum_ppm, max_ppm) = (sum(first), limits.density_ppm);
        if sum_ppm > max_ppm {
            return Err(Refusal::Density { claim, sum_ppm, max_ppm, fits: fits() });
        }
        match overuse(first) {
            None => return Err(Refusal::Slots { claim, fits: fits() }),
            Some(Some((other, needs_ppm))) => {
                let share_ppm = claims[other].share_ppm;
                return Err(Refusal::Beside { claim, other, needs_ppm, share_ppm, fits: fits() });
            }
            Some(None) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(deadline_us: u64, share_ppm: u64) -> Claim {
        Claim { deadline: Nanos::from_micros(deadline_us), share_ppm }
    }

    fn refusal(claims: &[Claim]) -> Refusal {
        admit(claims, false, Limits::default()).unwrap_err()
    }

    #[test]
    fn a_deadline_is_paid_out_of_the_share() {
        assert_eq!(admit(&[claim(3_000, 166_666)], false, Limits::default()), Ok(()));
        let error = refusal(&[claim(3_000, 125_000)]);
        assert_eq!(
            error.to_string(),
            "vCPU 0 would use 14.28 % of its processor for its deadline and has a share of \
             12.50 %; give it more weight, or a deadline of 3.5 ms"
        );
        assert_eq!(admit(&[claim(3_500, 125_000)], false, Limits::default()), Ok(()));
    }

    #[test]
    fn the_sum_is_bounded_and_the_refusal_says_what_would_fit() {
        // Each claim takes 1/4: two take 0.5 together, and three take 0.75.
        let set = [claim(1_500, 300_000), claim(1_500, 300_000), claim(1_500, 300_000)];
        let Refusal::Density { claim: 2, sum_ppm: 750_000, fits: Some(fits), .. } = refusal(&set)
        else {
            panic!("{:?}", refusal(&set))
        };
        assert_eq!(fits, Nanos::from_millis(2));
        let mut mended = set;
        mended[2].deadline = fits;
        assert_eq!(admit(&mended, false, Limits::default()), Ok(()));
        let all = Limits { density_ppm: 800_000 };
        assert_eq!(admit(&set, false, all), Ok(()));
    }

    #[test]
    fn slices_that_others_bring_forward_are_paid_for_too() {
        // Beside a deadline of 1 ms, the vCPU with 3 ms runs every 3 ms at worst. It then takes one
        // slot in six and not one in seven.
        let set = [claim(3_000, 153_846), claim(1_000, 346_153)];
        let error = refusal(&set);
        assert_eq!(
            error.to_string(),
            "beside vCPU 1, vCPU 0 would use up to 16.66 % of its processor for its deadline and \
             has a share of 15.38 %; place the first elsewhere, or a deadline of 3 ms"
        );
        let enough = [claim(3_000, 166_666), claim(1_000, 346_153)];
        assert_eq!(admit(&enough, false, Limits::default()), Ok(()));
    }

    #[test]
    fn deadlines_without_a_layout_are_refused_although_their_sum_fits() {
        // The windows are 2, 3 and 7 slots: 1/2 + 1/3 + 1/7 = 0.976. Windows 2 and 3 leave no slot
        // for a third.
        let limits = Limits { density_ppm: WHOLE_PPM };
        let set = [claim(500, 500_000), claim(1_000, 500_000), claim(3_000, 200_000)];
        let error = admit(&set, false, limits).unwrap_err();
        assert!(matches!(error, Refusal::Slots { claim: 2, fits: None }), "{error:?}");
    }

    #[test]
    fn ranges_and_the_drivers_processor() {
        let limits = Limits::default();
        assert_eq!(admit(&[], true, limits), Ok(()));
        let beside = admit(&[claim(3_000, 500_000)], true, limits).unwrap_err();
        assert_eq!(beside, Refusal::BesideDriver { claim: 0 });
        let error = refusal(&[claim(499, WHOLE_PPM)]).to_string();
        assert_eq!(error, "deadline 0.499 ms of vCPU 0 is out of range; write 0.5 ms to 1000 ms");
        assert!(matches!(refusal(&[claim(1_000_001, WHOLE_PPM)]), Refusal::Range { .. }));
        assert_eq!(deadline_within(0), None);
        assert_eq!(deadline_within(WHOLE_PPM), Some(DEADLINE_MIN));
    }
}
