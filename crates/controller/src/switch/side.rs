//! What the data path behind a switch can do.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::agent::SideError;
use crate::southbound::{PortState, QueueCounters};

/// A port as the data path has it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReading {
    /// Its queues, the shared one included.
    pub queues: u8,
    /// Weights and map; in a data path where none weighs nothing, weight 1 for none.
    pub state: PortState,
    /// By queue.
    pub counters: Vec<QueueCounters>,
}

/// The data path. Neither call may take longer than a second.
#[async_trait]
pub trait SwitchSide: Send + Sync + fmt::Debug {
    /// All ports that may be set, by name, as they are.
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError>;

    /// Does all of this between the same two batches, or nothing: ports that are not named share
    /// queue 0. Weight 0 is none of its own.
    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError>;
}
