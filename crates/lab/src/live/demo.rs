//! The run of `make demo`: a victim and a noisy neighbour, with two kinds of limits.
//!
//! # Problem
//!
//! Two VMs buy the cycles of the switch's core. The *victim* buys four fifths of the sold capacity.
//! At first, both VMs send the traffic that they declared. Later the neighbour floods: it sends
//! 64-byte frames in 100,000 flows, as fast as its ring accepts frames.
//!
//! # Source
//!
//! The demo follows C2QoS §II-B and Fig. 1. The VMs and their purchases are the same as in
//! [`super::noisy`].
//!
//! # Approach
//!
//! The same load runs twice: under `bps` policing with round-robin, and under cycle buckets with
//! batch scheduling. Each of the two runs of the demo shows whether the victim keeps its purchase.
//!
//! As in [`super::noisy`], each window lies between two short calibrations. If the calibrations
//! around a window differ, the machine's speed changed, and the window is repeated. The picture
//! shows the judged windows one after the other, and the victim's purchase in bits per second at
//! each moment. The purchase in bits per second varies, because C2QoS sells cycles, and a cycle is
//! worth more bits while the machine is fast.
//!
//! # A disturbed machine
//!
//! A disturbed window is repeated. If two consecutive windows yield no result, later windows are
//! twice as long. A short disturbance matters less in a long window. If there are still too few
//! judged windows, the run is repeated with half of the worker's capacity. A worker with half of
//! its capacity can reach its limit although it sometimes loses its core. If a run was repeated
//! with half of the worker's capacity, disturbed windows also count, and the results are *rough*.
//! The module [`super::demo_story`] turns the results into sentences.
//!
//! # Cost
//!
//! A run of the demo takes under a minute on a quiet machine, and four minutes at most.

use serde_json::json;

use super::bracket::Rule;
use super::demo_story::{Conditions, ENOUGH, Seen, story};
use super::machine::Reading;
use super::noisy::{self, Case, Event};
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::rig::platform;
use penstock_guest::bed::Bed;

/// Length of a measured window in seconds.
const SECS: f64 = 0.5;
const WINDOWS: u32 = 6;
/// Number of windows that a run measures before it checks whether any window yielded a result.
const ROW: u32 = 2;
/// Two sets of parameters for a run of the demo. If a run with the first set yields too few
/// windows, the run is repeated with the second set of parameters.
const WAYS: [Way; 2] = [
    Way { core_part: noisy::CORE_PART, lengths: &[1.0, 2.0], rule: RULE },
    Way { core_part: noisy::CORE_PART / 2.0, lengths: &[4.0], rule: ROUGH },
];
const RULE: Rule = Rule { agree: 0.04, tries: 3, rough: false };
/// Rule for a disturbed machine: the speeds of two calibrations may differ by up to 100 %.
const ROUGH: Rule = Rule { agree: 1.0, tries: 2, rough: true };
/// Names of the demo's two runs, and the runs' titles in the picture.
const LIVES: [(&str, &str); 2] = [("bps", "bps policing"), ("c2qos", "C2QoS")];
const VMS: [(&str, &str); 2] = [("victim", "victim"), ("noisy1", "neighbour")];
const BOUGHT: &str = "bought by the victim";
/// Label of the victim's purchase in the legend. In both runs of the demo, the purchase is a fixed
/// fraction of the calibrated capacity, so the purchase follows the core's speed.
const BOUGHT_LABEL: &str = "bought by the victim (moves with the core's speed)";
const TIME: &str = "seconds of measurement (what lies between is cut out)";
/// Label of the moment at which the neighbour begins to flood, in each run of the demo.
const FLOODS: &str = "the neighbour floods";

/// Parameters of a run of the demo, for a quiet or a disturbed machine.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Fraction of its core's cycles that the worker may spend.
    core_part: f64,
    /// Lengths of windows to try in turn, as multiples of the normal length.
    lengths: &'static [f64],
    rule: Rule,
}

