//! VM jitter, Fig. 6: a stream beside compute-bound VMs.
//!
//! # Problem
//!
//! A VM that streams and encodes needs less than its share of the processor. A VM that streams and
//! encodes sends late, because it gets its processor share at the wrong times.
//!
//! # Source
//!
//! VM jitter §V-A, Fig. 6: a streaming VM needs about 55 % of a processor and has a share of 60 %.
//! One or two compute-bound VMs share the other 40 % of the processor. The VM jitter paper compares
//! Xen's credit scheduler with its own scheduler, with deadlines of 3, 5 and 8 ms.
//!
//! # Approach
//!
//! The VMs' weights are 6 and 4, or 6, 2 and 2. With Penstock's scheduler, the streaming VM yields
//! the processor when it is idle, and only its deadline wakes it. In the VM jitter paper, a VM that
//! sends without an external event does "self-initiated I/O" (§II-A, §III-A). Self-initiated I/O is
//! the worst case for Penstock's scheduler.
//!
//! With Xen's scheduler, the VM's timers wake the VM. Timers are the best case for Xen, because Xen
//! boosts the priority of a VM that wakes while it has credits. The figure also shows Penstock's
//! scheduler with timers that wake the VM.
//!
//! The figure compares the greatest delay variation between two consecutive packets (RFC 3393) over
//! 60 s. A VM's deadline bounds the delay variation between two consecutive packets.
//!
//! The interarrival jitter J of RFC 3550 is shown without a band, because J averages over sixteen
//! differences. With one packet per 5.5 ms, a pause of 60 ms adds only two large differences to
//! hundreds of small differences. The mean of the interarrival jitter J stays below 11 ms, however
//! long VMs pause. The VM jitter paper does not say which numbers of Wireshark it draws, so the
//! bands are the figure's own requirements.
//!
//! # Departures
//!
//! The jitter J differs between a VM alone and a VM beside compute-bound VMs. A streaming VM alone
//! pauses only when it is idle. Beside compute-bound VMs, a streaming VM also pauses between two
//! slices while it encodes. No pause of the streaming VM is longer than the VM's deadline, but the
//! pauses are more frequent beside compute-bound VMs. With a deadline of 3 ms and seed 1, the mean
//! of J (RFC 3550) is 0.42 ms alone and 0.67 ms beside compute-bound VMs.

use penstock_sim::vcpu::{GuestSpec, Idle};
use penstock_units::Nanos;
use penstock_vcpu::{Contract, Mode};

use super::vcpu_bed::{Stream, credit1, double_queue, start, streaming, terms, weight};
use crate::evidence::{
    Axis, Claim, Context, Experiment, Mode as RunMode, Outcome, Panel, Picture, Record,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig6",
    source: "VM jitter §V-A, Fig. 6",
    about: "an RTP stream beside compute-bound VMs, by credit and with deadlines",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig6),
    picture,
};

const LOAD_PCT: u64 = 55;
const SPAN: Nanos = Nanos::from_secs(60);
const DEADLINES_MS: [u32; 3] = [3, 5, 8];
/// Weights of the compute-bound VMs in each run. The streaming VM has weight 6.
const NEIGHBOURS: [&[u64]; 3] = [&[], &[4], &[2, 2]];

fn stream(
    ctx: &Context<'_>,
    deadline_ms: Option<u32>,
    hogs: &[u64],
    idle: Idle,
) -> anyhow::Result<Stream> {
    let span = ctx.scaled(SPAN);
    let deadline = deadline_ms.map(|ms| Nanos::from_millis(u64::from(ms)));
    let make = if deadline.is_some() { double_queue } else { credit1 };
    let mut bed = make(ctx.seed);
    let contract = terms(Mode::Periodic, deadline, weight(6)?);
    let guest = start(&mut bed, &contract, streaming(ctx.seed, span, LOAD_PCT, idle))?;
    for hog in hogs {
        start(&mut bed, &Contract::by_credit(weight(*hog)?), GuestSpec::hog())?;
    }
    bed.run_until(span + Nanos::from_secs(1));
    Ok(Stream::of(&bed, guest))
}

/// Adds a stream's series and claims to the outcome.
fn show(outcome: &mut Outcome, id: &str, name: &str, found: &Stream) {
    outcome.series(name, "ms", found.thinned());
    for (what, text, value) in [
        ("j_ms_mean", "mean of RFC 3550's J", found.mean()),
        ("j_ms_max", "greatest of RFC 3550's J", found.max()),
    ] {
        let claim = Claim::new(&format!("{id}_{what}"), format!("{name}: {text}"), "ms");
        outcome.claim(claim.measured(value));
    }
}

