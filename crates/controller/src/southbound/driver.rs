//! The state of a switch, the changes to it, and the trait that every driver implements.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use penstock_units::BitsPerSecond;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;

/// [`Capabilities::classes`] of a switch without classes: the number of code points.
pub const ONE_STEP: u8 = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Queues of a port, including the shared one.
    pub queues: u8,
    /// Traffic classes between ingress and egress. The number of classes limits the number of
    /// distinguishable tenants. [`ONE_STEP`] if code points select queues directly.
    pub classes: u8,
    /// Smallest and largest weight of a queue.
    pub weights: (u32, u32),
    /// Whether the map from code point to queue can change while traffic runs.
    pub remap: bool,
    /// The map of every port, if it cannot change. Empty if the map can change.
    pub fixed_map: BTreeMap<u8, u8>,
    /// Whether ports of this switch may have different maps.
    pub map_per_port: bool,
}

/// State of a sending port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Weight of each queue. Queue 0 is the shared one. A queue of weight 0 only gets the bandwidth
    /// that other queues do not use. Queues beyond the end have weight 0.
    pub weights: Vec<u32>,
    /// Queue of each mapped code point. Other code points are in queue 0, so a mapping to queue 0
    /// changes nothing.
    pub map: BTreeMap<u8, u8>,
}

impl PortState {
    /// Returns the canonical form. It has no zeros at the end of the weights, and no code point
    /// mapped to queue 0.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.weights.truncate(self.weights.iter().rposition(|w| *w != 0).map_or(0, |at| at + 1));
        self.map.retain(|_, queue| *queue != 0);
        self
    }
}

/// The part of a switch's state that a binding sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchState {
    /// Stamp of the last complete decision.
    pub stamp: Stamp,
    /// State of each port. The key is the switch's own name of the port.
    pub ports: BTreeMap<String, PortState>,
    /// Ports that the driver must not change, with the reason. A reason is, for example, another
    /// configuration on the switch. The driver can change all other ports.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Change {
    /// Sets the weights of a port's queues.
    Weigh {
        port: String,
        /// Weight of each queue, from 0.
        weights: Vec<u32>,
    },
    /// Maps a code point to a queue on a port.
    Map { port: String, dscp: u8, queue: u8 },
    /// Removes a code point from a port's map. The code point is then in queue 0.
    Unmap { port: String, dscp: u8 },
}

impl Change {
    /// Name of the port that changes.
    #[must_use]
    pub fn port(&self) -> &str {
        match self {
            Self::Weigh { port, .. } | Self::Map { port, .. } | Self::Unmap { port, .. } => port,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weigh { port, weights } => {
                write!(f, "weights of {port}:")?;
                weights.iter().try_for_each(|weight| write!(f, " {weight}"))
            }
            Self::Map { port, dscp, queue } => {
                write!(f, "code point {dscp} of {port} in queue {queue}")
            }
            Self::Unmap { port, dscp } => write!(f, "code point {dscp} of {port} not mapped"),
        }
    }
}

/// Counters of a queue since the switch started to count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    pub port: String,
    /// Number of the queue, from 0.
    pub queue: u8,
    pub packets: u64,
    pub bytes: u64,
    /// Frames dropped because the queue was full.
    pub dropped: u64,
}

/// A port, as configured for a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The switch's own name of the port.
    pub name: String,
    /// Line rate of the port.
    pub rate: BitsPerSecond,
}

/// Why a switch did not apply changes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The switch is temporarily unreachable.
    #[error("switch {switch}: cannot be reached: {problem}")]
    Unreachable { switch: String, problem: String },
    /// The switch refused a change.
    #[error("switch {switch}: refused {change}: {problem}")]
    Refused {
        switch: String,
        change: String,
        /// The switch's message.
        problem: String,
    },
    /// The switch has a later stamp.
    #[error(
        "switch {switch}: has decision {has}, so {told} is too late; another controller leads, or \
         the store is an older copy: `penstock controller epoch --at-least {}`", .has.next_epoch()
    )]
    Fenced {
        switch: String,
        /// Stamp of the switch.
        has: Stamp,
        /// Stamp of the refused request.
        told: Stamp,
    },
    /// The switch's answer is invalid.
    #[error("switch {switch}: its answer to {what} is not valid: {problem}")]
    Rubbish {
        switch: String,
        /// The request that the switch answered.
        what: String,
        /// The problem of the answer.
        problem: String,
    },
    /// The request exceeds the switch's capabilities.
    #[error("switch {switch}: {what} is not supported: {limit}; {remedy}")]
    Beyond {
        switch: String,
        what: String,
        /// The limit of the switch that the request exceeds.
        limit: String,
        remedy: String,
    },
}

impl DriverError {
    /// Checks that the stamp `told` is not older than the switch's stamp `has`.
    pub(crate) fn fence(switch: &str, has: Stamp, told: Stamp) -> Result<(), Self> {
        if told >= has {
            return Ok(());
        }
        Err(Self::Fenced { switch: switch.to_owned(), has, told })
    }
}

/// A driver of one switch.
#[async_trait]
pub trait SwitchDriver: Send + Sync + std::fmt::Debug {
    /// Name of the switch in the topology.
    fn name(&self) -> &str;

    /// Kind of the driver: `sim`, `linux-tc`, and so on.
    fn kind(&self) -> &'static str;

    async fn capabilities(&self) -> Result<Capabilities, DriverError>;

    /// Reads the switch's present state.
    async fn read_back(&self) -> Result<SwitchState, DriverError>;

    /// Applies `changes` in order. The switch stores `stamp` after the last change. After an error,
    /// some changes may be in force. The request is idempotent, so it may be repeated.
    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError>;

    /// Returns what [`apply`](Self::apply) would send to the switch now, in the switch's own
    /// syntax. The method changes nothing. It reads the switch first, because the result depends on
    /// the switch's state. One line may contain several changes, and one change may need several
    /// lines.
    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError>;

    /// Reads the counters of all queues.
    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError>;
}
