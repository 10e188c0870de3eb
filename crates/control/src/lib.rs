//! The host's one API: configuration, validation, snapshots, readings.
//!
//! Daemon, command line, later the controller and the lab are clients of [`host::Host`]. Nothing
//! here runs on a worker's path; locks and allocation are allowed, and nothing waits for traffic.
#![forbid(unsafe_code)]
// Nothing a guest or a user sends may end the process; tests fail by panicking.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unimplemented)
)]

pub mod api;
pub mod config;
mod explain;
pub mod host;
pub mod plan;
pub mod snapshot;
