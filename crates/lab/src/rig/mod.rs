//! A switch under test, with VMs that send and receive at its ports.
//!
//! # Problem
//!
//! Benchmarks and live figures compare switches on a machine with few cores. Two switches that run
//! at the same time disturb each other. Other programs also disturb a measurement.
//!
//! # Approach
//!
//! One switch runs, and the other switches are stopped (SIGSTOP) with open connections. One loop on
//! the generator's core runs all VMs ([`fleet`]). Most benchmarks use only two VMs ([`pair`]). If
//! the worker or the generator waited for its core in a window, the window is repeated a few times.
//! The window with the shortest wait counts, even if its result is worse ([`quietest`]).
//!
//! | Module | Content |
//! |---|---|
//! | `switch` | trait of a switch under test |
//! | `penstock`, `ovs` | implementations of the trait for Penstock and OVS-DPDK |
//! | `through` | interfaces through which frames leave a switch and return |
//! | `plan` | VMs and their contracts, as Penstock's configuration and as OVS's flows |
//! | `fleet`, `pair` | the load: windows of the live figures, and windows of the benchmarks |
//! | `etcd` | an etcd with one member, for the controller's store |
//! | `link` | settings of the connection between VMs and a switch |
//! | `stats` | medians, spreads, ratios |

pub(crate) mod etcd;
pub(crate) mod fleet;
pub(crate) mod link;
pub(crate) mod ovs;
pub(crate) mod pair;
pub(crate) mod penstock;
pub(crate) mod plan;
pub(crate) mod stats;
pub(crate) mod switch;
pub(crate) mod through;

use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Map, Value};

use fleet::{Fleet, Offer, Window};
use link::Link;
use penstock::Penstock;
use penstock_guest::bed::Bed;
use penstock_guest::clock;
use plan::Plan;
use stats::to_f64;
use switch::{Case, Switch, WorkerReading};

/// A window is repeated if the worker or the generator waited for its core for more than this
/// fraction of the window.
const QUIET: f64 = 0.005;
const TRIES: usize = 3;
/// Seconds for which the load runs before counting starts.
const WARM_SECS: f64 = 0.15;
/// Number of parts into which a window is divided.
const PARTS: u32 = 8;

/// A switch under test and the VMs at its ports.
#[derive(Debug)]
pub(crate) struct Rig {
    // The VMs end before the switch.
    pub fleet: Fleet,
    pub switch: Box<dyn Switch>,
}

/// Lengths of the warm-up and the measurement of a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Seconds for which the load runs before counting starts.
    pub warm: f64,
    /// Length of the measurement in seconds.
    pub secs: f64,
    /// Number of parts into which the measured time is divided.
    pub parts: u32,
}

/// Capacity of a worker: the frame rate, and the cost of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Frames per second of all senders together.
    pub pps: f64,
    /// Cycles that the worker spends on a frame.
    pub cycles: f64,
    /// Fraction of the worker's core that the frames took.
    pub busy: f64,
}

/// Measurements of the generator: the length of a window, and the wait of the generator for its
/// core.
pub(crate) trait Timed {
    /// Returns the length of the window in seconds.
    fn secs(&self) -> f64;
    /// Returns the nanoseconds for which the generator waited for its core.
    fn waited_ns(&self) -> u64;
}

/// Measurements of one switch in one window.
#[derive(Debug, Clone)]
pub(crate) struct Sample<T> {
    /// Measurements of the load generator in the window.
    pub window: T,
    /// Increase of the worker's counters in the window.
    pub worker: WorkerReading,
    /// Frequency in Hz of the time-stamp counter that counts the worker's cycles.
    pub tsc_hz: f64,
}

impl<T> Sample<T> {
    /// Returns the cycles of the worker's turns that moved frames, divided by the number of frames.
    pub fn cycles_per_frame(&self) -> f64 {
        to_f64(self.worker.busy_cycles) / to_f64(self.worker.frames.max(1))
    }
}

impl<T: Timed> Sample<T> {
    /// Returns the percentage of the window that the worker spent in turns that moved frames.
    pub fn worker_busy_percent(&self) -> f64 {
        100.0 * to_f64(self.worker.busy_cycles) / (self.window.secs() * self.tsc_hz)
    }

    /// Returns the percentage of the window for which the worker waited for its core.
    pub fn worker_wait_percent(&self) -> f64 {
        percent_of(self.worker.waited_ns, self.window.secs())
    }

    /// Returns the percentage of the window for which the generator waited for its core.
    pub fn generator_wait_percent(&self) -> f64 {
        percent_of(self.window.waited_ns(), self.window.secs())
    }

