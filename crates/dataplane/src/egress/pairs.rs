//! Frames that leave a host of a fabric: rates of pairs of VMs, questions about pairs, and code
//! points.
//!
//! # Approach
//!
//! At an uplink with pairs ([`penstock_qos::pair_table`]), each frame takes tokens of its pair
//! before the frame is copied. A frame above the pair's rate is dropped. A frame above the limit
//! that the receiver's guarantee sets waits at the output ([`crate::queue`]), except TCP's pure
//! acknowledgements. Single packets are dropped as a signal to TCP ([`crate::congestion`]). If a
//! question about the pair is due, it follows the pair's frames ([`crate::pairs`]). Before the host
//! overwrites code points with that of the tenant, it announces those of the VM to the receiving
//! host, ahead of the frames ([`penstock_qos::pair_table::CodePoints`]). A table for guarantees
//! also notes the flow of each frame, because pairs share guarantees by flow. A VM cannot send
//! markers itself, not even from a host without pairs: otherwise, a VM there could tell the hosts
//! of other VMs of its tenant that all frames arrive.
//!
//! # Cost
//!
//! Only deliveries to an output that marks frames ([`crate::snapshot::PortPolicy::marks`]) call
//! this module.

use std::sync::Arc;

use penstock_qos::pair_table::{Delayed, PairKey, PairLimits, PairTable, Sending};
use penstock_qos::policer::Size;
use penstock_units::{Nanos, PortId};

use super::{ALL, Around, Delivery, Egress, List, Way, account, mark};
use crate::batch::{BATCH_FRAMES, Batch, Verdict};
use crate::congestion::{Signal, signal};
use crate::headers::{dscp_of, is_ect, is_pure_ack};
use crate::ingress_policer::{link_bytes, on_wire};
use crate::offload::Offload;
use crate::pairs::{destination, flow, marker};
use crate::snapshot::PortPolicy;

/// Length of the longest pure acknowledgement, with three VLAN tags and all options of IP and TCP.
const ACK_MAX: u32 = 146;

/// Frames of a batch with their pairs.
#[derive(Clone, Copy, Debug)]
struct OfPairs {
    len: usize,
    /// Number of a frame of the pair, and the pair's slot in the table.
    pairs: [(u8, usize); BATCH_FRAMES],
}

impl OfPairs {
    const NONE: Self = Self { len: 0, pairs: [(0, 0); BATCH_FRAMES] };

    fn push(&mut self, frame: u8, slot: usize) {
        if let Some(place) = self.pairs.get_mut(self.len) {
            *place = (frame, slot);
            self.len += 1;
        }
    }

    fn as_slice(&self) -> &[(u8, usize)] {
        self.pairs.get(..self.len).unwrap_or_default()
    }
}

/// What becomes of the frames of a batch.
struct Metered {
    passed: List,
    /// Frames that wait for the limits of their pairs.
    late: OfPairs,
    /// Frames about whose pairs a question is due.
    due: OfPairs,
}

impl Egress {
    /// Sends the listed frames to an output that leads out of the host.
    #[inline(never)]
    pub(super) fn leave<const SEEN: bool>(
        &mut self,
        batch: &mut Batch,
        way: (PortId, u16, &PortPolicy),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        match way.2.pairs.as_ref().filter(|_| delivery.way == Way::Out) {
            None => {
                let honest = honest(batch, frames, delivery);
                let frames = honest.as_ref().map_or(frames, List::as_slice);
                if !frames.is_empty() {
                    self.send_marked::<SEEN>(batch, way, frames, around, delivery);
                }
            }
            Some(table) => {
                let now = self.waiting.now();
                self.announce::<SEEN>(table, batch, way, frames, around);
                let metered = meter(table, way.0, (&mut *batch, frames), now, delivery);
                let (frames, due) = (metered.passed.as_slice(), metered.due.as_slice());
                if !frames.is_empty() {
                    self.send_marked::<SEEN>(batch, way, frames, around, delivery);
                }
                if !due.is_empty() {
                    self.ask::<SEEN>(table, batch, way, due, around);
                }
                if metered.late.len > 0 {
                    self.delay_marked(table, batch, way, &metered.late, around, delivery);
                }
            }
        }
    }

    /// Sends the listed frames with the code point of their tenant.
    #[inline(always)]
    fn send_marked<const SEEN: bool>(
        &mut self,
        batch: &mut Batch,
        way: (PortId, u16, &PortPolicy),
        frames: &[u8],
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let dscp = around.snapshot.port(way.0.0).and_then(|policy| policy.dscp);
        let former = dscp.map(|dscp| mark::mark_all(batch, frames, dscp));
        self.pass_on::<SEEN>(batch, way, frames, around, delivery);
        if let Some(former) = former {
            mark::restore(batch, frames, &former);
        }
    }

