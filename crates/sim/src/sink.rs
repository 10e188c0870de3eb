//! Settings and counters of sinks, which are VMs that receive at a limited rate.

use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_units::Nanos;

use crate::frames::wire_bytes;

/// Rate at which a VM empties its ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinkSpec {
    /// Maximum number of frames per second that the VM receives. `None` if the VM receives all
    /// frames immediately.
    pub frames_per_second: Option<u64>,
}

/// Counters of a receiving VM (sink).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkStats {
    pub frames: u64,
    pub bytes: u64,
    /// Number of frames with a sequence number that is not above the sequence number of the
    /// sender's previous frame.
    pub reordered: u64,
}

/// A frame that a VM received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time at which the switch delivered the frame.
    pub at: Nanos,
    /// Source port of the frame's UDP or TCP header, 0 if the frame is too short.
    pub flow: u16,
    /// Number that the frame's sender wrote into a UDP frame ([`crate::udp_frame`]).
    pub sequence: u64,
    /// Bytes that the frame occupies on a link ([`wire_bytes`]).
    pub wire: u64,
}

impl Arrival {
    pub(crate) fn of(frame: &MemoryFrame, at: Nanos) -> Self {
        let flow = frame.bytes.get(34..).and_then(|bytes| bytes.first_chunk());
        let sequence = frame.bytes.get(42..).and_then(|bytes| bytes.first_chunk());
        Self {
            at,
            flow: flow.map_or(0, |bytes| u16::from_be_bytes(*bytes)),
            sequence: sequence.map_or(0, |bytes| u64::from_be_bytes(*bytes)),
            wire: wire_bytes(frame),
        }
    }
}
