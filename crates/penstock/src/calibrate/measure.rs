//! Measures the cost of a frame on this host, with the real switch under real load.
//!
//! # Problem
//!
//! The cost model consists of about eighty numbers. The differences between many numbers of the
//! cost model are smaller than the differences between two equal measurements on the same machine.
//!
//! # Source
//!
//! The measurements follow C2QoS §III.
//!
//! # Approach
//!
//! A *cell* is one combination of ring type, number of rules, number of flows and frame size. A
//! *window* is the short time of one measurement.
//! - Every combination of ring type and rules has its own switch process. A switch's process is
//!   stopped while another switch is measured.
//! - Each round measures all combinations (cells) in a shuffled order, so that drift affects all
//!   cells alike. Differences and ratios use only values that were measured in the same round.
//! - The measured value of a cell is the number of cycles that the worker charges to the port. A
//!   sample of the batches shows how the worker's cycles are divided among ingress, classification
//!   and egress.
//! - VMs write every byte of their frames, and publish 32 frames at once. The VMs bought a small
//!   part of the core and offer more, as VMs with contracts do, so that their batches are full.
//! - If other work disturbs a window, the window is measured again.
//!
//! # Many flows
//!
//! A measurement with many flows has 100,000 flows. The rules examine addresses and ports, so each
//! flow needs its own cache entry, but no flow matches a rule. Sets of 1,000 and 10,000 rules have
//! eight different masks, and each mask needs a separate search.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use penstock_qos::cost_model::{
    About, Action, ActionTerm, BatchTerm, Cell, CellKey, Coefficient, CostModel, Flows,
    NUMA_PUBLISHED, Parts, RULES, RingKind, SIZES, Source, Spread, Stages,
};
use penstock_units::TscRate;

use super::disturbed::Watch;
use super::offload::{self, Kind};
use super::rig::{Apart, Load, Reading, Rig, Setting, Times};
use super::ways;
use penstock_guest::bed::distance::Kept;
use penstock_guest::bed::{Bed, BedArgs};
use penstock_guest::clock;
use penstock_guest::load::{Rate, SizeMix};

/// Number of flows in measurements with many flows, more than the flow cache holds.
pub(super) const MANY_FLOWS: u32 = 100_000;
/// Number of frames that a VM publishes at once.
pub(super) const BURST: usize = 32;
const VMS: [usize; 5] = [1, 2, 4, 8, 16];
/// Numbers of workers that are measured together, if the machine has the cores.
const WORKERS: [usize; 3] = [2, 4, 8];
/// Frames per second in measurements in which the VMs send frames one by one.
const SINGLE_RATE: f64 = 50_000.0;
/// If batches have at least this number of frames, the sender's cycles limit the frame rate, and
/// not the generator.
const FULL: f64 = 0.95 * 32.0;

/// If the machine's processors move, windows wait for the more common distance of the cores for
/// at most this time, all together.
const PATIENCE: Duration = Duration::from_secs(1_200);
const PATIENCE_QUICK: Duration = Duration::from_secs(300);

/// `penstock calibrate`.
#[derive(Debug, Clone, clap::Args)]
pub struct CalibrateArgs {
    /// Measure for about a minute, with fewer rounds and shorter measurements
    #[arg(long)]
    pub quick: bool,
    /// File for the cost model (`-`: standard output)
    #[arg(long, value_name = "FILE", required_unless_present = "model")]
    pub out: Option<PathBuf>,
    /// Sell contracts by the model on throw-away ports, and measure what they get
    #[arg(long)]
    pub verify: bool,
    /// Verify the cost model in this file instead of a new one, and add the result to the file
    #[arg(long, value_name = "FILE", requires = "verify", conflicts_with_all = ["out", "rounds"])]
    pub model: Option<PathBuf>,
    /// Number of rounds (1 to 100). Default: 5; with --quick: 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,
    /// Write the model although other work disturbed the measurements
    #[arg(long)]
    pub accept_disturbed: bool,
    #[command(flatten)]
    pub bed: BedArgs,
}

