//! `penstock controller what-if` simulates a fabric with several combinations of settings, always
//! with the same tenants and usage. The settings of a simulation are numbers of queues, maps,
//! weights of placement, and over-subscription.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_controller::files::{FabricFile, TenantWish};
use penstock_fabric::dscp::Palette;
use penstock_fabric::gain::{self, Flow};
use penstock_fabric::queue_binding::{Binding, Candidate, Mode, Settings};
use penstock_fabric::score::{Smoothed, payment};
use penstock_fabric::tenant_placement::{Policy, QueueWeight, Tenant, TenantSlot};
use penstock_fabric::topology::Topology;
use penstock_units::BitsPerSecond;
use serde_json::{Value, json};

use super::usage::{Usage, made_up, recorded};
use super::{Placed, load, place};
use crate::cli::{MapMode, WhatIfArgs};
use crate::table::Table;
use crate::verbs::{print, print_json};

/// One combination of settings that the command simulates.
#[derive(Clone, Copy, Debug)]
struct Variant {
    queues: u8,
    mode: MapMode,
    queue_weight: Option<f64>,
    oversubscription: Option<f64>,
}

/// Results of one simulated combination of settings. Fields that contain shares are percentages.
/// Each mean is over all intervals of the simulation.
#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    placed: usize,
    refused: usize,
    with_queue: f64,
    mean_gain: f64,
    median_use: f64,
    changes: f64,
    worst_error_ppm: u32,
}

