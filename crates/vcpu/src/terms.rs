//! Configuration of virtual processors by an operator: the tables `[vcpu]` and `[[vm]]`. A host's
//! file and a file of `penstock vcpu run` have the same tables.

use std::fmt;
use std::path::PathBuf;

use penstock_units::{Nanos, Weight};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::{DEADLINE_MAX, DEADLINE_MIN, Limits};
use crate::reservation::{RUNTIME_MIN, Reserve};
use crate::{Contract, Mode};

/// Default run directory of a scheduler, on a tmpfs.
pub const RUN_DIR: &str = "/run/penstock/vcpu";
/// Maximum number of processors of a scheduler. The limit is the number of bytes beside a bell
/// ([`crate::bells`]).
pub const CPUS_MAX: usize = crate::bells::THREADS_MAX;
/// Maximum number of vCPUs of a VM.
pub const VCPUS_MAX: u16 = 64;
/// Default percent of a processor that slices of deadlines may take.
pub const DEADLINES_MAX: u64 = 70;

/// `[vcpu]`: CPUs on which the vCPUs of the `[[vm]]` tables are scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VcpuSection {
    /// CPUs for the vCPUs of all VMs, 1 to 56. The switch's workers and QEMU's I/O threads must not
    /// run on them.
    #[schemars(length(min = 1, max = 56))]
    pub cpus: Vec<u32>,
    /// Run directory of the vCPU scheduler, on a tmpfs. Default `/run/penstock/vcpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<PathBuf>,
    /// Limit on the part of a CPU for VMs with deadlines, in percent, 1 to 100. Default 70.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub deadlines_max: Option<u64>,
}

/// Scheduling mode of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VcpuMode {
    /// By weight alone.
    #[default]
    None,
    /// The VM runs again within its deadline after each descheduling.
    Periodic,
    /// The VM runs within its deadline after an external event.
    Aperiodic,
    /// The kernel reserves a run time in each period for the VM (`SCHED_DEADLINE`).
    Reserved,
    /// The VM carries the I/O of others. Only simulations have this mode, hosts refuse it.
    Driver,
}

/// `[[vm]]`: a VM with scheduled vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    /// Unique name. Ports refer to it by `vm`.
    pub name: String,
    /// Process id of the VM. Exactly one of `pid`, `cgroup`, `process` and `domain` must be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Cgroup that contains only this VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Command line of the VM's process, with `*` for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Name of the VM in libvirt, which is `-name guest=NAME` of QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Names of the VM's vCPU threads, with `*` for any text. Default: QEMU's names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<String>,
    /// Number of vCPUs in the plan, 1 to 64. The vCPUs of a running VM are counted instead. Default
    /// 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub vcpus: Option<u16>,
    /// Scheduling mode. Default `none`.
    #[serde(default, skip_serializing_if = "is_none")]
    pub vcpu_mode: VcpuMode,
    /// Wake-up deadline of the modes `periodic` and `aperiodic`, or period of `reserved`: 0.5 ms to
    /// 1 s, as in `"3 ms"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// `reserved`: run time in each period, as in `"0.6 ms"`. Default: the VM's share of the
    /// period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// `reserved`: whether the VM may use the reserved time that other VMs leave, up to 95 % of a
    /// CPU, before all VMs without a reservation. Default `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<bool>,
    /// Weight of each active vCPU, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub vcpu_weight: Option<u64>,
    /// Part of the VM's credits that is kept for wake-ups by events, in percent, 0 to 50. Default:
    /// 10 with a deadline, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 50))]
    pub io_reserve: Option<u8>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
const fn is_none(mode: &VcpuMode) -> bool {
    matches!(mode, VcpuMode::None)
}

/// How the scheduler finds a VM's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The scheduler finds them by the id of the VM's process.
    Pid(u32),
    /// The scheduler finds them in a cgroup that contains only this VM.
    Cgroup(PathBuf),
    /// The scheduler finds them by the process's command line, with `*` for any text.
    Process(String),
    /// The scheduler finds them by the VM's name in libvirt.
    Domain(String),
}

