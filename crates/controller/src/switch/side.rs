//! The interface to the data path of a switch.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::agent::SideError;
use crate::southbound::{PortState, QueueCounters};

/// Present state of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReading {
    /// Number of queues, including the shared queue.
    pub queues: u8,
    /// Weights and map. The data path has no weight 0 and reports weight 1 instead.
    pub state: PortState,
    /// Counters of each queue.
    pub counters: Vec<QueueCounters>,
}

/// The data path. Each call may take at most a second.
#[async_trait]
pub trait SwitchSide: Send + Sync + fmt::Debug {
    /// Reads the present state of all ports that can be set.
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError>;

    /// Applies the states of all these ports between two batches, or none of them. Ports that are
    /// not named use queue 0 only. A queue with weight 0 has no weight of its own.
    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError>;
}
