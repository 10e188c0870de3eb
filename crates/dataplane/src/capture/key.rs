//! Reads the headers of a captured frame.

use penstock_units::PortId;

use crate::batch::Batch;
use crate::headers::key::FlowKey;
use crate::headers::key_of;
use crate::offload::Offload;

/// Bytes of a frame that the parser may need: all headers with extensions.
const HEAD: usize = 128;

/// Reader of headers. It owns a copy of the frame's head, because the parser takes VLAN tags off.
pub struct HeaderReader(Box<Batch>);

impl core::fmt::Debug for HeaderReader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HeaderReader")
    }
}

impl Default for HeaderReader {
    fn default() -> Self {
        Self(Batch::new())
    }
}

impl HeaderReader {
    /// Returns the flow key of a frame of `len` bytes that came from `source`. `head` has the
    /// frame's first bytes. Returns `None` if the switch cannot parse the headers.
    pub fn key(
        &mut self,
        head: &[u8],
        len: u32,
        offload: Offload,
        source: PortId,
    ) -> Option<FlowKey> {
        let Self(copy) = self;
        copy.clear();
        copy.push_head(&head[..head.len().min(HEAD)], len as usize).ok()?;
        copy.frame_mut(0).offload = offload;
        key_of(copy, 0, source)
    }
}
