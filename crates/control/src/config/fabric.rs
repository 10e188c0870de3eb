//! `[fabric]`: makes a host a server of a fabric, and names the controllers whose plans the host
//! carries out.

use std::path::{Path, PathBuf};

use penstock_toml::text::is_default;
use penstock_toml::{Object, Report};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::host::HostSection;
use super::release::RateAllocation;
use super::values::{check_absolute, check_node};

const CONTROLLERS_MAX: usize = 16;

/// `[fabric]`: this host reports to a fabric's controller and carries out the controller's plans.
/// The controller sets the code points of tenants and the queues of the uplink. The daemon reads
/// the section `[fabric]` only at its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricSection {
    /// Name of this host in the topology, 1 to 63 characters; default `name` of `[host]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Addresses of 1 to 16 controllers, `"host:port"`. The host tries the controllers in the order
    /// of the list until it finds the leader.
    #[schemars(length(min = 1, max = 16))]
    pub controllers: Vec<String>,
    /// Name of the port into the fabric: a shared port with `egress = "wfq"`.
    pub uplink: String,
    /// Bandwidth of tenants that share queue 0. With `"spare"`, each pair of VMs may also use
    /// bandwidth that nobody else uses, if the other host has the same setting. Default
    /// `"guarantee"`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rate_allocation: RateAllocation,
    /// Absolute path of the file with the last plan. Default: `fabric.plan` in `state_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PathBuf>,
    /// Certificates; default: none, connections are neither encrypted nor authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<FabricTls>,
}

/// Certificates in PEM files, as in `tls = { ca = "...", cert = "...", key = "..." }`. Relative
/// paths begin at the configuration file's directory. The daemon reads the certificate files again
/// for each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { ca = \"ca.pem\", cert = \"host.pem\", key = \"host.key\" }"
)]
pub struct FabricTls {
    /// Certificate of the authority that signs the controllers' certificates.
    pub ca: PathBuf,
    /// Certificate of this host, which contains the host's name in the topology.
    pub cert: PathBuf,
    /// File of the private key of the certificate `cert`.
    pub key: PathBuf,
    /// Revocation lists of the authority `ca`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// Server name that the certificates of all controllers contain. Default `controller`.
    #[serde(default = "server_name")]
    pub server_name: String,
}

fn server_name() -> String {
    "controller".to_owned()
}

impl FabricSection {
    /// Checks the keys of the section `[fabric]`.
    pub(super) fn check(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        check_node(object, self.name.as_deref(), "server", report);
        check_absolute(object, "plan", self.plan.as_deref(), report);
        if self.tls.as_ref().is_some_and(|tls| tls.server_name.is_empty()) {
            let problem = "`server_name` is empty";
            report.at(object, "tls.server_name", problem, "write the name from the certificates");
        }
        self.check_controllers(object, report);
    }

    fn check_controllers(&self, object: &Object<'_, Self>, report: &mut Report<'_>) {
        let number = self.controllers.len();
        if number == 0 || number > CONTROLLERS_MAX {
            let problem = format!("{number} controllers; there can be 1 to {CONTROLLERS_MAX}");
            report.at(
                object,
                "controllers",
                problem,
                "name the controllers that this host may use",
            );
        }
        let addresses = self.controllers.iter().map(|controller| {
            controller.split_once("://").map_or(controller.as_str(), |(_, address)| address)
        });
        report.twice(object, "controllers", &addresses.collect::<Vec<_>>());
        for (at, controller) in self.controllers.iter().enumerate() {
            let path = format!("controllers.{at}");
            let (scheme, address) = match controller.split_once("://") {
                Some((scheme, address)) => (Some(scheme), address),
                None => (None, controller.as_str()),
            };
            let is_host = |host: &str| !host.is_empty() && !host.contains(char::is_whitespace);
            let named = address.rsplit_once(':').filter(|(host, _)| is_host(host));
            let port = named.and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none_or(|port| port == 0) {
                let problem = format!("{controller:?} has no host or no port");
                report.at(object, &path, problem, "write host and port, as in \"10.0.0.1:7000\"");
            }
            let (wrong, remedy) = match (scheme, &self.tls) {
                (None, _) | (Some("https"), Some(_)) | (Some("http"), None) => continue,
                (Some("https"), None) => ("an https address, but `tls` is not set", "add `tls`"),
                (Some("http"), Some(_)) => ("an http address, but `tls` is set", "write https://"),
                _ => ("neither http:// nor https://", "write host:port"),
            };
            report.at(object, &path, format!("{controller:?} is {wrong}"), remedy);
        }
    }
}

/// The section `[fabric]` with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTerms {
    /// The server's name in the topology.
    pub name: String,
    /// Addresses of the controllers, in the order of preference.
    pub controllers: Vec<String>,
    /// Absolute path of the file with the last plan.
    pub plan: PathBuf,
    /// Files of the certificates, with absolute paths. `None` means that connections are not
    /// encrypted.
    pub tls: Option<FabricTls>,
}

impl FabricSection {
    /// Converts `[fabric]` to values for the agent, with the defaults of this host. Relative paths
    /// begin at the directory `directory`.
    pub(super) fn terms(&self, host: &HostSection, directory: &Path) -> AgentTerms {
        let tls = self.tls.as_ref().map(|tls| FabricTls {
            ca: directory.join(&tls.ca),
            cert: directory.join(&tls.cert),
            key: directory.join(&tls.key),
            crl: tls.crl.as_ref().map(|crl| directory.join(crl)),
            server_name: tls.server_name.clone(),
        });
        AgentTerms {
            name: self.name.clone().unwrap_or_else(|| host.name.clone()),
            controllers: self.controllers.clone(),
            plan: self.plan.clone().unwrap_or_else(|| host.state_dir.join("fabric.plan")),
            tls,
        }
    }
}
