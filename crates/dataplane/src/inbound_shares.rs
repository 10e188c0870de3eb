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
//! an operator writes the rules for sets. Frames from one uplink to another pass, too, because
//! their port has no tenant.
//!
//! If egress drops a frame that has taken tokens, for example because the VM's ring is full, the VM
//! gets its tokens back ([`give_back`]). Frames that wait in an output's queue, or that another
//! worker delivers, count as delivered until then.
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
        if let Verdict::Output(port) = batch.at(i).verdict {
            let wire = link_bytes(on_wire(batch, i));
            let target = counters.get(usize::from(port)).and_then(Option::as_deref);
            let (passes, taken) = match shares.arrive(port, wire) {
                Admission::Pass => (true, wire),
                Admission::Unshared => (true, 0),
                Admission::Signal => {
                    let passes = passes_with_signal(shares, batch, i, (port, now), target);
                    let left = if passes { link_bytes(on_wire(batch, i)) } else { 0 };
                    shares.give_back(port, wire.saturating_sub(left));
                    (passes, left)
                }
                Admission::Refuse => (false, 0),
            };
            if !passes {
                load.refused += 1;
                batch.at_mut(i).verdict = Verdict::Drop(DropReason::InboundShare);
                if let (Some(own), Some(target)) = (own, target) {
                    own.count_refused_by(target, DropReason::InboundShare, 1);
                }
                continue;
            }
            // Frames without a share say nothing about the rate that can be shared.
            if taken > 0 {
                load.passed += Size { bytes: taken, frames: 1 };
            }
        }
        frames += 1;
        bytes += batch.at(i).len as usize;
    }
    shares.note(unit.queue.index(), backlog, load);
    (frames, bytes)
}

/// Gives back the tokens of frames that egress dropped: the part `lost.0` of `lost.1` of the listed
/// frames, which were to go to `output`.
#[cold]
pub(crate) fn give_back(
    shares: &InboundShares,
    (batch, frames): (&Batch, &[u8]),
    output: u16,
    lost: (u64, u64),
) {
    let mut sent = Size::default();
    for i in frames.iter().map(|i| usize::from(*i)) {
        // Copies of floods took no tokens.
        if batch.at(i).verdict == Verdict::Output(output) {
            sent += Size { bytes: link_bytes(on_wire(batch, i)), frames: 1 };
        }
    }
    let part = |all: u32| {
        let part = u64::from(all) * lost.0 / lost.1.max(1);
        u32::try_from(part).unwrap_or(u32::MAX)
    };
    shares.not_delivered(output, Size { bytes: part(sent.bytes), frames: part(sent.frames) });
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
    fn frames_without_a_share_do_not_count_as_delivered() {
        let lost = Verdict::Drop(DropReason::NoDestination);
        for other in [Verdict::Flood(0), Verdict::Output(0), lost] {
            let counters = counters();
            let (tenant_weight, vm_weight) = (Weight::ONE, Weight::ONE);
            let member = Member { port: 1, tenant: 0, tenant_weight, vm_weight };
            let shares = InboundShares::new(BitsPerSecond(1_000_000_000), &[member]);
            // One frame of 32 is for the VM: 123 Mbit/s. Frames wait in the ring all the time.
            for at in 1..500_u64 {
                let mut batch = batch(other);
                batch.frame_mut(0).verdict = Verdict::Output(1);
                let now = Nanos(1_000_000_000 + at * 100_000);
                admit(&shares, &mut batch, (UNIT, 500), now, &counters);
            }
            assert!(shares.rate().0 < 200_000_000, "{other:?}: {}", shares.rate().0);
        }
    }

    #[test]
    fn a_frame_that_egress_drops_costs_no_share() {
        let (shares, counters) = (shares(), counters());
        let mut passed = 0;
        for _ in 0..20 {
            let mut batch = batch(Verdict::Output(1));
            admit(&shares, &mut batch, (UNIT, 0), Nanos(1), &counters);
            let all: Vec<u8> = (0..32).collect();
            let kept = batch.frames().iter().filter(|f| f.verdict == Verdict::Output(1)).count();
            give_back(&shares, (&batch, &all), 1, (32, 32));
            passed += kept;
        }
        assert_eq!(passed, 20 * 32);
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
