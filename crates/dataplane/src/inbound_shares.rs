//! Admits frames from an uplink by the shares of the VMs that receive them, before the frames are
//! copied.
//!
//! # Approach
//!
//! After the classification of a batch, each frame to a single port takes tokens of the port's
//! share ([`penstock_qos::inbound_shares`]). A frame above the share gets the verdict to be
//! dropped, so egress copies nothing and hands nothing over to other workers. Before a share is
//! used up, frames signal congestion to their senders ([`crate::congestion`]): each frame of a
//! sender that supports ECN by a mark, and few others by a loss.
//!
//! Floods and frames to sets of ports pass: the uplink's limit on its slow path bounds floods, and
//! an operator writes the rules for sets.
//!
//! # Cost
//!
//! A worker calls [`admit`] only for ports with shares, so other ports pay for one comparison per
//! batch.

use std::sync::Arc;

use penstock_qos::inbound_shares::{Admission, BatchLoad, InboundShares};
use penstock_qos::policer::Size;
use penstock_units::Nanos;

use crate::batch::{Batch, Verdict};
use crate::congestion::{Signal, signal};
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::headers::is_ect;
use crate::ingress_policer::{link_bytes, on_wire};
use crate::unit::Unit;

/// Decides which frames of a classified batch pass, and counts the others at their receivers. The
/// batch came from the queue pair `unit`, behind which about `backlog` frames wait. `counters` has
/// the counters of all ports, indexed by port number. Returns the numbers of frames and bytes that
/// pass.
#[inline(never)]
pub(crate) fn admit(
    shares: &InboundShares,
    batch: &mut Batch,
    (unit, backlog): (Unit, usize),
    now: Nanos,
    counters: &[Option<Arc<PortCounters>>],
) -> (usize, usize) {
    shares.refill(now);
    let own = counters.get(unit.port.index()).and_then(Option::as_deref);
    let mut load = BatchLoad::default();
    let (mut frames, mut bytes) = (0, 0);
    for i in 0..batch.len() {
        let mut wire = link_bytes(on_wire(batch, i));
        if let Verdict::Output(port) = batch.at(i).verdict {
            let target = counters.get(usize::from(port)).and_then(Option::as_deref);
            let passes = match shares.arrive(port, wire) {
                Admission::Pass => true,
                Admission::Signal => {
                    let passes = passes_with_signal(shares, batch, i, (port, now), target);
                    let left = if passes { link_bytes(on_wire(batch, i)) } else { 0 };
                    shares.give_back(port, wire.saturating_sub(left));
                    wire = left;
                    passes
                }
                Admission::Refuse => false,
            };
            if !passes {
                load.refused += 1;
                batch.at_mut(i).verdict = Verdict::Drop(DropReason::InboundShare);
                if let (Some(own), Some(target)) = (own, target) {
                    own.count_refused_by(target, DropReason::InboundShare, 1);
                }
                continue;
            }
        }
        load.passed += Size { bytes: wire, frames: 1 };
        frames += 1;
        bytes += batch.at(i).len as usize;
    }
    shares.note(unit.queue.index(), backlog, load);
    (frames, bytes)
}

/// Makes frame `i` signal congestion, if its sender supports ECN or a loss is due. Returns false if
/// the frame must be dropped as a signal.
fn passes_with_signal(
    shares: &InboundShares,
    batch: &mut Batch,
    i: usize,
    (port, now): (u16, Nanos),
    target: Option<&PortCounters>,
) -> bool {
    if !is_ect(batch.head(i)) && !shares.may_drop_early(port, now) {
        return true;
    }
    let signalled = signal(batch, i);
    if let Some(target) = target {
        match signalled {
            Signal::Marked => target.tx_marked.add(1),
            Signal::Trimmed => target.tx_trimmed.add(1),
            Signal::Drop => {}
        }
    }
    signalled != Signal::Drop
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Offload;
    use penstock_qos::inbound_shares::Member;
    use penstock_units::{BitsPerSecond, PortId, QueueId, Weight};

    const UNIT: Unit = Unit { port: PortId(0), queue: QueueId(0) };

    /// Returns the shares of a slow uplink, port 0, with the VM of port 1.
    fn shares() -> InboundShares {
        let (tenant_weight, vm_weight) = (Weight::ONE, Weight::ONE);
        let member = Member { port: 1, tenant: 0, tenant_weight, vm_weight };
        InboundShares::new(BitsPerSecond(1_000_000), &[member])
    }

    fn counters() -> Vec<Option<Arc<PortCounters>>> {
        (0..2).map(|_| Some(Arc::default())).collect()
    }

    /// Returns a batch of 32 frames of 1,514 bytes that are not IP.
    fn batch(verdict: Verdict) -> Box<Batch> {
        let mut batch = Batch::new();
        for i in 0..32 {
            batch.push(&[2; 1_514], Offload::NONE).unwrap();
            batch.frame_mut(i).verdict = verdict;
        }
        batch
    }

    #[test]
    fn excess_to_a_vm_is_refused_and_counted_at_the_vm() {
        let (shares, counters) = (shares(), counters());
        let mut passed = 0;
        for _ in 0..8 {
            let mut batch = batch(Verdict::Output(1));
            let (frames, bytes) = admit(&shares, &mut batch, (UNIT, 0), Nanos(1), &counters);
            let kept = batch.frames().iter().filter(|f| f.verdict == Verdict::Output(1)).count();
            assert_eq!((frames, bytes), (kept, kept * 1_514));
            passed += frames;
        }
        // The buckets of the VM and of the uplink hold two large segments each. One frame was lost
        // as a signal, and took no tokens.
        assert_eq!(passed, 183);
        let lost = DropReason::InboundShare as usize;
        assert_eq!(counters[1].as_ref().unwrap().tx_drops[lost].get(), 8 * 32 - 183);
        assert_eq!(counters[0].as_ref().unwrap().drops[lost].get(), 0, "egress counts these");
    }

    #[test]
    fn floods_and_frames_to_other_ports_pass() {
        let (shares, counters) = (shares(), counters());
        for verdict in [Verdict::Flood(0), Verdict::OutputSet(0), Verdict::Output(0)] {
            for _ in 0..20 {
                let mut batch = batch(verdict);
                let passed = admit(&shares, &mut batch, (UNIT, 0), Nanos(1), &counters);
                assert_eq!(passed, (32, 32 * 1_514), "{verdict:?}");
            }
        }
    }
}
