//! Plans of the fabric's controller for this host. [`super::overlay`] combines them with the
//! configuration.

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::overlay::{FabricTerms, Overlay};
use super::running::{Host, stopped, warnings};
use crate::config::{Egress, HostConfig};

/// Result of carrying out a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricChange {
    /// Changes, in words; empty if the plan was in force already.
    pub changes: Vec<String>,
    /// Tenants of the plan that this host does not have.
    pub absent: Vec<String>,
}

impl Host {
    /// Carries out a plan of the fabric's controller in one change between two batches. The plan
    /// replaces the previous one and is not saved to the configuration file. The call is
    /// idempotent.
    ///
    /// # Errors
    /// The host is in no fabric, its uplink does not exist, a number is out of range, or the worker
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
            .map_err(|problem| wrong(problem, "check the plan that the controller sends"))?;
        let absent: Vec<String> = {
            let here = |name: &&String| old.tenants.iter().any(|tenant| tenant.name == **name);
            terms.code_points.keys().filter(|name| !here(name)).cloned().collect()
        };
        let config = overlay.over(changing.overlay.off(HostConfig::clone(&old)));
        let changes = self.lay(&old, config, text)?;
        changing.overlay = overlay;
        Ok(FabricChange { changes, absent })
    }

    /// Runs `config` instead of `old`. The file stays unchanged. Returns the changes in words.
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