    /// Returns the longer of the worker's and the generator's waits for their cores, as a fraction
    /// of the window.
    pub fn wait_share(&self) -> f64 {
        self.worker_wait_percent().max(self.generator_wait_percent()) / 100.0
    }
}

fn percent_of(ns: u64, secs: f64) -> f64 {
    100.0 * Duration::from_nanos(ns).as_secs_f64() / secs
}

/// Measures windows with `take` until worker and generator have hardly waited for their cores in a
/// window, but at most [`TRIES`] windows. The argument `wait` returns the fraction of a window for
/// which the worker or the generator waited for a core. A window is quiet if its wait is at most
/// [`QUIET`]. Returns the window in which the worker and the generator waited least.
fn quietest<T>(
    wait: impl Fn(&T) -> f64,
    mut take: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut best = take()?;
    for _ in 1..TRIES {
        if wait(&best) <= QUIET {
            break;
        }
        let next = take()?;
        if wait(&next) < wait(&best) {
            best = next;
        }
    }
    Ok(best)
}

impl Rig {
    /// Starts Penstock and the VMs of `plan`. After the start, Penstock is paused until a
    /// measurement.
    pub fn ours(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        Self::by_plan(bed, name, plan, Penstock::by_plan(bed, name, plan)?)
    }

    /// Starts OVS-DPDK and the VMs of `plan`. After the start, OVS-DPDK is paused until a
    /// measurement.
    pub fn peer(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        Self::by_plan(bed, name, plan, ovs::OvsDpdk::by_plan(bed, name, plan)?)
    }

    fn by_plan(
        bed: &Bed,
        name: &str,
        plan: &Plan,
        switch: impl Switch + 'static,
    ) -> anyhow::Result<Self> {
        let rig = Self::attach(bed, switch, |switch| Fleet::by_plan(switch, plan));
        rig.with_context(|| format!("attaching the VMs to {name}"))
    }

    /// Attaches a pair of VMs to a started switch, and pauses the switch.
    pub fn pair(bed: &Bed, switch: impl Switch + 'static, link: &Link) -> anyhow::Result<Self> {
        Self::attach(bed, switch, |switch| Fleet::pair(switch, link))
    }

    fn attach(
        bed: &Bed,
        switch: impl Switch + 'static,
        connect: impl FnOnce(&dyn Switch) -> anyhow::Result<Fleet> + Send,
    ) -> anyhow::Result<Self> {
        let fleet = bed.on_generator_core(|| connect(&switch))?;
        let mut switch: Box<dyn Switch> = Box::new(switch);
        switch.pause()?;
        Ok(Self { fleet, switch })
    }

    /// Adds the switch's programs, its settings and the negotiated features to the report's
    /// platform.
    pub fn describe(&self, platform: &mut Map<String, Value>) {
        self.switch.describe(platform);
        let name = format!("features_{}", self.switch.name());
        platform.insert(name, self.fleet.features().into());
    }

    /// Installs the rules of a benchmark's case in the switch.
    pub fn set_case(&mut self, case: Case) -> anyhow::Result<()> {
        self.awake(|rig| rig.switch.set_case(case))
    }

