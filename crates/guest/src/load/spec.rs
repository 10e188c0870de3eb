//! Defines the parameters of a load run.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::driver::{DriverConfig, Features, SocketMode};
use crate::mac::Mac;

/// Allowed sizes of a frame in bytes, including the FCS.
pub(crate) const SIZES: std::ops::RangeInclusive<u16> = 64..=9018;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// The VM sends as fast as the ring accepts frames.
    #[default]
    Max,
    /// The VM sends at a rate in frames per second.
    Frames(f64),
    /// The VM sends at a rate in bits per second, including the FCS.
    Bits(f64),
    /// The VM sends no frames.
    Stop,
}

/// Frame sizes in bytes, including the FCS, and the weights of the sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeMix(
    /// Pairs of a frame size and its weight. The mix has at least one pair.
    pub Vec<(u16, u16)>,
);

impl SizeMix {
    /// Creates a mix of frames that all have the same size.
    #[must_use]
    pub fn fixed(size: u16) -> Self {
        Self(vec![(size, 1)])
    }

    /// Returns the simple Internet mix: 7 frames of 64 bytes, 4 of 594 bytes and 1 of 1518 bytes.
    #[must_use]
    pub fn imix() -> Self {
        Self(vec![(64, 7), (594, 4), (1518, 1)])
    }

    /// Returns the order in which a VM sends the frame sizes of the mix, as indices into the mix.
    /// Each index occurs as often as the weight of its frame size, and the occurrences are spread
    /// evenly.
    #[must_use]
    pub fn schedule(&self) -> Vec<usize> {
        let total: i64 = self.0.iter().map(|(_, w)| i64::from(*w)).sum();
        let mut credit = vec![0_i64; self.0.len()];
        (0..total)
            .map(|_| {
                for (c, (_, weight)) in credit.iter_mut().zip(&self.0) {
                    *c += i64::from(*weight);
                }
                // If several credits are equal, the first index is used, so that a run is
                // repeatable.
                let best = (0..credit.len()).rev().max_by_key(|i| credit[*i]).unwrap_or(0);
                credit[best] -= total;
                best
            })
            .collect()
    }

    /// Returns the largest frame size of the mix in bytes.
    #[must_use]
    pub fn largest(&self) -> u16 {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or(64)
    }
}

/// A change of a VM's traffic during the run. A field with `None` leaves its setting unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Phase {
    /// Time of the change of traffic, in seconds since the start of the run.
    pub at_secs: f64,
    pub rate: Option<Rate>,
    pub sizes: Option<SizeMix>,
    /// New number of the VM's flows.
    pub flows: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// The frames go to the single VM that the field names.
    Vm(String),
    /// The frames go to all other VMs of the run, which get one frame each in turn.
    Others,
    /// The frames go to a station that is not a VM of the run.
    Outside(Mac, Ipv4Addr),
    /// Every second frame goes to the VM that the field names, and the others to a station that is
    /// not a VM of the run.
    Half(String, Mac, Ipv4Addr),
}

impl Destination {
    /// Returns the name of the VM if at most one VM receives frames.
    #[must_use]
    pub fn vm(&self) -> Option<&str> {
        match self {
            Self::Vm(name) | Self::Half(name, ..) => Some(name),
            Self::Others | Self::Outside(..) => None,
        }
    }
}

/// Parameters of one VM of the load generator. Every VM receives and counts frames. A VM with a
/// destination in `to` also sends frames.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VmSpec {
    pub name: String,
    /// Path of the VM's vhost-user socket.
    pub socket: PathBuf,
    pub mode: SocketMode,
    pub mac: Mac,
    pub ip: Ipv4Addr,
    /// Destination of the VM's frames; `None` if the VM only receives.
    pub to: Option<Destination>,
    pub rate: Rate,
    pub sizes: SizeMix,
    /// Number of flows that the VM sends. Flows differ in the UDP source port, and beyond 32,768
    /// flows also in the source address.
    pub flows: u32,
    /// VLAN id in the tag of the frames; `None` means that frames have no tag. The VLAN tag counts
    /// in the frame size.
    pub vlan: Option<u16>,
    /// Number of descriptors of each ring.
    pub ring_size: u16,
    /// Features that the driver accepts if the switch offers them.
    pub wanted: Features,
    /// Changes of the VM's traffic, ordered by time.
    pub phases: Vec<Phase>,
    /// Whether each frame carries its sending time. With `touch`, frames carry no sending time.
    #[serde(default)]
    pub stamped: bool,
    /// Whether the VM requests an interrupt for the frames that it receives. The VM ignores the
    /// interrupts and polls, but the switch pays for each interrupt.
    #[serde(default)]
    pub interrupts: bool,
    /// Whether the VM notifies the switch in each turn, even if the switch wants no notification
    /// and the VM sends nothing.
    #[serde(default)]
    pub kicks: bool,
}

