//! How placement and binding scale, from a thousand servers to a hundred thousand.
//!
//! # Problem
//!
//! A controller that searches a whole datacenter for each tenant must still answer quickly when the
//! datacenter is large.
//!
//! # Source
//!
//! QShare §IV-B: the search takes O(V^(5/3)) for V nodes in the worst case. The paper has no
//! measurement.
//!
//! # Approach
//!
//! This experiment measures times on one core of this machine, so it has only a live mode.
//! Datacenters are full fat-trees of k = 16 to 74 with 100 slots a server.
//!
//! * Full reservation: the smallest tree (1,024 servers) is filled until it is fully reserved as in
//!   Table I. Then one binding pass over all of its tenants is timed, with new scores.
//! * Placement: each tree is filled to 90 % of its slots with tenants of 10 to 100 Mbit/s a VM. At
//!   most 17 VMs of a tenant are on one server. Slots are thus the scarce resource. Then a random
//!   tenant leaves and another arrives, a thousand times. Each arrival is timed, and so is a
//!   binding pass.
//! * Memory is the process's peak.
//!
//! The figure compares these values with their limits:
//!
//! * 100,000 VMs fully reserved in 10 s, and a binding pass over them in 50 ms;
//! * 200 placements a second with 27,648 servers;
//! * 4 GiB with 101,306 servers and 10 million VMs;
//! * the exponent of a placement's time in the number of nodes, against the paper's 5/3.

use std::time::Instant;

use anyhow::Context as _;
use penstock_fabric::hose::Hose;
use penstock_fabric::queue_binding::{Binding, Candidate, Mode, Settings};
use penstock_fabric::score::payment;
use penstock_fabric::tenant_placement::{Datacenter, Policy, Request, TenantSlot};
use penstock_sim::Rng;
use penstock_units::BitsPerSecond;

use super::qshare_datacenter::{SETTINGS, fully_reserved, tree};
use crate::evidence::stats::{count, fit, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use penstock_guest::clock;

pub const EXPERIMENT: Experiment = Experiment {
    name: "qshare-scale",
    source: "QShare §IV-B",
    about: "how long placement and binding take, and what memory, up to 100,000 servers",
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

/// Measurements at one size.
struct Size {
    k: u32,
    nodes: f64,
    servers: f64,
    /// Time of each placement, in seconds.
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
    outcome.claim(
        Claim::new("k16_fully_reserved_s", "1,024 servers, 100,000 VMs, fully reserved", "s")
            .below(10.0)
            .measured(full_s),
    );
    outcome.claim(
        Claim::new("k16_binding_pass_ms", "one pass of binding over all of its tenants", "ms")
            .below(50.0)
            .measured(pass(&full, &mut rng)? * 1000.0),
    );
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
        let slot = datacenter.try_place(&request).context("slots are short before 90 %")?;
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

/// Seconds of a binding pass with new scores. Two earlier passes set the queues up.
fn pass(datacenter: &Datacenter, rng: &mut Rng) -> anyhow::Result<f64> {
    let topology = datacenter.topology();
    let mut binding = Binding::new(Settings::new(Mode::PerEgressMap), topology.links())?;
    let mut last = 0.0;
    for _ in 0..3 {
        let tenants: Vec<Candidate<'_>> = datacenter
            .tenants()
            .map(|(tenant, t)| {
                let score = payment(&t.request.hose) / 1_000_000 * rng.below(1_000_000);
                Candidate { tenant, score, links: &t.placement.entry.links, movable: true }
            })
            .collect();
        let begin = clock::now();
        let pass = binding.pass(topology, &tenants);
        last = seconds(begin);
        std::hint::black_box(pass);
    }
    Ok(last)
}

/// Peak memory of this process, in GiB.
pub(super) fn memory_gib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?;
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
    outcome.claim(
        Claim::new("k48_placements_per_s", "27,648 servers at 90 % of their slots", "1/s")
            .at_least(200.0)
            .measured(per_s),
    );
    let memory = sizes.last().map_or(f64::NAN, |size| size.memory_gib);
    outcome.claim(
        Claim::new("memory_100k_gib", "101,306 servers, 10 million slots, 90 % taken", "GiB")
            .at_most(4.0)
            .measured(memory),
    );
    let logs: Vec<(f64, f64)> = sizes.iter().map(|s| (s.nodes.ln(), mean(s).ln())).collect();
    outcome.claim(
        Claim::new("growth_exponent", "placement's time grows as nodes to this power", "")
            .published(5.0 / 3.0)
            .at_most(5.0 / 3.0)
            .measured(fit(&logs).slope),
    );
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
        .panel(panel("(c) memory", "GiB", &[("most ever", "memory_gib")]))
}
