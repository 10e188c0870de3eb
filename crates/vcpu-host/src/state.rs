//! What a scheduler tells about itself, in a file that `penstock vcpu show` reads.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run_dir;

/// A scheduler writes twice a second; one that did not for so long is not there.
pub const STALE: Duration = Duration::from_secs(5);

/// Name of the file in a scheduler's directory.
pub const STATE: &str = "state.json";

/// A scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Its process.
    pub pid: u32,
    /// Its watchdog's process; 0 while there is none, and then nothing is lent.
    pub watchdog: u32,
    /// How often its configuration was read, with or without success.
    #[serde(default)]
    pub loads: u64,
    /// Why the last reading changed nothing.
    #[serde(default)]
    pub refused: Option<String>,
    /// Its processors.
    pub cpus: Vec<CpuState>,
    /// Its VMs, in the order of the configuration file.
    pub vms: Vec<VmState>,
}

/// A scheduled processor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuState {
    /// Its number.
    pub cpu: u32,
    /// Percent of it that the scheduling thread takes, as the kernel counts it.
    pub own_percent: f64,
    /// The part of that in which it reads, decides and lends; the rest is to sleep and to wake.
    pub work_percent: f64,
    /// Polls so far.
    pub polls: u64,
    /// Slots for which the scheduling thread came too late.
    pub skipped: u64,
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmState {
    /// Its name.
    pub name: String,
    /// `none`, `periodic`, `aperiodic` or `reserved`: what is kept, not what was asked for.
    pub mode: String,
    /// Its deadline, or the period of what is reserved, in milliseconds; 0 without one.
    pub deadline_ms: f64,
    /// Its weight.
    pub weight: u16,
    /// Why it does not have what was asked for, with the remedy.
    pub problem: Option<String>,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuState>,
}

/// A vCPU. Waits are from when it became runnable, or lost its processor, to when it ran, as the
/// kernel counts them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuState {
    /// Its thread.
    pub tid: u32,
    /// Its processor.
    pub cpu: u32,
    /// Percent of the time which all vCPUs of that processor had.
    pub share_percent: f64,
    /// Percent that its weight stands for when all have work.
    pub entitled_percent: f64,
    /// It has nothing to do.
    pub blocked: bool,
    /// Milliseconds behind its share, below 0 ahead.
    pub credit_ms: f64,
    /// Half of its waits are shorter, in microseconds.
    pub wait_p50_us: f64,
    /// 99 % are.
    pub wait_p99_us: f64,
    /// 99.9 % are.
    pub wait_p999_us: f64,
    /// The longest.
    pub wait_max_us: f64,
    /// How many there were.
    pub waits: u64,
    /// Slices it was lent and used.
    pub boosts: u64,
    /// Events that came for it.
    pub events: u64,
    /// Waits longer than its deadline and 1 ms.
    pub missed: u64,
}

impl State {
    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        run_dir::replace(dir, STATE, &serde_json::to_vec(self)?)
    }

    /// Reads it, if a scheduler still writes it.
    ///
    /// # Errors
    /// There is none, or it is something else, or older than [`STALE`]: whoever wrote it is dead or
    /// stands still.
    pub fn fresh(dir: &Path) -> io::Result<Self> {
        let age = std::fs::metadata(dir.join(STATE))?.modified()?.elapsed().unwrap_or_default();
        if age > STALE {
            let why = format!("nothing was written for {} s", age.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Self::load(dir)
    }

    /// Reads it.
    ///
    /// # Errors
    /// There is none, or it is something else.
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
