//! The run of `make fabric-demo`: tenants share a core link, one tenant bursts, and one tenant
//! attacks.
//!
//! # Problem
//!
//! Ten tenants share a core link of 50 Mbit/s, and each tenant bought 4.7 Mbit/s of the link. Eight
//! tenants use all bandwidth that they can get. In the second phase, the ninth tenant, which was
//! idle, *bursts*: it opens eight times as many connections as the other tenants. In the third
//! phase, the tenth tenant *attacks*: each of its VMs sends datagrams at 20 Mbit/s to VMs that
//! ignore the datagrams.
//!
//! # Approach
//!
//! The connections of the eight tenants are drawn before the run. A tenant is due the smaller of
//! its guarantee and its demand, as in the live Fig. 4 (`demand`). In each phase, the run finds the
//! lowest part of its due rate that one of the eight tenants had. The results exclude the first
//! second of the burst and the first second of the attack.
//!
//! # A disturbed machine
//!
//! A second is disturbed if other programs, the hypervisor and the CPU limit together took at least
//! [`TAKEN_PCT`] percent of the cores' time. Disturbed seconds do not count in the results. If more
//! than half of a phase is disturbed, all seconds of the phase count, and the phase's numbers are
//! *rough*. A demo with rough numbers never fails. If rough numbers are below the promised rates,
//! the run repeats all phases with twice the length.
//!
//! # Cost
//!
//! A run of the demo takes about a minute, and three minutes on a disturbed machine.

use std::time::Duration;

use super::demand::{self, Flow, across, due};
use super::guarantees::{GUARANTEE, LINK, RACKS, hoses, plan};
use super::plan::{Plan, tenant_name};
use super::programs::{Client, Wants};
use super::samples::{Sample, WARM_UP, others, points, start, used_pct, watch_and};
use super::world::World;
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::live::machine::{Machine, Reading};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;

/// Length of a phase in seconds.
const SECS: f64 = 10.0;
/// Length of a phase in the first and in the second attempt, as a multiple of [`SECS`].
const LENGTHS: [f64; 2] = [1.0, 2.0];
/// A second counts if other programs, the hypervisor and the CPU limit together took less than this
/// percentage of the cores' time.
const TAKEN_PCT: f64 = 5.0;
/// Number of connections of a VM that does not burst.
const CONNECTIONS: usize = 4;
const BURST: usize = 32;
/// Rate at which each VM of the attacking tenant sends, in bits per second.
const ATTACK: f64 = 20e6;
/// Index of the tenant that bursts.
const BURSTS: usize = 8;
const ATTACKS: usize = 9;
/// The three phases of the demo: each has an id, an event, and a clause for sentences.
const PHASES: [(&str, &str, &str); 3] = [
    ("calm", "eight tenants use all they can get", "in the calm phase"),
    ("burst", "the ninth bursts", "while the ninth tenant burst"),
    ("attack", "the tenth attacks", "while the tenth attacked"),
];
/// Percentage of its due rate that each of the eight tenants must receive.
const KEEP_PCT: f64 = 98.0;
const FULL_PCT: f64 = 97.0;
/// Seconds do not count if they begin within this time after the start of the burst or of the
/// attack.
const SETTLES: Duration = Duration::from_secs(1);

