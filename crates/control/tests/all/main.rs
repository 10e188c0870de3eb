//! Tests of the public API of the crate `penstock-control`.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod config_conflicts;
mod config_errors;
mod config_fabric;
mod config_queues;
mod config_vcpus;
mod guarantee_control;
mod live_host;
mod pair_control;
mod prop_compile;
mod schema;
mod wrong;
