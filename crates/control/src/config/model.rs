//! The host's configuration as types: one type for each TOML table.
//!
//! The type of a key checks the range and form of the key's value when the value is read from the
//! file. [`super::parse`] also checks references between objects, so each [`HostConfig`] that it
//! returns is valid as a whole. The unit of a key is part of its name (`_s`, `_us`, `_per_second`).

use core::net::IpAddr;

use penstock_toml::text::is_default;
use penstock_toml::{BitsPerSecond, CyclesPerSecond};
use penstock_units::Labels;
use penstock_vcpu::terms::{VcpuSection, VmTable};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attachment::{Attachment, Packet, Tap, VhostUser, Xdp};
use super::contract::Contract;
use super::egress_policer::EgressPolicer;
use super::fabric::FabricSection;
use super::host::{ForwardingSection, HostSection, WorkerSection};
use super::inbound::Inbound;
use super::ingress_policer::IngressPolicer;
use super::matching::StationMac;
use super::mirror::Mirror;
use super::queue::Queue;
use super::release::{Egress, IngressPolicy};
use super::rtp::RtpStream;
use super::rule::Rule;
use super::shape::Shape;
use super::share::{ModelSection, Priority, Weight};
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
    /// Settings of MAC learning and of the classifier.
    #[serde(default)]
    pub forwarding: ForwardingSection,
    /// Settings of the cost model, which computes a frame's cost in cycles.
    #[serde(default)]
    pub model: ModelSection,
    /// Role of this host as a server of a fabric. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricSection>,
    /// Role of this host as a switch of a fabric. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchSection>,
    /// CPUs for virtual machines; default: none, vCPUs are not scheduled.
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
    /// Static MAC addresses, at most 16384.
    #[serde(default, rename = "fdb", skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<FdbStatic>,
}

/// `[[tenant]]`: owner of ports and of the networks between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Unique name of the tenant, 1 to 64 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Labels for other programs, at most 32, as in `{ project = "..." }`. Default: none.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub labels: Labels,
    /// The tenant's VLANs. Each VLAN of a tenant is a separate network. By default, the tenant has
    /// one untagged network.
    #[serde(default, skip_serializing_if = "VlanList::is_empty")]
    pub vlans: VlanList,
    /// Limit on MAC addresses in each of the tenant's networks, 1 to 131072. Default 1024.
    #[serde(default = "default_fdb_limit")]
    #[schemars(range(min = 1, max = 131_072))]
    pub fdb_limit: u32,
    /// Weight of the tenant at a `fair-share` output, and among the receivers of an uplink with
    /// `inbound`, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_weight: Weight,
    /// Code point (DSCP), 0 to 63, of all IP frames that the tenant's VMs send through a shared
    /// port. The switch overwrites the DSCP code point that the VM set. By default, the switch does
    /// not change a DSCP code point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// Limits on the frames that the tenant's VMs receive together. The limits of the tenant are
    /// divided among its VMs by the ports' `uplink_share`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<EgressPolicer>,
    /// Limits on the frames that the tenant's VMs send together through shared ports. Default: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<EgressPolicer>,
    /// Limits that a plan of the fabric's controller has set, and no configuration file.
    #[serde(skip)]
    pub planned: PlannedLimits,
}

/// Limits of a tenant that a plan of the fabric's controller has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedLimits {
    /// Whether the plan has set [`Tenant::receive`].
    pub receive: bool,
    /// Whether the plan has set [`Tenant::send`].
    pub send: bool,
}

const fn default_fdb_limit() -> u32 {
    1024
}

impl Tenant {
    /// Returns a tenant with one untagged network and defaults for all other keys.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            labels: Labels::default(),
            vlans: VlanList::default(),
            fdb_limit: default_fdb_limit(),
            uplink_weight: Weight::default(),
            dscp: None,
            receive: None,
            send: None,
            planned: PlannedLimits::default(),
        }
    }
}

/// Limit on a port's slow-path frames, which are frames with new addresses, and floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a slow_path table such as { per_second = 2000 }"
)]
pub struct SlowPath {
    /// Rate of slow-path frames in frames per second, 1 to 10000000. Default 1000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub per_second: u32,
    /// Burst of slow-path frames, 1 to 1000000 frames. Default 64.
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
/// A port has exactly one of the keys `vhost-user`, `tap`, `packet` and `xdp`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Unique name of the port, 1 to 64 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Labels for other programs, at most 32, as in `{ vm-uuid = "...", iface-id = "..." }`.
    /// Commands accept a label `KEY=VALUE` instead of the port's name. Default: none.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub labels: Labels,
    /// Name of the port's tenant; default: none, the port is shared (an uplink) and carries the
    /// networks of all tenants on its VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,

    /// A virtual machine's virtio-net device behind a unix socket.
    #[serde(default, rename = "vhost-user", skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<VhostUser>,
    /// A TAP interface that the switch creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<Tap>,
    /// An existing interface, attached through a packet socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<Packet>,
    /// An existing interface, attached through AF_XDP. If the kernel or the driver refuses AF_XDP,
    /// the daemon uses a packet socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<Xdp>,
    /// Number of the worker that owns the port's queue pairs, 0 to 15. The worker's number is the
    /// index of its CPU in `cores`, and may change while frames flow. By default, the daemon
    /// spreads queue pairs over all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 15))]
    pub worker: Option<u16>,

