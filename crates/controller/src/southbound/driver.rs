//! Defines the state of a switch, the changes to this state, and the trait that every driver
//! implements.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use penstock_units::BitsPerSecond;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;

/// Value of [`Capabilities::classes`] for a switch on which code points select queues directly: the
/// number of code points.
pub const ONE_STEP: u8 = 64;
/// Remedy if a fabric has more queues than a switch.
pub(super) const FEWER_QUEUES: &str =
    "lower `queues`, or raise `reserved_queues`, in the fabric's file";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Number of queues of each port, including the shared queue.
    pub queues: u8,
    /// Number of traffic classes between ingress and egress, which limits the number of tenants
    /// that the switch can distinguish. The number of classes is [`ONE_STEP`] if the switch maps
    /// code points directly to queues.
    pub classes: u8,
    /// Smallest and largest weight that a queue of the switch may have.
    pub weights: (u32, u32),
    /// True if the map from code point to queue can change while traffic runs.
    pub remap: bool,
    /// Fixed map from code point to queue, which applies to every port. The fixed map is empty if
    /// the controller can change the switch's maps.
    pub fixed_map: BTreeMap<u8, u8>,
    /// True if ports of the switch may have different maps.
    pub map_per_port: bool,
}

impl Capabilities {
    /// Returns the capabilities of a switch with weights from 1 to 100, on which the controller can
    /// change the map of each port.
    #[must_use]
    pub const fn new(queues: u8, classes: u8) -> Self {
        Self {
            queues,
            classes,
            weights: (1, 100),
            remap: true,
            fixed_map: BTreeMap::new(),
            map_per_port: true,
        }
    }
}

/// Weights of a port's queues, and map from code point to queue, for frames that the port sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Weight of each queue of the port. Queue 0 is the shared queue. A queue of weight 0 only gets
    /// the bandwidth that other queues do not use. Queues beyond the end of the list have weight 0.
    pub weights: Vec<u32>,
    /// Queue of each mapped code point. Code points without a mapping are in queue 0, so a mapping
    /// to queue 0 changes nothing.
    pub map: BTreeMap<u8, u8>,
}

impl PortState {
    /// Returns the canonical form of the state, which has no zeros at the end of the weights, and
    /// no code point mapped to queue 0.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.weights.truncate(self.trimmed_weights().len());
        self.map.retain(|_, queue| *queue != 0);
        self
    }

    /// Returns the weights without the zeros at the end.
    pub(super) fn trimmed_weights(&self) -> &[u32] {
        let end = self.weights.iter().rposition(|weight| *weight != 0).map_or(0, |at| at + 1);
        &self.weights[..end]
    }

    /// Returns the queue of a code point, also of one without a mapping.
    pub(super) fn queue(&self, dscp: u8) -> u8 {
        self.map.get(&dscp).copied().unwrap_or(0)
    }
}

/// Part of a switch's state that a controller sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchState {
    /// Stamp of the last decision that the switch applied completely.
    pub stamp: Stamp,
    /// State of each port, by the switch's own name of the port.
    pub ports: BTreeMap<String, PortState>,
    /// Ports that the driver must not change, with the reason, such as another configuration on the
    /// switch. The driver can change every port that is missing in `left_out`.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Change {
    /// Sets the weights of a port's queues.
    Weigh {
        port: String,
        /// New weight of each queue, from queue 0 on.
        weights: Vec<u32>,
    },
    /// Maps a code point to a queue on a port.
    Map { port: String, dscp: u8, queue: u8 },
    /// Removes a code point from a port's map, so that the code point is in queue 0.
    Unmap { port: String, dscp: u8 },
}

impl Change {
    /// Returns the name of the port that changes.
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
                write!(f, "set weights of {port}:")?;
                weights.iter().try_for_each(|weight| write!(f, " {weight}"))
            }
            Self::Map { port, dscp, queue } => {
                write!(f, "map code point {dscp} to queue {queue} on {port}")
            }
            Self::Unmap { port, dscp } => write!(f, "unmap code point {dscp} on {port}"),
        }
    }
}