    /// Makes the listed frames wait for the limits of their pairs, with the code point of their
    /// tenant. They get another one if it changes while they wait
    /// ([`crate::queue::OutputQueue::release_delayed`]). Frames of a port that leaves meanwhile
    /// keep the code point, and no frame leaves with that of its VM.
    #[inline(never)]
    fn delay_marked(
        &mut self,
        table: &Arc<PairTable>,
        batch: &mut Batch,
        way: (PortId, u16, &PortPolicy),
        late: &OfPairs,
        around: &mut Around<'_>,
        delivery: &mut Delivery,
    ) {
        let mut frames = List::EMPTY;
        late.as_slice().iter().for_each(|(frame, _)| frames.push(*frame));
        let dscp = around.snapshot.port(way.0.0).and_then(|policy| policy.dscp);
        let former = dscp.map(|dscp| mark::mark_all(batch, frames.as_slice(), dscp));
        self.delay(batch, (way.0, way.1), (table, late.as_slice()), around, delivery);
        if let Some(former) = former {
            mark::restore(batch, frames.as_slice(), &former);
        }
    }

    /// Sends questions about pairs behind the pairs' frames.
    #[inline(never)]
    fn ask<const SEEN: bool>(
        &mut self,
        table: &PairTable,
        batch: &Batch,
        way: (PortId, u16, &PortPolicy),
        due: &[(u8, usize)],
        around: &mut Around<'_>,
    ) {
        // Only a question that counts frames for rates must stay behind them.
        let ahead = table.limits() == PairLimits::Guarantees;
        let mut asked = due.iter().filter_map(|&(frame, slot)| {
            let question = table.question(slot)?;
            Some((frame, marker::question(batch.head(usize::from(frame)), &question, ahead)?))
        });
        self.send_markers::<SEEN>(batch, way, &mut asked, around);
    }

    /// Announces the code points of the listed frames, which the host will overwrite, if the far
    /// hosts do not know them yet.
    #[inline(never)]
    fn announce<const SEEN: bool>(
        &mut self,
        table: &PairTable,
        batch: &Batch,
        way: (PortId, u16, &PortPolicy),
        frames: &[u8],
        around: &mut Around<'_>,
    ) {
        let (source, now) = (way.0.0, self.waiting.now());
        if around.snapshot.port(source).is_none_or(|policy| policy.dscp.is_none()) {
            return;
        }
        let is_plain = table.code_points().is_plain(source, now);
        let head = |i: u8| batch.head(usize::from(i));
        if is_plain && frames.iter().all(|i| dscp_of(head(*i)) == 0) {
            return;
        }
        let mut announced = frames.iter().filter_map(|&i| {
            let dscp = dscp_of(head(i));
            if is_plain && dscp == 0 {
                return None;
            }
            let pair = PairKey::new(source, destination(head(i)))?;
            let flow = flow::number(head(i))?;
            let announces = table.announces(pair, flow, dscp, now);
            let marker = marker::announcement(head(i), flow, dscp)?;
            announces.then_some((i, marker))
        });
        self.send_markers::<SEEN>(batch, way, &mut announced, around);
    }

    /// Sends and counts markers, each with the number of the frame in `batch` to which it belongs.
    /// The delivery of the VM's own frames must not contain markers: a capture would show the loss
    /// of a marker as the loss of a frame.
    #[inline(never)]
    fn send_markers<const SEEN: bool>(
        &mut self,
        batch: &Batch,
        way: (PortId, u16, &PortPolicy),
        list: &mut dyn Iterator<Item = (u8, [u8; marker::LEN])>,
        around: &mut Around<'_>,
    ) {
        let Some(mut markers) = self.markers.take() else { return };
        markers.clear();
        for (frame, bytes) in list {
            if markers.push(&bytes, Offload::NONE).is_err() {
                break;
            }
            let (of, at) = (*batch.frame(usize::from(frame)), markers.len() - 1);
            let marker = markers.frame_mut(at);
            // The same VLAN, and the same queue pair of the uplink.
            (marker.tci, marker.hash, marker.verdict) = (of.tci, of.hash, of.verdict);
            markers.set_tagged(at, of.tagged);
        }
        if !markers.is_empty() {
            let mut sent = Delivery { way: Way::Out, ..Delivery::default() };
            let whole = self.waiting.whole;
            self.pass_on::<SEEN>(&markers, way, &ALL[..markers.len()], around, &mut sent);
            self.waiting.whole = whole;
            // The sender's port did not send these frames, but its counters must add up.
            sent.replicated += markers.len() as u64;
            let all = around.counters;
            let counters = |port: usize| all.get(port).and_then(Option::as_deref);
            if let Some(source) = counters(way.0.index()) {
                account(&sent, source, counters(way.1.into()));
            }
        }
        self.markers = Some(markers);
    }
}

