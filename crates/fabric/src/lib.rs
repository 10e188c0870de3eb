//! The fabric as pure algorithms: the placement of tenants' VMs, and the choice of tenants with a
//! switch queue of their own.
//!
//! Nothing here reads a clock or draws a random number. Time and choices are arguments, so the
//! controller, the simulator and property tests run the same code, and runs can be replayed.
//!
//! The source is "Enabling Work-Conserving Bandwidth Guarantees for Multi-Tenant Datacenters via
//! Dynamic Tenant-Queue Binding" (Z. Liu et al., QShare).
#![forbid(unsafe_code)]

pub mod dscp;
pub mod gain;
pub mod hose;
pub mod ledger;
pub mod queue_binding;
pub mod rate_alloc;
pub mod score;
pub mod tenant_placement;
pub mod topology;
