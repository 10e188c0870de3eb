//! `penstock-lab bench mesh`: many ports send at once, to each other or to one uplink.
//!
//! # Problem
//!
//! With more ports, a worker polls more rings, and the frames of a batch leave by more outputs. A
//! frame costs more cycles on a switch with more ports. The benchmark `v2v` has only two VMs and
//! does not show the cost of many ports.
//!
//! # Approach
//!
//! The benchmark starts a new switch for each combination of a number of ports and a number of
//! workers. Every VM sends as many frames as its ring takes, one frame to each other VM in turn. A
//! batch of 32 frames can leave by up to 32 outputs, which is the hardest case for a switch. With
//! `--uplink`, all frames leave by one AF_XDP port on a veth interface. Runs of Penstock and of the
//! peer alternate (A B A B).
//!
//! Cycles per frame are the charged cycles of all workers, divided by the frames that the workers
//! received. The benchmark reads the counters while no frame is in flight. A run is an error if one
//! of the VMs received no frame from one of the other VMs.
//!
//! # Which part was the limit
//!
//! If the worker was busy for [`SATURATED_PERCENT`] of a window, the worker was the bottleneck. If
//! the worker was less busy, the load generator may have been the bottleneck. If the generator is
//! the bottleneck, batches are smaller, and a frame seems to cost more.
//!
//! # Workers beside the load
//!
//! If no other core is free, the last worker shares the generator's core. A generator that never
//! pauses would fill the rings while the worker has no core, and most frames would be lost. The
//! generator sends in rounds: it sends some frames, and waits until the switch has delivered the
//! frames. Idle workers sleep, so that the generator gets the shared core at once. Penstock's
//! cycles exclude the time in which a worker has no core. OVS does not measure the time without a
//! core, so the benchmark does not read the counters of an OVS thread on the shared core. The rates
//! reported for a shared core include the generator's waits between its sending rounds. Rows with a
//! shared core are not comparable with rows of a generator that never pauses.
//!
//! # Departures
//!
//! The cycles of an uplink include the kernel's work on the veth interface, which a real interface
//! does not need.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, ensure};

use super::args::{MeshArgs, PORTS_MAX, Sizes};
use super::report::{Bar, Ratio, Report, Row, plain, round};
use crate::rig::fleet::Fleet;
use crate::rig::link::{Link, Rounds};
use crate::rig::ovs;
use crate::rig::pair::SettledWindow;
use crate::rig::plan::{AllTo, Plan, Vm};
use crate::rig::stats::{Spread, paired_ratio, to_f64};
use crate::rig::through::{Outside, check_uplink, uplink};
use crate::rig::{self, Rig, Timed};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Guard;
use penstock_guest::load::Rate;

pub(super) const NAME: &str = "mesh";
/// Seconds for which the load runs before the measurement, so that caches and tables are warm.
const WARM_UP_SECS: f64 = 0.2;
/// A worker that is busy for at least this percentage of a window is the bottleneck.
const SATURATED_PERCENT: f64 = 95.0;
/// Longest sleep of an idle worker, in microseconds, if the generator and a worker share a core. A
/// worker that polls would keep the core from the generator for milliseconds, and rings would
/// overflow.
const SHARED_IDLE_US: u32 = 50;
/// Numbers of file descriptors that the benchmark needs for each port, and for everything else. A
/// switch needs at most 12 descriptors for a port, and the generator of two switches needs 14.
const DESCRIPTORS: (usize, usize) = (16, 256);
/// Default numbers of ports if all ports send to each other.
const MESH_PORTS: [usize; 4] = [2, 8, 16, 64];
/// Default numbers of ports if all ports send to an uplink.
const UPLINK_PORTS: [usize; 3] = [1, 4, 16];

/// Numbers of frames that VMs received, indexed by the receiver's number and then by the sender's
/// number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Ways(Vec<Vec<u64>>);

impl Ways {
    /// Returns the increase of each counter since the reading `before`.
    fn since(&self, before: &Self) -> Self {
        let grown = |(now, then): (&Vec<u64>, &Vec<u64>)| {
            now.iter().zip(then).map(|(now, then)| now - then).collect()
        };
        Self(self.0.iter().zip(&before.0).map(grown).collect())
    }

