//! Live experiment for QShare's Fig. 4: ten tenants share one core link. The tenants receive their
//! guarantees, and the core link is fully used.
//!
//! # Source
//!
//! The experiment replays QShare §VII-A at a smaller scale: links have the rate [`LINK`] instead
//! of 1 Gbit/s. A tenant's guarantee on the core link is also smaller than in the paper: 4.7
//! Mbit/s. VMs, connections and times are the same as in the simulated figure
//! (`figures/qshare_core.rs`). The controller places half of each tenant's VMs in each rack.
//!
//! # Approach
//!
//! A run of the experiment has three parts:
//! - *Predictable demand*: tenants start at different times, and then always demand more bandwidth
//!   than they receive. The experiment compares each tenant's rate with the rate that is due to the
//!   tenant, which is the smaller of its guarantee and its demand ([`super::demand`]).
//! - *Random demand*: clients fetch flows, and pause after some flows.
//! - *Datagrams*: the predictable demand again, with datagrams instead of TCP. TCP in both
//!   directions of a slow queue leaves the queue empty at times, and then the tenant demands less
//!   than its guarantee. Datagrams show what the fabric gives to a tenant that always demands more.
//!
//! A tenant's rate in one direction is the traffic that its VMs in the receiving rack received,
//! acknowledgements included. The counters of the VMs' network interfaces yield the tenant's rate,
//! and the counters of the Linux bridges show the utilization of the core link. All counters of a
//! sample have the same window ([`super::counters`]). A sample lasts one second. A tenant's first
//! second does not count, because TCP needs this second to find the available rate.
//!
//! For each sample in which a tenant had less than [`KEPT`] of its due rate, the entry
//! `short_samples` of the record's `platform` says what the fabric did ([`super::diagnosis`]).

use std::sync::Arc;
use std::time::Duration;

use penstock_sim::Rng;

use super::demand::{across, clients, due, floods};
use super::diagnosis::{Short, worst};
use super::diary::{Diary, Log};
use super::plan::{Control, Plan, Spread};
use super::programs::{Client, Programs, Wants};
use super::samples::{
    Sample, WARM_UP, longest_sweep_ms, others, points, start, used_pct, watch, watch_and,
};
use super::transport::{Moment, Transport};
use super::world::World;
use crate::evidence::{Claim, Context, Outcome};
use crate::qshare::{Workload, tenant_sizes};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;

/// Rate of every link, in bits per second.
pub(super) const LINK: u64 = 50_000_000;
/// Guarantee of each tenant on the core link, in bits per second.
pub(super) const GUARANTEE: u64 = 4_700_000;
/// Number of hosts in each of the two racks.
pub(super) const RACKS: [usize; 2] = [5, 5];
/// Number of queues of each port, including the shared queue.
pub(super) const QUEUES: usize = 8;
/// Time between two decisions of the controller, as in the paper.
pub(super) const INTERVAL: Duration = Duration::from_secs(4);
/// Part of its due rate that a tenant must receive in every second.
pub(super) const KEPT: f64 = 0.98;
/// Percentage of the core link that must be used.
const FULL_PCT: f64 = 97.0;
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
        let fewer = u64::try_from(vms / RACKS.len()).unwrap_or(1).max(1);
        (*vms, GUARANTEE / fewer)
    };
    Plan {
        racks: RACKS.to_vec(),
        link: LINK,
        queues: QUEUES,
        interval: INTERVAL,
        tenants: sizes.iter().map(tenant).collect(),
        spread: Spread::HalfPerRack,
        control: Control::One,
        hold: false,
        page: false,
        spare: false,
    }
}

