//! Quality of service as pure algorithms: how much capacity each client may use, and which client
//! is served next.
//!
//! Nothing here reads a clock. Time is an argument, so the same code runs on a core, in the
//! simulator and in property tests. Code that a worker calls allocates only during setup. The
//! worker of `penstock-dataplane` uses most modules. The control plane uses the modules with
//! answers that are needed once or every second: `cost_model`, `admission` and `learner`.
//!
//! # Sources
//!
//! - C2QoS: J. Syst. Archit. 116, 2021.
//! - FS-VDE: J. Lee et al., fair shares of an uplink by client.
//! - "Defeating Network Jitter for Virtual Machines": L. Cheng, C.-L. Wang.
#![forbid(unsafe_code)]

pub mod admission;
pub mod bottleneck;
pub mod c2tb;
pub mod cost_model;
pub mod delay;
pub mod delay_scale;
pub mod discipline;
pub mod eevdf;
pub mod egress_policer;
pub mod fair_share;
pub mod hbs;
pub mod latency_bound;
pub mod learner;
pub mod policer;
pub mod shaper;
pub mod share;
pub mod vtrr;
pub mod wfq;
pub mod wheel;

mod bucket;
mod heap;
