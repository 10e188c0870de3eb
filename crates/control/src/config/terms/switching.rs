//! The part of a fabric's switch: where controllers find it, and which ports they set.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::super::model::{HostConfig, Port};
use super::super::release::Egress;
use super::super::switching::{ListenTls, SwitchSection};

/// A host as a switch, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switching {
    /// The switch's name in the topology.
    pub name: String,
    /// Where controllers connect, and by which certificates, from the root.
    pub listen: Option<(SocketAddr, ListenTls)>,
    /// File of what it was told last.
    pub plan: PathBuf,
}

impl SwitchSection {
    /// Whether it sets this port.
    pub(crate) fn sets(&self, port: &Port) -> bool {
        port.egress == Egress::Wfq && (self.ports.is_empty() || self.ports.contains(&port.name))
    }
}

impl HostConfig {
    /// The host as a switch, if it is one; relative paths begin at `directory`.
    #[must_use]
    pub fn switching(&self, directory: &Path) -> Option<Switching> {
        let switch = self.switch.as_ref()?;
        let tls = switch.tls.as_ref().map(|tls| ListenTls {
            ca: directory.join(&tls.ca),
            cert: directory.join(&tls.cert),
            key: directory.join(&tls.key),
            crl: tls.crl.as_ref().map(|crl| directory.join(crl)),
            controllers: tls.controllers.clone(),
        });
        Some(Switching {
            name: switch.name.clone().unwrap_or_else(|| self.host.name.clone()),
            listen: switch.listen.zip(tls),
            plan: switch.plan.clone().unwrap_or_else(|| self.host.state_dir.join("switch.plan")),
        })
    }
}
