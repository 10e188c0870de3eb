//! The trait that each switch under test implements, such as Penstock.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use penstock_guest::bed::Bed;
use penstock_guest::mac::Mac;
use serde_json::{Map, Value};

/// Lowest rate limit in bits per second. Penstock's configuration accepts no lower limit, and OVS
/// treats 0 as no limit.
pub(crate) const LEAST_BITS: f64 = 8_000.0;

/// Number of a VM in a benchmark with two VMs: 1 or 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PairVm(u8);

/// The VM of a benchmark that sends.
pub(crate) const VM_A: PairVm = PairVm(1);
/// The VM of a benchmark that receives.
pub(crate) const VM_B: PairVm = PairVm(2);

impl PairVm {
    pub fn mac(self) -> Mac {
        Mac([0x52, 0x54, 0, 0, 4, self.0])
    }

    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self.0)
    }
}

/// Rules of the switch for frames between the two VMs of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Case {
    /// Rules that match the destination's MAC and IP address
    L3,
    /// OVS matches only `in_port`, which is cheapest; Penstock keeps the rules of `l3`
    SimpleMatch,
}

impl Case {
    /// Returns the name of the case in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "l3",
            Self::SimpleMatch => "simple-match",
        }
    }
}

/// Difference between two readings of a worker's counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerReading {
    /// Number of frames that the worker received from all ports.
    pub frames: u64,
    /// TSC cycles of the worker's turns that moved frames, including waits for the core during a
    /// turn.
    pub busy_cycles: u64,
    /// Nanoseconds for which the worker's thread waited for its core.
    pub waited_ns: u64,
    /// Further measurements by name, which only Penstock or only OVS reports.
    pub notes: Vec<(&'static str, f64)>,
}

/// A switch with vhost-user ports.
pub(crate) trait Switch: std::fmt::Debug + Send + Sync {
    /// Returns the name of the switch in reports.
    fn name(&self) -> &'static str;
    fn socket(&self, port: &str) -> PathBuf;
    /// Returns whether the switch listens on its vhost-user sockets, instead of connecting to them.
    fn listens(&self) -> bool;
    /// Returns the frequency of the switch's cycle counter in Hz.
    fn tsc_hz(&self) -> f64;
    /// Adds versions and settings of the switch to the report.
    fn describe(&self, platform: &mut Map<String, Value>);
    /// Installs the rules for `case`. The call does nothing if the switch has no separate rules for
    /// `case`.
    fn set_case(&mut self, case: Case) -> anyhow::Result<()>;
    /// Stops the switch with SIGSTOP, so that another switch can use its core.
    fn pause(&mut self) -> anyhow::Result<()>;
    /// Continues the switch with SIGCONT.
    fn resume(&mut self) -> anyhow::Result<()>;
    /// Returns the number of workers from which [`Self::read`] reads counters.
    fn workers_read(&self) -> usize;
    /// Returns the nanoseconds for which the workers' threads have waited for their cores since the
    /// threads' start.
    fn waited_ns(&self) -> u64;
    /// Reads the worker's counters, as the start for the next [`Self::read`]. Counts are exact only
    /// if no frame is in flight.
    fn mark(&mut self) -> anyhow::Result<()>;
    /// Returns the increase of the worker's counters since [`Self::mark`]. Counts are exact only if
    /// no frame is in flight.
    fn read(&mut self) -> anyhow::Result<WorkerReading>;
    /// Works like [`Self::read`], but returns an error if the worker has received no frame.
    fn read_some(&mut self) -> anyhow::Result<WorkerReading>;
    /// Limits the rate of the VM at `port` to `bits` per second, as the switch's policer counts
    /// bits. If `bits` is `None`, the limit is removed.
    fn limit(&mut self, port: &str, bits: Option<f64>) -> anyhow::Result<()>;
    /// Sends a command to Penstock's control socket, and returns the answer. Returns `None` if the
    /// switch is not Penstock.
    fn ask(&self, words: &[&str]) -> Option<anyhow::Result<String>>;
}

/// Creates the directory of a switch. Removes the directory of an earlier switch of the same name.
pub(crate) fn fresh_dir(bed: &Bed, name: &str) -> anyhow::Result<PathBuf> {
    let dir = bed.dir().join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("removing the directory of an earlier switch")?;
    }
    std::fs::create_dir(&dir).context("creating the directory of a switch")?;
    Ok(dir)
}

/// Returns the path of the socket of `port` in the directory of a switch.
pub(crate) fn socket_in(dir: &Path, port: &str) -> PathBuf {
    dir.join(format!("{port}.sock"))
}

/// Returns the counter `name` of a port, or 0 if there is no such port or counter.
pub(crate) fn count(stats: &Value, port: &str, name: &str) -> u64 {
    let ports = stats["ports"].as_array().into_iter().flatten();
    let of = ports.into_iter().find(|p| p["port"] == port);
    of.and_then(|p| p["counters"][name].as_u64()).unwrap_or(0)
}
