//! Runs the production worker on virtual time.
//!
//! # Problem
//!
//! A published figure must replay in seconds, at the paper's scale and with the same result every
//! time. The code that produces it must be the code that moves real packets.
//!
//! # Approach
//!
//! The workers of the data path run on virtual cycle counters. [`World`] connects the workers to
//! VMs that send and receive frames in memory. [`testbed::Testbed`] connects them to VMs and an
//! uplink that hold no frames. The cost of a stage comes from [`Costs`], which are fixed before the
//! run and never depend on the outcome. All random numbers come from one seed.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not a published reference; comments say what names do not")]

mod cores;
mod cost;
mod events;
pub mod fabric;
mod frames;
mod sink;
mod source;
pub mod testbed;
pub mod vcpu;
mod world;

pub use cores::WorldConfig;
pub use cost::{Costs, NOT_CHARGED, SimCounter, StageCost};
pub use events::EventQueue;
pub use frames::udp_frame;
pub use penstock_units::Rng;
pub use sink::{SinkSpec, SinkStats};
pub use source::{SourceSpec, SourceStats};
pub use world::{PortHandle, World, WorldError};
