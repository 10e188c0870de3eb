//! The host's one API: configuration, validation, snapshots, readings.
//!
//! Daemon, command line, later the controller and the lab are clients of [`host::Host`]. Nothing
//! here runs on a worker's path; locks and allocation are allowed, and nothing waits for traffic.
#![forbid(unsafe_code)]

pub mod api;
pub mod config;
pub mod host;
pub mod snapshot;