/// Runs the three phases of the demo, and prints three sentences about the results.
///
/// # Errors
///
/// Returns an error if a program of the demo cannot be started, or if it fails later.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    eprintln!("starting two racks: ten hosts, their switches, a controller");
    let plan = Plan { page: true, ..plan(&[8; 10]) };
    let mut world = World::start(&bed, "demo", &plan)?;
    if let Some(page) = &world.page {
        eprintln!("the controller's page, available during this run: {page}");
    }
    let flows = across(&world.vms, CONNECTIONS, context.seed);
    let due = due(&world.vms, &flows, &hoses(&plan), RACKS.len());
    let cores = [bed.worker_core(), bed.generator_core()];
    for (nth, length) in LENGTHS.into_iter().enumerate() {
        let secs = length * context.live.secs.unwrap_or(SECS);
        let begins = [0.0, secs, 2.0 * secs];
        let mut programs = start(&bed, &world, clients(&world, &begins, &flows), context.seed)?;
        eprintln!("warming up, and three phases of {secs} s: calm, a burst, an attack");
        let mut readings = Vec::new();
        let look = || readings.push(Reading::take(&cores));
        let samples = watch_and((&mut world, &mut programs), 3.0 * secs, look)?;
        let between = |two: &[Reading]| two[0].until(&two[1]);
        let machine: Vec<Machine> = readings.windows(2).map(between).collect();
        let all = (&samples[..], &machine[..]);
        let phases = [0, 1, 2].map(|nth| Phase::of(&seconds(nth, &begins, &due, all)));
        let doubtful = phases.iter().any(|phase| phase.rough && phase.is_short());
        if doubtful && nth + 1 < LENGTHS.len() {
            eprintln!("the machine was disturbed; repeating the run with longer phases");
            continue;
        }
        outcome.note("phases_begin_s", begins.to_vec());
        draw(&mut outcome, &samples);
        conclude(&mut outcome, &phases);
        let whole = readings.first().zip(readings.last());
        let whole = whole.map(|(first, last)| first.until(last)).unwrap_or_default();
        outcome.tell(&story(&phases, &whole));
        break;
    }
    Ok(outcome)
}

fn clients(world: &World, begins: &[f64; 3], flows: &[Flow]) -> Vec<Client> {
    // The connections of the eight tenants are known before the run.
    let eight = |flow: &&Flow| world.vms[flow.client].tenant < BURSTS;
    let eight: Vec<Flow> = flows.iter().filter(eight).copied().collect();
    let mut clients = demand::clients(&world.vms, &eight, &[Duration::ZERO; BURSTS]);
    for (vm, of) in world.vms.iter().enumerate() {
        let servers = others(&world.vms, vm, |other| other.rack != of.rack);
        let (wants, from, copies) = match of.tenant {
            BURSTS => (Wants::All, begins[1], BURST),
            ATTACKS => (Wants::Datagrams(ATTACK), begins[2], 1),
            _ => continue,
        };
        let from = WARM_UP + Duration::from_secs_f64(from);
        clients.extend(std::iter::repeat_n(Client { vm, servers, wants, from }, copies));
    }
    clients
}

fn draw(outcome: &mut Outcome, samples: &[Sample]) {
    let tenants = samples.first().map_or(0, |sample| sample.rates.tenants.len());
    for tenant in 0..tenants {
        let rate = |s: &Sample| s.rates.tenants[tenant].iter().sum::<f64>() / 2e6;
        outcome.series(&tenant_name(tenant), "Mbit/s", points(samples, rate));
    }
    outcome.series("core", "%", points(samples, used_pct));
}

/// Results of one second of a phase, in percent.
#[derive(Debug, Clone, Default)]
struct Second {
    /// Rate of each of the eight tenants in each direction, in percent of the due rate.
    kept: Vec<f64>,
    /// Utilization of the core link in percent.
    core: f64,
    /// Percentage of the cores' time that other programs, the hypervisor and the CPU limit took.
    taken: f64,
}