    /// Returns the sender and the receiver between which the fewest frames passed, and the number
    /// of these frames. Returns `None` if there are fewer than two VMs.
    fn least(&self) -> Option<(usize, usize, u64)> {
        let rows = self.0.iter().enumerate();
        let pairs = rows.flat_map(|(to, row)| {
            row.iter().enumerate().map(move |(from, frames)| (from, to, *frames))
        });
        pairs.filter(|(from, to, _)| from != to).min_by_key(|(_, _, frames)| *frames)
    }
}

/// Counters of one switch in one measured window.
#[derive(Debug, Clone)]
struct MeshWindow {
    all: SettledWindow,
    /// Seconds from the start of the window until the last frame moved. Frames in full rings still
    /// move after the generator stops.
    secs: f64,
    /// Fewest frames that passed from one VM to another. `None` if the VMs send to an uplink.
    least: Option<u64>,
}

impl Timed for MeshWindow {
    fn secs(&self) -> f64 {
        self.secs
    }

    fn waited_ns(&self) -> u64 {
        self.all.waited_ns
    }
}

type Sample = rig::Sample<MeshWindow>;

fn mpps(sample: &Sample) -> f64 {
    to_f64(sample.window.all.rx_frames) / sample.window.secs / 1e6
}

fn gbps(sample: &Sample) -> f64 {
    let bytes = sample.window.all.rx_bytes + 4 * sample.window.all.rx_frames;
    to_f64(bytes) * 8.0 / sample.window.secs / 1e9
}

fn lost_percent(sample: &Sample) -> f64 {
    let all = &sample.window.all;
    100.0 * to_f64(all.lost()) / to_f64(all.tx_frames.max(1))
}

/// Configuration of a switch under test: the number of ports, and the cores of the workers.
#[derive(Debug, Clone)]
struct Point {
    ports: usize,
    cores: Vec<u32>,
    /// Whether the generator shares a core with a worker.
    shared: bool,
    uplink: bool,
}

impl Point {
    /// Returns the name of the configuration in reports, such as `mesh-2-workers`.
    fn case(&self) -> String {
        let (to, workers) = (if self.uplink { "uplink" } else { NAME }, self.cores.len());
        format!("{to}-{workers}-worker{}", if workers == 1 { "" } else { "s" })
    }

    /// Returns the number of flows: each VM has one flow to each destination.
    fn flows(&self) -> u32 {
        let targets = if self.uplink { 1 } else { self.ports - 1 };
        u32::try_from(self.ports * targets).unwrap_or(u32::MAX)
    }

    fn plan(&self, bed: &Bed, args: &MeshArgs, switch: &str) -> anyhow::Result<Plan> {
        let vms = (1..=self.ports).map(|number| Vm::sink(&vm_name(number))).collect();
        let mut plan = Plan::new("round-robin", vms);
        let name = format!("{switch}-{}-{}", self.ports, self.cores.len());
        plan.all_to = Some(match self.uplink {
            false => AllTo::Others,
            true => AllTo::Uplink(uplink(bed, &name)?),
        });
        plan.cores.clone_from(&self.cores);
        plan.idle_backoff_us = bed.idle_backoff_us();
        if self.shared {
            plan.idle_backoff_us = plan.idle_backoff_us.max(SHARED_IDLE_US);
            "idle_turns = 1\n".clone_into(&mut plan.worker);
            plan.rounds = if self.uplink { Rounds::UntilTaken } else { Rounds::UntilArrived };
        }
        plan.link = Some(Link { ring_size: args.ring, packed: false, touch: !args.no_touch });
        Ok(plan)
    }
}

fn vm_name(number: usize) -> String {
    format!("vm{number}")
}

/// A switch under test with its VMs, and the uplink if the VMs send to an uplink.
struct Subject {
    rig: Rig,
    uplink: Option<Outside>,
}

