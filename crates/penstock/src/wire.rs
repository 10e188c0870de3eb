//! The gRPC service of the host. The messages of the gRPC service are in [`penstock_control::api`].

#[allow(clippy::pedantic, clippy::nursery, reason = "generated code")]
mod v1 {
    tonic::include_proto!("penstock.host.v1");
}

pub use v1::{host_service_client, host_service_server};

/// Largest message that the daemon accepts, in bytes. A configuration of 1,000 ports needs about
/// 200 kB.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Largest message that a client accepts, in bytes. A message of this size has room for 100,000
/// addresses or the counters of 4,096 ports.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Shortest interval of a watch in milliseconds.
pub const WATCH_MS_MIN: u32 = 100;
/// Longest interval of a watch in milliseconds.
pub const WATCH_MS_MAX: u32 = 3_600_000;
