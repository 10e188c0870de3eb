//! The load of live experiments: one polling loop on the generator's core runs all VMs of a plan.
//!
//! # Approach
//!
//! The loop never stops while a switch is measured. The load changes between windows, and each
//! window begins with a warm-up. A sender's rate is computed from the frames that arrived at the
//! receiving VM. Latencies are one-way times. A latency begins just before the sender publishes a
//! burst. The latency of a frame ends in the turn of the loop that finds the frame in the
//! receiver's ring. The time stamps of sending and receiving come from one core. After each sender,
//! the loop polls the VMs that receive time-stamped frames.
//!
//! # Excluded times
//!
//! A turn of the loop that takes longer than [`STANDSTILL`] delays the generator's own frames. The
//! generator excludes the latencies of frames that were sent before the end of a turn longer than
//! [`STANDSTILL`]. The measured window reports how long the generator's loop stood still. A worker
//! that waits for its core also delays frames. Only [`Times::all`], and not [`Times::quiet`],
//! includes latencies that were measured while the worker waited for its core.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use penstock_dataplane::tsc::{CycleCounter as _, Tsc};

use super::link::Rounds;
use super::plan::Plan;
use super::stats::{middle, to_f64};
use super::switch::Switch;
use penstock_guest::clock;
use penstock_guest::driver::{Features, SocketMode};
use penstock_guest::load::{
    Arrived, Destination, LoadSpec, LoadVm, Phase, Rate, SizeMix, VmCounters, VmSpec,
    run_queue_wait_ns,
};

/// A turn that takes longer than [`STANDSTILL`] counts as a standstill of the generator.
const STANDSTILL: Duration = Duration::from_micros(60);
/// Length of a slice of a window. At the end of each slice, the loop adds the slice's latencies to
/// [`Times::quiet`] if the worker had its core.
const SLICE: Duration = Duration::from_millis(5);
/// Maximum nanoseconds for which the worker may wait for its core in a slice, so that the slice's
/// latencies enter [`Times::quiet`].
const HELD_UP_NS: u64 = 10_000;
/// Maximum time, in seconds, until all VMs are connected with the switch.
pub(super) const CONNECT_SECS: f64 = 20.0;
/// Longest latency that the histogram can record, in cycles: about a second.
const LONGEST: u64 = 1 << 32;
/// Number of descriptors in each ring of a VM that sends.
const RING: u16 = 256;
/// Number of descriptors in each ring of a VM that only receives. A ring of 1,024 descriptors does
/// not overflow while the generator is away from its core for a short time.
const SINK_RING: u16 = 1024;
/// Size of the largest frame in bytes, FCS included.
pub(super) const LARGEST: u16 = 1518;
/// Maximum number of frames that a VM sends in a turn.
pub(super) const BURST: usize = 32;

/// Sizes of the frames of an offer in bytes, FCS included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Of(u16),
    /// As many frames of the one size as of the other.
    Pair(u16, u16),
    /// IMIX (RFC 6985).
    Imix,
}

impl Size {
    fn mix(self) -> SizeMix {
        match self {
            Self::Of(size) => SizeMix::fixed(size),
            Self::Pair(one, other) => SizeMix(vec![(one, 1), (other, 1)]),
            Self::Imix => SizeMix::imix(),
        }
    }

    /// Returns the mean size of a frame.
    pub fn mean(self) -> f64 {
        let mix = self.mix().0;
        let frames: f64 = mix.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let bytes: f64 = mix.iter().map(|(size, w)| f64::from(*size) * f64::from(*w)).sum();
        bytes / frames
    }
}

impl From<u16> for Size {
    fn from(size: u16) -> Self {
        Self::Of(size)
    }
}

/// Traffic that a sender offers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Offer {
    pub size: Size,
    pub flows: u32,
    pub rate: Rate,
}

impl Offer {
    /// Creates an offer with rate 0, so that the VM sends nothing.
    pub fn silence() -> Self {
        Self { size: Size::Of(64), flows: 1, rate: Rate::Stop }
    }
}

/// Latencies of the time-stamped frames of one sender, in TSC cycles.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    /// Latencies from the slices of a window in which the worker had its core.
    pub quiet: Histogram<u64>,
    pub all: Histogram<u64>,
}

