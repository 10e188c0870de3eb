//! Certificates of a port, and that they may change while it is served.
//!
//! **Rule.** Each handshake is by the certificates of its moment; a connection that was let in goes
//! on whatever becomes of them. Files are read whole and tried before they count: while one is
//! missing or half written, or the key is another certificate's, those of before stay.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::ServeError;
use super::places::Key;
use crate::wire::describe;

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFiles {
    /// The authority that signs the certificates of who connects.
    pub ca: PathBuf,
    /// Who this is, with the certificates between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The three files' contents.
type Contents = [Vec<u8>; 3];

/// Certificates of a port.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<RwLock<Arc<ServerConfig>>>,
    files: Option<PemFiles>,
    /// What was tried last, good or not.
    tried: Arc<RwLock<Option<Contents>>>,
}

/// The key stays out of logs.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// From the contents of PEM files: the authority that signs the certificates of who connects,
    /// the certificate with those between it and the authority, and its key. They do not change.
    ///
    /// # Errors
    /// One of them is not what it should be.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let config = Arc::new(RwLock::new(config(ca, certificate, key)?));
        Ok(Self { config, files: None, tried: Arc::default() })
    }

    /// From files, which may change: see [`Self::watch`] and [`Self::reload`].
    ///
    /// # Errors
    /// One of them cannot be read, or is not what it should be.
    pub fn open(files: PemFiles) -> Result<Self, ServeError> {
        let contents = read(&files)?;
        let [ca, certificate, key] = &contents;
        let mut tls = Self::new(ca, certificate, key)?;
        (tls.files, tls.tried) = (Some(files), Arc::new(RwLock::new(Some(contents))));
        Ok(tls)
    }

    /// What the next handshake is by.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again, if they are any; whether they had changed and are in force now.
    ///
    /// # Errors
    /// They have changed, and one of them cannot be read or is not what it should be: those of
    /// before stay. The same contents are told of once.
    pub fn reload(&self) -> Result<bool, ServeError> {
        let Some(files) = &self.files else { return Ok(false) };
        let contents = read(files)?;
        let mut tried = self.tried.write().unwrap_or_else(PoisonError::into_inner);
        if tried.as_ref() == Some(&contents) {
            return Ok(false);
        }
        let [ca, certificate, key] = &contents;
        let made = config(ca, certificate, key);
        *tried = Some(contents);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = made?;
        Ok(true)
    }

    /// As [`Self::reload`], told in the log.
    pub fn reload_and_tell(&self) {
        match self.reload() {
            Ok(true) => tracing::info!(files = ?self.files, "new certificates are in force"),
            Ok(false) => {}
            Err(error) => tracing::warn!("certificates stay as they were: {error}"),
        }
    }

    /// Looks at the files that often, which are three small reads. Never ends.
    pub async fn watch(self, every: Duration) {
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missing = false;
        loop {
            looks.tick().await;
            let tls = self.clone();
            let looked = tokio::task::spawn_blocking(move || tls.reload()).await;
            let was_missing = std::mem::take(&mut missing);
            match looked {
                Ok(Ok(true)) => {
                    tracing::info!(files = ?self.files, "new certificates are in force")
                }
                Ok(Err(error @ ServeError::Unreadable { .. })) => {
                    missing = true;
                    if !was_missing {
                        tracing::warn!("certificates stay as they were: {error}");
                    }
                }
                Ok(Err(error)) => tracing::warn!("certificates stay as they were: {error}"),
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
    Ok([one(&files.ca)?, one(&files.certificate)?, one(&files.key)?])
}

fn config(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, ServeError> {
    let wrong = |what, error: &dyn std::error::Error| {
        let problem = describe(error);
        ServeError::Certificate { what, problem }
    };
    let (ca_is, certificate_is) = ("the authority's certificate", "the certificate");
    let read = |what, pem| -> Result<Vec<CertificateDer<'static>>, ServeError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        all.map_err(|error| wrong(what, &error))
    };
    let mut roots = RootCertStore::empty();
    for root in read(ca_is, ca)? {
        roots.add(root).map_err(|error| wrong(ca_is, &error))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| wrong(ca_is, &error))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("the key", &error))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(certificate_is, &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(read(certificate_is, certificate)?, key);
    let mut config = config.map_err(|error| wrong(certificate_is, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
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
