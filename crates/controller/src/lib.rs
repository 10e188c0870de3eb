//! The fabric controller: it stores decisions of `penstock-fabric` and carries them out on switches
//! and hosts.
//!
//! Decisions are made in [`penstock_fabric`], which is pure. This crate has everything that needs a
//! clock, a disk or a network: the [`store`], the drivers of switches ([`southbound`]) and the
//! sessions of hosts ([`agents`]).
//!
//! Source: QShare §V-D, §VI.
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

/// Test doubles that this crate shares with others refer to it by this name.
#[cfg(test)]
extern crate self as penstock_controller;
