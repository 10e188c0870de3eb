//! Live experiments for VM jitter's Figs. 2 and 6: a VM sends a stream.
//!
//! # Problem
//!
//! A VM may receive all the CPU time that it needs, but at the wrong moments. A VM that runs at the
//! wrong moments sends its packets late.
//!
//! # Source
//!
//! The experiments replay VM jitter §II-A and §V-A. The files `figures/jitter_fig2.rs` and
//! `figures/jitter_fig6.rs` describe the paper's experiments.
//!
//! # Approach
//!
//! A micro-guest ([`crate::microguest`]) sends the packets of `jitter_fig8::stream` when they are
//! due. In each half second, the guest computes for 60 % (Fig. 2) or 55 % (Fig. 6) of the time, and
//! otherwise sleeps. In Fig. 6, the guest sleeps until its next packet or computation is due. In
//! Fig. 2, the guest is alone on the core and sleeps for 1, 10, 20 or 40 ms.
//!
//! In Fig. 6, the VM that sends has weight 6. The sending VM is alone, or beside one VM of weight
//! 4, or beside two VMs of weight 2. The VM runs under the Penstock scheduler with deadlines of 3,
//! 5 and 8 ms. For comparison, the VM runs under the kernel's fair class, with nice values that
//! match the weights.
//!
//! Fig. 6 compares the greatest delay variation between two consecutive packets, as in the paper.
//! Fig. 2 compares J, the jitter of RFC 3550, as in the paper. A packet's delay lasts from its due
//! time to the guest's own time stamp. Only one limit is required: with a deadline of D ms, 99.9 %
//! of packets must leave within D + 1 ms.

use std::time::Duration;

use penstock_dataplane::tsc::{CycleCounter as _, Tsc};
use penstock_qos::delay::{Jitter, Variation};
use penstock_units::{Cycles, Nanos};

use super::bed::{Guest, Mode, Stage, Terms, to_ms};
use super::events::{now, sleep_until};
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record, percentile};
use crate::jitter::stream::{CLOCK, stream};
use crate::microguest::Stream;
use crate::rig::platform;

const SECS: f64 = 60.0;
const PERIOD: Nanos = Nanos::from_millis(500);
const DEADLINES_MS: [u32; 3] = [3, 5, 8];
const WAITS_MS: [u32; 4] = [1, 10, 20, 40];
/// Weights of the other VMs, and their equivalent nice values. The streaming VM has weight 6 and
/// nice value 0. One step of the nice value changes the weight by a factor of 1.25. A VM of weight
/// 4 has nice value 2, and a VM of weight 2 has nice value 5.
const NEIGHBOURS: [(&[u16], i8); 3] = [(&[], 0), (&[4], 2), (&[2, 2], 5)];
/// Time between the start of the stream and its first packet, which is enough for the scheduler to
/// find the VMs.
const LEAD: Nanos = Nanos::from_secs(1);

/// Measurements of a stream of packets that a guest sent.
struct Sent {
    /// Pairs for all packets: the packet's due time in seconds, and the jitter J (RFC 3550) after
    /// the packet in ms.
    jitter: Vec<(f64, f64)>,
    /// Delay of each packet in ms, from its due time to its sending.
    delays: Vec<f64>,
    /// Greatest difference between the delays of two consecutive packets, in ms.
    variation_max: f64,
}

impl Sent {
    fn of(stage: &Stage, due: &[u64], times: &[Nanos], sent: &[u64]) -> Self {
        let (mut j, mut variation) = (Jitter::new(CLOCK), Variation::new());
        let mut found = Self { jitter: Vec::new(), delays: Vec::new(), variation_max: 0.0 };
        for ((due, time), sent) in due.iter().zip(times).zip(sent) {
            let delay = stage.hz.to_nanos(Cycles(sent.saturating_sub(*due)));
            let units = u128::from(time.0) * u128::from(CLOCK) / 1_000_000_000;
            #[expect(clippy::cast_possible_truncation, reason = "timestamps go round")]
            j.record(*time + delay, units as u32);
            variation.record(delay);
            let at = Duration::from_nanos(time.0).as_secs_f64();
            found.jitter.push((at, to_ms(j.nanos())));
            found.delays.push(to_ms(delay));
        }
        found.variation_max = to_ms(variation.sizes().max());
        found
    }

    fn mean_j(&self) -> f64 {
        let count = u32::try_from(self.jitter.len()).map_or(f64::NAN, f64::from);
        self.jitter.iter().map(|point| point.1).sum::<f64>() / count
    }

    fn thinned(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.jitter.iter().copied().step_by(8)
    }
}

/// Work that the sending VM does besides its stream.
#[derive(Clone, Copy)]
struct Work {
    /// Computing load of the VM, in percent of the core.
    load_pct: u64,
    /// Length of each sleep of the VM in ms. The value 0 means that the VM sleeps until its next
    /// packet or computation is due.
    pause_ms: u32,
}

