//! The hosts' agents, as a controller sees them: sessions, what they measured, what they were told.
//!
//! **Problem.** Thousands of agents come and go, and any of them may be wrong, slow or hostile.
//! **Rule.** A session is bound to a host that the topology has, by the certificate it came with.
//! It may hold its own host's numbers and nothing else: reports are bounded, counted from 1 without
//! a gap, and a session that breaks a rule ends with a reason. What is to be told waits in a
//! channel of [`QUEUE`] messages; an agent that does not take them is as good as gone.
//!
//! **Quantities.** Usage is bytes over the network between two reports, and the time between them.

mod registry;
mod serve;
mod service;
mod turn;

pub use crate::listen::{Limits, PemFiles, ServeError, ServerTls};
pub use registry::{AgentCounts, Known, QUEUE, Registry, Violation};
pub use serve::serve;
pub use service::{AgentServer, Identity, Leading};
