//! The host's configuration as it stands in the file: one TOML table a type.
//!
//! **Rule.** Every value is checked where it is read; what depends on other objects (a port's
//! tenant, a rule's port) is checked by [`super::parse`], so a [`HostConfig`] that came from there
//! is right as a whole. Units stand in the key's name (`_s`, `_us`, `_per_second`).

use core::net::IpAddr;

use penstock_toml::text::is_default;
use penstock_toml::{BitsPerSecond, CyclesPerSecond};
use penstock_vcpu::terms::{VcpuSection, VmTable};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attachment::{Attachment, Packet, Tap, VhostUser, Xdp};
use super::egress_policer::EgressPolicer;
use super::fabric::FabricSection;
use super::host::{ForwardingSection, HostSection, WorkerSection};
use super::ingress_policer::IngressPolicer;
use super::matching::StationMac;
use super::queue::Queue;
use super::release::{Egress, IngressPolicy};
use super::rtp::RtpStream;
use super::rule::Rule;
use super::shape::Shape;
use super::share::{Contract, ModelSection, Priority, Weight};
use super::switch::SwitchSection;
use super::vlan::{Vlan, VlanList};
use super::wfq::Wfq;

/// A host: everything `penstock host run` needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// The daemon itself.
    pub host: HostSection,
    /// The polling threads.
    #[serde(default)]
    pub worker: WorkerSection,
    /// MAC learning and the classifier.
    #[serde(default)]
    pub forwarding: ForwardingSection,
    /// What a frame costs.
    #[serde(default)]
    pub model: ModelSection,
    /// The fabric that the host is part of. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricSection>,
    /// The switch of a fabric that the host is. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchSection>,
    /// Processors for virtual machines. Default: their vCPUs are not scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<VcpuSection>,
    /// Tenants: at most 1024.
    #[serde(default, rename = "tenant", skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
    /// Ports: at most 1024.
    #[serde(default, rename = "port", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Virtual machines whose vCPUs are scheduled: at most 1024.
    #[serde(default, rename = "vm", skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmTable>,
    /// Rules: at most 16384.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Static MAC addresses.
    #[serde(default, rename = "fdb", skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<FdbStatic>,
}

/// `[host]`: the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSection {
    /// Name shown in status and metrics; 1 to 32 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Unix socket of the API. Default `/run/penstock/host.sock`.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Directory for what must survive a restart. Default `/var/lib/penstock`.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Address of the Prometheus page `/metrics`, as in `127.0.0.1:9753`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub metrics: Option<SocketAddr>,
    /// Whether `metrics` may be another address than a loopback one. Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metrics_any: bool,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or filter directives such as
    /// `info,penstock_dataplane=debug`. Default `info`.
    #[serde(default = "default_log")]
    pub log: String,
    /// Most memory of VMs that the daemon maps for all ports together, in GiB, 1 to 131072.
    /// Default: 16 times the host's memory, at most 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 1, max = 131_072))]
    pub memory_gib: Option<u32>,
    /// Most memory of its VM that the daemon maps for each port, in GiB, 1 to 131072. Default: 4
    /// times the host's memory, at most 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 1, max = 131_072))]
    pub memory_per_port_gib: Option<u32>,
    /// System call filters of worker and session threads. Default `on`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seccomp: Seccomp,
}

impl HostSection {
    /// Bytes of VMs' memory that may be mapped.
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

/// What happens to a system call that a thread's filter forbids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Seccomp {
    /// The daemon says which thread made which call, and aborts.
    #[default]
    On,
    /// The kernel logs the call and carries it out.
    Log,
    /// There are no filters.
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

/// Turns without a frame after which a worker sleeps, unless said otherwise.
const IDLE_TURNS: u32 = 4096;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
fn is_default_idle_turns(turns: &u32) -> bool {
    *turns == IDLE_TURNS
}

/// `[worker]`: the polling threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSection {
    /// The CPUs of the polling threads, one worker each, at most 16. Default: one worker, on the
    /// highest-numbered CPU that the daemon may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<u32>,
    /// How long an idle worker sleeps at most, in microseconds, 0 to 1000; 0 spins. Default 50.
    #[schemars(range(max = 1000))]
    pub idle_backoff_us: u32,
    /// Turns without a frame after which an idle worker sleeps, 1 to 1000000. Default 4096: some
    /// 10 ms of polling.
    #[serde(skip_serializing_if = "is_default_idle_turns")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub idle_turns: u32,
    /// Whose turn it is. Default `round-robin`.
    pub schedule: Schedule,
    /// How `hbs` treats a port from which nothing comes. Default `pending`.
    #[serde(skip_serializing_if = "is_default")]
    pub readiness: Readiness,
    /// Microseconds between two refills of the cycle buckets, 10 to 1000. Default 50.
    #[schemars(range(min = 10, max = 1000))]
    pub refill_us: u32,
    /// Cycles per second that each worker may spend on frames. Default: its whole core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CyclesPerSecond>,
    /// CPUs for the daemon's other threads. Default: all but the workers'.
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
            refill_us: 50,
            capacity: None,
            control_cores: Vec::new(),
        }
    }
}

