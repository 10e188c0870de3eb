//! Runs the production worker in virtual time.
//!
//! # Problem
//!
//! The simulation of a published figure must take only seconds, at the paper's scale. The
//! simulation must always give the same result. The code under test must be the production code
//! that moves real packets.
//!
//! # Approach
//!
//! The workers of the data path run with virtual cycle counters. [`World`] connects the workers to
//! VMs that send and receive real frames in memory. [`testbed::Testbed`] is faster, because it
//! connects the workers to VMs and an uplink that store no frames. [`Costs`] has the cycles that
//! each stage costs. Costs are fixed before a run and never depend on the result. All random
//! numbers of a run come from one seed.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the API is not published, so comments are optional")]

pub mod bulk_tcp;
mod cores;
mod cost;
mod events;
pub mod fabric;
mod frames;
mod notified;
pub mod shaped_vm;
mod sink;
mod snapshot_cost;
mod source;
pub mod testbed;
pub mod vcpu;
mod world;

pub use cores::WorldConfig;
pub use cost::{Costs, Overheads, SimCounter, StageCost};
pub use events::EventQueue;
pub use frames::{tcp_segment, udp_frame, wire_bytes};
pub use notified::Notice;
pub use penstock_units::Rng;
pub use sink::{Arrival, SinkSpec, SinkStats};
pub use snapshot_cost::SnapshotCost;
pub use source::{SourceSpec, SourceStats};
pub use world::{PortHandle, World, WorldError};
