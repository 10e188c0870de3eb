//! Restores the code points that VMs of other hosts wrote into their frames.
//!
//! # Approach
//!
//! The sending host writes the code point of the VM's tenant into each frame, and announces the
//! VM's own code point of the flow if that is not 0 ([`penstock_qos::pair_table::CodePoints`]). A
//! frame that arrives for VMs of a tenant with the tenant's code point gets back its own one, or 0
//! if the host knows none. So VMs do not see the code points of the fabric, which change without
//! notice. Frames with other code points come from outside the fabric, or a rule wrote the code
//! point. They stay unchanged.
//!
//! Frames of groups have no announcements, because the receiving hosts intercept only markers to
//! one VM. A frame that also goes to a shared port stays unchanged, because the code point still
//! selects queues there.
//!
//! # Cost
//!
//! A frame with the tenant's code point costs a hash and a search in one cache line if a sender
//! announced a code point to the VM in the last 8 s. Otherwise it costs two comparisons.

use penstock_qos::pair_table::{PairKey, PairTable};
use penstock_units::Nanos;

use super::{flow, mac_at};
use crate::batch::{Batch, Verdict};
use crate::headers::{dscp_of, mark};

/// Restores the code point of frame `i` of a classified batch that arrived through an uplink. VMs
/// of the tenant with the code point `fabric` get the frame.
#[inline]
pub(super) fn restore(
    table: &PairTable,
    batch: &mut Batch,
    i: usize,
    fabric: Option<u8>,
    now: Nanos,
) {
    let (verdict, head) = (batch.at(i).verdict, batch.head(i));
    let Some(fabric) = fabric else { return };
    if dscp_of(head) != fabric {
        return;
    }
    let own = match verdict {
        Verdict::Output(port) => announced(table, port, head, now),
        _ => 0,
    };
    if own != fabric {
        let _ = mark(batch.head_mut(i), own);
    }
}

/// Returns the code point that the frame's sender announced for the frame's flow to the VM at
/// `port`; 0 if there is none.
#[inline]
fn announced(table: &PairTable, port: u16, head: &[u8], now: Nanos) -> u8 {
    let code_points = table.code_points();
    if !code_points.knows_any(port, now) {
        return 0;
    }
    let pair = PairKey::new(port, mac_at(head, 6));
    let of = pair.zip(flow::number(head));
    of.map_or(0, |(pair, flow)| code_points.code_point(pair, flow, now))
}