/// Returns the results of each second of a phase, without the first second of the burst or of the
/// attack. `due` has the rate that is due to each tenant in each rack, in bits per second.
fn seconds(
    phase: usize,
    begins: &[f64; 3],
    due: &[Vec<f64>],
    (samples, machine): (&[Sample], &[Machine]),
) -> Vec<Second> {
    let at = |secs: f64| WARM_UP + Duration::from_secs_f64(secs);
    let until = begins.get(phase + 1).map_or(Duration::MAX, |secs| at(*secs));
    let from = at(begins[phase]) + if phase > 0 { SETTLES } else { Duration::ZERO };
    let of_phase = samples.iter().zip(machine);
    let of_phase = of_phase.filter(|(sample, _)| sample.from >= from && sample.until <= until);
    let second = |(sample, machine): (&Sample, &Machine)| {
        let rates = sample.rates.tenants.iter().take(BURSTS).flatten();
        let is_due = rates.zip(due.iter().take(BURSTS).flatten()).filter(|(_, due)| **due > 0.0);
        Second {
            kept: is_due.map(|(rate, due)| 100.0 * rate / due).collect(),
            core: used_pct(sample),
            taken: machine.taken_pct(),
        }
    };
    of_phase.map(second).collect()
}

/// Results of a phase: rates and utilizations in percent, and numbers of seconds.
#[derive(Debug, Clone, Default, PartialEq)]
struct Phase {
    /// Lowest mean rate among the eight tenants, in percent of the due rate. `None` if the rates
    /// are unknown.
    kept: Option<f64>,
    worst: Option<f64>,
    /// Mean utilization of the core link in percent. `None` if the utilization is unknown.
    core: Option<f64>,
    core_worst: Option<f64>,
    /// Number of seconds of the phase that count in the results.
    counted: usize,
    seconds: usize,
    /// Whether disturbed seconds also count, because the phase has too few undisturbed seconds.
    rough: bool,
}

/// Returns the mean of the values from 0 to 1,000,000, or `None` if no value is in this range.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let possible = values.filter(|value| (0.0..1e6).contains(value));
    let (sum, n) = possible.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    (n > 0.0).then_some(sum / n)
}

impl Phase {
    /// Returns whether a tenant's rate or the core link's utilization is unknown or below the
    /// promise.
    fn is_short(&self) -> bool {
        let below = |value: Option<f64>, least: f64| value.is_none_or(|pct| pct < least);
        below(self.kept, KEEP_PCT) || below(self.core, FULL_PCT)
    }

    fn of(seconds: &[Second]) -> Self {
        let quiet: Vec<&Second> = seconds.iter().filter(|s| s.taken < TAKEN_PCT).collect();
        let rough = 2 * quiet.len() < seconds.len().max(1);
        let counted: Vec<&Second> = if rough { seconds.iter().collect() } else { quiet };
        let ways = counted.iter().map(|second| second.kept.len()).max().unwrap_or(0);
        let one = |way: usize| mean(counted.iter().filter_map(|s| s.kept.get(way).copied()));
        let each = counted.iter().filter_map(|second| {
            let possible = second.kept.iter().copied().filter(|kept| (0.0..1e6).contains(kept));
            possible.reduce(f64::min)
        });
        Self {
            kept: (0..ways).filter_map(one).reduce(f64::min),
            worst: each.reduce(f64::min),
            core: mean(counted.iter().map(|second| second.core)),
            core_worst: counted.iter().map(|second| second.core).reduce(f64::min),
            counted: counted.len(),
            seconds: seconds.len(),
            rough,
        }
    }
}

fn conclude(outcome: &mut Outcome, phases: &[Phase; 3]) {
    for ((id, what, _), phase) in PHASES.into_iter().zip(phases) {
        let mut claim = |name: &str, said: &str, value: Option<f64>, least: Option<f64>| {
            let claim = Claim::new(&format!("{id}_{name}"), format!("{what}: {said}"), "%");
            let claim = value.into_iter().fold(claim, Claim::measured);
            outcome.claim(match least {
                Some(least) => claim.at_least(least),
                None => claim,
            });
        };
        let judged = |least: f64| (!phase.rough).then_some(least);
        let said = "the least of min(guarantee, demand) that one of the eight had in a second";
        claim("guarantee_kept_pct", said, phase.worst, judged(KEEP_PCT));
        claim(
            "core_pct",
            "how full the core was in any second",
            phase.core_worst,
            judged(FULL_PCT),
        );
        claim("guarantee_mean_pct", "what the worst served had on average", phase.kept, None);
        claim("core_mean_pct", "how full the core was on average", phase.core, None);
    }
}

