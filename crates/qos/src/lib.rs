//! Quality of service as pure algorithms: who may have how much, and whose turn it is.
//!
//! **Rule.** Nothing here reads a clock or allocates after it is set up; time is an argument, so
//! the same code runs on a core, in the simulator and under property tests. Its user is the worker
//! of `penstock-dataplane`.
//!
//! Source: C2QoS (J. Syst. Archit. 116, 2021).
#![forbid(unsafe_code)]

pub mod bottleneck;
pub mod policer;
