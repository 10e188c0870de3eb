//! Live experiment for QShare's Fig. 4: ten tenants share one core link. The tenants receive their
//! guarantees, and the core link is fully used.
//!
//! # Source
//!
//! The experiment replays QShare §VII-A at a smaller scale: links have the rate [`LINK`] instead of
//! 1 Gbit/s. A tenant's guarantee on the core link is also smaller than in the paper: 4.7 Mbit/s.
//! VMs, connections and times are the same as in the simulated figure (`figures/qshare_core.rs`).
//! The controller places half of each tenant's VMs in each rack.
//!
//! # Approach
//!
//! A run of the experiment has one part with predictable and one part with random demand:
//! - *Predictable demand*: tenants start at different times, and then always demand more bandwidth
//!   than they receive. The experiment compares each tenant's rate with the tenant's guarantee.
//! - *Random demand*: clients fetch flows, and pause after some flows.
//!
//! A tenant's rate in one direction is the traffic that its VMs in the receiving rack received,
//! acknowledgements included. The counters of the receiving VMs' hosts yield the tenant's rate. A
//! sample lasts one second. A tenant's first second does not count, because TCP needs this second
//! to find the available rate. The counters of the Linux bridges show the utilization of the core
//! link.

use std::sync::Arc;
use std::time::Duration;

use penstock_sim::Rng;

use super::programs::{Client, Programs, Wants};
use super::samples::{Sample, WARM_UP, others, points, start, used_pct, watch};
use super::world::{HOSTS, Plan, RACKS, World, tenant_name};
use crate::evidence::{Claim, Context, Outcome};
use crate::qshare::{Workload, tenant_sizes};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;

/// Rate of every link, in bits per second.
pub(super) const LINK: u64 = 50_000_000;
/// Guarantee of each tenant on the core link, in bits per second.
pub(super) const GUARANTEE: u64 = 4_700_000;
/// Time between two decisions of the controller, as in the paper.
const INTERVAL: Duration = Duration::from_secs(4);
/// Length of the part with predictable demand, in seconds.
const SECS: f64 = 12.0;
/// Length of the part with random demand, in seconds.
const RANDOM_SECS: f64 = 30.0;
/// Time after a tenant's start in which its connections still search for their rates. The results
/// exclude samples of a tenant from its first second.
const BEGINNING: Duration = Duration::from_secs(1);
/// Number of connections of a VM under predictable demand, as in the simulated figure.
const STEADY: usize = 4;
/// Number of connections of a VM under random demand.
const RANDOM: usize = 12;
/// Longest pause of a client between two flows.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the plan of the network for QShare's Fig. 4. `sizes` holds each tenant's number of VMs.
pub(super) fn plan(sizes: &[usize]) -> Plan {
    let tenant = |vms: &usize| {
        let fewer = u64::try_from(vms / RACKS).unwrap_or(1).max(1);
        (*vms, GUARANTEE / fewer)
    };
    Plan {
        link: LINK,
        interval: INTERVAL,
        tenants: sizes.iter().map(tenant).collect(),
        page: false,
    }
}

/// Runs the live experiment of QShare's Fig. 4.
///
/// # Errors
///
/// Returns an error if a program of the experiment cannot be started, or if it fails later.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let random_secs = context.live.secs.unwrap_or(RANDOM_SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let plan = plan(&tenant_sizes(context.seed));
    outcome.note("link_mbps", LINK / 1_000_000);
    outcome.note("guarantee_mbps", to_f64(GUARANTEE) / 1e6);
    outcome.note("vms", plan.tenants.iter().map(|(vms, _)| *vms).sum::<usize>());
    context.progress(0.0, "starting hosts and their VMs");
    let mut world = World::start(&bed, "fig4", &plan)?;
    let from = starts(context.seed, secs);
    let mut programs = predictable(&bed, &world, &from, context.seed)?;
    context.progress(0.2, "predictable demand");
    let samples = watch(&mut world, &mut programs, secs)?;
    tell_predictable(&mut outcome, &samples, &from);
    drop(programs);
    let mut programs = at_random(&bed, &world, context.seed)?;
    context.progress(0.5, "demand at random");
    let samples = watch(&mut world, &mut programs, random_secs)?;
    tell_random(&mut outcome, &samples);
    Ok(outcome)
}

