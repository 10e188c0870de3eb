//! `[switch]`: a host that is a switch of a fabric, and who may set its queues.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[switch]`: a controller sets weights and maps of this host's ports, as of any other switch of
/// its fabric. Read when the daemon starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchSection {
    /// This switch's name in the topology, 1 to 63 characters. Default: `name` of `[host]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The ports that it sets, each with `egress = "wfq"`. Default: all that have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Where controllers connect, address and port; needs `tls`. Default: only the API's socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Certificates for `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenTls>,
    /// File of what it was told last, an absolute path. Default: `switch.plan` in `state_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PathBuf>,
}

/// `tls = { ca = "...", cert = "...", key = "..." }`: PEM files, as seen from the configuration
/// file's directory. They are read anew when they change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenTls {
    /// Who signed the controllers' certificates.
    pub ca: PathBuf,
    /// This switch's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Revocation lists of those who signed the controllers' certificates. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// Names of which a controller's certificate must have one. Default: `controller`.
    #[serde(default = "controllers")]
    #[schemars(length(min = 1, max = 16))]
    pub controllers: Vec<String>,
}

fn controllers() -> Vec<String> {
    vec!["controller".to_owned()]
}
