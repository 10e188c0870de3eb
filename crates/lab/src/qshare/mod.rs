//! What QShare's simulated and live figures share: the testbed, and its tenants' queue binding.

mod binder;
mod testbed;

pub(crate) use testbed::*;
