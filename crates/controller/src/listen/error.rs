//! Defines the errors that prevent a listener from accepting connections.

use thiserror::Error;

/// Reason why a listener cannot accept connections.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A certificate or key of the listener is invalid.
    #[error("{what}: {problem}; write a PEM file")]
    Certificate { what: &'static str, problem: String },
    /// A file of revocation lists is invalid.
    #[error("revocation lists {}: {problem}; write the CA's lists as PEM", path.display())]
    Lists { path: std::path::PathBuf, problem: String },
    /// A file of certificates, keys or revocation lists cannot be read.
    #[error("file {}: {problem}; make the file readable", path.display())]
    Unreadable { path: std::path::PathBuf, problem: String },
    /// Agents need certificates, but no CA is configured.
    #[error(
        "agents need certificates, and no authority is configured; write `ca`, `cert` and `key`"
    )]
    NoCertificates,
    /// The listener or transport failed.
    #[error("agents cannot be served: {0}")]
    Transport(String),
}
