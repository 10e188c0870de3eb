//! What a load run consists of, as plain data.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::driver::{DriverConfig, Features, SocketMode};
use crate::mac::Mac;

/// Least and greatest size of a frame, FCS included.
pub(crate) const SIZES: std::ops::RangeInclusive<u16> = 64..=9018;

/// How fast a VM sends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// As fast as the ring takes frames.
    #[default]
    Max,
    /// Frames a second.
    Frames(f64),
    /// Bits a second, FCS included.
    Bits(f64),
    /// Nothing.
    Stop,
}

/// Frame sizes (FCS included) and their weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeMix(
    /// (size, weight), at least one.
    pub Vec<(u16, u16)>,
);

impl SizeMix {
    /// One size.
    #[must_use]
    pub fn fixed(size: u16) -> Self {
        Self(vec![(size, 1)])
    }

    /// The simple Internet mix: 7 of 64, 4 of 594, 1 of 1518 bytes.
    #[must_use]
    pub fn imix() -> Self {
        Self(vec![(64, 7), (594, 4), (1518, 1)])
    }

    /// Indices into the mix, spread evenly, one turn of all weights.
    #[must_use]
    pub fn schedule(&self) -> Vec<usize> {
        let total: i64 = self.0.iter().map(|(_, w)| i64::from(*w)).sum();
        let mut credit = vec![0_i64; self.0.len()];
        (0..total)
            .map(|_| {
                for (c, (_, weight)) in credit.iter_mut().zip(&self.0) {
                    *c += i64::from(*weight);
                }
                // The first of the largest, so that a run repeats.
                let best = (0..credit.len()).rev().max_by_key(|i| credit[*i]).unwrap_or(0);
                credit[best] -= total;
                best
            })
            .collect()
    }

    /// The largest size.
    #[must_use]
    pub fn largest(&self) -> u16 {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or(64)
    }
}

/// A change during the run; what is `None` stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Phase {
    /// When, in seconds from the start.
    pub at_secs: f64,
    /// The new rate.
    pub rate: Option<Rate>,
    /// The new sizes.
    pub sizes: Option<SizeMix>,
    /// The new number of flows.
    pub flows: Option<u32>,
}

/// One VM. Every VM drains and counts what arrives; one with `to` also sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VmSpec {
    /// Its name.
    pub name: String,
    /// Its vhost-user socket.
    pub socket: PathBuf,
    /// Who listens on the socket.
    pub mode: SocketMode,
    /// Its address.
    pub mac: Mac,
    /// Its IP address.
    pub ip: Ipv4Addr,
    /// The VM it sends to.
    pub to: Option<String>,
    /// How fast it sends.
    pub rate: Rate,
    /// Frame sizes.
    pub sizes: SizeMix,
    /// Flows: the UDP source port varies, beyond 32,768 flows the source address too.
    pub flows: u32,
    /// VLAN tag, included in the size.
    pub vlan: Option<u16>,
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Feature bits taken when offered.
    pub wanted: Features,
    /// Changes, in order of time.
    pub phases: Vec<Phase>,
    /// Whether each frame carries the time at which it was sent; without `touch` only.
    #[serde(default)]
    pub stamped: bool,
}

impl VmSpec {
    /// A VM that receives only, with the driver's defaults.
    #[must_use]
    pub fn new(name: &str, socket: impl Into<PathBuf>, mac: Mac, ip: Ipv4Addr) -> Self {
        let socket = socket.into();
        let driver = DriverConfig::new(&socket);
        Self {
            name: name.to_owned(),
            socket,
            mode: driver.mode,
            mac,
            ip,
            to: None,
            rate: Rate::Max,
            sizes: SizeMix::fixed(64),
            flows: 1,
            vlan: None,
            ring_size: driver.ring_size,
            wanted: driver.wanted,
            phases: Vec::new(),
            stamped: false,
        }
    }

    /// The largest frame of any phase, as it is in the ring.
    pub(crate) fn largest_frame(&self) -> usize {
        let mixes = self.phases.iter().filter_map(|p| p.sizes.as_ref());
        let largest = mixes.map(SizeMix::largest).fold(self.sizes.largest(), u16::max);
        usize::from(largest) - 4
    }
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadSpec {
    /// The VMs.
    pub vms: Vec<VmSpec>,
    /// How long to send and count, in seconds.
    pub secs: f64,
    /// Sending before the counting starts, in seconds.
    pub warmup_secs: f64,
    /// Seconds between interval reports; `None` for none.
    pub interval_secs: Option<f64>,
    /// The core the loop is pinned to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// Whether every byte is written and verified.
    pub touch: bool,
    /// Frames a VM sends in one turn at most.
    pub burst: usize,
    /// How long to wait for the switch, in seconds.
    pub wait_secs: f64,
}

impl LoadSpec {
    /// A run of `secs` without warm-up or interval reports, bursts of 32.
    #[must_use]
    pub fn new(vms: Vec<VmSpec>, secs: f64) -> Self {
        Self {
            vms,
            secs,
            warmup_secs: 0.0,
            interval_secs: None,
            core: None,
            touch: false,
            burst: 32,
            wait_secs: 5.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imix_is_spread_and_keeps_its_weights() {
        let schedule = SizeMix::imix().schedule();
        assert_eq!(schedule.len(), 12);
        for (index, weight) in [(0, 7), (1, 4), (2, 1)] {
            assert_eq!(schedule.iter().filter(|i| **i == index).count(), weight);
        }
        assert!(schedule.windows(3).all(|w| w != [0, 0, 0]), "{schedule:?}");
        assert_eq!(SizeMix::fixed(512).schedule(), [0]);
    }
}
