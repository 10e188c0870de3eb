//! Quantities of the switch as types: a bare number never says whether it counts cycles or
//! nanoseconds, bytes or bits.
//!
//! Pure: no dependency, no clock, no allocation. Arithmetic that can leave the range saturates or
//! returns `Option`; nothing here panics.
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
