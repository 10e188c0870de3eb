//! VM jitter, Fig. 2: a stream from a VM that is activated late.
//!
//! # Problem
//!
//! A VM may get all the processor time that it needs and still send in bursts. A VM sends in bursts
//! if it gets processor time too late.
//!
//! # Source
//!
//! VM jitter §II-A, Fig. 2: a VM alone on a processor sends RTP and uses about 60 % of the
//! processor. Each time the VM yields, the scheduler activates it again after 1, 10, 20 or 40 ms.
//!
//! # Approach
//!
//! The figure uses the streaming VM of the module `vcpu_bed`. As in the VM jitter paper, the VM's
//! timers do not wake the VM. The scheduler in Fig. 2 is Xen's credit scheduler.
//!
//! The figure measures the interarrival jitter J of RFC 3550 where packets leave the machine. The
//! figure compares the mean of J over 60 s for the four activation delays. The mean jitter J (RFC
//! 3550) must be greater if the VM is activated after a longer delay. With an activation delay of
//! 40 ms, the mean jitter J must be at least five times as great as with 1 ms. The VM jitter paper
//! prints no values of J, so the bands are the figure's own requirements.

use penstock_sim::vcpu::Idle;
use penstock_units::Nanos;
use penstock_vcpu::Contract;

use super::vcpu_bed::{Stream, credit1, start, streaming, weight};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};

pub const EXPERIMENT: Experiment = Experiment {
    name: "jitter-fig2",
    source: "VM jitter §II-A, Fig. 2",
    about: "an RTP stream from a VM that is activated late",
    sim: Some(sim),
    live: Some(crate::live::jitter_fig2),
    picture,
};

/// Delays until the scheduler activates the VM again, in ms.
const WAITS: [u32; 4] = [1, 10, 20, 40];
const LOAD_PCT: u64 = 60;
const SPAN: Nanos = Nanos::from_secs(60);

fn stream(ctx: &Context<'_>, wait: u32) -> anyhow::Result<Stream> {
    let span = ctx.scaled(SPAN);
    let idle = Idle::ActivatedAfter(Nanos::from_millis(u64::from(wait)));
    let mut bed = credit1(ctx.seed);
    let terms = Contract::by_credit(weight(1)?);
    let guest = start(&mut bed, &terms, streaming(ctx.seed, span, LOAD_PCT, idle))?;
    bed.run_until(span + Nanos::from_secs(1));
    Ok(Stream::of(&bed, guest))
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("load_pct", LOAD_PCT);
    let mut means = Vec::new();
    for wait in WAITS {
        let found = stream(ctx, wait)?;
        outcome.series(&format!("jitter {wait} ms"), "ms", found.thinned());
        let what = format!("mean of RFC 3550's J, activated after {wait} ms");
        let claim = Claim::new(&format!("jitter_ms_mean_{wait}"), what, "ms");
        outcome.claim(claim.measured(found.mean()));
        means.push(found.mean());
    }
    outcome.series("mean", "ms", WAITS.map(f64::from).into_iter().zip(means.iter().copied()));
    let what = "the mean of J grows with the delay of the activation";
    let monotone = means.windows(2).all(|pair| pair[0] < pair[1]);
    outcome.claim(Claim::truth("jitter_grows_with_the_wait", what, monotone));
    let what = "mean of J at 40 ms divided by that at 1 ms";
    let ratio = means[WAITS.len() - 1] / means[0];
    outcome.claim(Claim::new("jitter_40_over_1", what, "").at_least(5.0).measured(ratio));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    let y = || Axis::linear("RFC 3550's J, ms");
    let mut time = Panel::new("(a) over time", Axis::linear("time, s"), y());
    for wait in WAITS.iter().rev() {
        if let Some(series) = record.series(&format!("jitter {wait} ms")) {
            time = time.series(format!("{wait} ms"), series);
        }
    }
    let means = record.series("mean").map(points).into_iter().flatten();
    let mean = Panel::new("(b) mean", Axis::linear("activated after, ms"), y()).line("J", means);
    Picture::new("VM jitter, Fig. 2: a stream from a VM that is activated late")
        .panel(time)
        .panel(mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn waits_make_jitter_for_any_seed() {
        assert_holds("jitter-fig2", sim, &[1, 20]);
    }
}