/// Measures how many rounds of its loop per second a guest computes. The guest is alone on the core
/// and does not send.
fn speed(stage: &Stage) -> anyhow::Result<u64> {
    let guest = stage.guest(0, 1.0)?;
    let far = Tsc.now().0 + stage.hz.to_cycles(Nanos::from_secs(3_600)).0;
    let endless = Stream { due: vec![far], work: u64::MAX, period: far, pause_ns: 0 };
    guest.board.stream(&endless)?;
    sleep_until(now() + Nanos::from_millis(50));
    let (rounds, ran) = (guest.board.rounds(), guest.ran()?);
    sleep_until(now() + Nanos::from_millis(300));
    let (rounds, ran) = (guest.board.rounds() - rounds, guest.ran()? - ran);
    Ok(u64::try_from(u128::from(rounds) * 1_000_000_000 / ran.as_nanos().max(1))?)
}

/// Makes `guest` send the stream, and waits until the stream has ended.
fn play(
    stage: &Stage,
    guest: &Guest,
    (seed, secs, speed): (u64, f64, u64),
    work: Work,
) -> anyhow::Result<Sent> {
    let span = Nanos(penstock_guest::clock::nanos(Duration::from_secs_f64(secs)));
    let times: Vec<Nanos> =
        stream(seed).into_iter().map(|(due, _)| due).take_while(|due| *due < span).collect();
    let begin = Tsc.now().0 + stage.hz.to_cycles(LEAD).0;
    let due: Vec<u64> = times.iter().map(|at| begin + stage.hz.to_cycles(*at).0).collect();
    let rounds = speed / 1_000 * (PERIOD.0 / 1_000_000) / 100 * work.load_pct;
    let period = stage.hz.to_cycles(PERIOD).0;
    let pause_ns = u64::from(work.pause_ms) * 1_000_000;
    guest.board.stream(&Stream { due: due.clone(), work: rounds, period, pause_ns })?;
    sleep_until(now() + LEAD + span);
    // The last packets may be late, so wait for them.
    let limit = now() + Nanos::from_secs(2);
    while guest.board.sent().len() < due.len() && now() < limit {
        sleep_until(now() + Nanos::from_millis(10));
    }
    let sent = guest.board.sent();
    anyhow::ensure!(
        sent.len() == due.len(),
        "of {} packets only {} were sent: the core is too slow for the stream",
        due.len(),
        sent.len()
    );
    Ok(Sent::of(stage, &due, &times, &sent))
}

fn begin(context: &Context<'_>) -> anyhow::Result<(Stage, Outcome, u64)> {
    let stage = Stage::new(context)?;
    let mut outcome = Outcome { platform: platform(&stage.bed, false), ..Outcome::default() };
    outcome.note("accelerator", "kvm, ring-3 micro-guests");
    let speed = speed(&stage)?;
    outcome.note("rounds_per_s", speed);
    Ok((stage, outcome, speed))
}

/// Runs the live experiment of VM jitter's Fig. 2. The claims about Fig. 2 have no required range.
///
/// # Errors
///
/// Returns an error if there is no KVM, or if a guest fails.
pub(crate) fn fig2(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (stage, mut outcome, speed) = begin(context)?;
    let secs = context.live.secs.unwrap_or(SECS).min(SECS);
    let mut means = Vec::new();
    for (nth, wait) in (0_u32..).zip(WAITS_MS) {
        context.progress(f64::from(nth) / 4.0, format!("{wait} ms"));
        let guest = stage.guest(0, secs)?;
        let work = Work { load_pct: 60, pause_ms: wait };
        let found = play(&stage, &guest, (context.seed, secs, speed), work)?;
        outcome.series(&format!("jitter {wait} ms"), "ms", found.thinned());
        let what = format!("mean of RFC 3550's J, with sleeps of {wait} ms");
        let claim = Claim::new(&format!("jitter_ms_mean_{wait}"), what, "ms");
        outcome.claim(claim.measured(found.mean_j()));
        means.push(found.mean_j());
    }
    outcome.series("mean", "ms", WAITS_MS.map(f64::from).into_iter().zip(means.iter().copied()));
    let what = "mean of J: sleeps of 40 ms over sleeps of 1 ms";
    let ratio = means[WAITS_MS.len() - 1] / means[0];
    outcome.claim(Claim::new("jitter_40_over_1", what, "").measured(ratio));
    Ok(outcome)
}

