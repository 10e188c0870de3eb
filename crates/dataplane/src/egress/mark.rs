//! Egress marks frames that leave the host with the DSCP code point of their tenant.
//!
//! # Problem
//!
//! Switches of the fabric distinguish tenants by DSCP (QShare §V-D). A VM could set another
//! tenant's DSCP in its frames.
//!
//! # Approach
//!
//! At an output that leads out of the host, each IP frame of a tenant with a code point gets the
//! tenant's code point. The tenant's code point replaces the DSCP that the VM or a rule wrote.
//! Egress marking leaves the ECN bits, and frames that are not IP, unchanged. If a frame also goes
//! to other outputs, the frame's former code point is restored for these outputs.
//!
//! # Cost
//!
//! If no tenant has a code point, marking costs the check of one flag of the output.

use crate::batch::{BATCH_FRAMES, Batch, Verdict};
use crate::headers::mark;

/// DSCP values that the frames of a list had before egress marked the frames, in the order of the
/// list.
pub(super) type Former = [u8; BATCH_FRAMES];

/// Marker for a frame without a DSCP.
const NONE: u8 = u8::MAX;

/// Writes the code point `dscp` into the listed frames. Returns the DSCP values that the listed
/// frames had before the marking.
#[inline(never)]
pub(super) fn mark_all(batch: &mut Batch, frames: &[u8], dscp: u8) -> Former {
    let mut former = [NONE; BATCH_FRAMES];
    for (&i, former) in frames.iter().zip(&mut former) {
        *former = mark(batch.head_mut(usize::from(i)), dscp).unwrap_or(NONE);
    }
    former
}

/// Restores the former code points of the listed frames that may have other outputs.
#[inline(never)]
pub(super) fn restore(batch: &mut Batch, frames: &[u8], former: &Former) {
    for (&i, former) in frames.iter().zip(former) {
        let i = usize::from(i);
        if *former != NONE && !matches!(batch.frame(i).verdict, Verdict::Output(_)) {
            let _ = mark(batch.head_mut(i), *former);
        }
    }
}
