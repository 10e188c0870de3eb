//! The data path consists of ports, scheduling, classification, egress, and the worker that runs
//! them.
//!
//! A frame passes the modules [`port`], [`schedule`], [`ingress_policer`], [`classify`] and
//! [`egress`] in this order. Frames may wait for their output port in the module [`queue`]. The
//! worker's loop calls [`worker::Worker::turn`], which runs the modules from `port` to `egress`.
//! Functions of the data path take the time as an argument, and only [`tsc`] reads a clock.
//! Comments cite the rules of `docs/internals/datapath-rules.md` by number ("datapath rule 7").
#![allow(
    missing_docs,
    reason = "this crate is not published; a comment adds only facts that a name does not state"
)]
#![deny(unsafe_code)]
// Input from a guest or a user must never end the process, so only tests may panic.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unimplemented)
)]

pub mod batch;
pub mod capture;
pub mod classify;
pub mod confine;
mod congestion;
pub mod counters;
pub mod drop;
pub mod egress;
pub mod finish;
pub mod headers;
mod inbound_shares;
pub mod ingress_policer;
mod mem;
pub mod offload;
mod pairs;
pub mod peers;
pub mod port;
pub mod queue;
pub mod rtp;
pub mod schedule;
pub mod snapshot;
mod sync;
pub mod tsc;
pub mod unit;
pub mod wake;
pub mod worker;
