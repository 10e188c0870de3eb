//! Configuration of virtual processors: the tables `[vcpu]` and `[[vm]]`. A host's configuration
//! file and the file of `penstock vcpu run` have the tables `[vcpu]` and `[[vm]]`.

use std::fmt;
use std::path::PathBuf;

use penstock_units::{Labels, Nanos, Weight};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::{DEADLINE_MAX, DEADLINE_MIN, Limits};
use crate::reservation::{RUNTIME_MIN, Reserve};
use crate::{Contract, Mode};

/// Default run directory of a vCPU scheduler, on a tmpfs.
pub const RUN_DIR: &str = "/run/penstock/vcpu";
/// Maximum number of processors of a vCPU scheduler. The file of frame-arrival counters has one
/// wake-up byte for the scheduling thread of each processor ([`crate::bells`]).
pub const CPUS_MAX: usize = crate::bells::THREADS_MAX;
/// Maximum number of vCPUs that a VM may have.
pub const VCPUS_MAX: u16 = 64;
/// Default value of [`VcpuSection::deadlines_max`], in percent of a CPU.
pub const DEADLINES_MAX: u64 = 70;

/// The table `[vcpu]`: CPUs on which the vCPUs of the `[[vm]]` tables are scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VcpuSection {
    /// Numbers of the CPUs for the vCPUs of all VMs. The list `cpus` has 1 to 56 CPUs. The switch's
    /// workers and QEMU's I/O threads must not run on the CPUs in `cpus`.
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
    /// The VM has no deadline. The VM runs in proportion to its weight.
    #[default]
    None,
    /// A descheduled vCPU of the VM runs again within the deadline.
    Periodic,
    /// After an external event, such as an arriving frame, the VM's vCPU runs within the deadline.
    Aperiodic,
    /// The kernel reserves run time in each period for each vCPU of the VM (`SCHED_DEADLINE`).
    Reserved,
    /// The VM is the driver domain, which carries the I/O of other VMs. Only simulations support
    /// the mode `driver`; hosts reject the mode.
    Driver,
}

/// A table `[[vm]]`: a VM with scheduled vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    /// Unique name of the VM. The key `vm` of a port refers to the VM by this name.
    pub name: String,
    /// Labels for other programs, at most 32, as in `{ vm-uuid = "..." }`. Default: none.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub labels: Labels,
    /// Process id of the VM. A `[[vm]]` table has exactly one of the keys `pid`, `cgroup`,
    /// `process` and `domain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Path of a cgroup that contains only the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Pattern for the command line of the VM's process, with `*` for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Name of the VM in libvirt, as in QEMU's option `-name guest=NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Pattern for the names of the VM's vCPU threads, with `*` for any text. The default is QEMU's
    /// names for vCPU threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<String>,
    /// Number of the VM's vCPUs for planning, 1 to 64. Default 1. For a running VM, the scheduler
    /// counts the vCPU threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub vcpus: Option<u16>,
    /// Scheduling mode of the VM. Default `none`.
    #[serde(default, skip_serializing_if = "is_none")]
    pub vcpu_mode: VcpuMode,
    /// Wake-up deadline of the VM's vCPUs in the modes `periodic` and `aperiodic`. In the mode
    /// `reserved`, `deadline` is the period of the reservation. The deadline or period is 0.5 ms to
    /// 1 s, for example `"3 ms"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Run time of each vCPU in each period, for the mode `reserved`, for example `"0.6 ms"`.
    /// Without `runtime`, each vCPU reserves its share by weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Whether the VM may use unused reserved time of other VMs, up to 95 % of a CPU, for the mode
    /// `reserved`. A VM with `reclaim` uses unused reserved time before all VMs without a
    /// reservation. Default `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<bool>,
    /// Weight of each active vCPU of the VM, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub vcpu_weight: Option<u64>,
    /// Part of the VM's credits that is reserved for external events, in percent, 0 to 50. The
    /// default is 10 percent for a VM with a deadline, and 0 for other VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 50))]
    pub io_reserve: Option<u8>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
const fn is_none(mode: &VcpuMode) -> bool {
    matches!(mode, VcpuMode::None)
}

/// Key by which the scheduler finds a VM's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The id of the VM's process identifies the VM.
    Pid(u32),
    /// The path of a cgroup that contains only the VM identifies the VM.
    Cgroup(PathBuf),
    /// A pattern for the command line of the VM's process, with `*` for any text, identifies the
    /// VM.
    Process(String),
    /// The name of the VM in libvirt identifies the VM.
    Domain(String),
}

