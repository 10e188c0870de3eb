//! A capture's filter compares a frame's headers with matches of rules.

use penstock_units::PortId;

use super::HeaderReader;
use crate::batch::Batch;
use crate::headers::key::{FlowKey, FlowMask};

/// Headers that a frame must have: those of at least one match.
#[derive(Debug)]
pub struct Filter {
    matches: Vec<(FlowKey, FlowMask)>,
    /// VLAN of untagged frames that the switch receives from the port.
    untagged: u16,
    reader: HeaderReader,
}

impl Filter {
    /// Creates a filter from compiled matches. Without matches, no frame passes. `untagged` is the
    /// VLAN of untagged frames from the port; 0 for the untagged network.
    #[must_use]
    pub fn new(matches: Vec<(FlowKey, FlowMask)>, untagged: u16) -> Self {
        Self { matches, untagged, reader: HeaderReader::default() }
    }

    /// Whether frame `i` of `batch`, which came from `source`, passes. A frame with headers that
    /// the switch cannot parse does not pass.
    pub(super) fn matches(&mut self, batch: &Batch, i: usize, source: PortId) -> bool {
        let frame = batch.frame(i);
        let key = self.reader.key(batch.head(i), frame.len, frame.offload, source);
        // A rule is given the VLAN of the frame's network, even if the frame has no tag.
        let vid = match frame.tci & 0xfff {
            0 => self.untagged,
            vid => vid,
        };
        let key = key.map(|key| if key.vid() == 0 { key.with_vid(vid) } else { key });
        let fits = |key: FlowKey| self.matches.iter().any(|(want, mask)| key.masked(mask) == *want);
        key.is_some_and(fits)
    }
}
