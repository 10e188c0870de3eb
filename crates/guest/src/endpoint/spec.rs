//! What an endpoint process serves, as plain data.

use std::path::PathBuf;

use crate::driver::SocketMode;
use crate::mac::Mac;

/// One NIC: a TAP in a namespace behind a vhost-user port.
#[derive(Debug, Clone)]
pub struct NicSpec {
    /// The namespace's name under `/run/netns`; `None` for the one we run in.
    pub netns: Option<String>,
    /// The TAP's name inside it.
    pub interface: String,
    /// The vhost-user socket.
    pub socket: PathBuf,
    /// Who listens on the socket.
    pub mode: SocketMode,
    /// Address of the interface; `None` leaves the kernel's choice.
    pub mac: Option<Mac>,
    /// IP address with prefix length, `10.0.0.1/24`; `None` for none.
    pub ip: Option<String>,
    /// Largest IP packet without segmentation.
    pub mtu: u16,
    /// Whether checksum and TSO are offered to the stack as far as the switch has them.
    pub offloads: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Whether frames may span several receive buffers.
    pub mergeable: bool,
    /// Whether the rings are packed; the switch must offer that.
    pub packed: bool,
}

impl NicSpec {
    /// The name used in reports: namespace and interface.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.netns {
            Some(netns) => format!("{netns}/{}", self.interface),
            None => self.interface.clone(),
        }
    }
}

/// All NICs of one process.
#[derive(Debug, Clone)]
pub struct EndpointSpec {
    /// The NICs.
    pub nics: Vec<NicSpec>,
    /// Whether namespaces that do not exist are made, and removed at the end.
    pub create_netns: bool,
    /// Seconds between reports; `None` for none.
    pub stats_interval_secs: Option<f64>,
    /// How long to poll without a frame before sleeping, in microseconds.
    pub spin_us: u64,
    /// The core the loop is pinned to.
    pub core: Option<usize>,
}
