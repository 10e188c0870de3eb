//! Live experiment for QShare's Fig. 5: completion times of one tenant's shuffle beside other
//! tenants, under four systems.
//!
//! # Source
//!
//! The experiment replays QShare §VII-B with the links of [`super::guarantees`]. As in the paper,
//! tenant T has ten VMs, five in each of two racks, and the same guarantee on the core link as a
//! tenant of Fig. 4. Every VM of T is a client that requests flows from all other VMs of T. A
//! client requests the next flow when the previous flow is complete. Flow sizes are from the
//! enterprise workload. The *load* is the total guarantee of all tenants except T, in percent of
//! the core link.
//!
//! # Approach
//!
//! Six other tenants have equal parts of the load, and one VM on each host. Each of their VMs
//! fetches endless flows from its counterpart in the other rack, so each other tenant is due its
//! whole guarantee in both directions.
//!
//! - *tcp*: no tenant has a queue, and hosts limit no tenant.
//! - *Static reservation*: no tenant has a queue. Hosts shape the traffic of each VM, in both
//!   directions, to the VM's guarantee.
//! - *Ours*: the controller assigns queues according to the tenants' use of the network, and hosts
//!   limit tenants without a queue.
//! - *ElasticSwitch*: no tenant has a queue. Hosts divide guarantees among pairs of VMs, and
//!   increase the rates of pairs above their guarantees (`rate_allocation = "spare"`).
//!
//! T's clients begin when the warm-up has ended, so no flow of the warm-up counts. A client draws
//! the same flows under each system. Two systems are compared by those flows that are complete
//! under both. A flow's time begins when its connection is opened.
//!
//! # Departures
//!
//! In the simulated figure, the other tenants send exactly their guarantees. Live, they use all
//! bandwidth that they can get. So T needs protection, and the other tenants need their guarantees.
//!
//! ElasticSwitch has the settings of Penstock's hosts
//! (`penstock_fabric::rate_alloc::RateSettings::shared_queue`), because hosts have no others. The
//! three precautions of ElasticSwitch are off: headroom, hold-increase and rate-caution. The
//! paper's ElasticSwitch has the default settings of its publication, and increases rates
//! aggressively. The results therefore include the least of its guarantee that another tenant had
//! under each system. The Linux bridges mark no frames, so only losses reduce rates. Each pair with
//! a guarantee below 1 Mbit/s has the weight of a pair with 1 Mbit/s: all pairs of T, and at a load
//! of 30 % all other pairs, too.
//!
//! # Cost
//!
//! By default, each system runs for 39 s at each load, with the warm-up. A host reads
//! `rate_allocation` at its start, so hosts start twice at each load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::demand::{self, Flow, due};
use super::diary::Diary;
use super::guarantees::{
    Demand, GUARANTEE, INTERVAL, KEPT, LINK, QUEUES, RACKS, hoses, judge, tell_plans,
};
use super::plan::{Control, Plan, Spread};
use super::programs::{Client, Ended, Wants};
use super::samples::{WARM_UP, others, points, start, used_pct, watch};
use super::world::{Vm, World};
use crate::evidence::{Claim, Context, Outcome, percentile};
use crate::qshare::Workload;
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;

/// Loads of the experiment. The guarantee of tenant T adds 9.4 %.
const LOADS: [u64; 2] = [30, 90];
/// Number of tenants beside tenant T. With T, each tenant can have a queue.
const OTHERS: usize = 6;
/// Number of VMs of each tenant, one on each host.
const VMS: usize = 10;
/// Seconds for which each system is measured.
const SECS: f64 = 30.0;
/// Number of connections of a VM of another tenant.
const COPIES: usize = 2;
/// Lowest number of flows by which two systems are compared.
const FLOWS: usize = 30;

struct System {
    name: &'static str,
    /// Mode of the controller, which is `active` to assign queues, or `hold` to change nothing.
    mode: &'static str,
    /// Whether hosts shape the traffic of each VM, in both directions, to the rate that the VM
    /// bought.
    reserves: bool,
    /// Whether hosts limit tenants without a queue, or the pairs of VMs of such tenants.
    holds: bool,
    /// Whether hosts allocate rates to pairs of VMs.
    spare: bool,
}

/// The measured systems, in the order of their measurements. Only under `ours`, tenants have queues
/// of their own: the controller assigns no queues before, and `elasticswitch` has another fabric.
const SYSTEMS: [System; 4] = [
    System { name: "tcp", mode: "hold", reserves: false, holds: false, spare: false },
    System { name: "static", mode: "hold", reserves: true, holds: false, spare: false },
    System { name: "ours", mode: "active", reserves: false, holds: true, spare: false },
    System { name: "elasticswitch", mode: "hold", reserves: false, holds: true, spare: true },
];

