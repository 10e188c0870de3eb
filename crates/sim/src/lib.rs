//! The production worker on virtual time.
//!
//! **Problem.** A published figure must replay in seconds, the same every time, at the paper's own
//! scale, and the code that produced it must be the code that moves real packets. **Rule.**
//! [`World`] owns a [`penstock_dataplane::worker::Worker`] on a virtual cycle counter; sources and
//! sinks act at their own times; what a stage costs comes from a [`CostTable`] that was given
//! beforehand, never from the outcome. Everything random comes from one seed.
#![forbid(unsafe_code)]

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
