//! Counts the intervals in which a connected host sends no report.
//!
//! # Problem
//!
//! While a host of a tenant sends no report, the tenant's score does not fall, because the host may
//! still forward the tenant's traffic. A host may stay connected and never report again, for
//! example because its switch no longer answers the agent. The tenants of this host would keep
//! their scores without end, and so their queues, even if none of their VMs sends.
//!
//! # Approach
//!
//! After [`SILENT_MAX`] intervals without a report, a connected host counts as a host without
//! traffic, and an event names the host. A host that is not connected does not count, because its
//! tenants neither gain nor lose queues.

use std::borrow::Cow;
use std::collections::BTreeMap;

use penstock_fabric::topology::NodeId;

use super::{Leader, Severity, Usage};

/// Number of intervals without a report from which on a connected host counts as a host without
/// traffic.
const SILENT_MAX: u32 = 15;

impl Leader {
    /// Returns the usage of an interval, in which connected hosts that stay silent have no traffic.
    pub(super) fn with_silent_hosts<'a>(&mut self, usage: &'a Usage) -> Cow<'a, Usage> {
        let before = std::mem::take(&mut self.silent_hosts);
        let (fabric, crew) = (&self.fabric, &self.crew);
        let is_silent = |server: &NodeId| {
            let has_tenants = fabric.tenants_on(*server).next().is_some();
            has_tenants && !usage.contains_key(server) && crew.connected(fabric, *server)
        };
        let count = |server: NodeId| before.get(&server).map_or(1, |count| count.saturating_add(1));
        let silent = fabric.topology().layer(0).filter(is_silent);
        let now: BTreeMap<NodeId, u32> = silent.map(|server| (server, count(server))).collect();
        let mut all = Cow::Borrowed(usage);
        for (server, count) in &now {
            if *count == SILENT_MAX {
                let text = format!(
                    "the host is connected, but has sent no report for {SILENT_MAX} intervals, so \
                     it counts as a host without traffic; see `penstock host show` on the host"
                );
                self.tell_of(*server, Severity::Warning, &text);
            }
            if *count >= SILENT_MAX {
                all.to_mut().insert(*server, Vec::new());
            }
        }
        for (server, _) in before.iter().filter(|(_, count)| **count >= SILENT_MAX) {
            if usage.contains_key(server) {
                self.tell_of(*server, Severity::Info, "the host sends reports again");
            }
        }
        self.silent_hosts = now;
        all
    }

    fn tell_of(&mut self, server: NodeId, severity: Severity, text: &str) {
        let name = self.fabric.topology().name(server).to_string();
        self.tell(severity, "silent-host", &name, text);
    }
}
