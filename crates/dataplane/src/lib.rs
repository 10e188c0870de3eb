//! The data path: ports, scheduling, classification, egress, and the worker that runs them.
//!
//! The tree shows a frame's way: [`port`] → [`schedule`] → [`police`] → [`classify`] →
//! [`egress`], and [`queue`] where an output lets frames wait. The loop is
//! [`worker::Worker::turn`]. Time is an argument everywhere but in [`tsc`].
//! The rules that comments cite ("datapath rule 7") are in `docs/datapath-rules.md`.
#![deny(unsafe_code)]
// Nothing a guest or a user sends may end the process; tests fail by panicking.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unimplemented)
)]

pub mod batch;
pub mod classify;
pub mod confine;
pub mod counters;
pub mod drop;
pub mod egress;
mod mem;
pub mod offload;
pub mod police;
pub mod port;
pub mod queue;
pub mod schedule;
mod sync;
pub mod tsc;
pub mod worker;
