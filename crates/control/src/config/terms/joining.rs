//! The part of a fabric's agent: whom it asks, and as whom.

use std::path::{Path, PathBuf};

use super::super::joining::FabricTls;
use super::super::model::HostConfig;

/// A host's part in a fabric, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    /// The server's name in the topology.
    pub name: String,
    /// Controllers.
    pub controllers: Vec<String>,
    /// File of the last plan.
    pub plan: PathBuf,
    /// Certificates, if there are any, from the root.
    pub tls: Option<FabricTls>,
}

impl HostConfig {
    /// The host's part in a fabric, if it has one; relative paths begin at `directory`.
    #[must_use]
    pub fn joining(&self, directory: &Path) -> Option<Joining> {
        let fabric = self.fabric.as_ref()?;
        let tls = fabric.tls.as_ref().map(|tls| FabricTls {
            ca: directory.join(&tls.ca),
            cert: directory.join(&tls.cert),
            key: directory.join(&tls.key),
            crl: tls.crl.as_ref().map(|crl| directory.join(crl)),
            server_name: tls.server_name.clone(),
        });
        Some(Joining {
            name: fabric.name.clone().unwrap_or_else(|| self.host.name.clone()),
            controllers: fabric.controllers.clone(),
            plan: fabric.plan.clone().unwrap_or_else(|| self.host.state_dir.join("fabric.plan")),
            tls,
        })
    }
}
