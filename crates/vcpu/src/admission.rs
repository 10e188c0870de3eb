//! Admission control of deadlines, which checks whether the vCPUs of a processor can all meet their
//! deadlines. If admission control refuses a deadline, the error states the shortest deadline that
//! would fit.
//!
//! # Problem
//! A vCPU misses its deadline if other vCPUs with deadlines use all time before the deadline. If a
//! deadline needs more time than the VM's share, the VM takes time from other VMs.
//!
//! # Source
//! The paper on VM jitter (§III-A) treats neither missed deadlines nor deadlines that exceed a
//! share. The limit on the sum of slices (rule 2) is a parameter of this implementation.
//! Measurements in `docs/reference/vcpu.md` are the source of the limit on each vCPU's slices (rule
//! 1).
//!
//! # Quantities
//! - D is the deadline: the longest time that a vCPU waits between two runs.
//! - S is the slice: a vCPU that runs because of its deadline runs for 0.5 ms. A slot of the
//!   deadline queue is 0.5 ms long, like a slice.
//! - A share is the part of a processor that a vCPU gets if all VMs have work, in millionths.
//!
//! # Approach
//! Admission control applies the following rules to each processor:
//! 1. The slices of a vCPU take at most the vCPU's share of the processor, so S / (D + S) <= share.
//! 2. The slices of all vCPUs with deadlines take at most 0.7 of the processor in total
//!    ([`Limits::density_ppm`], default).
//! 3. Each vCPU with a deadline can have its own time slots ([`crate::slots`]). If the slices take
//!    at most 0.7 of the processor, each vCPU with a deadline can nearly always have its own slots.
//! 4. A vCPU takes at most its share even if it always runs early. A vCPU runs early if other vCPUs
//!    own the slots just before its deadline ([`crate::slots::shortest_gaps`]).
//! 5. No vCPU with a deadline is on the driver domain's processor.
//!
//! # Example
//! A deadline D = 3 ms takes 1/7 of a processor and needs a share of 142,857 ppm. If six equal VMs
//! are on the processor, each VM has a share of 166,666 ppm, which suffices for D = 3 ms. If eight
//! equal VMs are on the processor, each VM has 125,000 ppm. With a share of 125,000 ppm, the
//! shortest deadline that fits is D = 3.5 ms.
//!
//! # Cost
//! An admission check calls [`crate::slots::layout`] once per deadline.

use penstock_units::Nanos;
use thiserror::Error;

use crate::deadline_queue::{SLICE, window};
use crate::slots::{layout, shortest_gaps};

/// The capacity of a whole processor, in millionths of a processor.
pub const WHOLE_PPM: u64 = 1_000_000;
/// The shortest valid deadline, 0.5 ms.
pub const DEADLINE_MIN: Nanos = SLICE;
/// The longest valid deadline, 1 s.
pub const DEADLINE_MAX: Nanos = Nanos::from_secs(1);

/// The deadline of a vCPU and the vCPU's share of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Deadline of the vCPU (D in the module's documentation).
    pub deadline: Nanos,
    /// The vCPU's share of its processor if all VMs have work, in millionths.
    pub share_ppm: u64,
}

/// Limits of admission control that an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum part of a processor for slices of the deadline queue, in millionths. Default 700000.
    pub density_ppm: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { density_ppm: 700_000 }
    }
}

/// Part of a processor that the slices for deadline `deadline` take, in millionths. The result is
/// rounded down, like the share of a vCPU.
#[must_use]
pub fn density_ppm(deadline: Nanos) -> u64 {
    let all = u128::from(deadline.0) + u128::from(SLICE.0);
    let taken = u128::from(SLICE.0) * u128::from(WHOLE_PPM) / all;
    u64::try_from(taken).unwrap_or(WHOLE_PPM)
}

/// The shortest deadline in whole slices that takes at most `ppm` millionths of a processor.
/// Returns `None` if the shortest deadline exceeds [`DEADLINE_MAX`].
#[must_use]
pub fn deadline_within(ppm: u64) -> Option<Nanos> {
    if ppm == 0 {
        return None;
    }
    // The vCPU gets one of every `slots` + 1 slots. `slots` + 1 is the smallest number above
    // 1,000,000 / (ppm + 1), because both shares are rounded down.
    let slots = (WHOLE_PPM / ppm.saturating_add(1)).max(1);
    let deadline = Nanos(slots.saturating_mul(SLICE.0));
    (deadline <= DEADLINE_MAX).then_some(deadline)
}

/// Formats a time in milliseconds, for example `3 ms` or `3.5 ms`.
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

