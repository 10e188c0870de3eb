//! Identifies the peer of a connection by its certificate.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::Status;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Identity of a connection's peer. The server adds the peer's identity to every request on the
/// connection, as an extension of the request.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Names in the peer's certificate. `None` if the peer showed no certificate.
    pub names: Option<Arc<BTreeSet<String>>>,
    /// Maximum number of connections with the peer's certificate, if the connection exceeds the
    /// maximum.
    pub crowded: Option<usize>,
}

impl Peer {
    /// Checks that the connection is within the limit of its certificate.
    ///
    /// # Errors
    /// Returns an error if the connection exceeds the limit.
    pub fn admitted(&self) -> Result<(), Status> {
        let Some(limit) = self.crowded else { return Ok(()) };
        let names = self.names.as_deref().into_iter().flatten();
        let names = names.map(String::as_str).collect::<Vec<_>>().join(", ");
        Err(Status::resource_exhausted(format!(
            "certificate of {names}: the certificate has the maximum of {limit} connections; close \
             some connections, give each program its own certificate, or raise \
             `connections_per_certificate`"
        )))
    }
}

/// Returns the DNS names and the common name of a certificate in DER. An invalid certificate has no
/// names.
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
