//! Counts the bytes that arrive from other hosts for VMs under limits of pairs.

use core::sync::atomic::Ordering;

use super::PairTable;

impl PairTable {
    /// Counts `bytes` bytes on a link that arrived for the VM at `port`, if its limits are in
    /// force.
    #[inline]
    pub fn arrived(&self, port: u16, bytes: u32) {
        if let Some(vm) = self.vm(port) {
            vm.arrived.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }

    /// Returns the ports of the measured VMs, with the totals of bytes that arrived for them while
    /// their limits were in force. The totals wrap.
    pub fn arrivals(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let ports = (0_u16..).zip(&self.vms);
        let measured = ports.filter(|(_, vm)| vm.measured.load(Ordering::Relaxed));
        measured.map(|(port, vm)| (port, vm.arrived.load(Ordering::Relaxed)))
    }
}
