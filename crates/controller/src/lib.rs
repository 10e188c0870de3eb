//! The fabric controller stores decisions of `penstock-fabric` and executes them on switches and
//! hosts.
//!
//! # Approach
//!
//! [`penstock_fabric`] makes decisions without side effects. This crate contains the parts of the
//! controller that need a clock, a disk or a network. The main parts are the [`store`], the drivers
//! of switches ([`southbound`]) and the sessions of hosts ([`agents`]).
//!
//! # Source
//!
//! The fabric controller follows QShare §V-D and §VI.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the API is not published, so comments are optional")]

pub mod agent;
pub mod agents;
pub mod carry_out;
pub mod events;
pub mod fabric_state;
pub mod files;
mod fnv;
pub mod history;
pub mod hosts;
pub mod intent;
pub mod leader;
pub mod listen;
mod saved;
pub mod service;
pub mod southbound;
pub mod stamp;
pub mod store;
pub mod switch;
pub mod view;
pub mod wire;

pub use stamp::Stamp;

/// In unit tests, the crate can also be named `penstock_controller` within its own source. Some
/// test doubles refer to `penstock_controller`, because other crates also include the source of
/// these test doubles.
#[cfg(test)]
extern crate self as penstock_controller;
