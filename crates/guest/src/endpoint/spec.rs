//! Parameters of an endpoint process, as plain data.

use std::path::PathBuf;

use crate::driver::SocketMode;
use crate::mac::Mac;

/// One NIC: a TAP in a namespace behind a vhost-user port.
#[derive(Debug, Clone)]
pub struct NicSpec {
    /// Name of the namespace under `/run/netns`; `None` is the namespace of the process.
    pub netns: Option<String>,
    /// Name of the TAP inside the namespace.
    pub interface: String,
    /// Path of the vhost-user socket.
    pub socket: PathBuf,
    pub mode: SocketMode,
    /// MAC address of the interface; `None` leaves the kernel's choice.
    pub mac: Option<Mac>,
    /// IP address with prefix length, such as `10.0.0.1/24`; `None` for none.
    pub ip: Option<String>,
    /// Largest IP packet without segmentation, in bytes.
    pub mtu: u16,
    /// Whether checksum and TSO are offered to the stack, as far as the switch supports them.
    pub offloads: bool,
    /// Number of queue pairs.
    pub queues: u16,
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Whether frames may span several receive buffers.
    pub mergeable: bool,
    /// Whether the rings are packed. The switch must offer this.
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
    pub nics: Vec<NicSpec>,
    /// Whether missing namespaces are made, and removed at the end.
    pub create_netns: bool,
    /// Seconds between reports; `None` for none.
    pub stats_interval_secs: Option<f64>,
    /// Microseconds of polling without a frame before the loop sleeps.
    pub spin_us: u64,
    /// The core to which the loop is pinned; `None` leaves it to the kernel.
    pub core: Option<usize>,
}
