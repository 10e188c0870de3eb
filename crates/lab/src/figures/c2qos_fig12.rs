//! C2QoS, Fig. 12: two FTP servers and two web servers on one core.
//!
//! # Problem
//!
//! A web server sends small frames of many flows. Small frames of many flows cost many cycles per
//! byte and slow other VMs.
//!
//! # Source
//!
//! C2QoS §VI-C: two VMs that bought 4 Gbit/s each run FTP. Two VMs that bought 1 Gbit/s each run
//! nginx. The tool wrk loads nginx from 30 to 70 s. Under `bps`, the C2QoS paper reports that FTP
//! loses 11 % and that responses take twice as long as without FTP. Limits in cycles remove half of
//! the latency that FTP adds. Limits in cycles with HBS remove more than 80 % of the latency that
//! FTP adds.
//!
//! # Approach
//!
//! The FTP VMs keep their rings full of 1024 B frames. Each web server has two kinds of load:
//! requests for small objects, and waves of larger objects. The frames of small and larger objects
//! belong to many flows:
//!
//! - Small objects: each web server gets [`REQUESTS`] requests a second in bursts of four, with
//!   exponentially distributed gaps between the bursts. The web server answers each request with
//!   one frame of 128 B.
//! - Larger objects: the web servers send waves of 384 B frames, at a higher rate than the core can
//!   forward. A wave of larger objects lasts [`WAVE`], and a new wave begins every [`EVERY`].
//!
//! The VMs bought cycles for frames of 1024 B, as in §VI-A. The limits are strict for FTP
//! ("strictly guarantees"). The limits of the web servers are min-max, so the web servers may also
//! use idle cycles. The web servers are in class 1. The VMs are on three NUMA nodes; the core is on
//! another node. The C2QoS paper's factors multiply the costs of a frame by 1.07 (four VMs on
//! several nodes) and by 1.4 (memory on another node).
//!
//! # Why both loads
//!
//! FTP loses bandwidth only while round-robin gives FTP less than it bought. FTP gets less than it
//! bought while the web servers use more cycles than the core has beyond FTP's purchases. While FTP
//! gets less than it bought, FTP's bucket always has tokens, so limits in cycles do not change the
//! latency. Limits in cycles reduce the latency only while the FTP servers would get *more* cycles
//! than they bought. FTP would get more than it bought while the web servers have little to send.
//! FTP's loss and the effect of limits in cycles occur at different times, so the figure needs two
//! kinds of load.
//!
//! Waves of larger objects make FTP lose bandwidth. Requests for small objects measure the response
//! times. The claims are about the *median* response time, because most responses arrive between
//! waves of larger objects. The waves of larger objects determine the 99th percentile of the
//! response time, which the record also has.
//!
//! # Calibration
//!
//! The C2QoS paper does not print the length of a wave of larger objects, the frames in a wave, or
//! the rate of requests. The length of the waves of larger objects and the request rate were chosen
//! so that FTP loses as much as the C2QoS paper prints. The factor 2.67 for the look-ups of many
//! flows ([`super::paper_platform`]) was also fitted to results of the C2QoS paper. For comparison
//! and without bands, the record has results without waves of larger objects (`_no_waves`) and with
//! a factor of 1.67 (`_factor_1_67`).
//!
//! # What does not hold
//!
//! With limits in cycles alone, some 70 % of the latency that FTP adds remains, but the claim
//! permits at most 60 %. FTP still adds 66 us to the latency of responses. A fifth of the
//! latency that FTP still adds is time on the link. On the link, 8 Gbit/s of FTP frames are ahead
//! of the responses, whatever the schedule of the core. After each wave of larger objects, FTP also
//! sends the bits that it could not send during the wave. FTP's bucket has tokens while FTP catches
//! up after a wave of larger objects. Without priority classes, Penstock cannot remove more of the
//! latency that FTP adds.
//!
//! # Departures
//!
//! In reality, clients acknowledge every second large frame. The simulation omits FTP's
//! acknowledgements, because no VM bought cycles for them. The web servers are idle for 5 s instead
//! of 30 s, and loaded for 10 s instead of 40 s. The load is constant while the web servers are
//! loaded.

use penstock_dataplane::snapshot::IngressPolicy;
use penstock_sim::testbed::{Pace, Requests, Traffic};
use penstock_units::Nanos;

use super::paper_platform::{self as paper, Placement};
use super::paper_testbed::{self as testbed, Policy, Scenario, Sold, WARM_UP, delta_pct, gbps};
use crate::evidence::stats::{distribution, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "c2qos-fig12",
    source: "C2QoS §VI-C, Fig. 12",
    about: "FTP servers and web servers on one core",
    sim: Some(sim),
    live: Some(live::fig12),
    picture,
};