    /// VLAN of an access port's untagged frames. Excludes `trunk`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// VLANs of a trunk port's tagged frames. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanList>,
    /// VLAN of a trunk port's untagged frames, one of `trunk`; default: none, the switch drops
    /// untagged frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Vlan>,
    /// Whether the port may send frames with one more VLAN tag than its own. The switch does not
    /// read headers behind a frame's second VLAN tag. With `qinq`, frames with tenants' tags may
    /// leave through an uplink that has no VLAN tags of its own. Excludes `ip`. Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qinq: bool,

    /// Source MAC addresses that the port may use. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mac: Vec<StationMac>,
    /// Source IP addresses that the port may use in IP, ARP and neighbour discovery. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub ip: Vec<IpAddr>,
    /// Limit on the slow-path frames that the port sends. The default is `{ per_second = 1000,
    /// burst = 64 }` for a port that belongs to a tenant, and no limit for other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_path: Option<SlowPath>,
    /// Policy that limits the frames that the port sends. Default `none`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ingress_policy: IngressPolicy,
    /// Cycles per second that the port purchased. The ingress policies `cycles-strict` and
    /// `cycles-minmax` guarantee the purchased cycles. By default, the cost model computes a port's
    /// cycles from its `contract`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<CyclesPerSecond>,
    /// Depth of the port's cycle bucket in cycles, 1000 to 1000000000000. If the port's cycle
    /// bucket is full, the port may spend all cycles of the bucket at once. While a port spends the
    /// cycles of a full bucket, ports of later classes wait. The default depth is the sum of 1 ms
    /// of `cycles` and 50 us of the core's cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_000, max = 1_000_000_000_000_u64))]
    pub depth: Option<u64>,
    /// Weight of the port for spare cycles, 1 to 10000. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cycle_weight: Weight,
    /// Latency class of the port, 1 (served first) to 8. Default 8.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Purchased rate of the port, and the traffic for which the rate holds. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// Limits on the frames that the port sends, under the policies `bps` and `pps`; default: the
    /// rate of `contract`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub police: Option<IngressPolicer>,
    /// Limits on the frames that the port receives; default: the port's part of the tenant's
    /// `receive`, by `uplink_share`. If neither the tenant nor the port has the key `receive`, the
    /// port's received frames are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<EgressPolicer>,
    /// Rate of an uplink's link in bits per second, 1M to 400G; default: none, the daemon does not
    /// watch the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<BitsPerSecond>,
    /// Shares of the frames that arrive through an uplink, by the tenants' `uplink_weight` and
    /// their ports' `uplink_share`. Default: none, the frames are not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound: Option<Inbound>,
    /// Order in which waiting frames leave through the port. The values `fair-share` and `wfq` are
    /// for shared ports, and `fq-codel` is for any port. A port with `link` sends no faster than
    /// its link. Default `fifo`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub egress: Egress,
    /// Queues of a port with `egress = "wfq"`, with their weights and code points; default: eight
    /// queues of weight 1, all frames in queue 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wfq: Option<Wfq>,
    /// Limits on the frames that wait for the port in its queue. If `queue` is absent, frames wait
    /// only if `egress` is not `"fifo"`, or under `shape.receive` or a limit `receive`, with
    /// default limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Rates of the port's shapers, which delay frames that exceed these rates. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Weight of the port among its tenant's ports, 1 to 10000. The ports of a tenant share the
    /// tenant's part of a `fair-share` output or of `inbound`, and its `receive`, by this weight.
    /// Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_share: Weight,
    /// RTP streams to the port whose jitter the switch measures, at most 8. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rtp: Vec<RtpStream>,
    /// Port that gets copies of the port's frames. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
    /// Name of the `[[vm]]` behind the port. When the switch delivers a frame to the port, the
    /// switch notifies the VM's vCPU scheduler. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
}

impl Port {
    /// Returns a port with this name, this attachment and defaults for all other keys.
    #[must_use]
    pub fn new(name: impl Into<String>, attachment: impl Into<Attachment>) -> Self {
        let mut port = Self { name: name.into(), ..Self::default() };
        match attachment.into() {
            Attachment::VhostUser(of) => port.vhost_user = Some(of),
            Attachment::Tap(of) => port.tap = Some(of),
            Attachment::Packet(of) => port.packet = Some(of),
            Attachment::Xdp(of) => port.xdp = Some(of),
        }
        port
    }

    /// The port's attachment. `None` if the port has no attachment or several attachments. After
    /// the check of a configuration, each port has exactly one attachment.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        let mut given = self.attachments().into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }

    /// All attachments of the port, in the order of [`Attachment::TYPES`].
    pub(super) fn attachments(&self) -> [Option<Attachment>; 4] {
        [
            self.vhost_user.clone().map(Attachment::VhostUser),
            self.tap.clone().map(Attachment::Tap),
            self.packet.clone().map(Attachment::Packet),
            self.xdp.clone().map(Attachment::Xdp),
        ]
    }

    /// Returns the port's VLANs as text, such as `access 100`, `trunk 1,5-9 native 1` or
    /// `untagged`.
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

/// `[[fdb]]`: a static MAC address, which the switch need not learn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FdbStatic {
    /// Name of the tenant that owns the address's network; default: the port's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// VLAN of the network of the address; default: the untagged network, or an access port's VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    pub mac: StationMac,
    /// Name of the port behind which the address is.
    pub port: String,
}
