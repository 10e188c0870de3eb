//! Reports hosts on which tenants send or receive without a place there.
//!
//! # Problem
//!
//! The plan of a host has only the tenants that the controller has placed there. The frames of all
//! other tenants share queue 0 without a limit, at the expense of the guarantees of the tenants in
//! queue 0. An operator may have forgotten to add a tenant, may have misspelt its name in the
//! host's file, or may have started a VM on the wrong server.
//!
//! # Approach
//!
//! After [`LASTING`] intervals with such traffic, an event names the host and the tenants. The
//! traffic of a tenant that has just moved or was just removed ends sooner.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::topology::NodeId;

use super::{Leader, Severity, Usage, shortened};

/// Number of consecutive intervals with traffic after which an event names the host.
const LASTING: u32 = 3;

impl Leader {
    pub(super) fn tell_unplaced(&mut self, usage: &Usage) {
        let before = std::mem::take(&mut self.unplaced_hosts);
        // A host without a report in this interval keeps its number.
        let unheard = before.iter().filter(|(server, _)| !usage.contains_key(server));
        let mut now: BTreeMap<NodeId, u32> = unheard.map(|(s, count)| (*s, *count)).collect();
        for (server, used) in usage {
            let fabric = &self.fabric;
            let here: BTreeSet<&str> =
                fabric.tenants_on(*server).map(|(slot, _)| fabric.name(slot)).collect();
            let unplaced = used.iter().filter(|used| {
                let sends = used.sent.0 > 0 || used.received.0 > 0;
                sends && !here.contains(used.tenant.as_str())
            });
            let unplaced: Vec<String> = unplaced.map(|used| format!("{:?}", used.tenant)).collect();
            if unplaced.is_empty() {
                continue;
            }
            let count = before.get(server).map_or(1, |count| count.saturating_add(1));
            now.insert(*server, count);
            if count == LASTING {
                let text = format!(
                    "tenants send or receive, but have no VM here by placement, so their frames \
                     share queue 0 without a limit: {}; add the tenants with `penstock controller \
                     tenant add`, or move their VMs to the servers of their placement",
                    shortened(&unplaced)
                );
                self.tell_host(*server, Severity::Warning, &text);
            }
        }
        for (server, _) in before.iter().filter(|(_, count)| **count >= LASTING) {
            if !now.contains_key(server) {
                let text = "only tenants with a VM here by placement send and receive again";
                self.tell_host(*server, Severity::Info, text);
            }
        }
        self.unplaced_hosts = now;
    }

    fn tell_host(&mut self, server: NodeId, severity: Severity, text: &str) {
        let name = self.fabric.topology().name(server).to_string();
        self.tell(severity, "unplaced", &name, text);
    }
}
