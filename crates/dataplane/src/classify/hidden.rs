//! Refuses frames with headers that the port's policy cannot examine.

use crate::batch::Batch;
use crate::drop::DropReason;
use crate::headers::parse::{HeaderFlags, Headers, hides_behind_one_tag, parse_any};
use crate::snapshot::PortPolicy;

/// Parses a frame's headers with [`parse_any`]. Refuses a frame with a hidden header if the port's
/// policy forbids such frames.
///
/// # Errors
/// Returns the errors of [`parse`](crate::headers::parse), and [`DropReason::HiddenHeader`] for a
/// refused frame.
#[inline(never)]
pub(crate) fn parse_for(
    batch: &mut Batch,
    i: usize,
    policy: &PortPolicy,
    h: &mut Headers,
) -> Result<(), DropReason> {
    parse_any(batch, i, policy.id, h)?;
    if h.flags.has(HeaderFlags::HIDDEN) {
        let len = batch.at(i).len as usize;
        let one = || policy.qinq && hides_behind_one_tag(batch.head_window(i), len);
        if policy.reads_headers() && !one() {
            return Err(DropReason::HiddenHeader);
        }
    }
    Ok(())
}
