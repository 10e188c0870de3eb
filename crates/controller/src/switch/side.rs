//! Interface to the data path behind a switch.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::agent::SideError;
use crate::southbound::{PortState, QueueCounters};

/// Present state of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReading {
    /// Number of queues, including the shared one.
    pub queues: u8,
    /// Weights and map. The data path has no weight 0 and reports it as weight 1.
    pub state: PortState,
    /// Counters of each queue.
    pub counters: Vec<QueueCounters>,
}

/// The data path. Each call may take at most a second.
#[async_trait]
pub trait SwitchSide: Send + Sync + fmt::Debug {
    /// All ports that can be set, with their present state.
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError>;

    /// Applies all of this between two batches, or nothing. Ports that are not named use queue 0
    /// only. Weight 0 means no weight of its own.
    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError>;
}
