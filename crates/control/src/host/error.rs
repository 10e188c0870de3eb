//! Errors of requests and of the daemon's start.

use core::fmt;

use serde::Serialize;

use crate::config::{ConfigError, ConfigErrors};

/// Kind of an error. It determines the exit status or status code of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The object does not exist.
    NotFound,
    /// The request, or the configuration after it, is invalid.
    Invalid,
    /// The request contradicts the current state: the name is taken, or another program changed the
    /// file.
    Conflict,
    /// The request was valid but failed: the interface is in use, the disk is full, the worker does
    /// not answer. Nothing was changed.
    Failed,
}

/// The error of a request. Nothing was changed.
///
/// Shown as `port "vm3": there is no such port; see penstock port list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiError {
    pub kind: ErrorKind,
    /// `port "vm3"`.
    pub object: String,
    /// The mistake, with value and limit.
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
    /// The first mistake. The others are appended to its remedy.
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

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The configuration has mistakes.
    #[error("{0}")]
    Config(ConfigErrors),
    /// The configuration does not fit this machine, or the worker or its first snapshot failed.
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
