//! Algorithms for quality of service, which decide how much capacity each client may use and which
//! client is served next.
//!
//! This crate does not read a clock. The functions get the time as an argument, so the same code
//! runs in the switch, in the simulator and in property tests. Most modules of this crate run in
//! the workers of `penstock-dataplane`. The modules that run in workers allocate memory only during
//! setup. The control plane uses the modules `cost_model`, `admission` and `learner`.
//!
//! # Sources
//!
//! - C2QoS is a paper in the Journal of Systems Architecture 116, 2021.
//! - FS-VDE is a paper by Lee et al. about the fair sharing of an uplink between clients.
//! - "Defeating Network Jitter for Virtual Machines" is a paper by Cheng and Wang.
#![forbid(unsafe_code)]

pub mod admission;
pub mod bottleneck;
pub mod c2tb;
pub mod codel;
pub mod cost_model;
pub mod delay;
pub mod delay_scale;
pub mod discipline;
pub mod eevdf;
pub mod egress_policer;
pub mod fair_share;
pub mod flow_queues;
pub mod flow_shares;
pub mod hbs;
pub mod inbound_shares;
pub mod latency_bound;
pub mod learner;
pub mod pair_table;
pub mod policer;
pub mod shaper;
pub mod share;
pub mod vtrr;
pub mod wfq;
pub mod wheel;

mod bucket;
mod frame_pool;
mod frame_sizes;
mod heap;
