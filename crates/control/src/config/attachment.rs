//! The attachment of a port: its connection to a virtual machine or to a network interface. Each
//! type of attachment has a table with its own keys.

use core::fmt;
use std::path::PathBuf;

use penstock_toml::text::is_default;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::vlan::FileMode;

/// Number of queue pairs of an attachment, 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Queues(#[schemars(range(min = 1, max = 8))] pub u16);

impl Default for Queues {
    fn default() -> Self {
        Self(1)
    }
}

/// `vhost-user`: a virtual machine's virtio-net device behind a unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { socket = \"/run/penstock/vm1.sock\" }")]
pub struct VhostUser {
    /// Path of the socket, at most 107 bytes.
    pub socket: PathBuf,
    /// Role of the switch at the socket: as `server`, the switch listens; as `client`, the switch
    /// connects. Default `server`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: SocketMode,
    /// Number of queue pairs, 1 to 8. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queues: Queues,
    /// Offloads of checksums and segmentation to the virtual machine. Default `true`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offloads: Offloads,
    /// Whether the guest's driver waits for interrupts, as Linux's does, instead of polling. The
    /// switch serves both; the key is for the price of frames to the guest. Default `false`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub interrupts: bool,
    /// File mode of the socket, only with `mode = "server"`. Default `"0600"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<FileMode>,
    /// Owner of the socket, as user name or number, only with `mode = "server"`; default: the
    /// daemon's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Group of the socket, as name or number, only with `mode = "server"`; default: the daemon's
    /// group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
}

impl VhostUser {
    /// Returns a device with one queue pair, on a unix socket on which the switch listens.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), ..Self::default() }
    }
}

/// `tap`: a TAP interface that the switch creates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { interface = \"tap0\" }")]
pub struct Tap {
    /// Name of the interface, at most 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name under `/run/netns`, or a path; default: the
    /// daemon's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Number of queue pairs, 1 to 8. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queues: Queues,
    /// Offloads of checksums and segmentation to the kernel. Default `true`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offloads: Offloads,
    /// MTU of the interface, 68 to 65521; default: the kernel's default, 1500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 68, max = 65521))]
    pub mtu: Option<u32>,
}

impl Tap {
    /// Returns a TAP interface with one queue pair, in the daemon's network namespace.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self { interface: interface.into(), ..Self::default() }
    }
}

/// `packet`: an existing interface, attached through a packet socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { interface = \"eth1\" }")]
pub struct Packet {
    /// Name of the interface, at most 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name under `/run/netns`, or a path; default: the
    /// daemon's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Offloads of checksums and segmentation to the kernel. Default `true`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offloads: Offloads,
}

impl Packet {
    /// Returns an existing interface in the daemon's network namespace, with a packet socket.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self { interface: interface.into(), ..Self::default() }
    }
}

/// `xdp`: an existing interface, attached through AF_XDP. If the kernel or the driver refuses
/// AF_XDP, the daemon uses a packet socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { interface = \"eth1\" }")]
pub struct Xdp {
    /// Name of the interface, at most 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name under `/run/netns`, or a path; default: the
    /// daemon's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Number of queues of the interface, 1 to 8. Default 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queues: Queues,
    /// Whether the NIC writes frames into the switch's memory directly. Default `auto`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub zero_copy: ZeroCopy,
}

impl Xdp {
    /// Returns an existing interface with one queue for AF_XDP, in the daemon's network namespace.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self { interface: interface.into(), ..Self::default() }
    }
}

/// Role of the switch at a vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SocketMode {
    /// The switch listens on the socket, and the virtual machine connects to the socket.
    #[default]
    Server,
    /// The switch connects to the VM's socket, and reconnects when the connection is lost.
    Client,
}

/// Whether the NIC of an `xdp` port writes frames into the switch's memory directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroCopy {
    /// The NIC writes frames into the switch's memory if its driver can; otherwise the kernel
    /// copies frames.
    #[default]
    Auto,
    /// The kernel always copies frames into the switch's memory.
    Never,
}

/// The value of `offloads` is `true`, `false`, or a table such as `{ csum = true, tso = false }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "OffloadsText", into = "OffloadsText")]
#[schemars(with = "OffloadsText")]
pub struct Offloads {
    /// Whether frames may pass with unfinished checksums.
    pub csum: bool,
    /// Whether TCP and UDP segments of up to 64 KiB pass uncut. Needs `csum`.
    pub tso: bool,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "invalid; write true, false or { csum = true, tso = false }")]
