//! The scheduler's report on itself, in a file that `penstock vcpu show` reads.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run_dir;

/// Age at which the report is stale. A scheduler writes it twice a second.
pub const STALE: Duration = Duration::from_secs(5);

/// Name of the file in the scheduler's directory.
pub const STATE: &str = "state.json";

/// State of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub pid: u32,
    /// Process id of the watchdog. 0 means that there is none and that nothing is lent.
    pub watchdog: u32,
    /// How often the scheduler read its configuration, successfully or not.
    #[serde(default)]
    pub loads: u64,
    /// Reason for which the last reading was refused.
    #[serde(default)]
    pub refused: Option<String>,
    pub cpus: Vec<CpuState>,
    /// In the order of the configuration file.
    pub vms: Vec<VmState>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuState {
    pub cpu: u32,
    /// Processor time of the scheduling thread in percent, as the kernel counts it.
    pub own_percent: f64,
    /// The part of `own_percent` for reading, deciding and lending. The rest is for sleeping and
    /// waking.
    pub work_percent: f64,
    /// Number of polls so far.
    pub polls: u64,
    /// Number of slots for which the scheduling thread came too late.
    pub skipped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmState {
    pub name: String,
    /// `none`, `periodic`, `aperiodic` or `reserved`: the mode in force, which may differ from the
    /// requested one.
    pub mode: String,
    /// The VM's deadline, or the period of its reservation, in milliseconds; 0 without one.
    pub deadline_ms: f64,
    pub weight: u16,
    /// Reason why the VM does not get the time that it requested, with the remedy.
    pub problem: Option<String>,
    pub vcpus: Vec<VcpuState>,
}

/// State of a vCPU. A wait begins when the vCPU becomes runnable or loses its processor, and ends
/// when it runs, as the kernel counts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuState {
    /// Id of the vCPU's thread.
    pub tid: u32,
    /// Number of the vCPU's processor.
    pub cpu: u32,
    /// The vCPU's time in percent of the time of all vCPUs of the processor.
    pub share_percent: f64,
    /// Percent of the processor to which the vCPU's weight entitles it if all vCPUs have work.
    pub entitled_percent: f64,
    /// Whether the vCPU has no work.
    pub blocked: bool,
    /// Milliseconds that the vCPU is behind its share; negative if it is ahead.
    pub credit_ms: f64,
    /// Median of the vCPU's waits, in microseconds.
    pub wait_p50_us: f64,
    /// 99th percentile of the vCPU's waits, in microseconds.
    pub wait_p99_us: f64,
    /// 99.9th percentile of the vCPU's waits, in microseconds.
    pub wait_p999_us: f64,
    /// Longest wait, in microseconds.
    pub wait_max_us: f64,
    /// Number of waits.
    pub waits: u64,
    /// Number of slices that the vCPU got and used.
    pub boosts: u64,
    /// Number of events for the vCPU.
    pub events: u64,
    /// Number of waits longer than the deadline plus 1 ms.
    pub missed: u64,
}

impl State {
    /// Writes the file, completely or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        run_dir::replace(dir, STATE, &serde_json::to_vec(self)?)
    }

    /// Reads the file if a scheduler still writes it.
    ///
    /// # Errors
    /// The file does not exist, is of another kind, or is older than [`STALE`], because its writer
    /// is dead or stalled.
    pub fn fresh(dir: &Path) -> io::Result<Self> {
        let age = std::fs::metadata(dir.join(STATE))?.modified()?.elapsed().unwrap_or_default();
        if age > STALE {
            let why = format!("nothing was written for {} s", age.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Self::load(dir)
    }

    /// Reads the file, whatever its age.
    ///
    /// # Errors
    /// The file does not exist or is of another kind.
    pub fn load(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(STATE))?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = std::env::temp_dir().join(format!("penstock-state-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(State::load(&dir).unwrap_err().kind(), io::ErrorKind::NotFound);
        let vcpu = VcpuState { tid: 7, share_percent: 16.5, ..VcpuState::default() };
        let vm = VmState { name: "a".to_owned(), vcpus: vec![vcpu], ..VmState::default() };
        let state = State { pid: 3, vms: vec![vm], ..State::default() };
        state.save(&dir).unwrap();
        assert_eq!(State::load(&dir).unwrap(), state);
        std::fs::write(dir.join(STATE), "{").unwrap();
        assert!(State::load(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
