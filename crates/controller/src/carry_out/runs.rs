//! Last known runs of switches.

use std::collections::BTreeMap;

use penstock_fabric::topology::NodeId;

/// Last known run of each switch.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<NodeId, String>);

impl Runs {
    /// Notes the run of a switch. Returns true if the last known run is another one.
    pub(super) fn note(&mut self, node: NodeId, run: Option<String>) -> bool {
        let Some(run) = run else { return false };
        let before = self.0.insert(node, run.clone());
        before.is_some_and(|before| before != run)
    }
}
