//! Two VMs behind a Penstock switch, and the cycles that each stage of the switch spends on a
//! frame.

use serde_json::{Map, Value};

use crate::rig::fleet::Fleet;
use crate::rig::link::Link;
use crate::rig::pair::SettledWindow;
use crate::rig::penstock::{Offloads, Penstock};
use crate::rig::stats::Spread;
use crate::rig::stats::to_f64;
use crate::rig::{Rig, Sample};
use penstock_guest::bed::guard::Guard;
use penstock_guest::bed::{Bed, BedArgs};
use penstock_guest::load::{Rate, SizeMix};

/// Seconds for which the load runs before the measurement starts.
const WARM_UP_SECS: f64 = 0.2;

/// Rates and costs of the switch's worker in one time window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stages {
    /// Frames per second that the switch's worker received.
    pub frames_per_sec: f64,
    /// Cycles per second that the switch's worker spent in turns of its loop that moved frames.
    pub busy_per_sec: f64,
    /// Cycles per frame in ingress, classification and egress. The worker measures the cycles of
    /// the stages only in a sample of its batches.
    pub of_frame: [f64; 3],
}

impl Stages {
    fn of(sample: &Sample<SettledWindow>) -> Self {
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

/// A sending and a receiving VM with Penstock between them. The worker and the VMs have different
/// cores.
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

    /// Returns a description of the machine and the settings for the `platform` of the report.
    pub fn describe(&self) -> Map<String, Value> {
        let mut platform = self.bed.describe();
        self.switch.describe(&mut platform);
        platform
    }

    /// Measures `runs` windows of `secs` seconds. Returns the median of each field of [`Stages`]
    /// over the windows.
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
            anyhow::ensure!(
                sample.window.bad == 0,
                "{} received frames have wrong bytes",
                sample.window.bad
            );
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
