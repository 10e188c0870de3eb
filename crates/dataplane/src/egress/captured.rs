//! Delivery of a batch while captures run on the worker.
//!
//! # Approach
//!
//! The delivery is the same as without captures, except that a frame whose verdict a capture needs
//! is sent alone. So the result of the call is the result of that frame. The order of the frames
//! stays.

use penstock_units::PortId;

use super::account::{account, drops};
use super::{ALL, Around, Delivery, Egress, List, merge};
use crate::batch::Batch;
use crate::capture::Captures;
use crate::finish;
use crate::port::{PortQueue, TxOutcome};
use crate::unit::Unit;

impl Egress {
    /// Like [`Egress::deliver`], and tells the captures what becomes of each frame.
    #[inline(never)]
    pub(crate) fn deliver_captured(
        &mut self,
        batch: &mut Batch,
        source: PortId,
        around: &mut Around<'_>,
    ) {
        self.finisher.cuts_left = finish::CUTS_PER_TURN_MAX;
        let counters = around.counters;
        let Some(own) = counters[source.index()].as_deref() else { return };
        self.list::<true>(batch, source, around.snapshot, own);
        while let Some(output) = self.outputs.pop() {
            let list = core::mem::replace(&mut self.lists[usize::from(output)], List::EMPTY);
            let delivery = self.send_captured(batch, (source, output), list.as_slice(), around);
            account(&delivery, own, counters[usize::from(output)].as_deref());
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
        for &i in frames {
            if !self.captures.follows(usize::from(i), way.0, way.1) {
                run.push(i);
                continue;
            }
            self.send_run(batch, way, &mut run, around, &mut sum);
            let delivery = self.send::<true>(batch, way, &[i], around);
            match drops(&delivery).next() {
                Some((reason, _)) => {
                    self.captures.dropped(batch, usize::from(i), (way.0, Some(way.1)), reason);
                }
                None => self.captures.passed(usize::from(i), way.1),
            }
            sum.add(&delivery);
        }
        self.send_run(batch, way, &mut run, around, &mut sum);
        sum
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
            frames.as_slice().iter().for_each(|&i| self.captures.passed(usize::from(i), way.1));
        }
        sum.add(&delivery);
    }
}

impl Delivery {
    /// Adds the numbers of a further delivery between the same two ports.
    fn add(&mut self, other: &Self) {
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
