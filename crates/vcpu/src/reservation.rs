//! Reservations of vCPU time by `SCHED_DEADLINE`, and whether they fit.
//!
//! # Problem
//! The time of some VMs must not depend on a scheduler in user space. For these VMs the kernel
//! itself gives each vCPU `runtime` in every `period`.
//!
//! # Source
//! Linux `scheduler/sched-deadline.rst` describes the constant bandwidth server, admission and
//! GRUB.
//!
//! # Approach
//! A VM without a `runtime` reserves its share by weight among all VMs. The share is of the
//! processors minus the time that other VMs reserved by an explicit `runtime`. All VMs without a
//! `runtime` together get at most what the kernel admits, minus [`FAIR_PPM`] for the fair class.
//!
//! VMs are checked in the order of the file. A VM is refused if the sum with its vCPUs exceeds the
//! part `sched_rt_runtime_us / sched_rt_period_us` of the processors. The kernel checks again for
//! the whole root domain, which other programs may use too.
//!
//! # Effect on others ([`Taken`])
//! A vCPU with a reservation may run on any processor of its root domain, before every slice that
//! is lent. Shares are therefore parts of the average time that remains. All reserved time may fall
//! on one processor. Slices of deadlines on that processor then get only the remaining time. A vCPU
//! that reclaims can take a whole processor.
//!
//! # Cost
//! Planning takes O(VMs).

use penstock_units::Nanos;
use thiserror::Error;

use crate::admission::WHOLE_PPM;

/// The shortest run time that the kernel accepts.
pub const RUNTIME_MIN: Nanos = Nanos(1_024);
/// Part of each processor that run times by share leave to the fair class, in millionths. Since
/// Linux 6.12, the kernel's fair server gets the same part, 50 ms in a second.
pub const FAIR_PPM: u64 = 50_000;

/// Reservation that a VM requests for each of its vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The period, which is also the deadline.
    pub period: Nanos,
    /// Run time in each period; `None` means the VM's share.
    pub runtime: Option<Nanos>,
    /// Whether the vCPU may use time that other deadline threads leave (`SCHED_FLAG_RECLAIM`). On
    /// Linux this is up to 95 % of a processor, at the cost of all VMs without a reservation.
    pub reclaim: bool,
}

/// A running VM with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Requested reservation. `None` if the VM runs by weight.
    pub reserve: Option<Reserve>,
    /// Weight of each vCPU.
    pub weight: u64,
    /// Number of vCPUs of the VM.
    pub vcpus: u64,
}

/// Reservation of each vCPU of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Run time in each period.
    pub runtime: Nanos,
    /// Length of the period.
    pub period: Nanos,
    /// Whether the vCPU may use time that others leave, as in [`Reserve::reclaim`].
    pub reclaim: bool,
}

impl Granted {
    /// Part of a processor in millionths, rounded down.
    #[must_use]
    pub fn ppm(&self) -> u64 {
        part(self.runtime, self.period)
    }
}

/// Time that reservations take from others, in millionths of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Average part over all processors.
    pub mean_ppm: u64,
    /// Part of one processor if all reserved vCPUs happen to run there.
    pub most_ppm: u64,
}

/// Reason for which a reservation does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "reservations up to this VM take {} of {}, {} are allowed (95 % of each unless \
     kernel.sched_rt_runtime_us differs); {}add CPUs to [vcpu] `cpus`",
    Pct(*.sum_ppm), counted(*.cpus), Pct(*.max_ppm), shorter(*.fits)
)]
pub struct TooMuch {
    /// Sum of all reservations including this VM's, in millionths.
    pub sum_ppm: u64,
    /// The limit on the sum, in millionths.
    pub max_ppm: u64,
    /// Number of processors to which the limit applies.
    pub cpus: u64,
    /// The longest run time that would fit.
    pub fits: Nanos,
}

/// Formats a number of CPUs with its noun.
fn counted(cpus: u64) -> String {
    if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") }
}

