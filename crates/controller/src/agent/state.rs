//! State of an agent.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Stamp;

/// Number of intervals without a report after which a host is stale.
pub const STALE_AFTER: u32 = 3;

/// Counters since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions accepted by a controller.
    pub sessions: u64,
    /// Reports sent to a controller.
    pub reports: u64,
    /// Reports that could not be made or sent. The next report includes their contents.
    pub missed: u64,
    /// Plans that the switch applied.
    pub applied: u64,
    /// Plans that the switch could not apply.
    pub failed: u64,
    /// Plans that the agent refused, because their stamp was older.
    pub refused: u64,
    /// Plans from before a restart that were applied again. The number is 0 or 1.
    pub resumed: u64,
    /// Problems of any kind. [`AgentState::last_error`] has the last one.
    pub problems: u64,
}

/// State of an agent, for operators and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentState {
    /// The controller of the agent's session, if there is one.
    pub connected: Option<String>,
    /// Highest stamp that the agent has seen.
    pub told: Stamp,
    /// Stamp of the plan on the switch. `None` if the agent knows of no plan.
    pub applied: Option<Stamp>,
    /// Stamp of a plan that is in force but not stored. After a restart there would be no plan. The
    /// agent retries to store it.
    pub unkept: Option<Stamp>,
    /// Time at which the agent became stale, if it is stale. An agent is stale if no controller has
    /// taken a report for [`STALE_AFTER`] intervals. Staleness does not affect traffic.
    pub stale_since: Option<Instant>,
    /// Time of the last report, or of the start of the session or agent, if that is later.
    pub heard: Instant,
    /// Time between two reports.
    pub interval: Duration,
    /// The last error and its remedy.
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

    /// Records contact with a controller.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
        self.stale_since = None;
    }
}

/// Sets `stale_since` when it is due. This future never ends.
pub(super) async fn watch_staleness(state: watch::Sender<AgentState>) {
    let mut changes = state.subscribe();
    loop {
        let (due, stale) = {
            let state = changes.borrow_and_update();
            (state.heard + STALE_AFTER * state.interval, state.stale_since.is_some())
        };
        tokio::select! {
            // This future holds the sender, so the channel cannot be closed.
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
