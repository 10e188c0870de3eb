//! The story that `make demo` tells: a victim and a noisy neighbour, twice.
//!
//! **Problem.** Two VMs are sold the switch's core, the *victim* four fifths of what was sold, and
//! behave. Then the neighbour floods: 64-byte frames of 100,000 flows, as fast as its ring takes
//! them. **Source.** C2QoS §II-B and Fig. 1, as in [`super::noisy`], whose VMs and sale these are.
//! **What is compared.** The same under `bps` policing with round-robin, and under cycle buckets
//! with batch scheduling: the victim is to keep what it bought.
//!
//! **Rule.** As there: each second stands between two short calibrations, by which it is judged,
//! and is taken again if the machine changed meanwhile. The picture shows the judged ones in a row,
//! and what the victim had bought at each moment: C2QoS sold it cycles, which are more or fewer
//! bits as the machine is quick or slow.
//!
//! **A disturbed machine.** Windows that cannot be had are tried once more with twice the length,
//! in which a short disturbance weighs less. If some are still missing, a sentence says what
//! disturbed them. The victim's part is claimed only if it was measured: that nothing could be
//! measured is no fault of the switch. **Cost.** Under a minute on a machine that is quiet, three
//! minutes at most.

use serde_json::json;

use super::bracket::{Rule, Tally};
use super::noisy::{self, Case, Event};
use super::rig::platform;
use crate::bench::bed::Bed;
use crate::figures::{Axis, Claim, Context, Outcome, Panel, Picture, Record};

/// Seconds of a window, and windows before and after the flood begins.
const SECS: f64 = 0.5;
const WINDOWS: u32 = 6;
/// How much longer windows are that are tried once more.
const LONGER: f64 = 2.0;
/// Of each of the two tries.
const RULE: Rule = Rule { agree: 0.04, tries: 3 };
/// Our switch's two lives: name of the subject, and in the picture.
const LIVES: [(&str, &str); 2] = [("bps", "bps policing"), ("c2qos", "C2QoS")];
const VMS: [(&str, &str); 2] = [("victim", "victim"), ("noisy1", "neighbour")];
const BOUGHT: &str = "what the victim bought";

/// Runs it.
///
/// # Errors
/// When a switch cannot be started or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let (secs, wanted) = (context.live.secs.unwrap_or(SECS), context.live.runs.unwrap_or(WINDOWS));
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("worker_capacity_of_core", noisy::CORE_PART);
    outcome.note("flood_begins_s", f64::from(wanted) * secs);
    let mut all = Tally::default();
    for (nth, (name, title)) in (0_u32..).zip(LIVES) {
        eprintln!("{title}: both behave; then the neighbour floods 64 B frames of 100,000 flows");
        let mut subject = noisy::ours(&bed, name, 1)?;
        let mut life = Life { secs, ..Life::default() };
        let flood = Case { crowd: 1, event: Event::Both, flood: true };
        let mut kept = Vec::new();
        for (at, case) in (0_u32..).zip([None, Some(flood)]) {
            context.progress(f64::from(2 * nth + at) / 4.0, title);
            let judged = adapted((secs, wanted), |(secs, wanted), again| {
                if again {
                    eprintln!("{title}: {wanted} windows were disturbed; trying longer ones");
                    subject.tally.try_again(wanted);
                }
                subject.windows(&bed, case, (secs, wanted), RULE)
            })?;
            kept = judged.iter().map(|j| subject.kept(j)).collect::<anyhow::Result<_>>()?;
            life.add(&subject, at * wanted, &judged)?;
        }
        life.draw(&mut outcome, title);
        // A daemon ends when it runs.
        subject.rig.switch.resume()?;
        outcome.note(&format!("windows_{name}"), subject.tally.told("frames/s"));
        outcome.note(&format!("{name}_kept_pct_of_each_window"), json!(kept));
        all.add(&subject.tally);
        conclude(&mut outcome, (name, title), &kept, &subject.tally);
    }
    for claim in all.claims() {
        outcome.claim(claim);
    }
    Ok(outcome)
}

/// Takes windows; those that could not be had once more, longer. `take` gets seconds and number,
/// and whether it is the second try.
fn adapted<T>(
    (secs, wanted): (f64, u32),
    mut take: impl FnMut((f64, u32), bool) -> anyhow::Result<Vec<T>>,
) -> anyhow::Result<Vec<T>> {
    let mut judged = take((secs, wanted), false)?;
    let missing = wanted.saturating_sub(u32::try_from(judged.len())?);
    if missing > 0 {
        judged.extend(take((LONGER * secs, missing), true)?);
    }
    Ok(judged)
}

/// The curves of one life.
#[derive(Debug, Default)]
struct Life {
    secs: f64,
    vms: [Vec<(f64, f64)>; 2],
    bought: Vec<(f64, f64)>,
}

impl Life {
    /// Adds windows; the first is the life's `first`th.
    fn add(
        &mut self,
        subject: &noisy::Subject,
        first: u32,
        judged: &[noisy::Window],
    ) -> anyhow::Result<()> {
        for (window, judged) in (first..).zip(judged) {
            let from = f64::from(window) * self.secs;
            for ((vm, _), curve) in VMS.iter().zip(&mut self.vms) {
                let parts = &judged.found.window.sender(vm)?.parts;
                let step = self.secs / f64::from(u32::try_from(parts.len().max(1))?);
                let at = (1_u32..).map(|i| from + f64::from(i) * step);
                curve.extend(at.zip(parts.iter().map(|bits| bits / 1e9)));
            }
            let bought = subject.bought_gbps(judged);
            self.bought.extend([(from, bought), (from + self.secs, bought)]);
        }
        Ok(())
    }

