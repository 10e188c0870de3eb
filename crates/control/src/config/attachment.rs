//! What a port attaches to, by its type: the keys of [`Port`] that the type knows, with their
//! defaults filled in.

use std::path::PathBuf;

use super::model::{Offloads, Port, PortKind, SocketMode, ZeroCopy};

/// An attachment: when it changes, the port is attached anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attachment {
    /// A virtual machine's virtio-net device.
    VhostUser {
        /// Path of the socket.
        socket: PathBuf,
        /// Who listens.
        mode: SocketMode,
        /// Queue pairs, 1 to 8.
        queues: u16,
        /// What the far side may be left to finish.
        offloads: Offloads,
        /// File mode of the socket.
        socket_mode: u32,
        /// Owner of the socket.
        owner: Option<String>,
        /// Group of the socket.
        group: Option<String>,
    },
    /// A TAP interface.
    Tap {
        /// Its name.
        interface: String,
        /// Its network namespace.
        netns: Option<String>,
        /// Queue pairs, 1 to 8.
        queues: u16,
        /// What the far side may be left to finish.
        offloads: Offloads,
        /// Its MTU.
        mtu: Option<u32>,
    },
    /// An existing interface.
    Packet {
        /// Its name.
        interface: String,
        /// Its network namespace.
        netns: Option<String>,
        /// What the far side may be left to finish.
        offloads: Offloads,
    },
    /// An existing interface, by AF_XDP if that can be had.
    Xdp {
        /// Its name.
        interface: String,
        /// Its network namespace.
        netns: Option<String>,
        /// Queues of it, 1 to 8.
        queues: u16,
        /// Whether frames may lie where the NIC puts them.
        zero_copy: ZeroCopy,
    },
}

impl Attachment {
    /// Queue pairs.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        match self {
            Self::VhostUser { queues, .. }
            | Self::Tap { queues, .. }
            | Self::Xdp { queues, .. } => *queues,
            Self::Packet { .. } => 1,
        }
    }

    /// The socket's path or the interface's name, with its namespace.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::VhostUser { socket, .. } => socket.display().to_string(),
            Self::Tap { interface, netns, .. }
            | Self::Packet { interface, netns, .. }
            | Self::Xdp { interface, netns, .. } => match netns {
                Some(netns) => format!("{interface}@{netns}"),
                None => interface.clone(),
            },
        }
    }
}

impl Port {
    /// What the port attaches to; `None` while the key its type needs (`socket`, `interface`) is
    /// missing, which no checked configuration has.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        let queues = self.queues.unwrap_or(1);
        let offloads = self.offloads.unwrap_or_default();
        let netns = self.netns.clone();
        Some(match self.kind {
            PortKind::VhostUser => Attachment::VhostUser {
                socket: self.socket.clone()?,
                mode: self.mode.unwrap_or_default(),
                queues,
                offloads,
                socket_mode: self.socket_mode.map_or(0o600, |mode| mode.0),
                owner: self.socket_owner.clone(),
                group: self.socket_group.clone(),
            },
            PortKind::Tap => Attachment::Tap {
                interface: self.interface.clone()?,
                netns,
                queues,
                offloads,
                mtu: self.mtu,
            },
            PortKind::Packet => {
                Attachment::Packet { interface: self.interface.clone()?, netns, offloads }
            }
            PortKind::Xdp => Attachment::Xdp {
                interface: self.interface.clone()?,
                netns,
                queues,
                zero_copy: self.zero_copy.unwrap_or_default(),
            },
        })
    }
}
