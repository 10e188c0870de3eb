//! Remembers the ports that drivers leave out, because others have configured them.
//!
//! # Problem
//!
//! A port with the configuration of others refuses Penstock's queues, and must not stop the other
//! ports. The port does not know the code points of tenants, so a tenant that sends through it must
//! share queue 0 on its whole tree.
//!
//! # Approach
//!
//! Each read of a switch says which of its ports the driver leaves out, with the reason. The
//! controller keeps the answer of the last read. Queue binding gives no queues to the tenants of
//! these ports, and an event reports each new reason once.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::topology::NodeId;

/// Ports that drivers leave out, by switch: the name of each interface, with the reason.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    of: BTreeMap<NodeId, BTreeMap<String, String>>,
    changed: BTreeSet<NodeId>,
}

impl LeftOut {
    /// Notes the answer of a switch. Interfaces for which `is_port` is false are no ports of the
    /// topology, and do not count.
    pub(super) fn note(
        &mut self,
        node: NodeId,
        mut answer: BTreeMap<String, String>,
        is_port: impl Fn(&String) -> bool,
    ) {
        answer.retain(|name, _| is_port(name));
        if self.of.get(&node).map_or(answer.is_empty(), |before| *before == answer) {
            return;
        }
        self.of.insert(node, answer);
        self.changed.insert(node);
    }

    /// Whether the driver of a switch leaves one of the interfaces out.
    pub(super) fn has_any(&self, node: NodeId, interfaces: &[String]) -> bool {
        self.of.get(&node).is_some_and(|out| interfaces.iter().any(|name| out.contains_key(name)))
    }

    /// Returns the switches whose answers have changed since the last call, with all ports that
    /// their drivers leave out now.
    pub(super) fn take_changed(&mut self) -> Vec<(NodeId, BTreeMap<String, String>)> {
        let changed = std::mem::take(&mut self.changed);
        let now = |node: NodeId| (node, self.of.get(&node).cloned().unwrap_or_default());
        let changed = changed.into_iter().map(now).collect();
        self.of.retain(|_, out| !out.is_empty());
        changed
    }
}
