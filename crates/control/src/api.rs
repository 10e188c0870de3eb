//! The host's one API as plain data: what a client may ask, what it is told.
//!
//! The daemon, the command line, later the controller and the lab are all clients of
//! [`crate::host::Host`]; the wire format (gRPC) is the binary's business alone. Configuration
//! objects ([`crate::config`]) are used as they are; this module holds the readings.

use penstock_qos::cost_model::FCS;
use penstock_qos::delay_scale;
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
    /// Where who schedules its VMs' vCPUs keeps its files; empty: nobody does.
    pub vcpu_dir: String,
    /// Calibrated rate of the time-stamp counter, in Hz.
    pub tsc_hz: u64,
    /// One entry a worker.
    pub workers: Vec<WorkerStatus>,
    /// Its part in a fabric, if it has one.
    pub fabric: Option<FabricStatus>,
    /// What it is doing as a switch of a fabric, if it is one.
    pub switch: Option<SwitchStatus>,
}

/// A host as a switch of a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SwitchStatus {
    /// Its name in the topology.
    pub name: String,
    /// The last decision that it was told, `EPOCH.GENERATION`.
    pub told: String,
    /// It is in force and could not be kept for a restart.
    pub unkept: bool,
    /// What went wrong last; empty: nothing.
    pub last_error: String,
    /// What it was told since its start, in numbers.
    pub counters: Named,
}

/// A host's part in a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FabricStatus {
    /// Its name in the topology.
    pub name: String,
    /// The controller that it reports to; empty: none.
    pub controller: String,
    /// The last decision that it was told of, `EPOCH.GENERATION`.
    pub told: String,
    /// The decision that is in force; empty: none, all tenants share queue 0.
    pub applied: String,
    /// The decision that is in force and could not be kept for a restart; empty: none.
    pub unkept: String,
    /// For how long it has been stale, in ms: three intervals went by without a report to anybody.
    pub stale_ms: Option<u64>,
    /// Tenants of the plan that are not here.
    pub absent: Vec<String>,
    /// What went wrong last; empty: nothing.
    pub last_error: String,
    /// What its agent did since its start, in numbers.
    pub counters: Named,
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
    /// `vhost-user`, `tap`, `packet`, `xdp` or `sim`.
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
    /// Ingress policy: `none`, `cycles-strict`, `cycles-minmax`, `bps` or `pps`.
    pub policy: String,
    /// Cycles per second it is entitled to; 0 if it bought none.
    pub entitled: u64,
    /// Its part of what others leave.
    pub weight: u16,
    /// Its class.
    pub priority: u8,
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
    /// How long frames waited; those of which nothing was counted are left out.
    pub delays: Vec<Delays>,
    /// The RTP streams to it that its `rtp` marks.
    pub rtp: Vec<RtpStatus>,
    /// The queues of a port with `egress = "wfq"`.
    pub queues: Vec<QueueStatus>,
}

/// One of several queues of a port. Of the frames that came for it, `frames` left, `drops` were
/// lost and `backlog_frames` wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStatus {
    /// From 0, the shared one.
    pub queue: u8,
    /// Its weight.
    pub weight: u16,
    /// The code points that are its.
    pub dscps: Vec<u8>,
    /// Frames that left it for the port.
    pub frames: u64,
    /// Bytes of those, without FCS.
    pub bytes: u64,
    /// Frames for which it had no room, or that waited in it too long.
    pub drops: u64,
    /// Frames that wait in it now.
    pub backlog_frames: u64,
    /// Bytes of those.
    pub backlog_bytes: u64,
}

/// Frames by a delay, in the parts of [`penstock_qos::delay_scale`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Delays {
    /// `waited`, `varied`, `tx_waited` or `shaped`: the arrays of
    /// [`penstock_dataplane::counters::PortReading`].
    pub name: String,
    /// Frames by part, up to the last that has one.
    pub counts: Vec<u64>,
}

impl Delays {
    /// Frames counted.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// In nanoseconds, what so many thousandths of a percent do not exceed; `None` of no frames.
    #[must_use]
    pub fn percentile(&self, milli_percent: u32) -> Option<u64> {
        delay_scale::percentile(&self.counts, milli_percent).map(|delay| delay.0)
    }

    /// What was counted since `before`, of the same name; all of it if that was more.
    #[must_use]
    pub fn since(&self, before: Option<&Self>) -> Self {
        let old = |at: usize| before.and_then(|b| b.counts.get(at)).copied().unwrap_or(0);
        let grown = |(at, now): (usize, &u64)| now.checked_sub(old(at));
        let counts: Option<Vec<u64>> = self.counts.iter().enumerate().map(grown).collect();
        Self { name: self.name.clone(), counts: counts.unwrap_or_else(|| self.counts.clone()) }
    }
}

/// A marked RTP stream, as the port it goes to sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RtpStatus {
    /// The UDP port it goes to.
    pub udp_port: u16,
    /// The source that sends now (SSRC); 0 before the first packet.
    pub ssrc: u32,
    /// Packets of all sources.
    pub packets: u64,
    /// Sequence numbers that were left out.
    pub lost: u64,
    /// Interarrival jitter (RFC 3550) in nanoseconds.
    pub jitter_ns: u64,
    /// The largest that it was of this source.
    pub jitter_max_ns: u64,
}

