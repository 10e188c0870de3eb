//! The outside of a switch in benchmarks and live figures ([`Outside`]): the hops of a frame that
//! leaves the switch through one uplink and returns through another.
//!
//! Frames from VM a leave the switch through one interface, cross the kernel once, return through
//! another interface, and go to VM b. Frames from VM b to VM a take the opposite way. A frame
//! passes one sending and one receiving uplink, and the worker processes the frame twice.

use std::net::Ipv4Addr;

use anyhow::{Context as _, ensure};

use super::switch::{PairVm, VM_A, VM_B};
use penstock_guest::bed::Bed;
use penstock_guest::bed::outside::ENDS;
pub(crate) use penstock_guest::bed::outside::Outside;
pub use penstock_guest::bed::outside::Through;
use penstock_guest::mac::Mac;

/// MAC and IP address of a station behind an uplink. No interface has the station's MAC and IP
/// address.
pub(crate) const STATION: (Mac, Ipv4Addr) =
    (Mac([0x52, 0x54, 0, 0, 6, 1]), Ipv4Addr::new(10, 255, 255, 1));

/// Next hops of frames: the port at which a frame enters, the port at which the frame leaves, and
/// the destination VM.
pub(crate) const HOPS: [(&str, &str, PairVm); 4] =
    [("a", "u0", VM_B), ("u1", "b", VM_B), ("b", "u1", VM_A), ("u0", "a", VM_A)];

/// Returns the arguments of `ovs-vsctl` that make an interface a port of OVS.
pub(super) fn in_ovs(way: Through, interface: &str) -> String {
    match way {
        Through::Xdp => "type=afxdp options:n_rxq=1".to_owned(),
        Through::Packet => format!(
            "type=dpdk options:dpdk-devargs=eth_af_packet_{interface},iface={interface},\
             qpairs=1,qdisc_bypass=1,blocksz=65536,framesz=2048,framecnt=4096"
        ),
        Through::Tap => {
            // OVS requires as many receive queues as it has sending threads.
            format!(
                "type=dpdk options:n_rxq=2 \
                 options:dpdk-devargs=net_tap_{interface},iface={interface}"
            )
        }
    }
}

/// Creates a path on which frames leave the switch through one interface and return through another
/// interface.
pub(super) fn make(bed: &Bed, way: Through, of: &str) -> anyhow::Result<Outside> {
    Outside::create(bed.guard(), way, netns(of), &ENDS)
}

/// Creates a path that leaves the switch through one AF_XDP uplink.
pub(crate) fn uplink(bed: &Bed, of: &str) -> anyhow::Result<Outside> {
    check_uplink()?;
    Outside::create(bed.guard(), Through::Xdp, netns(of), &ENDS[..1]).context(
        "uplink: a veth in a network namespace cannot be made; it needs CAP_SYS_ADMIN and \
         CAP_NET_ADMIN, which root has outside a container; or leave --uplink out",
    )
}

/// Returns the name of a network namespace of this process.
fn netns(of: &str) -> String {
    format!("pb{}-{of}", std::process::id())
}

/// Checks whether an uplink can be created on this machine.
///
/// # Errors
///
/// Returns an error with the remedy if this process is not root.
pub(crate) fn check_uplink() -> anyhow::Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "uplink: needs root for a network namespace and AF_XDP; run as root, or leave --uplink out"
    );
    Ok(())
}
