//! A bill charges the cycles of a unit's work to the ports that caused the work.
//!
//! # Approach
//!
//! A unit runs first, and the worker charges the unit's port afterwards (C2QoS §IV-A).
//! [`Worker::settle`] is the only function that charges a bill and handles the results of the
//! unit's batch.

use penstock_units::{Cycles, PortId};

use super::account::OwnBatch;
use super::input::count_stages;
use super::{Worker, inbox};
use crate::tsc::CycleCounter;

/// Results of a batch that the worker received from a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub batch: OwnBatch,
    /// Number of frames and bytes that passed the port's policer.
    pub priced: (usize, usize),
    /// Upper limit of the time for which the batch's first frame waited in the ring.
    pub waited: Cycles,
    /// Readings of the cycle counter after the stages reception and classification of the batch.
    /// The readings are `None` if the worker does not measure the stages of this batch.
    pub edges: Option<[Cycles; 2]>,
}

/// Describes the work of one unit of the schedule for which a payer must be charged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bill {
    /// The unit ran a queue pair's batch, for which the queue pair's port pays.
    Queue(Taken),
    /// The unit sent a batch from the output queue of one VM, and the VM's port pays.
    Output(OwnBatch),
    /// The unit sent a batch from the queue of a shared output, for which the frames' senders pay.
    Shared { output: PortId, frames: usize },
    /// The unit delivered frames from another worker, for which the port that sent the frames pays.
    HandedOver { source: PortId, frames: usize },
}

impl Bill {
    /// Number of frames that the unit moved.
    pub const fn frames(&self) -> usize {
        match self {
            Self::Queue(Taken { batch, .. }) | Self::Output(batch) => batch.frames,
            Self::Shared { frames, .. } | Self::HandedOver { frames, .. } => *frames,
        }
    }
}

impl<C: CycleCounter> Worker<C> {
    /// Charges the bill for a unit's run to the payer, and then handles the results of the unit's
    /// batch.
    #[inline]
    pub(super) fn settle(&mut self, bill: &Bill) {
        let Self { ctx, roster, input, outputs, .. } = self;
        match *bill {
            Bill::Queue(ref taken) => {
                let (unit, began) = (taken.batch.unit, ctx.last());
                let settled = ctx.charge_batch(taken.batch, Some(taken.priced));
                roster.schedule.ran(unit);
                if !settled.left {
                    roster.schedule.hold(unit);
                }
                if settled.whole
                    && let Some([received, classified]) = taken.edges
                    && let Some(counters) = ctx.of(unit.port)
                {
                    let edges = [began, received, classified, ctx.last()];
                    count_stages(counters, taken.batch.frames, edges);
                }
                outputs.heed(ctx, roster, unit.port, Some(&taken.batch));
                outputs.heed_others(ctx, roster, unit.port);
                input.after(ctx, roster, taken);
                if roster.has_claims() && !(settled.left && roster.polls(unit)) {
                    outputs.note_waits(ctx, roster, unit.port);
                }
                roster.note_busy(unit, ctx.last());
            }
            Bill::Output(batch) => {
                let left = ctx.charge_batch(batch, None).left;
                outputs.after(ctx, roster, batch.unit.port, left);
            }
            Bill::Shared { output, .. } => {
                ctx.charge_senders(output);
                outputs.after(ctx, roster, output, true);
            }
            Bill::HandedOver { source, frames } => {
                ctx.charge_port(source, frames as u64);
                inbox::after(ctx, roster, outputs, (source, frames));
            }
        }
    }
}
