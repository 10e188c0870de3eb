//! A datacenter network at the level of flows: tenants, queues, limits, and the systems that
//! control them.
//!
//! # Problem
//!
//! A tenant notices the benefit of its own queue only over minutes and thousands of flows (QShare
//! §VII).
//!
//! # Approach
//!
//! Flows have rates, which follow only from links, queues, weights and limits ([`rates`]). The
//! production code (`penstock_fabric`) controls limits and queues. The production code gets only
//! values that it could measure in a real network, with the same delay. All random numbers come
//! from one seed.
//!
//! | Module | Content |
//! |---|---|
//! | [`spec`], [`sizes`] | links, tenants and connections; flow sizes |
//! | [`system`] | QShare, ElasticSwitch, Trinity, static reservation, plain TCP |
//! | [`link_share`], [`rates`] | how a link divides its rate; rates of all streams |
//! | [`peers`] | settings of the compared systems, and their acceptance check |
//! | [`packets`] | one bottleneck packet by packet, to validate the rates |
//! | [`flow_sim`], [`record`] | time and results |

pub mod flow_sim;
pub mod link_share;
pub mod packets;
pub mod peers;
pub mod rates;
pub mod record;
pub mod sizes;
pub mod spec;
pub mod system;

mod pair_limits;

pub use flow_sim::FlowSim;
pub use record::{FlowRecord, Record, Sample};
pub use sizes::{SizeTable, SizeTableError};
pub use spec::{Connection, Network, Order, Spec, SpecError, TenantSpec};
pub use system::{Always, Binder, HostUsage, PairLimits, QueueControl, System};
