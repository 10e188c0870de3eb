//! The story that `make demo` tells: a victim and a noisy neighbour, twice.
//!
//! **Problem.** Two VMs are sold the switch's core, the *victim* four fifths of what was sold, and
//! behave. Then the neighbour floods: 64-byte frames of 100,000 flows, as fast as its ring takes
//! them. **Source.** C2QoS §II-B and Fig. 1, as in [`super::noisy`], whose VMs and sale these are.
//! **What is compared.** The same under `bps` policing with round-robin, and under cycle buckets
//! with batch scheduling: the victim is to keep what it bought.
//!
//! **Cost.** Under a minute.

use super::noisy::{self, Case, Event};
use super::rig::platform;
use crate::bench::bed::Bed;
use crate::figures::{Axis, Claim, Context, Outcome, Panel, Picture, Record};

/// Seconds of a window, and windows before and after the flood begins.
const SECS: f64 = 1.0;
const WINDOWS: u32 = 4;
/// Our switch's two lives: name of the subject, and in the picture.
const LIVES: [(&str, &str); 2] = [("bps", "bps policing"), ("c2qos", "C2QoS")];
/// Waits for a core that are told.
const DISTURBED_PCT: f64 = 2.0;
const VMS: [&str; 2] = ["victim", "noisy1"];

/// Runs it.
///
/// # Errors
/// When a switch cannot be started or fails.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(SECS);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    eprintln!("what can this core carry? (512 B frames, one flow each, no limits)");
    let sale = noisy::sell_ours(&bed, secs)?;
    let capacity = sale.capacity;
    eprintln!(
        "{:.2} M frames/s, {:.0} cycles each; sold: 90 % of it, four fifths of that to the victim",
        capacity.pps / 1e6,
        capacity.cycles
    );
    outcome.note("capacity_mpps", capacity.pps / 1e6);
    outcome.note("cycles_per_frame", capacity.cycles);
    let bought = sale.victim_pps * 512.0 * 8.0 / 1e9;
    outcome.note("victim_bought_gbps", bought);
    outcome.note("flood_begins_s", f64::from(WINDOWS) * secs);
    let flood = Case { crowd: 1, event: Event::Both, flood: true };
    for (nth, (name, title)) in (0_u32..).zip(LIVES) {
        eprintln!("{title}: both behave; then the neighbour floods 64 B frames of 100,000 flows");
        let mut subject = noisy::ours(&bed, name, 1, sale)?;
        let behaved = noisy::well_behaved(subject.each_pps(1));
        let noise = flood.offer(subject.each_pps(1));
        let mut curves = [Vec::new(), Vec::new()];
        let (mut kept, mut waited) = (Vec::new(), 0.0_f64);
        for window in 0..2 * WINDOWS {
            context.progress(f64::from(nth * 8 + window) / 16.0, title);
            let offer = if window < WINDOWS { &behaved } else { &noise };
            let found = subject.window(&bed, 1, offer, secs)?;
            for (vm, curve) in VMS.iter().zip(&mut curves) {
                let parts = &found.sender(vm)?.parts;
                let step = secs / f64::from(u32::try_from(parts.len().max(1))?);
                let from = f64::from(window) * secs;
                let at = (1_u32..).map(|i| from + f64::from(i) * step);
                curve.extend(at.zip(parts.iter().map(|bits| bits / 1e9)));
            }
            waited = waited.max(100.0 * found.wait());
            if window >= WINDOWS {
                kept.push(subject.kept(&found)?);
            }
        }
        for (vm, curve) in ["victim", "neighbour"].iter().zip(curves) {
            outcome.series(&format!("{title}: {vm}"), "Gbit/s", curve);
        }
        // A daemon ends when it runs.
        subject.rig.switch.resume()?;
        outcome.note(&format!("{name}_waited_for_a_core_pct_most"), waited);
        if waited > DISTURBED_PCT {
            eprintln!(
                "switch or load waited for a core for {waited:.0} % of a second: something else \
                 runs here, and the numbers are its as well"
            );
        }
        conclude(&mut outcome, name, super::fleet::middle(&kept));
    }
    Ok(outcome)
}

fn conclude(outcome: &mut Outcome, name: &str, kept: f64) {
    let what = "of what it bought, the victim keeps while its neighbour floods";
    let claim = Claim::new(&format!("{name}_victim_kept_pct"), what, "%").measured(kept);
    // What policing in bits does to the victim is shown, and promised by nobody.
    outcome.claim(if name == "c2qos" { claim.at_least(99.0) } else { claim });
}

/// Both lives side by side.
pub(crate) fn picture(record: &Record) -> Picture {
    let bought = record.platform.get("victim_bought_gbps").and_then(serde_json::Value::as_f64);
    let flood = record.platform.get("flood_begins_s").and_then(serde_json::Value::as_f64);
    let highest = record.series.iter().flat_map(|s| s.y.iter().copied()).fold(0.0, f64::max);
    let mut picture = Picture::new("A victim and a noisy neighbour on one switch core");
    for (_, title) in LIVES {
        let y = Axis::linear("bandwidth, Gbit/s").to(1.15 * highest.max(0.1));
        let mut panel = Panel::new(title, Axis::linear("time, s"), y);
        for vm in ["victim", "neighbour"] {
            if let Some(series) = record.series(&format!("{title}: {vm}")) {
                panel = panel.series(vm, series);
            }
        }
        if let Some(bought) = bought {
            panel = panel.published("the victim bought", bought);
        }
        if let Some(flood) = flood {
            panel = panel.event("the neighbour floods", flood);
        }
        picture = picture.panel(panel);
    }
    picture
}
