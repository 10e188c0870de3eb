//! Defines the report of an interval, and the sums over all intervals of a leader's term.

use std::time::Duration;

use crate::carry_out::PlanTimes;

/// Results of one interval of the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalReport {
    pub interval: u64,
    /// Number of hosts that reported usage.
    pub hosts_heard: usize,
    /// Number of tenants that got their own queues.
    pub promoted: usize,
    /// Number of tenants that lost their own queues.
    pub demoted: usize,
    /// Number of tenants that got no queues because no code point was free.
    pub without_code_point: usize,
    /// Number of steps of the plan that executes the decision.
    pub steps: usize,
    /// True if the plan was rolled back.
    pub taken_back: bool,
    /// Number of hosts and switches that did not apply their changes.
    pub failed: usize,
    /// Number of switches with a state that differed from the intended state.
    pub drifted: usize,
    /// Time that the leader took to decide which tenants have queues.
    pub decided_in: Duration,
    /// Time that the leader took for all work of the interval.
    pub took: Duration,
    /// Times that the stages of the interval's plan took. If the leader executed several plans, the
    /// times of the slowest plan.
    pub plan: PlanTimes,
}

/// Sums of the interval reports over all intervals of a leader's term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub intervals: u64,
    /// Number of tenants that got their own queues, over all intervals.
    pub promoted: u64,
    /// Number of tenants that lost their own queues, over all intervals.
    pub demoted: u64,
    /// Number of plans that were rolled back.
    pub taken_back: u64,
    /// Number of hosts and switches that did not apply their changes, over all intervals.
    pub failed: u64,
    /// Number of switches with a state that differed from the intended state, over all intervals.
    pub drifted: u64,
    /// Time that the leader took to decide which tenants have queues, over all intervals.
    pub decided_in: Duration,
    /// Time that the leader took for all work, over all intervals.
    pub took: Duration,
    /// Time that the last plan took.
    pub last_plan: Duration,
    /// Time that the slowest plan took.
    pub longest_plan: Duration,
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
        if !report.plan.0.is_empty() {
            self.last_plan = report.plan.took();
            self.longest_plan = self.longest_plan.max(self.last_plan);
        }
    }
}
