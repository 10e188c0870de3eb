//! The running host: the one object behind the API.
//!
//! **Problem.** Files, clients and ports change at any moment; the worker must see one consistent
//! state, and a change that fails must leave everything as it was. **Rule.** Every change goes the
//! same way: edit the configuration's text, read the *whole* result as if it were a file, compile
//! one snapshot, apply the difference, save. A mistake ends it before anything was touched; an
//! attachment that fails is rolled back.

mod error;

use std::path::PathBuf;

use penstock_units::Nanos;

use crate::api::{ChangeReport, FdbEntry, FlowStatus, HostStatus, PortStatus, Stats};
use crate::config::{ConfigErrors, HostConfig, Port, Rule, Tenant};

pub use error::{ApiError, ErrorKind, HostError};

/// Which MAC addresses are meant; a field left out means all. Fields are joined by "and".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdbFilter {
    /// Only in this tenant's networks.
    pub tenant: Option<String>,
    /// Only in this VLAN, 0 untagged.
    pub vlan: Option<u16>,
    /// Only behind this port.
    pub port: Option<String>,
}

/// The running host. All calls block, for milliseconds at most; share it in an `Arc`.
#[derive(Debug)]
pub struct Host {}

#[expect(unused_variables, reason = "signatures first; bodies follow in the next commits")]
#[expect(clippy::missing_errors_doc, reason = "see above")]
impl Host {
    /// Starts the worker and attaches the ports. `config` comes from [`crate::config::load`] of
    /// `config_path`; without a path, changes live until shutdown. A port that cannot be attached
    /// is in state `error` and tried again by [`Self::tick`].
    pub fn start(config: HostConfig, config_path: Option<PathBuf>) -> Result<Self, HostError> {
        unimplemented!()
    }

    /// What the daemon is and does.
    #[must_use]
    pub fn status(&self) -> HostStatus {
        unimplemented!()
    }

    /// Every port's state, in the order of the configuration.
    #[must_use]
    pub fn ports(&self) -> Vec<PortStatus> {
        unimplemented!()
    }

    /// Every port as configured.
    #[must_use]
    pub fn port_configs(&self) -> Vec<Port> {
        unimplemented!()
    }

    /// Every tenant as configured.
    #[must_use]
    pub fn tenants(&self) -> Vec<Tenant> {
        unimplemented!()
    }

    /// Every rule as configured.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        unimplemented!()
    }

    /// Every rule with what it has matched, highest priority first.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowStatus> {
        unimplemented!()
    }

    /// The MAC addresses that `filter` names, by tenant, VLAN and address.
    pub fn fdb(&self, filter: &FdbFilter) -> Result<Vec<FdbEntry>, ApiError> {
        unimplemented!()
    }

    /// Forgets the learned addresses that `filter` names; returns how many.
    pub fn fdb_flush(&self, filter: &FdbFilter) -> Result<usize, ApiError> {
        unimplemented!()
    }

    /// All counters; `exact` lets the worker take them between two batches and checks that they
    /// add up.
    pub fn stats(&self, exact: bool) -> Result<Stats, ApiError> {
        unimplemented!()
    }

    /// Adds a port. `save` writes it into the configuration file, here and in the calls below;
    /// without, it is gone after a restart or reload.
    pub fn add_port(&self, port: Port, save: bool) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Sets keys of a port: `("vlan", "300")`, `("trunk", "1,5-9")`, `("mac", "")` removes.
    pub fn set_port(
        &self,
        name: &str,
        changes: &[(String, String)],
        save: bool,
    ) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Deletes a port.
    pub fn del_port(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Adds a tenant.
    pub fn add_tenant(&self, tenant: Tenant, save: bool) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Sets keys of a tenant.
    pub fn set_tenant(
        &self,
        name: &str,
        changes: &[(String, String)],
        save: bool,
    ) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Deletes a tenant that nothing refers to.
    pub fn del_tenant(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Adds a rule.
    pub fn add_rule(&self, rule: Rule, save: bool) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Deletes a rule.
    pub fn del_rule(&self, name: &str, save: bool) -> Result<ChangeReport, ApiError> {
        unimplemented!()
    }

    /// Reads the configuration file again and applies the difference; what did not change is not
    /// touched. With a mistake in the file nothing changes.
    pub fn reload(&self) -> Result<ChangeReport, ConfigErrors> {
        unimplemented!()
    }

    /// The running configuration as TOML, unsaved changes included.
    #[must_use]
    pub fn config_toml(&self) -> String {
        unimplemented!()
    }

    /// To be called a few times a second with a monotonic time: watches the worker's heartbeat and
    /// tries again to attach ports in state `error`.
    pub fn tick(&self, now: Nanos) {
        unimplemented!()
    }

    /// Detaches all ports and stops the worker. Calls after it fail; a second one does nothing.
    pub fn shutdown(&self) -> Result<(), ApiError> {
        unimplemented!()
    }
}
