//! Live experiment for VM jitter's Fig. 7 with a Linux guest. The guest shares its core with five
//! busy VMs, computes all the time, and receives a ping every 0.1 s.
//!
//! # Problem
//!
//! In the module `pings`, an answer is a guest's first instruction. In the module `linux_pings`, an
//! answer is the echo reply that a user sees. The path of a ping includes QEMU, a virtio card and
//! the guest's kernel.
//!
//! # Approach
//!
//! The experiment compares p50, p90 and p99 under Linux's fair class and under a deadline of 3 ms.
//! A ping's time lasts from sending the request to receiving the reply. With a deadline of 3 ms,
//! p99 must be lower by a factor of at least three. A ping without a reply within a second counts
//! as one second.

use std::time::Duration;

use anyhow::ensure;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use penstock_sim::Rng;
use penstock_units::Nanos;
use penstock_vcpu_host::boost;
use std::os::fd::AsFd as _;

use super::bed::{Stage, Terms, to_ms};
use super::events::{now, sleep_until};
use super::qemu::{Image, Linux};
use super::wire::{Heard, hear, ping};
use crate::evidence::{Claim, Context, Outcome, percentile};

const HOGS: usize = 5;
const DEADLINE_MS: u32 = 3;
const EVERY: Nanos = Nanos::from_millis(100);
const LATE: u64 = 1_000_000;
/// Time after which an unanswered ping is lost.
const LOST: Nanos = Nanos::from_secs(1);
const SETTLE: Nanos = Nanos::from_secs(2);
/// Minimum factor by which the Penstock scheduler must reduce the 99th percentile of the pings'
/// times.
const LOWER: f64 = 3.0;
const PERCENTS: [f64; 4] = [50.0, 90.0, 99.0, 100.0];

/// Measures a Linux guest, and adds the results to the outcome. If QEMU or the guest image is
/// missing, the function adds only the reason to the outcome.
pub(super) fn enter(
    context: &Context<'_>,
    stage: &Stage,
    secs: f64,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let image = match Image::find() {
        Ok(image) => image,
        Err(why) => {
            outcome.note("qemu", format!("skipped: {why}"));
            return Ok(());
        }
    };
    let fair = cell(context, stage, &image, None, secs)?;
    let accel = fair.accel;
    let ours = cell(context, stage, &image, Some(accel), secs)?;
    outcome.note("qemu", format!("{accel}, one virtual processor"));
    for (id, name, found) in [("fair", "fair class", &fair), ("d3", "D = 3 ms", &ours)] {
        let name = format!("QEMU, {name}, {HOGS} neighbours");
        let numbered = (0_u32..).map(f64::from).zip(found.answers.iter().copied());
        outcome.series(&name, "ms", numbered.collect::<Vec<_>>());
        let at = PERCENTS.map(|percent| format!("{:.3}", percentile(&found.answers, percent)));
        let told = format!("{}; {} lost", at.join(", "), found.lost);
        outcome.note(&format!("{name}: p50, p90, p99, max, ms"), told);
        for percent in [50, 90, 99] {
            let what = format!("ping to a Linux guest beside {HOGS} busy VMs, {name}, p{percent}");
            let value = percentile(&found.answers, f64::from(percent));
            let claim = Claim::new(&format!("qemu_{id}_p{percent}_ms"), what, "ms");
            outcome.claim(claim.measured(value));
        }
    }
    let ratio = percentile(&fair.answers, 99.0) / percentile(&ours.answers, 99.0);
    let what = "ping to a Linux guest: p99 under the fair class over ours, beside five busy VMs";
    outcome.claim(Claim::new("qemu_fair_over_ours_p99", what, "").at_least(LOWER).measured(ratio));
    Ok(())
}

#[derive(Debug)]
struct Found {
    accel: &'static str,
    answers: Vec<f64>,
    lost: u32,
}

