//! Frames that pass an output's queue without waiting, because the output chose their batch.
//!
//! # Approach
//!
//! An output with fair shares chooses whose batch the worker takes next
//! ([`crate::queue::OutputQueue`]). The frames of this batch go to the port at once, without a copy
//! into the queue. If a frame of the batch must wait nevertheless, all later frames of the batch
//! wait behind it. A frame waits if the port has no room for it, or if it is a large segment that
//! must be cut for the port.

use penstock_qos::policer::Size;
use penstock_units::PortId;

use super::waiting::source_of;
use super::{Around, Delivery, Egress, PortSlot};
use crate::batch::{Batch, Verdict};
use crate::ingress_policer::{link_bytes, on_wire};
use crate::offload::OffloadCaps;
use crate::port::PortQueue;
use crate::snapshot::PortPolicy;

/// A batch whose frames all went to one output, which may let the source's next batch pass without
/// waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub source: PortId,
    pub output: PortId,
    /// Bytes of the frames on the output's link.
    pub bytes: u32,
}

impl Egress {
    /// Sends the listed frames of a batch that the output chose to the port. If they must wait,
    /// puts them into the output's queue.
    #[inline(never)]
    pub(super) fn pass_directly<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        way: (PortId, u16, &PortPolicy),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let (source, output, _) = way;
        let PortSlot { queues, output: Some(queue), .. } = &mut around.ports[usize::from(output)]
        else {
            return;
        };
        let passes = queue.lets_direct(frames.len())
            && are_taken(batch, frames, queues)
            && !around.snapshot.is_mirror(output);
        if !passes {
            queue.stop_direct(&source_of(source, around.snapshot), self.waiting.now());
            self.enqueue(batch, (source, output), frames, around, delivery);
            return;
        }
        let (bytes, count) = (bytes_of(batch, frames), u32::try_from(frames.len()).unwrap_or(0));
        queue.note_passed(Size { bytes, frames: count });
        if is_whole(batch, frames, output) {
            self.waiting.whole = Some(Whole { source, output: PortId(output), bytes });
        }
        self.send_now::<SEEN>(batch, way, frames, around, delivery);
    }

    /// Notes that the listed frames wait at an output that may let the source's next batch pass.
    /// `queues` are the queue pairs of the output.
    #[inline(never)]
    pub(super) fn note_whole(
        &mut self,
        batch: &Batch,
        way: (PortId, u16),
        frames: &[u8],
        queues: &[Box<dyn PortQueue>],
    ) {
        if is_whole(batch, frames, way.1) && are_taken(batch, frames, queues) {
            let (source, output) = (way.0, PortId(way.1));
            self.waiting.whole = Some(Whole { source, output, bytes: bytes_of(batch, frames) });
        }
    }

    /// Returns the output of all frames of the last batch, if the batch came from `source` and the
    /// output may let the source's next batch pass. Forgets the output.
    pub(crate) fn take_whole(&mut self, source: PortId) -> Option<Whole> {
        self.waiting.whole.take().filter(|whole| whole.source == source)
    }
}

/// Whether the listed frames are all frames of the batch, and go to no other output.
fn is_whole(batch: &Batch, frames: &[u8], output: u16) -> bool {
    frames.len() == batch.len()
        && batch.frames().iter().all(|frame| frame.verdict == Verdict::Output(output))
}

/// Returns the bytes of the listed frames on a link.
fn bytes_of(batch: &Batch, frames: &[u8]) -> u32 {
    if frames.len() == batch.len()
        && let Some(whole) = batch.on_wire()
    {
        return link_bytes(whole);
    }
    let bytes = frames.iter().map(|i| link_bytes(on_wire(batch, usize::from(*i))));
    bytes.fold(0, u32::saturating_add)
}

/// Whether the port takes the listed frames as they are, so that one frame takes one place of the
/// port's ring.
fn are_taken(batch: &Batch, frames: &[u8], queues: &[Box<dyn PortQueue>]) -> bool {
    let all_taken = |caps: OffloadCaps| {
        let mut offloads = frames.iter().map(|i| batch.at(usize::from(*i)).offload);
        offloads.all(|offload| !offload.is_gso() || caps.takes(offload))
    };
    queues.iter().filter(|queue| queue.tx_ready()).all(|queue| all_taken(queue.caps()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::PortCounters;
    use crate::egress::ALL;
    use crate::ingress_policer::count_segments;
    use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload};

    /// Returns a batch with two large segments of TCP and a short frame.
    fn batch() -> Box<Batch> {
        let mut batch = Batch::new();
        for len in [10_066, 3_000] {
            let mut bytes = vec![0; len];
            bytes[34 + 12] = 8 << 4;
            let (flags, gso_type, hdr_len) = (F_NEEDS_CSUM, GSO_TCPV4, 66);
            let (gso_size, csum_start, csum_offset) = (1_448, 34, 16);
            let offload = Offload { flags, gso_type, gso_size, csum_start, csum_offset, hdr_len };
            batch.push(&bytes, offload).unwrap();
        }
        batch.push(&[0; 60], Offload::NONE).unwrap();
        batch
    }

    fn bytes(batch: &Batch) -> u32 {
        bytes_of(batch, &ALL[..batch.len()])
    }

    #[test]
    fn the_bytes_of_a_counted_batch_are_those_of_its_frames_also_after_a_change() {
        let changes: [fn(&mut Batch); 4] = [
            |_| {},
            |batch| batch.retain(0b110),
            |batch| batch.set_tagged(0, true),
            |batch| batch.push(&[0; 60], Offload::NONE).unwrap(),
        ];
        for (case, change) in changes.into_iter().enumerate() {
            let (mut counted, mut plain) = (batch(), batch());
            count_segments(&mut counted, &PortCounters::default());
            [&mut counted, &mut plain].into_iter().for_each(|batch| change(batch));
            assert_eq!(bytes(&counted), bytes(&plain), "case {case}");
            assert_eq!((counted.on_wire().is_some(), plain.on_wire()), (case == 0, None));
        }
        let mut counted = batch();
        count_segments(&mut counted, &PortCounters::default());
        counted.clear();
        assert_eq!((counted.on_wire(), bytes(&counted)), (None, 0));
    }
}