/// Runs the live experiment of QShare's Fig. 4.
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
    let flows = across(&world.vms, STEADY, context.seed);
    let due = due(&world.vms, &flows, &hoses(&plan), RACKS.len());
    let demand = Demand { from: starts(context.seed, secs), due };
    let diary = Diary::start(world.operator())?;
    let all = clients(&world.vms, &flows, &demand.from);
    let transport = world.transport()?;
    let mut programs = start(&bed, &world, all, context.seed)?;
    context.progress(0.2, "predictable demand");
    let (samples, moments) = watch_transport((&mut world, &mut programs), secs, &transport)?;
    drop(programs);
    tell_predictable(&mut outcome, &samples, &demand, &Log { moments, ..diary.close()? });
    let mut programs = at_random(&bed, &world, context.seed)?;
    context.progress(0.4, "demand at random");
    let samples = watch(&mut world, &mut programs, random_secs)?;
    tell_random(&mut outcome, &samples);
    drop(programs);
    context.progress(0.7, "datagrams");
    let diary = Diary::start(world.operator())?;
    let all = floods(&world.vms, &flows, &demand.from, &hoses(&plan));
    let mut programs = start(&bed, &world, all, context.seed)?;
    let samples = watch(&mut world, &mut programs, secs)?;
    drop(programs);
    outcome.append("datagrams", datagrams(&samples, &demand, &diary.close()?));
    Ok(outcome)
}

/// Takes samples for `secs` seconds. Also reads the connections and queues before the first sample
/// and after each sample.
fn watch_transport(
    (world, programs): (&mut World, &mut Programs),
    secs: f64,
    transport: &Transport,
) -> anyhow::Result<(Vec<Sample>, Vec<Moment>)> {
    let mut moments = Vec::new();
    let samples = watch_and((world, programs), secs, || moments.push(transport.read()))?;
    Ok((samples, moments.into_iter().collect::<anyhow::Result<Vec<Moment>>>()?))
}

/// Returns the claim about the lowest part of its due rate that a tenant had.
fn kept(least: f64) -> Claim {
    let what = "the least that a tenant had in a second over min(guarantee, demand)";
    let claim = Claim::new("min_rate_over_min_guarantee_demand", what, "");
    claim.at_least(KEPT).measured(least)
}

/// Judges the part with datagrams.
fn datagrams(samples: &[Sample], demand: &Demand, log: &Log) -> Outcome {
    let mut outcome = Outcome::default();
    let least = judge(&mut outcome, samples, demand, log);
    outcome.claim(kept(least));
    outcome
}

/// Returns the guarantee of each VM of each tenant, in bits per second.
pub(super) fn hoses(plan: &Plan) -> Vec<u64> {
    plan.tenants.iter().map(|(_, hose)| *hose).collect()
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

fn at_random(bed: &Bed, world: &World, seed: u64) -> anyhow::Result<Programs> {
    let sizes = Workload::Enterprise.sizes()?;
    let mut clients = Vec::new();
    for vm in 0..world.vms.len() {
        let host = world.vms[vm].host;
        let servers = others(&world.vms, vm, |of| of.host != host);
        let wants = Wants::Flows(Arc::clone(&sizes), PAUSE);
        let client = Client { vm, servers, wants, from: Duration::ZERO };
        clients.extend(std::iter::repeat_n(client, RANDOM));
    }
    start(bed, world, clients, seed)
}

/// Demand of all tenants.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    /// Time at which each tenant begins to send, counted from the start of the programs.
    pub from: Vec<Duration>,
    /// Rate that is due to each tenant towards each rack, in bits per second.
    pub due: Vec<Vec<f64>>,
}

impl Demand {
    /// Returns the samples of each tenant and direction in which a rate was due, without the
    /// samples of a tenant's first second.
    pub fn judged<'a>(&'a self, samples: &'a [Sample]) -> Vec<Short<'a>> {
        let mut all = Vec::new();
        for (tenant, (due, from)) in self.due.iter().zip(&self.from).enumerate() {
            let began = *from;
            for sample in samples.iter().filter(|s| s.from >= began + BEGINNING) {
                let racks = due.iter().enumerate().filter(|(_, due)| **due > 0.0);
                let one =
                    |(rack, due): (usize, &f64)| Short { sample, tenant, rack, due: *due, began };
                all.extend(racks.map(one));
            }
        }
        all
    }
}

