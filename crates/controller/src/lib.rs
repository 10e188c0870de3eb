//! The fabric controller. It stores decisions of `penstock-fabric` and carries them out on switches
//! and hosts.
//!
//! # Approach
//!
//! [`penstock_fabric`] makes decisions without side effects. This crate has the parts that need a
//! clock, a disk or a network. They are the [`store`], the drivers of switches ([`southbound`]) and
//! the sessions of hosts ([`agents`]).
//!
//! # Source
//!
//! The controller follows QShare §V-D and §VI.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not a published reference; comments say what names do not")]

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

/// Test doubles that other crates share refer to this crate by this name.
#[cfg(test)]
extern crate self as penstock_controller;
