//! The capacity plan with which the host runs, and the state of the learner, which corrects the
//! plan.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_dataplane::counters::PortReading;
use penstock_dataplane::snapshot::Snapshot;
use penstock_qos::cost_model::CostModel;
use penstock_qos::learner::{LearnConfig, Learner, PortLearning};
use penstock_units::{Nanos, PortId};

use crate::plan::CapacityPlan;
#[derive(Debug)]
pub(super) struct Pricing {
    /// Path and content of the cost model's file; `None` if the host has no cost model.
    pub(super) model: Option<(PathBuf, Arc<CostModel>)>,
    pub(super) plan: Arc<CapacityPlan>,
    pub(super) learner: Learner,
    /// Time of the learner's last reading.
    pub(super) learned_at: Nanos,
    /// Time of the learner's last change of entitlements.
    pub(super) applied_at: Nanos,
    /// For each port, the time and the counters at the end of its last interval.
    pub(super) seen: BTreeMap<PortId, (Nanos, PortReading)>,
    /// The workers' snapshot.
    pub(super) snapshot: Arc<Snapshot>,
}

impl Pricing {
    /// Returns the learner's state for a port that purchased cycles.
    pub(super) fn learned(&self, port: PortId) -> Option<PortLearning> {
        self.learner.port(port)
    }
}

impl Default for Pricing {
    fn default() -> Self {
        Self {
            model: None,
            plan: Arc::default(),
            learner: Learner::new(LearnConfig::default(), &[]),
            learned_at: Nanos::ZERO,
            applied_at: Nanos::ZERO,
            seen: BTreeMap::new(),
            snapshot: Arc::default(),
        }
    }
}
