//! Measures how long placement and queue binding take with a thousand to a hundred thousand
//! servers.
//!
//! # Problem
//!
//! To place a tenant, the controller searches the whole datacenter. The search for a placement must
//! also be fast in large datacenters.
//!
//! # Source
//!
//! QShare §IV-B: the search for a placement takes O(V^(5/3)) for V nodes in the worst case. The
//! paper prints no measurement of the search.
//!
//! # Approach
//!
//! This experiment measures times on one core of this machine, so it has only a live mode. The
//! datacenters are full fat-trees with k = 16 to 74 and 100 slots per server.
//!
//! * Full reservation: the experiment fills the smallest tree (1,024 servers) until it is fully
//!   reserved, as in Table I. After the last reservation, the experiment measures how long it takes
//!   to assign queues to all tenants once, with new scores (a *binding pass*).
//! * Placement: the experiment fills each tree to 90 % of its slots, with tenants of 10 to 100
//!   Mbit/s per VM. At most 17 VMs of a tenant are on one server, so servers run out of VM slots
//!   before links run out of bandwidth. In the filled tree, a random tenant leaves and another
//!   tenant arrives, a thousand times. The experiment measures the time of each placement, and of a
//!   binding pass at the end.
//! * Memory: the experiment measures the highest memory use of the process.
//!
//! The measured times and the measured memory use must meet these limits:
//!
//! * Full reservation with 100,000 VMs takes less than 10 s, and a binding pass over these VMs
//!   takes less than 50 ms.
//! * With 27,648 servers, the controller places at least 200 tenants per second.
//! * With 101,306 servers and 10 million VMs, the process uses less than 4 GiB of memory.
//! * The time of a placement grows with the number of nodes with an exponent of at most 5/3, as in
//!   the paper.

use std::time::Instant;

use anyhow::Context as _;
use penstock_fabric::hose::Hose;
use penstock_fabric::queue_binding::{Binding, Mode, Settings};
use penstock_fabric::tenant_placement::{Datacenter, Policy, Request, TenantSlot};
use penstock_sim::Rng;
use penstock_units::BitsPerSecond;

use super::qshare_datacenter::{SETTINGS, candidates, fully_reserved, tree};
use crate::evidence::stats::{count, fit, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use penstock_guest::clock;

pub const EXPERIMENT: Experiment = Experiment {
    name: "qshare-scale",
    source: "QShare §IV-B",
    about: "duration and memory of placement and binding, up to 100,000 servers",
    sim: None,
    live: Some(live),
    picture,
};

const KS: [u32; 4] = [16, 26, 48, 74];
const CAP: u32 = 17;
const LOAD: f64 = 0.9;
const RATES_MBPS: [u64; 4] = [10, 20, 50, 100];
const COMERS: usize = 1000;
const MEAN_VMS: f64 = 49.0;

struct Size {
    k: u32,
    nodes: f64,
    servers: f64,
    /// Time of each placement of a tenant, in seconds.
    placements: Vec<f64>,
    pass_s: f64,
    memory_gib: f64,
}

fn live(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("cpu", std::env::consts::ARCH);
    let mut rng = Rng::new(ctx.seed);
    let begin = clock::now();
    let full = fully_reserved(SETTINGS[0], Some(CAP), &mut rng)?;
    let full_s = seconds(begin);
    outcome.note("tenants_fully_reserved", full.tenants().count());
    let what = "time to fill 1,024 servers with 100,000 VMs";
    let claim = Claim::new("k16_fully_reserved_s", what, "s");
    outcome.claim(claim.below(10.0).measured(full_s));
    let what = "time of one binding pass over all of these tenants";
    let claim = Claim::new("k16_binding_pass_ms", what, "ms");
    outcome.claim(claim.below(50.0).measured(pass(&full, &mut rng)? * 1000.0));
    drop(full);
    let mut sizes = Vec::new();
    for k in KS {
        ctx.progress(count(sizes.len()) / count(KS.len()), format_args!("k = {k}"));
        sizes.push(size(k, &mut rng)?);
    }
    report(&mut outcome, &sizes);
    Ok(outcome)
}

fn seconds(since: Instant) -> f64 {
    (clock::now() - since).as_secs_f64()
}

fn request(rng: &mut Rng) -> anyhow::Result<Request> {
    let vms = (-MEAN_VMS * (1.0 - rng.unit()).ln()).round().max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2,000")]
    let vms = vms as u32;
    let rate = RATES_MBPS[usize::try_from(rng.below(RATES_MBPS.len() as u64))?] * 1_000_000;
    Ok(Request::new(Hose::homogeneous(vms, BitsPerSecond(rate))?).most_per_server(CAP))
}

fn size(k: u32, rng: &mut Rng) -> anyhow::Result<Size> {
    let topology = tree(k, (k / 2, k / 2))?.build()?;
    let (nodes, servers) = (count(topology.nodes()), count(topology.servers()));
    #[expect(clippy::cast_precision_loss, reason = "ten million")]
    let wanted = topology.slots_all() as f64 * LOAD;
    let mut datacenter = Datacenter::new(topology, 0, Policy::default())?;
    let (mut tenants, mut taken): (Vec<TenantSlot>, f64) = (Vec::new(), 0.0);
    while taken < wanted {
        let request = request(rng)?;
        let slot = datacenter
            .try_place(&request)
            .context("a tenant does not fit although fewer than 90 % of the slots are taken")?;
        tenants.push(slot);
        taken += f64::from(request.hose.vms());
    }
    let mut placements = Vec::with_capacity(COMERS);
    while placements.len() < COMERS {
        let leaver = usize::try_from(rng.below(tenants.len() as u64))?;
        datacenter.remove(tenants.swap_remove(leaver));
        let request = request(rng)?;
        let begin = clock::now();
        let placed = datacenter.try_place(&request);
        placements.push(seconds(begin));
        tenants.extend(placed);
    }
    let pass_s = pass(&datacenter, rng)?;
    Ok(Size { k, nodes, servers, placements, pass_s, memory_gib: memory_gib()? })
}

/// Returns the time in seconds to assign queues to all tenants once, with new scores. The function
/// first assigns queues twice without measuring the time, so that tenants already have queues.
fn pass(datacenter: &Datacenter, rng: &mut Rng) -> anyhow::Result<f64> {
    let topology = datacenter.topology();
    let mut binding = Binding::new(Settings::new(Mode::PerEgressMap), topology.links())?;
    let mut last = 0.0;
    for _ in 0..3 {
        let tenants = candidates(datacenter, rng);
        let begin = clock::now();
        let pass = binding.pass(topology, &tenants);
        last = seconds(begin);
        std::hint::black_box(pass);
    }
    Ok(last)
}

/// Returns the peak memory use of this process, in GiB.
pub(super) fn memory_gib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .context("/proc/self/status has no line VmHWM")?;
    Ok(kib.parse::<f64>()? / 1024.0 / 1024.0)
}

