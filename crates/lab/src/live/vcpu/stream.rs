//! VM jitter, Figs. 2 and 6, live: a stream that a VM sends by itself.
//!
//! # Problem
//!
//! A VM may have all the processor time that it needs. It still sends late if it has that time at
//! the wrong moments.
//!
//! # Source
//!
//! VM jitter §II-A and §V-A. `figures/jitter_fig2.rs` and `_fig6.rs` say what the paper did.
//!
//! # Approach
//!
//! A micro-guest ([`crate::microguest`]) sends the packets of `jitter_fig8::stream` when they are
//! due. In each half second it computes for 60 % (Fig. 2) or 55 % (Fig. 6) of the time. When it has
//! nothing to send or to compute, it sleeps. In Fig. 6 it sleeps until there is something to do. In
//! Fig. 2, where it is alone on the core, it sleeps for 1, 10, 20 or 40 ms.
//!
//! Fig. 6 has weights 6 and 4, or 6, 2 and 2, under our scheduler with deadlines of 3, 5 and 8 ms.
//! For comparison it has the kernel's fair class with nice values of the same weights.
//!
//! The compared value is that of the paper's figures: the greatest delay variation between two
//! packets in a row, and J for Fig. 2. A packet's delay lasts from its due time to the guest's own
//! stamp. These live figures have no band of their own. The general band is 99.9 % within D + 1 ms.

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
/// Weights of the hogs, and nice values by which the fair class weighs the same. The streaming VM
/// has weight 6. A step of a nice value is a factor of 1.25: 6 over 4 is two steps, and 6 over 2 is
/// five.
const NEIGHBOURS: [(&[u16], i8); 3] = [(&[], 0), (&[4], 2), (&[2, 2], 5)];
/// Time between start and first packet. Schedulers have found their VMs by then.
const LEAD: Nanos = Nanos::from_secs(1);

/// A stream as it was sent.
struct Sent {
    /// Seconds, and J in ms after each packet.
    jitter: Vec<(f64, f64)>,
    /// Delay of each packet, in ms.
    delays: Vec<f64>,
    /// The greatest difference between the delays of two packets in a row, in ms.
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

/// The work of a VM that streams.
#[derive(Clone, Copy)]
struct Work {
    /// Load in percent of the core.
    load_pct: u64,
    /// Length of a sleep in ms. 0 means until there is something to do.
    pause_ms: u32,
}

/// Rounds per second of a guest that is alone and has a stream in the far future.
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

/// Lets `guest` send and waits until it has finished.
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
    // Waits for the last packets of a stream that is late.
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

/// Runs Fig. 2, which is shown without a bar.
///
/// # Errors
///
/// Fails if there is no KVM or if a guest fails.
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
        let what = format!("mean of RFC 3550's J, activated after {wait} ms");
        let claim = Claim::new(&format!("jitter_ms_mean_{wait}"), what, "ms");
        outcome.claim(claim.measured(found.mean_j()));
        means.push(found.mean_j());
    }
    outcome.series("mean", "ms", WAITS_MS.map(f64::from).into_iter().zip(means.iter().copied()));
    let what = "mean of J, activated after 40 ms over after 1 ms";
    let ratio = means[WAITS_MS.len() - 1] / means[0];
    outcome.claim(Claim::new("jitter_40_over_1", what, "").measured(ratio));
    Ok(outcome)
}

/// Runs Fig. 6.
///
/// # Errors
///
/// Fails for the same reasons as [`fig2`], and if real-time policies are not permitted.
pub(crate) fn fig6(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let (stage, mut outcome, speed) = begin(context)?;
    let secs = context.live.secs.unwrap_or(SECS).min(SECS);
    let run = (context.seed, secs, speed);
    outcome.note("secs", secs);
    let (mut done, mut fair) = (0.0, Vec::new());
    for (count, (hogs, nice)) in (0_u32..).zip(NEIGHBOURS) {
        context.progress(done / 12.0, format!("fair class, {count} hogs"));
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
    let what = "greatest delay variation under the fair class, beside two hogs";
    outcome.claim(Claim::new("fair_jitter_ms", what, "ms").measured(fair[2].1));
    for deadline in DEADLINES_MS {
        let (mut most, mut p999) = (Vec::new(), 0.0_f64);
        for (count, (hogs, _)) in (0_u32..).zip(NEIGHBOURS) {
            context.progress(done / 12.0, format!("D = {deadline} ms, {count} hogs"));
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
        let what = format!("99.9 % of packets are sent within, deadline of {deadline} ms");
        let claim = Claim::new(&format!("delay_ms_p999_d{deadline}"), what, "ms");
        outcome.claim(claim.at_most(f64::from(deadline) + 1.0).measured(p999));
    }
    Ok(outcome)
}

/// The stream under our scheduler.
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
    // A VM that is alone never waits for its processor, so waits cannot show that it is seated.
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

/// Fig. 6 of a live record.
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
