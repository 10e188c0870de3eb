//! Carries out the plans that the fabric's controller makes for this host. The module
//! [`super::overlay`] combines a plan with the configuration.

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::overlay::{FabricTerms, Overlay, with_own_limits};
use super::running::{Host, stopped, warnings};
use crate::config::{self, Egress, HostConfig};

/// Result of a plan that the host carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricChange {
    /// Changes of the configuration as text; empty if the plan was already in force.
    pub changes: Vec<String>,
    /// Names of the tenants in the controller's plan that this host does not have.
    pub absent: Vec<String>,
}

impl Host {
    /// Applies a plan of the fabric's controller. Each worker changes to the plan at once, between
    /// two batches of frames. A new plan replaces the previous plan. Plans and queues from the
    /// fabric's controller never change the configuration file. If the host has already carried out
    /// the same plan, nothing changes.
    ///
    /// # Errors
    /// Returns an error if the host has no `[fabric]`, its uplink does not exist, a number is out
    /// of range, or the worker has ended. After an error, the previous plan stays in force.
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
            return Err(wrong("this host is not in a fabric".to_owned(), remedy));
        };
        let uplink = old.ports.iter().find(|port| port.name == fabric.uplink);
        if uplink.is_none_or(|port| port.egress != Egress::Wfq) {
            let problem = format!("uplink {:?} no longer has `wfq` queues", fabric.uplink);
            return Err(wrong(problem, "restore the port, or restart the daemon"));
        }
        let overlay = Overlay::new(terms)
            .map_err(|problem| wrong(problem, "check the plan that the controller sends"))?;
        let absent: Vec<String> = {
            let here = |name: &&String| old.tenants.iter().any(|tenant| tenant.name == **name);
            terms.code_points.keys().filter(|name| !here(name)).cloned().collect()
        };
        // The limits of the plan in force may equal a tenant's own limits, which must stay.
        let own = config::parse_on(&text, "", &changing.machine)
            .map_err(|errors| wrong(errors.to_string(), "correct the host's configuration"))?;
        let config = overlay.over(with_own_limits(HostConfig::clone(&old), &own));
        let pairs = overlay.pairs();
        self.pairs.enter(&self.core, &pairs);
        let laid = self.lay(&old, config, text);
        let changes = laid.inspect_err(|_| self.pairs.stay(&self.core))?;
        self.pairs.adopt(&self.core, pairs);
        changing.overlay = overlay;
        Ok(FabricChange { changes, absent })
    }

    /// Makes `config` the running configuration instead of `old`. Plans and queues from the
    /// fabric's controller never change the configuration file. Returns the changes of the
    /// configuration as text.
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
