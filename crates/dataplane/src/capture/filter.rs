//! A capture's filter compares a frame's headers with matches of rules.

use penstock_units::PortId;

use super::HeaderReader;
use crate::batch::Batch;
use crate::headers::key::{FlowKey, FlowMask};

/// Headers that a frame must have: those of at least one match.
#[derive(Debug)]
pub struct Filter {
    matches: Vec<(FlowKey, FlowMask)>,
    reader: HeaderReader,
}

impl Filter {
    /// Creates a filter from compiled matches. Without matches, no frame passes.
    #[must_use]
    pub fn new(matches: Vec<(FlowKey, FlowMask)>) -> Self {
        Self { matches, reader: HeaderReader::default() }
    }

    /// Whether frame `i` of `batch`, which came from `source`, passes. A frame with headers that
    /// the switch cannot parse does not pass.
    pub(super) fn matches(&mut self, batch: &Batch, i: usize, source: PortId) -> bool {
        let frame = batch.frame(i);
        let key = self.reader.key(batch.head(i), frame.len, frame.offload, source);
        let fits = |key: FlowKey| self.matches.iter().any(|(want, mask)| key.masked(mask) == *want);
        key.is_some_and(fits)
    }
}
