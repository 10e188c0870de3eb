//! Headers of frames: parsing, flow keys, and edits.
//!
//! The modules for frame headers use no configuration. [`crate::snapshot`] defines which frames a
//! port may send.

pub(crate) mod edit;
pub(crate) mod ipv6;
pub mod key;
pub mod parse;
#[cfg(test)]
pub(crate) mod test_frames;

pub(crate) use edit::{dscp_of, ip_of, is_ce, is_ect, is_l4s, is_pure_ack, mark, mark_congestion};
pub use key::{FlowKey, FlowMask, HashSeed};
pub(crate) use parse::{is_tag, key_of};
