//! A switch under test with its load attached.
//!
//! # Problem
//!
//! Benchmarks and live figures compare switches on a machine with few cores. Two switches that run
//! at once disturb each other, and so does every other program.
//!
//! # Approach
//!
//! One switch runs, and the others are stopped (SIGSTOP) with their connections open. One loop on
//! the generator's core plays all VMs ([`fleet`]). A benchmark's pair is a fleet of two ([`pair`]).
//! If worker or generator waited for its core in a window, the window is repeated a few times. The
//! quietest one counts, whatever its result ([`quietest`]).
//!
//! | Module | Content |
//! |---|---|
//! | `switch` | the trait of a switch under test |
//! | `penstock`, `ovs` | Penstock and OVS-DPDK as implementations of that trait |
//! | `through` | interfaces through which frames leave a switch and return |
//! | `plan` | VMs and their contracts, as Penstock's configuration and as OVS's flows |
//! | `fleet`, `pair` | the load: windows of many VMs, and the benchmarks' windows of two |
//! | `stats` | medians, spreads, ratios |

pub(crate) mod fleet;
pub(crate) mod ovs;
pub(crate) mod pair;
pub(crate) mod penstock;
pub(crate) mod plan;
pub(crate) mod stats;
pub(crate) mod switch;
pub(crate) mod through;

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value};

use fleet::{Fleet, Offer, Window};
use pair::Link;
use penstock::Penstock;
use penstock_guest::bed::Bed;
use plan::Plan;
use stats::to_f64;
use switch::{Case, Switch, WorkerReading};

/// A window is repeated if the wait for a core exceeds this share of the window.
const QUIET: f64 = 0.005;
/// Largest number of tries for one window.
const TRIES: usize = 3;
/// Seconds of load before counting starts.
const WARM_SECS: f64 = 0.15;
/// Parts of a window.
const PARTS: u32 = 8;

/// A switch under test and the VMs at its ports.
#[derive(Debug)]
pub(crate) struct Rig {
    // The VMs end before the switch.
    pub fleet: Fleet,
    pub switch: Box<dyn Switch>,
}

/// How long a window lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Seconds of load before counting starts.
    pub warm: f64,
    /// Seconds that are counted.
    pub secs: f64,
    /// Parts into which these seconds are divided.
    pub parts: u32,
}

/// The result of a calibration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Frames per second of all senders together.
    pub pps: f64,
    /// Cycles of the worker per frame.
    pub cycles: f64,
    /// Share of the worker's core that these frames took.
    pub busy: f64,
}

/// How long a window lasted and how long its generator waited.
pub(crate) trait Timed {
    /// Seconds that count.
    fn secs(&self) -> f64;
    /// Nanoseconds for which the generator was runnable and did not run.
    fn waited_ns(&self) -> u64;
}

/// One window of one switch.
#[derive(Debug, Clone)]
pub(crate) struct Sample<T> {
    /// Measurements of the generator.
    pub window: T,
    /// Counters of the worker.
    pub worker: WorkerReading,
    /// Frequency of the worker's cycles.
    pub tsc_hz: f64,
}

impl<T> Sample<T> {
    /// Cycles of the worker's turns that moved frames, divided by these frames.
    pub fn cycles_per_frame(&self) -> f64 {
        to_f64(self.worker.busy_cycles) / to_f64(self.worker.frames.max(1))
    }
}

impl<T: Timed> Sample<T> {
    /// Percentage of the window that the worker spent in turns that moved frames.
    pub fn worker_busy_percent(&self) -> f64 {
        100.0 * to_f64(self.worker.busy_cycles) / (self.window.secs() * self.tsc_hz)
    }

    /// Percentage of the window for which the worker waited for its core.
    pub fn worker_wait_percent(&self) -> f64 {
        percent_of(self.worker.waited_ns, self.window.secs())
    }

    /// Percentage of the window for which the generator waited for its core.
    pub fn generator_wait_percent(&self) -> f64 {
        percent_of(self.window.waited_ns(), self.window.secs())
    }

    /// The greater of both waits, as a share.
    pub fn wait_share(&self) -> f64 {
        self.worker_wait_percent().max(self.generator_wait_percent()) / 100.0
    }
}

fn percent_of(ns: u64, secs: f64) -> f64 {
    100.0 * Duration::from_nanos(ns).as_secs_f64() / secs
}

/// Takes windows until `wait` is small in one, and returns the quietest of a few. `wait` is the
/// share of the window for which the worker or the generator waited for a core.
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
    /// Starts Penstock and the VMs of `plan`. Penstock is then stopped until it is measured.
    pub fn ours(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        Self::by_plan(bed, name, plan, Penstock::by_plan(bed, name, plan)?)
    }

    /// Starts OVS-DPDK and the VMs of `plan`. OVS-DPDK is then stopped until it is measured.
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

    /// Attaches a pair of VMs to a benchmark's switch that has just started, and stops the switch.
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

    /// Adds programs, settings and negotiated features to the report.
    pub fn describe(&self, platform: &mut Map<String, Value>) {
        self.switch.describe(platform);
        let name = format!("features_{}", self.switch.name());
        platform.insert(name, self.fleet.features().into());
    }

    /// Configures a benchmark's case.
    pub fn set_case(&mut self, case: Case) -> anyhow::Result<()> {
        self.awake(|rig| rig.switch.set_case(case))
    }

    /// Lets the switch run while `work` is done, and stops it again.
    pub fn awake<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.switch.resume()?;
        let done = work(self);
        self.switch.pause()?;
        done
    }

    /// Runs `warm`, then `run` between two readings of the worker. No frame is under way at either
    /// reading. Returns the quietest of a few samples.
    pub fn sample<T: Timed + Send>(
        &mut self,
        bed: &Bed,
        warm: impl Fn(&mut Fleet) -> anyhow::Result<()> + Sync,
        run: impl Fn(&mut Fleet) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Sample<T>> {
        self.awake(|rig| {
            quietest(Sample::wait_share, || {
                let Self { fleet, switch } = &mut *rig;
                bed.on_generator_core(|| warm(fleet))?;
                switch.mark()?;
                let window = bed.on_generator_core(|| run(fleet))?;
                let worker = switch.read_some()?;
                Ok(Sample { window, worker, tsc_hz: switch.tsc_hz() })
            })
        })
    }

    /// A window of `secs` under these offers while all other VMs are silent. Returns the quietest
    /// of a few.
    pub fn window(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        secs: f64,
    ) -> anyhow::Result<Window> {
        let span = Span { warm: WARM_SECS, secs, parts: PARTS };
        quietest(Window::wait, || self.once(bed, offers, span))
    }

    /// One window under these offers while all other VMs are silent. It is not repeated.
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

    /// The cost of a frame under these offers, and the window in which it was measured.
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

    /// Capacity of the worker under these offers, in the quietest window of a few.
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

/// The machine's description, for an outcome's platform.
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
