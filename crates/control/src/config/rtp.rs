//! The key `rtp` of a port: RTP streams whose jitter the switch measures.

use penstock_dataplane::rtp::RTP_STREAMS_MAX;
use penstock_toml::{Object, Report};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An RTP stream to a UDP port of the VM, as in `{ port = 5004, clock_hz = 90000 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an rtp table such as { port = 5004, clock_hz = 90000 }")]
pub struct RtpStream {
    /// Destination UDP port of the stream, 1 to 65535.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: u16,
    /// Clock rate of the stream's timestamps in hertz, 1 to 1000000000: 90000 for video, 8000 or
    /// 48000 for voice (RFC 3551). Default 90000.
    #[serde(default = "video")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub clock_hz: u32,
}

const fn video() -> u32 {
    90_000
}

/// Checks the RTP streams of a port. The argument `is_owned` is true if the port belongs to a
/// tenant.
pub(super) fn check<T>(
    object: &Object<'_, T>,
    streams: &[RtpStream],
    is_owned: bool,
    report: &mut Report<'_>,
) {
    if streams.len() > RTP_STREAMS_MAX {
        let problem = format!("{} RTP streams are too many", streams.len());
        report.at(object, "rtp", problem, format!("list at most {RTP_STREAMS_MAX}"));
    }
    if !streams.is_empty() && !is_owned {
        let remedy = "list the stream at the VM's port that receives it";
        report.at(object, "rtp", "`rtp` is only for a port with a `tenant`", remedy);
    }
    for (at, stream) in streams.iter().enumerate() {
        if stream.port == 0 || streams[..at].iter().any(|other| other.port == stream.port) {
            let problem = format!("UDP port {} is 0 or listed twice", stream.port);
            report.at(object, &format!("rtp.{at}"), problem, "list each port (1 to 65535) once");
        }
        if !(1..=1_000_000_000).contains(&stream.clock_hz) {
            let problem = format!("`clock_hz` {} is out of range", stream.clock_hz);
            let remedy = "write a clock rate of 1 to 1000000000 Hz, such as 90000 for video";
            report.at(object, &format!("rtp.{at}"), problem, remedy);
        }
    }
}