/// `[forwarding]`: MAC learning and the classifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForwardingSection {
    /// Seconds after which an address that was not seen is forgotten, 10 to 1000000 (802.1D).
    /// Default 300.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub fdb_ageing_s: u32,
    /// Addresses the host can hold, 64 to 131072. Fixed while the daemon runs. Default 8192.
    #[schemars(range(min = 64, max = 131_072))]
    pub fdb_entries: u32,
    /// Different masks of a table of rules (a port's, a tenant's, the host's) that are searched by
    /// hash, 1 to 128; at most 256 rules may have further masks. Default 32.
    #[schemars(range(min = 1, max = 128))]
    pub subtables_per_port: u32,
}

impl Default for ForwardingSection {
    fn default() -> Self {
        Self { fdb_ageing_s: 300, fdb_entries: 8192, subtables_per_port: 32 }
    }
}

/// `[[tenant]]`: owner of ports and of the networks between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Unique; 1 to 32 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// The tenant's VLANs, each a network of its own. Default: none, then the tenant has one
    /// untagged network.
    #[serde(default, skip_serializing_if = "VlanList::is_empty")]
    pub vlans: VlanList,
    /// MAC addresses each of the tenant's networks may occupy, 1 to 131072. Default 1024.
    #[serde(default = "default_fdb_limit")]
    #[schemars(range(min = 1, max = 131_072))]
    pub fdb_limit: u32,
    /// Its weight among tenants at a `fair-share` output, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_weight: Weight,
    /// The code point (DSCP) of all IP frames of its VMs that leave by a shared port, 0 to 63,
    /// whatever a VM set. Default: none, frames leave as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// What its VMs may receive together, and each by its `uplink_share`. Default: as much as
    /// comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<EgressPolicer>,
    /// What its VMs may send over the network, by shared ports, together. Default: as much as they
    /// can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<EgressPolicer>,
}

const fn default_fdb_limit() -> u32 {
    1024
}

impl Tenant {
    /// A tenant with one untagged network and the default limit.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            vlans: VlanList::default(),
            fdb_limit: default_fdb_limit(),
            uplink_weight: Weight::default(),
            dscp: None,
            receive: None,
            send: None,
        }
    }
}

/// A port's allowance of slow-path frames: new addresses and floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { per_second = 2000 }")]
pub struct SlowPath {
    /// Frames per second, 1 to 10000000. Default 1000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub per_second: u32,
    /// Frames at once, 1 to 1000000. Default 64.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: u32,
}

impl Default for SlowPath {
    fn default() -> Self {
        Self { per_second: 1_000, burst: 64 }
    }
}