/// Adds notes about the demand and about each sample in which a tenant had less than [`KEPT`] of
/// its due rate. Returns the lowest part of its due rate that a tenant had in any sample, or
/// infinity if there are no samples.
pub(super) fn judge(outcome: &mut Outcome, samples: &[Sample], demand: &Demand, log: &Log) -> f64 {
    let all = demand.judged(samples);
    let least = all.iter().min_by(|a, b| a.part().total_cmp(&b.part()));
    outcome.note("least_was", least.map(Short::told));
    let least = least.map_or(f64::INFINITY, Short::part);
    let due_mbps = |due: &Vec<f64>| due.iter().map(|rate| rate / 1e6).collect::<Vec<f64>>();
    outcome.note("due_mbps", demand.due.iter().map(due_mbps).collect::<Vec<_>>());
    outcome.note("sweep_ms_max", longest_sweep_ms(samples));
    let short: Vec<Short<'_>> = all.into_iter().filter(|short| short.part() < KEPT).collect();
    outcome.note("short_samples_count", short.len());
    outcome.note("short_samples", worst(short, log));
    least
}

/// Adds the controller's plans as events of the run `run`, and as a series of their lengths.
pub(super) fn tell_plans(outcome: &mut Outcome, run: &str, samples: &[Sample], log: &Log) {
    let Some(first) = samples.first() else { return };
    // Seconds from the warm-up to a time in milliseconds since 1970.
    let secs = |at_ms: u64| {
        let origin = first.at_ms[0];
        let after = to_f64(at_ms.saturating_sub(origin)) - to_f64(origin.saturating_sub(at_ms));
        after / 1e3 + first.from.saturating_sub(WARM_UP).as_secs_f64()
    };
    let plans = log.plans();
    for plan in &plans {
        let what = format!("plan of {:.2} s: {}", plan.secs, plan.events.join(", "));
        outcome.event(run, secs(plan.span_ms[1]), &what);
    }
    let lengths = plans.iter().map(|plan| (secs(plan.span_ms[1]), plan.secs));
    outcome.series(&format!("{run}: length of plans"), "s", lengths);
}

fn tell_predictable(outcome: &mut Outcome, samples: &[Sample], demand: &Demand, log: &Log) {
    for tenant in 0..demand.due.len() {
        let rate = |s: &Sample| s.rates.tenants[tenant].iter().sum::<f64>() / 2e6;
        outcome.series(&format!("a: T{}", tenant + 1), "Mbit/s", points(samples, rate));
    }
    let least = judge(outcome, samples, demand, log);
    tell_plans(outcome, "a", samples, log);
    outcome.series("a: core", "%", points(samples, used_pct));
    outcome.claim(kept(least));
    let parts = demand.judged(samples).into_iter().map(|short| short.part() * short.due);
    let least = parts.fold(f64::INFINITY, f64::min) / to_f64(GUARANTEE);
    let what = "the least that a tenant had in a second over its guarantee, whatever its demand";
    outcome.claim(Claim::new("min_rate_over_guarantee", what, "").measured(least));
    let used = samples.iter().map(used_pct).fold(f64::INFINITY, f64::min);
    let what = "how full the core was in any second, demand predictable";
    let claim = Claim::new("core_utilisation_pct", what, "%");
    outcome.claim(claim.at_least(FULL_PCT).measured(used));
    let plans = log.plans().iter().map(|plan| plan.secs).fold(f64::NAN, f64::max);
    let what = "the longest interval with a plan, demand predictable";
    outcome.claim(Claim::new("plan_s_longest", what, "s").measured(plans));
}