/// The systems with which `ours` is compared: the name, the name in statements, and the largest
/// accepted ratio of the mean times of a flow. `None` if the ratio is only shown.
const PEERS: [(&str, &str, Option<f64>); 3] = [
    ("tcp", "TCP in one queue", Some(1.0)),
    ("static", "static reservation", Some(1.0)),
    ("elasticswitch", "ElasticSwitch", None),
];

/// Results of a system at a load.
#[derive(Debug)]
struct Had {
    ended: Vec<Ended>,
    /// Lowest part of its guarantee that a tenant other than T had in a second.
    others: f64,
}

/// Runs the live experiment for QShare's Fig. 5.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("guarantee_mbps", to_f64(GUARANTEE) / 1e6);
    let (mut over, mut kept) = (PEERS.map(|_| Vec::new()), Vec::new());
    for (nth, load) in (0_u32..).zip(LOADS) {
        let had = measure_all(context, &bed, &mut outcome, (nth, load))?;
        let [tcp, fixed, ours, elastic] = &had[..] else { anyhow::bail!("a system did not run") };
        kept.push(ours.others);
        for ((ratios, (name, ..)), peer) in over.iter_mut().zip(PEERS).zip([tcp, fixed, elastic]) {
            ratios.push(compare(&mut outcome, load, name, ours, peer)?);
        }
    }
    tell_ratios(&mut outcome, &over);
    let what = "the least of its guarantee that another tenant had in a second, ours";
    let claim = Claim::new("others_rate_over_guarantee", what, "").at_least(KEPT);
    outcome.claim(claim.measured(kept.into_iter().fold(f64::INFINITY, f64::min)));
    Ok(outcome)
}

/// Returns the plan of the network, in which the six other tenants have guarantees of `load`
/// percent of the core link. The first tenant is T. If `spare` is true, the hosts allocate rates to
/// pairs of VMs.
fn plan(load: u64, spare: bool) -> Plan {
    let in_rack = u64::try_from(VMS / 2).unwrap_or(1);
    let other = LINK / 100 * load / u64::try_from(OTHERS).unwrap_or(1) / in_rack;
    let mut tenants = vec![(VMS, GUARANTEE / in_rack)];
    tenants.extend(std::iter::repeat_n((VMS, other), OTHERS));
    Plan {
        racks: RACKS.to_vec(),
        link: LINK,
        queues: QUEUES,
        interval: INTERVAL,
        tenants,
        spread: Spread::OnePerHost,
        control: Control::One,
        hold: true,
        page: false,
        spare,
    }
}

/// Measures all systems at the load number `nth`. Returns their results in the order of
/// [`SYSTEMS`].
fn measure_all(
    context: &Context<'_>,
    bed: &Bed,
    outcome: &mut Outcome,
    (nth, load): (u32, u64),
) -> anyhow::Result<Vec<Had>> {
    let mut had: Vec<Had> = Vec::new();
    for spare in [false, true] {
        say(context, (nth, load), had.len(), "starting hosts");
        let name = if spare { format!("fig5-{load}-pairs") } else { format!("fig5-{load}") };
        let mut world = World::start(bed, &name, &plan(load, spare))?;
        for system in SYSTEMS.iter().filter(|system| system.spare == spare) {
            say(context, (nth, load), had.len(), system.name);
            had.push(measure(context, bed, &mut world, outcome, (load, system))?);
        }
    }
    Ok(had)
}

/// Reports progress at the load number `nth`, at which `measured` systems have been measured.
fn say(context: &Context<'_>, (nth, load): (u32, u64), measured: usize, what: &str) {
    let measured = to_f64(u64::try_from(measured).unwrap_or(0));
    context.progress(f64::from(nth) / 2.0 + measured / 8.0, format!("load {load} %, {what}"));
}

/// Measures a system at a load.
fn measure(
    context: &Context<'_>,
    bed: &Bed,
    world: &mut World,
    outcome: &mut Outcome,
    (load, system): (u64, &System),
) -> anyhow::Result<Had> {
    let System { name, mode, reserves, holds, .. } = *system;
    world.mode(mode)?;
    world.reserve(reserves)?;
    world.hold(holds)?;
    if mode == "hold" {
        let bound = world.ask(&["status"])?["with_queues"].clone();
        anyhow::ensure!(bound == 0, "{name}: {bound} tenants have queues, and none may have one");
    }
    let flows = counterparts(world);
    let mut clients = shuffle(world)?;
    let from = vec![Duration::ZERO; 1 + OTHERS];
    for client in demand::clients(&world.vms, &flows, &from) {
        clients.extend(std::iter::repeat_n(client, COPIES));
    }
    let due = due(&world.vms, &flows, &hoses(world.plan()), RACKS.len());
    let diary = Diary::start(world.operator())?;
    let mut programs = start(bed, world, clients, context.seed)?;
    let secs = context.live.secs.unwrap_or(SECS);
    let samples = watch(world, &mut programs, secs)?;
    let ended = counted(programs.take_ended());
    drop(programs);
    let log = diary.close()?;
    let run = format!("load {load} %, {name}");
    let mut found = Outcome::new();
    let others = judge(&mut found, &samples, &Demand { from, due }, &log);
    tell_plans(&mut found, "plans", &samples, &log);
    outcome.note(&run, serde_json::Value::Object(found.platform));
    // The picture shows the highest load.
    let prefix = if load == LOADS[LOADS.len() - 1] { String::new() } else { format!("{load} %: ") };
    outcome.series(&format!("{prefix}core: {name}"), "%", points(&samples, used_pct));
    tell(outcome, (load, name), &prefix, &ended)?;
    let id = format!("others_rate_over_guarantee_{name}_{load}");
    let what = format!("{run}: the least of its guarantee that another tenant had in a second");
    outcome.claim(Claim::new(&id, what, "").measured(others));
    Ok(Had { ended, others })
}

