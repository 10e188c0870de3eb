//! Defines the interface to the data path of a switch.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::agent::SideError;
use crate::southbound::{PortState, QueueCounters};

/// Present state and counters of a port of the data path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReading {
    /// Number of the port's queues, including the shared queue.
    pub queues: u8,
    /// Queue weights of the port, and its map from code point to queue. The data path has no weight
    /// 0 and reports weight 1 instead.
    pub state: PortState,
    /// Counters of each queue of the port.
    pub counters: Vec<QueueCounters>,
}

/// Interface to the data path of a switch. Each method of an implementation must return within one
/// second.
#[async_trait]
pub trait SwitchSide: Send + Sync + fmt::Debug {
    /// Reads the present state of all ports whose queues can be set.
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError>;

    /// Applies either all states in `ports`, between two batches of frames, or no state. A port
    /// that is not in `ports` uses only queue 0. A queue with weight 0 gets the data path's
    /// smallest weight, 1.
    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError>;
}