/// A mistake in a configuration table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The key that is wrong or missing.
    pub key: &'static str,
    /// What is wrong with the key.
    pub problem: String,
    /// How to correct the mistake.
    pub remedy: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl VcpuSection {
    /// Run directory of the scheduler.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| PathBuf::from(RUN_DIR))
    }

    /// Limits on the deadlines of a processor.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { density_ppm: self.deadlines_max.unwrap_or(DEADLINES_MAX) * 10_000 }
    }

    /// All mistakes in the `[vcpu]` section.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut wrong = Vec::new();
        let mut say = |key, problem, remedy| wrong.push(Mistake { key, problem, remedy });
        if self.cpus.is_empty() || self.cpus.len() > CPUS_MAX {
            let problem = format!("`cpus` has {} CPUs", self.cpus.len());
            say("cpus", problem, format!("name 1 to {CPUS_MAX} CPUs"));
        }
        let mut sorted = self.cpus.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let problem = format!("`cpus`: {} is named twice", pair[0]);
            say("cpus", problem, "name each CPU once".to_owned());
        }
        if let Some(percent) = self.deadlines_max.filter(|percent| !(1..=100).contains(percent)) {
            let problem = format!("`deadlines_max`: {percent} percent");
            say("deadlines_max", problem, "write 1 to 100".to_owned());
        }
        if self.run_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            let problem = "`run_dir` is relative".to_owned();
            say("run_dir", problem, "write an absolute path".to_owned());
        }
        wrong
    }
}

