//! The identity of a connection's peer.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::Status;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The peer of a connection. Every request on the connection carries it as an extension.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Names in the peer's certificate, if it showed one.
    pub names: Option<Arc<BTreeSet<String>>>,
    /// The limit of connections, if this connection exceeds it.
    pub crowded: Option<usize>,
}

impl Peer {
    /// Checks the limit of connections.
    ///
    /// # Errors
    /// The connection exceeds the limit.
    pub fn admitted(&self) -> Result<(), Status> {
        let Some(limit) = self.crowded else { return Ok(()) };
        let names = self.names.as_deref().into_iter().flatten();
        let names = names.map(String::as_str).collect::<Vec<_>>().join(", ");
        Err(Status::resource_exhausted(format!(
            "certificate of {names}: it may have {limit} connections at a time, and has them; end \
             others, give each program its own, or raise `connections_per_certificate`"
        )))
    }
}

/// Returns the names in a certificate (DER), which are its DNS names and its common name.
#[must_use]
pub(super) fn host_of_certificate(der: &[u8]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return names };
    let common = certificate.subject().iter_common_name();
    names.extend(common.filter_map(|name| name.as_str().ok()).map(str::to_owned));
    if let Ok(Some(others)) = certificate.subject_alternative_name() {
        for name in &others.value.general_names {
            if let GeneralName::DNSName(name) = name {
                names.insert((*name).to_owned());
            }
        }
    }
    names
}