fn report(outcome: &mut Outcome, sizes: &[Size]) {
    let mut add = |name: &str, unit: &str, value: &dyn Fn(&Size) -> f64| {
        outcome.series(name, unit, sizes.iter().map(|size| (size.servers, value(size))));
    };
    let mean = |size: &Size| size.placements.iter().sum::<f64>() / count(size.placements.len());
    add("placement_ms", "ms", &|size| mean(size) * 1000.0);
    add("placement_p99_ms", "ms", &|size| percentile(&size.placements, 99.0) * 1000.0);
    add("binding_pass_ms", "ms", &|size| size.pass_s * 1000.0);
    add("memory_gib", "GiB", &|size| size.memory_gib);
    let per_s = sizes.iter().find(|size| size.k == 48).map_or(f64::NAN, |size| 1.0 / mean(size));
    let what = "placements per second, 27,648 servers with 90 % of their slots taken";
    let claim = Claim::new("k48_placements_per_s", what, "1/s");
    outcome.claim(claim.at_least(200.0).measured(per_s));
    let memory = sizes.last().map_or(f64::NAN, |size| size.memory_gib);
    let what = "peak memory, 101,306 servers with 90 % of 10 million slots taken";
    let claim = Claim::new("memory_100k_gib", what, "GiB");
    outcome.claim(claim.at_most(4.0).measured(memory));
    let logs: Vec<(f64, f64)> = sizes.iter().map(|s| (s.nodes.ln(), mean(s).ln())).collect();
    let what = "exponent of a placement's time in the number of nodes";
    let claim = Claim::new("growth_exponent", what, "");
    outcome.claim(claim.published(5.0 / 3.0).at_most(5.0 / 3.0).measured(fit(&logs).slope));
}

fn picture(record: &Record) -> Picture {
    let panel = |title: &str, unit: &str, lines: &[(&str, &str)]| {
        let panel = Panel::new(title, Axis::log("servers"), Axis::log(unit));
        lines.iter().fold(panel, |panel, (label, name)| {
            let of = record.series(name).map(points).into_iter().flatten();
            panel.line(*label, of.collect::<Vec<_>>())
        })
    };
    let placement = [("mean", "placement_ms"), ("p99", "placement_p99_ms")];
    Picture::new("placement and binding, from 1,000 to 100,000 servers")
        .panel(panel("(a) a placement at 90 % load", "ms", &placement))
        .panel(panel("(b) a pass of binding", "ms", &[("all tenants", "binding_pass_ms")]))
        .panel(panel("(c) memory", "GiB", &[("peak", "memory_gib")]))
}