/// What a port's rate is limited by now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// It cannot pass frames: no driver, no link, a stalled worker.
    Attachment,
    /// Its policer's rate.
    OwnRate,
    /// The link of this uplink.
    Link(String),
    /// The ring of this receiver; empty if it is gone.
    Destination(String),
    /// The cycles it bought.
    Entitlement,
    /// Others on its core, which keep it below what it bought.
    Neighbours,
    /// The core: there are no more cycles.
    Core,
    /// None of these: it sends less.
    #[default]
    Nothing,
}

impl Limit {
    /// Its name in output.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Attachment => "attachment",
            Self::OwnRate => "own-rate",
            Self::Link(_) => "link",
            Self::Destination(_) => "destination",
            Self::Entitlement => "entitlement",
            Self::Neighbours => "neighbours",
            Self::Core => "core",
            Self::Nothing => "nothing",
        }
    }

    /// The limit of this name; one that is unknown, from a newer daemon, is none.
    #[must_use]
    pub fn from_names(name: &str, port: &str) -> Self {
        match name {
            "attachment" => Self::Attachment,
            "own-rate" => Self::OwnRate,
            "link" => Self::Link(port.to_owned()),
            "destination" => Self::Destination(port.to_owned()),
            "entitlement" => Self::Entitlement,
            "neighbours" => Self::Neighbours,
            "core" => Self::Core,
            _ => Self::Nothing,
        }
    }

    /// The port that it is about, if it is about one.
    #[must_use]
    pub fn port(&self) -> &str {
        match self {
            Self::Link(port) | Self::Destination(port) => port,
            _ => "",
        }
    }
}

/// A port that used a worker's core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Consumer {
    /// The port.
    pub port: String,
    /// Cycles per second.
    pub used: u64,
    /// Cycles per second it is entitled to; 0 if it bought none.
    pub entitled: u64,
    /// Its part of what all ports used there, in thousandths.
    pub share_permille: u64,
    /// Its class.
    pub priority: u8,
    /// Frames per second from it.
    pub pps: u64,
    /// Bits per second from it.
    pub bps: u64,
}

/// Why a port has the rate it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The port.
    pub port: String,
    /// Over the last so many milliseconds.
    pub window_ms: u64,
    /// What holds it.
    pub limit: Limit,
    /// That in words, with numbers.
    pub why: String,
    /// What would help.
    pub remedy: String,
    /// Frames per second from it.
    pub sends_pps: u64,
    /// Bits per second from it, FCS included ([`bits_of`]).
    pub sends_bps: u64,
    /// Part of its frames that were dropped, in thousandths.
    pub dropped_permille: u64,
    /// Its ingress policy.
    pub policy: String,
    /// Cycles per second it is entitled to; 0 if it bought none.
    pub entitled: u64,
    /// Cycles per second it used.
    pub used: u64,
    /// Its weight.
    pub weight: u16,
    /// Its class.
    pub priority: u8,
    /// Part of the time in which frames waited and there were no cycles for them, in thousandths.
    pub throttled_permille: u64,
    /// Part of its batches that were full, in thousandths.
    pub full_permille: u64,
    /// The worker that spent most on it.
    pub worker: u16,
    /// Part of that worker's time that was not idle, in thousandths.
    pub busy_permille: u64,
    /// Part of the time in which its core was given to others, in thousandths.
    pub stolen_permille: u64,
    /// Who used that worker's core most.
    pub consumers: Vec<Consumer>,
    /// Whether it sends what its contract declares; `None` without one.
    pub inside_profile: Option<bool>,
    /// The same in words; empty without a contract.
    pub profile: String,
    /// The longest that a frame of its class waits for the end of its batch, in microseconds, if
    /// its port keeps to its bucket; `None`: there is no bound.
    pub bound_us: Option<u64>,
    /// The same in words; or why there is none, and what would give one.
    pub latency: String,
    /// What the bound follows from.
    pub bound: Option<LatencyBound>,
    /// The VM behind the port, if its vCPUs are scheduled.
    pub vm: String,
    /// Where their scheduler keeps its files.
    pub vcpu_dir: String,
    /// What the plan warns of that is about the port.
    pub warnings: Vec<String>,
}

/// What a class's latency bound follows from (`penstock_qos::latency_bound`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyBound {
    /// The port of the class that may wait longest.
    pub port: String,
    /// Batches in which its bucket's worth is taken.
    pub rounds: u64,
    /// A batch that had begun, in cycles.
    pub begun: u64,
    /// All batches of the class in these rounds, in cycles.
    pub beside: u64,
    /// What those before it may have saved up, in cycles.
    pub above: u64,
    /// What is generated for them meanwhile, in cycles per second.
    pub above_rate: u64,
    /// What the worker may spend, in cycles per second.
    pub capacity: u64,
    /// The bound in microseconds where those of its class and later ones leave those before it
    /// cycles that they bought; `None`: there is none then.
    pub left_us: Option<u64>,
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

/// Bits of frames as all rates in bits per second count them, whether sold, policed or shown: with
/// FCS, of which counters of bytes know nothing. "64 bytes" are 60 and 4. A large segment (TSO)
/// that was not cut yet counts one.
#[must_use]
pub const fn bits_of(bytes: u64, frames: u64) -> u64 {
    bytes.saturating_add(frames.saturating_mul(FCS)).saturating_mul(8)
}
