//! The controller's side of the hosts' agents. It handles sessions, measurements and plans.
//!
//! # Problem
//!
//! Thousands of agents come and go, and any of them may be faulty, slow or hostile.
//!
//! # Approach
//!
//! A session belongs to a host of the topology, and the agent's certificate must name this host.
//! The session can affect only that host's measurements. Reports are bounded and numbered from 1
//! without gaps. If an agent breaks a rule, its session ends with a reason. Messages to an agent
//! wait in a channel of [`QUEUE`] entries. If an agent does not receive them, it counts as gone.
//!
//! A measurement consists of the bytes over the network between two reports, and the time between
//! them.

mod registry;
mod serve;
mod service;
mod turn;

pub use crate::listen::{Limits, PemFiles, ServeError, ServerTls};
pub use registry::{AgentCounts, Known, QUEUE, Registry, Violation};
pub use serve::serve;
pub use service::{AgentServer, Identity, Leading};
