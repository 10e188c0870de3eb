//! Divides a plan into stages, and records how long each stage took.
//!
//! # Approach
//!
//! A stage consists of successive steps of one kind, which switches and hosts may execute at the
//! same time. Every plan begins with a stage in which hosts lower rate limits, and ends with a
//! stage in which hosts raise rate limits. The rate limits of the shared queue depend on the
//! weights of all queues, so these two stages exist even if the plan has no such steps.

use std::fmt;
use std::time::Duration;

use penstock_fabric::queue_binding::{Plan, Step};

/// Kind of the steps of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Hosts lower rate limits.
    Limit,
    /// Switches get weights and maps in one message. The order of maps in a message does not
    /// matter, because no packet carries a code point that the message maps or unmaps.
    Ports,
    /// Hosts change marks. Hosts also get the changes of their own uplinks.
    Mark,
    /// The controller waits until packets have left the network.
    Wait,
    /// The controller reads the switches and compares their state with the intended state.
    ReadBack,
    /// Hosts raise rate limits.
    Release,
    /// The controller rolls the plan back.
    TakeBack,
}

impl fmt::Display for StageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "limit",
            Self::Ports => "ports",
            Self::Mark => "mark",
            Self::Wait => "wait",
            Self::ReadBack => "read-back",
            Self::Release => "release",
            Self::TakeBack => "take-back",
        })
    }
}

/// Times that the stages of a plan took, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanTimes(pub Vec<(StageKind, Duration)>);

impl PlanTimes {
    /// Returns the time that all stages of the plan took together.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.0.iter().map(|(_, took)| *took).sum()
    }
}

fn kind(step: &Step) -> Option<StageKind> {
    Some(match step {
        Step::Limit { .. } => StageKind::Limit,
        Step::Weigh { .. } | Step::Unmap { .. } | Step::Map { .. } => StageKind::Ports,
        Step::Mark { .. } => StageKind::Mark,
        Step::Wait(_) | Step::Drain { .. } => StageKind::Wait,
        Step::ReadBack(_) => StageKind::ReadBack,
        Step::Release { .. } => StageKind::Release,
        _ => return None,
    })
}

/// Returns the stages of a plan, each with its steps.
pub(super) fn stages(plan: &Plan) -> Vec<(StageKind, &[Step])> {
    let steps = plan.steps.chunk_by(|a, b| kind(a) == kind(b));
    let mut stages: Vec<(StageKind, &[Step])> =
        steps.filter_map(|steps| Some((kind(steps.first()?)?, steps))).collect();
    if stages.first().is_none_or(|(kind, _)| *kind != StageKind::Limit) {
        stages.insert(0, (StageKind::Limit, &[]));
    }
    if stages.last().is_none_or(|(kind, _)| *kind != StageKind::Release) {
        stages.push((StageKind::Release, &[]));
    }
    stages
}

#[cfg(test)]
mod tests {
    use penstock_fabric::tenant_placement::TenantSlot;
    use penstock_units::Nanos;

    use super::*;

    #[test]
    fn a_plan_begins_with_lower_limits_and_ends_with_higher_ones() {
        let tenant = TenantSlot(3);
        let kinds = |steps: Vec<Step>| -> Vec<String> {
            let plan = Plan { epoch: 1, steps };
            stages(&plan).iter().map(|(kind, steps)| format!("{kind} {}", steps.len())).collect()
        };
        let marks = [Step::Mark { tenant, dscp: 0 }, Step::Mark { tenant, dscp: 8 }];
        let wait = Step::Wait(Nanos(1));
        let steps = marks.iter().cloned().chain([wait]).collect();
        assert_eq!(kinds(steps), ["limit 0", "mark 2", "wait 1", "release 0"]);
        let steps = vec![Step::Limit { tenant }, marks[0].clone(), Step::Release { tenant }];
        assert_eq!(kinds(steps), ["limit 1", "mark 1", "release 1"]);
        assert_eq!(kinds(Vec::new()), ["limit 0", "release 0"]);
    }
}