/// Returns the frames that are no forged markers, or `None` if no frame is forged. A host that does
/// not allocate rates drops forged markers, too, because the far host may believe them.
#[inline]
fn honest(batch: &Batch, frames: &[u8], delivery: &mut Delivery) -> Option<List> {
    let is_forged = |i: &u8| marker::is_forged(batch.head(usize::from(*i)));
    if delivery.way != Way::Out || !frames.iter().any(is_forged) {
        return None;
    }
    let mut honest = List::EMPTY;
    for i in frames {
        if is_forged(i) {
            delivery.forged += 1;
        } else {
            honest.push(*i);
        }
    }
    Some(honest)
}

/// Decides which frames of `source` pass, which wait, and about which pairs a question is due.
#[inline(never)]
fn meter(
    table: &PairTable,
    source: PortId,
    (batch, frames): (&mut Batch, &[u8]),
    now: Nanos,
    delivery: &mut Delivery,
) -> Metered {
    let none = OfPairs::NONE;
    let mut metered = Metered { passed: List::EMPTY, late: none, due: none };
    let measured = table.is_measured(source.0);
    for &i in frames {
        let (head, at) = (batch.head(usize::from(i)), usize::from(i));
        if marker::is_forged(head) {
            delivery.forged += 1;
            continue;
        }
        if !measured {
            metered.passed.push(i);
            continue;
        }
        let size = pair_size(table, batch, at);
        let flow = data_flow(table, batch, at);
        let passes = match table.send_flow(source.0, destination(head), flow, size, now) {
            Sending::Free | Sending::Pass => true,
            Sending::Ask(slot) => {
                metered.due.push(i, slot);
                true
            }
            Sending::Signal(slot) => passes_with_signal(table, (source.0, slot), batch, at),
            Sending::Wait(Delayed { slot, signals, asks }) => {
                if asks {
                    metered.due.push(i, slot);
                }
                if is_ack(batch, at) && table.passes_line(source.0, slot, size, now) {
                    true
                } else if !signals || stays_with_signal(batch, at) {
                    metered.late.push(i, slot);
                    continue;
                } else {
                    table.refuse(slot, size);
                    false
                }
            }
            Sending::Refuse => false,
        };
        if passes {
            metered.passed.push(i);
        } else {
            delivery.pair_limit += 1;
        }
    }
    metered
}

/// Returns the size of frame `i` as a table of pairs counts it. Limits to guarantees count bytes on
/// a link, like the lane of the tenant and the link itself.
pub(super) fn pair_size(table: &PairTable, batch: &Batch, i: usize) -> Size {
    let size = on_wire(batch, i);
    match table.limits() {
        PairLimits::Guarantees => Size { bytes: link_bytes(size), ..size },
        PairLimits::Rates => size,
    }
}

/// Returns the hash of the flow of frame `i`, if a table for guarantees counts the flow. TCP's pure
/// acknowledgements do not count: their flow sends its data in the other direction.
fn data_flow(table: &PairTable, batch: &Batch, i: usize) -> Option<u32> {
    let counts = table.limits() == PairLimits::Guarantees && !is_ack(batch, i);
    counts.then_some(batch.at(i).hash)
}

/// Whether frame `i` is a pure acknowledgement of TCP. A longer frame that begins like one is none.
fn is_ack(batch: &Batch, i: usize) -> bool {
    batch.at(i).len <= ACK_MAX && is_pure_ack(batch.head(i)) == Some(true)
}

/// Makes frame `i` signal congestion to its sender. Returns false if the frame is lost as the
/// signal. A frame with other outputs stays unchanged.
fn stays_with_signal(batch: &mut Batch, i: usize) -> bool {
    let has_one_output = matches!(batch.at(i).verdict, Verdict::Output(_));
    !has_one_output || signal(batch, i) != Signal::Drop
}

/// Makes frame `i` of `source` signal to its sender that a bucket will soon be empty, by the loss
/// of one packet. Returns false if the frame is that packet. A frame whose sender supports ECN is
/// marked instead if the table limits pairs to guarantees. Otherwise the frame passes unchanged,
/// because the far host would take a mark for congestion of the network.
fn passes_with_signal(
    table: &PairTable,
    (source, slot): (u16, usize),
    batch: &mut Batch,
    i: usize,
) -> bool {
    if table.limits() == PairLimits::Rates && is_ect(batch.head(i)) {
        return true;
    }
    let before = pair_size(table, batch, i);
    let passes = stays_with_signal(batch, i);
    let left = if passes { pair_size(table, batch, i) } else { Size::default() };
    let lost = Size {
        bytes: before.bytes.saturating_sub(left.bytes),
        frames: before.frames.saturating_sub(left.frames),
    };
    if lost != Size::default() {
        table.take_back(source, slot, lost, !passes);
    }
    passes
}
