//! What simulated and live figures of VM jitter share: shapers, loads, and what is claimed.
//!
//! **Source.** VM jitter §V-B, Figs. 8 to 10: the same shapers under the same load, so that the
//! claims of a figure are the same whether it is simulated or live.

pub(crate) mod requests;
pub(crate) mod shaper;
pub(crate) mod spacing;
pub(crate) mod stream;
