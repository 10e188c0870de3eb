//! The story that `make fabric-demo` tells: tenants share a core link, one bursts, one attacks.
//!
//! **Problem.** Ten tenants were sold 4.7 of the core's 50 Mbit/s each. Eight of them use all they
//! can get. Then the ninth, idle so far, *bursts*: eight times as many connections as the others.
//! Then the tenth *attacks*: its VMs send datagrams at 20 Mbit/s each, to nobody who
//! wants them. **What is compared.** What each of the eight had in every second over its guarantee,
//! by phase, a second after its beginning and on. **Cost.** About a minute.

use std::time::Duration;

use super::guarantees::{GUARANTEE, LINK, plan};
use super::programs::{Client, Wants};
use super::samples::{Sample, WARM_UP, others, points, start, used_pct, watch};
use super::world::{HOSTS, Plan, World, tenant_name};
use crate::bench::bed::Bed;
use crate::figures::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::live::fleet::to_f64;
use crate::live::rig::platform;

/// Seconds of a phase; a new tenant is scored after the interval in which it began.
const SECS: f64 = 10.0;
/// Connections of a VM, and of one that bursts.
const CONNECTIONS: usize = 4;
const BURST: usize = 32;
/// What an attacker's VM sends, bits a second.
const ATTACK: f64 = 20e6;
/// Who does.
const BURSTS: usize = 8;
const ATTACKS: usize = 9;
/// Ids, and what is going on.
const PHASES: [(&str, &str); 3] = [
    ("calm", "eight tenants use all they can get"),
    ("burst", "the ninth bursts"),
    ("attack", "the tenth attacks"),
];
/// Before a change counts.
const SETTLES: Duration = Duration::from_secs(1);

/// Runs it.
///
/// # Errors
/// When something cannot be started or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    eprintln!("starting two racks: ten hosts, their switches, a controller");
    let plan = Plan { page: true, ..plan(&[8; 10]) };
    let mut world = World::start(&bed, "demo", &plan)?;
    if let Some(page) = &world.page {
        eprintln!("the controller's page, for as long as this runs: {page}");
    }
    let begins: Vec<f64> = (0..3).map(|phase| f64::from(phase) * secs).collect();
    let clients = clients(&world, &begins);
    let mut programs = start(&bed, &world, clients, context.seed)?;
    eprintln!("warming up, and three phases of {secs} s: calm, a burst, an attack");
    let samples = watch(&mut world, &mut programs, 3.0 * secs)?;
    outcome.note("phases_begin_s", begins.clone());
    tell(&mut outcome, &samples, &begins);
    Ok(outcome)
}

fn clients(world: &World, begins: &[f64]) -> Vec<Client> {
    let mut clients = Vec::new();
    for (vm, of) in world.vms.iter().enumerate() {
        let servers = others(world, vm, |other| other.host / HOSTS != of.host / HOSTS);
        let (wants, from, copies) = match of.tenant {
            BURSTS => (Wants::All, Some(begins[1]), BURST),
            ATTACKS => (Wants::Datagrams(ATTACK), Some(begins[2]), 1),
            _ => (Wants::All, None, CONNECTIONS),
        };
        let from = from.map_or(Duration::ZERO, |at| WARM_UP + Duration::from_secs_f64(at));
        clients.extend(std::iter::repeat_n(Client { vm, servers, wants, from }, copies));
    }
    clients
}

fn tell(outcome: &mut Outcome, samples: &[Sample], begins: &[f64]) {
    let tenants = samples.first().map_or(0, |sample| sample.rates.tenants.len());
    for tenant in 0..tenants {
        let rate = |s: &Sample| s.rates.tenants[tenant].iter().sum::<f64>() / 2e6;
        outcome.series(&tenant_name(tenant), "Mbit/s", points(samples, rate));
    }
    outcome.series("core", "%", points(samples, used_pct));
    for (phase, (id, what)) in PHASES.into_iter().enumerate() {
        let at = |secs: f64| WARM_UP + Duration::from_secs_f64(secs);
        let until = begins.get(phase + 1).map_or(Duration::MAX, |secs| at(*secs));
        let from = at(begins[phase]) + if phase > 0 { SETTLES } else { Duration::ZERO };
        let of_phase = samples.iter().filter(|s| s.from >= from && s.until <= until);
        let behave = |s: &Sample| {
            let rates = s.rates.tenants.iter().take(BURSTS).flatten();
            rates.fold(f64::INFINITY, |least, rate| least.min(*rate)) / to_f64(GUARANTEE)
        };
        let (mut least, mut used) = (f64::INFINITY, f64::INFINITY);
        for sample in of_phase {
            (least, used) = (least.min(behave(sample)), used.min(used_pct(sample)));
        }
        let said = format!("{what}: the least of the eight's guarantee that one had in a second");
        let claim = Claim::new(&format!("{id}_guarantee_kept_pct"), said, "%");
        outcome.claim(claim.at_least(98.0).measured(100.0 * least));
        let said = format!("{what}: how full the core was in any second");
        let claim = Claim::new(&format!("{id}_core_pct"), said, "%");
        outcome.claim(claim.at_least(97.0).measured(used));
    }
}

/// Tenants over time, and the core.
pub(crate) fn picture(record: &Record) -> Picture {
    let begins = record.platform.get("phases_begin_s").and_then(serde_json::Value::as_array);
    let begins: Vec<f64> =
        begins.into_iter().flatten().filter_map(serde_json::Value::as_f64).collect();
    let time = || Axis::linear("time, s");
    let events = |mut panel: Panel| {
        for ((_, what), at) in PHASES.iter().zip(&begins).skip(1) {
            panel = panel.event(*what, *at);
        }
        panel
    };
    let mut rates =
        Panel::new("what tenants received", time(), Axis::linear("Mbit/s, a direction"));
    for tenant in 0..10 {
        if let Some(series) = record.series(&tenant_name(tenant)) {
            rates = rates.series(tenant_name(tenant), series);
        }
    }
    let rates = rates.published("guarantee", to_f64(GUARANTEE) / 1e6);
    let mut core = Panel::new("the core link", time(), Axis::linear("use, %").to(105.0));
    if let Some(series) = record.series("core") {
        core = core.series("both directions", series);
    }
    let title =
        format!("Ten tenants on a core of {} Mbit/s: one bursts, one attacks", LINK / 1_000_000);
    Picture::new(&title).panel(events(rates)).panel(events(core))
}
