//! `[fabric]`: a host that is part of a fabric, and who tells it code points and queues.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[fabric]`: this host reports to a controller and does what that says. Code points of tenants
/// and the queues of the uplink are the controller's then. Read when the daemon starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricSection {
    /// This server's name in the topology, 1 to 63 characters. Default: `name` of `[host]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Controllers, 1 to 16: `"host:port"`, asked in this order until one leads.
    #[schemars(length(min = 1, max = 16))]
    pub controllers: Vec<String>,
    /// The port into the fabric: a shared port with `egress = "wfq"`.
    pub uplink: String,
    /// File of the last plan, an absolute path. Default: `fabric.plan` in `state_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PathBuf>,
    /// Certificates. Default: none, nothing is encrypted and nobody proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<FabricTls>,
}

/// `tls = { ca = "...", cert = "...", key = "..." }`: PEM files, as seen from the configuration
/// file's directory. They are read anew for each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricTls {
    /// Who signed the controllers' certificates.
    pub ca: PathBuf,
    /// This host's certificate, with its name in the topology.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Revocation lists of those who signed the controllers' certificates. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// The name that every controller's certificate has. Default `controller`.
    #[serde(default = "server_name")]
    pub server_name: String,
}

fn server_name() -> String {
    "controller".to_owned()
}
