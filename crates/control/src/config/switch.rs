//! `[switch]`: makes a host a switch of a fabric, and names the controllers that may set its
//! queues.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_toml::{Object, Report};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::host::HostSection;
use super::release::Egress;
use super::values::{check_absolute, check_node};

const CONTROLLERS_MAX: usize = 16;

/// `[switch]`: this host is a switch of a fabric. The fabric's controller sets the weights of the
/// queues, and maps code points to queues. The daemon reads the section `[switch]` only at its
/// start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchSection {
    /// This switch's name in the topology, 1 to 63 characters. Default: `name` of `[host]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Names of the ports with queues that the controller sets. Each port in the list needs `egress
    /// = "wfq"`. By default, the controller sets the queues of all ports with `egress = "wfq"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Address and port to which controllers connect. The key `listen` needs `tls`. By default,
    /// controllers connect to the Unix socket of the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Certificates for `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenTls>,
    /// Absolute path of the file with the last queues that a controller set. Default: `switch.plan`
    /// in `state_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PathBuf>,
}

/// Certificates in PEM files, as in `tls = { ca = "...", cert = "...", key = "..." }`. Relative
/// paths begin at the configuration file's directory. The daemon reads the certificate files again
/// when they change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { ca = \"ca.pem\", cert = \"leaf.pem\", key = \"leaf.key\" }"
)]
pub struct ListenTls {
    /// Certificate of the authority that signs the controllers' certificates.
    pub ca: PathBuf,
    /// This switch's certificate.
    pub cert: PathBuf,
    /// File of the private key of the certificate `cert`.
    pub key: PathBuf,
    /// Revocation lists of the authority `ca`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// Names of controllers that the host accepts, 1 to 16 names. The certificate of a connecting
    /// controller must contain one of the names in `controllers`. Default: `controller`.
    #[serde(default = "controllers")]
    #[schemars(length(min = 1, max = 16))]
    pub controllers: Vec<String>,
}

fn controllers() -> Vec<String> {
    vec!["controller".to_owned()]
}

impl SwitchSection {
    /// Returns true if controllers set the queues of the port `name`, whose key `egress` has the
    /// value `egress`.
    pub(crate) fn sets(&self, name: &str, egress: Egress) -> bool {
        egress == Egress::Wfq
            && (self.ports.is_empty() || self.ports.iter().any(|port| port == name))
    }

    /// Checks the keys of the section `[switch]`.
    pub(super) fn check(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        check_node(object, self.name.as_deref(), "switch", report);
        check_absolute(object, "plan", self.plan.as_deref(), report);
        report.twice(object, "ports", &self.ports);
        self.check_listen(object, report);
    }

    fn check_listen(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        match (&self.listen, &self.tls) {
            (Some(_), None) => {
                let problem = "any program that reaches the `listen` address could set queues";
                report.at(object, "listen", problem, "add `tls`, or remove `listen`");
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
        report.twice(object, "tls.controllers", &tls.controllers);
        let number = tls.controllers.len();
        if number == 0 || number > CONTROLLERS_MAX || tls.controllers.iter().any(String::is_empty) {
            let problem = match number {
                1..=CONTROLLERS_MAX => "`controllers` has an empty name".to_owned(),
                _ => format!("`controllers` has {number} names, not 1 to {CONTROLLERS_MAX}"),
            };
            let remedy = format!("write 1 to {CONTROLLERS_MAX} names from certificates");
            report.at(object, "tls.controllers", problem, remedy);
        }
    }
}

/// The section `[switch]` with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchTerms {
    /// The switch's name in the topology.
    pub name: String,
    /// Address to which controllers connect, and certificates with absolute paths.
    pub listen: Option<(SocketAddr, ListenTls)>,
    /// Path of the file with the last queues that a controller set.
    pub plan: PathBuf,
}

impl SwitchSection {
    /// Converts `[switch]` to values for the switch's session with its controllers, with the
    /// defaults of this host. Relative paths begin at the directory `directory`.
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
