//! Simulation of a datacenter network at the level of flows: tenants, queues, limits, and the
//! systems that control them.
//!
//! # Problem
//!
//! The benefit of a dedicated queue for a tenant is visible only in minutes of traffic, with
//! thousands of flows (QShare §VII).
//!
//! # Approach
//!
//! Links, queues, weights and limits determine the rates of flows ([`rates`]). A controller sets
//! queues and limits, and `penstock_fabric` computes the rate limits of pairs of VMs. The
//! production code gets only values that it could measure in a real network, with the delay of a
//! real measurement. All random numbers of a simulation come from one seed.
//!
//! | Module | Content |
//! |---|---|
//! | [`spec`], [`sizes`] | links, tenants and connections; flow sizes |
//! | [`system`] | QShare, ElasticSwitch, Trinity, static reservation, plain TCP |
//! | [`control`] | what the controller of QShare sets, and when |
//! | `kept` | what the weights leave of guarantees at every moment |
//! | [`link_share`], [`rates`] | division of a link's rate; rates of all streams |
//! | [`peers`] | settings of ElasticSwitch and Trinity, and a check that each setting must pass |
//! | [`ramp`] | windows of TCP flows: slow start and losses |
//! | [`packets`] | packets of one bottleneck, to validate the rates |
//! | `active`, `client` | state of the pairs of VMs that have flows; state of clients |
//! | [`flow_sim`], [`record`] | simulation of flows over time, and records of its results |

pub mod control;
pub mod flow_sim;
pub mod link_share;
pub mod packets;
pub mod peers;
pub mod ramp;
pub mod rates;
pub mod record;
pub mod sizes;
pub mod spec;
pub mod system;

mod active;
mod client;
mod kept;
mod pair_limits;

pub use control::{Always, Change, Controller, HostUsage, QueueControl, Terms, Timeline};
pub use flow_sim::FlowSim;
pub use pair_limits::PairLimits;
pub use ramp::Ramp;
pub use record::{FlowRecord, Record, Sample};
pub use sizes::{SizeTable, SizeTableError};
pub use spec::{Connection, Network, Order, Spec, SpecError, TenantSpec};
pub use system::System;
