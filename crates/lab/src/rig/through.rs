//! A path out of the switch and back in. It measures the cost of uplinks in the same way as a path
//! from VM to VM.
//!
//! # Approach
//!
//! Frames from VM a leave the switch by an interface, cross the kernel once, come in by another,
//! and go to VM b. Frames from b to a go the other way. So generator, sockets, counting and loss
//! are the same as between VMs. A frame passes one sending and one receiving uplink, and the worker
//! takes it twice. The interfaces are the two ends of a veth, or two TAPs on a bridge of the
//! kernel. They are in a namespace of their own, where nothing else sends.

use std::process::Command;

use serde_json::{Map, Value};

use super::switch::{PairVm, VM_A, VM_B};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Ward;
use penstock_guest::bed::process::ask;

/// How the switch attaches the interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Through {
    /// Penstock: AF_XDP ports on a veth. OVS-DPDK (`--peer`): `afxdp` ports
    Xdp,
    /// Penstock: AF_PACKET ports on a veth. OVS-DPDK: DPDK's `eth_af_packet`
    Packet,
    /// Penstock: TAP ports on a kernel bridge. OVS-DPDK: DPDK's `net_tap`
    Tap,
}

/// The ports of the interfaces.
pub(crate) const ENDS: [&str; 2] = ["u0", "u1"];

/// Where frames go from each port: the port, the next port, and the VM that gets the frames.
pub(crate) const HOPS: [(&str, &str, PairVm); 4] =
    [("a", "u0", VM_B), ("u1", "b", VM_B), ("b", "u1", VM_A), ("u0", "a", VM_A)];

impl Through {
    /// Name in reports and in Penstock's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Packet => "packet",
            Self::Tap => "tap",
        }
    }

    /// Arguments that make an interface a port of OVS.
    pub fn in_ovs(self, interface: &str) -> String {
        match self {
            Self::Xdp => "type=afxdp options:n_rxq=1".to_owned(),
            Self::Packet => format!(
                "type=dpdk options:dpdk-devargs=eth_af_packet_{interface},iface={interface},\
                 qpairs=1,qdisc_bypass=1,blocksz=65536,framesz=2048,framecnt=4096"
            ),
            Self::Tap => {
                // OVS requires as many receive queues as it has threads that send.
                format!(
                    "type=dpdk options:n_rxq=2 \
                     options:dpdk-devargs=net_tap_{interface},iface={interface}"
                )
            }
        }
    }
}

/// The namespace of a switch's interfaces.
#[derive(Debug, Clone)]
pub(crate) struct Outside {
    pub way: Through,
    pub netns: String,
}

impl Outside {
    /// Creates the namespace, and the veth if `way` uses one. The guard removes the namespace.
    pub fn make(bed: &Bed, way: Through, of: &str) -> anyhow::Result<Self> {
        let netns = format!("pb{}-{of}", std::process::id());
        bed.guard().take(&Ward::Netns(netns.clone()))?;
        ask(Command::new("ip").args(["netns", "add", &netns]))?;
        let outside = Self { way, netns };
        outside.ip("link set lo up")?;
        // Only the benchmark sends.
        let quiet = ["all", "default"].map(|of| format!("net.ipv6.conf.{of}.disable_ipv6=1"));
        let in_there = ["netns", "exec", &outside.netns, "sysctl", "-qw"];
        ask(Command::new("ip").args(in_there).args(quiet))?;
        if way != Through::Tap {
            let [one, other] = ENDS;
            outside.ip(&format!("link add {one} type veth peer name {other}"))?;
            for end in ENDS {
                outside.ip(&format!("link set {end} up"))?;
            }
        }
        Ok(outside)
    }

    fn ip(&self, words: &str) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        ask(command.args(["-n", &self.netns]).args(words.split_whitespace())).map(drop)
    }

    /// Joins the TAPs, once the switch has its ports.
    pub fn join(&self) -> anyhow::Result<()> {
        if self.way != Through::Tap {
            return Ok(());
        }
        self.ip("link add bridge type bridge forward_delay 0 mcast_snooping 0")?;
        for end in ENDS {
            self.ip(&format!("link set {end} master bridge up"))?;
        }
        self.ip("link set bridge up")
    }

    pub fn describe(&self, platform: &mut Map<String, Value>) {
        platform.insert("through".into(), self.way.name().into());
    }
}