/// Requests per second to each web server.
const REQUESTS: f64 = 20_000.0;
/// Length of a wave of larger objects, and time between the starts of two waves.
const WAVE: Nanos = Nanos::from_micros(8_000);
const EVERY: Nanos = Nanos::from_millis(50);
/// Length of the part of a run with idle web servers. [`PRESSURE`] is the length of the part with
/// loaded web servers.
const CALM: Nanos = Nanos::from_secs(5);
const PRESSURE: Nanos = Nanos::from_secs(10);

/// A choice of those load parameters that the C2QoS paper does not print.
#[derive(Clone, Copy)]
struct Reading {
    /// Text in the names of series that identifies the choice of load parameters. The field
    /// `suffix` is the corresponding text at the end of the names of claims.
    name: &'static str,
    suffix: &'static str,
    waves: bool,
    /// Cycles to classify a frame of many flows. See [`Scenario`].
    many_flows: f64,
}

const READ: Reading =
    Reading { name: "", suffix: "", waves: true, many_flows: paper::CLASSIFICATION_MULTIPLE };
const OTHERS: [Reading; 2] = [
    Reading { name: " without waves", suffix: "_no_waves", waves: false, ..READ },
    Reading {
        name: " with 1.67",
        suffix: "_factor_1_67",
        many_flows: paper::CLASSIFICATION_IF_A_FACTOR,
        ..READ
    },
];

const POLICIES: [Policy; 4] = [Policy::None, Policy::Rates, Policy::Strict, Policy::StrictHbs];

/// Results of one run: the change of FTP's bandwidth in percent, and the web servers' response
/// times.
struct Found {
    ftp_delta_pct: f64,
    /// Response times of the web servers in microseconds.
    us: Vec<f64>,
}

fn run(
    ctx: &Context<'_>,
    sold: &[Sold],
    (policy, reading): (Policy, Reading),
    outcome: &mut Outcome,
) -> anyhow::Result<Found> {
    let scenario = Scenario {
        placement: Placement::SeveralNodes,
        many_flows: reading.many_flows,
        ..Scenario::new(ctx.seed, sold, policy).remote()
    };
    let mut host = scenario.build()?;
    let (ftp, web) = host.vms.split_at(2);
    let (ftp, web) = (ftp.to_vec(), web.to_vec());
    let from = WARM_UP + ctx.scaled(CALM);
    let until = from + ctx.scaled(PRESSURE);
    if policy != Policy::None {
        for vm in &ftp {
            host.bed.send(*vm, Nanos::ZERO, Traffic::greedy(1024));
        }
    }
    for vm in &web {
        let mut qos = host.bed.qos(*vm);
        if qos.ingress == IngressPolicy::CyclesStrict {
            qos.ingress = IngressPolicy::CyclesMinmax;
        }
        host.bed.set_qos(*vm, qos);
        let wave = Traffic {
            pace: Pace::FramesPerSecond(400_000.0),
            ..Traffic::greedy(384).with_many_flows()
        };
        host.bed.send(*vm, Nanos::ZERO, Traffic::off());
        let mut at = from;
        while reading.waves && at < until {
            host.bed.send(*vm, at, wave.clone());
            host.bed.send(*vm, at + WAVE, Traffic::off());
            at += EVERY;
        }
        host.bed.serve(
            *vm,
            Requests {
                from,
                until,
                bursts_per_second: REQUESTS / 4.0,
                burst: 4,
                response_frames: 1,
                service: Nanos::from_micros(20),
                outside: Nanos::from_micros(30),
                size: 128,
            },
        );
    }
    let record = host.record(until.saturating_sub(WARM_UP), ctx.scaled(Nanos::from_millis(250)));
    let name = format!("{}{}", policy.name(), reading.name);
    record.add_to(outcome, &name);
    let secs = |time: Nanos| testbed::float(time.saturating_sub(WARM_UP).0) / 1e9;
    let both = |from, until| {
        let span = (secs(from), secs(until));
        record.gbps(0, span) + record.gbps(1, span)
    };
    let us = web.iter().flat_map(|vm| host.bed.responses(*vm));
    let us: Vec<f64> = us.map(|t| testbed::float(t.took.0) / 1e3).collect();
    outcome.series(&format!("{name} responses"), "share", distribution(&us));
    Ok(Found { ftp_delta_pct: delta_pct(both(WARM_UP, from), both(from, until)), us })
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let sold = [
        gbps(4.0, 1024)?.in_class(2),
        gbps(4.0, 1024)?.in_class(2),
        gbps(1.0, 1024)?.in_class(1),
        gbps(1.0, 1024)?.in_class(1),
    ];
    let mut outcome = Outcome::new();
    testbed::describe(&mut outcome);
    outcome.calibrated([
        "waves of 8 ms in every 50 ms, 400,000 frames/s of 384 B, and 20,000 requests/s",
        "FTP's loss under bps, and the added latency with cycles",
        "no waves, claims with _no_waves",
    ]);
    let [parameter, fitted_to] = paper::TOLD;
    outcome.calibrated([parameter, fitted_to, "1.67 times, claims with _factor_1_67"]);
    let mut found = Vec::new();
    for (done, policy) in (0_u32..).zip(POLICIES) {
        ctx.progress(f64::from(done) / 12.0, policy.name());
        found.push(run(ctx, &sold, (policy, READ), &mut outcome)?);
    }
    claims(&mut outcome, &found)?;
    for (nth, reading) in (1_u32..).zip(OTHERS) {
        let mut found = Vec::new();
        for (done, policy) in (0_u32..).zip(POLICIES) {
            ctx.progress(f64::from(4 * nth + done) / 12.0, reading.name);
            found.push(run(ctx, &sold, (policy, reading), &mut outcome)?);
        }
        show(&mut outcome, reading, &found)?;
    }
    Ok(outcome)
}

