//! What the keys of a configuration mean for the switch: terms, worked out of several of them.
//!
//! The keys themselves stand in the modules beside this one, which know nothing of each other.

mod joining;
pub(super) mod police;
mod queueing;
mod receiving;
mod rtp;
mod switching;
mod wfq;

pub use joining::Joining;
pub use switching::Switching;
