//! The fabric's service: what `penstock-fabric` decides, stored, and carried out on switches and
//! hosts.
//!
//! **Rule.** Decisions are made in [`penstock_fabric`], which is pure. Here is what needs a clock,
//! a disk or a network: where intent is kept ([`store`]), how switches are told ([`southbound`]).
//!
//! Source: QShare §V-D, §VI.
#![forbid(unsafe_code)]

pub mod agent;
pub mod agents;
pub mod carry_out;
pub mod events;
pub mod fabric_state;
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

/// Doubles that tests of this crate share with those of others call it by its name.
#[cfg(test)]
extern crate self as penstock_controller;
