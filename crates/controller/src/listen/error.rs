//! Errors of serving a port.

use thiserror::Error;

/// Why a port is not served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A certificate or key is invalid.
    #[error("{what}: {problem}; write a PEM file")]
    Certificate { what: &'static str, problem: String },
    /// A file of revocation lists is invalid.
    #[error("revocation lists {}: {problem}; write the authority's lists as PEM", path.display())]
    Lists { path: std::path::PathBuf, problem: String },
    /// A file cannot be read.
    #[error("file {}: {problem}; make it readable", path.display())]
    Unreadable { path: std::path::PathBuf, problem: String },
    /// No client could be admitted.
    #[error(
        "agents need certificates, and no authority is configured; write `ca`, `cert` and `key`"
    )]
    NoCertificates,
    /// The listener or transport failed.
    #[error("agents cannot be served: {0}")]
    Transport(String),
}
