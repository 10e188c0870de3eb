//! A switch under test, ours or a peer, seen alike.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use penstock_guest::mac::Mac;
use serde_json::{Map, Value};

/// A VM of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vm(u8);

/// The sender.
pub(crate) const VM_A: Vm = Vm(1);
/// The receiver.
pub(crate) const VM_B: Vm = Vm(2);

impl Vm {
    /// Its address.
    pub fn mac(self) -> Mac {
        Mac([0x52, 0x54, 0, 0, 4, self.0])
    }

    /// Its IP address.
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self.0)
    }
}

/// What the switch is configured to do with frames from one VM to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Case {
    /// Rules that look at the destination's MAC and IP address.
    L3,
    /// The peer has its cheapest rules (OVS: `in_port` only); Penstock keeps those of `l3`.
    SimpleMatch,
}

impl Case {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "l3",
            Self::SimpleMatch => "simple-match",
        }
    }
}

/// What a worker did since it was marked, its neighbours' frames apart.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerReading {
    /// Frames taken from all ports.
    pub frames: u64,
    /// TSC cycles of the loop's turns that moved frames, time without the core included.
    pub busy_cycles: u64,
    /// Nanoseconds that its thread was runnable and did not run.
    pub waited_ns: u64,
    /// What else the switch says of itself, by name.
    pub notes: Vec<(&'static str, f64)>,
}

/// A switch with two vhost-user ports, on which the driver listens.
pub(crate) trait Subject: std::fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// The sockets that it connects to.
    fn sockets(&self) -> [PathBuf; 2];
    /// Frequency of the counter that its cycles are counted with.
    fn tsc_hz(&self) -> f64;
    /// Programs and settings, for the report.
    fn describe(&self, platform: &mut Map<String, Value>);
    /// Configures the case.
    fn set_case(&mut self, case: Case) -> anyhow::Result<()>;
    /// Stops the process where it is: its core is for the other one.
    fn pause(&mut self) -> anyhow::Result<()>;
    /// Lets the process go on.
    fn resume(&mut self) -> anyhow::Result<()>;
    /// How long the worker's thread was runnable and did not run, since its start.
    fn worker_waited_ns(&self) -> u64;
    /// Starts counting. No frame may be under way.
    fn mark(&mut self) -> anyhow::Result<()>;
    /// What was done since the mark. No frame may be under way.
    fn read(&mut self) -> anyhow::Result<WorkerReading>;
}
