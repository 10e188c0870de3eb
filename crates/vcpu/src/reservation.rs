//! Reservations of vCPU time by Linux's `SCHED_DEADLINE`. The module computes each VM's reservation
//! and checks whether all reservations fit.
//!
//! # Problem
//! Some VMs must get their processor time even if the scheduler in user space fails. For a VM with
//! a reservation, the kernel itself lets each vCPU run for the time `runtime` in every `period`.
//!
//! # Source
//! The file `scheduler/sched-deadline.rst` of Linux describes the constant bandwidth server,
//! admission control, and the reclaiming of unused time (GRUB).
//!
//! # Approach
//! 1. The plan subtracts the reservations of VMs with an explicit `runtime` from the time of all
//!    processors.
//! 2. A VM in mode `reserved` without a `runtime` reserves its share by weight of the remaining
//!    time. The limit on all reservations together is the time that the kernel admits, minus
//!    [`FAIR_PPM`] of each processor for Linux's fair class. If all reservations together would
//!    exceed the limit, VMs without a `runtime` reserve less.
//!
//! The plan checks VMs in the order of the configuration file. The kernel admits the fraction
//! `sched_rt_runtime_us / sched_rt_period_us` of the time of all processors. The plan refuses a VM
//! if the sum of reservations would exceed the kernel's limit. The kernel checks its limit again
//! for the whole root domain, including the reservations of other programs.
//!
//! # Effect on others ([`Taken`])
//! A vCPU with a reservation may run on any processor of its root domain. A vCPU with a reservation
//! runs before all vCPUs without a reservation. A vCPU without a reservation has a share of the
//! time that reservations leave on average. In the worst case, all reserved time is on one
//! processor. For a deadline, admission control counts only the processor time that reservations
//! leave in the worst case. If a vCPU may reclaim unused time of other threads, reservations leave
//! no time on a processor in the worst case.
//!
//! # Cost
//! The time for planning all reservations is O(VMs).

use penstock_units::Nanos;
use thiserror::Error;

use crate::admission::WHOLE_PPM;

/// The shortest run time that the kernel accepts for a reservation.
pub const RUNTIME_MIN: Nanos = Nanos(1_024);
/// Part of each processor, in millionths, that the plan keeps for Linux's fair class when it
/// computes run times from shares. Since Linux 6.12, the kernel's fair server also gets 5 % of each
/// processor (50 ms per second).
pub const FAIR_PPM: u64 = 50_000;

/// Reservation that a VM requests for each of its vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Period of the reservation, which is also the deadline of the run time.
    pub period: Nanos,
    /// Requested run time in each period. `None` means that the vCPU reserves its share by weight.
    pub runtime: Option<Nanos>,
    /// Whether the vCPU may use unused time of other deadline threads (`SCHED_FLAG_RECLAIM`). On
    /// Linux, a vCPU that may reclaim time can use up to 95 % of a processor, at the cost of VMs
    /// without a reservation.
    pub reclaim: bool,
}

/// A VM, with the reservation that the VM requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Reservation that the VM requests. The reservation is `None` if the VM runs by weight.
    pub reserve: Option<Reserve>,
    /// Weight of each vCPU of the VM.
    pub weight: u64,
    /// Number of vCPUs of the VM.
    pub vcpus: u64,
}

/// Reservation that each vCPU of a VM gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Reserved run time in each period.
    pub runtime: Nanos,
    /// Length of the reservation's period.
    pub period: Nanos,
    /// Whether the vCPU may use unused time of other threads, as in [`Reserve::reclaim`].
    pub reclaim: bool,
}

impl Granted {
    /// Reserved part of a processor, in millionths, rounded down.
    #[must_use]
    pub fn ppm(&self) -> u64 {
        part(self.runtime, self.period)
    }
}

/// Processor time that reservations take, in millionths of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Average reserved part of a processor, in millionths.
    pub mean_ppm: u64,
    /// Largest part of one processor, in millionths, that reserved vCPUs can take if all of them
    /// happen to run on this processor.
    pub most_ppm: u64,
}

/// Error for a reservation that exceeds the kernel's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "with this VM, reservations take {} of {}, above the limit of {} (95 % of each unless \
     kernel.sched_rt_runtime_us differs); {}add CPUs to [vcpu] `cpus`",
    Pct(*.sum_ppm), counted(*.cpus), Pct(*.max_ppm), shorter(*.fits)
)]
pub struct TooMuch {
    /// Sum of all reservations including the refused reservation, in millionths of a processor.
    pub sum_ppm: u64,
    /// Limit on the sum of reservations, in millionths of a processor.
    pub max_ppm: u64,
    /// Number of processors on which the reservations must fit.
    pub cpus: u64,
    /// The longest run time in each period that would fit for the refused VM.
    pub fits: Nanos,
}

/// Formats a number of CPUs, for example `1 CPU` or `2 CPUs`.
fn counted(cpus: u64) -> String {
    if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") }
}

/// Returns the first remedy in the error message, which is a shorter run time for the refused VM.
/// If even the shortest run time does not fit, the remedy is a smaller reservation of another VM.
fn shorter(fits: Nanos) -> String {
    if fits < RUNTIME_MIN {
        return "give another VM a smaller reservation, or ".to_owned();
    }
    format!("give the VM a `runtime` of at most {} us, or ", fits.0 / 1_000)
}

/// Formats millionths of a processor as percent.
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

/// Part of each processor that the kernel admits for reservations, in millionths. The arguments are
/// the kernel's settings `sched_rt_runtime_us` (-1 means no limit) and `sched_rt_period_us` (`None`
/// means 1 s).
#[must_use]
pub fn kernel_limit_ppm(runtime_us: i64, period_us: Option<i64>) -> u64 {
    let period = period_us.and_then(|us| u64::try_from(us).ok()).unwrap_or(1_000_000);
    u64::try_from(runtime_us).map_or(WHOLE_PPM, |us| ratio(us, WHOLE_PPM, period).min(WHOLE_PPM))
}

/// Returns a function that computes the reservations of vCPUs without a `runtime`. The returned
/// function maps a vCPU's weight to the part of a processor that the vCPU reserves, in millionths.
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

/// Plans the reservation of each VM in `asks`, in the same order. The entry of a VM without a
/// request is `None`. `max_ppm` is the part of each processor that the kernel admits, in
/// millionths.
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

/// Computes the part of `cpus` processors that the reservations `granted` take. Each entry has the
/// reservation of each vCPU of a VM, and the number of the VM's vCPUs.
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
        // A single VM gets all time that may be reserved by share. Two VMs divide this time.
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
        assert!(said.contains("116.6 % of 1 CPU, above the limit of 95.0 %"), "{said}");
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
