//! Plans that a controller sends to hosts.
//!
//! # Problem
//!
//! Hosts mark packets, and their uplinks have the first queues that a packet meets. A host
//! therefore needs to know its tenants and the state of its own ports. The host must confirm
//! changes.
//!
//! # Approach
//!
//! A plan contains everything for the host, never a difference. If a host was away, the next plan
//! makes it up to date. A host refuses a plan with a lower stamp than that of its present plan.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;
use crate::southbound::PortState;

/// A tenant on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTenant {
    pub name: String,
    /// Code point of the tenant's packets. 0 if the tenant has no queue of its own.
    pub dscp: u8,
    /// Number of the tenant's VMs on the host.
    pub vms: u32,
    /// Sum of these VMs' guaranteed sending rates in bit/s.
    pub send: u64,
    /// Sum of these VMs' guaranteed receiving rates in bit/s.
    pub recv: u64,
    /// Limit in the shared queue, in thousandths of both guarantees, if the code point is 0. A
    /// value below 1000 counts as 1000.
    #[serde(default)]
    pub headroom_permille: u32,
}

/// The complete plan of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Stamp of the decision from which the plan follows.
    pub stamp: Stamp,
    /// Tenants, ordered by name.
    pub tenants: Vec<HostTenant>,
    /// State of the host's ports into the fabric. The key is the switch at the other end.
    pub uplinks: BTreeMap<String, PortState>,
}

impl crate::saved::Stamped for HostPlan {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// Why a host did not apply a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The host's agent is not connected.
    #[error("host {0}: its agent is not connected; it gets the plan when it is")]
    Away(String),
    /// The host did not answer in time.
    #[error("host {host}: no answer within {millis} ms")]
    Silent {
        host: String,
        /// Time limit in milliseconds.
        millis: u64,
    },
    /// The host could not apply the plan.
    #[error("host {host}: {problem}")]
    Failed {
        host: String,
        /// The host's error message.
        problem: String,
    },
    /// The host has a plan with a later stamp.
    #[error(
        "host {host}: has decision {has}, so {told} is too late; another controller leads, or the \
         store is an older copy: `penstock controller epoch --at-least {}`", .has.next_epoch()
    )]
    Fenced {
        host: String,
        /// Stamp of the host's present plan.
        has: Stamp,
        /// Stamp of the refused plan.
        told: Stamp,
    },
}

#[async_trait]
pub trait Hosts: Send + Sync + std::fmt::Debug {
    /// Sends a plan to a host and waits until it is applied.
    async fn tell(&self, host: &str, plan: HostPlan) -> Result<(), HostError>;

    fn connected(&self, host: &str) -> bool;
}
