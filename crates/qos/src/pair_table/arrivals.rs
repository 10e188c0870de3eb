//! Counts the bytes that arrive for measured VMs from other hosts.

use core::sync::atomic::Ordering;

use super::PairTable;

impl PairTable {
    /// Counts `bytes` bytes on a link that arrived for the VM at `port`.
    #[inline]
    pub fn arrived(&self, port: u16, bytes: u32) {
        if let Some(vm) = self.measured_vm(port) {
            vm.arrived.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }

    /// Returns the ports of the measured VMs, with the totals of bytes that arrived for them. The
    /// totals wrap.
    pub fn arrivals(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let ports = (0_u16..).zip(&self.vms);
        let measured = ports.filter(|(_, vm)| vm.measured.load(Ordering::Relaxed));
        measured.map(|(port, vm)| (port, vm.arrived.load(Ordering::Relaxed)))
    }
}
