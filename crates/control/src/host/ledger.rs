//! Use of the network by each tenant, summed over its ports.
//!
//! A port's counters disappear with the port, and a port may get another tenant, but a tenant's
//! sums only grow. For this reason the growth of each port's counters is added to its tenant's sums
//! at each reading and before each change.

use std::collections::BTreeMap;

use penstock_dataplane::counters::PortCounters;

use super::state::LivePort;
use crate::config::HostConfig;

/// Traffic over the network. It excludes frames between two VMs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkUse {
    /// Frames that VMs sent.
    pub sent_frames: u64,
    /// Bytes that VMs sent, without FCS.
    pub sent_bytes: u64,
    /// Frames that VMs received.
    pub received_frames: u64,
    /// Bytes that VMs received, without FCS.
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
    /// Counters by port at the previous reading.
    seen: BTreeMap<String, NetworkUse>,
    pub(super) by_tenant: BTreeMap<String, NetworkUse>,
}

impl Ledger {
    /// Adds the growth since the previous reading.
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

    /// Removes ports and tenants that are not in the configuration.
    pub(super) fn keep(&mut self, config: &HostConfig) {
        self.seen.retain(|name, _| config.ports.iter().any(|port| port.name == *name));
        self.by_tenant.retain(|name, _| config.tenants.iter().any(|tenant| tenant.name == *name));
    }
}
