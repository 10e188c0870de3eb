//! Why a port is not served.

use thiserror::Error;

/// Why a port is not served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Of the certificates or the key.
    #[error("{what}: {problem}; write a PEM file")]
    Certificate {
        /// Which.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Of a file of revocation lists.
    #[error("revocation lists {}: {problem}; write the authority's lists as PEM", path.display())]
    Lists {
        /// Which.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A file.
    #[error("file {}: {problem}; make it readable", path.display())]
    Unreadable {
        /// Which.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Nobody could be let in.
    #[error(
        "agents need certificates, and no authority is configured; write `ca`, `cert` and `key`"
    )]
    NoCertificates,
    /// The port.
    #[error("agents cannot be served: {0}")]
    Transport(String),
}