/// Returns the percentage by which the greatest value exceeds the least value. The function returns
/// 0 if all values are 0.
fn spread_pct(values: &[f64]) -> f64 {
    let most = values.iter().copied().fold(0.0, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    if most > 0.0 { 100.0 * (most / least - 1.0) } else { 0.0 }
}

fn xen(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut steps = Vec::new();
    for (count, hogs) in (0_u32..).zip(NEIGHBOURS) {
        let found = stream(ctx, None, hogs, Idle::Blocks)?;
        let name = format!("credit1, {count} neighbours");
        show(outcome, &format!("credit1_n{count}"), &name, &found);
        steps.push((f64::from(count), found.variation_max));
    }
    outcome.series("variation credit1", "ms", steps.clone());
    let what = "greatest delay variation with Xen's credit scheduler, beside two busy VMs";
    let claim = Claim::new("credit1_jitter_ms", what, "ms").at_least(10.0);
    outcome.claim(claim.measured(steps[NEIGHBOURS.len() - 1].1));
    Ok(())
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("load_pct", LOAD_PCT);
    xen(ctx, &mut outcome)?;
    let (mut apart, mut apart_j): (f64, f64) = (0.0, 0.0);
    for deadline in DEADLINES_MS {
        let (mut most, mut means, mut timers) = (Vec::new(), Vec::new(), 0.0_f64);
        for (count, hogs) in (0_u32..).zip(NEIGHBOURS) {
            ctx.progress(f64::from(deadline) / 10.0, format!("D = {deadline} ms, {count} hogs"));
            let found = stream(ctx, Some(deadline), hogs, Idle::Yields)?;
            let name = format!("D = {deadline} ms, {count} neighbours");
            show(&mut outcome, &format!("d{deadline}_n{count}"), &name, &found);
            means.push(found.mean());
            most.push((f64::from(count), found.variation_max));
            let woken = stream(ctx, Some(deadline), hogs, Idle::Blocks)?;
            timers = timers.max(woken.variation_max);
        }
        outcome.series(&format!("variation {deadline} ms"), "ms", most.clone());
        let most: Vec<f64> = most.iter().map(|point| point.1).collect();
        apart = apart.max(spread_pct(&most));
        apart_j = apart_j.max(spread_pct(&means));
        let what = format!("greatest delay variation with a deadline of {deadline} ms");
        let claim = Claim::new(&format!("jitter_ms_d{deadline}"), what, "ms");
        let worst = most.iter().copied().fold(0.0, f64::max);
        outcome.claim(claim.at_most(f64::from(deadline) + 0.5).measured(worst));
        let what = format!("greatest delay variation with timers and a deadline of {deadline} ms");
        let claim = Claim::new(&format!("jitter_ms_d{deadline}_timers"), what, "ms");
        outcome.claim(claim.measured(timers));
    }
    let what = "difference of the greatest delay variation beside 0, 1 and 2 busy VMs";
    outcome.claim(Claim::new("neighbours_apart_pct", what, "%").at_most(10.0).measured(apart));
    let what = "difference of the mean of J beside 0, 1 and 2 busy VMs";
    outcome.claim(Claim::new("neighbours_apart_pct_mean_j", what, "%").measured(apart_j));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == RunMode::Live {
        return crate::live::jitter_fig6_picture(record);
    }
    let time = |title: &str, prefix: &str| {
        let mut panel = Panel::new(title, Axis::linear("time, s"), Axis::linear("J, ms"));
        for (rest, series) in record.series_of(prefix).collect::<Vec<_>>().into_iter().rev() {
            panel = panel.series(rest.trim_start_matches(", "), series);
        }
        panel
    };
    let mut variation = Panel::new(
        "(c) greatest delay variation",
        Axis::named("hogs beside", ["0", "1", "2"]),
        Axis::linear("ms"),
    );
    for (name, series) in record.series_of("variation ") {
        variation = variation.bars(name, crate::evidence::picture::points(series));
    }
    Picture::new("VM jitter, Fig. 6: an RTP stream beside hogs")
        .panel(time("(a) by credit: RFC 3550's J", "credit1"))
        .panel(time("(b) deadline 3 ms", "D = 3 ms"))
        .panel(variation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn a_deadline_bounds_what_neighbours_do_for_any_seed() {
        assert_holds("jitter-fig6", sim, &[1, 20]);
    }
}
