//! The report of an interval, and sums over all intervals of a leader's term.

use std::time::Duration;

/// Results of an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalReport {
    pub interval: u64,
    /// Hosts that reported usage.
    pub hosts_heard: usize,
    /// Tenants that got queues.
    pub promoted: usize,
    /// Tenants that lost queues.
    pub demoted: usize,
    /// Tenants without a free code point.
    pub without_code_point: usize,
    /// Steps of the plan.
    pub steps: usize,
    /// Whether the plan was rolled back.
    pub taken_back: bool,
    /// Hosts and switches that failed.
    pub failed: usize,
    /// Switches whose state differed from the intended state.
    pub drifted: usize,
    /// Time for scoring and binding.
    pub decided_in: Duration,
    /// Time of all steps of the interval.
    pub took: Duration,
}

/// Sums over all intervals of a leader's term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub intervals: u64,
    /// Tenants that got queues.
    pub promoted: u64,
    /// Tenants that lost queues.
    pub demoted: u64,
    /// Plans that were rolled back.
    pub taken_back: u64,
    /// Hosts and switches that failed.
    pub failed: u64,
    /// Switches whose state differed from the intended state.
    pub drifted: u64,
    /// Time for scoring and binding.
    pub decided_in: Duration,
    /// Time of all steps of the interval.
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
