//! A path that leaves the switch through one uplink and returns through another. Benchmarks send
//! frames over this path to measure the cost of uplinks.
//!
//! # Approach
//!
//! Frames from VM a leave the switch through one interface, cross the kernel once, return through
//! another interface, and go to VM b. Frames from VM b to VM a take the opposite way. Measurements
//! over uplinks are therefore comparable with measurements of frames between VMs. A frame passes
//! one sending and one receiving uplink, and the worker processes the frame twice. The interfaces
//! are the two ends of a veth, or two TAPs on a bridge of the kernel. The interfaces are in a
//! separate network namespace, in which no other program sends.
//!
//! With a single uplink, frames take only the first half of the path. One end of a veth is a port
//! of the switch. At the other end, the kernel counts and drops the frames, because no station has
//! their destination address.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value};

use super::switch::{PairVm, VM_A, VM_B};
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::Ward;
use penstock_guest::bed::process::ask;
use penstock_guest::load::Arrived;
use penstock_guest::mac::Mac;

/// MAC and IP address of a station behind an uplink. No interface has the station's MAC and IP
/// address.
pub(crate) const STATION: (Mac, Ipv4Addr) =
    (Mac([0x52, 0x54, 0, 0, 6, 1]), Ipv4Addr::new(10, 255, 255, 1));

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Through {
    /// Penstock uses AF_XDP ports on a veth; OVS-DPDK (`--peer`) uses `afxdp` ports
    Xdp,
    /// Penstock uses AF_PACKET ports on a veth; OVS-DPDK uses DPDK's `eth_af_packet`
    Packet,
    /// Penstock uses TAP ports on a kernel bridge; OVS-DPDK uses DPDK's `net_tap`
    Tap,
}

/// Names of the two uplink ports and of their interfaces.
pub(crate) const ENDS: [&str; 2] = ["u0", "u1"];

/// Next hops of frames: the port at which a frame enters, the port at which the frame leaves, and
/// the destination VM.
pub(crate) const HOPS: [(&str, &str, PairVm); 4] =
    [("a", "u0", VM_B), ("u1", "b", VM_B), ("b", "u1", VM_A), ("u0", "a", VM_A)];

impl Through {
    /// Returns the name of the port type in reports and in Penstock's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Packet => "packet",
            Self::Tap => "tap",
        }
    }

    /// Returns the arguments of `ovs-vsctl` that make an interface a port of OVS.
    pub fn in_ovs(self, interface: &str) -> String {
        match self {
            Self::Xdp => "type=afxdp options:n_rxq=1".to_owned(),
            Self::Packet => format!(
                "type=dpdk options:dpdk-devargs=eth_af_packet_{interface},iface={interface},\
                 qpairs=1,qdisc_bypass=1,blocksz=65536,framesz=2048,framecnt=4096"
            ),
            Self::Tap => {
                // OVS requires as many receive queues as it has sending threads.
                format!(
                    "type=dpdk options:n_rxq=2 \
                     options:dpdk-devargs=net_tap_{interface},iface={interface}"
                )
            }
        }
    }
}

/// Network namespace with the interfaces of a switch's uplinks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outside {
    pub way: Through,
    pub netns: String,
    /// Names of the interfaces that are ports of the switch.
    pub ends: &'static [&'static str],
}

impl Outside {
    /// Creates a path on which frames leave the switch through one interface and return through
    /// another interface.
    pub fn make(bed: &Bed, way: Through, of: &str) -> anyhow::Result<Self> {
        Self::create(bed, way, of, &ENDS)
    }

    /// Creates a path that leaves the switch through one AF_XDP uplink.
    pub fn uplink(bed: &Bed, of: &str) -> anyhow::Result<Self> {
        check_uplink()?;
        Self::create(bed, Through::Xdp, of, &ENDS[..1]).context(
            "uplink: a veth in a network namespace cannot be made; it needs CAP_SYS_ADMIN and \
             CAP_NET_ADMIN, which root has outside a container; or leave --uplink out",
        )
    }

    /// Creates the network namespace, and a veth if `way` uses a veth. The guard removes the
    /// namespace at the end of the benchmark.
    fn create(
        bed: &Bed,
        way: Through,
        of: &str,
        ends: &'static [&'static str],
    ) -> anyhow::Result<Self> {
        let netns = format!("pb{}-{of}", std::process::id());
        bed.guard().take(&Ward::Netns(netns.clone()))?;
        ask(Command::new("ip").args(["netns", "add", &netns]))?;
        let outside = Self { way, netns, ends };
        outside.ip("link set lo up")?;
        // IPv6 is disabled, so that only the benchmark sends.
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

    /// Connects the switch's two TAPs by a bridge. Call this function after the switch has created
    /// its ports. The call does nothing if the two uplinks are the ends of a veth.
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

    /// Returns the uplink ports for Penstock's configuration, with `more` lines in the table of
    /// each port. The ports do not flood frames, because a flooded frame would circulate for ever.
    pub fn ports(&self, more: &str) -> String {
        let (kind, netns) = (self.way.name(), &self.netns);
        let port = |end: &&str| {
            format!(
                "\n[[port]]\nname = \"{end}\"\n{kind}.interface = \"{end}\"\n\
                 {kind}.netns = \"{netns}\"\n{more}"
            )
        };
        let ports: String = self.ends.iter().map(port).collect();
        ports + "\n[[rule]]\nname = \"rest\"\npriority = 1\nmatch = {}\nactions = [\"drop\"]\n"
    }

    /// Returns the counts of frames and bytes that arrived at the veth's other end.
    pub fn arrived(&self) -> anyhow::Result<Arrived> {
        let words = ["-n", &self.netns, "-s", "-j", "link", "show", "dev", ENDS[1]];
        let told = ask(Command::new("ip").args(words))?;
        let told: Value = serde_json::from_str(&told).context("reading the answer of ip")?;
        let count = |name: &str| {
            let counter = told[0]["stats64"]["rx"][name].as_u64();
            counter.with_context(|| format!("interface {}: no counter rx {name}", ENDS[1]))
        };
        Ok(Arrived { frames: count("packets")?, bytes: count("bytes")? })
    }

    pub fn describe(&self, platform: &mut Map<String, Value>) {
        platform.insert("through".into(), self.way.name().into());
    }
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