impl CalibrateArgs {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 })
    }

    pub(super) fn times(&self) -> Times {
        let (warm_secs, window_secs, tries) =
            if self.quick { (0.02, 0.06, 1) } else { (0.08, 0.25, 3) };
        Times { warm_secs, window_secs, tries, kept: None }
    }

    /// Returns the longest time in which windows wait for cores that moved.
    pub(super) const fn patience(&self) -> Duration {
        if self.quick { PATIENCE_QUICK } else { PATIENCE }
    }
}

#[derive(Debug)]
pub struct Calibration {
    pub model: CostModel,
    /// Sentences for the user about the quality of the measurement.
    pub notes: Vec<String>,
}

/// Measures the cost model on switches that this function starts.
///
/// # Errors
/// Returns an error if the switch cannot be started or fails.
pub fn run(args: &CalibrateArgs, bed: &Bed) -> anyhow::Result<Calibration> {
    let watch = Watch::begin();
    let kept = Kept::find([bed.generator_core(), bed.worker_core()], args.patience())?;
    let times = Times { kept, ..args.times() };
    let mut bench = Bench { bed, times, rounds: args.rounds(), began: clock::now() };
    let cells = bench.cells()?;
    let batch = bench.batch()?;
    let mut actions = bench.actions()?;
    let ways = ways::measure(bench.bed, bench.times, bench.rounds, BURST)?;
    actions.extend(ways.terms);
    bench.say("ways to and from interfaces");
    let vms = bench.vms()?;
    let cores = bench.cores()?;
    let disturbed = watch.verdict(&all(&cells, |reading| reading.waited));
    let cost = |reading: &Reading| reading.stages.total();
    let costs: Vec<Vec<f64>> = cells.values().map(|of| of.iter().map(cost).collect()).collect();
    let apart: Vec<Apart> = cells.values().flatten().map(|reading| reading.apart).collect();
    let moved = Watch::moved(&apart);
    let disturbed = moved.or(disturbed).or_else(|| Watch::unsteady(&costs));
    if let Some(text) = disturbed.filter(|_| !args.accept_disturbed) {
        anyhow::bail!(text);
    }
    let mut notes = notes(&cells, &bench, &cores);
    notes.extend(ways.notes);
    let frames = Spread::of(&all(&cells, |reading| reading.batch)).map_or(32.0, |s| s.median);
    let model = CostModel::new(Parts {
        about: About { core_distance_ns: distance(&apart), ..about(args, bench.bed) },
        cells: cells.iter().filter_map(|(key, seen)| Some((*key, cell(seen)?))).collect(),
        batch: BatchTerm { frames: whole(frames).max(1), ..batch },
        actions,
        vms,
        cores,
        numa_remote: Coefficient::published(NUMA_PUBLISHED),
        verified: None,
    })
    .context("the measurements make no cost model, as the machine was too busy; measure again")?;
    Ok(Calibration { model, notes })
}

type Cells = BTreeMap<CellKey, Vec<Reading>>;

struct Bench<'a> {
    bed: &'a Bed,
    times: Times,
    rounds: u32,
    began: Instant,
}

