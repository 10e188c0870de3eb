//! Quantities have separate types, so that the compiler rejects cycles where nanoseconds are
//! expected, and bytes where bits are expected.
//!
//! The crate `penstock-units` has no dependencies, reads no clock and allocates no memory.
//! Arithmetic that can overflow saturates or returns `Option`. No function of the crate panics.
#![forbid(unsafe_code)]

mod date;
mod id;
pub mod labels;
mod mac;
mod name;
mod quantity;
mod rate;
mod rng;
mod share;
mod vlan;

pub use date::utc_date;
pub use id::{CpuId, PortId, QueueId, TenantId, VcpuId, VmId, WorkerId};
pub use labels::Labels;
pub use mac::{MacAddr, ParseMacError};
pub use name::{NAME_REMEDY, NameMistake, check_name};
pub use quantity::{Bytes, Cycles, Nanos, Packets};
pub use rate::{BitsPerSecond, CyclesPerSecond, PacketsPerSecond, ParseRateError, TscRate};
pub use rng::Rng;
pub use share::{Priority, ShareRangeError, Weight};
pub use vlan::{Vid, VidRangeError};

/// Longest name of a host, tenant, port, rule or VM in bytes. The ID of a container has 64
/// characters.
/// Hosts and controllers share the limit, so that a controller accepts the usage of each tenant.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest name of a server or switch in a fabric's topology in bytes. The certificate of the
/// server or switch has the name as a name of DNS, and a label of DNS has at most 63 bytes
/// (RFC 1035, section 2.3.4).
pub const NODE_BYTES_MAX: usize = 63;
