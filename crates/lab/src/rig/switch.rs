//! A switch under test, ours or a peer, behind one trait.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use penstock_guest::bed::Bed;
use penstock_guest::mac::Mac;
use serde_json::{Map, Value};

/// The least limit in bits per second. The configuration accepts no less, and OVS reads 0 as no
/// limit.
pub(crate) const LEAST_BITS: f64 = 8_000.0;

/// One of the two VMs of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PairVm(u8);

/// The VM that sends.
pub(crate) const VM_A: PairVm = PairVm(1);
/// The VM that receives.
pub(crate) const VM_B: PairVm = PairVm(2);

impl PairVm {
    pub fn mac(self) -> Mac {
        Mac([0x52, 0x54, 0, 0, 4, self.0])
    }

    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self.0)
    }
}

/// How the switch matches frames from one VM to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Case {
    /// Rules that match the destination's MAC and IP address
    L3,
    /// The peer has its cheapest rules (OVS: `in_port` only); Penstock keeps those of `l3`
    SimpleMatch,
}

impl Case {
    /// The name of the case in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "l3",
            Self::SimpleMatch => "simple-match",
        }
    }
}

/// Work of a worker between two readings of its counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerReading {
    /// Frames taken from all ports.
    pub frames: u64,
    /// TSC cycles of the loop's turns that moved frames. They include time without the core.
    pub busy_cycles: u64,
    /// Nanoseconds for which the worker's thread was runnable and did not run.
    pub waited_ns: u64,
    /// Further counters of the switch, by name.
    pub notes: Vec<(&'static str, f64)>,
}

/// A switch with vhost-user ports.
pub(crate) trait Switch: std::fmt::Debug + Send + Sync {
    /// The name of the switch in reports.
    fn name(&self) -> &'static str;
    /// The socket of a port.
    fn socket(&self, port: &str) -> PathBuf;
    /// Whether the switch listens on its sockets. If not, it connects to them.
    fn listens(&self) -> bool;
    /// Frequency of the counter in which the switch counts cycles.
    fn tsc_hz(&self) -> f64;
    /// Adds programs and settings to the report.
    fn describe(&self, platform: &mut Map<String, Value>);
    /// Configures a benchmark's case.
    fn set_case(&mut self, case: Case) -> anyhow::Result<()>;
    /// Stops the process with SIGSTOP, so that another switch has its core.
    fn pause(&mut self) -> anyhow::Result<()>;
    /// Continues the process.
    fn resume(&mut self) -> anyhow::Result<()>;
    /// Nanoseconds for which the worker's thread was runnable and did not run, since its start.
    fn waited_ns(&self) -> u64;
    /// Starts counting. For exact counts no frame may be under way.
    fn mark(&mut self) -> anyhow::Result<()>;
    /// Work of the worker since the mark. For exact counts no frame may be under way.
    fn read(&mut self) -> anyhow::Result<WorkerReading>;
    /// Like `read`, but a worker that took no frame is an error.
    fn read_some(&mut self) -> anyhow::Result<WorkerReading>;
    /// Limits a port's sending rate to `bits` per second, counted as the switch's policer does.
    /// `None` removes the limit.
    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()>;
    /// Asks the control socket of Penstock. `None` for any other switch.
    fn ask(&self, words: &[&str]) -> Option<anyhow::Result<String>>;
}

/// Makes the directory of a switch, and removes the one of an earlier switch of the same name.
pub(crate) fn fresh_dir(bed: &Bed, name: &str) -> anyhow::Result<PathBuf> {
    let dir = bed.dir().join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("clearing a directory")?;
    }
    std::fs::create_dir(&dir).context("making a directory")?;
    Ok(dir)
}

/// The socket of `port` in the directory of a switch.
pub(crate) fn socket_in(dir: &Path, port: &str) -> PathBuf {
    dir.join(format!("{port}.sock"))
}

/// A counter of one port.
pub(crate) fn count(stats: &Value, port: &str, name: &str) -> u64 {
    let ports = stats["ports"].as_array().into_iter().flatten();
    let of = ports.into_iter().find(|p| p["port"] == port);
    of.and_then(|p| p["counters"][name].as_u64()).unwrap_or(0)
}
