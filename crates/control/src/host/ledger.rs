//! Each tenant's use of the network, added up over its ports.
//!
//! **Rule.** A port's counters go with it, and a port may change hands; a tenant's sums only grow.
//! So what each port's counters grew by is added to whose it is, at every look and before every
//! change.

use std::collections::BTreeMap;

use penstock_dataplane::counters::PortCounters;

use super::state::LivePort;
use crate::config::HostConfig;

/// What went over the network; frames between two VMs of a host do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkUse {
    /// Frames that VMs sent.
    pub sent_frames: u64,
    /// Their bytes, without FCS.
    pub sent_bytes: u64,
    /// Frames that VMs received.
    pub received_frames: u64,
    /// Their bytes.
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

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By port, at the look before.
    seen: BTreeMap<String, NetworkUse>,
    pub(super) by_tenant: BTreeMap<String, NetworkUse>,
}

impl Ledger {
    /// Enters what was carried since the look before.
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

    /// Forgets who is not in the configuration.
    pub(super) fn keep(&mut self, config: &HostConfig) {
        self.seen.retain(|name, _| config.ports.iter().any(|port| port.name == *name));
        self.by_tenant.retain(|name, _| config.tenants.iter().any(|tenant| tenant.name == *name));
    }
}
