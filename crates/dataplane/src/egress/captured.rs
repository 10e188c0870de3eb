//! Delivery of a batch while captures run on the worker, or while ports or rules have mirrors.
//!
//! # Approach
//!
//! The delivery is the same as without captures, except that a frame whose verdict a capture or a
//! mirror needs is sent alone. So the result of the call is the result of that frame. The order of
//! the frames stays.
//!
//! A copy for a mirror port is a delivery from the port that sent the frame, and is counted at that
//! port as a replica. A mirror port never holds back the ports whose copies it gets.

use penstock_units::PortId;

use super::account::{account, drops};
use super::{ALL, Around, Delivery, Egress, List, give_back, merge};
use crate::batch::{Batch, Verdict};
use crate::capture::{Captures, Fate};
use crate::finish;
use crate::offload::Offload;
use crate::port::{PortQueue, TxOutcome};
use crate::unit::Unit;

impl Egress {
    /// Whether batches must take [`Self::deliver_watched`].
    #[inline(always)]
    pub(crate) const fn is_watched(&self) -> bool {
        self.watched
    }

    pub(crate) const fn has_mirrors(&self) -> bool {
        self.mirrors
    }

    /// Notes a new snapshot with or without mirrors.
    pub(crate) fn set_mirrors(&mut self, mirrors: bool) {
        self.mirrors = mirrors;
        self.note_watched();
    }

    /// Notes that captures begin, end or pause.
    pub(crate) const fn note_watched(&mut self) {
        self.watched = self.mirrors || self.captures.is_open();
    }

    /// Like [`Egress::deliver`], tells the captures what becomes of each frame, and sends copies to
    /// mirror ports. `fresh` is true if this worker has just received the batch from its port.
    #[inline(never)]
    pub(crate) fn deliver_watched(
        &mut self,
        batch: &mut Batch,
        source: PortId,
        fresh: bool,
        around: &mut Around<'_>,
    ) {
        self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        let counters = around.counters;
        if fresh && self.mirrors {
            self.mirror_received(batch, source, around);
            // The frames themselves may need as many cuts as their copies.
            self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        }
        let Some(own) = counters[source.index()].as_deref() else { return };
        self.list::<true>(batch, source, around.snapshot, own);
        while let Some(output) = self.outputs.pop() {
            let list = core::mem::replace(&mut self.lists[usize::from(output)], List::EMPTY);
            let delivery = self.send_captured(batch, (source, output), list.as_slice(), around);
            if account(&delivery, own, counters[usize::from(output)].as_deref()) {
                give_back(&delivery, batch, (source, output), list.as_slice(), around.snapshot);
            }
        }
        self.captures.end_batch();
    }

    fn send_captured(
        &mut self,
        batch: &mut Batch,
        way: (PortId, u16),
        frames: &[u8],
        around: &mut Around<'_>,
    ) -> Delivery {
        let mut sum = Delivery::default();
        let mut run = List::EMPTY;
        let mirror = around.snapshot.port(way.1).and_then(|policy| policy.mirror.sent);
        for &i in frames {
            if !self.captures.follows(usize::from(i), way.0, way.1) && mirror.is_none() {
                run.push(i);
                continue;
            }
            self.send_run(batch, way, &mut run, around, &mut sum);
            let delivery = self.send::<true>(batch, way, &[i], around);
            match drops(&delivery).next() {
                Some((reason, _)) => {
                    self.captures.dropped(batch, usize::from(i), (way.0, Some(way.1)), reason);
                }
                None => {
                    self.captures.passed(usize::from(i), way.1, fate_of(&delivery));
                    if let Some(mirror) = mirror.filter(|_| delivery.handed == 0) {
                        self.send_copies(batch, (way.0, mirror), &[i], around);
                    }
                }
            }
            sum.add(&delivery);
        }
        self.send_run(batch, way, &mut run, around, &mut sum);
        sum
    }

    /// Sends copies of frames that the switch has just received from `source`.
    fn mirror_received(&mut self, batch: &mut Batch, source: PortId, around: &mut Around<'_>) {
        let mirror = around.snapshot.port(source.0).and_then(|policy| policy.mirror.received);
        for i in 0..batch.len() {
            let frame = batch.frame_mut(i);
            // Only frames that reached the rules have checked metadata. A driver's metadata must
            // not lead the segmenter or another guest behind the end of the frame.
            if matches!(frame.verdict, Verdict::Drop(reason) if reason.precedes_rules()) {
                frame.offload = Offload::NONE;
            }
        }
        if let Some(mirror) = mirror {
            self.send_copies(batch, (source, mirror), &ALL[..batch.len()], around);
        }
        while let Some((port, frames)) = batch.take_mirror() {
            let mut list = List::EMPTY;
            let listed = |i: &u8| frames >> *i & 1 == 1 && usize::from(*i) < batch.len();
            ALL.into_iter().filter(listed).for_each(|i| list.push(i));
            // A frame has one copy, even if its port and its rule have the same mirror.
            if mirror != Some(port) {
                self.send_copies(batch, (source, port), list.as_slice(), around);
            }
        }
    }

