//! `[host]`, `[worker]` and `[forwarding]`: settings of the daemon, of its polling threads, and of
//! its MAC and rule tables.

use core::net::SocketAddr;
use std::path::PathBuf;

use penstock_dataplane::peers::WORKERS_MAX;
use penstock_dataplane::port::peer_memory::MemoryLimits;
use penstock_toml::text::is_default;
use penstock_toml::{CyclesPerSecond, Object, Report};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::release::{Readiness, Schedule, SpareCycles};
use super::values::{check_name, check_range, check_socket};

/// `[host]`: name, files and limits of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSection {
    /// Name shown in status and metrics; 1 to 64 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Unix socket of the API. Default `/run/penstock/host.sock`.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Directory for the daemon's state that must survive a restart. Default `/var/lib/penstock`.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Address of the Prometheus page `/metrics`, as in `127.0.0.1:9753`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub metrics: Option<SocketAddr>,
    /// Whether `metrics` may be an address that other machines can reach. Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metrics_any: bool,
    /// Log filter, which is a level (`error`, `warn`, `info`, `debug` or `trace`) or a list of
    /// directives such as `info,penstock_dataplane=debug`. RUST_LOG overrides it. Default `info`.
    #[serde(default = "default_log")]
    pub log: String,
    /// Limit on the memory of VMs that the daemon maps for all ports together, in GiB, 1 to 131072.
    /// The default limit is 16 times the host's memory, at most 65536 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 1, max = 131_072))]
    pub memory_gib: Option<u32>,
    /// Limit on the memory of a VM that the daemon maps for each port, in GiB, 1 to 131072. The
    /// default limit is 4 times the host's memory, at most 65536 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 1, max = 131_072))]
    pub memory_per_port_gib: Option<u32>,
    /// System call filters of worker and session threads. Default `on`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seccomp: Seccomp,
}

impl HostSection {
    /// Limits in bytes on the memory of VMs that the daemon maps.
    #[must_use]
    pub fn memory_limits(&self) -> MemoryLimits {
        let default = MemoryLimits::default();
        let bytes = |gib: Option<u32>, default| gib.map_or(default, |gib| u64::from(gib) << 30);
        MemoryLimits {
            port: bytes(self.memory_per_port_gib, default.port),
            daemon: bytes(self.memory_gib, default.daemon),
        }
    }
}

/// Reaction to a system call of a thread that the filter forbids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Seccomp {
    /// The daemon logs the thread and the system call, and aborts.
    #[default]
    On,
    /// The kernel logs the system call and executes it.
    Log,
    /// The daemon installs no system call filters.
    Off,
}

fn default_socket() -> PathBuf {
    PathBuf::from("/run/penstock/host.sock")
}

fn default_state_dir() -> PathBuf {
    PathBuf::from("/var/lib/penstock")
}

fn default_log() -> String {
    "info".to_owned()
}

/// Default of `idle_turns`.
const IDLE_TURNS: u32 = 4096;
/// Lowest value of `capacity`. A batch costs thousands of cycles, and the worker pauses until its
/// capacity has paid for the batch. With 0 it would pause forever.
const CAPACITY_MIN: u64 = 1_000_000;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_default_idle_turns(turns: &u32) -> bool {
    *turns == IDLE_TURNS
}

/// `[worker]`: settings of the polling threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSection {
    /// CPUs of the polling threads, at most 16. Each CPU runs one worker. By default, one worker
    /// runs on the highest-numbered CPU that the daemon may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<u32>,
    /// Longest sleep of an idle worker in microseconds, 0 to 1000. With the value 0, an idle worker
    /// polls without sleep. Default 50.
    #[schemars(range(max = 1000))]
    pub idle_backoff_us: u32,
    /// Number of polling rounds without a frame after which a worker sleeps, 1 to 1000000. By
    /// default, an idle worker sleeps after 4096 rounds, about 10 ms of polling.
    #[serde(skip_serializing_if = "is_default_idle_turns")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub idle_turns: u32,
    /// Order in which a worker serves its ports. Default `round-robin`.
    pub schedule: Schedule,
    /// Method by which the schedule `hbs` treats a port that sends no frames. Default `pending`.
    #[serde(skip_serializing_if = "is_default")]
    pub readiness: Readiness,
    /// Rule by which ports get the cycles that no port bought or used. With the value `printed`,
    /// the worker follows Algorithm 1 of C2QoS, which loses a part of the cycles, so that the two
    /// rules can be compared. Default `pool`.
    #[serde(skip_serializing_if = "is_default")]
    pub spare_cycles: SpareCycles,
    /// Interval between two refills of the cycle buckets in microseconds, 10 to 1000. Default 50.
    #[schemars(range(min = 10, max = 1000))]
    pub refill_us: u32,
    /// Cycles per second that each worker may spend on frames, at least 1M; default: the worker's
    /// whole core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CyclesPerSecond>,
    /// CPUs for the daemon's other threads; default: all CPUs except those of the workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub control_cores: Vec<u32>,
}