impl Subject {
    fn start(bed: &Bed, args: &MeshArgs, point: &Point, peer: bool) -> anyhow::Result<Self> {
        let (name, shown) = if peer { ("ovs", "ovs-dpdk") } else { ("ours", "penstock") };
        eprintln!("{}: starting {shown}, ports: {}", point.case(), point.ports);
        let plan = point.plan(bed, args, name)?;
        let rig = if peer { Rig::peer(bed, name, &plan)? } else { Rig::ours(bed, name, &plan)? };
        Ok(Self { rig, uplink: plan.uplink().cloned() })
    }

    fn name(&self) -> &'static str {
        self.rig.switch.name()
    }

    /// Runs the benchmark's load in one measurement window, and repeats the window if the machine
    /// disturbed it. If the load generator and a worker share a core, the window is not repeated,
    /// because every window is disturbed.
    fn sample(
        &mut self,
        bed: &Bed,
        sizes: &Sizes,
        secs: f64,
        shared: bool,
    ) -> anyhow::Result<Sample> {
        let uplink = self.uplink.clone();
        let send = |fleet: &mut Fleet, secs| {
            fleet.send(&sizes.mix, 1, Rate::Max);
            window(fleet, uplink.as_ref(), secs)
        };
        let warm = |fleet: &mut Fleet| send(fleet, WARM_UP_SECS).map(drop);
        let run = |fleet: &mut Fleet| send(fleet, secs);
        let sample = if shared {
            self.rig.sample_once(bed, warm, run)?
        } else {
            self.rig.sample(bed, warm, run)?
        };
        let (name, all) = (self.name(), &sample.window.all);
        ensure!(all.bad == 0, "{name}: {} frames arrived with wrong bytes", all.bad);
        Ok(sample)
    }
}

/// Sends frames for `secs` seconds and counts the frames that arrived.
fn window(fleet: &mut Fleet, uplink: Option<&Outside>, secs: f64) -> anyhow::Result<MeshWindow> {
    let Some(uplink) = uplink else {
        let before = Ways(fleet.arrived());
        let all = fleet.run_and_settle(secs)?;
        let (from, to, least) = Ways(fleet.arrived()).since(&before).least().unwrap_or_default();
        ensure!(
            least > 0,
            "{} received no frame from {} in {secs} s, although every port sends to every other; \
             use a longer --secs or fewer --ports",
            vm_name(to + 1),
            vm_name(from + 1)
        );
        return Ok(MeshWindow { all, secs: all.moving_secs, least: Some(least) });
    };
    let before = uplink.arrived()?;
    let mut all = fleet.run_and_settle(secs)?;
    let after = uplink.arrived()?;
    all.rx_frames = after.frames - before.frames;
    all.rx_bytes = after.bytes - before.bytes;
    ensure!(all.rx_frames > 0, "no frame left by the uplink in {secs} s; use a longer --secs");
    Ok(MeshWindow { all, secs: all.moving_secs, least: None })
}

/// # Errors
///
/// Returns an error if an option has an invalid value, or if a switch cannot be started or fails.
pub fn run(args: &MeshArgs, guard: &Guard) -> anyhow::Result<Report> {
    let ports = ports(args)?;
    distinct("--workers", &args.workers)?;
    if args.peer.is_some() {
        ovs::check()?;
    }
    if args.uplink {
        check_uplink()?;
    }
    let most = ports.iter().max().copied().unwrap_or_default();
    rig::allow_descriptors(u64::try_from(most * DESCRIPTORS.0 + DESCRIPTORS.1)?)
        .with_context(|| format!("--ports {most}"))?;
    let bed = Bed::new(&args.bed, guard.clone())?;
    let mut points = Vec::new();
    for workers in &args.workers {
        let cores = bed.worker_cores(usize::try_from(*workers)?)?;
        let shared = cores.contains(&bed.generator_core());
        let point = |ports: &usize| Point {
            ports: *ports,
            cores: cores.clone(),
            shared,
            uplink: args.uplink,
        };
        points.extend(ports.iter().map(point));
    }
    let mut platform = bed.describe();
    platform.insert("ring_size".into(), args.ring.into());
    platform.insert("touched".into(), (!args.no_touch).into());
    platform.insert("secs".into(), args.secs.into());
    platform.insert("penstock_idle_backoff_us".into(), bed.idle_backoff_us().into());
    if points.iter().any(|point| point.shared) {
        let idle_us = SHARED_IDLE_US.max(bed.idle_backoff_us());
        platform.insert("idle_us_on_shared_core".into(), idle_us.into());
    }
    let mut report = Report { bench: NAME, platform, rows: Vec::new(), ratios: Vec::new() };
    for point in &points {
        measure(&bed, args, point, &mut report)?;
    }
    Ok(report)
}