/// Measures pings under the fair class if `accel` is `None`, or else under the Penstock scheduler.
/// `accel` is the QEMU accelerator that the first measurement used.
fn cell(
    context: &Context<'_>,
    stage: &Stage,
    image: &Image,
    accel: Option<&'static str>,
    secs: f64,
) -> anyhow::Result<Found> {
    let ours = accel.is_some();
    context.progress(0.95, format!("a Linux guest, ours: {ours}"));
    // The guest boots before the other VMs start. Beside five busy VMs, booting would take six
    // times as long.
    let linux = Linux::start(stage, image, accel)?;
    let _hogs = stage.guests(HOGS, secs)?;
    let mut scheduler = None;
    if ours {
        let mut text = linux.table(DEADLINE_MS);
        for nth in 0..HOGS {
            text += &Terms::HOG.table(&Stage::named(nth));
        }
        scheduler.insert(stage.schedule_tables(&text)?).await_seated(HOGS + 1)?;
    }
    sleep_until(now() + SETTLE);
    let mut rng = Rng::new(context.seed);
    let work = || pings(stage, &linux, ours, secs, &mut rng);
    let (answers, lost) = stage.bed.on_generator_core(work)?;
    drop(scheduler);
    ensure!(!answers.is_empty(), "no ping was answered");
    Ok(Found { accel: linux.accel, answers, lost })
}

/// Sends pings for `secs` seconds. Returns the pings' times in ms, and the number of lost pings.
fn pings(
    stage: &Stage,
    linux: &Linux,
    told: bool,
    secs: f64,
    rng: &mut Rng,
) -> anyhow::Result<(Vec<f64>, u32)> {
    let end = now() + Nanos(penstock_guest::clock::nanos(Duration::from_secs_f64(secs)));
    let (mut answers, mut lost, mut number) = (Vec::new(), 0, 0_u16);
    let mut due = now();
    while due < end {
        sleep_until(due);
        // Answer ARP requests of the guest that arrived meanwhile.
        while let Some(frame) = next(linux, now())? {
            answer(linux, &frame)?;
        }
        number = number.wrapping_add(1);
        let at = now();
        linux.wire.send(&ping(linux.us, linux.guest, number))?;
        if told {
            boost::event(stage.run_dir(), &linux.name)?;
        }
        let mut came = None;
        while let Some(frame) = next(linux, at + LOST)? {
            if answer(linux, &frame)? == Some(number) {
                came = Some(to_ms(now().saturating_sub(at)));
                break;
            }
        }
        // The first ping does not count, because it waits for ARP.
        if number > 1 {
            lost += u32::from(came.is_none());
            answers.push(came.unwrap_or_else(|| to_ms(LOST)));
        }
        due = due.max(now().saturating_sub(EVERY)) + EVERY + Nanos(rng.below(LATE));
    }
    Ok((answers, lost))
}

/// Returns the sequence number if `frame` is an echo reply. Answers the frame if it is an ARP
/// request for the sender's address.
fn answer(linux: &Linux, frame: &[u8]) -> anyhow::Result<Option<u16>> {
    match hear(linux.us, frame) {
        Heard::Pong(number) => return Ok(Some(number)),
        Heard::Asked(answer) => {
            linux.wire.send(&answer)?;
        }
        Heard::Other => {}
    }
    Ok(None)
}

/// Waits for the guest's next frame. Returns `None` if no frame arrives before `limit`.
fn next(linux: &Linux, limit: Nanos) -> anyhow::Result<Option<Vec<u8>>> {
    let mut frame = [0; 2_048];
    loop {
        match linux.wire.recv(&mut frame) {
            Ok(length) => return Ok(Some(frame[..length].to_vec())),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let left = limit.saturating_sub(now());
        if left == Nanos(0) {
            return Ok(None);
        }
        let mut fds = [PollFd::new(linux.wire.as_fd(), PollFlags::POLLIN)];
        let left = TimeSpec::from_duration(Duration::from_nanos(left.0));
        // If a signal interrupts the wait, the loop repeats it.
        let _ = ppoll(&mut fds, Some(left), None);
    }
}
