//! The controller's side of its sessions with the hosts' agents. In a session, the controller
//! receives measurements and sends plans.
//!
//! # Problem
//!
//! The controller must serve thousands of agents, and any agent may be faulty, slow or hostile.
//!
//! # Approach
//!
//! - A session belongs to a host of the topology. The agent's certificate must name this host.
//! - A session can affect only the measurements of the session's host.
//! - The controller limits the size and rate of an agent's reports. The reports of a session are
//!   numbered from 1 without gaps.
//! - If an agent breaks a rule, the controller sends the reason to the agent and ends the session.
//! - Messages to an agent wait in a channel of [`QUEUE`] entries. An agent with a full message
//!   channel counts as disconnected.
//!
//! A measurement covers the time between two reports. A measurement consists of a duration, and of
//! the bytes that each tenant sent and received over the network.

mod registry;
mod serve;
mod service;
mod turn;

pub use crate::listen::{Limits, PemFiles, ServeError, ServerTls};
pub use registry::{AgentCounts, Known, QUEUE, Registry, Violation};
pub use serve::serve;
pub use service::{AgentServer, Identity, Leading};
