//! The testbed of QShare's simulated and live figures, and the queue binding of its tenants.

mod binder;
mod testbed;

pub(crate) use testbed::*;
