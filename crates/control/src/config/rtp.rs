//! `rtp`: streams whose jitter is measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `{ port = 5004, clock_hz = 90000 }`: RTP to a UDP port of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { port = 5004, clock_hz = 90000 }")]
pub struct RtpStream {
    /// UDP port it goes to, 1 to 65535.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: u16,
    /// Units of its timestamps in a second, 1 to 1000000000: 90000 of video, 8000 or 48000 of
    /// voice (RFC 3551). Default 90000.
    #[serde(default = "video")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub clock_hz: u32,
}

const fn video() -> u32 {
    90_000
}