/// A mistake in a table `[vcpu]` or `[[vm]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Name of the configuration key that is wrong or missing.
    pub key: &'static str,
    /// Message that says what is wrong with the key's value.
    pub problem: String,
    /// Message that says how the operator corrects the mistake.
    pub remedy: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl VcpuSection {
    /// Run directory of the vCPU scheduler: the configured directory, or [`RUN_DIR`].
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| PathBuf::from(RUN_DIR))
    }

    /// Limits of admission control, from [`VcpuSection::deadlines_max`].
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { density_ppm: self.deadlines_max.unwrap_or(DEADLINES_MAX) * 10_000 }
    }

    /// Lists all mistakes in the table `[vcpu]`. Returns an empty list if the table is valid.
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
    /// Key by which the scheduler finds the VM's threads. Returns `None` unless the table has
    /// exactly one of the keys `pid`, `cgroup`, `process` and `domain`.
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

    /// Number of the VM's vCPUs for planning, 1 by default.
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

    /// The VM's scheduling parameters. Returns `None` if the weight or the deadline in the table is
    /// not valid.
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

    /// The reservation that the VM requests. Returns `None` unless the VM's mode is `reserved` and
    /// the deadline in the table is valid.
    #[must_use]
    pub fn reserve(&self) -> Option<Reserve> {
        let period = Self::read(self.deadline.as_ref(), DEADLINE_MIN)?;
        let runtime = Self::read(self.runtime.as_ref(), RUNTIME_MIN);
        let reclaim = self.reclaim.unwrap_or(false);
        (self.vcpu_mode == VcpuMode::Reserved).then_some(Reserve { runtime, period, reclaim })
    }

    /// Lists all mistakes in the table `[[vm]]`. Returns an empty list if the table is valid.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut wrong = Vec::new();
        let mut say = |key, problem: String, remedy: &str| {
            wrong.push(Mistake { key, problem, remedy: remedy.to_owned() });
        };
        self.check_source(&mut say);
        self.check_numbers(&mut say);
        self.check_times(&mut say);
        wrong
    }

    fn check_source(&self, say: &mut dyn FnMut(&'static str, String, &str)) {
        if self.source().is_none() {
            let problem = "the VM needs exactly one source of its threads".to_owned();
            say("name", problem, "write one of `pid`, `cgroup`, `process` and `domain`");
        }
        if self.pid == Some(0) {
            say("pid", "`pid` is 0".to_owned(), "write the number of the VM's process");
        }
        if let Some(path) = self.cgroup.as_ref().filter(|path| !path.is_absolute()) {
            let problem = format!("`cgroup` {path:?} is relative");
            say("cgroup", problem, "write an absolute path, such as \"/sys/fs/cgroup/vm1\"");
        }
        for (key, text, remedy) in [
            ("process", &self.process, "write a part of the VM's command line, such as \"*vm1*\""),
            ("domain", &self.domain, "write the domain's name in libvirt"),
            ("threads", &self.threads, "write a pattern, or remove `threads` for QEMU's names"),
        ] {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                say(key, format!("`{key}` is empty"), remedy);
            }
        }
        let fits_all = |text: &&String| !text.trim().is_empty() && text.chars().all(is_wild);
        if let Some(text) = self.process.as_ref().filter(fits_all) {
            let remedy = "write a part of the VM's command line, such as \"*vm1*\"";
            say("process", format!("`process` {text:?} fits every command line"), remedy);
        }
    }

    fn check_numbers(&self, say: &mut dyn FnMut(&'static str, String, &str)) {
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
            let problem = "`vcpu_mode` driver is supported in simulations only";
            let remedy = "run the VM's threads on a CPU that is not in [vcpu] `cpus`";
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
            say("reclaim", problem, "remove the key, or set `vcpu_mode` to reserved");
        }
        let Some(text) = &self.runtime else { return };
        if self.vcpu_mode != VcpuMode::Reserved {
            let problem = "`runtime` without `vcpu_mode` reserved".to_owned();
            return say("runtime", problem, "remove the key, or set `vcpu_mode` to reserved");
        }
        let period = Self::read(self.deadline.as_ref(), DEADLINE_MIN).unwrap_or(DEADLINE_MAX);
        if Self::read(Some(text), RUNTIME_MIN).is_none_or(|runtime| runtime > period) {
            let problem =
                format!("`runtime` {text:?} is not valid in a period of {} us", period.0 / 1_000);
            say("runtime", problem, "write 2 us to the value of `deadline`, such as \"0.6 ms\"");
        }
    }
}

/// Whether a pattern of only such characters says nothing about a command line.
fn is_wild(c: char) -> bool {
    c == '*' || c.is_whitespace()
}

/// Parses a duration such as `3 ms`, `0.5ms`, `800 us` or `1 s`. Returns `None` if `text` is not a
/// duration.
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