/// Reason why admission control refuses a list of deadlines. `claim` is an index in the list of
/// claims.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A deadline is outside the range from [`DEADLINE_MIN`] to [`DEADLINE_MAX`].
    #[error(
        "deadline {} of vCPU {claim} is out of range; write {} to {}",
        Ms(*.deadline), Ms(DEADLINE_MIN), Ms(DEADLINE_MAX)
    )]
    Range {
        /// Index of the claim with the invalid deadline.
        claim: usize,
        /// The refused deadline.
        deadline: Nanos,
    },
    /// The deadline of a vCPU needs more than the vCPU's share.
    #[error(
        "the deadline of vCPU {claim} needs {} of its processor, above the vCPU's share of {}; {}",
        Pct(*.needs_ppm), Pct(*.share_ppm), remedy(*.fits, "give it more weight")
    )]
    Share {
        /// Index of the claim with a deadline that is too short for the vCPU's share.
        claim: usize,
        /// Share that the vCPU's deadline needs, S / (D + S), in millionths.
        needs_ppm: u64,
        /// The vCPU's share of its processor, in millionths.
        share_ppm: u64,
        /// The shortest deadline for which the vCPU's share suffices. `None` means that no deadline
        /// fits the vCPU's share.
        fits: Option<Nanos>,
    },
    /// Together, the deadlines of all claims up to and including `claim` need more than the
    /// processor's limit.
    #[error(
        "the deadlines of vCPUs 0 to {claim} need {} of the processor, above the limit of {}; {}",
        Pct(*.sum_ppm), Pct(*.max_ppm), remedy(*.fits, "put the vCPU on another processor")
    )]
    Density {
        /// Index of the first claim that exceeds the limit.
        claim: usize,
        /// Part of the processor that the deadlines of all claims up to and including `claim` need,
        /// in millionths.
        sum_ppm: u64,
        /// The limit on the sum of the deadlines' processor parts ([`Limits::density_ppm`]), in
        /// millionths.
        max_ppm: u64,
        /// The shortest deadline with which the claim `claim` would fit on the processor. `None`
        /// means that no valid deadline would make the claim `claim` fit.
        fits: Option<Nanos>,
    },
    /// The slots of a processor cannot be divided so that all vCPUs meet their deadlines.
    #[error(
        "the slices of vCPU {claim} do not fit between the slices of other vCPUs; {}",
        remedy(*.fits, "put the vCPU on another processor")
    )]
    Slots {
        /// Index of the first claim for which the processor has no free slots.
        claim: usize,
        /// The shortest deadline with which the claim `claim` would fit on the processor. `None`
        /// means that no valid deadline would make the claim `claim` fit.
        fits: Option<Nanos>,
    },
    /// If the processor admitted the claim `claim`, the deadline slices of the claim `other` would
    /// take more than that claim's share.
    #[error(
        "with vCPU {claim}, the deadline of vCPU {other} needs up to {} of the processor, but the \
         share of vCPU {other} is {}; {}",
        Pct(*.needs_ppm), Pct(*.share_ppm), remedy(*.fits, "place the first vCPU elsewhere")
    )]
    Beside {
        /// Index of the claim that would make another claim exceed its share of the processor.
        claim: usize,
        /// Index of the claim that would use more than its share of the processor. The index
        /// `other` may be equal to the index `claim`.
        other: usize,
        /// Maximum part of a processor that claim `other` would use, in millionths.
        needs_ppm: u64,
        /// Share of the processor of the claim `other`, in millionths.
        share_ppm: u64,
        /// The shortest deadline with which the claim `claim` would fit on the processor. `None`
        /// means that no valid deadline would make the claim `claim` fit.
        fits: Option<Nanos>,
    },
    /// A vCPU with a deadline is on the driver domain's processor, on which the driver domain
    /// preempts all other vCPUs.
    #[error(
        "vCPU {claim} has a deadline and is on the driver domain's processor; put the vCPU on \
         another processor"
    )]
    BesideDriver {
        /// Index of the first claim on the driver domain's processor.
        claim: usize,
    },
}

/// The shortest deadline in whole slots with which the last claim of `claims` fits.
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
    // layout. The search has checked that the returned deadline fits.
    while low < high {
        let middle = low.midpoint(high);
        if fits(middle) { high = middle } else { low = middle + 1 }
    }
    Some(Nanos(high * SLICE.0))
}

fn sum(claims: &[Claim]) -> u64 {
    claims.iter().map(|claim| density_ppm(claim.deadline)).fold(0, u64::saturating_add)
}

/// Finds the first claim that may use more than its share, and returns the part of a processor that
/// this claim may use. Returns `None` if the slots of the processor cannot be divided among the
/// claims.
fn overuse(claims: &[Claim]) -> Option<Option<(usize, u64)>> {
    let windows: Vec<u64> = claims.iter().map(|claim| window(claim.deadline)).collect();
    let gaps = shortest_gaps(&windows, &layout(&windows)?);
    let most = gaps.iter().map(|gap| WHOLE_PPM / gap);
    let mut uses = most.zip(claims).enumerate();
    Some(uses.find(|(_, (ppm, claim))| *ppm > claim.share_ppm).map(|(at, (ppm, _))| (at, ppm)))
}

/// Checks that the vCPUs of one processor can meet all deadlines in `claims`, and that no deadline
/// exceeds its vCPU's share.
///
/// # Errors
/// Returns an error for the first admission rule that the claims violate, with a deadline that
/// would fit.
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
            "the deadline of vCPU 0 needs 14.28 % of its processor, above the vCPU's share of \
             12.50 %; give it more weight, or a deadline of 3.5 ms"
        );
        assert_eq!(admit(&[claim(3_500, 125_000)], false, Limits::default()), Ok(()));
    }

    #[test]
    fn the_sum_is_bounded_and_the_refusal_says_what_would_fit() {
        // Each claim takes 1/4 of the processor, two claims take 0.5, and three claims take 0.75.
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
        // The other vCPU has a deadline of 1 ms, so the vCPU with a deadline of 3 ms may run every
        // 3 ms. A vCPU that runs every 3 ms takes one slot in six instead of one in seven.
        let set = [claim(3_000, 153_846), claim(1_000, 346_153)];
        let error = refusal(&set);
        assert_eq!(
            error.to_string(),
            "with vCPU 1, the deadline of vCPU 0 needs up to 16.66 % of the processor, but the \
             share of vCPU 0 is 15.38 %; place the first vCPU elsewhere, or a deadline of 3 ms"
        );
        let enough = [claim(3_000, 166_666), claim(1_000, 346_153)];
        assert_eq!(admit(&enough, false, Limits::default()), Ok(()));
    }

    #[test]
    fn deadlines_without_a_layout_are_refused_although_their_sum_fits() {
        // The windows are 2, 3 and 7 slots: 1/2 + 1/3 + 1/7 = 0.976. Windows of 2 and 3 slots leave
        // no slot for the third vCPU.
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
