//! Turns a configuration into the snapshot that the data path uses.
//!
//! # Problem
//! The worker uses numbers, the configuration uses names. A number must not change when something
//! else changes, or learned addresses and counters would belong to another port.
//!
//! # Approach
//! [`IdTable`] gives each port, tenant and network a number that lasts as long as its name exists.
//! [`Compiler`] builds one immutable snapshot and keeps the rule tables whose rules did not change.

mod compile;
mod egress_policers;
mod ids;
mod ingress_policers;
mod queues;
pub(crate) mod rules;
mod streams;

pub use compile::{Compiler, Sold, StaticAddress};
pub use ids::IdTable;
pub use ingress_policers::WatchedLink;
