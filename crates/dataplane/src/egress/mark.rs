//! Code points of tenants: what leaves the host carries its tenant's.
//!
//! **Problem.** Switches of the fabric tell tenants apart by DSCP (QShare §V-D), which a VM could
//! set itself. **Rule.** At an output that leaves the host every IP frame of a tenant with a code
//! point gets it, whatever its VM or a rule wrote; ECN stays, and so does what is not IP. A frame
//! that goes to several outputs has its own again for the others. **Cost.** A flag of the output
//! where no tenant has one.

use crate::batch::{BATCH_FRAMES, Batch, Verdict};
use crate::classify::mark;

/// Code points that frames had before; by place in the list.
pub(super) type Former = [u8; BATCH_FRAMES];

/// No code point.
const NONE: u8 = u8::MAX;

/// Marks the listed frames.
#[inline(never)]
pub(super) fn mark_all(batch: &mut Batch, frames: &[u8], dscp: u8) -> Former {
    let mut former = [NONE; BATCH_FRAMES];
    for (&i, former) in frames.iter().zip(&mut former) {
        *former = mark(batch.head_mut(usize::from(i)), dscp).unwrap_or(NONE);
    }
    former
}

/// Those that may have other outputs get back what they had.
#[inline(never)]
pub(super) fn restore(batch: &mut Batch, frames: &[u8], former: &Former) {
    for (&i, former) in frames.iter().zip(former) {
        let i = usize::from(i);
        if *former != NONE && !matches!(batch.frame(i).verdict, Verdict::Output(_)) {
            let _ = mark(batch.head_mut(i), *former);
        }
    }
}