impl Times {
    fn new() -> anyhow::Result<Self> {
        let new = || {
            Histogram::new_with_bounds(1, LONGEST, 3).context("creating a histogram of latencies")
        };
        Ok(Self { quiet: new()?, all: new()? })
    }

    /// Adds the latencies of another sender.
    pub fn add(&mut self, other: &Self) {
        // Both histograms have the same bounds, so the addition cannot fail.
        let _ = self.quiet.add(&other.quiet);
        let _ = self.all.add(&other.all);
    }

    /// Returns a percentile of the latencies that were measured while the worker had its core, in
    /// microseconds. Returns NaN if `quiet` is empty.
    pub fn us(&self, percentile: f64, tsc_hz: f64) -> f64 {
        micros(&self.quiet, percentile, tsc_hz)
    }

    /// Returns a percentile of all latencies, in microseconds. Returns NaN if there are no
    /// latencies.
    pub fn us_of_all(&self, percentile: f64, tsc_hz: f64) -> f64 {
        micros(&self.all, percentile, tsc_hz)
    }
}

fn micros(of: &Histogram<u64>, percentile: f64, tsc_hz: f64) -> f64 {
    if of.is_empty() {
        return f64::NAN;
    }
    to_f64(of.value_at_percentile(percentile)) / tsc_hz * 1e6
}

/// Measurements of one sender in a window.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub name: String,
    /// Frames per second that arrived at the sender's destination: the median of the window's
    /// parts.
    pub pps: f64,
    /// Fraction of the loop's turns in which a frame was due and the sender's ring was full.
    pub full: f64,
    /// Frames per second that the sender wrote to its ring.
    pub offered_pps: f64,
    /// Bits per second that arrived at the sender's destination in each part of the window, FCS
    /// included.
    pub parts: Vec<f64>,
    /// Latencies of the time-stamped frames. `None` if the sender's frames are not time-stamped.
    pub times: Option<Times>,
}

/// Measurements of all senders and of the cores in a window.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// The senders, in the plan's order.
    pub senders: Vec<Sent>,
    /// Fraction of the window for which the worker waited for its core.
    pub worker_wait: f64,
    /// Fraction of the window for which the generator waited for its core.
    pub generator_wait: f64,
    /// Fraction of the window in which the generator's loop moved no frame.
    pub idle: f64,
    /// Fraction of the window for which the generator's loop stood still.
    pub standstill: f64,
}

impl Window {
    pub fn sender(&self, name: &str) -> anyhow::Result<&Sent> {
        self.senders.iter().find(|s| s.name == name).with_context(|| format!("no sender {name}"))
    }

    /// Returns the received frames per second of all senders together.
    pub fn pps(&self) -> f64 {
        self.senders.iter().map(|s| s.pps).sum()
    }

    /// Returns the latencies of all senders with names that begin with `prefix`.
    pub fn times(&self, prefix: &str) -> anyhow::Result<Times> {
        let mut sum = Times::new()?;
        for sender in self.senders.iter().filter(|s| s.name.starts_with(prefix)) {
            if let Some(times) = &sender.times {
                sum.add(times);
            }
        }
        Ok(sum)
    }

    /// Returns the longer of the worker's and the generator's waits for their cores, as a fraction
    /// of the window.
    pub fn wait(&self) -> f64 {
        self.worker_wait.max(self.generator_wait)
    }
}

/// Index of a sending VM, and index of the VM that receives the sender's frames.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: usize,
    to: usize,
    stamped: bool,
}

/// A receiving VM that takes frames from its ring at the rate of a link.
#[derive(Debug, Clone, Copy)]
struct Link {
    sink: usize,
    bits: f64,
    credit: f64,
    last_ns: u64,
    seen_bytes: u64,
}

/// The VMs of a plan, attached to a switch.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(super) vms: Vec<LoadVm>,
    names: Vec<String>,
    ways: Vec<Way>,
    /// Indices of the senders to a station that is not a VM.
    outwards: Vec<usize>,
    /// Indices of the receiving VMs, from which the loop takes frames without a rate limit. The
    /// flag is true if time-stamped frames arrive at the VM.
    sinks: Vec<(usize, bool)>,
    links: Vec<Link>,
    pub(super) start: Instant,
    pub(super) rounds: Rounds,
}

