//! Converts the messages in `proto/penstock/switch/v1/switch.proto`.

use std::collections::BTreeMap;

use crate::Stamp;
use crate::southbound::{Change, PortState, QueueCounters};

/// Code that the build generates from `proto/penstock/switch/v1/switch.proto`.
#[allow(missing_docs, clippy::pedantic, clippy::nursery, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("penstock.switch.v1");
}

/// Maximum size of a message between a controller and a switch in bytes. A message of the maximum
/// size has room for 1,024 ports with all code points.
pub const SWITCH_BYTES_MAX: usize = 1 << 20;

impl From<Stamp> for v1::Stamp {
    fn from(stamp: Stamp) -> Self {
        Self { epoch: stamp.epoch, generation: stamp.generation }
    }
}

impl From<v1::Stamp> for Stamp {
    fn from(stamp: v1::Stamp) -> Self {
        Self { epoch: stamp.epoch, generation: stamp.generation }
    }
}

impl v1::Port {
    pub(crate) fn of(name: &str, state: &PortState) -> Self {
        let queues = state.map.iter().map(|(dscp, queue)| ((*dscp).into(), (*queue).into()));
        Self { name: name.to_owned(), weights: state.weights.clone(), queues: queues.collect() }
    }
}

fn small(what: &str, value: u32, most: u8) -> Result<u8, String> {
    let small = u8::try_from(value).ok().filter(|value| *value <= most);
    small.ok_or_else(|| format!("{what} {value} is out of range (maximum {most})"))
}

impl TryFrom<v1::Port> for (String, PortState) {
    type Error = String;

    fn try_from(port: v1::Port) -> Result<Self, String> {
        let mut map = BTreeMap::new();
        for (dscp, queue) in &port.queues {
            map.insert(small("code point", *dscp, 63)?, small("queue", *queue, 63)?);
        }
        Ok((port.name, PortState { weights: port.weights, map }))
    }
}

impl From<&Change> for v1::Change {
    fn from(change: &Change) -> Self {
        use v1::change::Change as To;
        let to = match change {
            Change::Weigh { weights, .. } => To::Weigh(v1::Weigh { weights: weights.clone() }),
            Change::Map { dscp, queue, .. } => {
                To::Map(v1::Map { dscp: (*dscp).into(), queue: (*queue).into() })
            }
            Change::Unmap { dscp, .. } => To::Unmap((*dscp).into()),
        };
        Self { port: change.port().to_owned(), change: Some(to) }
    }
}

impl TryFrom<v1::Change> for Change {
    type Error = String;

    fn try_from(change: v1::Change) -> Result<Self, String> {
        use v1::change::Change as From;
        let port = change.port;
        Ok(match change.change {
            Some(From::Weigh(weigh)) => Self::Weigh { port, weights: weigh.weights },
            Some(From::Map(map)) => {
                let (dscp, queue) = (small("code point", map.dscp, 63)?, map.queue);
                Self::Map { port, dscp, queue: small("queue", queue, 63)? }
            }
            Some(From::Unmap(dscp)) => Self::Unmap { port, dscp: small("code point", dscp, 63)? },
            None => {
                return Err(
                    "a change of an unknown kind; use the same version of Penstock on both sides"
                        .to_owned(),
                );
            }
        })
    }
}

impl From<QueueCounters> for v1::Queue {
    fn from(from: QueueCounters) -> Self {
        let QueueCounters { port, queue, packets, bytes, dropped, waiting } = from;
        Self { port, queue: queue.into(), packets, bytes, dropped, waiting }
    }
}

impl TryFrom<v1::Queue> for QueueCounters {
    type Error = String;

    fn try_from(from: v1::Queue) -> Result<Self, String> {
        let v1::Queue { port, queue, packets, bytes, dropped, waiting } = from;
        Ok(Self { port, queue: small("queue", queue, 63)?, packets, bytes, dropped, waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_invalid_ones_are_refused() {
        let port = || "e0".to_owned();
        for change in [
            Change::Weigh { port: port(), weights: vec![1, 0, 9] },
            Change::Map { port: port(), dscp: 63, queue: 7 },
            Change::Unmap { port: port(), dscp: 8 },
        ] {
            assert_eq!(Change::try_from(v1::Change::from(&change)), Ok(change));
        }
        for waiting in [None, Some(0), Some(3)] {
            let counters = QueueCounters { port: port(), waiting, ..QueueCounters::default() };
            let wire = v1::Queue::from(counters.clone());
            assert_eq!(QueueCounters::try_from(wire), Ok(counters));
        }
        let state = PortState { weights: vec![1, 3], map: [(8, 1)].into() };
        let wire = v1::Port::of("e0", &state);
        assert_eq!(<(String, PortState)>::try_from(wire.clone()), Ok((port(), state)));
        let wrong = v1::Port { queues: [(64, 1)].into(), ..wire };
        assert!(<(String, PortState)>::try_from(wrong).unwrap_err().contains("maximum 63"));
        assert!(Change::try_from(v1::Change::default()).is_err());
        let map = v1::Map { dscp: 8, queue: 64 };
        let wrong = v1::Change { port: port(), change: Some(v1::change::Change::Map(map)) };
        assert_eq!(Change::try_from(wrong), Err("queue 64 is out of range (maximum 63)".into()));
    }
}