impl Bench<'_> {
    fn say(&self, what: &str) {
        let secs = self.began.elapsed().as_secs();
        eprintln!("penstock calibrate: {what} ({secs} s)");
    }

    fn cells(&mut self) -> anyhow::Result<Cells> {
        let mut rigs = BTreeMap::new();
        for ring in [RingKind::Split, RingKind::Packed] {
            for rules in RULES {
                let name = format!("{ring}-{rules}");
                let setting = Setting::plain(name, ring, rule_tables(rules));
                rigs.insert((ring, rules), Rig::start(self.bed, &setting)?);
            }
        }
        let mut keys = Vec::new();
        for ring in [RingKind::Split, RingKind::Packed] {
            for flows in Flows::ALL {
                for rules in RULES {
                    keys.extend(SIZES.map(|size| CellKey { ring, flows, rules, size }));
                }
            }
        }
        let mut cells = Cells::new();
        for round in 1..=self.rounds {
            shuffle(&mut keys, round);
            for (done, key) in keys.iter().enumerate() {
                let Some(rig) = rigs.get_mut(&(key.ring, key.rules)) else { continue };
                let load = Load {
                    sizes: SizeMix::fixed(key.size),
                    flows: if key.flows == Flows::Single { 1 } else { MANY_FLOWS },
                    rate: Rate::Max,
                    burst: BURST,
                };
                let reading = rig.sample(self.bed, &load, self.times)?;
                cells.entry(*key).or_default().push(reading);
                if (done + 1) % 24 == 0 {
                    let all = keys.len();
                    self.say(&format!(
                        "measured {} of {all} cells, round {round} of {}",
                        done + 1,
                        self.rounds
                    ));
                }
            }
        }
        Ok(cells)
    }

    /// Measures the cost of a batch from single frames and from full batches.
    fn batch(&mut self) -> anyhow::Result<BatchTerm> {
        let mut rig =
            Rig::start(self.bed, &Setting::plain("batch", RingKind::Split, rule_tables(1)))?;
        let load = |rate, burst| Load { sizes: SizeMix::fixed(64), flows: 1, rate, burst };
        let mut terms = Vec::new();
        for _ in 0..self.rounds {
            let one = rig.sample(self.bed, &load(Rate::Frames(SINGLE_RATE), 1), self.times)?;
            let full = rig.sample(self.bed, &load(Rate::Max, BURST), self.times)?;
            // cost(n) = batch / n + frame
            let parts = 1.0 / one.batch - 1.0 / full.batch;
            terms.push(((one.stages.total() - full.stages.total()) / parts).max(0.0));
        }
        self.say("batches");
        let per_batch = Spread::of(&terms).context("no batch was measured")?;
        Ok(BatchTerm { per_batch, frames: 32, source: Source::Measured })
    }

    fn actions(&mut self) -> anyhow::Result<BTreeMap<Action, ActionTerm>> {
        const RED: &str = "vlans = [100]";
        const ACCESS: &str = "vlan = 100";
        const TRUNK: &str = "trunk = [100]";
        let vlan = |name: &str, keys: [&'static str; 3], tag| Setting {
            keys,
            vlan: tag,
            ..Setting::plain(name, RingKind::Split, String::new())
        };
        let mark = |name: &str, actions: &str| {
            let rule = format!(
                "\n[[rule]]\nname = \"m\"\nport = \"v1\"\nmatch = {{ proto = \"udp\" }}\n\
                 actions = [{actions}]\n"
            );
            Setting::plain(name, RingKind::Split, rule)
        };
        let mut rigs = Vec::new();
        for setting in [
            vlan("access", [ACCESS, ACCESS, RED], None),
            vlan("push", [ACCESS, TRUNK, RED], None),
            vlan("trunk", [TRUNK, TRUNK, RED], Some(100)),
            vlan("pop", [TRUNK, ACCESS, RED], Some(100)),
            mark("unmarked", "\"normal\""),
            mark("marked", "\"set-dscp:46\", \"normal\""),
        ] {
            rigs.push(Rig::start(self.bed, &setting)?);
        }
        let load = Load { sizes: SizeMix::fixed(256), flows: 1, rate: Rate::Max, burst: BURST };
        let mut seen: [Vec<f64>; 3] = Default::default();
        for _ in 0..self.rounds {
            let mut costs = Vec::new();
            for rig in &mut rigs {
                costs.push(rig.sample(self.bed, &load, self.times)?.stages.total());
            }
            for (of, pair) in seen.iter_mut().zip(costs.chunks_exact(2)) {
                of.push((pair[1] - pair[0]).max(0.0));
            }
        }
        let mut terms = self.offloads()?;
        for (action, seen) in
            [Action::VlanPush, Action::VlanPop, Action::Dscp].into_iter().zip(seen)
        {
            let per_frame = Spread::of(&seen).context("no action was measured")?;
            terms.insert(action, ActionTerm { per_frame, per_byte: 0.0, source: Source::Measured });
        }
        self.say("actions");
        Ok(terms)
    }

    /// Measures the cost of checksums and segmentation for a receiver without these offloads.
    fn offloads(&mut self) -> anyhow::Result<BTreeMap<Action, ActionTerm>> {
        let (mut rig, dir) = Rig::daemon(self.bed, &offload::setting())?;
        let mut pair = self.bed.on_generator_core(|| offload::Pair::connect(&dir))?;
        let kinds = [
            Kind::Plain(128),
            Kind::Checksum(128),
            Kind::Plain(1500),
            Kind::Checksum(1500),
            Kind::Segments,
        ];
        let (mut frame, mut byte, mut segment) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            let mut costs = Vec::new();
            for kind in kinds {
                pair.offer(kind);
                let reading = rig.measure(self.times, &mut |secs| {
                    self.bed.on_generator_core(|| pair.drive(secs))
                })?;
                costs.push(reading.stages.total());
            }
            let (small, large) = (costs[1] - costs[0], costs[3] - costs[2]);
            let per_byte = ((large - small) / (1500.0 - 128.0)).max(0.0);
            byte.push(per_byte);
            frame.push((small - 128.0 * per_byte).max(0.0));
            let segments = f64::from(u32::try_from(offload::SEGMENTS)?);
            segment.push((costs[4] / segments - costs[2]).max(0.0));
        }
        let spread = |of: &[f64]| Spread::of(of).context("no offload was measured");
        let term =
            |per_frame, per_byte| ActionTerm { per_frame, per_byte, source: Source::Measured };
        Ok(BTreeMap::from([
            (Action::Checksum, term(spread(&frame)?, spread(&byte)?.median)),
            (Action::Segmentation, term(spread(&segment)?, 0.0)),
        ]))
    }

    fn vms(&mut self) -> anyhow::Result<BTreeMap<u32, Coefficient>> {
        let mut rigs = Vec::new();
        for senders in VMS {
            let plain = Setting::plain(format!("vms-{senders}"), RingKind::Split, rule_tables(1));
            rigs.push((senders, Rig::start(self.bed, &Setting { senders, ..plain })?));
        }
        let load = Load { sizes: SizeMix::imix(), flows: 1, rate: Rate::Max, burst: BURST };
        let mut factors: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for _ in 0..self.rounds {
            let mut alone = None;
            for (senders, rig) in &mut rigs {
                let cost = rig.sample(self.bed, &load, self.times)?.stages.total();
                let alone = *alone.get_or_insert(cost);
                factors.entry(u32::try_from(*senders)?).or_default().push(cost / alone);
            }
        }
        self.say("numbers of VMs");
        let mut vms = BTreeMap::from([(1, exact(Source::Measured))]);
        for (senders, factors) in factors.into_iter().filter(|(senders, _)| *senders > 1) {
            let factor = Spread::of(&factors).context("no batch with several VMs was measured")?;
            vms.insert(senders, Coefficient { factor, source: Source::Measured });
        }
        Ok(vms)
    }

    /// Measures how much more a frame costs if several workers serve the same VMs. The generator
    /// needs a core of its own.
    fn cores(&mut self) -> anyhow::Result<BTreeMap<u32, Coefficient>> {
        let mut cores = BTreeMap::from([(1, exact(Source::Measured))]);
        let load = Load { sizes: SizeMix::imix(), flows: 1, rate: Rate::Max, burst: BURST };
        for workers in WORKERS {
            let free = self.bed.worker_cores(workers);
            if !free.is_ok_and(|free| !free.contains(&self.bed.generator_core())) {
                break;
            }
            let rig = |on: usize| {
                let name = format!("cores-{workers}-{on}");
                let plain = Setting::plain(name, RingKind::Split, rule_tables(1));
                Rig::start(self.bed, &Setting { senders: workers, workers: on, ..plain })
            };
            let (mut alone, mut shared) = (rig(1)?, rig(workers)?);
            let mut factors = Vec::new();
            for _ in 0..self.rounds {
                let cost = |rig: &mut Rig| {
                    anyhow::Ok(rig.sample(self.bed, &load, self.times)?.stages.total())
                };
                factors.push(cost(&mut shared)? / cost(&mut alone)?);
            }
            let factor =
                Spread::of(&factors).context("no batch with several workers was measured")?;
            cores.insert(u32::try_from(workers)?, Coefficient { factor, source: Source::Measured });
            self.say(&format!("{workers} workers together"));
        }
        Ok(cores)
    }
}