    fn draw(self, outcome: &mut Outcome, title: &str) {
        for ((_, vm), curve) in VMS.iter().zip(self.vms) {
            outcome.series(&format!("{title}: {vm}"), "Gbit/s", curve);
        }
        outcome.series(&format!("{title}: {BOUGHT}"), "Gbit/s", self.bought);
    }
}

/// `kept`: percent of what it bought that the victim kept, in each judged window of the flood.
fn conclude(outcome: &mut Outcome, (name, title): (&str, &str), kept: &[f64], tally: &Tally) {
    if let Some(disturbance) = tally.disturbance() {
        let none =
            if kept.is_empty() { "; what the victim keeps in the flood is not known" } else { "" };
        let sentence = format!("{title}: {disturbance}{none}");
        eprintln!("{sentence}");
        outcome.note(&format!("disturbed_{name}"), sentence);
    }
    if kept.is_empty() {
        return;
    }
    let what = "of what it bought, the victim keeps while its neighbour floods";
    let claim = Claim::new(&format!("{name}_victim_kept_pct"), what, "%");
    let claim = claim.measured(super::fleet::middle(kept));
    // What policing in bits does to the victim is shown, and promised by nobody.
    outcome.claim(if name == "c2qos" { claim.at_least(99.0) } else { claim });
}

/// Both lives side by side.
pub(crate) fn picture(record: &Record) -> Picture {
    let flood = record.platform.get("flood_begins_s").and_then(serde_json::Value::as_f64);
    let highest = record.series.iter().flat_map(|s| s.y.iter().copied()).fold(0.0, f64::max);
    let mut picture = Picture::new("A victim and a noisy neighbour on one switch core");
    for (_, title) in LIVES {
        let y = Axis::linear("bandwidth, Gbit/s").to(1.15 * highest.max(0.1));
        let mut panel = Panel::new(title, Axis::linear("time of judged windows, s"), y);
        for name in VMS.iter().map(|(_, vm)| *vm).chain([BOUGHT]) {
            if let Some(series) = record.series(&format!("{title}: {name}")) {
                panel = panel.series(name, series);
            }
        }
        if let Some(flood) = flood {
            panel = panel.event("the neighbour floods", flood);
        }
        picture = picture.panel(panel);
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::bracket::{Doubt, Turns, judge};

    /// A machine that disturbs so many windows, and then none.
    struct Machine {
        disturbed: u32,
    }

    impl Turns for Machine {
        type Speed = f64;
        type Found = bool;

        fn calibrate(&mut self) -> anyhow::Result<f64> {
            Ok(1.0)
        }

        fn measure(&mut self, _: &f64) -> anyhow::Result<bool> {
            let disturbs = self.disturbed > 0;
            self.disturbed = self.disturbed.saturating_sub(1);
            Ok(disturbs)
        }

        fn speed(of: &f64) -> f64 {
            *of
        }

        fn doubt(disturbed: &bool) -> Option<Doubt> {
            disturbed.then_some(Doubt::WaitedForCore)
        }
    }

    /// What was asked for, and the outcome, of six windows with a victim that kept so much.
    fn told(disturbed: u32, kept: f64) -> (Vec<(f64, u32)>, Outcome) {
        let (mut machine, mut tally) = (Machine { disturbed }, Tally::default());
        let mut asked = Vec::new();
        let judged = adapted((0.5, 6), |windows, again| {
            asked.push(windows);
            if again {
                tally.try_again(windows.1);
            }
            let mut pass = Tally::default();
            let judged = judge(&mut machine, (windows.1, RULE), &mut pass);
            tally.add(&pass);
            judged
        });
        let mut outcome = Outcome::default();
        conclude(&mut outcome, LIVES[1], &vec![kept; judged.unwrap().len()], &tally);
        (asked, outcome)
    }

    fn holds(outcome: &Outcome) -> Vec<bool> {
        outcome.claims.iter().filter_map(|claim| claim.holds).collect()
    }

    #[test]
    fn on_a_quiet_machine_the_victims_part_decides() {
        let (asked, outcome) = told(0, 99.5);
        assert_eq!((asked, holds(&outcome)), (vec![(0.5, 6)], vec![true]));
        assert!(!outcome.platform.contains_key("disturbed_c2qos"));
        assert_eq!(holds(&told(0, 70.0).1), [false], "the switch did not keep its promise");
    }

    #[test]
    fn windows_that_were_disturbed_are_tried_once_more_and_longer() {
        // 18 tries, 4 of them clean: two are still wanted.
        let (asked, outcome) = told(14, 99.5);
        assert_eq!((asked, holds(&outcome)), (vec![(0.5, 6), (1.0, 2)], vec![true]));
        assert!(!outcome.platform.contains_key("disturbed_c2qos"), "all were had in the end");
        // Nothing was had at first, all of it at the second try.
        let (asked, outcome) = told(19, 99.5);
        assert_eq!((asked, holds(&outcome)), (vec![(0.5, 6), (1.0, 6)], vec![true]));
    }

    #[test]
    fn a_machine_that_is_never_quiet_is_named_and_no_fault_of_the_switch() {
        let (asked, outcome) = told(u32::MAX, 0.0);
        assert_eq!((asked, holds(&outcome)), (vec![(0.5, 6), (1.0, 6)], vec![]));
        let sentence = outcome.platform["disturbed_c2qos"].as_str().unwrap();
        assert_eq!(
            sentence,
            "C2QoS: 6 of 6 windows were too disturbed to judge: other programs had the core of \
             the switch or of the load (36 times); what the victim keeps in the flood is not known"
        );
    }
}
