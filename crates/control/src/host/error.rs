//! Why a request could not be done.

use core::fmt;

use serde::Serialize;

use crate::config::{ConfigError, ConfigErrors};

/// What kind of refusal it is; clients choose their exit status or status code by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// There is no such object.
    NotFound,
    /// The request, or the configuration it would lead to, is wrong.
    Invalid,
    /// It contradicts the present state: the name is taken, the file was changed by someone else.
    Conflict,
    /// It was right but did not succeed: the interface is in use, the disk is full, the worker
    /// does not answer. Nothing was changed.
    Failed,
}

/// A request that was not done. Nothing was changed.
///
/// Shown as `port "vm3": there is no such port; see penstock port list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiError {
    /// What kind of refusal.
    pub kind: ErrorKind,
    /// `port "vm3"`.
    pub object: String,
    /// What is wrong, with the value and the limit.
    pub problem: String,
    /// What to do.
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
    /// The first mistake; the others are appended to its remedy.
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