    /// Sends copies of frames to a mirror port.
    fn send_copies(
        &mut self,
        batch: &mut Batch,
        way: (PortId, u16),
        frames: &[u8],
        around: &mut Around<'_>,
    ) {
        let counters = around.counters;
        let (own, target) = (&counters[way.0.index()], counters.get(usize::from(way.1)));
        if frames.is_empty() || way.0.0 == way.1 {
            return;
        }
        let mut delivery = self.send::<true>(batch, way, frames, around);
        delivery.replicated += frames.len() as u64;
        if let Some(own) = own.as_deref() {
            account(&delivery, own, target.and_then(Option::as_deref));
        }
    }

    /// Sends the frames of `run` as one burst, and empties the list.
    fn send_run(
        &mut self,
        batch: &mut Batch,
        way: (PortId, u16),
        run: &mut List,
        around: &mut Around<'_>,
        sum: &mut Delivery,
    ) {
        if run.len == 0 {
            return;
        }
        let frames = core::mem::replace(run, List::EMPTY);
        let delivery = self.send::<true>(batch, way, frames.as_slice(), around);
        if drops(&delivery).next().is_none() {
            let fate = fate_of(&delivery);
            frames.as_slice().iter().for_each(|&i| {
                self.captures.passed(usize::from(i), way.1, fate);
            });
        }
        sum.add(&delivery);
    }
}

/// Returns what became of the frames of a delivery without drops.
const fn fate_of(delivery: &Delivery) -> Fate {
    match (delivery.handed, delivery.waiting) {
        (1.., _) => Fate::HandedOver,
        (0, 1..) => Fate::Queued,
        (0, 0) => Fate::Forwarded,
    }
}

impl Delivery {
    /// Adds the numbers of a further delivery between the same two ports.
    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            outcome,
            replicated,
            vlan,
            no_port,
            sw_csum,
            sw_tso,
            handed,
            handover_full,
            way,
            link,
            waiting,
            queue_full,
            receive_limit,
            tenant_limit,
            send_limit,
            pair_limit,
            forged,
        } = *other;
        merge(&mut self.outcome, outcome);
        self.way = way;
        for (sum, part) in [
            (&mut self.replicated, replicated),
            (&mut self.vlan, vlan),
            (&mut self.no_port, no_port),
            (&mut self.sw_csum, sw_csum),
            (&mut self.sw_tso, sw_tso),
            (&mut self.handed, handed),
            (&mut self.handover_full, handover_full),
            (&mut self.link, link),
            (&mut self.waiting, waiting),
            (&mut self.queue_full, queue_full),
            (&mut self.receive_limit, receive_limit),
            (&mut self.tenant_limit, tenant_limit),
            (&mut self.send_limit, send_limit),
            (&mut self.pair_limit, pair_limit),
            (&mut self.forged, forged),
        ] {
            *sum += part;
        }
    }
}

/// Sends the listed frames to a queue pair. If a capture takes what the port gets, sends the chosen
/// frames one by one.
#[inline(always)]
pub(super) fn burst<const SEEN: bool>(
    captures: &mut Captures,
    port: &mut dyn PortQueue,
    batch: &Batch,
    frames: &[u8],
    way: (PortId, Unit),
) -> TxOutcome {
    if SEEN && captures.takes_sent_to(way.1.port.0) {
        burst_captured(captures, port, batch, frames, way)
    } else {
        port.tx_burst(batch, frames)
    }
}

#[inline(never)]
fn burst_captured(
    captures: &mut Captures,
    port: &mut dyn PortQueue,
    batch: &Batch,
    frames: &[u8],
    way: (PortId, Unit),
) -> TxOutcome {
    let mut sum = TxOutcome::default();
    let mut sent = 0;
    for (at, &i) in frames.iter().enumerate() {
        let chosen = captures.choose_sent(batch, usize::from(i), way);
        if chosen == 0 {
            continue;
        }
        if sent < at {
            merge(&mut sum, port.tx_burst(batch, &frames[sent..at]));
        }
        let outcome = port.tx_burst(batch, &ALL[usize::from(i)..=usize::from(i)]);
        if outcome.frames == 1 {
            captures.sent(chosen, batch, usize::from(i), way);
        }
        merge(&mut sum, outcome);
        sent = at + 1;
    }
    if sent < frames.len() {
        merge(&mut sum, port.tx_burst(batch, &frames[sent..]));
    }
    sum
}
