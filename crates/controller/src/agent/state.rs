//! Defines the state of an agent, for operators and metrics.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Stamp;

/// Number of report intervals without contact to a controller after which an agent is stale.
pub const STALE_AFTER: u32 = 3;

/// Counters of an agent since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of sessions that a controller accepted.
    pub sessions: u64,
    /// Number of reports that the agent sent to a controller.
    pub reports: u64,
    /// Number of due reports that the agent did not send, for example because the switch did not
    /// answer.
    pub missed: u64,
    /// Number of plans that the switch applied.
    pub applied: u64,
    /// Number of plans that the switch could not apply.
    pub failed: u64,
    /// Number of plans that the agent refused because the agent had seen a later stamp (term and
    /// number of a controller's decision).
    pub refused: u64,
    /// Number of stored plans that the agent applied after its start: 0 or 1.
    pub resumed: u64,
    /// Number of errors that the agent has recorded. [`AgentState::last_error`] has the last error.
    pub problems: u64,
}

/// State of an agent, for operators and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentState {
    /// Address of the controller with which the agent has a session. `None` if the agent has no
    /// session.
    pub connected: Option<String>,
    /// Highest stamp (term and number of a controller's decision) that the agent has seen.
    pub told: Stamp,
    /// Stamp (term and number) of the plan that the switch applied. `None` if the switch has no
    /// plan or if the last plan failed.
    pub applied: Option<Stamp>,
    /// Stamp (term and number) of a plan that the switch applied, but that the agent could not
    /// store in the plan file. The agent tries again to store the plan. If the host restarts before
    /// a retry succeeds, the host has no plan.
    pub unkept: Option<Stamp>,
    /// Time at which the agent became stale. `None` if the agent is not stale. An agent is stale if
    /// it had no contact with a controller for [`STALE_AFTER`] report intervals ([`Self::heard`]).
    /// A stale agent does not affect traffic.
    pub stale_since: Option<Instant>,
    /// Latest of three times: when the agent sent its last report, when the session started, and
    /// when the agent started.
    pub heard: Instant,
    /// Time between two traffic reports.
    pub interval: Duration,
    /// Text of the agent's last error, with its remedy.
    pub last_error: Option<String>,
    pub counts: Counts,
}

impl AgentState {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            connected: None,
            told: Stamp::default(),
            applied: None,
            unkept: None,
            stale_since: None,
            heard: Instant::now(),
            interval,
            last_error: None,
            counts: Counts::default(),
        }
    }

    /// Records that the agent has contact with a controller.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
        self.stale_since = None;
    }
}

/// Sets `stale_since` whenever the agent becomes stale. The returned future runs until the caller
/// drops it.
pub(super) async fn watch_staleness(state: watch::Sender<AgentState>) {
    let mut changes = state.subscribe();
    loop {
        let (due, stale) = {
            let state = changes.borrow_and_update();
            (state.heard + STALE_AFTER * state.interval, state.stale_since.is_some())
        };
        tokio::select! {
            // This future has the sender, so the channel cannot be closed.
            _ = changes.changed() => continue,
            () = sleep_until(due), if !stale => {}
        }
        state.send_if_modified(|state| {
            let late = state.stale_since.is_none()
                && state.heard + STALE_AFTER * state.interval <= Instant::now();
            if late {
                state.stale_since = Some(due);
            }
            late
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_host_is_stale_after_three_intervals_until_it_is_heard_again() {
        let second = Duration::from_secs(1);
        let (state, mut changes) = watch::channel(AgentState::new(second));
        let watcher = tokio::spawn(watch_staleness(state.clone()));
        let begin = Instant::now();
        let stale = changes.wait_for(|s| s.stale_since.is_some()).await.unwrap().clone();
        assert_eq!(stale.stale_since, Some(begin + 3 * second));
        assert_eq!(Instant::now() - begin, 3 * second);
        state.send_modify(AgentState::hear);
        assert_eq!(changes.borrow_and_update().stale_since, None);
        tokio::time::advance(2 * second).await;
        state.send_modify(AgentState::hear);
        changes.wait_for(|s| s.stale_since.is_some()).await.unwrap();
        assert_eq!(Instant::now() - begin, 8 * second, "three since it was heard last");
        watcher.abort();
    }
}
