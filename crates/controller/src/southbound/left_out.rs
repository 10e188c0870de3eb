//! Logs the ports that a driver does not use.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Ports that a driver did not use at its last read, with the reason.
#[derive(Debug, Default)]
pub(super) struct LeftOut(Mutex<BTreeMap<String, String>>);

impl LeftOut {
    /// Logs the ports `now`, each with the reason. A port is logged again only if the reason has
    /// changed.
    pub(super) fn log(&self, switch: &str, now: &BTreeMap<String, String>) {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (port, why) in now.iter().filter(|(port, why)| before.get(*port) != Some(why)) {
            tracing::warn!(switch, port, "the driver does not use the port: {why}");
        }
        for port in before.keys().filter(|port| !now.contains_key(*port)) {
            tracing::info!(switch, port, "the driver uses the port again");
        }
        before.clone_from(now);
    }
}
