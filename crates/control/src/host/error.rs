//! Errors of requests and of the daemon's start.

use core::fmt;

use serde::Serialize;

use crate::config::{ConfigError, ConfigErrors};

/// Kind of an error of a request. The kind of an error determines the exit status or status code of
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The object that the request names does not exist.
    NotFound,
    /// The request is invalid, or makes the configuration invalid.
    Invalid,
    /// The request contradicts the current state, for example because the name is taken or another
    /// program changed the file.
    Conflict,
    /// The request was valid but failed, for example because the interface is in use, the disk is
    /// full, or a worker does not answer. Nothing was changed.
    Failed,
}

/// Error of a request to the host's API. Nothing was changed.
///
/// The text of an error is, for example, `port "vm3": there is no such port; see penstock port
/// list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiError {
    pub kind: ErrorKind,
    /// Kind and name of the object to which the error applies, as in `port "vm3"`.
    pub object: String,
    /// The mistake in the request, with the wrong value and its limit.
    pub problem: String,
    pub remedy: String,
}

impl ApiError {
    pub(crate) fn new(
        kind: ErrorKind,
        object: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { kind, object: object.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.problem, self.remedy)
    }
}

impl core::error::Error for ApiError {}

impl From<ConfigErrors> for ApiError {
    /// Returns the first mistake of a configuration as the error. The error's remedy lists the
    /// further mistakes of the configuration.
    fn from(errors: ConfigErrors) -> Self {
        let mut errors = errors.0.into_iter();
        let Some(ConfigError { object, problem, mut remedy, .. }) = errors.next() else {
            return Self::new(ErrorKind::Invalid, "configuration", "it is wrong", "check it");
        };
        for other in errors {
            let other = ConfigError { file: String::new(), line: 0, column: 0, ..other };
            remedy.push_str(&format!("\nalso: {other}"));
        }
        Self { kind: ErrorKind::Invalid, object, problem, remedy }
    }
}

/// Reason why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The configuration file has mistakes.
    #[error("{0}")]
    Config(ConfigErrors),
    /// The daemon cannot start: the configuration does not fit this machine, a worker failed, or
    /// the first snapshot failed.
    #[error("{0}")]
    Api(ApiError),
}

impl From<ApiError> for HostError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<ConfigErrors> for HostError {
    fn from(errors: ConfigErrors) -> Self {
        Self::Config(errors)
    }
}