/// Returns the numbers of ports that `--ports` requests, or the default.
fn ports(args: &MeshArgs) -> anyhow::Result<Vec<usize>> {
    let (default, least, most): (&[usize], _, _) =
        if args.uplink { (&UPLINK_PORTS, 1, PORTS_MAX - 1) } else { (&MESH_PORTS, 2, PORTS_MAX) };
    let ports = if args.ports.is_empty() { default } else { &args.ports };
    for &number in ports {
        ensure!(
            number >= least,
            "--ports {number}: a single port has no other port to send to; use {least} to {most}, \
             or send to an uplink with --uplink"
        );
        ensure!(
            number <= most,
            "--ports {number}: a switch has at most {PORTS_MAX} ports, and the uplink is one of \
             them; use {least} to {most} with --uplink"
        );
    }
    distinct("--ports", ports)?;
    Ok(ports.to_vec())
}

/// Returns an error if the list `numbers` of the command-line option contains a number twice.
fn distinct<T: Ord + fmt::Display>(option: &str, numbers: &[T]) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for number in numbers {
        ensure!(seen.insert(number), "{option}: {number} is given twice; give each number once");
    }
    Ok(())
}

/// Starts the switches of one configuration, runs them alternately, and adds their rows to the
/// report.
fn measure(bed: &Bed, args: &MeshArgs, point: &Point, report: &mut Report) -> anyhow::Result<()> {
    if args.peer.is_some() {
        ovs::reserve_pages(bed, 2, point.ports)?;
    }
    let mut subjects = vec![Subject::start(bed, args, point, false)?];
    if args.peer.is_some() {
        subjects.push(Subject::start(bed, args, point, true)?);
    }
    for subject in &subjects {
        subject.rig.describe(&mut report.platform);
    }
    for sizes in &args.sizes {
        let mut samples = vec![Vec::new(); subjects.len()];
        for run in 1..=args.runs {
            for (subject, samples) in subjects.iter_mut().zip(&mut samples) {
                let sample = subject.sample(bed, sizes, args.secs, point.shared)?;
                eprintln!(
                    "{} {} ports, {} B, run {run}/{}: {:<9} {:6.3} Mpps {:6.1} cycles per frame, \
                     lost {:.1} %",
                    point.case(),
                    point.ports,
                    sizes.name,
                    args.runs,
                    subject.name(),
                    mpps(&sample),
                    sample.cycles_per_frame(),
                    lost_percent(&sample),
                );
                samples.push(sample);
            }
        }
        let about = subjects.iter().map(|s| (s.name(), s.rig.switch.workers_read()));
        add_rows(report, point, sizes, &about.collect::<Vec<_>>(), &samples);
    }
    Ok(())
}

/// Adds a row for each switch to the report. Each pair in `about` has a switch's name and the
/// number of workers with counters that the benchmark read.
fn add_rows(
    report: &mut Report,
    point: &Point,
    sizes: &Sizes,
    about: &[(&str, usize)],
    samples: &[Vec<Sample>],
) {
    let mut rows = Vec::new();
    for (about, samples) in about.iter().zip(samples) {
        rows.extend(row(point, sizes, *about, samples));
    }
    if let ([ours, theirs], [our_samples, their_samples]) = (&rows[..], samples) {
        let values = |samples: &[Sample], of: fn(&Sample) -> f64| -> Vec<f64> {
            samples.iter().map(of).collect()
        };
        let mut add = |metric, ratio: Option<f64>| {
            let ratio = ratio.map(|r| Ratio::of(ours, &theirs.subject, metric, r, Bar::None));
            report.ratios.extend(ratio);
        };
        let cycles = |samples| values(samples, Sample::cycles_per_frame);
        add("cycles_per_packet", paired_ratio(&cycles(their_samples), &cycles(our_samples)));
        // Rates compare the switches only if both switches were the limit.
        if [ours, theirs].iter().all(|row| row.detail["limited_by"] == "worker") {
            let rates = |samples| values(samples, mpps);
            add("mpps", paired_ratio(&rates(our_samples), &rates(their_samples)));
        }
    }
    report.rows.append(&mut rows);
}

