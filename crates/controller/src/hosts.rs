//! Defines the plans that a controller sends to hosts.
//!
//! # Problem
//!
//! Hosts mark packets with the tenants' code points. A packet's first queue in the fabric is on the
//! uplink of its host. A host therefore needs the code points of its tenants, and the weights and
//! maps of its own ports. The host must confirm each change.
//!
//! # Approach
//!
//! A plan contains the whole state of the host, never a difference. After a host was unreachable, a
//! single plan brings the host up to date. Each plan has a stamp (term and number of a decision). A
//! host refuses a plan if its present plan has a higher stamp.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;
use crate::southbound::PortState;

/// A tenant in a host's plan: the tenant's code point, its guarantees, and its rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTenant {
    pub name: String,
    /// DSCP code point of the tenant's packets. 0 if the tenant shares queue 0.
    pub dscp: u8,
    /// Number of the tenant's VMs on the host.
    pub vms: u32,
    /// Sum of the guaranteed sending rates of the tenant's VMs on the host, in bit/s.
    pub send: u64,
    /// Sum of the guaranteed receiving rates of the tenant's VMs on the host, in bit/s.
    pub recv: u64,
    /// Rate limit of the tenant, as thousandths of the guarantees `send` and `recv`. The rate limit
    /// applies to a tenant with `dscp` 0, and to a tenant with `limited`. A `headroom_permille`
    /// below 1000 counts as 1000.
    #[serde(default)]
    pub headroom_permille: u32,
    /// True if the rate limit applies although the tenant has its own queue. The controller limits
    /// tenants while queues change hands, and while a port lacks their queue. A host of an earlier
    /// version ignores `limited`.
    #[serde(default)]
    pub limited: bool,
}

/// Complete plan of a host: its tenants and the state of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Stamp (term and number) of the controller's decision that this plan carries out.
    pub stamp: Stamp,
    /// Tenants with VMs on the host, ordered by name.
    pub tenants: Vec<HostTenant>,
    /// State of each port that connects the host to the fabric, by the name of the switch at the
    /// other end of the link.
    pub uplinks: BTreeMap<String, PortState>,
}

impl crate::saved::Stamped for HostPlan {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// Reason why a host did not apply a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The host's agent is not connected.
    #[error("host {0}: its agent is not connected; the host gets the plan when the agent connects")]
    Away(String),
    /// The host did not answer within the time limit.
    #[error("host {host}: no answer within {millis} ms")]
    Silent {
        host: String,
        /// Time limit for the host's answer, in milliseconds.
        millis: u64,
    },
    /// The host could not apply the plan.
    #[error("host {host}: {problem}")]
    Failed { host: String, problem: String },
    /// The host refused the plan, because the host has a plan with a later stamp (term and number
    /// of a decision).
    #[error(
        "host {host}: has the later decision {has}, so {told} is refused; \
         another controller leads, or the store is an older copy: \
         `penstock controller epoch --at-least {}`", .has.next_epoch()
    )]
    Fenced {
        host: String,
        /// Stamp (term and number) of the host's present plan.
        has: Stamp,
        /// Stamp (term and number) of the refused plan.
        told: Stamp,
    },
}

#[async_trait]
pub trait Hosts: Send + Sync + std::fmt::Debug {
    /// Sends a plan to a host, and waits until the host has applied the plan.
    async fn tell(&self, host: &str, plan: HostPlan) -> Result<(), HostError>;

    fn connected(&self, host: &str) -> bool;
}
