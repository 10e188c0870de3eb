//! The inbox delivers frames that other workers handed over to this worker.

use penstock_units::PortId;

use super::bill::Bill;
use super::context::Context;
use super::input::Input;
use super::outputs::Outputs;
use super::roster::Roster;
use crate::batch::BATCH_FRAMES;
use crate::peers::Found;
use crate::tsc::{CycleCounter, Stage, Work};

/// Delivers one batch of handed-over frames from one port. Returns `None` if no frame from another
/// worker waits.
#[inline(never)]
pub(super) fn run<C: CycleCounter>(ctx: &mut Context<C>, input: &mut Input) -> Option<Bill> {
    let second = ctx.second();
    loop {
        ctx.batch.clear();
        ctx.batch.limit(BATCH_FRAMES);
        match ctx.peers.fill(&mut ctx.batch) {
            Found::Nothing => return None,
            Found::News(news) => {
                input.classifier_mut().hear(&news, second, &ctx.snapshot);
                ctx.peers.release();
            }
            Found::Frames(source) => {
                deliver(ctx, source);
                return Some(Bill::HandedOver { source, frames: ctx.batch.len() });
            }
        }
    }
}

fn deliver<C: CycleCounter>(ctx: &mut Context<C>, source: PortId) {
    // The frames of a port that has left are dropped.
    let Some(counters) = ctx.port_counters[source.index()].as_deref() else { return };
    let (frames, bytes) = (ctx.batch.len(), ctx.batch.bytes());
    counters.queued.sub(frames as u64);
    let now = ctx.nanos();
    ctx.deliver(source, now, false);
    ctx.counter.spent(Stage::Egress, &Work { port: source, frames, bytes, misses: 0 });
}

/// Called after a delivery of frames from another worker was charged. Schedules the outputs that
/// got frames, and frees the ring's cells.
pub(super) fn after<C: CycleCounter>(
    ctx: &mut Context<C>,
    roster: &mut Roster,
    outputs: &mut Outputs,
    (source, frames): (PortId, usize),
) {
    outputs.heed(ctx, roster, source, None);
    ctx.counters().taken_over.add(frames as u64);
    // Frames on their way become visible in one ring before they leave the other.
    ctx.peers.show();
    ctx.peers.release();
}
