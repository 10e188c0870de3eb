//! The host's one API as plain data: what a client may ask, what it is told.
//!
//! The daemon, the command line, later the controller and the lab are all clients of
//! [`crate::host::Host`]; the wire format (gRPC) is the binary's business alone. Configuration
//! objects ([`crate::config`]) are used as they are; this module holds the readings.

use serde::Serialize;

/// A counter with its unit, by name: `drops` and `tx_drops` hold only the non-zero reasons.
pub type Named = Vec<(String, u64)>;

/// What the daemon is and does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// Configured name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Path of the configuration file.
    pub config: String,
    /// Counts up with every accepted change.
    pub generation: u64,
    /// Seconds since the daemon started.
    pub uptime_s: u64,
    /// Calibrated rate of the time-stamp counter, in Hz.
    pub tsc_hz: u64,
    /// One entry a worker.
    pub workers: Vec<WorkerStatus>,
}

/// A worker's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// From 0.
    pub id: u16,
    /// The CPU it is pinned to.
    pub core: u32,
    /// No heartbeat for longer than the watchdog's limit.
    pub stalled: bool,
    /// Milliseconds since the last loop turn that the watchdog saw.
    pub heartbeat_age_ms: u64,
    /// Busy share since start, in units of 0.01 %.
    pub busy_share_e4: u32,
    /// Scheduling discipline.
    pub schedule: String,
    /// The counters of [`penstock_dataplane::counters::WorkerReading::FIELDS`], in that order.
    pub counters: Named,
}

/// A port's state: what was configured is in [`crate::config::Port`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Configured name.
    pub name: String,
    /// Slot in the switch.
    pub id: u16,
    /// `vhost-user`, `tap`, `packet` or `sim`.
    pub kind: String,
    /// Tenant, empty for a shared port.
    pub tenant: String,
    /// `access 100`, `trunk 1,5-9 native 1`.
    pub vlan: String,
    /// Where it attaches: the socket's path, the interface's name.
    pub target: String,
    /// `up` (frames can pass), `waiting` (no driver yet), `connected` (driver there, rings not
    /// started), `down`, `error`.
    pub state: String,
    /// The last error of the attachment, empty if none.
    pub error: String,
    /// Queue pairs configured.
    pub queues: u16,
    /// Queue pairs that can pass frames now.
    pub queues_up: u16,
    /// Negotiated features, by name (`csum`, `tso4`, `mrg-rxbuf`, `event-idx`, ...).
    pub features: Vec<String>,
    /// Ring sizes as the driver set them, by queue; empty for other kinds.
    pub ring_sizes: Vec<u32>,
    /// The worker that owns each queue pair; empty if the port is not attached.
    pub workers: Vec<u16>,
}

/// A port's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortStats {
    /// The port.
    pub port: String,
    /// The counters of [`penstock_dataplane::counters::PortReading::FIELDS`], in that order.
    pub counters: Named,
    /// Frames from this port dropped, by reason; zero reasons are left out.
    pub drops: Named,
    /// Frames towards this port dropped, by reason; zero reasons are left out.
    pub tx_drops: Named,
}

/// A VM's part of a link, which holds while the link is the bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkPart {
    /// The VM's port.
    pub port: String,
    /// Bits per second, with what Ethernet adds to each frame.
    pub bps: u64,
}

/// A link that is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStatus {
    /// The uplink's port.
    pub port: String,
    /// What it carries, in bits per second.
    pub capacity_bps: u64,
    /// What it sent in the last interval, in thousandths of that.
    pub sent_permille: u64,
    /// The same and what the limits held back.
    pub load_permille: u64,
    /// Whether VMs are held to their parts now.
    pub limited: bool,
    /// Milliseconds since that last changed; 0 if it never did.
    pub since_ms: u64,
    /// How often the limits went in.
    pub entered: u64,
    /// Each VM's part.
    pub parts: Vec<LinkPart>,
}

/// A reading of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Nanoseconds since the daemon started, at the reading.
    pub time_ns: u64,
    /// Whether the worker took it between two batches (`stats --check`).
    pub exact: bool,
    /// All ports, deleted ones since start summed up as `(deleted)`.
    pub ports: Vec<PortStats>,
    /// All workers.
    pub workers: Vec<WorkerStatus>,
    /// The links that are watched.
    pub links: Vec<LinkStatus>,
    /// Only in exact readings: every identity that does not hold, in words. Empty is good.
    pub violations: Vec<String>,
}

/// A learned or static MAC address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FdbEntry {
    /// Tenant whose network it is in.
    pub tenant: String,
    /// VLAN, 0 untagged.
    pub vlan: u16,
    /// The address.
    pub mac: String,
    /// The port behind which it lives.
    pub port: String,
    /// Seconds since it was last seen.
    pub age_s: u32,
    /// Configured rather than learned.
    pub is_static: bool,
}

/// A rule with what it has matched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowStatus {
    /// The rule's name.
    pub name: String,
    /// Higher wins.
    pub priority: u16,
    /// Where it applies: `port vm1`, `tenant red`, `all`.
    pub scope: String,
    /// The match, as in the configuration.
    pub matching: String,
    /// The actions, as in the configuration.
    pub actions: String,
    /// Frames decided by it in a rule lookup (cache hits of the decision are not counted again).
    pub lookups: u64,
}

/// What a reload or a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangeReport {
    /// The generation now.
    pub generation: u64,
    /// In words: `port vm3 added`, `rule web changed`.
    pub changes: Vec<String>,
    /// What could not be done although the configuration is valid (a TAP that is in use); the
    /// object is in state `error`.
    pub warnings: Vec<String>,
}
