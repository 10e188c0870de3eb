//! Live experiment about bandwidth that nobody uses: three tenants share queue 0 of a small fabric,
//! without and with rate allocation in the hosts.
//!
//! # Source
//!
//! QShare §V-D: tenants without queues share a queue. ElasticSwitch allocates rates to pairs of VMs
//! in such a queue, and QShare lets both methods share a network.
//!
//! # Approach
//!
//! The fabric has two racks with two hosts each. Each tenant has a VM on each host, and a guarantee
//! of [`GUARANTEE`] on the core link in each direction. The controller stays in the mode `hold`, so
//! no tenant gets a queue. The run has three parts:
//!
//! - *Alone*: one tenant uses all that it can get, first with `rate_allocation = "guarantee"` and
//!   then with `"spare"`.
//! - *All*: the other two tenants begin one after the other, and each also uses all that it can
//!   get.
//! - *Datagrams*: beside a tenant with TCP, another tenant begins to send datagrams at the rate of
//!   the link.
//!
//! A tenant is due the smaller of its guarantee and its demand, as in the live Fig. 4
//! ([`super::demand`]). The results exclude the first second of each tenant. They include the first
//! second after another tenant has begun.
//!
//! # Cost
//!
//! A run takes about 90 s.

use std::time::Duration;

use super::demand::{Flow, across, clients, due};
use super::diary::Log;
use super::guarantees::{Demand, INTERVAL, KEPT, LINK, hoses, judge};
use super::plan::{Control, Plan, Spread, tenant_name};
use super::programs::{Client, Wants};
use super::samples::{Sample, WARM_UP, others, points, start, used_pct, watch};
use super::world::World;
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;

/// Number of hosts in each of the two racks.
const RACKS: [usize; 2] = [2, 2];
/// Number of VMs of each tenant, one on each host.
const VMS: usize = RACKS[0] + RACKS[1];
const TENANTS: usize = 3;
/// Guarantee of each tenant on the core link, in bits per second. All tenants together have 72 % of
/// the link.
const GUARANTEE: u64 = 12_000_000;
/// Number of queues of each port, including the shared queue.
const QUEUES: usize = 4;
/// Number of connections of a VM.
const COPIES: usize = 4;
/// Length of each part in seconds.
const SECS: f64 = 12.0;
/// Time from the end of the warm-up to the start of the next tenant, and from there to the next.
const ARRIVAL: Duration = Duration::from_secs(3);
/// Percentage of the core link that one tenant alone must use with rate allocation.
const SPARE_PCT: f64 = 80.0;
/// Percentage of the core link that must be used while all tenants want more than they get.
const FULL_PCT: f64 = 85.0;
/// Tenant that is alone in the first part, and that sends datagrams in the last part.
const FIRST: usize = 0;
/// Tenant that uses TCP in the last part.
const BESIDE: usize = 1;

/// Returns the plan of the fabric. If `spare` is true, the hosts allocate rates.
fn plan(spare: bool) -> Plan {
    let in_rack = u64::try_from(VMS / RACKS.len()).unwrap_or(1);
    Plan {
        racks: RACKS.to_vec(),
        link: LINK,
        queues: QUEUES,
        interval: INTERVAL,
        tenants: vec![(VMS, GUARANTEE / in_rack); TENANTS],
        spread: Spread::OnePerHost,
        control: Control::One,
        hold: true,
        page: false,
        spare,
    }
}

/// Traffic of a part.
#[derive(Debug, Clone)]
struct Traffic {
    clients: Vec<Client>,
    /// Demand of the tenants with TCP.
    demand: Demand,
}

impl Traffic {
    /// Returns the traffic of tenants that use TCP, each from its time in `from` on, counted from
    /// the start of the programs.
    fn tcp(world: &World, from: [Option<Duration>; TENANTS], seed: u64) -> Self {
        let mut flows = across(&world.vms, COPIES, seed);
        flows.retain(|flow: &Flow| from[world.vms[flow.client].tenant].is_some());
        let due = due(&world.vms, &flows, &hoses(world.plan()), RACKS.len());
        let from = from.map(Option::unwrap_or_default).to_vec();
        Self { clients: clients(&world.vms, &flows, &from), demand: Demand { from, due } }
    }

    /// Adds datagrams of the tenant [`FIRST`] from the time `from` on. The VMs in a rack together
    /// send at the rate of the link, each to another VM in the other rack.
    fn add_datagrams(&mut self, world: &World, from: Duration) {
        for (vm, of) in world.vms.iter().enumerate().filter(|(_, vm)| vm.tenant == FIRST) {
            let servers = others(&world.vms, vm, |other| other.rack != of.rack);
            let in_rack = u64::try_from(servers.len().max(1)).unwrap_or(1);
            let server = servers.get(of.host % servers.len().max(1)).copied();
            let wants = Wants::Datagrams(to_f64(LINK) / to_f64(in_rack));
            let client = |server| Client { vm, servers: vec![server], wants, from };
            self.clients.extend(server.map(client));
        }
    }
}