/// Returns a client for each VM of tenant T, which begins when the warm-up has ended.
fn shuffle(world: &World) -> anyhow::Result<Vec<Client>> {
    let sizes = Workload::Enterprise.sizes()?;
    let all = world.vms.iter().enumerate().filter(|(_, vm)| vm.tenant == 0);
    let client = |(vm, of): (usize, &Vm)| {
        let servers = others(&world.vms, vm, |other| other.host != of.host);
        Client { vm, servers, wants: Wants::Rounds(Arc::clone(&sizes)), from: WARM_UP }
    };
    Ok(all.map(client).collect())
}

/// Returns a flow to each VM of the other tenants. The flow comes from the tenant's VM with the
/// same place in the other rack.
fn counterparts(world: &World) -> Vec<Flow> {
    let mut flows = Vec::new();
    for tenant in 1..=OTHERS {
        let of = |rack: usize| -> Vec<usize> {
            let all = world.vms.iter().enumerate();
            all.filter(|(_, vm)| (vm.tenant, vm.rack) == (tenant, rack)).map(|(vm, _)| vm).collect()
        };
        for (one, two) in of(0).into_iter().zip(of(1)) {
            flows.push(Flow { server: one, client: two });
            flows.push(Flow { server: two, client: one });
        }
    }
    flows
}

/// Returns the flows of `ended` that did not begin in the warm-up.
fn counted(mut ended: Vec<Ended>) -> Vec<Ended> {
    ended.retain(|flow| flow.began >= WARM_UP);
    ended
}

/// Adds the completion times of flows to `outcome`. Returns an error if no flow ended.
fn tell(
    outcome: &mut Outcome,
    (load, name): (u64, &str),
    prefix: &str,
    ended: &[Ended],
) -> anyhow::Result<()> {
    anyhow::ensure!(!ended.is_empty(), "load {load} %, {name}: no flow ended");
    let millis = |flow: &Ended| 1e3 * flow.took.as_secs_f64();
    let mut times: Vec<f64> = ended.iter().map(millis).collect();
    times.sort_by(f64::total_cmp);
    let count = to_f64(u64::try_from(times.len())?);
    let mean = times.iter().sum::<f64>() / count;
    let cdf = (1..=100_u32).map(|pct| (percentile(&times, f64::from(pct)), f64::from(pct)));
    let cdf = cdf.collect::<Vec<_>>();
    outcome.series(&format!("{prefix}time of flows: {name}"), "%", cdf);
    let id = format!("mean_fct_{name}_{load}_ms");
    let what = format!("load {load} %: mean time of all flows, {name}");
    outcome.claim(Claim::new(&id, what, "ms").measured(mean));
    let bytes: u64 = ended.iter().map(|flow| flow.bytes).sum();
    outcome.note(&format!("flows_{name}_{load}"), ended.len());
    outcome.note(&format!("flow_bytes_{name}_{load}"), bytes);
    Ok(())
}

/// Returns the times in seconds of the flows that are complete under both systems, as pairs.
fn common(ours: &[Ended], other: &[Ended]) -> Vec<(f64, f64)> {
    let theirs: BTreeMap<_, _> = other.iter().map(|flow| (flow.number, flow.took)).collect();
    let both = |flow: &Ended| {
        let their = theirs.get(&flow.number)?;
        Some((flow.took.as_secs_f64(), their.as_secs_f64()))
    };
    ours.iter().filter_map(both).collect()
}

