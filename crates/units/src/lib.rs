//! Quantities of the switch as types, so that cycles are never mistaken for nanoseconds or bytes
//! for bits.
//!
//! The crate is pure: it has no dependencies, reads no clock and allocates nothing. Arithmetic that
//! can overflow saturates or returns `Option`. Nothing here panics.
#![forbid(unsafe_code)]

mod id;
mod mac;
mod quantity;
mod rate;
mod rng;
mod share;
mod vlan;

pub use id::{CpuId, PortId, QueueId, TenantId, VcpuId, VmId, WorkerId};
pub use mac::{MacAddr, ParseMacError};
pub use quantity::{Bytes, Cycles, Nanos, Packets};
pub use rate::{BitsPerSecond, CyclesPerSecond, PacketsPerSecond, ParseRateError, TscRate};
pub use rng::Rng;
pub use share::{Priority, ShareRangeError, Weight};
pub use vlan::{Vid, VidRangeError};