/// Runs the experiment.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("link_mbps", LINK / 1_000_000);
    outcome.note("guarantee_mbps", GUARANTEE / 1_000_000);
    let measure = |world: &mut World, traffic: &Traffic| -> anyhow::Result<Vec<Sample>> {
        let mut programs = start(&bed, world, traffic.clients.clone(), context.seed)?;
        watch(world, &mut programs, secs)
    };
    let alone = [Some(Duration::ZERO), None, None];
    context.progress(0.0, "starting hosts that keep tenants at their limits");
    let limited = {
        let mut world = World::start(&bed, "held", &plan(false))?;
        context.progress(0.05, "one tenant alone at its limit");
        let traffic = Traffic::tcp(&world, alone, context.seed);
        measure(&mut world, &traffic)?
    };
    context.progress(0.25, "starting hosts that allocate rates");
    let mut world = World::start(&bed, "spare", &plan(true))?;
    context.progress(0.3, "one tenant alone, with rate allocation");
    let traffic = Traffic::tcp(&world, alone, context.seed);
    let spare = measure(&mut world, &traffic)?;
    tell_alone(&mut outcome, [&limited, &spare]);
    context.progress(0.55, "three tenants that want more than they get");
    let later = |nth: u32| Some(WARM_UP + nth * ARRIVAL);
    let traffic = Traffic::tcp(&world, [Some(Duration::ZERO), later(1), later(2)], context.seed);
    let samples = measure(&mut world, &traffic)?;
    tell_all(&mut outcome, &samples, &traffic.demand);
    context.progress(0.75, "datagrams at the rate of the link, beside TCP");
    let mut traffic = Traffic::tcp(&world, [None, Some(Duration::ZERO), None], context.seed);
    traffic.add_datagrams(&world, WARM_UP + ARRIVAL);
    let samples = measure(&mut world, &traffic)?;
    tell_datagrams(&mut outcome, &samples, &traffic.demand);
    Ok(outcome)
}

/// Returns the mean utilization of the core link in percent.
fn mean_used_pct(samples: &[Sample]) -> f64 {
    let secs = |s: &Sample| s.until.saturating_sub(s.from).as_secs_f64();
    let all: f64 = samples.iter().map(secs).sum();
    samples.iter().map(|s| used_pct(s) * secs(s)).sum::<f64>() / all
}

/// Adds the results of a tenant that is alone, without and with rate allocation.
fn tell_alone(outcome: &mut Outcome, [limited, spare]: [&[Sample]; 2]) {
    outcome.series("a: guarantee", "%", points(limited, used_pct));
    outcome.series("a: spare", "%", points(spare, used_pct));
    let what = "how full the core was on average with one tenant, limited";
    outcome.claim(Claim::new("limited_used_pct", what, "%").measured(mean_used_pct(limited)));
    let what = "how full the core was on average with one tenant, with rate allocation";
    let claim = Claim::new("spare_used_pct", what, "%").at_least(SPARE_PCT);
    outcome.claim(claim.measured(mean_used_pct(spare)));
}

/// Adds the tenants' rates in a part, whose name precedes the names of the series.
fn tell_rates(outcome: &mut Outcome, part: &str, samples: &[Sample]) {
    for tenant in 0..TENANTS {
        let rate = |s: &Sample| s.rates.tenants[tenant].iter().sum::<f64>() / 2e6;
        let name = format!("{part}: {}", tenant_name(tenant));
        outcome.series(&name, "Mbit/s", points(samples, rate));
    }
    outcome.series(&format!("{part}: core"), "%", points(samples, used_pct));
}

fn tell_all(outcome: &mut Outcome, samples: &[Sample], demand: &Demand) {
    tell_rates(outcome, "b", samples);
    let least = judge(outcome, samples, demand, &Log::default());
    let what = "the least that a tenant had in a second over min(guarantee, demand)";
    let claim = Claim::new("min_rate_over_min_guarantee_demand", what, "");
    outcome.claim(claim.at_least(KEPT).measured(least));
    let used = samples.iter().map(used_pct).fold(f64::INFINITY, f64::min);
    let what = "how full the core was in any second, with all tenants";
    let claim = Claim::new("core_utilisation_pct", what, "%");
    outcome.claim(claim.at_least(FULL_PCT).measured(used));
}

