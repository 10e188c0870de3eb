//! What a driver is asked and what it answers: a switch's state, changes to it, and the trait that
//! every driver keeps.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use penstock_units::BitsPerSecond;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;

/// [`Capabilities::classes`] of a switch that has none: as many as there are code points.
pub const ONE_STEP: u8 = 64;

/// What a switch can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Queues of a port, the shared one included.
    pub queues: u8,
    /// Traffic classes between ingress and egress; a map cannot tell more tenants apart.
    /// [`ONE_STEP`] where code points lead to queues without classes.
    pub classes: u8,
    /// Lowest and highest weight of a queue.
    pub weights: (u32, u32),
    /// Whether the map from code point to queue can change while traffic runs.
    pub remap: bool,
    /// Where it cannot: the map that each port has once and for all. Empty otherwise.
    pub fixed_map: BTreeMap<u8, u8>,
    /// Whether maps may differ from port to port of this switch.
    pub map_per_port: bool,
}

/// One port as a sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// By queue, from 0, the shared one; 0: the queue has no weight of its own and gets what is
    /// left. Queues beyond the end have 0.
    pub weights: Vec<u32>,
    /// The queue of each code point that is mapped; others are in queue 0. That a code point is
    /// mapped to 0 says nothing more than that it is not mapped.
    pub map: BTreeMap<u8, u8>,
}

impl PortState {
    /// The same said in one way: no zeros at the end of the weights, nothing mapped to queue 0.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.weights.truncate(self.weights.iter().rposition(|w| *w != 0).map_or(0, |at| at + 1));
        self.map.retain(|_, queue| *queue != 0);
        self
    }
}

/// A switch as far as binding concerns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchState {
    /// The last decision that was carried out whole.
    pub stamp: Stamp,
    /// By the switch's own name of the port.
    pub ports: BTreeMap<String, PortState>,
    /// Why ports are not among `ports`: something on the switch keeps the driver from them. The
    /// other ports do what they are told.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
}

/// One thing to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Change {
    /// A port's queues have these weights.
    Weigh {
        /// The port.
        port: String,
        /// By queue, from 0.
        weights: Vec<u32>,
    },
    /// A port puts this code point into this queue.
    Map {
        /// The port.
        port: String,
        /// The code point.
        dscp: u8,
        /// The queue.
        queue: u8,
    },
    /// A port does not know this code point any more: it is in queue 0.
    Unmap {
        /// The port.
        port: String,
        /// The code point.
        dscp: u8,
    },
}

impl Change {
    /// Which port it is about.
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

/// What a queue has sent since the switch began to count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    /// The port.
    pub port: String,
    /// The queue, from 0.
    pub queue: u8,
    /// Frames sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Frames dropped because the queue was full.
    pub dropped: u64,
}

/// What a driver is told about its switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The switch's own name of the port.
    pub name: String,
    /// What the port can send.
    pub rate: BitsPerSecond,
}

/// Why a switch did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// It cannot be reached; it may be later.
    #[error("switch {switch}: cannot be reached: {problem}")]
    Unreachable {
        /// Which one.
        switch: String,
        /// What happened.
        problem: String,
    },
    /// It refused.
    #[error("switch {switch}: refused {change}: {problem}")]
    Refused {
        /// Which one.
        switch: String,
        /// What it was told.
        change: String,
        /// What it said.
        problem: String,
    },
    /// It was told by somebody with a later stamp.
    #[error(
        "switch {switch}: has decision {has}, so {told} is too late; another controller leads, or \
         the store is an older copy: `penstock controller epoch --at-least {}`", .has.next_epoch()
    )]
    Fenced {
        /// Which one.
        switch: String,
        /// What it has.
        has: Stamp,
        /// What it was told.
        told: Stamp,
    },
    /// What it says makes no sense.
    #[error("switch {switch}: its answer to {what} is not valid: {problem}")]
    Rubbish {
        /// Which one.
        switch: String,
        /// What it was asked for.
        what: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// It is asked for what it cannot do.
    #[error("switch {switch}: {what} is not supported: {limit}; {remedy}")]
    Beyond {
        /// Which one.
        switch: String,
        /// What.
        what: String,
        /// What it can do.
        limit: String,
        /// What to do.
        remedy: String,
    },
}

impl DriverError {
    /// `told`, if that is not older than what the switch `has`.
    pub(crate) fn fence(switch: &str, has: Stamp, told: Stamp) -> Result<(), Self> {
        if told >= has {
            return Ok(());
        }
        Err(Self::Fenced { switch: switch.to_owned(), has, told })
    }
}

/// One switch.
#[async_trait]
pub trait SwitchDriver: Send + Sync + std::fmt::Debug {
    /// The switch's name in the topology.
    fn name(&self) -> &str;

    /// Which dialect it speaks: `sim`, `linux-tc`, ...
    fn kind(&self) -> &'static str;

    /// What it can do.
    async fn capabilities(&self) -> Result<Capabilities, DriverError>;

    /// What the switch says it does, asked anew: not what it was told.
    async fn read_back(&self) -> Result<SwitchState, DriverError>;

    /// Does `changes` in their order. When it fails, some of them may have been done; asking for
    /// the same again is safe. The switch keeps `stamp` once all are done.
    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError>;

    /// What [`apply`](Self::apply) would tell the switch now, in the switch's own words; nothing is
    /// done. The switch is read, because its words depend on what it has: a line may stand for
    /// several changes, or a change for several lines.
    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError>;

    /// What its queues have sent.
    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError>;
}
