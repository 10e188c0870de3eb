//! Keeps the measurements of RTP streams, which outlive a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_dataplane::rtp::{RtpReading, RtpStreams};

use crate::api::RtpStatus;
use crate::config::HostConfig;

/// UDP ports with their clock rates, and the measurements of the RTP streams to these ports.
type Marked = (Vec<(u16, u32)>, Arc<RtpStreams>);

/// Measurements of RTP streams, by the name of the port to which the streams go.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamTable(BTreeMap<String, Marked>);

impl StreamTable {
    /// Creates the measurements of the RTP streams of `config`, and reuses existing measurements.
    /// The measurements of a stream are kept if the stream's keys do not change.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let ports = config.ports.iter().filter(|port| !port.rtp.is_empty()).map(|port| {
            let marked = port.measured();
            let old = self.0.get(&port.name).filter(|(old, _)| *old == marked);
            let streams = old.map(|(_, streams)| Arc::clone(streams));
            let streams = streams.unwrap_or_else(|| Arc::new(RtpStreams::new(&marked)));
            (port.name.clone(), (marked, streams))
        });
        Self(ports.collect())
    }

    pub(super) fn of(&self, port: &str) -> Option<Arc<RtpStreams>> {
        self.0.get(port).map(|(_, streams)| Arc::clone(streams))
    }

    /// Returns the measurements of the RTP streams to a port.
    pub(super) fn read(&self, port: &str) -> Vec<RtpStatus> {
        let status = |r: RtpReading| RtpStatus {
            udp_port: r.udp_port.into(),
            ssrc: r.ssrc,
            packets: r.packets,
            lost: r.lost,
            jitter_ns: r.jitter.0,
            jitter_max_ns: r.jitter_max.0,
        };
        self.0.get(port).into_iter().flat_map(|(_, s)| s.read()).map(status).collect()
    }
}
