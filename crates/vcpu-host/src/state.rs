//! State of the vCPU scheduler, in a file that `penstock vcpu show` reads.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run_dir;

/// Age at which the state file is stale. A running scheduler writes the state file twice a second.
pub const STALE: Duration = Duration::from_secs(5);

/// Name of the state file in the scheduler's run directory.
pub const STATE: &str = "state.json";

/// State of a vCPU scheduler, as the state file contains it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub pid: u32,
    /// Process id of the watchdog. 0 means that no watchdog runs, so that the scheduler lends no
    /// real-time policy.
    pub watchdog: u32,
    /// Number of times that the scheduler read its configuration, including refused configurations.
    #[serde(default)]
    pub loads: u64,
    /// Reason why the scheduler refused the last configuration.
    #[serde(default)]
    pub refused: Option<String>,
    pub cpus: Vec<CpuState>,
    /// States of the VMs, in the order of the configuration file.
    pub vms: Vec<VmState>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuState {
    pub cpu: u32,
    /// Processor time of the scheduling thread in percent, as the kernel counts it.
    pub own_percent: f64,
    /// Processor time that the scheduling thread spends on reading, deciding and lending, in
    /// percent. The field `own_percent` also contains the time for falling asleep and waking up.
    pub work_percent: f64,
    /// Number of polls of the scheduling thread since it started.
    pub polls: u64,
    /// Number of slots of 0.5 ms that the scheduling thread missed because its polls were late.
    pub skipped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmState {
    pub name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Mode of the VM that is in force, one of `none`, `periodic`, `aperiodic` and `reserved`. The
    /// mode in force may differ from the mode in the configuration.
    pub mode: String,
    /// The VM's deadline, or the period of the VM's reservation, in milliseconds. 0 without a
    /// deadline or reservation.
    pub deadline_ms: f64,
    pub weight: u16,
    /// Reason why the VM does not get the time that it requested, with the remedy.
    pub problem: Option<String>,
    pub vcpus: Vec<VcpuState>,
}

/// State of a vCPU in the state file. A wait begins when the vCPU becomes runnable or loses its
/// processor, and ends when the vCPU runs, as the kernel counts waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuState {
    pub tid: u32,
    /// Number of the processor to which the vCPU is assigned.
    pub cpu: u32,
    /// The vCPU's run time in percent of the run time of all vCPUs of the processor.
    pub share_percent: f64,
    /// Percent of the processor to which the vCPU's weight entitles it if all vCPUs have work.
    pub entitled_percent: f64,
    /// Whether the vCPU has no work and waits for an event.
    pub blocked: bool,
    /// Milliseconds by which the vCPU is behind its share; negative if the vCPU is ahead of its
    /// share.
    pub credit_ms: f64,
    /// Median of the vCPU's waits, in microseconds.
    pub wait_p50_us: f64,
    /// 99th percentile of the vCPU's waits, in microseconds.
    pub wait_p99_us: f64,
    /// 99.9th percentile of the vCPU's waits, in microseconds.
    pub wait_p999_us: f64,
    /// Longest wait of the vCPU, in microseconds.
    pub wait_max_us: f64,
    /// Number of finished waits of the vCPU.
    pub waits: u64,
    /// Number of real-time slices that the vCPU got and used.
    pub boosts: u64,
    /// Number of reported events for the vCPU.
    pub events: u64,
    /// Number of the vCPU's waits that were longer than the deadline plus 1 ms.
    pub missed: u64,
}

impl State {
    /// Writes the state file in the run directory `dir`, completely or not at all.
    ///
    /// # Errors
    /// Returns an error if the state file cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        run_dir::replace(dir, STATE, &serde_json::to_vec(self)?)
    }

    /// Reads the state file in the run directory `dir` if a scheduler still writes the file.
    ///
    /// # Errors
    /// Returns an error if the state file does not exist or has another format. Returns an error
    /// also if the file is older than [`STALE`], because the scheduler is dead or stalled.
    pub fn fresh(dir: &Path) -> io::Result<Self> {
        let age = std::fs::metadata(dir.join(STATE))?.modified()?.elapsed().unwrap_or_default();
        if age > STALE {
            let why = format!("no scheduler wrote the state file for {} s", age.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Self::load(dir)
    }

    /// Reads the state file in the run directory `dir`, regardless of the file's age.
    ///
    /// # Errors
    /// Returns an error if the state file does not exist or has another format.
    pub fn load(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(STATE))?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = penstock_testing::temp_dir();
        assert_eq!(State::load(&dir).unwrap_err().kind(), io::ErrorKind::NotFound);
        let vcpu = VcpuState { tid: 7, share_percent: 16.5, ..VcpuState::default() };
        let vm = VmState { name: "a".to_owned(), vcpus: vec![vcpu], ..VmState::default() };
        let state = State { pid: 3, vms: vec![vm], ..State::default() };
        state.save(&dir).unwrap();
        assert_eq!(State::load(&dir).unwrap(), state);
        std::fs::write(dir.join(STATE), "{").unwrap();
        assert!(State::load(&dir).is_err());
    }
}
