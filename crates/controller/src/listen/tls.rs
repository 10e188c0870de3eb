//! Loads the certificates of a listener from files, which may change while the program runs.
//!
//! The listener reads and validates all certificate files together. If a file is missing or
//! incomplete, or if the key does not match the certificate, the listener keeps the previous
//! contents. If all files are valid, later handshakes use the new contents. Open connections end
//! only if a new revocation list contains one of their certificates.
//!
//! # Revocation
//!
//! If revocation lists are configured, every certificate of a chain needs a list from its issuer.
//! If a certificate's issuer has no revocation list, the listener refuses the certificate chain. If
//! a revocation list has expired, the listener logs a warning and continues to use the list.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{CertificateError, Error as TlsError, RootCertStore, ServerConfig};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _};

use super::error::ServeError;
use super::places::Key;
use crate::wire::describe;

/// Paths of the PEM files that a listener uses for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFiles {
    /// CA that signed the clients' certificates.
    pub ca: PathBuf,
    /// Server certificate, with the intermediate certificates up to the CA.
    pub certificate: PathBuf,
    /// Private key of the server certificate.
    pub key: PathBuf,
    /// Revocation lists of the CA and of intermediate CAs.
    pub crl: Option<PathBuf>,
}

/// Contents of the CA, certificate and key files, and of the file of revocation lists, if one is
/// configured.
type Contents = ([Vec<u8>; 3], Option<Vec<u8>>);

/// TLS configuration of new handshakes, made from the last valid contents of the PEM files.
struct InForce {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    /// Time at which the first revocation list expires. `None` if no revocation list has an expiry
    /// time.
    lists_end: Option<SystemTime>,
}

/// TLS configuration of a listener.
#[derive(Clone)]
pub struct ServerTls {
    in_force: Arc<watch::Sender<Arc<InForce>>>,
    files: Option<PemFiles>,
    /// Possibly invalid contents of the PEM files at the last attempt to load the files.
    tried: Arc<RwLock<Option<Contents>>>,
}

/// Formats the files without the contents of the key, because a private key must not appear in
/// logs.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Makes a TLS configuration from the contents of PEM files. The configuration never changes
    /// later. The files are the CA of the clients, the server certificate with its intermediates,
    /// and the server's key.
    ///
    /// # Errors
    /// Returns an error if one of the files is invalid.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let contents = ([ca.to_vec(), certificate.to_vec(), key.to_vec()], None);
        let in_force = Arc::new(watch::Sender::new(Arc::new(make(&contents, None)?)));
        Ok(Self { in_force, files: None, tried: Arc::default() })
    }

    /// Reads a configuration from PEM files. [`Self::watch`] and [`Self::reload`] read the files
    /// again and apply changes.
    ///
    /// # Errors
    /// Returns an error if a file is invalid or cannot be read.
    pub fn open(files: PemFiles) -> Result<Self, ServeError> {
        let contents = read(&files)?;
        let made = make(&contents, files.crl.as_deref())?;
        let in_force = Arc::new(watch::Sender::new(Arc::new(made)));
        Ok(Self { in_force, files: Some(files), tried: Arc::new(RwLock::new(Some(contents))) })
    }

    /// Returns the TLS configuration for the next handshake.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.in_force.borrow().config)
    }

    /// Resolves when a certificate of `chain` is revoked. The first certificate of `chain` is the
    /// certificate of the peer.
    pub(super) async fn revoked(self, chain: Vec<CertificateDer<'static>>) {
        self.revoked_since(&chain, UnixTime::now()).await;
    }

    /// Resolves when a certificate of the peer's chain is revoked. The function checks the chain at
    /// the time `let_in`, at which the chain was valid, and not at the current time. With the
    /// current time, rustls would report only the expiry of an expired certificate, and not its
    /// revocation.
    async fn revoked_since(self, chain: &[CertificateDer<'static>], let_in: UnixTime) {
        let mut in_force = self.in_force.subscribe();
        let Some((own, between)) = chain.split_first() else { return };
        loop {
            let verifier = Arc::clone(&in_force.borrow_and_update().verifier);
            let found = verifier.verify_client_cert(own, between, let_in);
            if matches!(found, Err(TlsError::InvalidCertificate(CertificateError::Revoked))) {
                return;
            }
            // This never fails, because `self` has the sender.
            let _ = in_force.changed().await;
        }
    }

    /// Reads the PEM files again, if the configuration was made from files. Returns true if the
    /// files have changed and later handshakes use the new contents.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if the contents have changed and are invalid.
    /// After an error, the listener keeps the previous certificates. If the files are unchanged and
    /// still invalid, later calls return no error.
    pub fn reload(&self) -> Result<bool, ServeError> {
        let Some(files) = &self.files else { return Ok(false) };
        let contents = read(files)?;
        let mut tried = self.tried.write().unwrap_or_else(PoisonError::into_inner);
        if tried.as_ref() == Some(&contents) {
            return Ok(false);
        }
        let made = make(&contents, files.crl.as_deref());
        *tried = Some(contents);
        self.in_force.send_replace(Arc::new(made?));
        Ok(true)
    }

    /// Calls [`Self::reload`] and logs the result.
    pub fn reload_and_tell(&self) {
        match self.reload() {
            Ok(true) => tracing::info!(files = ?self.files, "new certificates are in use"),
            Ok(false) => {}
            Err(error) => tracing::warn!("the previous certificates are still in use: {error}"),
        }
    }

    /// Reloads the PEM files once per interval `every`, and logs the results. The returned future
    /// runs until the caller drops it.
    pub async fn watch(self, every: Duration) {
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missing = false;
        let mut told_end = None;
        loop {
            looks.tick().await;
            let end = self.in_force.borrow().lists_end;
            if end.is_some_and(|end| end < now()) && told_end != end {
                told_end = end;
                let crl = self.files.as_ref().and_then(|files| files.crl.as_deref());
                tracing::warn!(?crl, "a revocation list has expired but is still in use; renew it");
            }
            let tls = self.clone();
            let looked = tokio::task::spawn_blocking(move || tls.reload()).await;
            let was_missing = std::mem::take(&mut missing);
            match looked {
                Ok(Ok(true)) => {
                    tracing::info!(files = ?self.files, "new certificates are in use")
                }
                Ok(Err(error @ ServeError::Unreadable { .. })) => {
                    missing = true;
                    if !was_missing {
                        tracing::warn!("the previous certificates are still in use: {error}");
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!("the previous certificates are still in use: {error}")
                }
                Ok(Ok(false)) | Err(_) => {}
            }
        }
    }
}

fn read(files: &PemFiles) -> Result<Contents, ServeError> {
    let one = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| ServeError::Unreadable {
            path: path.clone(),
            problem: error.to_string(),
        })
    };
    let crl = files.crl.as_ref().map(one).transpose()?;
    Ok(([one(&files.ca)?, one(&files.certificate)?, one(&files.key)?], crl))
}