impl Default for WorkerSection {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            idle_backoff_us: 50,
            idle_turns: IDLE_TURNS,
            schedule: Schedule::RoundRobin,
            readiness: Readiness::Pending,
            spare_cycles: SpareCycles::Pool,
            refill_us: 50,
            capacity: None,
            control_cores: Vec::new(),
        }
    }
}

/// `[forwarding]`: settings of MAC learning and of the classifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForwardingSection {
    /// Time in seconds after which an unused MAC address is removed, 10 to 1000000 (802.1D).
    /// Default 300.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub fdb_ageing_s: u32,
    /// Size of the MAC table in addresses, 64 to 131072. A new size of the MAC table needs a
    /// restart of the daemon. Default 8192.
    #[schemars(range(min = 64, max = 131_072))]
    pub fdb_entries: u32,
    /// Number of masks that each rule table searches by hash, 1 to 128. Each port, each tenant and
    /// the host has a rule table. At most 256 rules of a rule table may have masks that the table
    /// does not search by hash. Default 32.
    #[schemars(range(min = 1, max = 128))]
    pub subtables_per_port: u32,
}

impl Default for ForwardingSection {
    fn default() -> Self {
        Self { fdb_ageing_s: 300, fdb_entries: 8192, subtables_per_port: 32 }
    }
}

impl HostSection {
    pub(super) fn check(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        check_name(object, &self.name, report);
        check_socket(object, "socket", &self.socket, report);
        if !self.state_dir.is_absolute() {
            let problem = format!("directory {:?} is relative", self.state_dir);
            report.at(object, "state_dir", problem, "write an absolute path");
        }
        if let Some(address) = self.metrics
            && !self.metrics_any
            && !address.ip().is_loopback()
        {
            let problem = format!("metrics address {address} can be reached from other machines");
            let remedy = "use 127.0.0.1 or [::1], or set metrics_any = true";
            report.at(object, "metrics", problem, remedy);
        }
        for (key, gib) in
            [("memory_gib", self.memory_gib), ("memory_per_port_gib", self.memory_per_port_gib)]
        {
            if let Some(gib) = gib {
                check_range(object, key, gib, 1..=131_072, report);
            }
        }
        if let Some(wrong) = self.log.split(',').find(|directive| !is_directive(directive.trim())) {
            let problem = format!("log directive {wrong:?} is not valid");
            let remedy =
                "write levels (error, warn, info, debug, trace) or module=level, joined by commas";
            report.at(object, "log", problem, remedy);
        }
    }
}

fn is_directive(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_target =
        |t: &str| !t.is_empty() && t.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
    match text.split_once('=') {
        Some((target, level)) => is_target(target) && LEVELS.contains(&level),
        None => LEVELS.contains(&text),
    }
}

impl WorkerSection {
    /// Checks the keys of `[worker]`. The CPUs in the section's keys must be available on
    /// `machine`.
    pub(super) fn check(
        &self,
        object: &Object<'_, Self>,
        machine: &Machine,
        report: &mut Report<'_>,
    ) {
        if self.cores.len() > WORKERS_MAX {
            let problem = format!(
                "{} worker cores are configured, the limit is {WORKERS_MAX}",
                self.cores.len()
            );
            report.at(object, "cores", problem, "name fewer");
        }
        for (at, core) in self.cores.iter().enumerate() {
            if self.cores[..at].contains(core) {
                let problem = format!("core {core} is named twice, so two workers would share it");
                report.at(object, &format!("cores.{at}"), problem, "name each core once");
            }
        }
        report.twice(object, "control_cores", &self.control_cores);
        check_range(object, "idle_backoff_us", self.idle_backoff_us, 0..=1_000, report);
        check_range(object, "idle_turns", self.idle_turns, 1..=1_000_000, report);
        check_range(object, "refill_us", self.refill_us, 10..=1_000, report);
        if let Some(capacity) = self.capacity.filter(|capacity| capacity.0.0 < CAPACITY_MIN) {
            let problem = format!("`capacity` {capacity} is out of range");
            let remedy = "write at least 1M, or remove `capacity` for the whole core";
            report.at(object, "capacity", problem, remedy);
        }
        let lists = [("cores", &self.cores), ("control_cores", &self.control_cores)];
        let Some(usable) = &machine.cores else { return };
        for (key, cores) in lists {
            for (at, core) in cores.iter().enumerate().filter(|(_, core)| !usable.contains(core)) {
                let problem = format!("core {core} is offline, or this process may not use it");
                let all: Vec<String> = usable.iter().map(u32::to_string).collect();
                let remedy = format!("choose one of {}", all.join(", "));
                report.at(object, &format!("{key}.{at}"), problem, remedy);
            }
        }
    }
}

impl ForwardingSection {
    pub(super) fn check(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        check_range(object, "fdb_ageing_s", self.fdb_ageing_s, 10..=1_000_000, report);
        check_range(object, "fdb_entries", self.fdb_entries, 64..=131_072, report);
        check_range(object, "subtables_per_port", self.subtables_per_port, 1..=128, report);
    }
}
