//! The hosts' agents from the controller's side: sessions, measurements and plans.
//!
//! # Problem
//!
//! Thousands of agents come and go, and any of them may be faulty, slow or hostile.
//!
//! # Approach
//!
//! A session belongs to a host of the topology, which its certificate must name. It can affect only
//! that host's measurements. Reports are bounded and numbered from 1 without gaps. A session that
//! breaks a rule ends with a reason. Messages to an agent wait in a channel of [`QUEUE`] entries.
//! An agent that does not receive them counts as gone.
//!
//! Usage is measured in bytes over the network between two reports, and the time between them.

mod registry;
mod serve;
mod service;
mod turn;

pub use crate::listen::{Limits, PemFiles, ServeError, ServerTls};
pub use registry::{AgentCounts, Known, QUEUE, Registry, Violation};
pub use serve::serve;
pub use service::{AgentServer, Identity, Leading};