impl VmTable {
    /// How the scheduler finds the VM's threads. `None` if no key or more than one key says how.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        let all = [
            self.pid.map(Source::Pid),
            self.cgroup.clone().map(Source::Cgroup),
            self.process.clone().map(Source::Process),
            self.domain.clone().map(Source::Domain),
        ];
        let mut said = all.into_iter().flatten();
        said.next().filter(|_| said.next().is_none())
    }

    /// Number of vCPUs with which the VM is planned.
    #[must_use]
    pub fn vcpus(&self) -> u16 {
        self.vcpus.unwrap_or(1)
    }

    fn is_real_time(&self) -> bool {
        matches!(self.vcpu_mode, VcpuMode::Periodic | VcpuMode::Aperiodic)
    }

    fn read(text: Option<&String>, least: Nanos) -> Option<Nanos> {
        duration(text?).filter(|time| (least..=DEADLINE_MAX).contains(time))
    }

    /// The VM's scheduling parameters. The table must have no [`Self::mistakes`].
    #[must_use]
    pub fn contract(&self) -> Option<Contract> {
        let weight = Weight::new(self.vcpu_weight.unwrap_or(1)).ok()?;
        let mode = match self.vcpu_mode {
            VcpuMode::None | VcpuMode::Reserved | VcpuMode::Driver => {
                let io_reserve_pct = self.io_reserve.unwrap_or(0);
                return Some(Contract { io_reserve_pct, ..Contract::by_credit(weight) });
            }
            VcpuMode::Periodic => Mode::Periodic,
            VcpuMode::Aperiodic => Mode::Aperiodic,
        };
        let deadline = Self::read(self.deadline.as_ref(), DEADLINE_MIN)?;
        let io_reserve_pct = self.io_reserve.unwrap_or(Contract::IO_RESERVE);
        Some(Contract { io_reserve_pct, ..Contract::real_time(mode, deadline, weight) })
    }

    /// The VM's requested reservation. The table must have no [`Self::mistakes`].
    #[must_use]
    pub fn reserve(&self) -> Option<Reserve> {
        let period = Self::read(self.deadline.as_ref(), DEADLINE_MIN)?;
        let runtime = Self::read(self.runtime.as_ref(), RUNTIME_MIN);
        let reclaim = self.reclaim.unwrap_or(false);
        (self.vcpu_mode == VcpuMode::Reserved).then_some(Reserve { runtime, period, reclaim })
    }

    /// All mistakes in the `[[vm]]` table.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut wrong = Vec::new();
        let mut say = |key, problem: String, remedy: &str| {
            wrong.push(Mistake { key, problem, remedy: remedy.to_owned() });
        };
        self.check_numbers(&mut say);
        self.check_times(&mut say);
        wrong
    }

    fn check_numbers(&self, say: &mut dyn FnMut(&'static str, String, &str)) {
        if self.source().is_none() {
            let problem = "it needs exactly one source of its threads".to_owned();
            say("name", problem, "write one of `pid`, `cgroup`, `process` and `domain`");
        }
        let weight = self.vcpu_weight.unwrap_or(1);
        if Weight::new(weight).is_err() {
            let problem = format!("`vcpu_weight`: {weight}");
            say("vcpu_weight", problem, "write 1 to 10000");
        }
        if !(1..=VCPUS_MAX).contains(&self.vcpus()) {
            say("vcpus", format!("`vcpus`: {}", self.vcpus()), "write 1 to 64");
        }
        if let Some(percent) = self.io_reserve.filter(|it| *it > Contract::IO_RESERVE_MAX) {
            say("io_reserve", format!("`io_reserve`: {percent} percent"), "write 0 to 50");
        }
        if self.vcpu_mode == VcpuMode::Driver {
            let problem = "`vcpu_mode` driver exists in simulation only";
            let remedy = "keep its threads on a CPU that is not in [vcpu] `cpus`";
            say("vcpu_mode", problem.to_owned(), remedy);
        }
    }

    fn check_times(&self, say: &mut dyn FnMut(&'static str, String, &str)) {
        let timed = self.is_real_time() || self.vcpu_mode == VcpuMode::Reserved;
        match &self.deadline {
            None if timed => {
                let problem = "`deadline` is missing".to_owned();
                say("vcpu_mode", problem, "write a deadline, such as \"3 ms\"");
            }
            Some(_) if !timed => {
                let problem = "`deadline` has no effect in this `vcpu_mode`".to_owned();
                let remedy = "set `vcpu_mode` to periodic, aperiodic or reserved";
                say("deadline", problem, remedy);
            }
            Some(text) if Self::read(Some(text), DEADLINE_MIN).is_none() => {
                let problem = format!("`deadline` {text:?} is not valid");
                say("deadline", problem, "write 0.5 ms to 1 s, such as \"3 ms\"");
            }
            _ => {}
        }
        if self.reclaim.is_some() && self.vcpu_mode != VcpuMode::Reserved {
            let problem = "`reclaim` without `vcpu_mode` reserved".to_owned();
            say("reclaim", problem, "remove it, or set the mode");
        }
        let Some(text) = &self.runtime else { return };
        if self.vcpu_mode != VcpuMode::Reserved {
            let problem = "`runtime` without `vcpu_mode` reserved".to_owned();
            return say("runtime", problem, "remove it, or set the mode");
        }
        let period = Self::read(self.deadline.as_ref(), DEADLINE_MIN).unwrap_or(DEADLINE_MAX);
        if Self::read(Some(text), RUNTIME_MIN).is_none_or(|runtime| runtime > period) {
            let problem =
                format!("`runtime` {text:?} is not valid in a period of {} us", period.0 / 1_000);
            say("runtime", problem, "write 2 us up to its `deadline`, such as \"0.6 ms\"");
        }
    }
}

/// Parses a duration such as `3 ms`, `0.5ms`, `800 us`, `1 s`.
#[must_use]
pub fn duration(text: &str) -> Option<Nanos> {
    let text = text.trim();
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit: u64 = match &text[at..] {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let number = text[..at].trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = u32::try_from(part.len()).ok().filter(|digits| *digits <= 9)?;
    let fraction = unit.checked_mul(part.parse().ok()?)? / 10_u64.pow(digits);
    Some(Nanos(whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(fraction)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let us = Nanos::from_micros;
        assert_eq!(duration("3 ms"), Some(us(3_000)));
        assert_eq!(duration(" 0.5ms "), Some(us(500)));
        assert_eq!((duration("800 us"), duration("1 s")), (Some(us(800)), Some(us(1_000_000))));
        for none in ["3", "ms", "-1 ms", "1 h", "1.x ms", "99999999999999999 s"] {
            assert_eq!(duration(none), None, "{none}");
        }
    }
}