const fn exact(source: Source) -> Coefficient {
    Coefficient { factor: Spread::exact(1.0), source }
}

fn cell(seen: &[Reading]) -> Option<Cell> {
    let of = |stage: fn(&Stages) -> f64| {
        Spread::of(&seen.iter().map(|reading| stage(&reading.stages)).collect::<Vec<_>>())
    };
    Some(Cell {
        ingress: of(|stages| stages.ingress)?,
        classification: of(|stages| stages.classification)?,
        egress: of(|stages| stages.egress)?,
        source: Source::Measured,
    })
}

fn all(cells: &Cells, of: impl Fn(&Reading) -> f64) -> Vec<f64> {
    cells.values().flatten().map(of).collect()
}

/// Rules that distinguish flows, although no frame matches. The rules have eight different masks,
/// so that more rules need more searches and not only larger tables.
pub(super) fn rule_tables(rules: u32) -> String {
    let mut text = String::new();
    for n in 0..rules {
        let (form, place) = (n % 8, n / 8);
        let (high, low) = (place / 250, place % 250);
        let net = [32, 31, 30, 29, 28, 27, 26, 25][usize::try_from(form).unwrap_or(0)];
        // The addresses are aligned to the widest form. No VM is in their network.
        let (b, c, d) = (high % 250, low, if form == 0 { 7 } else { 0 });
        let port = 5_000 + form;
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n[[rule]]\nname = \"r{n}\"\npriority = 10\nport = \"v1\"\n\
             match = {{ proto = \"tcp\", src = \"172.{b}.{c}.{d}/{net}\", src_port = {port} }}\n\
             actions = [\"drop\"]\n"
        );
    }
    text
}

