//! Certificates of a port. They may change while the port is served.
//!
//! A handshake uses the certificates that are in force at that time. If the certificates change, an
//! admitted connection continues. The connection ends only if a new revocation list contains one of
//! its certificates. Files are read and validated as a whole. While a file is missing or
//! incomplete, or the key does not match the certificate, the previous files stay in force.
//!
//! # Revocation
//!
//! If there are lists, every certificate between the peer's and the CA needs a list of its issuer.
//! Without such a list, the certificate is refused. An expired list stays in force, and the port
//! logs a warning. Certificates in the list are still refused, and others are still admitted.

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

/// Paths of PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFiles {
    /// CA of the clients' certificates.
    pub ca: PathBuf,
    /// Server certificate, with the intermediate certificates up to the CA.
    pub certificate: PathBuf,
    /// Private key of the server certificate.
    pub key: PathBuf,
    /// Revocation lists of the CA and of intermediate CAs.
    pub crl: Option<PathBuf>,
}

/// Contents of the files. The first three are CA, certificate and key. The last is the revocation
/// lists.
type Contents = ([Vec<u8>; 3], Option<Vec<u8>>);

/// Configuration of handshakes.
struct InForce {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    /// When the first revocation list expires.
    lists_end: Option<SystemTime>,
}

/// TLS configuration of a port.
#[derive(Clone)]
pub struct ServerTls {
    in_force: Arc<watch::Sender<Arc<InForce>>>,
    files: Option<PemFiles>,
    /// Contents that were tried last, even if they are not valid.
    tried: Arc<RwLock<Option<Contents>>>,
}

/// Leaves out the key, because it must not appear in logs.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Makes a fixed configuration from the contents of PEM files. The files are the CA of the
    /// clients, the server certificate with its intermediates, and the key of the server
    /// certificate.
    ///
    /// # Errors
    /// One of the files is invalid.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let contents = ([ca.to_vec(), certificate.to_vec(), key.to_vec()], None);
        let in_force = Arc::new(watch::Sender::new(Arc::new(make(&contents, None)?)));
        Ok(Self { in_force, files: None, tried: Arc::default() })
    }

    /// Reads a configuration from files. [`Self::watch`] and [`Self::reload`] read them again when
    /// they change.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn open(files: PemFiles) -> Result<Self, ServeError> {
        let contents = read(&files)?;
        let made = make(&contents, files.crl.as_deref())?;
        let in_force = Arc::new(watch::Sender::new(Arc::new(made)));
        Ok(Self { in_force, files: Some(files), tried: Arc::new(RwLock::new(Some(contents))) })
    }

    /// Returns the configuration of the next handshake.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.in_force.borrow().config)
    }

    /// Resolves when one of these certificates, the peer's first, is revoked.
    pub(super) async fn revoked(self, chain: Vec<CertificateDer<'static>>) {
        self.revoked_since(&chain, UnixTime::now()).await;
    }

    /// Checks the certificates as of the time of admission. If a certificate has expired since
    /// then, rustls would report the expiry and not check the lists.
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

    /// Reads the files again, if the configuration has files. Returns true if they had changed and
    /// are now in force.
    ///
    /// # Errors
    /// The files have changed, and one of them cannot be read or is invalid. The previous files
    /// stay in force. The same contents cause only one error.
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
            Ok(true) => tracing::info!(files = ?self.files, "new certificates in force"),
            Ok(false) => {}
            Err(error) => tracing::warn!("the former certificates stay in force: {error}"),
        }
    }

    /// Checks the files at this interval. A check takes a few small reads. This future never ends.
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
                tracing::warn!(?crl, "a revocation list has expired but stays in force; renew it");
            }
            let tls = self.clone();
            let looked = tokio::task::spawn_blocking(move || tls.reload()).await;
            let was_missing = std::mem::take(&mut missing);
            match looked {
                Ok(Ok(true)) => {
                    tracing::info!(files = ?self.files, "new certificates in force")
                }
                Ok(Err(error @ ServeError::Unreadable { .. })) => {
                    missing = true;
                    if !was_missing {
                        tracing::warn!("the former certificates stay in force: {error}");
                    }
                }
                Ok(Err(error)) => tracing::warn!("the former certificates stay in force: {error}"),
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

#[expect(clippy::disallowed_methods, reason = "a revocation list says until when it is true")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Parses revocation lists in PEM.
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
        return Err(wrong("there is no list in it".to_owned()));
    }
    Ok(lists)
}

/// Returns the time at which the first of these lists expires.
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

/// Parses certificates in PEM.
pub(crate) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

/// Parses CA certificates in PEM.
pub(crate) fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let certificates = chain(pem).map_err(|error| TlsError::General(describe(&error)))?;
    for root in certificates {
        roots.add(root)?;
    }
    Ok(roots)
}

/// SHA-256 of a certificate.
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
#[allow(dead_code, reason = "not all of it is used here")]
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
