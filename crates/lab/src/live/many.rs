//! Live experiment for C2QoS Fig. 6 (b): the cost of a frame grows with the number of VMs.
//!
//! # Problem
//!
//! If more VMs send, more rings compete for the CPU caches, so each frame costs more cycles.
//!
//! # Source
//!
//! The experiment replays C2QoS §III-C.
//!
//! # Approach
//!
//! Sixteen VMs are attached to a Penstock switch, without limits, under round-robin. In each case
//! 1, 2, 4, 8 or 16 VMs send 512-byte frames as fast as their rings accept frames. The VMs that
//! receive are the same in all cases. The cost per frame is the cycles of the worker's turns that
//! moved frames, divided by the number of frames. The figure compares the cost of a frame with
//! several VMs to the cost with one VM, which was measured just before. The record contains the
//! median, the lowest and the highest cost of all runs.
//!
//! # Departures
//!
//! Part (a), memory on another NUMA node, cannot be measured on a machine with one node. Part (c),
//! a second I/O core, cannot be measured on two cores, because the generator needs one of the
//! cores. The experiment's record contains the machine's number of NUMA nodes. The traffic
//! generator plays all VMs in one loop, so its cache misses also increase with the number of VMs.
//! Cache misses on the generator's core do not count.

use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::Offer;
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::stats::middle;
use crate::rig::{Rig, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

const VMS: [usize; 4] = [2, 4, 8, 16];
const MOST: usize = 16;
const SINKS: usize = 4;

fn name(vm: usize) -> String {
    format!("vm{}", vm + 1)
}

/// Runs the live experiment of C2QoS Fig. 6 (b).
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let (secs, runs) = (context.live.secs.unwrap_or(0.4), context.live.runs.unwrap_or(5));
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("numa_nodes", numa_nodes());
    outcome.note("not_measured", "memory on another NUMA node; a second I/O core");
    let sender = |vm| Vm::sender(name(vm), &format!("s{}", vm % SINKS + 1), Bound::default());
    let mut vms: Vec<Vm> = (0..MOST).map(sender).collect();
    vms.extend((1..=SINKS).map(|sink| Vm::sink(&format!("s{sink}"))));
    let mut rig = Rig::ours(&bed, "many", &Plan::new("round-robin", vms))?;
    let names: Vec<String> = (0..MOST).map(name).collect();
    let cost = |rig: &mut Rig, vms: usize| {
        let offer = Offer { size: 512.into(), flows: 1, rate: Rate::Max };
        let offers: Vec<_> =
            names[..vms].iter().map(|name| (name.clone(), offer.clone())).collect();
        rig.awake(|rig| Ok(rig.capacity(&bed, &offers, secs)?.cycles))
    };
    let mut factors = vec![Vec::new(); VMS.len()];
    let mut alone = Vec::new();
    for run in 0..runs {
        for (nth, vms) in VMS.into_iter().enumerate() {
            let done = f64::from(run) / f64::from(runs);
            context.progress(done, format_args!("run {}, {vms} VMs", run + 1));
            let one = cost(&mut rig, 1)?;
            factors[nth].push(cost(&mut rig, vms)? / one);
            alone.push(one);
        }
    }
    // A paused daemon cannot exit.
    rig.switch.resume()?;
    outcome.note("cycles_per_frame_1_vm", middle(&alone));
    let least = |all: &Vec<f64>| all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |all: &Vec<f64>| all.iter().copied().fold(0.0, f64::max);
    for (name, of) in [
        ("b median", &(|all: &Vec<f64>| middle(all)) as &dyn Fn(&Vec<f64>) -> f64),
        ("b least", &least),
        ("b most", &most),
    ] {
        let points = VMS
            .iter()
            .zip(&factors)
            .map(|(vms, all)| (u32::try_from(*vms).map_or(f64::NAN, f64::from), of(all)));
        outcome.series(name, "ratio", [(1.0, 1.0)].into_iter().chain(points));
    }
    for (vms, all) in VMS.iter().zip(&factors) {
        let what = format!(
            "cycles a frame with {vms} VMs over those with one; {:.3} to {:.3} in {runs} runs",
            least(all),
            most(all)
        );
        let mut claim = Claim::new(&format!("vms_{vms}_factor"), what, "ratio");
        if *vms == 4 {
            claim = claim.published(1.14);
        }
        outcome.claim(claim.measured(middle(all)));
    }
    Ok(outcome)
}

/// Returns the number of NUMA nodes that the machine reports, at least 1.
fn numa_nodes() -> usize {
    let entries = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten();
    let is_node = |name: &str| {
        name.strip_prefix("node").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    names.filter(|name| name.to_str().is_some_and(is_node)).count().max(1)
}
