//! A switch with its load attached, stopped while others are measured.

use anyhow::Context as _;
use serde_json::{Map, Value};

use super::fleet::{Fleet, Offer, Window, to_f64};
use super::plan::Plan;
use super::switch::{Ours, Peer, Switch};
use penstock_guest::bed::Bed;

/// A window with more wait for a core than this is taken again.
const QUIET: f64 = 0.005;
/// How often.
const TRIES: u32 = 2;
/// Seconds of load before the counting starts.
const WARM_SECS: f64 = 0.15;
/// Parts of a window.
const PARTS: u32 = 8;

/// A switch under test.
#[derive(Debug)]
pub(crate) struct Rig {
    // Its VMs go before it does.
    pub fleet: Fleet,
    pub switch: Box<dyn Switch>,
}

/// How long a window lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Seconds of load before the counting starts.
    pub warm: f64,
    /// Seconds that are counted.
    pub secs: f64,
    /// Parts of them.
    pub parts: u32,
}

/// What a calibration found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Frames a second of all senders together.
    pub pps: f64,
    /// Cycles of the worker for each.
    pub cycles: f64,
    /// Share of the worker's core that they are.
    pub busy: f64,
}

impl Rig {
    /// Our switch by `plan`, with its VMs; stopped.
    pub fn ours(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        Self::attach(bed, name, plan, Box::new(Ours::start(bed, name, plan)?))
    }

    /// OVS-DPDK by `plan`, with its VMs; stopped.
    pub fn peer(bed: &Bed, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        Self::attach(bed, name, plan, Box::new(Peer::start(bed, name, plan)?))
    }

    fn attach(
        bed: &Bed,
        name: &str,
        plan: &Plan,
        mut switch: Box<dyn Switch>,
    ) -> anyhow::Result<Self> {
        let fleet = bed.on_generator_core(|| Fleet::connect(switch.as_ref(), plan));
        let fleet = fleet.with_context(|| format!("attaching the VMs to {name}"))?;
        switch.pause()?;
        Ok(Self { fleet, switch })
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

    /// A window of `secs` under these offers, all others silent; the quietest of a few.
    pub fn window(
        &mut self,
        bed: &Bed,
        offers: &[(&str, Offer)],
        secs: f64,
    ) -> anyhow::Result<Window> {
        self.fleet.hush();
        for (name, offer) in offers {
            self.fleet.offer(name, offer);
        }
        let mut best: Option<Window> = None;
        for _ in 0..TRIES {
            let (fleet, switch) = (&mut self.fleet, self.switch.as_ref());
            let window = bed.on_generator_core(|| fleet.run(switch, WARM_SECS, secs, PARTS))?;
            if best.as_ref().is_none_or(|best| window.wait() < best.wait()) {
                best = Some(window);
            }
            if best.as_ref().is_some_and(|best| best.wait() <= QUIET) {
                break;
            }
        }
        best.context("no window was measured")
    }

    /// One window as it comes under these offers, all others silent.
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

    /// What a frame costs under these offers, and the window in which that was found.
    pub fn cost(
        &mut self,
        bed: &Bed,
        offers: &[(String, Offer)],
        span: Span,
    ) -> anyhow::Result<(Capacity, Window)> {
        self.switch.mark()?;
        let window = self.once(bed, offers, span)?;
        let (frames, busy) = self.switch.read()?;
        let cycles = to_f64(busy) / to_f64(frames.max(1));
        let busy = window.pps() * cycles / bed.tsc_hz();
        Ok((Capacity { pps: window.pps(), cycles, busy }, window))
    }

    /// What the worker can do under these offers.
    pub fn capacity(
        &mut self,
        bed: &Bed,
        offers: &[(&str, Offer)],
        secs: f64,
    ) -> anyhow::Result<Capacity> {
        self.switch.mark()?;
        let window = self.window(bed, offers, secs)?;
        let (frames, busy) = self.switch.read()?;
        let cycles = to_f64(busy) / to_f64(frames.max(1));
        Ok(Capacity { pps: window.pps(), cycles, busy: window.pps() * cycles / bed.tsc_hz() })
    }
}

/// What is known of the machine, for an outcome's platform.
pub(crate) fn platform(bed: &Bed, peer: bool) -> Map<String, Value> {
    let mut map = bed.describe();
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    map.insert("penstock".into(), env!("CARGO_PKG_VERSION").into());
    map.insert("penstock_profile".into(), profile.into());
    map.insert("peer_measured".into(), peer.into());
    map
}