/// The remedy other than more processors. It suggests no run time if none would fit.
fn shorter(fits: Nanos) -> String {
    if fits < RUNTIME_MIN {
        return "give another VM less, or ".to_owned();
    }
    format!("give it a `runtime` of at most {} us, or ", fits.0 / 1_000)
}

/// Formats millionths as percent of one processor.
struct Pct(u64);

impl std::fmt::Display for Pct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{} %", self.0 / 10_000, self.0 % 10_000 / 1_000)
    }
}

fn ratio(a: u64, b: u64, c: u64) -> u64 {
    let exact = u128::from(a) * u128::from(b) / u128::from(c.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

fn part(runtime: Nanos, period: Nanos) -> u64 {
    ratio(runtime.0, WHOLE_PPM, period.0)
}

/// Part of each processor that the kernel admits, in millionths. The arguments are its
/// `sched_rt_runtime_us` (-1 means no limit) and `sched_rt_period_us`.
#[must_use]
pub fn kernel_limit_ppm(runtime_us: i64, period_us: Option<i64>) -> u64 {
    let period = period_us.and_then(|us| u64::try_from(us).ok()).unwrap_or(1_000_000);
    u64::try_from(runtime_us).map_or(WHOLE_PPM, |us| ratio(us, WHOLE_PPM, period).min(WHOLE_PPM))
}

/// The part of a processor that each vCPU without a `runtime` reserves, in millionths, as a
/// function of its weight.
fn by_weight(asks: &[Ask], cpus: u64, max_ppm: u64) -> impl Fn(u64) -> u64 {
    let named = |ask: &&Ask| ask.reserve.is_some_and(|reserve| reserve.runtime.is_some());
    let one = |ask: &Ask| ask.reserve.map_or(0, |r| part(r.runtime.unwrap_or_default(), r.period));
    let taken: u64 = asks.iter().filter(named).map(|ask| ask.vcpus * one(ask)).sum();
    let weights = |ask: &Ask| ask.weight * ask.vcpus;
    let all: u64 = asks.iter().filter(|ask| !named(ask)).map(weights).sum();
    let follow = |ask: &&Ask| ask.reserve.is_some_and(|reserve| reserve.runtime.is_none());
    let following: u64 = asks.iter().filter(follow).map(weights).sum();
    let left = (cpus * WHOLE_PPM).saturating_sub(taken);
    let room = (cpus * max_ppm.saturating_sub(FAIR_PPM)).saturating_sub(taken);
    let most = max_ppm.saturating_sub(FAIR_PPM);
    move |weight| ratio(left, weight, all).min(ratio(room, weight, following)).min(most)
}

/// Reservation of each VM, in the order of `asks`. `None` if the VM runs by weight.
#[must_use]
pub fn plan(asks: &[Ask], cpus: u64, max_ppm: u64) -> Vec<Option<Result<Granted, TooMuch>>> {
    let share = by_weight(asks, cpus, max_ppm);
    let max = cpus * max_ppm;
    let mut sum = 0;
    let mut one = |ask: &Ask| {
        let Reserve { period, runtime, reclaim } = ask.reserve?;
        // Run times are whole microseconds, so that they are easy to read.
        let follows = || {
            let exact = ratio(period.0, share(ask.weight), WHOLE_PPM);
            Nanos(exact / 1_000 * 1_000).max(RUNTIME_MIN)
        };
        let granted = Granted { runtime: runtime.unwrap_or_else(follows), period, reclaim };
        let with = sum + ask.vcpus * granted.ppm();
        if with > max {
            let each = (max - sum) / ask.vcpus.max(1);
            let fits = Nanos(ratio(period.0, each, WHOLE_PPM));
            return Some(Err(TooMuch { sum_ppm: with, max_ppm: max, cpus, fits }));
        }
        sum = with;
        Some(Ok(granted))
    };
    asks.iter().map(&mut one).collect()
}

/// Time that these reservations take from others. Each reservation comes with its number of vCPUs.
#[must_use]
pub fn taken(granted: &[(Granted, u64)], cpus: u64) -> Taken {
    let sum: u64 = granted.iter().map(|(each, vcpus)| each.ppm() * vcpus).sum();
    let reclaims = granted.iter().any(|(each, vcpus)| each.reclaim && *vcpus > 0);
    let most_ppm = if reclaims { WHOLE_PPM } else { sum.min(WHOLE_PPM) };
    Taken { mean_ppm: (sum / cpus.max(1)).min(WHOLE_PPM), most_ppm }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = 950_000;

    fn ask(runtime_us: Option<u64>, weight: u64, vcpus: u64) -> Ask {
        let runtime = runtime_us.map(Nanos::from_micros);
        let reserve = Reserve { period: Nanos::from_millis(3), runtime, reclaim: false };
        Ask { reserve: Some(reserve), weight, vcpus }
    }

    fn hog(weight: u64) -> Ask {
        Ask { reserve: None, weight, vcpus: 1 }
    }

    fn runtime_us(asks: &[Ask], cpus: u64) -> Vec<u64> {
        let granted = plan(asks, cpus, KERNEL).into_iter().flatten();
        granted.map(|each| each.unwrap().runtime.0 / 1_000).collect()
    }

    #[test]
    fn a_run_time_that_is_not_given_is_the_share() {
        assert_eq!(runtime_us(&[ask(None, 1, 1), hog(1), hog(1), hog(2)], 1), [600]);
        assert_eq!(runtime_us(&[ask(None, 1, 1), hog(1)], 1), [1_500], "VMs went");
        // Time that another VM reserved by an explicit `runtime` is not divided by weight.
        assert_eq!(runtime_us(&[ask(Some(1_500), 1, 1), ask(None, 1, 1), hog(1)], 1), [1_500, 750]);
        assert_eq!(runtime_us(&[ask(None, 1, 2), hog(2)], 2), [1_500]);
        // A single VM gets what the kernel admits. So do two VMs that request everything, together.
        assert_eq!(runtime_us(&[ask(None, 7, 1)], 4), [2_700]);
        assert_eq!(runtime_us(&[ask(None, 1, 1), ask(None, 1, 1)], 1), [1_350, 1_350]);
    }

    #[test]
    fn too_large_a_reservation_is_refused_with_what_would_fit_and_others_are_kept() {
        let asks = [ask(Some(2_000), 1, 1), ask(Some(1_500), 1, 1), ask(Some(300), 1, 1)];
        let granted = plan(&asks, 1, KERNEL);
        let refused = granted[1].unwrap().unwrap_err();
        assert_eq!((refused.fits.0 / 1_000, refused.max_ppm), (850, KERNEL));
        let said = refused.to_string();
        assert!(said.contains("116.6 % of 1 CPU, 95.0 % are"), "{said}");
        assert!(said.contains("`runtime` of at most 850 us"), "{said}");
        assert!(granted[2].unwrap().is_ok());
        let mended = ask(Some(refused.fits.0 / 1_000), 1, 1);
        assert!(plan(&[asks[0], mended], 1, KERNEL)[1].unwrap().is_ok());
        assert!(plan(&asks, 2, KERNEL).iter().flatten().all(Result::is_ok));
        assert_eq!(plan(&[hog(1)], 1, KERNEL), [None]);
    }

    #[test]
    fn what_is_left_for_others() {
        let each = |reclaim| Granted {
            runtime: Nanos::from_micros(600),
            period: Nanos::from_millis(3),
            reclaim,
        };
        let plain = Taken { mean_ppm: 200_000, most_ppm: 400_000 };
        assert_eq!(taken(&[(each(false), 2)], 2), plain);
        assert_eq!(taken(&[(each(true), 1)], 1).most_ppm, WHOLE_PPM);
        assert_eq!(taken(&[], 1), Taken::default());
    }

    #[test]
    fn the_limit_is_the_kernels() {
        assert_eq!(kernel_limit_ppm(950_000, Some(1_000_000)), 950_000);
        assert_eq!(kernel_limit_ppm(-1, Some(1_000_000)), WHOLE_PPM);
        assert_eq!(kernel_limit_ppm(500_000, None), 500_000);
    }
}
