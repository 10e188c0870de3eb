//! Two VMs behind a Penstock switch, and the cost of the switch's stages.

use serde_json::{Map, Value};

use crate::rig::fleet::Fleet;
use crate::rig::pair::{Link, PairWindow};
use crate::rig::penstock::{Offloads, Penstock};
use crate::rig::stats::Spread;
use crate::rig::stats::to_f64;
use crate::rig::{Rig, Sample};
use penstock_guest::bed::guard::Guard;
use penstock_guest::bed::{Bed, BedArgs};
use penstock_guest::load::{Rate, SizeMix};

/// Seconds of load before counting starts.
const WARM_UP_SECS: f64 = 0.2;

/// Rates and costs, measured over a time window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stages {
    /// Frames per second that the worker took.
    pub frames_per_sec: f64,
    /// Cycles per second that the worker spent on turns that moved frames.
    pub busy_per_sec: f64,
    /// Cycles of a frame in ingress, classification and egress, from the sampled batches.
    pub of_frame: [f64; 3],
}

impl Stages {
    fn of(sample: &Sample<PairWindow>) -> Self {
        let note = |name: &str| {
            let note = sample.worker.notes.iter().find(|n| n.0 == name);
            note.map_or(f64::NAN, |n| n.1)
        };
        let secs = sample.window.secs;
        Self {
            frames_per_sec: to_f64(sample.worker.frames) / secs,
            busy_per_sec: to_f64(sample.worker.busy_cycles) / secs,
            of_frame: ["cycles_ingress", "cycles_classification", "cycles_egress"].map(note),
        }
    }
}

/// A sender and a receiver with our switch between them, on their own cores.
#[derive(Debug)]
pub(crate) struct LivePair {
    bed: Bed,
    switch: Rig,
}

impl LivePair {
    /// Starts the switch and attaches the VMs. The VMs write and verify the bytes of frames.
    pub fn start(args: &BedArgs, guard: &Guard) -> anyhow::Result<Self> {
        let bed = Bed::new(args, guard.clone())?;
        let link = Link { ring_size: 256, packed: false, touch: true };
        let switch = Rig::pair(&bed, Penstock::start(&bed, Offloads::Off)?, &link)?;
        Ok(Self { bed, switch })
    }

    /// The machine and the settings.
    pub fn describe(&self) -> Map<String, Value> {
        let mut platform = self.bed.describe();
        self.switch.describe(&mut platform);
        platform
    }

    /// The median of each number over `runs` windows of `secs`.
    pub fn median(
        &mut self,
        sizes: &SizeMix,
        flows: u32,
        rate: Rate,
        secs: f64,
        runs: u32,
    ) -> anyhow::Result<Stages> {
        let send = |fleet: &mut Fleet, secs| {
            fleet.send(sizes, flows, rate);
            fleet.run_and_settle(secs)
        };
        let mut all = Vec::new();
        for _ in 0..runs {
            let sample = self.switch.sample(
                &self.bed,
                |fleet| send(fleet, WARM_UP_SECS).map(drop),
                |fleet| send(fleet, secs),
            )?;
            anyhow::ensure!(sample.window.bad == 0, "{} frames came damaged", sample.window.bad);
            all.push(Stages::of(&sample));
        }
        let median = |of: &dyn Fn(&Stages) -> f64| {
            Spread::of(&all.iter().map(of).collect::<Vec<_>>()).map_or(f64::NAN, |s| s.median)
        };
        Ok(Stages {
            frames_per_sec: median(&|s| s.frames_per_sec),
            busy_per_sec: median(&|s| s.busy_per_sec),
            of_frame: [0, 1, 2].map(|i| median(&|s| s.of_frame[i])),
        })
    }
}