fn tell_random(outcome: &mut Outcome, samples: &[Sample]) {
    outcome.series("b: live", "%", points(samples, used_pct));
    let secs = |s: &Sample| s.until.saturating_sub(s.from).as_secs_f64();
    let all: f64 = samples.iter().map(secs).sum();
    let used = samples.iter().map(|s| used_pct(s) * secs(s)).sum::<f64>() / all;
    let what = "how full the core was on average, demand at random";
    let claim = Claim::new("utilisation_pct", what, "%").published(91.0);
    outcome.claim(claim.at_least(FULL_PCT).measured(used));
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::counters::{Rates, Repairs};
    use super::super::plan::tests::placed;
    use super::*;

    #[test]
    fn the_tenants_of_every_seed_have_a_place_with_half_of_their_vms_in_each_rack() {
        let mut wrong = Vec::new();
        for seed in 1..=50 {
            let sizes = tenant_sizes(seed);
            let plan = plan(&sizes);
            let (places, refused) = placed(&plan);
            if !refused.is_empty() {
                wrong.push(format!("seed {seed}: {}", refused.join("; ")));
                continue;
            }
            let hosts = |place: &std::collections::BTreeMap<String, u32>| {
                let host = |(name, vms): (&String, &u32)| {
                    let host = name.strip_prefix("server-").unwrap().parse::<usize>().unwrap();
                    (host, usize::try_from(*vms).unwrap())
                };
                place.iter().map(host).collect::<Vec<_>>()
            };
            for (place, size) in places.iter().map(hosts).zip(&sizes) {
                let first = place.iter().filter(|(host, _)| plan.rack_of(*host) == 0);
                let first: usize = first.map(|(_, vms)| vms).sum();
                let all: usize = place.iter().map(|(_, vms)| vms).sum();
                assert_eq!(all, *size, "seed {seed}");
                assert!(first.abs_diff(all - first) <= 1, "seed {seed}: {place:?}");
            }
        }
        assert!(wrong.is_empty(), "{} seeds: {wrong:#?}", wrong.len());
    }

    fn sample(second: u64, rate: f64) -> Sample {
        let at = |n: u64| WARM_UP + Duration::from_secs(n);
        Sample {
            from: at(second),
            until: at(second + 1),
            at_ms: [1_000 * second, 1_000 * (second + 1)],
            rates: Rates {
                tenants: vec![vec![rate, 4e6], vec![2e6, 2e6]],
                core: vec![5e7; 2],
                repairs: vec![vec![Repairs::default(); 2]; 2],
            },
            sweep: Duration::from_millis(3),
            link: 5e7,
        }
    }

    #[test]
    fn a_tenants_first_second_does_not_count_and_each_later_one_does() {
        let samples = [sample(0, 1e6), sample(1, 3e6), sample(2, 4e6)];
        let due = vec![vec![4e6, 4e6], vec![2e6, 0.0]];
        let demand = Demand { from: vec![WARM_UP, Duration::ZERO], due };
        let mut outcome = Outcome::new();
        let least = judge(&mut outcome, &samples, &demand, &Log::default());
        assert!((least - 0.75).abs() < 1e-9, "{least}");
        assert_eq!(outcome.platform["least_was"], "t1 towards rack 0, until 2.0 s");
        assert_eq!(outcome.platform["short_samples_count"], 1);
        assert_eq!(outcome.platform["short_samples"][0]["rate_mbps"], 3.0);
        // The second tenant is due nothing towards rack 1.
        assert_eq!(demand.judged(&samples).len(), 2 * 2 + 3);
    }

    #[test]
    fn a_run_without_samples_measures_nothing() {
        let mut outcome = Outcome::new();
        let demand = Demand { from: vec![WARM_UP], due: vec![vec![4e6, 4e6]] };
        tell_predictable(&mut outcome, &[], &demand, &Log::default());
        let missed = outcome.claims.iter().filter(|claim| claim.is_missed()).count();
        assert_eq!(missed, 2, "the rate and the use of the core");
        assert_eq!(outcome.platform["least_was"], Value::Null);
    }
}
