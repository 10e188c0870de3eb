//! Egress counts delivered and dropped frames at their source port and at their destination port.
//!
//! # Approach
//!
//! A delivery is a list of frames from one port to another. The worker that makes a delivery counts
//! the delivery once at each of the two ports. Traffic between a tenant's port and a shared port is
//! also counted separately, as the tenant's use of the network. The fabric's controller divides the
//! network by the tenants' use (QShare §V-C).
//!
//! # Cost
//!
//! Accounting costs two more additions for a delivery to or from a shared port, and one comparison
//! for other deliveries.

use std::sync::Arc;

use penstock_units::PortId;

use super::Delivery;
use crate::capture::Captures;
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::snapshot::PortPolicy;

/// Direction of a delivery, by its source and destination port. Shared ports lead out of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// The frames go between two ports of tenants, or between two shared ports.
    #[default]
    Within,
    /// The frames go from a tenant's port to a shared port.
    Out,
    /// The frames go from a shared port to a tenant's port.
    In,
}

impl Way {
    #[inline(always)]
    pub(super) fn of(source: Option<&PortPolicy>, target: Option<&PortPolicy>) -> Self {
        let (Some(source), Some(target)) = (source, target) else { return Self::Within };
        match (source.tenant, target.tenant) {
            (Some(_), None) => Self::Out,
            (None, Some(_)) => Self::In,
            _ => Self::Within,
        }
    }
}

/// Counts a delivery at its source port and at its destination port. Returns true if frames were
/// dropped.
pub(super) fn account(d: &Delivery, source: &PortCounters, target: Option<&PortCounters>) -> bool {
    let o = &d.outcome;
    source.forwarded.add(u64::from(o.frames));
    if d.replicated > 0 {
        source.replicated.add(d.replicated);
    }
    if d.handed + d.waiting > 0 {
        source.queued.add(d.handed + d.waiting);
    }
    if let Some(target) = target {
        target.tx_queued.add(d.waiting);
        target.tx_frames.add(u64::from(o.frames));
        target.tx_bytes.add(o.bytes);
        target.tx_batches.add(1);
        target.tx_tso.add(u64::from(o.tso));
        if d.link > 0 {
            target.tx_link.add(d.link);
        }
        match d.way {
            Way::Within => {}
            Way::Out => {
                source.net_sent_frames.add(o.frames.into());
                source.net_sent_bytes.add(o.bytes);
            }
            Way::In => {
                target.net_received_frames.add(o.frames.into());
                target.net_received_bytes.add(o.bytes);
            }
        }
        if d.sw_csum + d.sw_tso > 0 {
            target.sw_csum.add(d.sw_csum);
            target.sw_tso.add(d.sw_tso);
        }
    }
    let lost = o.ring_full | o.too_big | o.down | o.error;
    let refused = d.vlan | d.no_port | d.handover_full | d.queue_full | d.pair_limit | d.forged;
    let drops = u64::from(lost) | refused | d.receive_limit | d.tenant_limit | d.send_limit > 0;
    if drops {
        account_drops(d, source, target);
    }
    drops
}

#[cold]
fn account_drops(d: &Delivery, source: &PortCounters, target: Option<&PortCounters>) {
    for (reason, n) in drops(d) {
        source.count_refused(target, reason, n);
    }
}

/// Returns the numbers of frames of a delivery that the switch dropped, by reason.
pub(super) fn drops(d: &Delivery) -> impl Iterator<Item = (DropReason, u64)> {
    let o = &d.outcome;
    let drops = [
        (DropReason::RingFull, u64::from(o.ring_full)),
        (DropReason::TooBig, u64::from(o.too_big)),
        (DropReason::PortDown, u64::from(o.down)),
        (DropReason::TxError, u64::from(o.error)),
        (DropReason::VlanEgress, d.vlan),
        (DropReason::NoPort, d.no_port),
        (DropReason::HandoverFull, d.handover_full),
        (DropReason::QueueFull, d.queue_full),
        (DropReason::ReceiveLimit, d.receive_limit),
        (DropReason::TenantLimit, d.tenant_limit),
        (DropReason::SendLimit, d.send_limit),
        (DropReason::PairLimit, d.pair_limit),
        (DropReason::ForgedMarker, d.forged),
    ];
    drops.into_iter().filter(|&(_, n)| n > 0)
}

/// Counts a frame that was dropped while it waited at the output of port `target`. The frame came
/// from port `source`.
pub(crate) fn count_loss(
    counters: &[Option<Arc<PortCounters>>],
    captures: &mut Captures,
    (source, target): (u16, PortId),
    reason: DropReason,
) {
    captures.dropped_unseen(source, target, reason);
    let target = counters[target.index()].as_deref();
    if let Some(target) = target {
        target.tx_queued.sub(1);
    }
    match counters.get(usize::from(source)).and_then(Option::as_deref) {
        Some(source) => {
            source.queued.sub(1);
            source.count_refused(target, reason, 1);
        }
        // The source has left meanwhile.
        None => {
            if let Some(target) = target {
                target.tx_drops[reason as usize].add(1);
            }
        }
    }
}
