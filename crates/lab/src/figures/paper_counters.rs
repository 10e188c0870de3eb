//! Cost of a frame in the simulated testbed, measured by the worker's counters.
//!
//! # Problem
//!
//! A figure that only prints its cost table says nothing about the worker. On a real host, the
//! worker's *counters* determine the cycles that are sold and charged. The worker might charge a
//! batch to the wrong port, sample stages with a bias, or count hits of the flow cache as misses. A
//! comparison with the cost table alone would not show an error of the worker's accounting.
//!
//! # Approach
//!
//! VMs send at a fixed rate through the production worker. A frame's cost is the increase of the
//! ports' counters, divided by the number of frames. The counter `cycles` covers all batches, and
//! the worker samples the three stages in one batch of 64. Only the simulated core knows the true
//! costs and their noise.
//!
//! # Cost
//!
//! The simulation of a frame takes some 0.3 us of processor time.

use penstock_sim::testbed::{Traffic, VmReading};
use penstock_units::Nanos;

use super::paper_platform::{self as paper, Flows, Frame, Placement, Stages};
use super::paper_testbed::{self as testbed, Policy, Scenario, mpps};
use crate::evidence::Context;

/// Time for which the load runs before the first reading of the worker's counters. Before the first
/// reading, the switch learns the addresses, and its flow cache fills.
const SETTLE: Nanos = Nanos::from_millis(10);

/// Traffic of the VMs, and deployment of the VMs on their host.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Size of the frames that the VMs send, in bytes.
    pub size: u16,
    /// Whether a VM sends one flow, or more flows than the flow cache holds.
    pub flows: Flows,
    /// Sending rate of each VM that sends, in frames per second.
    pub rate: f64,
    /// Number of all VMs on the host, including silent VMs.
    pub vms: usize,
    /// Number of VMs that send frames.
    pub senders: usize,
    /// Number of I/O cores of the host.
    pub cores: u16,
    /// Whether the VMs' memory is on one NUMA node or on several NUMA nodes.
    pub placement: Placement,
    /// Whether the VMs' memory is on another NUMA node than the I/O core.
    pub remote: bool,
    /// Cycles to classify a frame of many flows, as in [`Scenario`].
    pub many_flows: f64,
}

impl Load {
    /// Creates the load of one VM alone on the host.
    pub const fn alone(size: u16, flows: Flows, rate: f64) -> Self {
        let placement = Placement::OneNode;
        let many_flows = paper::CLASSIFICATION_MULTIPLE;
        let (vms, senders, cores, remote) = (1, 1, 1, false);
        Self { size, flows, rate, vms, senders, cores, placement, remote, many_flows }
    }

    /// Sets the number of VMs on the host. VMs beyond the senders of the load send no frames.
    pub const fn of(self, vms: usize) -> Self {
        Self { vms, ..self }
    }

    /// Places the VMs' memory on another NUMA node than the I/O core.
    pub const fn remote(self) -> Self {
        Self { remote: true, ..self }
    }
}

/// Rates and costs, computed from the counters of all senders.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Frames per second of all senders together.
    pub rate: f64,
    /// Charged cycles per second of all senders together.
    pub cycles: f64,
    /// Cost of one frame in cycles, as the charged total and as the sampled costs of the stages.
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
