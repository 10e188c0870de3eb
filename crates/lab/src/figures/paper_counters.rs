//! Cost of a frame in the testbed, by the worker's own counters.
//!
//! # Problem
//!
//! A cost table that is read back says nothing about the worker. The worker's *counters* decide
//! what is sold and charged. The worker might charge a batch to the wrong port, sample stages with
//! a bias, or take hits for misses. No table would show such an error.
//!
//! # Approach
//!
//! VMs send at a pace through the production worker. A frame's cost is the growth of the ports'
//! counters: `cycles` of all batches, and the three stages of every 64th. The true costs with their
//! noise are in the simulated core, out of the worker's sight.
//!
//! # Cost
//!
//! A frame takes some 0.3 us of this machine.

use penstock_sim::testbed::{Traffic, VmReading};
use penstock_units::Nanos;

use super::paper_platform::{self as paper, Flows, Frame, Placement, Stages};
use super::paper_testbed::{self as testbed, Policy, Scenario, mpps};
use crate::evidence::Context;

/// Time before counters are read. By then addresses are learned and flows are in the cache.
const SETTLE: Nanos = Nanos::from_millis(10);

/// Traffic that VMs send, and the host that they are on.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Size of a frame in bytes.
    pub size: u16,
    /// One flow, or more than the cache holds.
    pub flows: Flows,
    /// Frames a second of each VM that sends.
    pub rate: f64,
    /// Number of VMs on the host.
    pub vms: usize,
    /// Number of VMs that send.
    pub senders: usize,
    /// Number of I/O cores.
    pub cores: u16,
    /// Whether the VMs' memory is on one node or on several.
    pub placement: Placement,
    /// Whether the memory is on another node than the core.
    pub remote: bool,
    /// Cycles to classify a frame of many flows, as in [`Scenario`].
    pub many_flows: f64,
}

impl Load {
    /// One VM alone on the host.
    pub const fn alone(size: u16, flows: Flows, rate: f64) -> Self {
        let placement = Placement::OneNode;
        let many_flows = paper::CLASSIFICATION_MULTIPLE;
        let (vms, senders, cores, remote) = (1, 1, 1, false);
        Self { size, flows, rate, vms, senders, cores, placement, remote, many_flows }
    }

    /// Makes the sender one of `vms` VMs. The others are silent.
    pub const fn of(self, vms: usize) -> Self {
        Self { vms, ..self }
    }

    /// Puts the VMs' memory on another node than the core's.
    pub const fn remote(self) -> Self {
        Self { remote: true, ..self }
    }
}

/// Totals of the counters of all senders.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Frames a second of all senders together.
    pub rate: f64,
    /// Cycles a second that were charged.
    pub cycles: f64,
    /// Cycles of one frame: the charged total, and the sampled stages.
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