/// Counters of all senders at one time.
#[derive(Debug, Clone)]
struct Mark {
    at_ns: u64,
    of: Vec<(VmCounters, Arrived)>,
}

impl Fleet {
    /// Attaches all VMs of `plan` to `switch`.
    pub fn by_plan(switch: &dyn Switch, plan: &Plan) -> anyhow::Result<Self> {
        let mut fleet = Self::connect(&spec(switch, plan))?;
        let drained = plan.vms.iter().enumerate().filter(|(_, vm)| vm.drains > 0.0);
        for (sink, vm) in drained {
            let (credit, last_ns, seen_bytes) = (0.0, 0, 0);
            fleet.links.push(Link { sink, bits: vm.drains, credit, last_ns, seen_bytes });
            fleet.sinks.retain(|(other, _)| *other != sink);
        }
        fleet.rounds = plan.rounds;
        fleet.hush();
        Ok(fleet)
    }

    /// Attaches all VMs at the same time, because a switch may try to connect only once a second.
    pub fn connect(spec: &LoadSpec) -> anyhow::Result<Self> {
        let vms = std::thread::scope(|scope| {
            let connect = |number| scope.spawn(move || LoadVm::connect(spec, number));
            let threads: Vec<_> = (0..spec.vms.len()).map(connect).collect();
            threads
                .into_iter()
                .zip(&spec.vms)
                .map(|(thread, vm)| {
                    let vm_name = || format!("attaching {}", vm.name);
                    thread.join().ok().context("a thread panicked")?.with_context(vm_name)
                })
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        let names: Vec<String> = spec.vms.iter().map(|vm| vm.name.clone()).collect();
        let way = |(from, vm): (usize, &VmSpec)| {
            let to = vm.to.as_ref().and_then(Destination::vm)?;
            let to = names.iter().position(|name| name == to)?;
            Some(Way { from, to, stamped: vm.stamped })
        };
        let ways: Vec<Way> = spec.vms.iter().enumerate().filter_map(way).collect();
        let outside = |vm: &VmSpec| matches!(vm.to, Some(Destination::Outside(..)));
        let outwards = (0..spec.vms.len()).filter(|n| outside(&spec.vms[*n])).collect();
        let silent = spec.vms.iter().enumerate().filter(|(_, vm)| vm.to.is_none());
        let prompt = |sink| ways.iter().any(|way| way.stamped && way.to == sink);
        let sinks = silent.map(|(sink, _)| (sink, prompt(sink))).collect();
        let (links, start) = (Vec::new(), clock::now());
        let rounds = Rounds::Never;
        let mut fleet = Self { vms, names, ways, outwards, sinks, links, start, rounds };
        fleet.vms.iter_mut().try_for_each(LoadVm::announce)?;
        Ok(fleet)
    }

    /// Returns the features that the device of the first VM negotiated.
    pub fn features(&self) -> String {
        self.vms.first().map(LoadVm::features).unwrap_or_default()
    }

    /// Changes the traffic that the VM `name` offers.
    pub fn offer(&mut self, name: &str, offer: &Offer) {
        if let Some(number) = self.names.iter().position(|n| n == name) {
            self.vms[number].change(&phase(offer));
        }
    }

    /// Returns the number of frames that each VM has put into its ring, in the plan's order.
    pub fn sent_frames(&mut self) -> Vec<u64> {
        self.vms.iter_mut().map(|vm| vm.counters().tx_frames).collect()
    }

    pub fn hush(&mut self) {
        self.vms.iter_mut().for_each(|vm| vm.change(&phase(&Offer::silence())));
    }

    /// Sends for `warm` seconds, and then measures for `secs` seconds, divided into `parts` parts.
    pub fn run(
        &mut self,
        switch: &dyn Switch,
        warm: f64,
        secs: f64,
        parts: u32,
    ) -> anyhow::Result<Window> {
        let mut times = self
            .ways
            .iter()
            .map(|way| way.stamped.then(Times::new).transpose())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let began = self.now_ns();
        self.vms.iter_mut().for_each(|vm| vm.restart_pacing(began));
        let mut lap = Lap::new(switch.waited_ns());
        self.turns(switch, began + nanos(warm), &mut lap, &mut [])?;
        let waited = (switch.waited_ns(), run_queue_wait_ns());
        let (first, mut lap) = (self.now_ns(), Lap::new(waited.0));
        let mut marks = vec![self.mark()];
        for part in 1..=parts {
            let end = first + nanos(secs * f64::from(part) / f64::from(parts));
            self.turns(switch, end, &mut lap, &mut times)?;
            marks.push(self.mark());
        }
        let waited = (switch.waited_ns() - waited.0, run_queue_wait_ns() - waited.1);
        let took = self.now_ns() - first;
        let share = |ns: u64| to_f64(ns) / to_f64(took.max(1));
        Ok(Window {
            senders: self.sent(&marks, times, lap.turns),
            worker_wait: share(waited.0),
            generator_wait: share(waited.1),
            idle: share(lap.idle_ns),
            standstill: share(lap.standstill_ns),
        })
    }

    pub(super) fn now_ns(&self) -> u64 {
        clock::nanos(self.start.elapsed())
    }

    fn mark(&mut self) -> Mark {
        let at_ns = self.now_ns();
        let of = self.ways.iter().map(|way| {
            let arrived = self.vms[way.to].arrived().nth(way.from).unwrap_or_default();
            (self.vms[way.from].counters(), arrived)
        });
        Mark { at_ns, of: of.collect() }
    }

    fn sent(&self, marks: &[Mark], times: Vec<Option<Times>>, turns: u64) -> Vec<Sent> {
        let (Some(first), Some(last)) = (marks.first(), marks.last()) else { return Vec::new() };
        let secs = seconds(last.at_ns - first.at_ns).max(1e-9);
        let all = self.ways.iter().zip(times).enumerate();
        all.map(|(i, (way, times))| {
            let part = |pair: &[Mark]| {
                let secs = seconds(pair[1].at_ns - pair[0].at_ns).max(1e-9);
                let (then, now) = (pair[0].of[i].1, pair[1].of[i].1);
                let frames = to_f64(now.frames - then.frames);
                (frames / secs, (to_f64(now.bytes - then.bytes) + 4.0 * frames) * 8.0 / secs)
            };
            let (pps, bps): (Vec<f64>, Vec<f64>) = marks.windows(2).map(part).unzip();
            let (then, now) = (first.of[i].0, last.of[i].0);
            Sent {
                name: self.names[way.from].clone(),
                pps: middle(&pps),
                full: to_f64(now.tx_ring_full - then.tx_ring_full) / to_f64(turns.max(1)),
                offered_pps: to_f64(now.tx_frames - then.tx_frames) / secs,
                parts: bps,
                times,
            }
        })
        .collect()
    }

    /// Runs turns of the generator's loop until the time `end`.
    fn turns(
        &mut self,
        switch: &dyn Switch,
        end: u64,
        lap: &mut Lap,
        times: &mut [Option<Times>],
    ) -> anyhow::Result<()> {
        let (slice, standstill) = (clock::nanos(SLICE), clock::nanos(STANDSTILL));
        let mut now = self.now_ns();
        let mut next_slice = now + slice;
        while now < end {
            let moved = self.turn(now)?;
            lap.turns += 1;
            let then = self.now_ns();
            if moved == 0 {
                lap.idle_ns += then - now;
            }
            if then - now > standstill {
                lap.standstill_ns += then - now;
                self.forget();
            }
            now = then;
            if now >= next_slice {
                next_slice = now + slice;
                self.sort_times(switch, lap, times);
                // Sorting does not count as a standstill, but frames waited in this time.
                self.forget();
                now = self.now_ns();
            }
        }
        self.sort_times(switch, lap, times);
        Ok(())
    }

    fn turn(&mut self, now: u64) -> anyhow::Result<usize> {
        let mut moved = 0;
        for i in 0..self.ways.len() {
            moved += self.vms[self.ways[i].from].send_turn(now, BURST)?;
            for &(sink, prompt) in &self.sinks {
                if prompt {
                    moved += self.vms[sink].receive();
                }
            }
        }
        for &from in &self.outwards {
            moved += self.vms[from].send_turn(now, BURST)?;
        }
        for &(sink, prompt) in &self.sinks {
            if !prompt {
                moved += self.vms[sink].receive();
            }
        }
        for i in 0..self.links.len() {
            moved += self.drain(i, now);
        }
        Ok(moved)
    }

    /// Receives the frames that a link of the given rate would have carried since the last turn.
    fn drain(&mut self, link: usize, now: u64) -> usize {
        let Link { sink, bits, .. } = self.links[link];
        let vm = &mut self.vms[sink];
        let link = &mut self.links[link];
        let most = bits * 1e-4;
        link.credit = (link.credit + bits * seconds(now - link.last_ns)).min(most);
        link.last_ns = now;
        let mut moved = 0;
        while link.credit > 0.0 {
            if vm.receive_up_to(1) == 0 {
                // An idle link collects no credit for later.
                link.credit = link.credit.min(f64::from(LARGEST) * 8.0);
                break;
            }
            moved += 1;
            // The bytes include preamble, gap and FCS.
            let bytes: u64 = vm.arrived().map(|a| a.bytes + 24 * a.frames).sum();
            link.credit -= to_f64(bytes - link.seen_bytes) * 8.0;
            link.seen_bytes = bytes;
        }
        moved
    }

    fn forget(&mut self) {
        let now = Tsc.now().0;
        for &(sink, prompt) in &self.sinks {
            if prompt {
                self.vms[sink].forget_times_before(now);
            }
        }
    }

    fn sort_times(&mut self, switch: &dyn Switch, lap: &mut Lap, times: &mut [Option<Times>]) {
        let waited = switch.waited_ns();
        let quiet = waited - lap.waited_ns <= HELD_UP_NS;
        lap.waited_ns = waited;
        for &(sink, _) in self.sinks.iter().filter(|(_, prompt)| *prompt) {
            let ways = &self.ways;
            self.vms[sink].drain_times(|from, cycles| {
                let Some(way) = ways.iter().position(|way| way.from == from) else { return };
                let Some(Some(times)) = times.get_mut(way) else { return };
                times.all.saturating_record(cycles.max(1));
                if quiet {
                    times.quiet.saturating_record(cycles.max(1));
                }
            });
        }
    }
}

/// Counters of the generator's loop.
#[derive(Debug)]
struct Lap {
    turns: u64,
    idle_ns: u64,
    standstill_ns: u64,
    waited_ns: u64,
}

impl Lap {
    fn new(waited_ns: u64) -> Self {
        Self { turns: 0, idle_ns: 0, standstill_ns: 0, waited_ns }
    }
}

fn spec(switch: &dyn Switch, plan: &Plan) -> LoadSpec {
    let vms = plan.vms.iter().enumerate().map(|(number, vm)| {
        let socket = switch.socket(&vm.name);
        let mut spec = VmSpec::new(&vm.name, socket, Plan::mac(number), Plan::ip(number));
        spec.mode = if switch.listens() { SocketMode::Client } else { SocketMode::Server };
        spec.to = plan.destination(number);
        (spec.stamped, spec.interrupts, spec.kicks) = (vm.stamped, vm.interrupts, vm.kicks);
        let ring_size = if spec.to.is_some() { RING } else { SINK_RING };
        spec.ring_size = plan.link.map_or(ring_size, |link| link.ring_size);
        if plan.link.is_some_and(|link| link.packed) {
            spec.wanted = spec.wanted | Features::RING_PACKED;
        }
        spec.sizes = SizeMix::fixed(LARGEST);
        spec.rate = Rate::Stop;
        spec
    });
    let mut spec = LoadSpec::new(vms.collect(), 0.0);
    spec.touch = plan.link.is_some_and(|link| link.touch);
    spec.wait_secs = CONNECT_SECS;
    spec
}

fn phase(offer: &Offer) -> Phase {
    Phase {
        at_secs: 0.0,
        rate: Some(offer.rate),
        sizes: Some(offer.size.mix()),
        flows: Some(offer.flows),
    }
}

fn nanos(secs: f64) -> u64 {
    clock::nanos(Duration::try_from_secs_f64(secs).unwrap_or_default())
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