/// Shuffles the keys. The order of the keys depends only on `round`, so that every run of a round
/// has the same order.
fn shuffle(keys: &mut [CellKey], round: u32) {
    let mut state = u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for at in (1..keys.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let range = u64::try_from(at).unwrap_or(u64::MAX) + 1;
        keys.swap(at, usize::try_from(state % range).unwrap_or(at));
    }
}

fn notes(cells: &Cells, bench: &Bench<'_>, cores: &BTreeMap<u32, Coefficient>) -> Vec<String> {
    let mut notes = Vec::new();
    let fill = |seen: &Vec<Reading>| Spread::of(&seen.iter().map(|r| r.batch).collect::<Vec<_>>());
    let short = cells.values().filter(|seen| fill(seen).is_some_and(|fill| fill.median < FULL));
    let fills = Spread::of(&all(cells, |reading| reading.batch));
    if let (count @ 1.., Some(fills)) = (short.count(), fills) {
        notes.push(format!(
            "in {count} of {} combinations the generator was too slow to fill the batches, which \
             had {:.1} frames in the median and {:.1} at least",
            cells.len(),
            fills.median,
            fills.min
        ));
    }
    let disturbed = all(cells, |r| r.waited).into_iter().filter(|waited| *waited > 0.01).count();
    if disturbed > 0 {
        notes.push(format!(
            "{disturbed} of {} windows were disturbed, because worker or generator waited for its \
             core; measure on a quiet machine",
            all(cells, |r| r.waited).len()
        ));
    }
    let (worker, generator) = (bench.bed.worker_core(), bench.bed.generator_core());
    if worker == generator {
        notes.push("switch and generator shared a core; the figures are not reliable".to_owned());
    }
    let most = cores.keys().last().copied().unwrap_or(1);
    if most == 1 {
        notes.push(
            "there is no core for a second worker, so several workers were not measured together; \
             as they share no lock, the model assumes that a frame costs the same on each"
                .into(),
        );
    }
    notes.push("remote NUMA nodes have the published factor".into());
    notes
}