fn story(phases: &[Phase; 3], machine: &Machine) -> [String; 3] {
    let kept = (|phase: &Phase| phase.kept) as fn(&Phase) -> Option<f64>;
    let core = (|phase: &Phase| phase.core) as fn(&Phase) -> Option<f64>;
    let told = |value: fn(&Phase) -> Option<f64>| {
        let each = PHASES.iter().zip(phases).map(|((_, _, when), phase)| match value(phase) {
            Some(pct) => {
                let about = if phase.rough { "about " } else { "" };
                format!("{about}{:.0} % {when}", pct.min(999.0))
            }
            None => format!("an unknown part {when}"),
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let failed = |value: fn(&Phase) -> Option<f64>, least: f64| {
        let short = |phase: &Phase| !phase.rough && value(phase).is_none_or(|pct| pct < least);
        match phases.iter().any(short) {
            true => format!(": the fabric failed, because it promises {least:.0} %"),
            false => String::new(),
        }
    };
    [
        format!(
            "Of the smaller of its demand and its guarantee of {:.1} Mbit/s, the worst served of \
             the eight tenants had {}{}.",
            to_f64(GUARANTEE) / 1e6,
            told(kept),
            failed(kept, KEEP_PCT)
        ),
        format!("The core link was full to {}{}.", told(core), failed(core, FULL_PCT)),
        conditions(phases, machine),
    ]
}

/// Returns the sentence about the state of the machine.
fn conditions(phases: &[Phase; 3], machine: &Machine) -> String {
    let all: usize = phases.iter().map(|phase| phase.seconds).sum();
    let counted: usize = phases.iter().map(|phase| phase.counted).sum();
    let clauses = machine.clauses().join("; ");
    let why = if clauses.is_empty() { clauses } else { format!(": {clauses}") };
    if phases.iter().any(|phase| phase.rough) {
        return format!("The machine was disturbed, so the numbers are rough{why}.");
    }
    match all - counted {
        0 => format!("The machine was quiet: all {all} seconds count."),
        1 => format!("1 of {all} seconds was disturbed and does not count{why}."),
        bad => format!("{bad} of {all} seconds were disturbed and do not count{why}."),
    }
}

/// Draws the tenants' rates and the core link's utilization over time.
pub(crate) fn picture(record: &Record) -> Picture {
    let begins = record.platform.get("phases_begin_s").and_then(serde_json::Value::as_array);
    let begins: Vec<f64> =
        begins.into_iter().flatten().filter_map(serde_json::Value::as_f64).collect();
    let time = || Axis::linear("time, s");
    let events = |mut panel: Panel| {
        for ((_, what, _), at) in PHASES.iter().zip(&begins).skip(1) {
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

#[cfg(test)]
mod tests {
    use super::super::counters::Rates;
    use super::*;
    use penstock_sim::Rng;

    fn seconds(kept: f64, taken: f64, count: usize) -> Vec<Second> {
        vec![Second { kept: vec![kept + 5.0, kept], core: 98.0, taken }; count]
    }

    fn holds(phases: &[Phase; 3]) -> Vec<bool> {
        let mut outcome = Outcome::default();
        conclude(&mut outcome, phases);
        outcome.claims.iter().filter_map(|claim| claim.holds).collect()
    }

    #[test]
    fn a_tenant_is_compared_with_what_is_due_to_it() {
        let rates =
            Rates { tenants: vec![vec![2e6, 4e6]; 10], core: vec![5e7; 2], repairs: Vec::new() };
        let sample = Sample {
            from: WARM_UP,
            until: WARM_UP + Duration::from_secs(1),
            at_ms: [0, 1_000],
            rates,
            sweep: Duration::ZERO,
            link: 5e7,
        };
        // The tenants have no connections towards the second rack.
        let due = vec![vec![2e6, 0.0]; 10];
        let all = (&[sample][..], &[Machine::default()][..]);
        let seconds = super::seconds(0, &[0.0, 10.0, 20.0], &due, all);
        assert_eq!(seconds.len(), 1);
        let kept = &seconds[0].kept;
        assert_eq!(kept.len(), BURSTS);
        assert!(kept.iter().all(|pct| (pct - 100.0).abs() < 1e-9), "{kept:?}");
    }

    #[test]
    fn the_worst_served_decides_and_disturbed_seconds_do_not_count() {
        let mut mixed = seconds(103.0, 0.0, 6);
        mixed.extend(seconds(20.0, 30.0, 4));
        let [calm, burst, attack] =
            [mixed, seconds(103.0, 1.0, 9), seconds(101.0, 1.0, 9)].map(|s| Phase::of(&s));
        let phases = [calm, burst, attack];
        assert_eq!(holds(&phases), [true; 6]);
        let lines = story(&phases, &Machine { others_pct: 12.0, ..Machine::default() });
        assert_eq!(
            lines,
            [
                "Of the smaller of its demand and its guarantee of 4.7 Mbit/s, the worst served \
                 of the eight tenants had 103 % in the calm phase, 103 % while the ninth tenant \
                 burst, 101 % while the tenth attacked.",
                "The core link was full to 98 % in the calm phase, 98 % while the ninth tenant \
                 burst, 98 % while the tenth attacked.",
                "4 of 28 seconds were disturbed and do not count: other programs used 12 % of the \
                 cores of switch and load.",
            ]
        );
    }

    #[test]
    fn only_a_quiet_phase_can_fail() {
        let quiet = Phase::of(&seconds(103.0, 0.0, 9));
        let short = |taken| Phase::of(&seconds(60.0, taken, 9));
        let failed = [quiet.clone(), short(0.0), quiet.clone()];
        assert_eq!(holds(&failed).iter().filter(|holds| !**holds).count(), 1);
        let lines = story(&failed, &Machine::default());
        assert!(lines[0].contains("60 % while the ninth tenant burst"), "{lines:?}");
        assert!(lines[0].contains("the fabric failed"), "{lines:?}");
        let rough = [quiet.clone(), short(40.0), quiet];
        assert_eq!(holds(&rough), [true; 4]);
        let lines = story(&rough, &Machine::default());
        assert!(lines[0].contains("about 60 %") && !lines[0].contains("failed"), "{lines:?}");
        assert!(lines[2].contains("the numbers are rough"), "{lines:?}");
        assert!(rough[1].is_short() && !rough[0].is_short() && Phase::default().is_short());
    }

    #[test]
    fn any_mix_of_seconds_makes_three_lines_without_a_number_that_is_none() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -5.0, 1e300, 1e-300];
        for seed in 0..2_000 {
            let rng = std::cell::RefCell::new(Rng::new(seed));
            let below = |limit| usize::try_from(rng.borrow_mut().below(limit)).unwrap();
            let any = || match below(2) {
                0 => odd[below(7)],
                _ => 120.0 * rng.borrow_mut().unit(),
            };
            let second = |_| Second { kept: vec![any(), any()], core: any(), taken: any() };
            let phase = |_| Phase::of(&(0..below(6)).map(second).collect::<Vec<_>>());
            let phases = [0, 1, 2].map(phase);
            let machine = Machine { others_pct: any(), stolen_pct: any(), ..Machine::default() };
            for line in story(&phases, &machine) {
                assert!(!line.contains("NaN") && !line.contains("inf"), "seed {seed}: {line}");
                assert!(line.ends_with('.') && line.len() < 400, "seed {seed}: {line}");
            }
            let mut outcome = Outcome::default();
            conclude(&mut outcome, &phases);
            assert!(outcome.claims.iter().all(|c| c.measured.is_none_or(f64::is_finite)));
        }
    }
}