/// Runs the demo with both kinds of limits, and prints the three sentences that sum up the results.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let windows = (context.live.secs.unwrap_or(SECS), context.live.runs.unwrap_or(WINDOWS));
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let cores = [bed.worker_core(), bed.generator_core()];
    let one_core = cores[0] == cores[1];
    let mut conditions = Conditions { one_core, ..Conditions::default() };
    let mut lives = Vec::new();
    let began = Reading::take(&cores);
    for (nth, names) in LIVES.into_iter().enumerate() {
        let about = if nth == 0 { 0.0 } else { 0.5 };
        let before = Reading::take(&cores);
        let mut life = live((context, &bed), names, (windows, about), &mut conditions)?;
        life.seen.stolen_pct = before.until(&Reading::take(&cores)).stolen_pct;
        conclude(&mut outcome, names.0, &life);
        lives.push(life.draw(&mut outcome, names.1));
    }
    conditions.machine = began.until(&Reading::take(&cores));
    for claim in conditions.tally.claims() {
        outcome.claim(claim);
    }
    if let [bps, c2qos] = &lives[..] {
        outcome.tell(&story(bps, c2qos, &conditions));
    }
    Ok(outcome)
}

/// Runs the demo with one kind of limits. If a run with the first parameters in [`WAYS`] yields too
/// few windows, the function repeats the run with the second parameters.
fn live(
    (context, bed): (&Context<'_>, &Bed),
    (name, title): (&'static str, &str),
    (windows, done): ((f64, u32), f64),
    conditions: &mut Conditions,
) -> anyhow::Result<Life> {
    eprintln!("{title}: both VMs keep to their contracts; then one floods with 64 B frames");
    let enough = ENOUGH.min(usize::try_from(windows.1)?);
    // If load and switch share a core, every window is disturbed.
    let ways = if conditions.one_core { &WAYS[1..] } else { &WAYS[..] };
    let mut life = Life::default();
    for (nth, way) in ways.iter().enumerate() {
        if nth > 0 {
            conditions.tally.try_again(u32::MAX);
            eprintln!("{title}: disturbed; repeating it with half of the load and longer windows");
        }
        let mut subject = noisy::ours(bed, name, (1, way.core_part))?;
        let told = (context, title, done);
        let lived = once((told, bed), &mut subject, way, windows)?;
        // A paused daemon cannot exit.
        subject.rig.switch.resume()?;
        conditions.tally.add(&subject.tally);
        conditions.waits.append(&mut subject.waits);
        if lived.seen.is_enough(1) || !life.seen.is_enough(1) {
            life = lived;
        }
        if life.seen.is_enough(enough) {
            break;
        }
    }
    Ok(life)
}

/// Runs the demo once with one kind of limits: first both VMs send as declared, later the neighbour
/// floods. The neighbour does not flood if the first part of the run yields no judged window.
fn once(
    ((context, title, done), bed): ((&Context<'_>, &str, f64), &Bed),
    subject: &mut noisy::Subject,
    way: &Way,
    (secs, wanted): (f64, u32),
) -> anyhow::Result<Life> {
    let wanted = if way.rule.rough { wanted.div_ceil(2) } else { wanted };
    let flood = Case { crowd: 1, event: Event::Both, flood: true };
    let mut life = Life::new(way);
    for (at, case) in [(0.0, None), (0.25, Some(flood))] {
        context.progress(done + at, title);
        let judged = adapted(way.lengths, wanted, |length, row| {
            let judged = subject.windows(bed, case, (secs * length, row), way.rule)?;
            // The tally counts a window as given up only after all lengths have been tried.
            subject.tally.try_again(row - u32::try_from(judged.len())?.min(row));
            Ok(judged.into_iter().map(|window| (secs * length, window)).collect())
        })?;
        subject.tally.give_up(wanted.saturating_sub(u32::try_from(judged.len())?));
        life.add(subject, case.is_some(), &judged)?;
        if judged.is_empty() {
            break;
        }
    }
    Ok(life)
}

/// Measures `wanted` windows in rows of [`ROW`] windows. If no window of a row is judged, the
/// function continues with the next length in `lengths`. `take` receives the length and the number
/// of windows, measures them, and returns the judged windows.
fn adapted<T>(
    lengths: &[f64],
    wanted: u32,
    mut take: impl FnMut(f64, u32) -> anyhow::Result<Vec<T>>,
) -> anyhow::Result<Vec<T>> {
    let mut judged = Vec::new();
    for &length in lengths {
        loop {
            let missing = wanted.saturating_sub(u32::try_from(judged.len())?);
            if missing == 0 {
                return Ok(judged);
            }
            let mut row = take(length, missing.min(ROW))?;
            if row.is_empty() {
                break;
            }
            judged.append(&mut row);
        }
    }
    Ok(judged)
}

/// Results of one run of the demo, and the curves for the demo's picture.
#[derive(Debug, Default)]
struct Life {
    seen: Seen,
    core_part: f64,
    /// Seconds of measurement that the curves cover so far.
    drawn: f64,
    flood_begins: Option<f64>,
    vms: [Vec<(f64, f64)>; 2],
    bought: Vec<(f64, f64)>,
}

impl Life {
    fn new(way: &Way) -> Self {
        let seen = Seen { rough: way.rule.rough, ..Seen::default() };
        Self { seen, core_part: way.core_part, ..Self::default() }
    }

    /// Adds judged windows, each with its length in seconds. `flood` says whether the neighbour
    /// flooded in the windows.
    fn add(
        &mut self,
        subject: &noisy::Subject,
        flood: bool,
        judged: &[(f64, noisy::Window)],
    ) -> anyhow::Result<()> {
        if flood {
            self.flood_begins = Some(self.drawn);
        }
        for (secs, judged) in judged {
            let from = self.drawn;
            for ((vm, _), curve) in VMS.iter().zip(&mut self.vms) {
                let parts = &judged.found.window.sender(vm)?.parts;
                let step = secs / f64::from(u32::try_from(parts.len().max(1))?);
                let at = (1_u32..).map(|i| from + f64::from(i) * step);
                curve.extend(at.zip(parts.iter().map(|bits| bits / 1e9)));
            }
            let bought = subject.bought_gbps(judged);
            self.drawn = from + secs;
            self.bought.extend([(from, bought), (self.drawn, bought)]);
            let gbps = subject.victim_gbps(judged)?;
            if flood {
                let found = [gbps, subject.kept(judged)?, subject.unsure(judged)];
                self.seen.flood.push(found);
            } else {
                self.seen.before.push(gbps);
            }
        }
        Ok(())
    }

    /// Adds the curves of a run of the demo to `outcome`, and returns the results of the run.
    fn draw(self, outcome: &mut Outcome, title: &str) -> Seen {
        let finite = |points: Vec<(f64, f64)>| points.into_iter().filter(|p| p.1.is_finite());
        for ((_, vm), curve) in VMS.iter().zip(self.vms) {
            outcome.series(&format!("{title}: {vm}"), "Gbit/s", finite(curve));
        }
        outcome.series(&format!("{title}: {BOUGHT}"), "Gbit/s", finite(self.bought));
        if let Some(at) = self.flood_begins {
            outcome.event(title, at, FLOODS);
        }
        self.seen
    }
}

/// Adds a claim about the percentage of its purchase that the victim kept in one run of the demo.
fn conclude(outcome: &mut Outcome, name: &str, life: &Life) {
    let seen = &life.seen;
    outcome.note(&format!("worker_capacity_of_core_{name}"), life.core_part);
    let kept: Vec<f64> = seen.flood.iter().map(|window| window[1]).collect();
    outcome.note(&format!("{name}_kept_pct_of_each_window"), json!(kept));
    outcome.note(&format!("{name}_rough"), seen.rough);
    let Some(kept) = seen.kept() else { return };
    let what = "of what it bought, the victim keeps while its neighbour floods";
    let claim = Claim::new(&format!("{name}_victim_kept_pct"), what, "%").measured(kept);
    // Policing in bits promises the victim nothing, so its claim has no limit.
    let promised = if name == "c2qos" { seen.least_kept() } else { None };
    outcome.claim(match promised {
        Some(least) => claim.at_least(least),
        None => claim,
    });
}

/// Draws the two runs of the demo side by side.
pub(crate) fn picture(record: &Record) -> Picture {
    let highest = record.series.iter().flat_map(|s| s.y.iter().copied()).fold(0.0, f64::max);
    let mut picture = Picture::new("A victim and a noisy neighbour on one switch core");
    for (name, title) in LIVES {
        let y = Axis::linear("bandwidth, Gbit/s").to(1.15 * highest.max(0.1));
        let rough = record.platform.get(&format!("{name}_rough"));
        let rough = rough.and_then(serde_json::Value::as_bool).unwrap_or(false);
        let by = if name == "bps" { "VMs limited in bits" } else { "VMs limited in cycles" };
        let head = format!("{title}: {by}{}", if rough { " (rough: disturbed)" } else { "" });
        let mut panel = Panel::new(head, Axis::linear(TIME), y);
        let labels = VMS.iter().map(|(_, vm)| (*vm, *vm)).chain([(BOUGHT, BOUGHT_LABEL)]);
        for (series, label) in labels {
            if let Some(series) = record.series(&format!("{title}: {series}")) {
                panel = panel.series(label, series);
            }
        }
        for (at, what) in record.events(title) {
            panel = panel.event(what, at);
        }
        picture = picture.panel(panel);
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::series::csv;
    use crate::evidence::{Experiment, Mode};

    /// Simulates a machine whose first `disturbed` windows are disturbed. The simulated machine
    /// tries each window up to three times. Returns the length and number of windows in each call
    /// of `take`, and the number of judged windows.
    fn asked(disturbed: u32, lengths: &[f64], wanted: u32) -> (Vec<(f64, u32)>, usize) {
        let (mut left, mut asked) = (disturbed, Vec::new());
        let judged = adapted(lengths, wanted, |length, row| {
            asked.push((length, row));
            let bad = left.min(3 * row);
            left -= bad;
            Ok(vec![(); usize::try_from((3 * row - bad).min(row)).unwrap()])
        });
        (asked, judged.unwrap().len())
    }

    #[test]
    fn on_a_quiet_machine_short_windows_are_enough() {
        assert_eq!(asked(0, &[1.0, 2.0], 5), (vec![(1.0, 2), (1.0, 2), (1.0, 1)], 5));
    }

    #[test]
    fn a_row_without_a_window_makes_the_next_ones_longer() {
        let (asked_for, judged) = asked(8, &[1.0, 2.0], 3);
        assert_eq!((asked_for, judged), (vec![(1.0, 2), (2.0, 2), (2.0, 1)], 3));
        // The first windows are disturbed, but each row yields a window. So the windows stay short.
        assert_eq!(asked(5, &[1.0, 2.0], 2), (vec![(1.0, 2), (1.0, 1)], 2));
    }

    #[test]
    fn a_machine_that_never_rests_is_given_up_after_each_length() {
        assert_eq!(asked(u32::MAX, &[1.0, 2.0], 6), (vec![(1.0, 2), (2.0, 2)], 0));
        assert!(asked(0, &[], 6).0.is_empty() && asked(0, &[1.0], 0).0.is_empty());
    }

    /// Returns the record of a run with `windows` windows in the flood. In each window, the victim
    /// kept `kept` percent of its purchase.
    fn record(windows: usize, kept: f64, rough: bool) -> Record {
        let mut outcome = Outcome::default();
        for names in LIVES {
            let flood = vec![[f64::NAN, kept, f64::NAN]; windows];
            let seen = Seen { before: vec![1.0; 6], flood, rough, stolen_pct: 0.0 };
            let curve = vec![(0.5, 1.0), (1.0, f64::NAN), (1.5, f64::INFINITY)];
            let vms = [curve.clone(), curve.clone()];
            let drawn = 1.5;
            let flood_begins = (windows > 0).then_some(0.5);
            let life = Life { seen, core_part: 0.5, drawn, flood_begins, vms, bought: curve };
            conclude(&mut outcome, names.0, &life);
            life.draw(&mut outcome, names.1);
        }
        let (name, source, about) = ("demo", "nowhere", "for tests");
        let of = Experiment { name, source, about, sim: None, live: Some(run), picture };
        Record::new(&of, Mode::Live, 1, outcome)
    }

    #[test]
    fn whatever_was_measured_no_picture_and_no_claim_has_a_number_that_is_none() {
        for kept in [104.0, 0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for (windows, rough) in [(0, false), (1, true), (6, false), (6, true)] {
                let record = record(windows, kept, rough);
                let text = picture(&record).svg() + &csv(&record.series);
                assert!(!text.contains("NaN") && !text.contains("inf"), "{kept} {windows}");
                let holds = record.claims.iter().filter_map(|claim| claim.holds);
                assert_eq!(
                    holds.collect::<Vec<_>>(),
                    if windows == 6 && !rough && (0.0..1e5).contains(&kept) {
                        vec![kept >= 0.0]
                    } else {
                        vec![]
                    },
                    "{kept} {windows} {rough}"
                );
            }
        }
    }

    #[test]
    fn the_promise_is_judged_by_undisturbed_windows_alone() {
        let life = |kept, rough| Life {
            seen: Seen {
                before: vec![1.0; 6],
                flood: vec![[1.0, kept, 1.0]; 6],
                rough,
                stolen_pct: 0.0,
            },
            ..Life::default()
        };
        let holds = |nth: usize, life: &Life| {
            let mut outcome = Outcome::default();
            conclude(&mut outcome, LIVES[nth].0, life);
            outcome.claims[0].holds
        };
        assert_eq!(holds(1, &life(99.5, false)), Some(true));
        assert_eq!(holds(1, &life(70.0, false)), Some(false), "the switch failed");
        assert_eq!(holds(1, &life(70.0, true)), None, "rough numbers fail nobody");
        assert_eq!(holds(0, &life(70.0, false)), None, "bits promise the victim nothing");
    }
}