fn row(
    point: &Point,
    sizes: &Sizes,
    (subject, workers_read): (&str, usize),
    samples: &[Sample],
) -> Option<Row> {
    let spread =
        |of: &dyn Fn(&Sample) -> f64| Spread::of(&samples.iter().map(of).collect::<Vec<_>>());
    let cycles = spread(&Sample::cycles_per_frame)?;
    let (case, size) = (point.case(), sizes.to_json());
    let mut row = Row::new(&case, size, point.flows(), subject, "cycles_per_packet", cycles);
    row.cycles_per_packet = Some(row.median);
    row.mpps = spread(&mpps).map(|s| round(s.median));
    row.gbps = spread(&gbps).map(|s| round(s.median));
    row.detail.insert("ports".into(), point.ports.into());
    row.detail.insert("workers".into(), point.cores.len().into());
    row.detail.insert("workers_read".into(), workers_read.into());
    let workers = to_f64(u64::try_from(workers_read.max(1)).unwrap_or(u64::MAX));
    let busy = |s: &Sample| s.worker_busy_percent() / workers;
    let limit = match spread(&busy).map_or(0.0, |busy| busy.median) {
        _ if point.shared => "shared core",
        busy if busy >= SATURATED_PERCENT => "worker",
        _ => "load",
    };
    row.detail.insert("limited_by".into(), limit.into());
    let mut note = |name: &str, of: &dyn Fn(&Sample) -> f64| {
        if let Some(spread) = spread(of) {
            row.note(name, spread.median);
        }
    };
    note("worker_busy_percent", &busy);
    note("worker_wait_percent", &|s| s.worker_wait_percent() / workers);
    note("generator_wait_percent", &Sample::generator_wait_percent);
    note("generator_busy_percent", &|s| 100.0 * (1.0 - s.window.all.idle_secs / s.window.all.secs));
    note("lost_percent", &lost_percent);
    if !point.uplink {
        note("frames_of_the_least_pair", &|s| s.window.least.map_or(0.0, to_f64));
    }
    for (i, (name, _)) in samples[0].worker.notes.iter().enumerate() {
        note(name, &|s| s.worker.notes.get(i).map_or(0.0, |(_, value)| *value));
    }
    Some(row)
}

/// Shows the benchmark's report as text, in at most 100 columns.
pub(super) struct Table<'a>(pub &'a Report);

