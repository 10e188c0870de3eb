//! Waits for the answers of switches and hosts, and says why one failed.

use std::fmt;
use std::time::Duration;

use crate::southbound::DriverError;

/// Reason why a switch or host failed.
pub(super) struct Said {
    pub(super) problem: String,
    pub(super) refused: bool,
}

impl Said {
    pub(super) fn failed(error: &dyn fmt::Display) -> Self {
        Self { problem: error.to_string(), refused: false }
    }
}

impl From<DriverError> for Said {
    fn from(error: DriverError) -> Self {
        let refused = matches!(error, DriverError::Refused { .. } | DriverError::Beyond { .. });
        Self { problem: error.to_string(), refused }
    }
}

/// Waits for the answer of a switch or host for `limit`, and then for the time that `more` returns.
pub(super) async fn within<T>(
    limit: Duration,
    name: &str,
    work: impl Future<Output = Result<T, Said>>,
    more: impl Fn() -> Option<Duration>,
) -> Result<T, Said> {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(limit, work.as_mut()).await {
        return done;
    }
    let more = more().unwrap_or_default();
    let millis = (limit + more).as_millis();
    let late = |_| Err(Said::failed(&format!("{name}: no answer within {millis} ms")));
    tokio::time::timeout(more, work).await.unwrap_or_else(late)
}