#[expect(clippy::disallowed_methods, reason = "the expiry time of a revocation list is a date")]
fn now() -> SystemTime {
    SystemTime::now()
}

pub(crate) fn lists(
    path: Option<&Path>,
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, ServeError> {
    let wrong = |problem| {
        let path = path.map(Path::to_path_buf).unwrap_or_default();
        ServeError::Lists { path, problem }
    };
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    let lists = lists.map_err(|error| wrong(describe(&error)))?;
    if lists.is_empty() {
        return Err(wrong("the file contains no revocation list".to_owned()));
    }
    Ok(lists)
}

/// Returns the time at which the first of the revocation lists expires.
fn first_end(lists: &[CertificateRevocationListDer<'_>]) -> Option<SystemTime> {
    let end = |list: &CertificateRevocationListDer<'_>| {
        let (_, list) = CertificateRevocationList::from_der(list).ok()?;
        let seconds = u64::try_from(list.next_update()?.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    lists.iter().filter_map(end).min()
}

fn make(contents: &Contents, crl: Option<&Path>) -> Result<InForce, ServeError> {
    let ([ca, certificate, key], revoked) = contents;
    let wrong = |what, error: &dyn std::error::Error| {
        let problem = describe(error);
        ServeError::Certificate { what, problem }
    };
    let (ca_is, certificate_is) = ("the authority's certificate", "the certificate");
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(ca).map_err(|error| wrong(ca_is, &error))?);
    let revoked = revoked.as_deref().map(|pem| lists(crl, pem)).transpose()?.unwrap_or_default();
    let lists_end = first_end(&revoked);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .with_crls(revoked)
        .build()
        .map_err(|error| match crl {
            Some(path) => ServeError::Lists { path: path.to_owned(), problem: describe(&error) },
            None => wrong(ca_is, &error),
        })?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("the key", &error))?;
    let chain = chain(certificate).map_err(|error| wrong(certificate_is, &error))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(certificate_is, &error))?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_single_cert(chain, key);
    let mut config = config.map_err(|error| wrong(certificate_is, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(InForce { config: Arc::new(config), verifier, lists_end })
}

/// Parses a chain of certificates in PEM format.
pub(crate) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

/// Parses CA certificates in PEM format.
pub(crate) fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let certificates = chain(pem).map_err(|error| TlsError::General(describe(&error)))?;
    for root in certificates {
        roots.add(root)?;
    }
    Ok(roots)
}

/// Returns the SHA-256 fingerprint of a certificate.
pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> Key {
    let mut key = Key::default();
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13();
    let hash = suite.map(|suite| suite.common.hash_provider.hash(certificate));
    if let Some(hash) = &hash {
        key.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
    }
    key
}

#[cfg(test)]
#[path = "../../tests/all/common/authority.rs"]
#[allow(dead_code, reason = "these tests use only a part of the module")]
mod authority;

#[cfg(test)]
mod tests {
    use super::authority::Authority;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_expired_in_its_session_can_be_revoked() {
        let authority = Authority::new();
        let own = authority.sign("controller");
        let peer = chain(authority.sign_until("server-0", 10, 2021).as_bytes()).unwrap();
        let contents = |lists: &str| {
            let files = [authority.pem(), own.0.clone(), own.1.clone()].map(String::into_bytes);
            (files, Some(lists.as_bytes().to_vec()))
        };
        let make = |lists: String| Arc::new(make(&contents(&lists), None).unwrap());
        let in_force = Arc::new(watch::Sender::new(make(authority.revokes(&[9], 2100))));
        let tls = ServerTls { in_force: Arc::clone(&in_force), files: None, tried: Arc::default() };
        // This time is in 2020, when the certificate was valid.
        let let_in = UnixTime::since_unix_epoch(Duration::from_secs(1_590_000_000));
        let session = tls.revoked_since(&peer, let_in);
        tokio::pin!(session);
        let limit = Duration::from_secs(60);
        assert!(tokio::time::timeout(limit, &mut session).await.is_err(), "it is on no list");
        in_force.send_replace(make(authority.revokes(&[10], 2100)));
        assert!(tokio::time::timeout(limit, session).await.is_ok(), "its session goes on");
    }
}
