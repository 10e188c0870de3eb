//! Results of a run, as plain data and as text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Results of one VM over an interval or over the whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmReport {
    pub name: String,
    /// Frames put into the ring.
    pub tx_frames: u64,
    pub tx_frames_per_sec: f64,
    /// Bits a second, FCS included.
    pub tx_bits_per_sec: f64,
    /// Turns in which the ring was full although frames were due.
    pub tx_ring_full: u64,
    /// Received frames of the generator.
    pub rx_frames: u64,
    /// Bytes of these frames in the ring (without FCS).
    pub rx_bytes: u64,
    pub rx_frames_per_sec: f64,
    /// Bits a second, FCS included.
    pub rx_bits_per_sec: f64,
    /// Frames with wrong bytes or wrong ring entries.
    pub rx_bad: u64,
    /// Other frames, such as ARP.
    pub rx_other: u64,
    /// Number of missing sequence numbers.
    pub rx_lost: u64,
    /// Frames that came after a frame with a higher number.
    pub rx_reordered: u64,
    /// How often the switch went away and came back.
    pub reconnects: u64,
    /// Negotiated features.
    pub features: String,
}

/// Results of all VMs over one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalReport {
    /// End of the interval, in seconds from the start of counting.
    pub at_secs: f64,
    /// Percent of its time that the loop spent in turns that moved a frame.
    pub busy_percent: f64,
    /// Percent of the time for which the loop waited for its core.
    pub run_queue_wait_percent: f64,
    pub vms: Vec<VmReport>,
}

/// Results of the whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Seconds of counting.
    pub secs: f64,
    /// Whether every byte was written and verified.
    pub touch: bool,
    /// As in [`IntervalReport`], but for the whole run. If the value is near 100, the generator may
    /// be the bottleneck.
    pub busy_percent: f64,
    /// As in [`IntervalReport`].
    pub run_queue_wait_percent: f64,
    /// Number of turns of the loop.
    pub turns: u64,
    pub vms: Vec<VmReport>,
}

impl LoadReport {
    /// The results of the VM `name`.
    #[must_use]
    pub fn vm(&self, name: &str) -> Option<&VmReport> {
        self.vms.iter().find(|vm| vm.name == name)
    }
}

fn vms(f: &mut fmt::Formatter<'_>, vms: &[VmReport]) -> fmt::Result {
    for vm in vms {
        write!(
            f,
            "\n  {:<10} tx {:>8.3} Mpps {:>9.1} Mbit/s   rx {:>8.3} Mpps {:>9.1} Mbit/s",
            vm.name,
            vm.tx_frames_per_sec / 1e6,
            vm.tx_bits_per_sec / 1e6,
            vm.rx_frames_per_sec / 1e6,
            vm.rx_bits_per_sec / 1e6,
        )?;
        write!(
            f,
            "   lost {} reordered {} bad {} other {}",
            vm.rx_lost, vm.rx_reordered, vm.rx_bad, vm.rx_other
        )?;
    }
    Ok(())
}

impl fmt::Display for IntervalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:7.2} s  busy {:.0} %  waited for its core {:.1} %",
            self.at_secs, self.busy_percent, self.run_queue_wait_percent
        )?;
        vms(f, &self.vms)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "total {:.2} s  touch {}  busy {:.1} %  waited for its core {:.2} %",
            self.secs, self.touch, self.busy_percent, self.run_queue_wait_percent
        )?;
        vms(f, &self.vms)
    }
}
