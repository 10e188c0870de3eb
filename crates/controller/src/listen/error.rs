//! Why a port is not served.

use thiserror::Error;

/// Why a port is not served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Of the certificates or the key.
    #[error("{what}: {problem}; give it as a PEM file")]
    Certificate {
        /// Which.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Of a file of revocation lists.
    #[error("revocation lists {}: {problem}; give lists of the authority as PEM", path.display())]
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
    #[error("agents must show certificates, and there are none to check them by; name the files")]
    NoCertificates,
    /// The port.
    #[error("agents cannot be served: {0}")]
    Transport(String),
}
