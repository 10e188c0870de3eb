//! How much time is reserved for vCPUs by `SCHED_DEADLINE`, and whether it fits.
//!
//! **Problem.** A VM whose time must not depend on any scheduler in user space: the kernel itself
//! gives each of its vCPUs `runtime` in every `period`. **Source.** Linux
//! `scheduler/sched-deadline.rst` (constant bandwidth server, admission, GRUB).
//!
//! **Rule.** Without a `runtime` a VM reserves what its weight stands for: of the processors that
//! others reserved nothing of by name, its part by weight among all VMs; all of them together at
//! most what the kernel admits, less [`FAIR_PPM`] for the fair class. In the order of the file a VM
//! is refused whose vCPUs take the sum above `sched_rt_runtime_us / sched_rt_period_us` of the
//! processors; the kernel asks once more for the whole root domain, which others may use too.
//!
//! **What is left for others** ([`Taken`]). Such a vCPU may run on any processor of its root
//! domain, before every slice that is lent. So shares are those of what is left on average, and
//! slices of deadlines may take what is left where all of it falls on one processor. Who reclaims
//! can take a whole one.
//!
//! **Cost.** O(VMs).

use penstock_units::Nanos;
use thiserror::Error;

use crate::admission::WHOLE_PPM;

/// The shortest run time that the kernel takes is 1,024 ns.
pub const RUNTIME_MIN: Nanos = Nanos(1_024);
/// What run times that follow shares leave to the fair class of each processor: the fair server's
/// part since Linux 6.12, 50 ms in a second.
pub const FAIR_PPM: u64 = 50_000;

/// What a VM asked to have reserved for each of its vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The period, and the deadline in it.
    pub period: Nanos,
    /// Run time in each; `None`: the VM's share.
    pub runtime: Option<Nanos>,
    /// May use more when other deadline threads leave it (`SCHED_FLAG_RECLAIM`). On Linux that is
    /// up to 95 % of a processor, at the cost of everybody who has no reservation.
    pub reclaim: bool,
}

/// A VM that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What it wants reserved; `None`: it runs by weight.
    pub reserve: Option<Reserve>,
    /// Its weight, for each vCPU.
    pub weight: u64,
    /// How many vCPUs it has.
    pub vcpus: u64,
}

/// What each vCPU of a VM has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Run time in each period.
    pub runtime: Nanos,
    /// The period.
    pub period: Nanos,
    /// See [`Reserve::reclaim`].
    pub reclaim: bool,
}

impl Granted {
    /// In millionths of a processor, rounded down.
    #[must_use]
    pub fn ppm(&self) -> u64 {
        part(self.runtime, self.period)
    }
}

/// What reservations leave less of, in millionths of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Of each processor on average.
    pub mean_ppm: u64,
    /// Of one that all of them happen to run on.
    pub most_ppm: u64,
}

/// A reservation does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "reservations up to this VM take {} of {}, {} are allowed (95 % of each unless \
     kernel.sched_rt_runtime_us differs); {}add CPUs to [vcpu] `cpus`",
    Pct(*.sum_ppm), counted(*.cpus), Pct(*.max_ppm), shorter(*.fits)
)]
pub struct TooMuch {
    /// With it, in millionths of a processor.
    pub sum_ppm: u64,
    /// The limit, likewise.
    pub max_ppm: u64,
    /// How many processors the limit is of.
    pub cpus: u64,
    /// The longest run time that would fit.
    pub fits: Nanos,
}

/// A number of CPUs in words.
fn counted(cpus: u64) -> String {
    if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") }
}

/// What helps besides more processors; nothing where no run time at all is left.
fn shorter(fits: Nanos) -> String {
    if fits < RUNTIME_MIN {
        return "give another VM less, or ".to_owned();
    }
    format!("give it a `runtime` of at most {} us, or ", fits.0 / 1_000)
}

/// A number of millionths as percent of one processor.
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

/// What the kernel admits of each processor, in millionths, by its `sched_rt_runtime_us` (-1: it
/// asks no limit) and `sched_rt_period_us`.
#[must_use]
pub fn kernel_limit_ppm(runtime_us: i64, period_us: Option<i64>) -> u64 {
    let period = period_us.and_then(|us| u64::try_from(us).ok()).unwrap_or(1_000_000);
    u64::try_from(runtime_us).map_or(WHOLE_PPM, |us| ratio(us, WHOLE_PPM, period).min(WHOLE_PPM))
}

/// Millionths of a processor that each vCPU without a `runtime` reserves, by unit of weight a
/// million times.
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

/// What each VM has reserved, in their order; `None`: nothing, it runs by weight.
#[must_use]
pub fn plan(asks: &[Ask], cpus: u64, max_ppm: u64) -> Vec<Option<Result<Granted, TooMuch>>> {
    let share = by_weight(asks, cpus, max_ppm);
    let max = cpus * max_ppm;
    let mut sum = 0;
    let mut one = |ask: &Ask| {
        let Reserve { period, runtime, reclaim } = ask.reserve?;
        // In whole microseconds, for whoever reads it.
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

/// What these leave less of: what is granted, and to how many vCPUs.
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
    fn a_run_time_that_is_not_told_is_the_share() {
        assert_eq!(runtime_us(&[ask(None, 1, 1), hog(1), hog(1), hog(2)], 1), [600]);
        assert_eq!(runtime_us(&[ask(None, 1, 1), hog(1)], 1), [1_500], "VMs went");
        // What another one reserved by name is not divided.
        assert_eq!(runtime_us(&[ask(Some(1_500), 1, 1), ask(None, 1, 1), hog(1)], 1), [1_500, 750]);
        assert_eq!(runtime_us(&[ask(None, 1, 2), hog(2)], 2), [1_500]);
        // Alone, and two who would have everything: what the kernel admits.
        assert_eq!(runtime_us(&[ask(None, 7, 1)], 4), [2_700]);
        assert_eq!(runtime_us(&[ask(None, 1, 1), ask(None, 1, 1)], 1), [1_350, 1_350]);
    }

    #[test]
    fn what_is_too_much_is_refused_with_what_would_fit_and_the_rest_is_not() {
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
