//! Live experiment for QShare's Fig. 5: flow completion times under three systems.
//!
//! # Source
//!
//! The experiment replays QShare §VII-B, with the network of [`super::guarantees`].
//!
//! # Approach
//!
//! Every VM fetches flows from random VMs of its tenant on other hosts. Flow sizes are drawn from
//! the table of the enterprise workload, as in the paper. Each flow opens a new connection. Clients
//! pause between flows as in the paper, and all three systems run with the same random seed.
//!
//! - *tcp*: the controller assigns no queues, and hosts limit no tenant.
//! - *Static reservation*: the controller assigns no queues. Hosts shape the traffic of each VM, in
//!   both directions, to the VM's guarantee.
//! - *Ours*: the controller assigns queues according to the tenants' use of the network, and hosts
//!   limit tenants without a queue.
//!
//! A flow's time begins when its connection is opened. A flow counts if it begins after the warm-up
//! and is complete at the end of the run.

use std::sync::Arc;
use std::time::Duration;

use super::guarantees::plan;
use super::programs::{Client, Ended, Wants};
use super::samples::{WARM_UP, others, points, start, used_pct, watch};
use super::world::World;
use crate::evidence::{Claim, Context, Outcome, percentile};
use crate::qshare::{Workload, tenant_sizes};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;

/// Seconds for which each of the three systems is measured.
const SECS: f64 = 20.0;
/// Number of TCP clients in each VM.
const CLIENTS: usize = 4;
/// Longest pause of a client between two flows.
const PAUSE: Duration = Duration::from_secs(1);

struct System {
    name: &'static str,
    /// Mode of the controller, which is `active` to assign queues, or `hold` to change nothing.
    mode: &'static str,
    /// Whether hosts shape the traffic of each VM, in both directions, to the rate that the VM
    /// bought.
    reserves: bool,
    /// Whether hosts limit tenants without a queue.
    holds: bool,
}

/// The three measured systems, in the order of their measurements. In the systems `tcp` and
/// `static`, no tenant has its own queue.
const SYSTEMS: [System; 3] = [
    System { name: "tcp", mode: "hold", reserves: false, holds: false },
    System { name: "static", mode: "hold", reserves: true, holds: false },
    System { name: "ours", mode: "active", reserves: false, holds: true },
];

/// Runs the live experiment for QShare's Fig. 5.
///
/// # Errors
///
/// Returns an error if a program of the experiment cannot be started, or if it fails later.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    context.progress(0.0, "starting hosts and their VMs");
    let mut world = World::start(&bed, "fig5", &plan(&tenant_sizes(context.seed)))?;
    let mut means = Vec::new();
    for (nth, System { name, mode, reserves, holds }) in (1_u32..).zip(SYSTEMS) {
        context.progress(f64::from(nth) / 4.0, name);
        world.mode(mode)?;
        world.reserve(reserves)?;
        world.hold(holds)?;
        let mut programs = start(&bed, &world, clients(&world)?, context.seed)?;
        let samples = watch(&mut world, &mut programs, secs)?;
        outcome.series(&format!("core: {name}"), "%", points(&samples, used_pct));
        means.push(tell(&mut outcome, name, &counted(programs.take_ended()))?);
    }
    let [tcp, fixed, ours] = means[..] else { anyhow::bail!("a system did not run") };
    let ratio = |id: &str, what: &str, value: f64| Claim::new(id, what, "").measured(value);
    let what = "mean time of a flow, ours over static reservation";
    outcome.claim(ratio("mean_fct_ours_over_static", what, ours / fixed).at_most(1.0));
    let what = "mean time of a flow, ours over TCP in one queue";
    outcome.claim(ratio("mean_fct_ours_over_tcp", what, ours / tcp));
    Ok(outcome)
}

fn clients(world: &World) -> anyhow::Result<Vec<Client>> {
    let sizes = Workload::Enterprise.sizes()?;
    let mut clients = Vec::new();
    for (vm, of) in world.vms.iter().enumerate() {
        let servers = others(world, vm, |other| other.host != of.host);
        let wants = Wants::Flows(Arc::clone(&sizes), PAUSE);
        let client = Client { vm, servers, wants, from: Duration::ZERO };
        clients.extend(std::iter::repeat_n(client, CLIENTS));
    }
    Ok(clients)
}

/// Returns the flows of `ended` that did not begin in the warm-up.
fn counted(mut ended: Vec<Ended>) -> Vec<Ended> {
    ended.retain(|flow| flow.began >= WARM_UP);
    ended
}

/// Adds the completion times of flows to `outcome`, and returns their mean in milliseconds. Returns
/// an error if no flow ended.
fn tell(outcome: &mut Outcome, name: &str, ended: &[Ended]) -> anyhow::Result<f64> {
    anyhow::ensure!(!ended.is_empty(), "{name}: no flow ended");
    let millis = |flow: &Ended| 1e3 * flow.took.as_secs_f64();
    let mut times: Vec<f64> = ended.iter().map(millis).collect();
    times.sort_by(f64::total_cmp);
    let count = to_f64(u64::try_from(times.len())?);
    let mean = times.iter().sum::<f64>() / count;
    let cdf = (1..=100_u32).map(|pct| (percentile(&times, f64::from(pct)), f64::from(pct)));
    outcome.series(&format!("time of flows: {name}"), "%", cdf.collect::<Vec<_>>());
    let id = format!("mean_fct_{name}_ms");
    outcome.claim(Claim::new(&id, format!("mean time of a flow, {name}"), "ms").measured(mean));
    let bytes: u64 = ended.iter().map(|flow| flow.bytes).sum();
    outcome.note(&format!("flows_{name}"), ended.len());
    outcome.note(&format!("flow_bytes_{name}"), bytes);
    Ok(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_the_warm_up_do_not_count() {
        let flow = |began: Duration| Ended { bytes: 1, began, took: Duration::from_secs(30) };
        let early = WARM_UP - Duration::from_nanos(1);
        let flows = counted(vec![flow(Duration::ZERO), flow(early), flow(WARM_UP)]);
        assert_eq!(flows.iter().map(|flow| flow.began).collect::<Vec<_>>(), [WARM_UP]);
    }
}
