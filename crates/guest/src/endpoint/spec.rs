//! Defines the parameters of an endpoint process.

use std::path::PathBuf;

use crate::driver::SocketMode;
use crate::mac::Mac;

/// Parameters of a NIC: a TAP in a network namespace behind a vhost-user port.
#[derive(Debug, Clone)]
pub struct NicSpec {
    /// Name of the network namespace under `/run/netns`; `None` means the namespace of the endpoint
    /// process.
    pub netns: Option<String>,
    /// Name of the TAP inside the namespace.
    pub interface: String,
    /// Path of the vhost-user socket.
    pub socket: PathBuf,
    pub mode: SocketMode,
    /// MAC address of the interface. With `None`, the kernel chooses the MAC address.
    pub mac: Option<Mac>,
    /// IP address with prefix length, such as `10.0.0.1/24`; `None` means no address.
    pub ip: Option<String>,
    /// Largest IP packet without segmentation, in bytes.
    pub mtu: u16,
    /// Whether the namespace's network stack may use the checksum and TSO offloads that the switch
    /// supports.
    pub offloads: bool,
    /// Number of queue pairs of the NIC.
    pub queues: u16,
    /// Number of descriptors of each ring.
    pub ring_size: u16,
    /// Whether a frame may span several receive buffers.
    pub mergeable: bool,
    /// Whether the rings are packed. If `packed` is true, the switch must support packed rings.
    pub packed: bool,
    /// Time for which each frame from the switch waits before the namespace gets the frame, in
    /// microseconds.
    pub delay_us: u32,
}

impl NicSpec {
    /// Returns the NIC's name in reports, which consists of the namespace and the interface.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.netns {
            Some(netns) => format!("{netns}/{}", self.interface),
            None => self.interface.clone(),
        }
    }
}

/// Parameters of an endpoint process: its NICs and its settings.
#[derive(Debug, Clone)]
pub struct EndpointSpec {
    pub nics: Vec<NicSpec>,
    /// Whether the endpoint creates missing namespaces, and removes them at the end.
    pub create_netns: bool,
    /// Seconds between two reports of the counters; `None` means no reports.
    pub stats_interval_secs: Option<f64>,
    /// Time for which the loop polls without a frame before it sleeps, in microseconds.
    pub spin_us: u64,
    /// CPU core to which the endpoint's loop is pinned. With `None`, the kernel chooses the CPU.
    pub core: Option<usize>,
}