/// Runs `penstock controller what-if`.
///
/// # Errors
/// Returns an error if the record is wrong, a setting is invalid, or an output cannot be written.
pub(super) fn run(args: &WhatIfArgs, json: bool) -> Result<ExitCode> {
    let Some((fabric, tenants)) = load(&args.files) else { return Ok(ExitCode::FAILURE) };
    let usage = match &args.usage {
        Some(file) => {
            let text = fs::read_to_string(file);
            let text = text.with_context(|| format!("reading {}", file.display()))?;
            let names: Vec<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            recorded(&text, &file.display().to_string(), &names)?
        }
        None => made_up(tenants.len(), args.intervals, args.inactive, args.seed),
    };
    let mut rows = Vec::new();
    for variant in variants(args, &fabric) {
        rows.push((variant, try_out(&fabric, &tenants, &usage, variant)?));
    }
    if json {
        print_json(&rows.iter().map(|(v, f)| as_json(*v, *f)).collect::<Vec<_>>())?;
    } else {
        print(&table(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns all combinations of the values in the lists of settings. A setting without a list on the
/// command line has the value in the fabric's file.
fn variants(args: &WhatIfArgs, fabric: &FabricFile) -> Vec<Variant> {
    fn or<T: Copy>(given: &[T], else_: T) -> Vec<T> {
        if given.is_empty() { vec![else_] } else { given.to_vec() }
    }
    let some = |list: &[f64]| list.iter().map(|v| Some(*v)).collect::<Vec<_>>();
    let queues = u8::try_from(fabric.policy.queues).unwrap_or(u8::MAX);
    let mut all = Vec::new();
    for oversubscription in or(&some(&args.oversubscription), None) {
        for queue_weight in or(&some(&args.queue_weight), None) {
            for mode in or(&args.map, MapMode::Static) {
                for queues in or(&args.queues, queues) {
                    all.push(Variant { queues, mode, queue_weight, oversubscription });
                }
            }
        }
    }
    all
}

/// Returns the topology. If `ratio` is set, the highest tier gets the rate for this
/// over-subscription.
fn topology(fabric: &FabricFile, ratio: Option<f64>) -> Result<Topology> {
    let Some(ratio) = ratio else { return Ok(fabric.topology.clone()) };
    let mut regular = fabric.regular.clone().context(
        "--oversubscription needs a regular topology; write [servers] and [[tier]] in its file",
    )?;
    let tiers = regular.tiers.len();
    anyhow::ensure!(tiers > 1, "--oversubscription needs two tiers or more; the topology has one");
    let below = regular.tiers[tiers - 2];
    let highest = &mut regular.tiers[tiers - 1];
    #[expect(clippy::cast_precision_loss, reason = "a rate is far below 2^52 bit/s")]
    let down = below.rate.0 as f64 * f64::from(below.fan_out);
    let rate = down / (ratio * f64::from(highest.uplinks));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
    let rate = rate as u64;
    highest.rate = BitsPerSecond(rate);
    Ok(regular.build()?)
}

fn try_out(
    fabric: &FabricFile,
    tenants: &[TenantWish],
    usage: &Usage,
    variant: Variant,
) -> Result<Findings> {
    let mut policy = Policy { queues: variant.queues.into(), ..fabric.policy };
    if let Some(weight) = variant.queue_weight {
        policy.queue_weight = QueueWeight::Fixed(weight);
    }
    let placed = place(topology(fabric, variant.oversubscription)?, fabric, policy, tenants)?;
    // The binding must not use reserved queues except the shared queue.
    let queues = u8::try_from(policy.dedicated() + 1).unwrap_or(u8::MAX);
    let palette = Palette::without(&fabric.reserved_code_points)?;
    let other_permille = fabric.other_permille();
    let settings =
        Settings { queues, palette, other_permille, ..Settings::new(variant.mode.into()) };
    let topology = placed.datacenter.topology();
    let left = topology.clone().reduced(1_000 - other_permille.min(1_000));
    let binding = Binding::new(settings, topology.links())?;
    Ok(replay(&placed, &left, binding, usage))
}

/// A placed tenant that uses links, and its position in the file.
struct Player<'a> {
    at: usize,
    slot: TenantSlot,
    tenant: &'a Tenant,
    score: Smoothed,
}

/// Replays the usage interval by interval. `left` is the topology with the rates that other traffic
/// leaves to tenants.
fn replay(placed: &Placed, left: &Topology, mut binding: Binding, usage: &Usage) -> Findings {
    let topology = placed.datacenter.topology();
    let slots =
        placed.outcomes.iter().enumerate().filter_map(|(at, o)| Some((at, *o.as_ref().ok()?)));
    let players = slots.filter_map(|(at, slot)| {
        let tenant = placed.datacenter.tenant(slot).filter(|t| t.placement.has_network())?;
        Some(Player { at, slot, tenant, score: Smoothed::default() })
    });
    let mut players: Vec<Player<'_>> = players.collect();
    let refused = placed.outcomes.iter().filter(|outcome| outcome.is_err()).count();
    let mut found =
        Findings { placed: placed.outcomes.len() - refused, refused, ..Findings::default() };
    let intervals = number(usage.len());
    for used in usage {
        let candidates: Vec<Candidate<'_>> = players
            .iter_mut()
            .map(|player| {
                let paid = payment(&player.tenant.request.hose);
                let score = player.score.follow(part_of(paid, used[player.at]));
                let links = &player.tenant.placement.entry.links;
                Candidate { tenant: player.slot, score, links, movable: true, shares: false }
            })
            .collect();
        let pass = binding.pass(topology, &candidates);
        let flows: Vec<Flow<'_>> = players
            .iter()
            .map(|player| Flow {
                links: &player.tenant.placement.entry.links,
                part: Some(used[player.at]).filter(|part| *part < 1.0),
                has_queue: binding.of(player.slot).is_some(),
            })
            .collect();
        let gains = gain::printed(left, &flows);
        let eager = flows.iter().zip(&gains).filter(|(flow, _)| flow.part.is_none());
        let eager: Vec<f64> = eager.map(|(_, gain)| *gain).collect();
        let mut link_use = gain::link_use(topology, &flows, &gains);
        link_use.retain(|used| *used > 0.0);
        link_use.sort_by(f64::total_cmp);
        let bound = flows.iter().filter(|flow| flow.has_queue).count();
        found.with_queue += 100.0 * number(bound) / number(flows.len().max(1)) / intervals;
        let mean = eager.iter().sum::<f64>() / number(eager.len().max(1));
        found.mean_gain += if eager.is_empty() { 1.0 } else { mean } / intervals;
        found.median_use +=
            100.0 * link_use.get(link_use.len() / 2).copied().unwrap_or(0.0) / intervals;
        found.changes += number(pass.promoted.len() + pass.demoted.len()) / intervals;
        found.worst_error_ppm = found.worst_error_ppm.max(binding.worst_error_ppm());
    }
    found
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a part of it"
)]
fn part_of(paid: u64, part: f64) -> u64 {
    (paid as f64 * part.clamp(0.0, 1.0)) as u64
}

#[expect(clippy::cast_precision_loss, reason = "a count")]
fn number(n: usize) -> f64 {
    n as f64
}

impl From<MapMode> for Mode {
    fn from(mode: MapMode) -> Self {
        match mode {
            MapMode::Static => Self::StaticMap,
            MapMode::PerPort => Self::PerPortMap,
            MapMode::PerEgress => Self::PerEgressMap,
        }
    }
}

fn table(rows: &[(Variant, Findings)]) -> String {
    let mut table = Table::new(
        ">QUEUES|MAP|>QUEUE WEIGHT|>OVERSUBSCRIPTION|>PLACED|>REFUSED|>WITH QUEUE|>GAIN|>LINK USE|\
         >CHANGES|>WEIGHT ERROR",
    );
    let as_in_file = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    for (variant, found) in rows {
        table.row([
            variant.queues.to_string(),
            variant.mode.name().to_owned(),
            as_in_file(variant.queue_weight),
            as_in_file(variant.oversubscription),
            found.placed.to_string(),
            found.refused.to_string(),
            format!("{:.1} %", found.with_queue),
            format!("{:.2}", found.mean_gain),
            format!("{:.1} %", found.median_use),
            format!("{:.1}", found.changes),
            format!("{:.2} %", f64::from(found.worst_error_ppm) / 10_000.0),
        ]);
    }
    table.render()
}

fn as_json(variant: Variant, found: Findings) -> Value {
    json!({
        "queues": variant.queues,
        "map": variant.mode.name(),
        "queue_weight": variant.queue_weight,
        "oversubscription": variant.oversubscription,
        "placed": found.placed,
        "refused": found.refused,
        "tenants_with_queue_pct": found.with_queue,
        "mean_gain": found.mean_gain,
        "median_link_use_pct": found.median_use,
        "changes_per_interval": found.changes,
        "worst_weight_error_ppm": found.worst_error_ppm,
    })
}
