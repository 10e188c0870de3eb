//! What a host is told, and by whom.
//!
//! **Problem.** Hosts mark, and hosts' uplinks are the first queues that a packet meets; so a host
//! is told of its tenants and of its own port, and says when it has done so. **Rule.** A host is
//! told all that concerns it at once, never a difference: whoever was away is up to date with the
//! next message. What is stamped lower than what it has, it refuses.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Stamp;
use crate::southbound::PortState;

/// A tenant on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTenant {
    /// What it is called.
    pub name: String,
    /// The code point of what its VMs send; 0: it has no queue of its own.
    pub dscp: u8,
    /// How many of its VMs are here.
    pub vms: u32,
    /// What these are guaranteed to send together, bit/s.
    pub send: u64,
    /// What these are guaranteed to receive together, bit/s.
    pub recv: u64,
    /// With code point 0, what they may have in the shared queue, in thousandths of both; less than
    /// 1000 counts as that.
    #[serde(default)]
    pub headroom_permille: u32,
}

/// All that a host is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// The decision that it follows from.
    pub stamp: Stamp,
    /// By name.
    pub tenants: Vec<HostTenant>,
    /// The host's ports into the fabric, by the switch that they lead to.
    pub uplinks: BTreeMap<String, PortState>,
}

impl crate::saved::Stamped for HostPlan {
    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// Why a host did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// Its agent is not here.
    #[error("host {0}: its agent is not connected; it gets the plan when it is")]
    Away(String),
    /// It did not answer in time.
    #[error("host {host}: no answer within {millis} ms")]
    Silent {
        /// Which.
        host: String,
        /// How long was waited.
        millis: u64,
    },
    /// It could not.
    #[error("host {host}: {problem}")]
    Failed {
        /// Which.
        host: String,
        /// What it said.
        problem: String,
    },
    /// It was told by somebody with a later stamp.
    #[error(
        "host {host}: has decision {has}, so {told} is too late; another controller leads, or the \
         store is an older copy: `penstock controller epoch --at-least {}`", .has.next_epoch()
    )]
    Fenced {
        /// Which.
        host: String,
        /// What it has.
        has: Stamp,
        /// What it was told.
        told: Stamp,
    },
}

/// All hosts.
#[async_trait]
pub trait Hosts: Send + Sync + std::fmt::Debug {
    /// Tells a host, and waits until it has done it.
    async fn tell(&self, host: &str, plan: HostPlan) -> Result<(), HostError>;

    /// Whether a host's agent is connected.
    fn connected(&self, host: &str) -> bool;
}
