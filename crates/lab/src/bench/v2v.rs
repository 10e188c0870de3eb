//! `penstock-lab bench v2v`: one VM sends frames to another VM through one worker.
//!
//! # Approach
//!
//! Runs with Penstock and runs with the switch under comparison alternate (A B A B). Both switches
//! get the same load on the same kind of sockets. The cycles per frame are the cycles of the
//! worker's turns that moved frames, divided by the number of frames. The counters of cycles and
//! frames are read while no frame is in flight.

use anyhow::ensure;

use super::args::{Sizes, V2vArgs};
use super::report::{Bar, Ratio, Report, Row};
use crate::rig::fleet::Fleet;
use crate::rig::link::Link;
use crate::rig::ovs::{self, OvsDpdk};
use crate::rig::pair::SettledWindow;
use crate::rig::penstock::{Offloads, Penstock, Qos};
use crate::rig::stats::to_f64;
use crate::rig::stats::{Spread, paired_ratio};
use crate::rig::switch::Case;
use crate::rig::{self, Rig};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Guard;
use penstock_guest::load::Rate;

/// Seconds for which the load runs before the measurement, so that caches and tables are warm.
const WARM_UP_SECS: f64 = 0.2;
/// A worker that is busy for at least this percentage of a window is the bottleneck.
const SATURATED_PERCENT: f64 = 95.0;
/// Name of the Penstock variant without metering and classes, which is the baseline of
/// `--against-plain`.
const PLAIN: &str = "penstock-plain";
/// Name of the Penstock variant with a `fifo` output queue, which is the baseline of `--shared`.
const FIFO: &str = "penstock-fifo";
/// Frequency in Hz to which cycles are scaled before they are compared with a fixed number of
/// cycles.
const BAR_HZ: f64 = 2.0e9;

#[derive(Debug, Clone)]
struct Load {
    case: Case,
    sizes: Sizes,
    flows: u32,
    rate: Rate,
    /// Whether frames leave the switch through one uplink and return through another.
    outside: bool,
}

/// Result of one switch in one measured window of a case.
type Sample = rig::Sample<SettledWindow>;

fn mpps(sample: &Sample) -> f64 {
    to_f64(sample.window.rx_frames) / sample.window.secs / 1e6
}

fn gbps(sample: &Sample) -> f64 {
    let bytes = sample.window.rx_bytes + 4 * sample.window.rx_frames;
    to_f64(bytes) * 8.0 / sample.window.secs / 1e9
}

/// Measures one switch in a window of `secs` seconds.
fn sample(bed: &Bed, switch: &mut Rig, load: &Load, secs: f64) -> anyhow::Result<Sample> {
    let run = |fleet: &mut Fleet, secs| {
        fleet.send(&load.sizes.mix, load.flows, load.rate);
        fleet.run_and_settle(secs)
    };
    let sample =
        switch.sample(bed, |fleet| run(fleet, WARM_UP_SECS).map(drop), |fleet| run(fleet, secs))?;
    let (name, bad) = (switch.switch.name(), sample.window.bad);
    ensure!(bad == 0, "{name}: {bad} frames arrived with wrong bytes");
    Ok(sample)
}

/// # Errors
///
/// Returns an error if a switch cannot be started, or if it fails later. A ratio that misses its
/// required value is not an error.
pub fn run(args: &V2vArgs, guard: &Guard) -> anyhow::Result<Report> {
    if args.peer.is_some() {
        ovs::check()?;
    }
    let bed = Bed::new(&args.bed, guard.clone())?;
    let mut platform = bed.describe();
    let link = Link { ring_size: args.ring, packed: args.packed, touch: !args.no_touch };
    let qos = Qos {
        schedule: args.schedule.clone(),
        policy: args.policy.clone(),
        egress: args.shared.then_some("fair-share"),
    };
    let fifo = Qos { egress: Some("fifo"), ..qos.clone() };
    let ours = Penstock::start_as(&bed, "penstock", Offloads::Off, qos, args.through)?;
    let mut switches = vec![Rig::pair(&bed, ours, &link)?];
    if args.against_plain {
        let plain = Penstock::start_as(&bed, PLAIN, Offloads::Off, Qos::default(), None)?;
        switches.push(Rig::pair(&bed, plain, &link)?);
    }
    if args.shared {
        let fifo = Penstock::start_as(&bed, FIFO, Offloads::Off, fifo, None)?;
        switches.push(Rig::pair(&bed, fifo, &link)?);
    }
    if args.peer.is_some() {
        switches.push(Rig::pair(&bed, OvsDpdk::start_through(&bed, args.through)?, &link)?);
    }
    for switch in &switches {
        switch.describe(&mut platform);
    }
    platform.insert("ring_size".into(), args.ring.into());
    platform.insert("touched".into(), (!args.no_touch).into());
    platform.insert("secs".into(), args.secs.into());
    platform.insert("offered".into(), args.offered.as_deref().unwrap_or("full").into());

    let mut report = Report { bench: "v2v", platform, rows: Vec::new(), ratios: Vec::new() };
    for load in loads(args)? {
        let samples = pairs(&bed, &mut switches, &load, args)?;
        add_rows(&mut report, &load, &switches, &samples);
    }
    Ok(report)
}