/// Returns the start times of the tenants, counted from the start of the programs. T1 to T5 start
/// at the beginning, T6 and T8 to T10 start in the middle, and T7 starts last.
fn starts(seed: u64, secs: f64) -> Vec<Duration> {
    let mut rng = Rng::new(seed).fork(4);
    let mut at = |tenant: usize| match tenant {
        0..=4 => Duration::ZERO,
        6 => WARM_UP + Duration::from_secs_f64(0.75 * secs),
        _ => WARM_UP + Duration::from_secs_f64((0.2 + 0.4 * rng.unit()) * secs),
    };
    (0..10).map(&mut at).collect()
}

fn predictable(bed: &Bed, world: &World, from: &[Duration], seed: u64) -> anyhow::Result<Programs> {
    let mut clients = Vec::new();
    for vm in 0..world.vms.len() {
        let (tenant, rack) = (world.vms[vm].tenant, world.vms[vm].host / HOSTS);
        let servers = others(world, vm, |of| of.host / HOSTS != rack);
        let client = Client { vm, servers, wants: Wants::All, from: from[tenant] };
        clients.extend(std::iter::repeat_n(client, STEADY));
    }
    start(bed, world, clients, seed)
}

fn at_random(bed: &Bed, world: &World, seed: u64) -> anyhow::Result<Programs> {
    let sizes = Workload::Enterprise.sizes()?;
    let mut clients = Vec::new();
    for vm in 0..world.vms.len() {
        let host = world.vms[vm].host;
        let servers = others(world, vm, |of| of.host != host);
        let wants = Wants::Flows(Arc::clone(&sizes), PAUSE);
        let client = Client { vm, servers, wants, from: Duration::ZERO };
        clients.extend(std::iter::repeat_n(client, RANDOM));
    }
    start(bed, world, clients, seed)
}

fn tell_predictable(outcome: &mut Outcome, samples: &[Sample], from: &[Duration]) {
    let guarantee = to_f64(GUARANTEE);
    let mut least = (f64::INFINITY, String::new());
    for (tenant, began) in from.iter().enumerate() {
        let rate = |s: &Sample| s.rates.tenants[tenant].iter().sum::<f64>() / 2e6;
        outcome.series(&format!("a: T{}", tenant + 1), "Mbit/s", points(samples, rate));
        for sample in samples.iter().filter(|s| s.from >= *began + BEGINNING) {
            for (rack, rate) in sample.rates.tenants[tenant].iter().enumerate() {
                let part = rate / guarantee;
                if part < least.0 {
                    let at = sample.until.saturating_sub(WARM_UP).as_secs_f64();
                    let name = tenant_name(tenant);
                    least = (part, format!("{name} towards rack {rack}, until {at:.1} s"));
                }
            }
        }
    }
    outcome.note("least_was", least.1);
    outcome.series("a: core", "%", points(samples, used_pct));
    let what = "the least that a tenant had in a second over min(guarantee, demand)";
    let claim = Claim::new("min_rate_over_min_guarantee_demand", what, "");
    outcome.claim(claim.at_least(0.98).measured(least.0));
    let used = samples.iter().map(used_pct).fold(f64::INFINITY, f64::min);
    let what = "how full the core was in any second, demand predictable";
    let claim = Claim::new("core_utilisation_pct", what, "%");
    outcome.claim(claim.at_least(97.0).measured(used));
}

fn tell_random(outcome: &mut Outcome, samples: &[Sample]) {
    outcome.series("b: live", "%", points(samples, used_pct));
    let secs = |s: &Sample| s.until.saturating_sub(s.from).as_secs_f64();
    let all: f64 = samples.iter().map(secs).sum();
    let used = samples.iter().map(|s| used_pct(s) * secs(s)).sum::<f64>() / all;
    let what = "how full the core was on average, demand at random";
    let claim = Claim::new("utilisation_pct", what, "%").published(91.0);
    outcome.claim(claim.at_least(91.0).measured(used));
}
