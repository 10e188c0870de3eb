//! The testbed of QShare's simulated and live figures, and its controller in simulations.
//!
//! | Module | Content |
//! |---|---|
//! | `testbed` | servers, links, tenants and workloads |
//! | `leading` | the fabric's real controller, which runs in simulated time |
//! | `elements`, `tree`, `store` | switches and hosts, the tree and the store of this controller |

mod elements;
mod leading;
mod store;
mod testbed;
mod tree;

pub(crate) use elements::Troubles;
pub(crate) use leading::{Done, Plant, qshare};
pub(crate) use testbed::*;
