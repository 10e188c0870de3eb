//! Algorithms for a datacenter fabric: the placement of tenants' VMs, the assignment of switch
//! queues to tenants, and the rates of pairs of VMs.
//!
//! This crate does not read a clock or generate random numbers. The caller passes the time and
//! random numbers as arguments. The controller, the simulator and property tests run the same code.
//! Equal inputs give equal results.
//!
//! The source of the algorithms is "Enabling Work-Conserving Bandwidth Guarantees for Multi-Tenant
//! Datacenters via Dynamic Tenant-Queue Binding" (QShare, by Liu et al.).
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
