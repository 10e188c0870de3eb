//! The time of day, for records that outlive the daemon.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the present time in seconds of Unix time.
#[expect(clippy::disallowed_methods, reason = "the program is the outermost layer")]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the present time in nanoseconds of Unix time.
#[expect(clippy::disallowed_methods, reason = "the program is the outermost layer")]
pub fn unix_ns() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