fn about(args: &CalibrateArgs, bed: &Bed) -> About {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let described = bed.describe();
    let text = |key: &str| described.get(key).and_then(|v| v.as_str()).unwrap_or("").to_owned();
    let build = if cfg!(debug_assertions) { " (dev build)" } else { "" };
    let quick = if args.quick { " --quick" } else { "" };
    let rounds = args.rounds();
    About {
        host: file("/proc/sys/kernel/hostname").trim().to_owned(),
        date: clock::utc(),
        cpu: format!("{}, Linux {}", text("cpu"), text("kernel")),
        made_by: format!(
            "penstock {}{build} calibrate{quick} --rounds {rounds}",
            env!("CARGO_PKG_VERSION")
        ),
        core_distance_ns: None,
        tsc: TscRate::from_hz(whole_hz(bed.tsc_hz())),
    }
}

/// Returns the median distance of the cores.
fn distance(apart: &[Apart]) -> Option<u32> {
    let known: Vec<f64> = apart.iter().filter_map(|apart| apart.nanos()).collect();
    Spread::of(&known).map(|spread| whole(spread.median))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
fn whole(value: f64) -> u32 {
    value.round() as u32
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a frequency")]
fn whole_hz(value: f64) -> u64 {
    value.round() as u64
}

/// Returns the model as text for the user: cycles per frame for each ring type, number of flows,
/// number of rules and frame size. The text also contains the costs of a batch and of actions.
#[must_use]
pub fn summary(calibration: &Calibration, took: Duration) -> String {
    let parts = calibration.model.parts();
    let mut text = String::new();
    let _ = writeln!(text, "{}: {} of {}", parts.about.host, parts.about.cpu, parts.about.date);
    let _ = writeln!(
        text,
        "cycles per frame at {:.3} GHz, in {} s: ingress + classification + egress (±spread)",
        f64::from(u32::try_from(parts.about.tsc.hz() / 1_000_000).unwrap_or(0)) / 1e3,
        took.as_secs()
    );
    for (ring, flows) in [RingKind::Split, RingKind::Packed]
        .into_iter()
        .flat_map(|ring| Flows::ALL.map(|flows| (ring, flows)))
    {
        for rules in RULES {
            let _ = write!(text, "{ring:<7} {flows:<9} {rules:>6} rules:");
            for size in SIZES {
                let Some(cell) = parts.cells.get(&CellKey { ring, flows, rules, size }) else {
                    continue;
                };
                let Stages { ingress, classification, egress } = cell.stages();
                let _ = write!(text, "  {size} {ingress:.0}+{classification:.0}+{egress:.0}");
            }
            text.push('\n');
        }
    }
    let Spread { median, min, max } = parts.batch.per_batch;
    let _ = writeln!(text, "batch: {median:.0} ({min:.0}..{max:.0})");
    for (action, term) in &parts.actions {
        let Spread { median, min, max } = term.per_frame;
        let _ = writeln!(
            text,
            "{action}: {median:.1} ({min:.1}..{max:.1}) a frame, {:.4} a byte",
            term.per_byte
        );
    }
    for (count, coefficient) in &parts.vms {
        let Spread { median, min, max } = coefficient.factor;
        let _ = writeln!(text, "{count} VMs: x {median:.3} ({min:.3}..{max:.3})");
    }
    for note in &calibration.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_visits_every_cell_in_another_order() {
        let key = |size| CellKey { ring: RingKind::Split, flows: Flows::Single, rules: 1, size };
        let sorted: Vec<CellKey> = (64..164).map(key).collect();
        let (mut one, mut two) = (sorted.clone(), sorted.clone());
        shuffle(&mut one, 1);
        shuffle(&mut two, 2);
        assert!(one != sorted && one != two);
        one.sort();
        assert_eq!(one, sorted);
    }

    #[test]
    fn the_rules_are_different_and_match_no_vm() {
        let text = rule_tables(10_000);
        let matches: std::collections::BTreeSet<&str> =
            text.lines().filter(|line| line.starts_with("match")).collect();
        assert_eq!(matches.len(), 10_000);
        assert!(matches.iter().all(|line| line.contains("tcp") && !line.contains("\"10.")));
    }
}