/// Returns the median response time in microseconds.
fn median(found: &Found) -> f64 {
    percentile(&found.us, 50.0)
}

/// Returns the median latency that `found` adds to `native`, in percent of the median latency that
/// `bps` adds to `native`.
fn left([native, bps, found]: [&Found; 3]) -> f64 {
    100.0 * (median(found) - median(native)) / (median(bps) - median(native))
}

/// Adds the claims for a load with other parameters than the main load. Claims about loads with
/// other parameters have no bands.
fn show(outcome: &mut Outcome, reading: Reading, found: &[Found]) -> anyhow::Result<()> {
    let [native, bps, cycles, hbs] = found else { anyhow::bail!("four runs") };
    let Reading { name, suffix, .. } = reading;
    for (id, what, published, value) in [
        ("bps_ftp_delta_pct", "FTP's change under bps", -11.0, bps.ftp_delta_pct),
        (
            "added_latency_left_pct_cycles_only",
            "added latency that remains with cycles alone",
            50.0,
            left([native, bps, cycles]),
        ),
        (
            "added_latency_left_pct_hbs",
            "added latency that remains with cycles and HBS",
            20.0,
            left([native, bps, hbs]),
        ),
    ] {
        let claim =
            Claim::new(&format!("{id}{suffix}"), format!("another reading,{name}: {what}"), "%");
        outcome.claim(claim.published(published).measured(value));
    }
    Ok(())
}

fn claims(outcome: &mut Outcome, found: &[Found]) -> anyhow::Result<()> {
    let [native, bps, cycles, hbs] = found else { anyhow::bail!("four runs") };
    let what = "bps: FTP's change when the web servers are loaded";
    let claim = Claim::new("bps_ftp_delta_pct", what, "%");
    outcome.claim(claim.published(-11.0).within(-20.0, -5.0).measured(bps.ftp_delta_pct));
    let what = "cycles: FTP's change when the web servers are loaded";
    let claim = Claim::new("c2tb_ftp_delta_pct", what, "%");
    outcome.claim(claim.published(0.0).within(-1.0, 1.0).measured(cycles.ftp_delta_pct));
    let what = "cycles and HBS: FTP's change when the web servers are loaded";
    let claim = Claim::new("c2qos_ftp_delta_pct", what, "%");
    outcome.claim(claim.measured(hbs.ftp_delta_pct));
    let what = "share of bps's added median latency that remains with cycles alone";
    let claim = Claim::new("added_latency_left_pct_cycles_only", what, "%");
    outcome.claim(claim.published(50.0).at_most(60.0).measured(left([native, bps, cycles])));
    let what = "share of bps's added median latency that remains with cycles and HBS";
    let claim = Claim::new("added_latency_left_pct_hbs", what, "%");
    outcome.claim(claim.published(20.0).at_most(20.0).measured(left([native, bps, hbs])));
    for (policy, found) in POLICIES.into_iter().zip(found) {
        for percent in [50.0, 99.0] {
            let id = format!("{}_p{percent}_us", policy.name().replace(" + ", "_"));
            let us = percentile(&found.us, percent);
            outcome.claim(Claim::new(&id, "response time", "us").measured(us));
        }
    }
    Ok(())
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::picture(record, "time, s (rates); percentile (responses)");
    }
    let mut picture = Picture::new("C2QoS, Fig. 12: web servers are loaded from 5 s on");
    for policy in &POLICIES[1..] {
        picture = picture.panel(testbed::panel(record, policy.name(), "bandwidth", "Gbit/s"));
    }
    let mut panel = Panel::new("responses", Axis::log("us"), Axis::linear("part of all").to(1.0));
    for policy in POLICIES {
        if let Some(series) = record.series(&format!("{} responses", policy.name())) {
            panel = panel.series(policy.name(), series);
        }
    }
    picture.panel(panel)
}
