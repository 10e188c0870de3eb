//! `penstock-lab bench rr`: latency of single frames.
//!
//! # Approach
//!
//! The generator gives the switch one frame, reads the time-stamp counter, and polls the other VM
//! until the frame arrives. The measured time is the one-way time through the switch. The time
//! stamps of sending and receiving come from the same core. After a frame has arrived, the
//! generator sends the next frame immediately. The worker of each switch polls without pause,
//! unless `--idle-backoff-us` sets a pause for Penstock's worker.

use std::time::Duration;

use super::args::{RrArgs, Sizes};
use super::report::{Bar, Ratio, Report, Row};
use crate::rig::fleet::Fleet;
use crate::rig::link::Link;
use crate::rig::ovs::{self, OvsDpdk, Tso};
use crate::rig::pair::Latencies;
use crate::rig::penstock::{Offloads, Penstock};
use crate::rig::stats::to_f64;
use crate::rig::stats::{Spread, paired_ratio};
use crate::rig::switch::Case;
use crate::rig::{Rig, Sample, Timed};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Guard;
use penstock_guest::load::Rate;

/// Seconds for which the load runs before the measurement starts.
const WARM_UP_SECS: f64 = 0.1;
/// Reported percentiles: the percentage, the name of the metric, and whether its ratio has a
/// required value.
const PERCENTILES: [(f64, &str, bool); 3] = [
    (50.0, "latency_p50_ns", true),
    (99.0, "latency_p99_ns", true),
    (99.9, "latency_p99.9_ns", false),
];

impl Timed for Latencies {
    fn secs(&self) -> f64 {
        self.secs
    }

    fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

/// # Errors
///
/// Returns an error if a switch cannot be started, or if it fails later. A ratio that misses its
/// required value is not an error.
pub fn run(args: &RrArgs, guard: &Guard) -> anyhow::Result<Report> {
    if args.peer.is_some() {
        ovs::check()?;
    }
    let bed = Bed::new(&args.bed, guard.clone())?;
    let mut platform = bed.describe();
    let link = Link { ring_size: args.ring, packed: false, touch: true };
    let mut switches = vec![Rig::pair(&bed, Penstock::start(&bed, Offloads::Off)?, &link)?];
    if args.peer.is_some() {
        switches.push(Rig::pair(&bed, OvsDpdk::start(&bed, Tso::Off)?, &link)?);
    }
    for switch in &mut switches {
        switch.describe(&mut platform);
        switch.set_case(Case::L3)?;
    }
    platform.insert("secs".into(), args.secs.into());
    let mut report = Report { bench: "rr", platform, rows: Vec::new(), ratios: Vec::new() };
    for sizes in &args.sizes {
        let mut samples = vec![Vec::new(); switches.len()];
        for run in 1..=args.runs {
            for (switch, samples) in switches.iter_mut().zip(&mut samples) {
                let sample = sample(&bed, switch, sizes, args.secs)?;
                eprintln!(
                    "rr {}, run {run}/{}: {:<9} p50 {} p99 {} p99.9 {} ns of {} frames, waited \
                     {:.2} %",
                    sizes.name,
                    args.runs,
                    switch.switch.name(),
                    sample.window.percentile(50.0),
                    sample.window.percentile(99.0),
                    sample.window.percentile(99.9),
                    sample.window.frames(),
                    100.0 * sample.wait_share(),
                );
                samples.push(sample);
            }
        }
        let names: Vec<_> = switches.iter().map(|s| s.switch.name()).collect();
        add_rows(&mut report, sizes, &names, &samples);
    }
    Ok(report)
}

fn sample(
    bed: &Bed,
    switch: &mut Rig,
    sizes: &Sizes,
    secs: f64,
) -> anyhow::Result<Sample<Latencies>> {
    let tsc_hz = bed.tsc_hz();
    let measure = |fleet: &mut Fleet, secs| {
        fleet.send(&sizes.mix, 1, Rate::Max);
        fleet.one_at_a_time(Duration::try_from_secs_f64(secs)?, tsc_hz)
    };
    switch.sample(bed, |fleet| measure(fleet, WARM_UP_SECS).map(drop), |fleet| measure(fleet, secs))
}

fn add_rows(
    report: &mut Report,
    sizes: &Sizes,
    names: &[&str],
    samples: &[Vec<Sample<Latencies>>],
) {
    for (percentile, metric, has_bar) in PERCENTILES {
        let values = |samples: &[Sample<Latencies>]| -> Vec<f64> {
            samples.iter().map(|s| to_f64(s.window.percentile(percentile))).collect()
        };
        let mut rows = Vec::new();
        for (name, samples) in names.iter().zip(samples) {
            let Some(spread) = Spread::of(&values(samples)) else { continue };
            let mut row = Row::new("rr", sizes.to_json(), 1, name, metric, spread);
            let mut note = |name: &str, of: &dyn Fn(&Sample<Latencies>) -> f64| {
                if let Some(spread) = Spread::of(&samples.iter().map(of).collect::<Vec<_>>()) {
                    row.note(name, spread.median);
                }
            };
            note("frames", &|s| to_f64(s.window.frames()));
            note("lost", &|s| to_f64(s.window.lost));
            note("max_ns", &|s| to_f64(s.window.percentile(100.0)));
            note("cycles_per_packet", &Sample::cycles_per_frame);
            note("worker_wait_percent", &Sample::worker_wait_percent);
            note("generator_wait_percent", &Sample::generator_wait_percent);
            rows.push(row);
        }
        if let ([ours, theirs], [our_samples, their_samples]) = (&rows[..], samples) {
            let bar = if has_bar { Bar::AtMost(1.0) } else { Bar::None };
            if let Some(ratio) = paired_ratio(&values(our_samples), &values(their_samples)) {
                report.ratios.push(Ratio::of(ours, &theirs.subject, metric, ratio, bar));
            }
        }
        report.rows.append(&mut rows);
    }
}