    /// Resumes the switch, calls `work`, and pauses the switch.
    pub fn awake<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.switch.resume()?;
        let done = work(self);
        self.switch.pause()?;
        done
    }

    /// Calls `warm` for the warm-up and `run` for the measured window. Reads the worker's counters
    /// before and after `run`, when no frame is in flight. If other work disturbs the measured
    /// window, `warm` and `run` are repeated ([`quietest`]).
    pub fn sample<T: Timed + Send>(
        &mut self,
        bed: &Bed,
        warm: impl Fn(&mut Fleet) -> anyhow::Result<()> + Sync,
        run: impl Fn(&mut Fleet) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Sample<T>> {
        self.awake(|rig| quietest(Sample::wait_share, || rig.take(bed, &warm, &run)))
    }

    /// Works like [`Self::sample`], but does not repeat a disturbed window. A load generator that
    /// shares its core with a worker waits in every window, so that a repetition would not help.
    pub fn sample_once<T: Timed + Send>(
        &mut self,
        bed: &Bed,
        warm: impl Fn(&mut Fleet) -> anyhow::Result<()> + Sync,
        run: impl Fn(&mut Fleet) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Sample<T>> {
        self.awake(|rig| rig.take(bed, &warm, &run))
    }

    fn take<T: Timed + Send>(
        &mut self,
        bed: &Bed,
        warm: &(impl Fn(&mut Fleet) -> anyhow::Result<()> + Sync),
        run: &(impl Fn(&mut Fleet) -> anyhow::Result<T> + Sync),
    ) -> anyhow::Result<Sample<T>> {
        let Self { fleet, switch } = self;
        bed.on_generator_core(|| warm(fleet))?;
        switch.mark()?;
        let window = bed.on_generator_core(|| run(fleet))?;
        let worker = switch.read_some()?;
        Ok(Sample { window, worker, tsc_hz: switch.tsc_hz() })
    }

    /// Measures a window of `secs` seconds in which the VMs in `offers` send. All other VMs send
    /// nothing. Repeats a window that other work disturbed ([`quietest`]).
    pub fn window(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        secs: f64,
    ) -> anyhow::Result<Window> {
        let span = Span { warm: WARM_SECS, secs, parts: PARTS };
        quietest(Window::wait, || self.once(bed, offers, span))
    }

    /// Measures the frames per second that the switch takes from each VM's ring, in the plan's
    /// order, while the VMs in `offers` send. The VMs' rings must be full before the call. Repeats
    /// a window that other work disturbed ([`quietest`]).
    pub fn taken(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        secs: f64,
    ) -> anyhow::Result<Vec<f64>> {
        let span = Span { warm: 0.0, secs, parts: 1 };
        let take = || {
            let (before, start) = (self.fleet.sent_frames(), clock::now());
            let window = self.once(bed, offers, span)?;
            let (after, took) = (self.fleet.sent_frames(), start.elapsed().as_secs_f64());
            let rates = before.iter().zip(after).map(|(from, to)| to_f64(to - from) / took);
            Ok((window, rates.collect()))
        };
        quietest(|(window, _): &(Window, Vec<f64>)| window.wait(), take).map(|(_, rates)| rates)
    }

    /// Measures one window in which the VMs in `offers` send. All other VMs send nothing. Unlike
    /// [`Self::window`], the function does not repeat a disturbed window.
    pub fn once(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        Span { warm, secs, parts }: Span,
    ) -> anyhow::Result<Window> {
        self.fleet.hush();
        for (name, offer) in offers {
            self.fleet.offer(name, offer);
        }
        let (fleet, switch) = (&mut self.fleet, self.switch.as_ref());
        bed.on_generator_core(|| fleet.run(switch, warm, secs, parts))
    }

    /// Measures the cost of a frame while the VMs in `offers` send. Returns the cost and the
    /// measured window.
    pub fn cost(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        span: Span,
    ) -> anyhow::Result<(Capacity, Window)> {
        self.switch.mark()?;
        let window = self.once(bed, offers, span)?;
        let worker = self.switch.read()?;
        let cycles = to_f64(worker.busy_cycles) / to_f64(worker.frames.max(1));
        let busy = window.pps() * cycles / bed.tsc_hz();
        Ok((Capacity { pps: window.pps(), cycles, busy }, window))
    }

    /// Measures the capacity of the worker while the VMs in `offers` send. Repeats a window that
    /// other work disturbed ([`quietest`]).
    pub fn capacity(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        secs: f64,
    ) -> anyhow::Result<Capacity> {
        let span = Span { warm: WARM_SECS, secs, parts: PARTS };
        let found =
            quietest(|found: &(Capacity, Window)| found.1.wait(), || self.cost(bed, offers, span));
        found.map(|(capacity, _)| capacity)
    }
}

/// Raises the limit of open file descriptors to `wanted`, for this process and its children.
pub(crate) fn allow_descriptors(wanted: u64) -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    anyhow::ensure!(
        wanted <= hard,
        "{wanted} file descriptors are needed and {hard} allowed; raise the hard limit (ulimit -Hn)"
    );
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard)?)
}

/// Returns a description of the machine for the field `platform` of an outcome.
pub(crate) fn platform(bed: &Bed, peer: bool) -> Map<String, Value> {
    let mut map = bed.describe();
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    map.insert("penstock".into(), env!("CARGO_PKG_VERSION").into());
    map.insert("penstock_profile".into(), profile.into());
    map.insert("peer_measured".into(), peer.into());
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_window_is_repeated_and_the_quietest_counts() {
        let taken = |waits: &[f64]| {
            let mut left = waits.iter().copied();
            let best = quietest(|wait| *wait, || left.next().context("too many windows"));
            (best.unwrap(), waits.len() - left.count())
        };
        assert_eq!(taken(&[0.005, 0.0]), (0.005, 1));
        assert_eq!(taken(&[0.3, 0.004, 0.0]), (0.004, 2));
        assert_eq!(taken(&[0.3, 0.1, 0.2, 0.0]), (0.1, 3));
        assert!(quietest(|wait| *wait, || anyhow::bail!("no window")).is_err());
    }
}
