//! Parses the command line of `penstock endpoint`.

use std::str::FromStr;

use super::spec::{EndpointSpec, NicSpec};
use crate::driver::SocketMode;
use crate::keys::{KeyError, Keys};

/// Connects network namespaces to vhost-user ports. Programs in the namespaces use the kernel's
/// network stack and offloads.
#[derive(Debug, Clone, clap::Args)]
pub struct EndpointArgs {
    /// Add a NIC: `socket=PATH[,netns=NAME][,mode=client|server][,mac=MAC][,ip=ADDR/LEN]`
    /// `[,mtu=1500][,offloads=off][,queues=1][,if=eth0][,ring=256][,mrg=off][,packed=on]`
    /// `[,delay-us=0]`
    #[arg(long = "nic", required = true)]
    pub nics: Vec<NicSpec>,
    /// Create missing namespaces, and remove them at the end
    #[arg(long)]
    pub create_netns: bool,
    /// Seconds between JSON lines of counters on standard output. Default: none
    #[arg(long, value_name = "SECS")]
    pub stats_interval: Option<f64>,
    /// Microseconds to poll without a frame before sleeping
    #[arg(long, value_name = "US", default_value_t = 20)]
    pub spin_us: u64,
    /// CPU to which the endpoint is pinned. Default: any
    #[arg(long, value_name = "CPU")]
    pub core: Option<usize>,
}

impl EndpointArgs {
    /// Converts the arguments to the endpoint's parameters.
    #[must_use]
    pub fn spec(&self) -> EndpointSpec {
        EndpointSpec {
            nics: self.nics.clone(),
            create_netns: self.create_netns,
            stats_interval_secs: self.stats_interval.filter(|s| *s > 0.0),
            spin_us: self.spin_us,
            core: self.core,
        }
    }
}

/// Value of a command-line option that is either `on` or `off`.
struct OnOff(bool);

impl FromStr for OnOff {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on" => Ok(Self(true)),
            "off" => Ok(Self(false)),
            _ => Err("write `on` or `off`"),
        }
    }
}

/// A delay in microseconds, of at most a second.
struct Delay(u32);

impl FromStr for Delay {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let us = text.parse().ok().filter(|us| *us <= 1_000_000);
        us.map(Self).ok_or("write the microseconds that a received frame waits, 0 to 1000000")
    }
}

/// A validated interface address with its prefix length.
struct Prefix(String);

impl FromStr for Prefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = "write an address with its prefix length, such as 10.0.0.1/24";
        let (address, len) = text.split_once('/').ok_or(bad)?;
        let address: std::net::IpAddr = address.parse().map_err(|_| bad)?;
        let len: u8 = len.parse().map_err(|_| bad)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if len <= most { Ok(Self(text.to_owned())) } else { Err(bad) }
    }
}

impl FromStr for NicSpec {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut keys = Keys::parse(text, &[])?;
        let nic = Self {
            socket: keys.required("socket")?,
            netns: keys.optional("netns")?,
            interface: keys.optional("if")?.unwrap_or_else(|| "eth0".to_owned()),
            mode: keys.optional("mode")?.unwrap_or(SocketMode::Client),
            mac: keys.optional("mac")?,
            ip: keys.optional::<Prefix>("ip")?.map(|p| p.0),
            mtu: keys.optional("mtu")?.unwrap_or(1500),
            offloads: keys.optional::<OnOff>("offloads")?.is_none_or(|s| s.0),
            queues: keys.optional("queues")?.unwrap_or(1),
            ring_size: keys.optional("ring")?.unwrap_or(256),
            mergeable: keys.optional::<OnOff>("mrg")?.is_none_or(|s| s.0),
            packed: keys.optional::<OnOff>("packed")?.is_some_and(|s| s.0),
            delay_us: keys.optional::<Delay>("delay-us")?.map_or(0, |delay| delay.0),
        };
        keys.finish()?;
        Ok(nic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_nic_is_read_and_errors_name_the_key() {
        let nic: NicSpec =
            "netns=red1,socket=/p/vm1.sock,mode=server,mac=52:54:00:00:00:01,ip=10.0.0.1/24,\
             mtu=9000,offloads=off,queues=2,packed=on,delay-us=2500"
                .parse()
                .unwrap();
        assert_eq!((nic.name().as_str(), nic.mtu, nic.offloads), ("red1/eth0", 9000, false));
        assert_eq!((nic.mode, nic.queues, nic.mergeable), (SocketMode::Server, 2, true));
        assert_eq!(nic.delay_us, 2_500);
        assert!(nic.packed && !"socket=/a".parse::<NicSpec>().unwrap().packed);
        let error = |text: &str| text.parse::<NicSpec>().unwrap_err().to_string();
        assert_eq!(error("netns=a"), "`netns=a`: socket is missing");
        assert!(
            error("socket=/a,ip=10.0.0.1")
                .ends_with("write an address with its prefix length, such as 10.0.0.1/24")
        );
        assert!(error("socket=/a,offloads=maybe").ends_with("write `on` or `off`"));
        assert!(error("socket=/a,delay-us=1000001").ends_with("0 to 1000000"));
    }
}
