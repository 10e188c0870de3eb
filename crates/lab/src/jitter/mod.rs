//! Shapers, loads and claims that the simulated and the live figures of VM jitter share.
//!
//! # Source
//!
//! The source is VM jitter §V-B, Figs. 8 to 10. Simulation and live run use the same shapers, loads
//! and claims.

pub(crate) mod requests;
pub(crate) mod shaper;
pub(crate) mod spacing;
pub(crate) mod stream;
