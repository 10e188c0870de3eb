//! QShare's testbed, and its tenants bound to queues: what its simulated and live figures share.

mod binder;
mod testbed;

pub(crate) use testbed::*;