fn tell_datagrams(outcome: &mut Outcome, samples: &[Sample], demand: &Demand) {
    tell_rates(outcome, "c", samples);
    let parts = demand.judged(samples).into_iter().filter(|short| short.tenant == BESIDE);
    let least = parts.map(|short| short.part()).fold(f64::INFINITY, f64::min);
    let what = "the least that a tenant with TCP had in a second over min(guarantee, demand), \
                beside datagrams at the rate of the link";
    let claim = Claim::new("beside_datagrams_min", what, "");
    outcome.claim(claim.at_least(KEPT).measured(least));
    let what = "how full the core was on average, with datagrams and TCP";
    outcome.claim(Claim::new("datagrams_used_pct", what, "%").measured(mean_used_pct(samples)));
}

/// Draws the use of the core link by one tenant, and the tenants' rates in the other two parts.
pub(crate) fn picture(record: &Record) -> Picture {
    let time = || Axis::linear("time, s");
    let mut alone = Panel::new("one tenant alone", time(), Axis::linear("use, %").to(105.0));
    for (name, series) in record.series_of("a: ") {
        alone = alone.series(name, series);
    }
    let rates = |part: &str, title: &str| {
        let mut panel = Panel::new(title, time(), Axis::linear("Mbit/s, a direction"));
        for (name, series) in record.series_of(part).filter(|(_, series)| series.unit == "Mbit/s") {
            panel = panel.series(name, series);
        }
        panel.published("guarantee", to_f64(GUARANTEE) / 1e6)
    };
    let title = format!("Spare bandwidth of a core of {} Mbit/s", LINK / 1_000_000);
    let datagrams = format!("{} sends datagrams, {} TCP", tenant_name(FIRST), tenant_name(BESIDE));
    Picture::new(&title)
        .panel(alone)
        .panel(rates("b: ", "three tenants with TCP"))
        .panel(rates("c: ", &datagrams))
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Rates, Repairs};
    use super::super::plan::tests::placed;
    use super::*;

    #[test]
    fn each_tenant_has_a_vm_on_each_host_and_some_of_the_core_is_spare() {
        for spare in [false, true] {
            let plan = plan(spare);
            let (places, refused) = placed(&plan);
            assert!(refused.is_empty(), "{refused:?}");
            assert_eq!((places.len(), plan.hosts()), (TENANTS, VMS));
            assert!(places.iter().all(|place| place.values().all(|vms| *vms == 1)));
            assert!(places.iter().all(|place| place.len() == VMS));
            let in_rack = u64::try_from(plan.hosts_of(0).len()).unwrap();
            let sold: u64 = hoses(&plan).iter().map(|hose| hose * in_rack).sum();
            assert!(sold < plan.link * 3 / 4, "{sold}");
        }
    }

    /// A second in which each of the first two tenants had a rate towards each rack.
    fn sample(second: u64, rates: [f64; 2], core: f64) -> Sample {
        let at = |n: u64| WARM_UP + Duration::from_secs(n);
        Sample {
            from: at(second),
            until: at(second + 1),
            at_ms: [1_000 * second, 1_000 * (second + 1)],
            rates: Rates {
                tenants: vec![vec![rates[0]; 2], vec![rates[1]; 2], vec![0.0; 2]],
                core: vec![core; 2],
                repairs: vec![vec![Repairs::default(); 2]; 3],
            },
            sweep: Duration::from_millis(3),
            link: 5e7,
        }
    }

    fn holds(outcome: &Outcome, id: &str) -> (Option<f64>, Option<bool>) {
        let claim = outcome.claims.iter().find(|claim| claim.id == id).unwrap();
        (claim.measured, claim.holds)
    }

    #[test]
    fn one_tenant_must_use_most_of_the_core_only_with_rate_allocation() {
        let samples = |core| [sample(0, [core, 0.0], core), sample(1, [core, 0.0], core)];
        let mut outcome = Outcome::new();
        tell_alone(&mut outcome, [&samples(1.2e7), &samples(4.5e7)]);
        assert_eq!(holds(&outcome, "limited_used_pct"), (Some(24.0), None));
        assert_eq!(holds(&outcome, "spare_used_pct"), (Some(90.0), Some(true)));
        let mut outcome = Outcome::new();
        tell_alone(&mut outcome, [&samples(1.2e7), &samples(3.9e7)]);
        assert_eq!(holds(&outcome, "spare_used_pct"), (Some(78.0), Some(false)));
    }

    #[test]
    fn only_the_tenant_with_tcp_counts_beside_datagrams() {
        let none = vec![0.0; 2];
        let due = vec![none.clone(), vec![1e7; 2], none];
        let demand = Demand { from: vec![Duration::ZERO; TENANTS], due };
        let tell = |rate| {
            let mut outcome = Outcome::new();
            let samples = [sample(0, [3e7, 1.2e7], 5e7), sample(1, [0.0, rate], 5e7)];
            tell_datagrams(&mut outcome, &samples, &demand);
            holds(&outcome, "beside_datagrams_min")
        };
        assert_eq!(tell(1e7), (Some(1.0), Some(true)));
        assert_eq!(tell(5e6), (Some(0.5), Some(false)));
    }
}
