//! Queues of outputs, which outlive a snapshot.
//!
//! **Rule.** A queue stays with its frames as long as only rates and weights change; one whose
//! memory would be another is made anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_dataplane::queue::QueueHome;

use crate::config::{HostConfig, PORTS_MAX, TENANTS_MAX};

/// All queues of a configuration, by port.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueTable(BTreeMap<String, Arc<QueueHome>>);

impl QueueTable {
    /// The table for `config`; what did not change is taken over.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let queues = config.ports.iter().filter_map(|port| {
            let terms = port.queued()?;
            let old = self.0.get(&port.name).filter(|old| old.fits(&terms));
            let home = old.cloned();
            let home = home.unwrap_or_else(|| QueueHome::new(terms, PORTS_MAX, TENANTS_MAX));
            Some((port.name.clone(), home))
        });
        Self(queues.collect())
    }

    /// From now on these are the ones in use: they keep the rates of `config`.
    pub(super) fn pace(&self, config: &HostConfig) {
        for port in &config.ports {
            if let (Some(terms), Some(home)) = (port.queued(), self.0.get(&port.name)) {
                home.set_pacing(terms.pacing);
            }
        }
    }

    /// A port's queue.
    pub(super) fn of(&self, port: &str) -> Option<Arc<QueueHome>> {
        self.0.get(port).cloned()
    }
}
