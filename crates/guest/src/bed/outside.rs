//! Interfaces outside a switch under test: a network namespace with the two ends of a veth, or with
//! TAPs that the switch creates.
//!
//! # Approach
//!
//! Frames leave the switch through one interface, cross the kernel once, and return through another
//! interface. Measurements over uplinks are therefore comparable with measurements of frames
//! between VMs. In the network namespace no other program sends.
//!
//! With a single uplink, frames take only the first half of the path. One end of a veth is a port
//! of the switch. At the other end, the kernel counts and drops the frames, because no station has
//! their destination address.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::Guard;
use super::guard::Ward;
use super::process::ask;
use crate::load::Arrived;
use crate::mac::Mac;

/// Type of the ports through which frames leave the switch.
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
pub const ENDS: [&str; 2] = ["u0", "u1"];

impl Through {
    /// Returns the name of the port type in reports and in Penstock's configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Packet => "packet",
            Self::Tap => "tap",
        }
    }
}

/// Network namespace with the interfaces of a switch's uplinks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outside {
    pub way: Through,
    pub netns: String,
    /// Names of the interfaces that are ports of the switch.
    pub ends: &'static [&'static str],
}

impl Outside {
    /// Creates the network namespace `netns`, and a veth if `way` uses a veth. The guard removes
    /// the namespace at the end.
    ///
    /// # Errors
    /// Returns an error if `ip` cannot create an object, for example for want of privileges.
    pub fn create(
        guard: &Guard,
        way: Through,
        netns: String,
        ends: &'static [&'static str],
    ) -> anyhow::Result<Self> {
        guard.take(&Ward::Netns(netns.clone()))?;
        ask(Command::new("ip").args(["netns", "add", &netns]))?;
        let outside = Self { way, netns, ends };
        outside.ip("link set lo up")?;
        // IPv6 is disabled, so that only the measurement sends.
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

    /// Gives the veth's other end the addresses `station`, and adds its neighbours behind the
    /// switch, so that programs in the network namespace can send to them without ARP. Frames of
    /// the station have complete checksums, like frames from a NIC.
    ///
    /// # Errors
    /// Returns an error if `ip` or `ethtool` fails.
    pub fn inhabit(
        &self,
        station: (Mac, Ipv4Addr),
        neighbours: &[(Mac, Ipv4Addr)],
    ) -> anyhow::Result<()> {
        let ((mac, address), end) = (station, ENDS[1]);
        let in_there = ["netns", "exec", &self.netns];
        ask(Command::new("ip").args(in_there).args(["ethtool", "-K", end, "tx", "off"]))?;
        self.ip(&format!("link set {end} address {mac}"))?;
        self.ip(&format!("address add {address}/8 dev {end}"))?;
        let add = |(mac, ip): &(Mac, Ipv4Addr)| {
            self.ip(&format!("neighbour replace {ip} lladdr {mac} dev {end}"))
        };
        neighbours.iter().try_for_each(add)
    }

    fn ip(&self, words: &str) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        ask(command.args(["-n", &self.netns]).args(words.split_whitespace())).map(drop)
    }

    /// Connects the switch's two TAPs by a bridge. Call this function after the switch has created
    /// its ports. The call does nothing if the two uplinks are the ends of a veth.
    ///
    /// # Errors
    /// Returns an error if `ip` cannot create the bridge.
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
    #[must_use]
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
    ///
    /// # Errors
    /// Returns an error if the veth does not exist.
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
}
