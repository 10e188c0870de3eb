//! What the fabric's controller tells this host: see [`super::overlay`] for how it is laid over the
//! configuration.

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::overlay::{FabricTerms, Overlay};
use super::running::{Host, stopped, warnings};
use crate::config::{Egress, HostConfig};

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricChange {
    /// What changed, in words; empty: it was in force already.
    pub changes: Vec<String>,
    /// Tenants that were named and are not here.
    pub absent: Vec<String>,
}

impl Host {
    /// Does what the fabric's controller says, in one change between two batches; nothing of it is
    /// written anywhere. What was told before is over. Does nothing if all is so already.
    ///
    /// # Errors
    /// The host is in no fabric, or its uplink is not there; a number is out of range; the worker
    /// has ended. Nothing was changed.
    pub fn set_fabric(&self, terms: &FabricTerms) -> Result<FabricChange, ApiError> {
        let wrong = |problem: String, remedy: &str| {
            ApiError::new(ErrorKind::Invalid, "[fabric]", problem, remedy)
        };
        let mut changing = lock(&self.changing);
        if changing.stopped {
            return Err(stopped());
        }
        let (old, text) = {
            let shared = lock(&self.core.shared);
            (std::sync::Arc::clone(&shared.config), std::sync::Arc::clone(&shared.text))
        };
        let Some(fabric) = &old.fabric else {
            let remedy = "add [fabric] to the configuration and start the daemon again";
            return Err(wrong("this host is in no fabric".to_owned(), remedy));
        };
        let uplink = old.ports.iter().find(|port| port.name == fabric.uplink);
        if uplink.is_none_or(|port| port.egress != Egress::Wfq) {
            let problem = format!("uplink {:?} is not a port with queues any more", fabric.uplink);
            return Err(wrong(problem, "start the daemon again, or bring the port back"));
        }
        let overlay = Overlay::new(terms)
            .map_err(|problem| wrong(problem, "see what the controller tells this host"))?;
        let absent: Vec<String> = {
            let here = |name: &&String| old.tenants.iter().any(|tenant| tenant.name == **name);
            terms.code_points.keys().filter(|name| !here(name)).cloned().collect()
        };
        let config = overlay.over(changing.overlay.off(HostConfig::clone(&old)));
        let changes = self.lay(&old, config, text)?;
        changing.overlay = overlay;
        Ok(FabricChange { changes, absent })
    }

    /// Has `config` run in place of `old`, of which the file does not hear: what changed, in words.
    pub(super) fn lay(
        &self,
        old: &HostConfig,
        config: HostConfig,
        text: std::sync::Arc<str>,
    ) -> Result<Vec<String>, ApiError> {
        if config == *old {
            return Ok(Vec::new());
        }
        let outcome = self.core.apply(config, text, false)?;
        let changes = outcome.changes.clone();
        for warning in warnings(outcome) {
            tracing::warn!("{warning}");
        }
        Ok(changes)
    }
}