/// Runs the live experiment of VM jitter's Fig. 6.
///
/// # Errors
///
/// Returns an error for the same reasons as [`fig2`], and if real-time policies are not permitted.
pub(crate) fn fig6(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (stage, mut outcome, speed) = begin(context)?;
    let secs = context.live.secs.unwrap_or(SECS).min(SECS);
    let run = (context.seed, secs, speed);
    outcome.note("secs", secs);
    let (mut done, mut fair) = (0.0, Vec::new());
    for (count, (hogs, nice)) in (0_u32..).zip(NEIGHBOURS) {
        context.progress(done / 12.0, format!("fair class, {count} busy VMs"));
        let guests = stage.guests(1 + hogs.len(), secs)?;
        for hog in &guests[1..] {
            hog.set_nice(nice)?;
        }
        guests[0].set_nice(0)?;
        let found = play(&stage, &guests[0], run, Work { load_pct: 55, pause_ms: 0 })?;
        enter(&mut outcome, &format!("fair class, {count} neighbours"), &found);
        fair.push((f64::from(count), found.variation_max));
        done += 1.0;
    }
    outcome.series("variation fair class", "ms", fair.clone());
    let what = "greatest delay variation under the fair class, beside two busy VMs";
    outcome.claim(Claim::new("fair_jitter_ms", what, "ms").measured(fair[2].1));
    for deadline in DEADLINES_MS {
        let (mut most, mut p999) = (Vec::new(), 0.0_f64);
        for (count, (hogs, _)) in (0_u32..).zip(NEIGHBOURS) {
            context.progress(done / 12.0, format!("D = {deadline} ms, {count} busy VMs"));
            let found = ours(&stage, run, deadline, hogs)?;
            enter(&mut outcome, &format!("D = {deadline} ms, {count} neighbours"), &found);
            most.push((f64::from(count), found.variation_max));
            p999 = p999.max(percentile(&found.delays, 99.9));
            done += 1.0;
        }
        outcome.series(&format!("variation {deadline} ms"), "ms", most.clone());
        let worst = most.iter().map(|point| point.1).fold(0.0, f64::max);
        let what = format!("greatest delay variation with a deadline of {deadline} ms");
        let claim = Claim::new(&format!("jitter_ms_d{deadline}"), what, "ms");
        outcome.claim(claim.measured(worst));
        let what = format!("p99.9 of the packets' delay with a deadline of {deadline} ms");
        let claim = Claim::new(&format!("delay_ms_p999_d{deadline}"), what, "ms");
        outcome.claim(claim.at_most(f64::from(deadline) + 1.0).measured(p999));
    }
    Ok(outcome)
}

/// Measures the stream under the Penstock scheduler.
fn ours(
    stage: &Stage,
    run: (u64, f64, u64),
    deadline_ms: u32,
    hogs: &[u16],
) -> anyhow::Result<Sent> {
    let guests = stage.guests(1 + hogs.len(), run.1)?;
    let hog = |weight: &u16| Terms { weight: *weight, ..Terms::HOG };
    let mut terms = vec![Terms { mode: Mode::Periodic, deadline_ms, weight: 6 }];
    terms.extend(hogs.iter().map(hog));
    let mut scheduler = stage.schedule(&terms)?;
    // A VM that is alone never waits for its core. So its waits cannot show that the scheduler has
    // found it.
    if !hogs.is_empty() {
        scheduler.await_seated(terms.len())?;
    }
    play(stage, &guests[0], run, Work { load_pct: 55, pause_ms: 0 })
}

fn enter(outcome: &mut Outcome, name: &str, found: &Sent) {
    outcome.series(name, "J, ms", found.thinned());
    outcome.note(&format!("{name}: mean of J, ms"), found.mean_j());
    let at = |percent| percentile(&found.delays, percent);
    outcome.note(
        &format!("{name}: delay, ms"),
        format!(
            "p50 {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}",
            at(50.0),
            at(99.0),
            at(99.9),
            at(100.0)
        ),
    );
}

/// Draws the picture of Fig. 6 from a live record.
pub(crate) fn fig6_picture(record: &Record) -> Picture {
    let mut picture = Picture::new("VM jitter, Fig. 6, live: an RTP stream beside hogs");
    for (title, prefix) in [("(a) fair class", "fair class, "), ("(b) D = 3 ms", "D = 3 ms, ")] {
        let mut panel = Panel::new(title, Axis::linear("time, s"), Axis::linear("J, ms"));
        for (rest, series) in record.series_of(prefix).collect::<Vec<_>>().into_iter().rev() {
            panel = panel.series(rest, series);
        }
        picture = picture.panel(panel);
    }
    let axis = Axis::named("hogs beside", ["0", "1", "2"]);
    let mut panel = Panel::new("(c) greatest delay variation", axis, Axis::linear("ms"));
    for (name, series) in record.series_of("variation ") {
        panel = panel.bars(name, crate::evidence::picture::points(series));
    }
    picture.panel(panel)
}
