//! Converts the messages in `proto/penstock/fabric/v1/fabric.proto`.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::Stamp;
use crate::hosts::{HostPlan, HostTenant};
use crate::southbound::PortState;

/// Code that the build generates from `proto/penstock/fabric/v1/fabric.proto`.
#[allow(missing_docs, clippy::pedantic, clippy::nursery, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("penstock.fabric.v1");
}

/// Maximum size of a message between a controller and an agent in bytes. A message of the maximum
/// size has room for 4,096 tenants with long names.
pub const AGENT_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a message between a controller and an operator in bytes. A message of the
/// maximum size has room for 100,000 tenants as JSON.
pub const OPERATOR_BYTES_MAX: usize = 64 << 20;
/// Maximum number of tenants in a host's report or plan.
pub const TENANTS_MAX: usize = 4_096;
/// Maximum time that an agent's report may cover, in milliseconds.
pub const MILLIS_MAX: u64 = 3_600_000;

/// Returns an error's text with its causes. In transport errors, only the last cause contains the
/// useful information.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Reason why a received message is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A required field of the message is missing.
    #[error("{0} is missing; use the same version of Penstock on both sides")]
    Missing(&'static str),
    /// A number in the message is out of its range.
    #[error("{what} {value} is out of range (maximum {most})")]
    Range { what: &'static str, value: u64, most: u64 },
}

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

impl From<HostPlan> for v1::HostPlan {
    fn from(plan: HostPlan) -> Self {
        let tenant = |t: HostTenant| v1::HostTenant {
            name: t.name,
            dscp: t.dscp.into(),
            vms: t.vms,
            send_bps: t.send,
            recv_bps: t.recv,
            headroom_permille: t.headroom_permille,
            limited: t.limited,
        };
        let uplink = |(to, state): (String, PortState)| v1::Uplink {
            to,
            weights: state.weights,
            queues: state.map.iter().map(|(dscp, q)| ((*dscp).into(), (*q).into())).collect(),
        };
        Self {
            stamp: Some(plan.stamp.into()),
            tenants: plan.tenants.into_iter().map(tenant).collect(),
            uplinks: plan.uplinks.into_iter().map(uplink).collect(),
        }
    }
}

fn small(what: &'static str, value: u32, most: u8) -> Result<u8, WireError> {
    let small = u8::try_from(value).ok().filter(|value| *value <= most);
    small.ok_or(WireError::Range { what, value: value.into(), most: most.into() })
}

impl TryFrom<v1::HostPlan> for HostPlan {
    type Error = WireError;

    fn try_from(plan: v1::HostPlan) -> Result<Self, WireError> {
        let stamp = plan.stamp.ok_or(WireError::Missing("the plan's stamp"))?.into();
        let count = plan.tenants.len();
        if count > TENANTS_MAX {
            let (value, most) = (count as u64, TENANTS_MAX as u64);
            return Err(WireError::Range { what: "the number of tenants", value, most });
        }
        let mut tenants = Vec::new();
        for t in plan.tenants {
            let dscp = small("code point", t.dscp, 63)?;
            let (send, recv) = (t.send_bps, t.recv_bps);
            let (name, vms, headroom_permille) = (t.name, t.vms, t.headroom_permille);
            let limited = t.limited;
            tenants.push(HostTenant { name, dscp, vms, send, recv, headroom_permille, limited });
        }
        let mut uplinks = BTreeMap::new();
        for uplink in plan.uplinks {
            let mut map = BTreeMap::new();
            for (dscp, queue) in &uplink.queues {
                map.insert(small("code point", *dscp, 63)?, small("queue", *queue, 63)?);
            }
            uplinks.insert(uplink.to, PortState { weights: uplink.weights, map });
        }
        Ok(Self { stamp, tenants, uplinks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_round_trips_and_invalid_ones_are_refused() {
        let tenant = HostTenant {
            name: "a".to_owned(),
            dscp: 63,
            vms: 2,
            send: 7,
            recv: 8,
            headroom_permille: 1_063,
            limited: true,
        };
        let state = PortState { weights: vec![1, 5], map: [(63, 1)].into() };
        let plan = HostPlan {
            stamp: Stamp { epoch: 3, generation: 4 },
            tenants: vec![tenant],
            uplinks: [("rack-0".to_owned(), state)].into(),
        };
        let wire = v1::HostPlan::from(plan.clone());
        assert_eq!(HostPlan::try_from(wire.clone()), Ok(plan));
        let mut wrong = wire.clone();
        wrong.tenants[0].dscp = 64;
        let error = HostPlan::try_from(wrong).unwrap_err().to_string();
        assert_eq!(error, "code point 64 is out of range (maximum 63)");
        let mut wrong = wire.clone();
        wrong.uplinks[0].queues.insert(300, 1);
        assert!(HostPlan::try_from(wrong).is_err());
        let unstamped = v1::HostPlan { stamp: None, ..wire };
        assert_eq!(HostPlan::try_from(unstamped), Err(WireError::Missing("the plan's stamp")));
    }
}
