//! The host's API: configuration, validation, snapshots, readings.
//!
//! The daemon is the client of [`host::Host`]. This crate does not run on a worker's path, so locks
//! and allocation are allowed. No function waits for traffic.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not a published reference; comments say what names do not")]
// Input of a guest or a user must not end the process. Tests fail by panicking.
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