impl VmSpec {
    /// Creates the parameters of a VM that only receives, with the driver's defaults.
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
            interrupts: false,
            kicks: false,
        }
    }

    /// Returns the addresses of the destinations of VM `number` of `vms`. If a VM sends to all
    /// other VMs, its list of destinations begins with the next VM, so that not all VMs send to one
    /// VM at once.
    pub(crate) fn targets(number: usize, vms: &[Self]) -> Vec<(Mac, Ipv4Addr)> {
        let address = |vm: &Self| (vm.mac, vm.ip);
        match &vms[number].to {
            None => Vec::new(),
            Some(Destination::Vm(name)) => {
                vms.iter().find(|vm| vm.name == *name).map(address).into_iter().collect()
            }
            Some(Destination::Others) => {
                vms[number + 1..].iter().chain(&vms[..number]).map(address).collect()
            }
            Some(Destination::Outside(mac, ip)) => vec![(*mac, *ip)],
            Some(Destination::Half(name, mac, ip)) => {
                let vm = vms.iter().find(|vm| vm.name == *name).map(address);
                vm.into_iter().chain([(*mac, *ip)]).collect()
            }
        }
    }

    /// Returns the length of the VM's largest frame in any phase, in bytes in the ring.
    pub(crate) fn largest_frame(&self) -> usize {
        let mixes = self.phases.iter().filter_map(|p| p.sizes.as_ref());
        let largest = mixes.map(SizeMix::largest).fold(self.sizes.largest(), u16::max);
        usize::from(largest) - 4
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadSpec {
    pub vms: Vec<VmSpec>,
    /// Seconds for which the VMs send and frames are counted.
    pub secs: f64,
    /// Seconds for which the VMs send before counting starts.
    pub warmup_secs: f64,
    /// Seconds between two interval reports; `None` means no interval reports.
    pub interval_secs: Option<f64>,
    /// CPU core to which the generator's loop is pinned. With `None`, the kernel chooses the CPU.
    pub core: Option<usize>,
    /// Whether the run writes and verifies every byte of every frame.
    pub touch: bool,
    /// Maximum number of frames that a VM sends in one turn.
    pub burst: usize,
    /// Seconds for which a VM waits until the switch is reachable.
    pub wait_secs: f64,
}

impl LoadSpec {
    /// Creates the parameters of a run of `secs` seconds. A new [`LoadSpec`] has no warm-up, no
    /// interval reports, and bursts of 32 frames.
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
    fn every_ordered_pair_of_a_mesh_is_a_target_once() {
        let vm = |n: u8| {
            let mac = Mac([0x52, 0x54, 0, 0, 0, n]);
            let mut vm = VmSpec::new(&format!("vm{n}"), "/vm", mac, Ipv4Addr::new(10, 0, n, 1));
            vm.to = Some(Destination::Others);
            vm
        };
        let mut vms: Vec<VmSpec> = (0..5).map(vm).collect();
        let target = |number, vms: &[VmSpec]| -> Vec<u8> {
            VmSpec::targets(number, vms).iter().map(|(mac, _)| mac.0[5]).collect()
        };
        assert_eq!(target(0, &vms), [1, 2, 3, 4]);
        assert_eq!(target(2, &vms), [3, 4, 0, 1]);
        assert_eq!(target(4, &vms), [0, 1, 2, 3]);
        assert!(target(0, &vms[..1]).is_empty());
        vms[1].to = Some(Destination::Vm("vm3".to_owned()));
        assert_eq!(target(1, &vms), [3]);
        vms[1].to = Some(Destination::Outside(Mac([2, 0, 0, 0, 0, 9]), Ipv4Addr::LOCALHOST));
        assert_eq!(target(1, &vms), [9]);
        let station = (Mac([2, 0, 0, 0, 0, 9]), Ipv4Addr::LOCALHOST);
        vms[1].to = Some(Destination::Half("vm3".to_owned(), station.0, station.1));
        assert_eq!(target(1, &vms), [3, 9]);
        vms[1].to = None;
        assert!(target(1, &vms).is_empty());
    }

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
