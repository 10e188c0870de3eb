//! From a configuration to what the data path goes by.
//!
//! **Problem.** The worker knows numbers, the configuration names; numbers must not move when
//! something else changes, or learned addresses and counters would belong to another port.
//! **Rule.** [`IdTable`] gives every port, tenant and network a number for as long as its name
//! lives; [`Compiler`] makes one immutable snapshot of the whole and keeps the rule tables whose
//! rules did not change.

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
