//! Shapers, loads and claims that simulated and live figures of VM jitter share.
//!
//! # Source
//!
//! VM jitter §V-B, Figs. 8 to 10. The shapers and the load are the same in both modes, so a
//! figure's claims are the same whether it is simulated or live.

pub(crate) mod requests;
pub(crate) mod shaper;
pub(crate) mod spacing;
pub(crate) mod stream;
