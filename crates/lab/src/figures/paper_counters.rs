//! What a frame costs in the testbed, by the worker's own counters.
//!
//! **Problem.** A cost table that is read back says nothing about the worker. What is sold and
//! charged is what the worker *counts*: if it charged a batch to the wrong port, sampled stages
//! with a bias, or took hits for misses, no table would show it. **Rule.** VMs send at a pace
//! through the production worker; a frame's cost is what the ports' counters grew by: `cycles` of
//! all batches, and the three stages of every 64th. The true costs with their noise are on the
//! other side, in the simulated core. **Cost.** Some 0.3 us of this machine a frame.

use penstock_sim::testbed::{Traffic, VmReading};
use penstock_units::Nanos;

use super::paper_platform::{self as paper, Flows, Frame, Placement, Stages};
use super::paper_testbed::{self as testbed, Policy, Scenario, mpps};
use crate::evidence::Context;

/// Before counters are read: addresses are learned, flows are in the cache.
const SETTLE: Nanos = Nanos::from_millis(10);

/// What VMs send, and where they are.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a frame.
    pub size: u16,
    /// One flow, or more than the cache holds.
    pub flows: Flows,
    /// Frames a second of each VM that sends.
    pub rate: f64,
    /// VMs of the host.
    pub vms: usize,
    /// How many of them send.
    pub senders: usize,
    /// I/O cores.
    pub cores: u16,
    /// Where the VMs' memory is, one another.
    pub placement: Placement,
    /// Whether that is another node than the core's.
    pub remote: bool,
    /// Cycles to classify a frame of many flows, as in [`Scenario`].
    pub many_flows: f64,
}

impl Load {
    /// One VM alone.
    pub const fn alone(size: u16, flows: Flows, rate: f64) -> Self {
        let placement = Placement::OneNode;
        let many_flows = paper::CLASSIFICATION_MULTIPLE;
        let (vms, senders, cores, remote) = (1, 1, 1, false);
        Self { size, flows, rate, vms, senders, cores, placement, remote, many_flows }
    }

    /// One of `vms` VMs, of which only it sends.
    pub const fn of(self, vms: usize) -> Self {
        Self { vms, ..self }
    }

    /// Memory on another node.
    pub const fn remote(self) -> Self {
        Self { remote: true, ..self }
    }
}

/// What the counters of all senders said.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Frames a second.
    pub rate: f64,
    /// Cycles a second that were charged.
    pub cycles: f64,
    /// Cycles of one frame: those charged, and by stage those sampled.
    pub frame: Frame,
}

/// Runs `load` for `length` and reads the counters.
pub fn count(ctx: &Context<'_>, load: &Load, length: Nanos) -> anyhow::Result<Counted> {
    let sold = vec![mpps(load.rate / 1e6, load.size)?; load.vms];
    let scenario = Scenario {
        cores: load.cores,
        placement: load.placement,
        remote: load.remote,
        many_flows: load.many_flows,
        learns: false,
        ..Scenario::new(ctx.seed, &sold, Policy::None)
    };
    let mut host = scenario.build()?;
    let traffic = Traffic::paced(load.size.into(), load.rate);
    let traffic = match load.flows {
        Flows::Single => traffic,
        Flows::Multiple => traffic.with_many_flows(),
    };
    for vm in host.vms.iter().take(load.senders) {
        host.bed.send(*vm, Nanos::ZERO, traffic.clone());
    }
    host.run_until(SETTLE);
    let before = host.read();
    let length = ctx.scaled(length);
    host.run_until(SETTLE + length);
    let after = host.read();
    let grown = |of: fn(&VmReading) -> u64| {
        let pairs = before.iter().zip(&after).take(load.senders);
        testbed::float(pairs.map(|(before, after)| of(after) - of(before)).sum())
    };
    let secs = testbed::float(length.0) / 1e9;
    let (frames, cycles) = (grown(|vm| vm.port.rx_frames), grown(|vm| vm.port.cycles));
    let sampled = grown(|vm| vm.port.sampled_frames);
    let stages = Stages {
        ingress: grown(|vm| vm.port.cycles_ingress) / sampled,
        classification: grown(|vm| vm.port.cycles_classification) / sampled,
        egress: grown(|vm| vm.port.cycles_egress) / sampled,
    };
    let frame = Frame { total: cycles / frames, stages };
    Ok(Counted { rate: frames / secs, cycles: cycles / secs, frame })
}
