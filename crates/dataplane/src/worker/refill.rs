//! The worker refills the cycle buckets once per interval, and does other periodic work at each
//! refill.
//!
//! A refill generates cycles for all ports with a cycle bucket, and returns units that were held
//! for lack of cycles to the schedule. At each refill, the worker also updates a few ports'
//! counters and checks a few units that had no turn for long. The host pays for a refill, because
//! no port caused the refill.

use penstock_qos::hbs::RELEASE_MOST;
use penstock_qos::latency_bound::GLANCES;
use penstock_units::PortId;

use super::context::Context;
use super::input::Input;
use super::roster::Roster;
use crate::port::Pending;
use crate::tsc::{CycleCounter, Stage, Work};
use crate::unit::OUTPUT;

/// Number of ports that a single worker updates in a refill.
const BOOKS: u32 = 2;
/// Number of ports of which one refill updates the records, on a worker of a switch with several
/// workers. If four ports are updated per refill, it takes 350 us until each of 28 ports is updated
/// once.
const BOOKS_SHARED: u32 = 4;

/// Number of units without tokens that a refill checks for frames.
const HELD_LOOKS: usize = 2;

/// Maximum number of units that a worker without buckets checks once a second.
const LOOKS: usize = 256;

/// Refills the cycle buckets, and charges the cycles of the refill to the host.
#[inline(never)]
pub(super) fn run<C: CycleCounter>(ctx: &mut Context<C>, roster: &mut Roster, input: &Input) {
    let held = ctx.account.buckets().holds_back(roster.schedule.held() > 0);
    let passed = generate(ctx, roster);
    keep_books(ctx);
    if !passed {
        glance(ctx, roster, input);
    }
    if held {
        look_at_held(ctx, roster);
    }
    ctx.counter.spent(Stage::Refill, &Work::NONE);
    ctx.charge_host();
}

/// Refills the worker's cycle buckets and updates the counters of generated cycles. Returns whether
/// a scheduling decision since the last refill found no unit that had both tokens and frames.
fn generate<C: CycleCounter>(ctx: &mut Context<C>, roster: &mut Roster) -> bool {
    let now = ctx.last();
    let passed = ctx.account.buckets_mut().refill(now);
    let buckets = ctx.account.buckets();
    roster.schedule.release(RELEASE_MOST, &|port| buckets.may_run(port));
    let (ledger, counters) = (buckets.ledger(), ctx.counters());
    counters.refills.add(1);
    counters.cycles_generated.set(ledger.generated);
    counters.cycles_discarded.set(ledger.discarded);
    counters.cycles_lent.set(ledger.lent);
    passed
}

/// Checks for a few units whether frames wait, independently of the scheduling order. If other
/// units use the whole core for long, a unit with tokens may get no turn, and its waiting frames
/// would stay unnoticed. If the worker treated a port with waiting frames as idle, the port would
/// lose its tokens above the bucket's depth.
fn glance<C: CycleCounter>(ctx: &mut Context<C>, roster: &mut Roster, input: &Input) {
    for _ in 0..GLANCES {
        let Some(unit) = roster.schedule.glance() else { break };
        if unit.queue == OUTPUT {
            // An output is in the schedule only while a frame may go.
            ctx.account.buckets_mut().note_waiting(unit, true);
            continue;
        }
        let queue = &mut ctx.ports[unit.port.index()].queues[unit.queue.index()];
        // A unit that can only be polled may have frames, so its share is kept.
        let pending = queue.pending(ctx.account.last());
        let waits = pending != Pending::No || input.holds(unit.port);
        ctx.account.buckets_mut().note_waiting(unit, waits);
        if pending == Pending::Yes
            && let Some(counters) = ctx.of(unit.port)
        {
            counters.kept_waiting.add(1);
        }
    }
}

/// Checks for a few units whose ports have no tokens whether frames wait. A unit without tokens
/// gets no turn, so frames that arrive after its last batch would not count as waiting for cycles.
fn look_at_held<C: CycleCounter>(ctx: &mut Context<C>, roster: &mut Roster) {
    for _ in 0..HELD_LOOKS.min(roster.schedule.len()) {
        let Some(unit) = roster.schedule.next_held() else { break };
        if unit.queue == OUTPUT || ctx.account.buckets().may_run(unit.port) {
            continue;
        }
        let queue = &mut ctx.ports[unit.port.index()].queues[unit.queue.index()];
        if queue.pending(ctx.account.last()) == Pending::Yes {
            ctx.account.buckets_mut().note_wants(unit.port);
        }
    }
}

/// On a worker without cycle buckets, checks units for waiting frames once a second. If earlier
/// classes use the whole core, a unit of a later class gets no turn, even if frames wait at the
/// unit. If frames wait at a unit without a turn, the counter `kept_waiting` increases, and
/// `penstock explain` can report the wait.
#[cold]
pub(super) fn look_at_waiting<C: CycleCounter>(ctx: &mut Context<C>, roster: &mut Roster) {
    if ctx.account.buckets().has_any() {
        return;
    }
    for _ in 0..roster.schedule.len().min(LOOKS) {
        let Some(unit) = roster.schedule.glance() else { break };
        if unit.queue == OUTPUT {
            continue;
        }
        let now = ctx.last();
        let queue = &mut ctx.ports[unit.port.index()].queues[unit.queue.index()];
        if queue.pending(now) == Pending::Yes
            && let Some(counters) = ctx.of(unit.port)
        {
            counters.kept_waiting.add(1);
        }
    }
}

/// Updates the bucket records and the counters of the next few ports, in rotation over all ports
/// with a bucket.
fn keep_books<C: CycleCounter>(ctx: &mut Context<C>) {
    let alone = ctx.peers.is_empty();
    for _ in 0..if alone { BOOKS } else { BOOKS_SHARED } {
        let Some(port) = ctx.account.buckets_mut().next_port() else { return };
        if let Some(counters) = &ctx.port_counters[port.index()] {
            ctx.account.buckets_mut().publish(port, counters);
        }
        if !alone {
            share(ctx, port);
        }
    }
}

/// Balances a port's tokens between the workers that have queue pairs of the port.
fn share<C: CycleCounter>(ctx: &mut Context<C>, port: PortId) {
    let (qos, now) = (ctx.qos(port), ctx.last());
    let peers = &ctx.peers;
    let (directory, me) = (peers.directory(), peers.id());
    let owners = directory.owners(port);
    let buckets = ctx.account.buckets_mut();
    if buckets.set_parts(port, u64::from(owners.count_ones()).max(1)) {
        buckets.set(port, &qos, 0, now);
    }
    buckets.book(port, me, &directory.notes);
    if owners.trailing_zeros() == u32::from(me.0) {
        buckets.settle(port, owners, &directory.notes);
    }
}
