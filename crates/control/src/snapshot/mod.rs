//! Turns a configuration into the snapshot that the data path uses.
//!
//! # Problem
//! The workers use numbers for ports and networks, but the configuration uses names. The number of
//! a port must not change when another object changes. If a port's number changed, its learned
//! addresses and counters would belong to another port.
//!
//! # Approach
//! [`IdTable`] gives each port, tenant and network a number. A name keeps its number while the name
//! is in the configuration. [`Compiler`] builds one immutable snapshot and keeps the rule tables
//! whose rules did not change.

mod compile;
mod egress_policers;
mod ids;
mod inbound;
mod ingress_policers;
mod queues;
pub(crate) mod rules;
pub(crate) mod seen;
mod streams;

pub use compile::{Compiler, Sold, StaticAddress};
pub use ids::IdTable;
pub use ingress_policers::WatchedLink;
