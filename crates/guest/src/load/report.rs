//! Defines the results of a load run, and formats them as text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Results of one VM over an interval or over the whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmReport {
    pub name: String,
    /// Number of frames that the VM put into the ring.
    pub tx_frames: u64,
    pub tx_frames_per_sec: f64,
    /// Sending rate of the VM in bits per second, including the FCS.
    pub tx_bits_per_sec: f64,
    /// Number of turns in which a frame was due but the ring was full.
    pub tx_ring_full: u64,
    /// Number of received frames that the generator sent.
    pub rx_frames: u64,
    /// Number of bytes of the received frames from the generator, in the ring (without FCS).
    pub rx_bytes: u64,
    pub rx_frames_per_sec: f64,
    /// Receiving rate of the VM in bits per second, including the FCS.
    pub rx_bits_per_sec: f64,
    /// Number of received frames with wrong bytes or wrong ring entries.
    pub rx_bad: u64,
    /// Number of received frames that the generator did not send, such as ARP.
    pub rx_other: u64,
    /// Number of sequence numbers that did not arrive.
    pub rx_lost: u64,
    /// Number of frames that arrived after a frame with a higher sequence number.
    pub rx_reordered: u64,
    /// Number of times that the VM reconnected to the switch.
    pub reconnects: u64,
    /// Names of the features that the VM and the switch negotiated.
    pub features: String,
}

/// Results of all VMs over one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalReport {
    /// End of the interval, in seconds since counting started.
    pub at_secs: f64,
    /// Percentage of its time that the generator's loop spent in turns that moved a frame.
    pub busy_percent: f64,
    /// Percentage of the time in which the loop was runnable but waited for its CPU core.
    pub run_queue_wait_percent: f64,
    pub vms: Vec<VmReport>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Time for which frames were counted, in seconds.
    pub secs: f64,
    /// Whether the run wrote and verified every byte of every frame.
    pub touch: bool,
    /// Percentage of its time that the generator's loop spent in turns that moved a frame. If this
    /// percentage of the loop's time is near 100, the generator may be the bottleneck.
    pub busy_percent: f64,
    /// Percentage of the time in which the loop was runnable but waited for its CPU core.
    pub run_queue_wait_percent: f64,
    /// Number of turns of the generator's loop.
    pub turns: u64,
    pub vms: Vec<VmReport>,
}

impl LoadReport {
    /// Returns the results of the VM `name`; `None` if the run has no VM with that name.
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
            "{:7.2} s  busy {:.0} %  waited for a core {:.1} %",
            self.at_secs, self.busy_percent, self.run_queue_wait_percent
        )?;
        vms(f, &self.vms)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "total {:.2} s  touch {}  busy {:.1} %  waited for a core {:.2} %",
            self.secs, self.touch, self.busy_percent, self.run_queue_wait_percent
        )?;
        vms(f, &self.vms)
    }
}
