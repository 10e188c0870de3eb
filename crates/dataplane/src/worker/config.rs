//! This module defines the parameters with which a worker starts.

use penstock_qos::c2tb::Spare;
use penstock_units::{CyclesPerSecond, Nanos, TscRate, WorkerId};

use crate::schedule::{Readiness, ScheduleKind};

/// Start parameters of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Number of the worker in the switch. The first worker has number 0.
    pub id: WorkerId,
    /// CPU to which the worker's thread is pinned. `None` means that the thread is not pinned.
    pub core: Option<u32>,
    /// Longest sleep of an idle worker. Zero means that an idle worker polls without sleeping.
    pub idle_backoff: Nanos,
    /// Number of successive turns without a frame after which an idle worker may sleep. If several
    /// workers share a core, use a small number, so that an idle worker soon leaves the core to the
    /// other workers.
    pub idle_turns: u32,
    pub schedule: ScheduleKind,
    /// Policy of the discipline `hbs` for queue pairs without frames: such a queue pair keeps its
    /// class, or is demoted class by class.
    pub readiness: Readiness,
    /// Rule by which ports get the cycles that no port bought or used.
    pub spare: Spare,
    /// Time between two refills of the cycle buckets.
    pub refill: Nanos,
    /// Cycles per second that the worker may spend on frames. `None` means that the worker may
    /// spend all cycles of its core.
    pub capacity: Option<CyclesPerSecond>,
    /// Number of entries in the worker's MAC table.
    pub fdb_entries: usize,
    /// Random seed of the hashes over tenants' packets. The switch draws the seed at each start.
    pub seed: u64,
    /// Rate of the worker's cycle counter.
    pub tsc: TscRate,
    pub max_ports: usize,
}

impl Default for WorkerConfig {
    /// Returns the parameters of worker 0 on a core of 1 GHz, for 64 ports.
    fn default() -> Self {
        Self {
            id: WorkerId(0),
            core: None,
            idle_backoff: Nanos::ZERO,
            idle_turns: 4096,
            schedule: ScheduleKind::RoundRobin,
            readiness: Readiness::Pending,
            spare: Spare::Pool,
            refill: Nanos::from_micros(50),
            capacity: None,
            fdb_entries: 8192,
            seed: 0,
            tsc: TscRate::from_hz(1_000_000_000),
            max_ports: 64,
        }
    }
}
