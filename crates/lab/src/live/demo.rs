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
//! bits as the machine is quick or slow. **Cost.** Under a minute on a machine that is quiet.

use serde_json::json;

use super::bracket::Tally;
use super::noisy::{self, Case, Event};
use super::rig::platform;
use crate::bench::bed::Bed;
use crate::figures::{Axis, Claim, Context, Outcome, Panel, Picture, Record};

/// Seconds of a window, and windows before and after the flood begins.
const SECS: f64 = 0.5;
const WINDOWS: u32 = 6;
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
            let judged = subject.windows(&bed, case, (secs, wanted))?;
            kept = judged.iter().map(|j| subject.kept(j)).collect::<anyhow::Result<_>>()?;
            life.add(&subject, at * wanted, &judged)?;
        }
        life.draw(&mut outcome, title);
        // A daemon ends when it runs.
        subject.rig.switch.resume()?;
        outcome.note(&format!("windows_{name}"), subject.tally.told("frames/s"));
        outcome.note(&format!("{name}_kept_pct_of_each_window"), json!(kept));
        all.add(&subject.tally);
        conclude(&mut outcome, name, super::fleet::middle(&kept));
    }
    for claim in all.claims() {
        outcome.claim(claim);
    }
    Ok(outcome)
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

fn conclude(outcome: &mut Outcome, name: &str, kept: f64) {
    let what = "of what it bought, the victim keeps while its neighbour floods";
    let claim = Claim::new(&format!("{name}_victim_kept_pct"), what, "%").measured(kept);
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
