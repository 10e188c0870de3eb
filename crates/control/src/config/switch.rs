//! `[switch]`: a host as a switch of a fabric, and the controllers that may set its queues.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_toml::{Object, Report};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::host::HostSection;
use super::release::Egress;
use super::values::{check_absolute, check_node};

const CONTROLLERS_MAX: usize = 16;

/// `[switch]`: this host is a switch of a fabric, and the fabric's controller sets the weights and
/// maps of its ports. The daemon reads this section only at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchSection {
    /// This switch's name in the topology, 1 to 63 characters. Default: `name` of `[host]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Names of the ports that the controller sets, each with `egress = "wfq"`. Default: all such
    /// ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Address and port where controllers connect. Needs `tls`. Default: none, only the API's
    /// socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Certificates for `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenTls>,
    /// Absolute path of the file with the last weights and maps. Default: `switch.plan` in
    /// `state_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PathBuf>,
}

/// `tls = { ca = "...", cert = "...", key = "..." }`: PEM files. Relative paths begin at the
/// configuration file's directory. The files are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenTls {
    /// Certificate of the authority that signs the controllers' certificates.
    pub ca: PathBuf,
    /// This switch's certificate.
    pub cert: PathBuf,
    /// Private key of `cert`.
    pub key: PathBuf,
    /// Revocation lists of that authority. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// Accepted names. A controller's certificate must have one of them. Default: `controller`.
    #[serde(default = "controllers")]
    #[schemars(length(min = 1, max = 16))]
    pub controllers: Vec<String>,
}

fn controllers() -> Vec<String> {
    vec!["controller".to_owned()]
}

impl SwitchSection {
    /// Whether controllers set the queues of port `name` with this `egress`.
    pub(crate) fn sets(&self, name: &str, egress: Egress) -> bool {
        egress == Egress::Wfq
            && (self.ports.is_empty() || self.ports.iter().any(|port| port == name))
    }

    /// Checks the section by itself.
    pub(super) fn check(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        check_node(object, self.name.as_deref(), "switch", report);
        check_absolute(object, "plan", self.plan.as_deref(), report);
        self.check_listen(object, report);
    }

    fn check_listen(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        match (&self.listen, &self.tls) {
            (Some(_), None) => {
                let problem = "anyone who can reach `listen` could set queues";
                report.at(object, "listen", problem, "add `tls`, or remove it and use the socket");
            }
            (None, Some(_)) => {
                report.at(
                    object,
                    "tls",
                    "`tls` without `listen`",
                    "add `listen`, the address for controllers",
                );
            }
            _ => {}
        }
        let Some(tls) = &self.tls else { return };
        let number = tls.controllers.len();
        if number == 0 || number > CONTROLLERS_MAX || tls.controllers.iter().any(String::is_empty) {
            let problem = format!("`controllers` has {number} names, or an empty name");
            let remedy = format!("write 1 to {CONTROLLERS_MAX} names in their certificates");
            report.at(object, "tls.controllers", problem, remedy);
        }
    }
}

/// `[switch]` with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchTerms {
    /// The switch's name in the topology.
    pub name: String,
    /// Address where controllers connect, and certificates with absolute paths.
    pub listen: Option<(SocketAddr, ListenTls)>,
    /// File of the last queues that a controller set.
    pub plan: PathBuf,
}

impl SwitchSection {
    /// Fills in the defaults of host `host`. Relative paths begin at `directory`.
    pub(super) fn terms(&self, host: &HostSection, directory: &Path) -> SwitchTerms {
        let tls = self.tls.as_ref().map(|tls| ListenTls {
            ca: directory.join(&tls.ca),
            cert: directory.join(&tls.cert),
            key: directory.join(&tls.key),
            crl: tls.crl.as_ref().map(|crl| directory.join(crl)),
            controllers: tls.controllers.clone(),
        });
        SwitchTerms {
            name: self.name.clone().unwrap_or_else(|| host.name.clone()),
            listen: self.listen.zip(tls),
            plan: self.plan.clone().unwrap_or_else(|| host.state_dir.join("switch.plan")),
        }
    }
}
