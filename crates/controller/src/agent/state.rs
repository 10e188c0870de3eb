//! What an agent is doing.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Stamp;

/// Intervals without a report after which a host is stale.
pub const STALE_AFTER: u32 = 3;

/// What an agent did since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions that a controller welcomed.
    pub sessions: u64,
    /// Reports that went out.
    pub reports: u64,
    /// Reports that could not be made or did not go out; what they would have said is in the next.
    pub missed: u64,
    /// Plans that were done.
    pub applied: u64,
    /// Plans that the switch could not do.
    pub failed: u64,
    /// Plans refused because they were older than what it had been told.
    pub refused: u64,
    /// Plans of before a restart that were done again; 0 or 1.
    pub resumed: u64,
    /// Problems of any kind; the last one is [`AgentState::last_error`].
    pub problems: u64,
}

/// What an agent is doing, for people and for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentState {
    /// The controller whose session it is in.
    pub connected: Option<String>,
    /// The highest decision that it was told of.
    pub told: Stamp,
    /// The decision that the switch does; `None`: none that this agent knows of.
    pub applied: Option<Stamp>,
    /// The decision that is in force and could not be kept: after a restart there would be no plan.
    /// Keeping it is tried again.
    pub unkept: Option<Stamp>,
    /// Since when nobody has had a report for [`STALE_AFTER`] intervals. Nothing is dropped for it.
    pub stale_since: Option<Instant>,
    /// When the last report went out, or a session or the agent began.
    pub heard: Instant,
    /// Between two reports.
    pub interval: Duration,
    /// What went wrong last, with the remedy.
    pub last_error: Option<String>,
    /// What it did so far.
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

    /// A controller has been heard of.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
        self.stale_since = None;
    }
}

/// Raises the flag when its time has come. Never ends.
pub(super) async fn watch_staleness(state: watch::Sender<AgentState>) {
    let mut changes = state.subscribe();
    loop {
        let (due, stale) = {
            let state = changes.borrow_and_update();
            (state.heard + STALE_AFTER * state.interval, state.stale_since.is_some())
        };
        tokio::select! {
            // The sender is held here: it cannot be gone.
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
