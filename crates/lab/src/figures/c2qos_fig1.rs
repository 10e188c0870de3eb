//! C2QoS, Fig. 1: what limits in bits and in frames a second do not see.
//!
//! **Problem.** VM1 changes what it sends, within its limit, and VM2 loses bandwidth. **Source.**
//! C2QoS §II-B: two VMs, one I/O core, 2 + 8 Gbit/s of 512 B, then VM1 sends 64 B (`bps`); 0.6 +
//! 2.4 M
//! frames/s of one flow, then VM1 sends many flows (`pps`). 10 s before the event, 10 s after.
//!
//! **How it is read.** "They behave well", and "their bandwidths are precisely limited": both send
//! what they bought, evenly; in the second phase VM1 goes on to ask for its 2 Gbit/s ("in order to
//! achieve the same throughput"). Senders at their maximum are not meant: what a limiter drops has
//! cost its ingress, and VM2 would not have had its 8 Gbit/s in the first place.
//!
//! 2 + 8 Gbit/s are all of the link, so they are counted as the link counts them, with preambles
//! and gaps; bandwidths shown are of frames alone.
//!
//! **The size of (c), (d)** is not printed. 3.0 M frames/s of 64 B leave a tenth of our core idle,
//! more than VM1's look-ups take: nobody would lose. That the paper's VM2 loses at once says that
//! its core was sold out. [`SOLD_OUT`] is the largest size at which the table forwards what was
//! sold (99.5 % of the core); so VM2 pays for every look-up, and for nothing else.
//!
//! **With C2QoS** both have what they bought in cycles (strict, one class), by a model with errors
//! that learns; the events are the same.

use penstock_sim::testbed::Traffic;
use penstock_units::Nanos;

use super::claim::Claim;
use super::experiment::{Context, Experiment, Mode};
use super::outcome::{Outcome, Record};
use super::paper_testbed::{
    self as testbed, Policy, Scenario, Sold, WARM_UP, delta_pct, gbps, mpps,
};
use super::picture::Picture;
use crate::live;

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig1",
    source: "C2QoS §II-B, Fig. 1",
    about: "a VM hurts its neighbour within its limit in bits or frames a second",
    sim: Some(sim),
    live: Some(live::fig1),
    picture,
};

/// Bytes of a frame in (c) and (d).
const SOLD_OUT: u16 = 228;
/// The event.
const EVENT: Nanos = Nanos::from_secs(10);

/// How VM2 fares: (before, after) in M frames/s.
fn run(
    ctx: &Context<'_>,
    sold: &[Sold; 2],
    (before, after): (Traffic, Traffic),
    policy: Policy,
    (outcome, name): (&mut Outcome, &str),
) -> anyhow::Result<f64> {
    let mut host = Scenario::new(ctx.seed, sold, policy).build()?;
    let [vm1, vm2] = host.vms[..] else { anyhow::bail!("two VMs") };
    host.bed.send(vm2, Nanos::ZERO, Traffic { pace: pace(&sold[1]), ..before.clone() });
    host.bed.send(vm1, Nanos::ZERO, before);
    host.bed.send(vm1, WARM_UP + ctx.scaled(EVENT), after);
    let record = host.record(ctx.scaled(EVENT + EVENT), ctx.scaled(Nanos::from_millis(500)));
    record.add_to(outcome, name);
    let rate = |span| record.mpps(1, ctx.span(span));
    Ok(delta_pct(rate((0.0, 10.0)), rate((10.0, 20.0))))
}

fn pace(sold: &Sold) -> penstock_sim::testbed::Pace {
    penstock_sim::testbed::Pace::FramesPerSecond(sold.frames())
}

/// Part of a link's bits that are frames of so many bytes.
fn payload(size: u16) -> f64 {
    f64::from(size) / (f64::from(size) + 20.0)
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    outcome.note("size_of_pps", SOLD_OUT);
    let bits = [gbps(2.0 * payload(512), 512)?, gbps(8.0 * payload(512), 512)?];
    let frames = [mpps(0.6, SOLD_OUT)?, mpps(2.4, SOLD_OUT)?];
    let size = (
        Traffic::paced(512, bits[0].frames()),
        // The same bits on the wire.
        Traffic::paced(64, 2e9 * payload(64) / 512.0),
    );
    let single = Traffic::paced(SOLD_OUT.into(), frames[0].frames());
    let flows = (single.clone(), single.with_many_flows());
    let rows = [
        ("bps", &bits, &size, Policy::Rates),
        ("pps", &frames, &flows, Policy::Rates),
        ("c2qos size event", &bits, &size, Policy::StrictHbs),
        ("c2qos flow event", &frames, &flows, Policy::StrictHbs),
    ];
    let mut delta = Vec::new();
    for (done, (name, sold, traffic, policy)) in (0_u32..).zip(rows) {
        ctx.progress(f64::from(done) / 4.0, name);
        delta.push(run(ctx, sold, traffic.clone(), policy, (&mut outcome, name))?);
    }
    let claims = [
        ("bps_victim_delta_pct", "bps: VM2 loses when VM1 sends 64 B", Some(-20.0), (-30.0, -10.0)),
        (
            "pps_victim_delta_pct",
            "pps: VM2 loses when VM1 sends many flows",
            Some(-16.0),
            (-25.0, -8.0),
        ),
        ("c2qos_size_event_victim_delta_pct", "cycles: VM1 sends 64 B", None, (-1.0, 1.0)),
        ("c2qos_flow_event_victim_delta_pct", "cycles: VM1 sends many flows", None, (-1.0, 1.0)),
    ];
    for ((id, what, published, (low, high)), delta) in claims.into_iter().zip(delta) {
        let claim = Claim::new(id, what, "%").within(low, high).measured(delta);
        outcome.claim(published.map_or(claim.clone(), |value| claim.published(value)));
    }
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "time, s (rates); number of the case (shares)");
    }
    let mut picture = Picture::new("C2QoS, Fig. 1: VM1 changes what it sends at 10 s");
    for name in ["bps", "pps", "c2qos size event", "c2qos flow event"] {
        picture = picture
            .panel(testbed::panel(record, name, "bandwidth", "Gbit/s"))
            .panel(testbed::panel(record, name, "core", "% of the core"));
    }
    picture
}
