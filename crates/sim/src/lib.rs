//! Runs the production worker on virtual time.
//!
//! # Problem
//!
//! A published figure must replay in seconds, at the paper's scale and with the same result every
//! time. The code that produces it must be the code that moves real packets.
//!
//! # Approach
//!
//! [`World`] owns a [`penstock_dataplane::worker::Worker`] on a virtual cycle counter. Sources and
//! sinks act at their own times. The cost of a stage comes from a [`CostTable`] that is fixed
//! before the run and never depends on the outcome. All random numbers come from one seed.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not a published reference; comments say what names do not")]

mod cost;
mod events;
pub mod fabric;
mod frames;
mod sink;
mod source;
pub mod testbed;
pub mod vcpu;
mod world;

pub use cost::{CostTable, SimCounter, StageCost};
pub use events::EventQueue;
pub use frames::udp_frame;
pub use penstock_units::Rng;
pub use sink::{SinkSpec, SinkStats};
pub use source::{SourceSpec, SourceStats};
pub use world::{PortHandle, World, WorldConfig, WorldError};