enum OffloadsText {
    All(bool),
    Each(OffloadsTable),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OffloadsTable {
    /// Whether frames may pass with unfinished checksums. Default `true`.
    #[serde(default = "yes")]
    csum: bool,
    /// Whether TCP segments of up to 64 KiB pass uncut. Needs `csum`. Default `true`.
    #[serde(default = "yes")]
    tso: bool,
}

const fn yes() -> bool {
    true
}

impl From<OffloadsText> for Offloads {
    fn from(text: OffloadsText) -> Self {
        match text {
            OffloadsText::All(all) => Self { csum: all, tso: all },
            OffloadsText::Each(OffloadsTable { csum, tso }) => Self { csum, tso },
        }
    }
}

impl From<Offloads> for OffloadsText {
    fn from(Offloads { csum, tso }: Offloads) -> Self {
        if csum == tso { Self::All(csum) } else { Self::Each(OffloadsTable { csum, tso }) }
    }
}

impl Default for Offloads {
    fn default() -> Self {
        Self { csum: true, tso: true }
    }
}

/// An attachment. If the attachment changes, the host attaches the port again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attachment {
    /// A virtual machine's virtio-net device, which the switch serves through vhost-user.
    VhostUser(VhostUser),
    /// A TAP interface that the switch creates.
    Tap(Tap),
    /// An existing network interface, which the switch uses through a packet socket.
    Packet(Packet),
    /// An existing network interface, through AF_XDP, or through a packet socket if AF_XDP is
    /// refused.
    Xdp(Xdp),
}

impl Attachment {
    /// Whether the switch serves both attachments in the same way, so that a port need not attach
    /// again. They may differ in [`VhostUser::interrupts`].
    #[must_use]
    pub fn is_served_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::VhostUser(one), Self::VhostUser(other)) => {
                VhostUser { interrupts: other.interrupts, ..one.clone() } == *other
            }
            _ => self == other,
        }
    }

    /// Names of the attachment types, which are also the keys of their tables.
    pub const TYPES: [&'static str; 4] = ["vhost-user", "tap", "packet", "xdp"];

    /// Name of the attachment's type, as in [`Self::TYPES`].
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::VhostUser(_) => "vhost-user",
            Self::Tap(_) => "tap",
            Self::Packet(_) => "packet",
            Self::Xdp(_) => "xdp",
        }
    }

    #[must_use]
    pub const fn queues(&self) -> u16 {
        match self {
            Self::VhostUser(VhostUser { queues, .. })
            | Self::Tap(Tap { queues, .. })
            | Self::Xdp(Xdp { queues, .. }) => queues.0,
            Self::Packet(_) => 1,
        }
    }

    /// Returns the attachment's offloads. An `xdp` port has no offloads.
    #[must_use]
    pub const fn offloads(&self) -> Offloads {
        match self {
            Self::VhostUser(VhostUser { offloads, .. })
            | Self::Tap(Tap { offloads, .. })
            | Self::Packet(Packet { offloads, .. }) => *offloads,
            Self::Xdp(_) => Offloads { csum: false, tso: false },
        }
    }

    /// The interface's name and its network namespace; `None` for `vhost-user`.
    #[must_use]
    pub fn interface(&self) -> Option<(&str, Option<&str>)> {
        match self {
            Self::VhostUser(_) => None,
            Self::Tap(Tap { interface, netns, .. })
            | Self::Packet(Packet { interface, netns, .. })
            | Self::Xdp(Xdp { interface, netns, .. }) => Some((interface, netns.as_deref())),
        }
    }

    /// The socket's path, or the interface's name with its network namespace.
    #[must_use]
    pub fn target(&self) -> String {
        match (self, self.interface()) {
            (Self::VhostUser(vhost), _) => vhost.socket.display().to_string(),
            (_, Some((interface, Some(netns)))) => format!("{interface}@{netns}"),
            (_, interface) => interface.map(|(name, _)| name.to_owned()).unwrap_or_default(),
        }
    }
}

macro_rules! from {
    ($($kind:ident),*) => {
        $(impl From<$kind> for Attachment {
            fn from(of: $kind) -> Self {
                Self::$kind(of)
            }
        })*
    };
}

from!(VhostUser, Tap, Packet, Xdp);

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_attachment_that_is_no_table_is_told_its_form() {
        for kind in ["vhost-user", "tap", "packet", "xdp"] {
            let text = format!("[host]\nname = \"h\"\n[[port]]\nname = \"p\"\n{kind} = 5\n");
            let errors = super::super::parse(&text, "").unwrap_err().to_string();
            assert!(errors.contains("5 is not valid; write a table such as {"), "{errors}");
        }
    }
}