/// `[[port]]`: the attachment of one virtual machine, namespace or interface, and what was sold.
///
/// Exactly one of `vhost-user`, `tap`, `packet` and `xdp` is there; [`Port::attachment`] gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Unique; 1 to 32 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Its owner. Default: none, a shared port (an uplink) that carries the networks of all
    /// tenants on its VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,

    /// A virtual machine's virtio-net device behind a unix socket.
    #[serde(default, rename = "vhost-user", skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<VhostUser>,
    /// A TAP interface that the switch creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<Tap>,
    /// An existing interface, by a packet socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<Packet>,
    /// An existing interface, by AF_XDP; by a packet socket where that is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<Xdp>,
    /// The worker that owns its queue pairs, 0 to 15, the place of its CPU in `cores`; may be set
    /// while frames flow. Default: queue pairs are dealt to all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 15))]
    pub worker: Option<u16>,

    /// Access port: untagged frames, all of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Trunk port: tagged frames of these VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanList>,
    /// Trunk port: the VLAN of untagged frames, one of `trunk`. Default: none, they are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Vlan>,
    /// Whether it may send one VLAN tag more than its own, behind which nobody reads headers; on an
    /// uplink without tags, whether tenants may. Not together with `ip`. Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qinq: bool,

    /// Source MAC addresses it may use. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mac: Vec<StationMac>,
    /// Source IP addresses it may use (IP, ARP, neighbour discovery). Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub ip: Vec<IpAddr>,
    /// Its allowance of slow-path frames. Default: `{ per_second = 1000, burst = 64 }` for a
    /// tenant's port, none for a shared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_path: Option<SlowPath>,
    /// What bounds the frames it sends. Default `none`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ingress_policy: IngressPolicy,
    /// Cycles per second it bought, guaranteed by the policies `cycles-strict` and
    /// `cycles-minmax`. Default: worked out from `contract` by the cost model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<CyclesPerSecond>,
    /// Most cycles that its bucket keeps while nothing waits, 1000 to 1000000000000: what it may
    /// use at once, and what later classes may have to wait for it. Default: 1 ms of what it
    /// bought and 50 us of the core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_000, max = 1_000_000_000_000_u64))]
    pub depth: Option<u64>,
    /// Its weight among the VMs that share the cycles others leave, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cycle_weight: Weight,
    /// Its latency class, 1 first to 8. Default 8.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// What was bought, and the traffic it was bought for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// The limits of the policies `bps` and `pps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub police: Option<IngressPolicer>,
    /// What it may receive. Default: its part, by `uplink_share`, of what its tenant may, else as
    /// much as comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<EgressPolicer>,
    /// Uplink: bits per second that its link carries. Default: it is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<BitsPerSecond>,
    /// How frames towards it are ordered. Default `fifo`. `fair-share` and `wfq` belong to a shared
    /// port; with `link` it sends no faster than that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub egress: Egress,
    /// With `egress = "wfq"`: its queues, their weights, and which code points are theirs. Default:
    /// eight of weight 1, everything in queue 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wfq: Option<Wfq>,
    /// How much may wait for it. Default: with `egress = "fair-share"` or `"wfq"` and
    /// `shape.receive` as the table's keys say, else nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Rates that what it sends and receives is delayed to. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Its weight among its tenant's ports, 1 to 10000: at a `fair-share` output, and of what the
    /// tenant may receive together. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_share: Weight,
    /// RTP streams to it whose jitter is measured, at most 8. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rtp: Vec<RtpStream>,
    /// The `[[vm]]` behind it: what comes for the port is an event for that VM's vCPUs. Default:
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
}

impl Port {
    /// A port with nothing but a name and what it attaches to.
    #[must_use]
    pub fn new(name: impl Into<String>, attachment: impl Into<Attachment>) -> Self {
        let (mut vhost_user, mut tap, mut packet, mut xdp) = (None, None, None, None);
        match attachment.into() {
            Attachment::VhostUser(of) => vhost_user = Some(of),
            Attachment::Tap(of) => tap = Some(of),
            Attachment::Packet(of) => packet = Some(of),
            Attachment::Xdp(of) => xdp = Some(of),
        }
        Self {
            name: name.into(),
            vhost_user,
            tap,
            packet,
            xdp,
            tenant: None,
            worker: None,
            vlan: None,
            trunk: None,
            native: None,
            qinq: false,
            mac: Vec::new(),
            ip: Vec::new(),
            slow_path: None,
            ingress_policy: IngressPolicy::None,
            cycles: None,
            depth: None,
            cycle_weight: Weight::default(),
            priority: Priority::default(),
            contract: None,
            police: None,
            receive: None,
            link: None,
            egress: Egress::Fifo,
            wfq: None,
            queue: None,
            shape: None,
            uplink_share: Weight::default(),
            rtp: Vec::new(),
            vm: None,
        }
    }

    /// What the port attaches to; `None` if no type or several are given, which no checked
    /// configuration does.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        let mut given = self.attachments().into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }

    /// What is given of each type.
    pub(super) fn attachments(&self) -> [Option<Attachment>; 4] {
        [
            self.vhost_user.clone().map(Attachment::VhostUser),
            self.tap.clone().map(Attachment::Tap),
            self.packet.clone().map(Attachment::Packet),
            self.xdp.clone().map(Attachment::Xdp),
        ]
    }

    /// `access 100`, `trunk 1,5-9 native 1`, `untagged`.
    #[must_use]
    pub fn vlan_text(&self) -> String {
        match (&self.vlan, &self.trunk, &self.native) {
            (Some(vlan), _, _) => format!("access {vlan}"),
            (None, Some(trunk), None) => format!("trunk {trunk}"),
            (None, Some(trunk), Some(native)) => format!("trunk {trunk} native {native}"),
            (None, None, _) => "untagged".to_owned(),
        }
    }
}

/// `[[fdb]]`: a MAC address that is not learned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FdbStatic {
    /// Whose network it is in. Default: the port's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// VLAN of the network. Default: the untagged network, or an access port's VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// The address.
    pub mac: StationMac,
    /// The port behind which it lives.
    pub port: String,
}
