//! Implements the host's API: configuration, checks, snapshots and reading of counters.
//!
//! The daemon uses this crate through [`host::Host`]. Workers do not run this crate's code for each
//! frame, so locks and allocation are allowed. No function of this crate waits for traffic.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "this crate is not published; a comment adds only facts that a name does not state"
)]
// Input of a guest or a user must not end the process. Tests fail by panicking.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unimplemented)
)]

pub mod api;
pub mod config;
pub mod explain;
pub mod host;
pub mod pair_control;
pub mod plan;
pub mod report;
pub mod snapshot;
pub mod what_if;
