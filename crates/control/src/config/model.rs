//! The host's configuration as types: one type for each TOML table.
//!
//! A value is checked when it is read. [`super::parse`] checks references between objects, so a
//! [`HostConfig`] from there is valid as a whole. The unit of a key is part of its name (`_s`,
//! `_us`, `_per_second`).

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

/// Configuration of `penstock host run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// The daemon: its name, files and limits.
    pub host: HostSection,
    /// The polling threads.
    #[serde(default)]
    pub worker: WorkerSection,
    /// MAC learning and the classifier.
    #[serde(default)]
    pub forwarding: ForwardingSection,
    /// The cost model of a frame.
    #[serde(default)]
    pub model: ModelSection,
    /// The host's part as a server of a fabric. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricSection>,
    /// The host's part as a switch of a fabric. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchSection>,
    /// CPUs for virtual machines. Default: none, vCPUs are not scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<VcpuSection>,
    /// Tenants, at most 1024.
    #[serde(default, rename = "tenant", skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
    /// Ports, at most 1024.
    #[serde(default, rename = "port", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Virtual machines with scheduled vCPUs, at most 1024.
    #[serde(default, rename = "vm", skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmTable>,
    /// Rules, at most 16384.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Static MAC addresses.
    #[serde(default, rename = "fdb", skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<FdbStatic>,
}

/// `[[tenant]]`: owner of ports and of the networks between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Unique; 1 to 32 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// The tenant's VLANs, each a network of its own. Default: none. Then the tenant has one
    /// untagged network.
    #[serde(default, skip_serializing_if = "VlanList::is_empty")]
    pub vlans: VlanList,
    /// Limit on MAC addresses in each of the tenant's networks, 1 to 131072. Default 1024.
    #[serde(default = "default_fdb_limit")]
    #[schemars(range(min = 1, max = 131_072))]
    pub fdb_limit: u32,
    /// Weight of the tenant at a `fair-share` output, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_weight: Weight,
    /// Code point (DSCP) of all IP frames that the tenant's VMs send by a shared port, 0 to 63. It
    /// replaces the VM's own. Default: none, frames leave unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// Limits on what the tenant's VMs receive together. Each VM has a part by its `uplink_share`.
    /// Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<EgressPolicer>,
    /// Limits on what the tenant's VMs send by shared ports together. Default: no limit.
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

/// Limit on a port's slow-path frames: frames with new addresses, and floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { per_second = 2000 }")]
pub struct SlowPath {
    /// Frames per second, 1 to 10000000. Default 1000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub per_second: u32,
    /// Burst in frames, 1 to 1000000. Default 64.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: u32,
}

impl Default for SlowPath {
    fn default() -> Self {
        Self { per_second: 1_000, burst: 64 }
    }
}

/// `[[port]]`: the attachment of a virtual machine, namespace or interface, and its contract.
///
/// Exactly one of `vhost-user`, `tap`, `packet` and `xdp` is present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Unique; 1 to 32 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Name of the port's tenant. Default: none. Then the port is shared (an uplink): it carries
    /// the networks of all tenants on its VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,

    /// A virtual machine's virtio-net device behind a unix socket.
    #[serde(default, rename = "vhost-user", skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<VhostUser>,
    /// A TAP interface that the switch creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<Tap>,
    /// An existing interface, through a packet socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<Packet>,
    /// An existing interface, through AF_XDP. If the kernel refuses AF_XDP, through a packet
    /// socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<Xdp>,
    /// Number of the worker that owns the port's queue pairs, 0 to 15: the index of the worker's
    /// CPU in `cores`. It may change while frames flow. Default: queue pairs are spread over all
    /// workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 15))]
    pub worker: Option<u16>,

    /// Access port: VLAN of the port's untagged frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Trunk port: VLANs of the port's tagged frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanList>,
    /// Trunk port: VLAN of untagged frames, one of `trunk`. Default: none, untagged frames are
    /// dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Vlan>,
    /// Whether frames of the port may have one VLAN tag more. The switch does not read the headers
    /// behind that tag. On an uplink without tags, this allows the tag to tenants. Excludes `ip`.
    /// Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qinq: bool,

    /// Source MAC addresses that the port may use. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mac: Vec<StationMac>,
    /// Source IP addresses that the port may use in IP, ARP and neighbour discovery. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub ip: Vec<IpAddr>,
    /// Limit on slow-path frames. Default: `{ per_second = 1000, burst = 64 }` for a tenant's port,
    /// no limit for a shared port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_path: Option<SlowPath>,
    /// Policy that limits the frames that the port sends. Default `none`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ingress_policy: IngressPolicy,
    /// Cycles per second that the port bought. The policies `cycles-strict` and `cycles-minmax`
    /// guarantee them. Default: computed from `contract` by the cost model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<CyclesPerSecond>,
    /// Depth of the port's cycle bucket in cycles, 1000 to 1000000000000. The port may use so many
    /// cycles at once, and later classes may wait for so many. Default: 1 ms of `cycles` and 50 us
    /// of the core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_000, max = 1_000_000_000_000_u64))]
    pub depth: Option<u64>,
    /// Weight of the port for spare cycles, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cycle_weight: Weight,
    /// Latency class, 1 (first) to 8. Default 8.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// The rate that the port bought, and the traffic for which it bought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// Limits of the policies `bps` and `pps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub police: Option<IngressPolicer>,
    /// Limits on what the port receives. Default: the port's part of its tenant's limits by
    /// `uplink_share`, or no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<EgressPolicer>,
    /// Uplink: rate of the link in bits per second. Default: none, the link is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<BitsPerSecond>,
    /// Order of the frames that leave by the port. `fair-share` and `wfq` belong to a shared port.
    /// With `link` the port sends no faster than the link. Default `fifo`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub egress: Egress,
    /// With `egress = "wfq"`: queues, their weights and their code points. Default: eight queues of
    /// weight 1, all frames in queue 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wfq: Option<Wfq>,
    /// Limits on the frames that wait for the port. Default: the table's defaults with `egress =
    /// "fair-share"`, `egress = "wfq"` or `shape.receive`; otherwise no frame waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Rates to which the port's frames are delayed. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Weight of the port among its tenant's ports, 1 to 10000. It divides the tenant's share of a
    /// `fair-share` output and the tenant's `receive`. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_share: Weight,
    /// RTP streams to the port with measured jitter, at most 8. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rtp: Vec<RtpStream>,
    /// Name of the `[[vm]]` behind the port. Frames for the port are events for that VM's vCPUs.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
}

impl Port {
    /// A port with defaults for all other keys.
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

    /// The port's attachment. `None` if none or several are given, which a checked configuration
    /// never does.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        let mut given = self.attachments().into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }

    /// The given attachments.
    pub(super) fn attachments(&self) -> [Option<Attachment>; 4] {
        [
            self.vhost_user.clone().map(Attachment::VhostUser),
            self.tap.clone().map(Attachment::Tap),
            self.packet.clone().map(Attachment::Packet),
            self.xdp.clone().map(Attachment::Xdp),
        ]
    }

    /// The port's VLANs as text: `access 100`, `trunk 1,5-9 native 1`, `untagged`.
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

/// `[[fdb]]`: a static MAC address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FdbStatic {
    /// Name of the network's tenant. Default: the port's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// VLAN of the network. Default: the untagged network, or an access port's VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    pub mac: StationMac,
    /// Name of the port behind which the address is.
    pub port: String,
}
