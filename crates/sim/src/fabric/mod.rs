//! A datacenter's network at the level of flows: tenants, queues, limits and the systems that set
//! them.
//!
//! **Problem.** What a queue of its own is worth to a tenant shows in seconds and minutes of
//! thousands of flows (QShare §VII). **Rule.** Flows have rates, and rates follow from links,
//! queues, weights and limits alone ([`rates`]); limits and queues are moved by the code that would
//! move them in production (`penstock_fabric`), which sees what it could measure, as late as it
//! could. Everything random comes from one seed.
//!
//! | Module | What it is |
//! |---|---|
//! | [`spec`], [`sizes`] | links, tenants, connections; how long flows are |
//! | [`system`] | QShare, ElasticSwitch, Trinity, static reservation, plain TCP |
//! | [`link_share`], [`rates`] | how a link divides its rate, and what follows for all streams |
//! | [`peers`] | settings of the systems compared with, and what they must show first |
//! | [`packets`] | one bottleneck packet by packet, to hold the rates against |
//! | [`flow_sim`], [`record`] | time, and what is left of a run |

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
