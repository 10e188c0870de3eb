//! The plan in force, and the state of the learner.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_dataplane::classify::Snapshot;
use penstock_dataplane::counters::PortReading;
use penstock_qos::cost_model::CostModel;
use penstock_qos::learner::{LearnConfig, Learner, PortLearning};
use penstock_units::{Nanos, PortId};

use crate::plan::CapacityPlan;
#[derive(Debug)]
pub(super) struct Pricing {
    /// The model's file.
    pub(super) model: Option<(PathBuf, Arc<CostModel>)>,
    pub(super) plan: Arc<CapacityPlan>,
    pub(super) learner: Learner,
    /// Time and counters of the last reading.
    pub(super) seen: Option<(Nanos, BTreeMap<PortId, PortReading>)>,
    /// The workers' snapshot.
    pub(super) snapshot: Arc<Snapshot>,
}

impl Pricing {
    /// The learned state of a port that bought cycles.
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
            seen: None,
            snapshot: Arc::default(),
        }
    }
}