/// Returns a short text about a request for error messages: its first changes and the number of the
/// other changes, or the stamp of a request without changes.
pub(crate) fn summary(stamp: Stamp, changes: &[Change]) -> String {
    const SHOWN: usize = 3;
    if changes.is_empty() {
        return format!("decision {stamp}");
    }
    let shown: Vec<String> = changes.iter().take(SHOWN).map(ToString::to_string).collect();
    let shown = shown.join("; ");
    match changes.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Counters of a queue since the switch started to count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    pub port: String,
    /// Number of the queue on the port, from 0.
    pub queue: u8,
    pub packets: u64,
    pub bytes: u64,
    /// Number of frames that the switch dropped because the queue was full.
    pub dropped: u64,
    /// Number of frames that wait in the queue now. `None` if the switch does not report it.
    pub waiting: Option<u64>,
}

/// Configuration of a switch port for a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The switch's own name of the port.
    pub name: String,
    /// Line rate of the port in bit/s.
    pub rate: BitsPerSecond,
}

/// Reason why a switch did not apply changes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The controller cannot reach the switch now.
    #[error("switch {switch}: cannot be reached: {problem}")]
    Unreachable { switch: String, problem: String },
    /// The switch answered and refused a change that the driver requested.
    #[error("switch {switch}: refused {change}: {problem}")]
    Refused {
        switch: String,
        change: String,
        /// Error message with which the switch refused the change.
        problem: String,
    },
    /// The switch has a later stamp than the request.
    #[error(
        "switch {switch}: has the later decision {has}, so {told} is refused; \
         another controller leads, or the store is an older copy: \
         `penstock controller epoch --at-least {}`", .has.next_epoch()
    )]
    Fenced {
        switch: String,
        /// Stamp that is stored on the switch.
        has: Stamp,
        /// Stamp of the refused request.
        told: Stamp,
    },
    /// The switch's answer to a request is invalid.
    #[error("switch {switch}: its answer to {what} is not valid: {problem}")]
    Rubbish {
        switch: String,
        /// Description of the request to which the switch sent the invalid answer.
        what: String,
        /// Description of the problem in the switch's answer.
        problem: String,
    },
    /// The request exceeds the switch's capabilities.
    #[error("switch {switch}: {what} is not supported: {limit}; {remedy}")]
    Beyond {
        switch: String,
        what: String,
        /// Limit of the switch that the request exceeds.
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

#[async_trait]
pub trait SwitchDriver: Send + Sync + std::fmt::Debug {
    /// Returns the name of the switch in the topology.
    fn name(&self) -> &str;

    /// Kind of the driver, such as `sim` or `linux-tc`.
    fn kind(&self) -> &'static str;

    async fn capabilities(&self) -> Result<Capabilities, DriverError>;

    /// Returns a text that identifies the present run of the switch. The text changes if the switch
    /// restarts, or loses its state in another way that the driver can notice. `None` if the driver
    /// cannot tell one run from another. The request costs at most as much as
    /// [`read_back`](Self::read_back).
    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        Ok(None)
    }

    /// Reads the switch's capabilities and its present state. A driver overrides this function if
    /// one request reads both.
    async fn look(&self) -> Result<(Capabilities, SwitchState), DriverError> {
        Ok((self.capabilities().await?, self.read_back().await?))
    }

    /// Reads the switch's present state.
    async fn read_back(&self) -> Result<SwitchState, DriverError>;

    /// Applies `changes` in order. The switch stores `stamp` after the last change. After an error,
    /// the switch may have applied some of the changes. The request is idempotent, so the caller
    /// may repeat the request.
    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError>;

    /// Returns the time for which a caller of [`apply`](Self::apply) should still wait when the
    /// caller's own time limit has passed. The result is `None` unless the switch is executing a
    /// change that may take long.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Returns the text that [`apply`](Self::apply) would send to the switch now, in the switch's
    /// own syntax. To compute the text, the driver reads the switch's state but does not change the
    /// switch. A line of the text may contain several changes, and a change may take several lines.
    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError>;

    /// Reads the counters of all queues of the switch.
    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError>;
}
