//! What a leader reports of an interval, and of all of them.

use std::time::Duration;

/// What an interval came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalReport {
    /// Its number.
    pub interval: u64,
    /// Hosts whose usage was known.
    pub hosts_heard: usize,
    /// Tenants that got queues.
    pub promoted: usize,
    /// Tenants that lost them.
    pub demoted: usize,
    /// Tenants for which there was no code point.
    pub without_code_point: usize,
    /// Steps of the plan.
    pub steps: usize,
    /// Whether the plan was taken back.
    pub taken_back: bool,
    /// Elements that did not follow.
    pub failed: usize,
    /// Switches that did not do what they were told.
    pub drifted: usize,
    /// How long scoring and binding took.
    pub decided_in: Duration,
    /// How long all of it took.
    pub took: Duration,
}

/// What all intervals of a leader's term came to; a new leader begins at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Intervals.
    pub intervals: u64,
    /// Tenants that got queues.
    pub promoted: u64,
    /// Tenants that lost them.
    pub demoted: u64,
    /// Plans that were taken back.
    pub taken_back: u64,
    /// Elements that did not follow.
    pub failed: u64,
    /// Switches that did not do what they were told.
    pub drifted: u64,
    /// Time that scoring and binding took.
    pub decided_in: Duration,
    /// Time that all of it took.
    pub took: Duration,
}

impl Totals {
    pub(super) fn add(&mut self, report: &IntervalReport) {
        let more = |total: &mut u64, n: usize| {
            *total = total.saturating_add(u64::try_from(n).unwrap_or(u64::MAX));
        };
        more(&mut self.intervals, 1);
        more(&mut self.promoted, report.promoted);
        more(&mut self.demoted, report.demoted);
        more(&mut self.taken_back, usize::from(report.taken_back));
        more(&mut self.failed, report.failed);
        more(&mut self.drifted, report.drifted);
        self.decided_in = self.decided_in.saturating_add(report.decided_in);
        self.took = self.took.saturating_add(report.took);
    }
}
