//! The data path: ports, scheduling, classification, egress, and the worker that runs them.
//!
//! The modules are in the order in which a frame passes: [`port`], [`schedule`],
//! [`ingress_policer`], [`classify`] and [`egress`]. A frame may wait for its output in [`queue`].
//! [`worker::Worker::turn`] is the loop that calls them. Every function takes the time as an
//! argument; only [`tsc`] reads a clock. Comments cite the rules of
//! `docs/internals/datapath-rules.md` by number ("datapath rule 7").
#![allow(missing_docs, reason = "a crate of this workspace only; comments say what names do not")]
#![deny(unsafe_code)]
// Input from a guest or a user must never end the process, so only tests may panic.
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
pub mod ingress_policer;
mod mem;
pub mod offload;
pub mod port;
pub mod queue;
pub mod schedule;
mod sync;
pub mod tsc;
pub mod worker;
