//! Who is at the other end of a connection.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::Status;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Who is at the other end of a connection: in the extensions of each of its requests.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The names in its certificate, if it has shown one.
    pub names: Option<Arc<BTreeSet<String>>>,
    /// It is one too many: of so many that there may be.
    pub crowded: Option<usize>,
}

impl Peer {
    /// What whoever is one too many is told.
    ///
    /// # Errors
    /// It is one too many.
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

/// The names in a certificate (DER): its DNS names, and its common name.
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
