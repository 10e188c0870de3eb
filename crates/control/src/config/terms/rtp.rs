//! The streams of a port whose jitter is measured.

use super::super::model::Port;

impl Port {
    /// What is measured of what goes to it: UDP ports and clocks.
    pub(crate) fn measured(&self) -> Vec<(u16, u32)> {
        self.rtp.iter().map(|stream| (stream.port, stream.clock_hz)).collect()
    }
}
