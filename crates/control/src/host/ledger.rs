//! Counts the frames and bytes that each tenant exchanges over the network, summed over the
//! tenant's ports.
//!
//! A tenant's sums of frames and bytes must never decrease. However, the counters of a port
//! disappear with the port, and a port may move to another tenant. At each reading and before each
//! change of the ports, the ledger adds the growth of each port's counters to the tenant's sums.

use std::collections::BTreeMap;

use penstock_dataplane::counters::PortCounters;

use super::state::LivePort;
use crate::config::HostConfig;

/// Traffic of VMs over the network, without frames between two VMs of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkUse {
    /// Number of frames that VMs sent over the network.
    pub sent_frames: u64,
    /// Number of bytes that VMs sent over the network, without FCS.
    pub sent_bytes: u64,
    /// Number of frames that VMs received over the network.
    pub received_frames: u64,
    /// Number of bytes that VMs received over the network, without FCS.
    pub received_bytes: u64,
}

impl NetworkUse {
    fn each(&mut self, other: &Self, op: fn(u64, u64) -> u64) -> Self {
        Self {
            sent_frames: op(self.sent_frames, other.sent_frames),
            sent_bytes: op(self.sent_bytes, other.sent_bytes),
            received_frames: op(self.received_frames, other.received_frames),
            received_bytes: op(self.received_bytes, other.received_bytes),
        }
    }

    fn of(set: &PortCounters) -> Self {
        Self {
            sent_frames: set.net_sent_frames.get(),
            sent_bytes: set.net_sent_bytes.get(),
            received_frames: set.net_received_frames.get(),
            received_bytes: set.net_received_bytes.get(),
        }
    }
}

/// Sums by tenant.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Counters of each port at the previous reading, by the port's name.
    seen: BTreeMap<String, NetworkUse>,
    pub(super) by_tenant: BTreeMap<String, NetworkUse>,
}

impl Ledger {
    /// Adds the growth of all port counters since the previous reading to the sums of the ports'
    /// tenants.
    pub(super) fn settle(&mut self, config: &HostConfig, ports: &BTreeMap<String, LivePort>) {
        for port in &config.ports {
            let (Some(tenant), Some(live)) = (&port.tenant, ports.get(&port.name)) else {
                continue;
            };
            let mut now = NetworkUse::default();
            for set in live.counters.each() {
                now = now.each(&NetworkUse::of(set), u64::wrapping_add);
            }
            let before = self.seen.insert(port.name.clone(), now).unwrap_or_default();
            let grown = now.each(&before, u64::saturating_sub);
            let sum = self.by_tenant.entry(tenant.clone()).or_default();
            *sum = sum.each(&grown, u64::saturating_add);
        }
    }

    /// Deletes the stored counters of ports and tenants that are not in the configuration.
    pub(super) fn keep(&mut self, config: &HostConfig) {
        self.seen.retain(|name, _| config.ports.iter().any(|port| port.name == *name));
        self.by_tenant.retain(|name, _| config.tenants.iter().any(|tenant| tenant.name == *name));
    }
}