/// Adds the mean time of a flow under `ours` over the mean time under the system `name`, for the
/// flows that are complete under both. Returns an error if too few flows are complete under both.
fn compare(
    outcome: &mut Outcome,
    load: u64,
    name: &str,
    ours: &Had,
    other: &Had,
) -> anyhow::Result<f64> {
    let both = common(&ours.ended, &other.ended);
    anyhow::ensure!(
        both.len() >= FLOWS,
        "load {load} %: only {} flows are complete under ours and under {name}; measure longer \
         (--secs)",
        both.len()
    );
    let (mine, theirs) = both.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    let ratio = mine / theirs;
    outcome.note(&format!("flows_in_both_{name}_{load}"), both.len());
    let id = format!("mean_fct_ours_over_{name}_{load}");
    let what = format!("load {load} %: mean time of a flow, ours over {name}, the same flows");
    outcome.claim(Claim::new(&id, what, "").measured(ratio));
    Ok(ratio)
}

/// Adds the ratio at the worst load for each of [`PEERS`]. `over` has the ratios of each peer, by
/// load.
fn tell_ratios(outcome: &mut Outcome, over: &[Vec<f64>; PEERS.len()]) {
    for ((name, what, most), ratios) in PEERS.into_iter().zip(over) {
        let what = format!("mean time of a flow, ours over {what}, at the worst load");
        let claim = Claim::new(&format!("mean_fct_ours_over_{name}"), what, "");
        let claim = match most {
            Some(most) => claim.at_most(most),
            None => claim,
        };
        outcome.claim(claim.measured(ratios.iter().copied().fold(f64::NAN, f64::max)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::placed;
    use super::*;

    fn flow(number: (usize, u64), began: Duration, took: u64) -> Ended {
        Ended { number, bytes: 1, began, took: Duration::from_secs(took) }
    }

    #[test]
    fn flows_of_the_warm_up_do_not_count() {
        let early = WARM_UP - Duration::from_nanos(1);
        let all = [Duration::ZERO, early, WARM_UP].map(|began| flow((0, 0), began, 30));
        let flows = counted(all.to_vec());
        assert_eq!(flows.iter().map(|flow| flow.began).collect::<Vec<_>>(), [WARM_UP]);
    }

    #[test]
    fn two_systems_are_compared_by_the_same_flows() {
        let ended = |all: &[(usize, u64, u64)]| {
            let one = all.iter().map(|(client, nth, took)| flow((*client, *nth), WARM_UP, *took));
            one.collect::<Vec<_>>()
        };
        let ours = ended(&[(0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 50)]);
        let other = ended(&[(1, 0, 6), (0, 0, 2), (2, 7, 9)]);
        assert_eq!(common(&ours, &other), [(1.0, 2.0), (3.0, 6.0)]);
        let had = |ended: Vec<Ended>| Had { ended, others: 1.0 };
        let mut outcome = Outcome::new();
        let few = compare(&mut outcome, 30, "tcp", &had(ours), &had(other));
        assert!(few.unwrap_err().to_string().contains("only 2 flows"));
        let many = |took: u64| (0..40).map(|nth| flow((0, nth), WARM_UP, took)).collect::<Vec<_>>();
        let ratio = compare(&mut outcome, 30, "tcp", &had(many(1)), &had(many(4))).unwrap();
        assert!((ratio - 0.25).abs() < 1e-9);
    }

    #[test]
    fn the_worst_load_counts_and_elasticswitch_is_only_shown() {
        let mut outcome = Outcome::new();
        tell_ratios(&mut outcome, &[vec![0.5, 1.2], vec![0.9, 0.8], vec![1.5, 0.4]]);
        let claims = outcome.claims.iter();
        let found = claims.map(|claim| (claim.id.as_str(), claim.measured, claim.holds));
        let wanted = [
            ("mean_fct_ours_over_tcp", Some(1.2), Some(false)),
            ("mean_fct_ours_over_static", Some(0.9), Some(true)),
            ("mean_fct_ours_over_elasticswitch", Some(1.5), None),
        ];
        assert_eq!(found.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn only_ours_has_queues_and_the_hosts_of_elasticswitch_start_last() {
        fn names(fits: fn(&System) -> bool) -> Vec<&'static str> {
            SYSTEMS.iter().filter(|system| fits(system)).map(|system| system.name).collect()
        }
        assert_eq!(names(|system| system.mode != "hold"), ["ours"]);
        assert_eq!(names(|system| system.spare), ["elasticswitch"]);
        // `measure_all` returns the results in the order of the systems.
        assert!(SYSTEMS.is_sorted_by_key(|system| system.spare));
        assert!(LOADS.iter().all(|load| plan(*load, true).hold && plan(*load, true).spare));
    }

    #[test]
    fn the_tenants_of_each_load_have_one_vm_on_each_host() {
        for load in LOADS {
            let plan = plan(load, false);
            let (places, refused) = placed(&plan);
            assert!(refused.is_empty(), "load {load}: {refused:?}");
            assert_eq!(places.len(), 1 + OTHERS);
            assert!(places.iter().all(|place| place.len() == plan.hosts()));
        }
    }
}