impl Table<'_> {
    /// Returns the notes that explain rows of the table.
    fn notes(&self) -> Vec<String> {
        let limited = |by: &str| self.0.rows.iter().any(|row| row.detail["limited_by"] == by);
        let mut notes = Vec::new();
        if limited("shared core") {
            notes.push(format!(
                "shared core: load and a worker share core {}. Cycles exclude the time without it. \
                 The load\nwaits for each round of frames, so rates are not those of a full load.",
                plain(&self.0.platform["generator_core"])
            ));
        }
        if limited("load") {
            let advice =
                if self.0.platform["touched"] == true { ", or try --no-touch" } else { "" };
            notes.push(format!(
                "load: the load may have been the limit. Batches are then smaller, and a frame \
                 costs\nmore. Give the load a faster core{advice}."
            ));
        }
        notes
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |name: &str| !name.starts_with("features");
        for (name, value) in self.0.platform.iter().filter(|(name, _)| short(name)) {
            writeln!(f, "{name}: {}", plain(value))?;
        }
        writeln!(
            f,
            "\n{:<6} {:>5} {:>7} {:>5} {:<9} {:>8} {:>7} {:>12} {:>12} {:>6}  limited by",
            "to",
            "ports",
            "workers",
            "size",
            "switch",
            "Mpps",
            "lost %",
            "cycles/frame",
            "min-max",
            "busy %"
        )?;
        for row in &self.0.rows {
            let text = |name: &str| plain(&row.detail[name]);
            let rounded = |name: &str, digits: usize| {
                format!("{:.digits$}", row.detail[name].as_f64().unwrap_or(f64::NAN))
            };
            let to = row.case.split('-').next().unwrap_or_default();
            writeln!(
                f,
                "{to:<6} {:>5} {:>7} {:>5} {:<9} {:>8.3} {:>7} {:>12.1} {:>12} {:>6}  {}",
                text("ports"),
                text("workers"),
                plain(&row.size),
                row.subject,
                row.mpps.unwrap_or(f64::NAN),
                rounded("lost_percent", 1),
                row.median,
                format!("{:.0}-{:.0}", row.min, row.max),
                rounded("worker_busy_percent", 0),
                row.detail["limited_by"].as_str().unwrap_or("-"),
            )?;
        }
        for ratio in &self.0.ratios {
            writeln!(f, "{ratio}")?;
        }
        self.notes().iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::Map;

    use super::*;
    use crate::rig::switch::WorkerReading;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: MeshArgs,
    }

    fn ports_of(line: &str) -> Result<Vec<usize>, String> {
        let words = ["mesh"].into_iter().chain(line.split_whitespace());
        let args = Line::try_parse_from(words).map_err(|error| error.to_string())?.args;
        ports(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_are_a_list_with_a_default_for_each_kind() {
        assert_eq!(ports_of(""), Ok(vec![2, 8, 16, 64]));
        assert_eq!(ports_of("--uplink"), Ok(vec![1, 4, 16]));
        assert_eq!(ports_of("--ports 3,1024"), Ok(vec![3, 1024]));
        assert_eq!(ports_of("--uplink --ports 1,1023"), Ok(vec![1, 1023]));
    }

    #[test]
    fn a_bad_list_of_ports_is_refused_with_the_limit_and_a_remedy() {
        for (line, said) in [
            ("--ports 0", "invalid value '0' for '--ports <PORTS>'"),
            ("--ports 1025", "a whole number of ports from 1 to 1024 is wanted"),
            ("--ports 2,many", "invalid value 'many' for '--ports <PORTS>'"),
            ("--ports 2,", "invalid value '' for '--ports <PORTS>'"),
            ("--ports -4", "'-4'"),
            ("--ports 1", "--ports 1: a single port has no other port to send to; use 2 to 1024"),
            ("--ports 8,2,8", "--ports: 8 is given twice; give each number once"),
            (
                "--uplink --ports 1024",
                "--ports 1024: a switch has at most 1024 ports, and the uplink",
            ),
        ] {
            let error = ports_of(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
        let error = distinct("--workers", &[1, 2, 2]).unwrap_err().to_string();
        assert_eq!(error, "--workers: 2 is given twice; give each number once");
    }

    #[test]
    fn the_largest_number_of_ports_is_that_of_the_configuration() {
        assert_eq!(PORTS_MAX, penstock_control::config::PORTS_MAX);
    }

    #[test]
    fn the_pair_with_the_fewest_frames_is_found_and_a_vm_itself_is_no_pair() {
        let before = Ways(vec![vec![0, 5, 5], vec![5, 0, 5], vec![5, 5, 0]]);
        let after = Ways(vec![vec![0, 9, 8], vec![8, 0, 5], vec![9, 9, 0]]);
        let grown = after.since(&before);
        assert_eq!(grown.0[1], [3, 0, 0]);
        // VM 1 received no frame from VM 2.
        assert_eq!(grown.least(), Some((2, 1, 0)));
        assert_eq!(after.since(&Ways(vec![vec![0; 3]; 3])).least(), Some((2, 1, 5)));
        assert_eq!(Ways(vec![vec![7]]).least(), None);
    }

    fn point(cores: &[u32], shared: bool) -> Point {
        Point { ports: 8, cores: cores.to_vec(), shared, uplink: false }
    }

    fn sample(busy_cycles: u64) -> Sample {
        let all = SettledWindow {
            secs: 0.99,
            tx_frames: 2_000_000,
            rx_frames: 1_990_000,
            rx_bytes: 1_990_000 * 60,
            idle_secs: 0.2475,
            ..SettledWindow::default()
        };
        let window = MeshWindow { all, secs: 1.0, least: Some(35_000) };
        let worker = WorkerReading { frames: 2_000_000, busy_cycles, ..WorkerReading::default() };
        Sample { window, worker, tsc_hz: 1e9 }
    }

    #[test]
    fn cycles_of_a_frame_are_charged_cycles_over_frames() {
        let samples = [sample(980_000_000), sample(960_000_000), sample(990_000_000)];
        let row = row(&point(&[1], false), &Sizes::fixed(64), ("penstock", 1), &samples).unwrap();
        assert_eq!((row.case.as_str(), row.flows), ("mesh-1-worker", 56));
        assert_eq!((row.cycles_per_packet, row.min, row.max), (Some(490.0), 480.0, 495.0));
        assert_eq!((row.mpps, row.runs), (Some(1.99), 3));
        assert_eq!(row.detail["frames_of_the_least_pair"], 35_000.0);
        assert_eq!(row.detail["generator_busy_percent"], 75.0);
        assert_eq!(row.detail["lost_percent"], 0.5);
    }

    #[test]
    fn the_limit_is_the_worker_only_if_it_was_busy() {
        let limit = |point: &Point, read, busy| {
            let row = row(point, &Sizes::fixed(64), ("penstock", read), &[sample(busy)]).unwrap();
            let busy = row.detail["worker_busy_percent"].as_f64().unwrap();
            (row.detail["limited_by"].as_str().unwrap().to_owned(), busy)
        };
        let one = point(&[1], false);
        assert_eq!(limit(&one, 1, 960_000_000), ("worker".to_owned(), 96.0));
        assert_eq!(limit(&one, 1, 900_000_000), ("load".to_owned(), 90.0));
        let two = point(&[3, 2], false);
        assert_eq!(limit(&two, 2, 1_960_000_000), ("worker".to_owned(), 98.0));
        assert_eq!(limit(&point(&[1, 0], true), 2, 960_000_000).0, "shared core");
    }

    #[test]
    fn rates_are_compared_only_if_both_switches_were_the_limit() {
        let metrics = |theirs: u64| {
            let (platform, rows, ratios) = (Map::new(), Vec::new(), Vec::new());
            let mut report = Report { bench: NAME, platform, rows, ratios };
            let about = [("penstock", 1), ("ovs-dpdk", 1)];
            let samples = [vec![sample(960_000_000)], vec![sample(theirs)]];
            add_rows(&mut report, &point(&[1], false), &Sizes::fixed(64), &about, &samples);
            report.ratios.iter().map(|r| (r.metric, r.ratio)).collect::<Vec<_>>()
        };
        assert_eq!(metrics(980_000_000), [("cycles_per_packet", 1.0208), ("mpps", 1.0)]);
        assert_eq!(metrics(480_000_000), [("cycles_per_packet", 0.5)]);
    }

    #[test]
    fn the_table_has_at_most_100_columns_and_says_what_was_shared() {
        let mut platform = Map::new();
        platform.insert("generator_core".into(), 0.into());
        platform.insert("touched".into(), true.into());
        platform.insert("features_penstock".into(), "x".repeat(200).into());
        let mut report = Report { bench: NAME, platform, rows: Vec::new(), ratios: Vec::new() };
        let about = [("penstock", 2), ("ovs-dpdk", 1)];
        let samples = [vec![sample(12_345_678_901)], vec![sample(23_456_789_012)]];
        for (cores, shared) in [(&[1, 0], true), (&[3, 2], false)] {
            let mut point = point(cores, shared);
            point.ports = 1024;
            add_rows(&mut report, &point, &Sizes::fixed(1518), &about, &samples);
        }
        report.rows[2].detail.insert("limited_by".into(), "load".into());
        let text = Table(&report).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        for part in ["share core 0", "try --no-touch", "mesh    1024       2  1518 ovs-dpdk"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