/// Returns the loads that the command line of `bench v2v` requests. The case `simple-match` is
/// measured with one flow only, because more flows would not change its result.
fn loads(args: &V2vArgs) -> anyhow::Result<Vec<Load>> {
    let rate = match &args.offered {
        None => Rate::Max,
        Some(text) => text.parse().map_err(|e| anyhow::anyhow!("--offered {text}: {e}"))?,
    };
    let mut loads = Vec::new();
    for &case in &args.cases {
        for sizes in &args.sizes {
            let one = [1];
            let flows = if case == Case::SimpleMatch { &one[..] } else { &args.flows };
            for &flows in flows {
                let outside = args.through.is_some();
                loads.push(Load { case, sizes: sizes.clone(), flows, rate, outside });
            }
        }
    }
    Ok(loads)
}

/// Runs the switches in turns (A B A B). Returns the results of each switch, in the order of its
/// runs.
fn pairs(
    bed: &Bed,
    switches: &mut [Rig],
    load: &Load,
    args: &V2vArgs,
) -> anyhow::Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::new(); switches.len()];
    for switch in switches.iter_mut() {
        switch.set_case(load.case)?;
    }
    for run in 1..=args.runs {
        for (switch, samples) in switches.iter_mut().zip(&mut samples) {
            let sample = sample(bed, switch, load, args.secs)?;
            eprintln!(
                "{} {} {} flows, run {run}/{}: {:<9} {:6.3} Mpps {:6.1} cycles per frame, \
                 worker busy {:.0} %, waited {:.2} %",
                load.case.name(),
                load.sizes.name,
                load.flows,
                args.runs,
                switch.switch.name(),
                mpps(&sample),
                sample.cycles_per_frame(),
                sample.worker_busy_percent(),
                100.0 * sample.wait_share(),
            );
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn add_rows(report: &mut Report, load: &Load, switches: &[Rig], samples: &[Vec<Sample>]) {
    let mut rows = Vec::new();
    for (switch, samples) in switches.iter().zip(samples) {
        rows.extend(row(load, switch.switch.name(), samples));
    }
    if let [ours, theirs] = &rows[..] {
        let values =
            |i: usize, of: fn(&Sample) -> f64| samples[i].iter().map(of).collect::<Vec<_>>();
        let cycles = |i| values(i, Sample::cycles_per_frame);
        let bar = match theirs.subject.as_str() {
            PLAIN => plain_bar(load),
            FIFO => Bar::AtLeast(0.99),
            _ => relative_bar(load),
        };
        if let Some(ratio) = paired_ratio(&cycles(1), &cycles(0)) {
            report.ratios.push(Ratio::of(ours, &theirs.subject, "cycles_per_packet", ratio, bar));
        }
        // If the generator is the bottleneck, the rates are its rates, and no bar applies.
        let saturated = ours.detail.get("worker_busy_percent").and_then(serde_json::Value::as_f64);
        let judged = saturated.is_some_and(|busy| busy >= SATURATED_PERCENT);
        let bar = if judged { bar } else { Bar::None };
        let rates = |i| values(i, mpps);
        if let Some(ratio) = paired_ratio(&rates(0), &rates(1)) {
            report.ratios.push(Ratio::of(ours, &theirs.subject, "mpps", ratio, bar));
        }
        let hz = samples[0].first().map_or(BAR_HZ, |s| s.tsc_hz);
        let short = (load.case, load.sizes.name.as_str()) == (Case::L3, "64");
        // The absolute bar applies only without an output queue and without uplinks.
        if short && load.flows == 1 && !load.outside && theirs.subject != FIFO {
            let scaled = ours.median * BAR_HZ / hz;
            let metric = "cycles_per_packet_at_2_ghz";
            report.ratios.push(Ratio::of(ours, "absolute", metric, scaled, Bar::AtMost(130.0)));
        }
    }
    report.rows.append(&mut rows);
}

/// Returns the required ratio of Penstock's rate with metering and classes to its rate without
/// metering and classes.
fn plain_bar(load: &Load) -> Bar {
    match load.sizes.name.as_str() {
        "64" => Bar::AtLeast(0.97),
        "1518" => Bar::AtLeast(0.99),
        _ => Bar::None,
    }
}

/// Returns the required ratio of the other switch's cycles per frame to Penstock's cycles per
/// frame.
fn relative_bar(load: &Load) -> Bar {
    let full = load.rate == Rate::Max && !load.outside;
    match (load.case, load.sizes.name.as_str(), load.flows) {
        _ if !full => Bar::None,
        (Case::L3, "64", 1 | 1000) | (Case::L3, "1518", 1 | 100_000) => Bar::AtLeast(2.0),
        (Case::L3, "64", 100_000) => Bar::AtLeast(3.0),
        (Case::SimpleMatch, "64", _) => Bar::AtLeast(1.6),
        (Case::L3, "512", 1 | 100_000) => Bar::AtLeast(2.2),
        _ => Bar::None,
    }
}

fn row(load: &Load, subject: &str, samples: &[Sample]) -> Option<Row> {
    let spread =
        |of: &dyn Fn(&Sample) -> f64| Spread::of(&samples.iter().map(of).collect::<Vec<_>>());
    let cycles = spread(&Sample::cycles_per_frame)?;
    let (case, size) = (load.case.name(), load.sizes.to_json());
    let mut row = Row::new(case, size, load.flows, subject, "cycles_per_packet", cycles);
    row.cycles_per_packet = Some(row.median);
    row.mpps = spread(&mpps).map(|s| super::report::round(s.median));
    row.gbps = spread(&gbps).map(|s| super::report::round(s.median));
    let mut note = |name: &str, of: &dyn Fn(&Sample) -> f64| {
        if let Some(spread) = spread(of) {
            row.note(name, spread.median);
        }
    };
    note("ns_per_packet", &|s| s.cycles_per_frame() / s.tsc_hz * 1e9);
    note("worker_busy_percent", &Sample::worker_busy_percent);
    note("worker_wait_percent", &Sample::worker_wait_percent);
    note("generator_wait_percent", &Sample::generator_wait_percent);
    // If this value is 100 under full load, the generator is the bottleneck: each turn of its loop
    // moved frames.
    note("generator_busy_percent", &|s| 100.0 * (1.0 - s.window.idle_secs / s.window.secs));
    note("lost_percent", &|s| 100.0 * to_f64(s.window.lost()) / to_f64(s.window.tx_frames.max(1)));
    for (i, (name, _)) in samples[0].worker.notes.iter().enumerate() {
        note(name, &|s| s.worker.notes.get(i).map_or(0.0, |(_, value)| *value));
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::switch::WorkerReading;

    fn load(case: Case, size: u16, flows: u32) -> Load {
        Load { case, sizes: Sizes::fixed(size), flows, rate: Rate::Max, outside: false }
    }

    fn sample(busy_cycles: u64) -> Sample {
        let window = SettledWindow {
            secs: 1.0,
            tx_frames: 1_000_000,
            rx_frames: 990_000,
            rx_bytes: 990_000 * 60,
            idle_secs: 0.6,
            waited_ns: 5_000_000,
            ..SettledWindow::default()
        };
        let notes = vec![("cycles_egress", 7.0)];
        let worker = WorkerReading { frames: 1_000_000, busy_cycles, waited_ns: 1, notes };
        Sample { window, worker, tsc_hz: 1e9 }
    }

    #[test]
    fn a_row_has_rates_cycles_and_what_explains_them() {
        let samples = [sample(150_000_000), sample(140_000_000), sample(170_000_000)];
        let row = row(&load(Case::L3, 64, 1), "penstock", &samples).unwrap();
        assert_eq!(row.cycles_per_packet, Some(150.0));
        assert_eq!((row.min, row.max, row.runs), (140.0, 170.0, 3));
        assert_eq!((row.mpps, row.gbps), (Some(0.99), Some(0.5069)));
        assert_eq!(row.detail["worker_busy_percent"], 15.0);
        assert_eq!(row.detail["generator_wait_percent"], 0.5);
        assert_eq!(row.detail["generator_busy_percent"], 40.0);
        assert_eq!(row.detail["lost_percent"], 1.0);
        assert_eq!(row.detail["cycles_egress"], 7.0);
        assert!((samples[0].wait_share() - 0.005).abs() < 1e-9);
    }

    #[test]
    fn the_bars_are_those_that_were_promised() {
        let bar = |case, size, flows| relative_bar(&load(case, size, flows));
        assert_eq!(bar(Case::L3, 64, 1), Bar::AtLeast(2.0));
        assert_eq!(bar(Case::L3, 64, 1000), Bar::AtLeast(2.0));
        assert_eq!(bar(Case::L3, 64, 100_000), Bar::AtLeast(3.0));
        assert_eq!(bar(Case::SimpleMatch, 64, 1), Bar::AtLeast(1.6));
        assert_eq!(bar(Case::L3, 512, 100_000), Bar::AtLeast(2.2));
        assert_eq!(bar(Case::L3, 1518, 1), Bar::AtLeast(2.0));
        assert_eq!(bar(Case::L3, 256, 1), Bar::None);
        let paced = Load { rate: Rate::Frames(1e6), ..load(Case::L3, 64, 1) };
        assert_eq!(relative_bar(&paced), Bar::None);
        let outside = Load { outside: true, ..load(Case::L3, 64, 1) };
        assert_eq!(relative_bar(&outside), Bar::None);
    }
}
