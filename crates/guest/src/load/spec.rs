//! Parameters of a load run, as plain data.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::driver::{DriverConfig, Features, SocketMode};
use crate::mac::Mac;

/// Allowed sizes of a frame in bytes, FCS included.
pub(crate) const SIZES: std::ops::RangeInclusive<u16> = 64..=9018;

/// Sending rate of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// The VM sends as fast as the ring accepts frames.
    #[default]
    Max,
    /// Frames per second.
    Frames(f64),
    /// Bits per second, FCS included.
    Bits(f64),
    /// The VM sends nothing.
    Stop,
}

/// Frame sizes (FCS included) and their weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeMix(
    /// Pairs of size and weight, at least one.
    pub Vec<(u16, u16)>,
);

impl SizeMix {
    /// A mix of one size.
    #[must_use]
    pub fn fixed(size: u16) -> Self {
        Self(vec![(size, 1)])
    }

    /// The simple Internet mix: 7 frames of 64, 4 of 594 and 1 of 1518 bytes.
    #[must_use]
    pub fn imix() -> Self {
        Self(vec![(64, 7), (594, 4), (1518, 1)])
    }

    /// Indices into the mix for one round of all weights, evenly spread.
    #[must_use]
    pub fn schedule(&self) -> Vec<usize> {
        let total: i64 = self.0.iter().map(|(_, w)| i64::from(*w)).sum();
        let mut credit = vec![0_i64; self.0.len()];
        (0..total)
            .map(|_| {
                for (c, (_, weight)) in credit.iter_mut().zip(&self.0) {
                    *c += i64::from(*weight);
                }
                // If several are largest, the first one is used, so that a run is repeatable.
                let best = (0..credit.len()).rev().max_by_key(|i| credit[*i]).unwrap_or(0);
                credit[best] -= total;
                best
            })
            .collect()
    }

    /// The largest size in bytes.
    #[must_use]
    pub fn largest(&self) -> u16 {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or(64)
    }
}

/// A change during the run. If a value is `None`, it does not change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Phase {
    /// Time of the change, in seconds from the start.
    pub at_secs: f64,
    pub rate: Option<Rate>,
    pub sizes: Option<SizeMix>,
    /// New number of flows.
    pub flows: Option<u32>,
}

/// One VM. Every VM drains and counts received frames. A VM with `to` also sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VmSpec {
    pub name: String,
    /// Path of the VM's vhost-user socket.
    pub socket: PathBuf,
    pub mode: SocketMode,
    pub mac: Mac,
    pub ip: Ipv4Addr,
    /// Name of the destination VM; `None` if this VM only receives.
    pub to: Option<String>,
    /// Sending rate.
    pub rate: Rate,
    pub sizes: SizeMix,
    /// Number of flows. Flows differ in the UDP source port, and beyond 32,768 flows also in the
    /// source address.
    pub flows: u32,
    /// VLAN id of the frames' tag. The tag counts in the size.
    pub vlan: Option<u16>,
    /// Descriptors of each ring.
    pub ring_size: u16,
    /// Features that are accepted if offered.
    pub wanted: Features,
    /// Changes, in order of time.
    pub phases: Vec<Phase>,
    /// Whether each frame carries its time of sending. This setting has no effect with `touch`.
    #[serde(default)]
    pub stamped: bool,
}

impl VmSpec {
    /// A VM that only receives, with the driver's defaults.
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

    /// The largest frame of any phase, in bytes in the ring.
    pub(crate) fn largest_frame(&self) -> usize {
        let mixes = self.phases.iter().filter_map(|p| p.sizes.as_ref());
        let largest = mixes.map(SizeMix::largest).fold(self.sizes.largest(), u16::max);
        usize::from(largest) - 4
    }
}

/// Parameters of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadSpec {
    pub vms: Vec<VmSpec>,
    /// Seconds of sending and counting.
    pub secs: f64,
    /// Seconds of sending before the counting starts.
    pub warmup_secs: f64,
    /// Seconds between interval reports; `None` for none.
    pub interval_secs: Option<f64>,
    /// The core to which the loop is pinned; `None` leaves it to the kernel.
    pub core: Option<usize>,
    /// Whether every byte is written and verified.
    pub touch: bool,
    /// Maximum number of frames that a VM sends in one turn.
    pub burst: usize,
    /// Seconds to wait for the switch.
    pub wait_secs: f64,
}

impl LoadSpec {
    /// A run of `secs` seconds without warm-up and interval reports, with bursts of 32.
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
