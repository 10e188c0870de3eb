//! Waits for the answers of switches and hosts, and says why one failed.

use std::fmt;
use std::time::Duration;

use crate::hosts::HostError;
use crate::southbound::DriverError;

/// Reason why a switch or host failed.
#[derive(Debug)]
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

impl From<HostError> for Said {
    fn from(error: HostError) -> Self {
        Self { problem: error.to_string(), refused: matches!(error, HostError::Failed { .. }) }
    }
}

/// Waits for the answer of a switch or host for `limit`, and then as long as `more` returns a time.
pub(super) async fn within<T>(
    limit: Duration,
    name: &str,
    work: impl Future<Output = Result<T, Said>>,
    more: impl Fn() -> Option<Duration>,
) -> Result<T, Said> {
    let mut work = std::pin::pin!(work);
    let (mut waited, mut next) = (Duration::ZERO, Some(limit));
    while let Some(time) = next {
        if let Ok(done) = tokio::time::timeout(time, work.as_mut()).await {
            return done;
        }
        waited += time;
        // A change may have several steps, each with a wait of its own.
        next = more();
    }
    Err(Said::failed(&format!("{name}: no answer within {} ms", waited.as_millis())))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_patient_driver_may_ask_for_more_time_more_than_once() {
        let second = Duration::from_secs(1);
        let asked = Cell::new(0);
        let twice = || {
            asked.set(asked.get() + 1);
            (asked.get() <= 2).then_some(second)
        };
        let work = async {
            sleep(second * 5 / 2).await;
            Ok(7)
        };
        let done = within(second, "a", work, twice).await;
        assert!(matches!(done, Ok(7)), "after two and a half seconds of three");
        asked.set(0);
        let late = within(second, "a", std::future::pending::<Result<(), Said>>(), twice).await;
        assert_eq!(late.unwrap_err().problem, "a: no answer within 3000 ms");
    }
}
