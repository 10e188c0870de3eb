//! In each turn, the worker picks a unit with work by checking several sources in a fixed order.

use penstock_units::PortId;

use super::bill::Bill;
use super::claims::Claims;
use super::{Worker, inbox, refill};
use crate::port::Pending;
use crate::queue::Choice;
use crate::tsc::{CycleCounter, Stage, Work};
use crate::unit::OUTPUT;
use crate::unit::Unit;

/// Maximum number of units without tokens that the worker checks for frames before a turn counts as
/// idle.
const BORROWERS: usize = 64;

/// Maximum number of sources that an output with fair shares chooses in one turn, if the worker can
/// poll none of them.
const CHOICES_MAX: usize = 4;

/// Result of running a unit: the bill that the worker has yet to charge to a payer.
pub(super) struct Ran {
    pub bill: Bill,
    /// Whether the worker must end the notification round before the next scheduling decision.
    pub sweep_ends: bool,
}

impl Ran {
    const fn alone(bill: Bill) -> Self {
        Self { bill, sweep_ends: false }
    }
}

impl<C: CycleCounter> Worker<C> {
    /// Runs the next unit that has work. Returns `None` if no unit has work. The worker checks for
    /// work in six steps.
    ///
    /// 1. In every second turn, the worker first checks for frames from other workers.
    /// 2. The worker checks the units of the schedule until a unit has a batch.
    /// 3. In a turn that did not begin with frames from other workers, the worker checks for these
    ///    frames after the schedule.
    /// 4. The worker wakes queue pairs at rest if their drivers kicked, and then checks the
    ///    schedule again.
    /// 5. If some units lack tokens and an early refill is due, the worker refills the buckets and
    ///    checks the schedule again.
    /// 6. The worker lends spare time to a unit without tokens.
    ///
    /// `SHARES` is true if a source has a claim at an output with fair shares ([`super::claims`]).
    #[inline]
    pub(super) fn pick<const SHARES: bool>(&mut self) -> Option<Ran> {
        let among_others = !self.ctx.peers.is_empty();
        self.inbox_first = !self.inbox_first && among_others;
        if self.inbox_first
            && let Some(ran) = self.run_inbox()
        {
            return Some(ran);
        }
        if let Some(ran) = self.sweep::<SHARES>() {
            return Some(ran);
        }
        self.pick_rare::<SHARES>(among_others && !self.inbox_first)
    }

    /// Like [`Self::pick`], while a source has a claim at an output.
    #[inline(never)]
    pub(super) fn pick_by_share(&mut self) -> Option<Ran> {
        self.pick::<true>()
    }

    /// Runs steps 3 to 6 of the list at [`Self::pick`].
    fn pick_rare<const SHARES: bool>(&mut self, inbox: bool) -> Option<Ran> {
        if inbox && let Some(ran) = self.run_inbox() {
            return Some(ran);
        }
        if self.roster.wake_some(&mut self.ctx)
            && let Some(ran) = self.sweep::<SHARES>()
        {
            return Some(ran);
        }
        let held = self.roster.schedule.held() > 0;
        let now = self.ctx.last();
        if self.ctx.account.buckets_mut().is_due_early(now, held) {
            refill::run(&mut self.ctx, &mut self.roster, &self.input);
            if let Some(ran) = self.sweep::<SHARES>() {
                return Some(ran);
            }
        }
        let held = self.roster.schedule.held() > 0;
        if self.ctx.account.buckets().holds_back(held) { self.lend() } else { None }
    }

    fn run_inbox(&mut self) -> Option<Ran> {
        inbox::run(&mut self.ctx, &mut self.input).map(Ran::alone)
    }

    /// Checks the units of the schedule until a unit has a batch.
    #[inline]
    fn sweep<const SHARES: bool>(&mut self) -> Option<Ran> {
        self.roster.schedule.begin();
        for _ in 0..self.roster.schedule.looks_max() {
            let Some((unit, sweep_ends)) = self.roster.schedule.next_unit() else { break };
            if unit.queue == OUTPUT {
                if self.outputs.may_run(&mut self.ctx, &mut self.roster, unit.port)
                    && let Some(bill) = self.run_output(unit, false)
                {
                    return Some(Ran { bill, sweep_ends });
                }
                continue;
            }
            if !self.ctx.account.buckets().may_run(unit.port) {
                self.ctx.account.buckets_mut().note_throttled();
                self.roster.schedule.hold(unit);
            } else if let Some(bill) = self.run_sender::<SHARES>(unit) {
                return Some(Ran { bill, sweep_ends });
            } else {
                self.ctx.account.buckets_mut().note_waiting(unit, false);
                self.roster.note_empty(&mut self.ctx, unit);
                if SHARES && !self.roster.polls(unit) {
                    self.outputs.claims.withdraw(&mut self.ctx, unit.port);
                }
                self.ctx.counter.spent(Stage::Look, &Work::NONE);
            }
            if sweep_ends {
                self.ctx.notify();
            }
        }
        self.ctx.account.buckets_mut().note_passed();
        None
    }

    #[inline]
    fn run_sender<const SHARES: bool>(&mut self, unit: Unit) -> Option<Bill> {
        if SHARES { self.run_by_share(unit) } else { self.run_queue(unit, false) }
    }

    /// Runs a batch in the turn of a queue pair. If the queue pair's port has a claim at an output
    /// with fair shares, the output chooses who uses the turn: a source with a claim, or the output
    /// itself for its waiting frames. A port that had a claim recently has it again if frames are
    /// in its ring.
    #[inline(never)]
    fn run_by_share(&mut self, unit: Unit) -> Option<Bill> {
        let Some(claimed) = self.outputs.claims.output_of(unit.port) else {
            return self.run_queue(unit, false);
        };
        let way = (unit.port, claimed);
        // The ring's cache line is the guest's. If another source uses the turn, a look at the ring
        // of a port that has its claim anyway would only take the line from the guest.
        let has_claim = Claims::has_claim(&mut self.ctx, way)
            || self.has_frames(unit) && self.outputs.claims.renew(&mut self.ctx, way);
        if has_claim && self.outputs.claims.gives_turn(&self.ctx, way) {
            self.look_at_quiet(claimed, unit);
            for _ in 0..CHOICES_MAX {
                let bill = match self.outputs.claims.choice(&mut self.ctx, claimed) {
                    Choice::Own => break,
                    Choice::Frames => match self.run_waiting(claimed, unit) {
                        None => break,
                        bill => bill,
                    },
                    Choice::Poll(source) => self.run_chosen((PortId(source), claimed), unit),
                };
                if bill.is_some() {
                    return bill;
                }
            }
        }
        let bill = self.run_queue(unit, false);
        if let Some(Bill::Queue(taken)) = bill {
            self.ctx.counters().unchosen_batches.add(1);
            self.outputs.claims.settle(&mut self.ctx, taken.batch);
        } else {
            self.outputs.claims.note_empty(&mut self.ctx, unit.port);
        }
        self.note_claim(way);
        bill
    }

    /// Looks at some sources of an output without a claim, before the output chooses who uses the
    /// turn of `unit`. Those with frames in their rings have a claim again.
    fn look_at_quiet(&mut self, output: PortId, unit: Unit) {
        for _ in 0..self.outputs.claims.looks() {
            let Some(source) = self.outputs.claims.next_look() else { return };
            let Some(quiet) = self.outputs.claims.unit_of(&self.ctx, source, output) else {
                continue;
            };
            if quiet == unit || !self.may_use_turn(quiet, unit) {
                continue;
            }
            self.ctx.counters().share_looks.add(1);
            if self.has_frames(quiet) {
                let _ = self.outputs.claims.renew(&mut self.ctx, (source, output));
            }
        }
    }

    /// If a source has no claim at an output any more, lets the output send the frames that waited
    /// behind the claim.
    fn note_claim(&mut self, (source, output): (PortId, PortId)) {
        if !Claims::has_claim(&mut self.ctx, (source, output)) {
            self.outputs.go_on(&self.ctx, &mut self.roster, output);
        }
    }

    /// Sends waiting frames of an output in the turn of `unit`.
    fn run_waiting(&mut self, output: PortId, unit: Unit) -> Option<Bill> {
        self.outputs.wake(&self.ctx, &mut self.roster, output);
        if !self.outputs.is_ready(output) {
            return None;
        }
        let bill = self.run_output(Unit { port: output, queue: OUTPUT }, false)?;
        self.outputs.claims.give(unit.port);
        self.roster.schedule.ran(unit);
        Some(bill)
    }

    /// Polls the source that an output chose, in the turn of `unit`. If the worker cannot poll the
    /// source, or if the source has no frame, withdraws the source's claim.
    fn run_chosen(&mut self, (source, output): (PortId, PortId), unit: Unit) -> Option<Bill> {
        let chosen = self.outputs.claims.unit_of(&self.ctx, source, output);
        let chosen = chosen.filter(|chosen| *chosen == unit || self.may_use_turn(*chosen, unit));
        let Some(chosen) = chosen else {
            self.outputs.claims.refuse(&mut self.ctx, source, output);
            return None;
        };
        Claims::begin(&mut self.ctx, output);
        let Some(Bill::Queue(taken)) = self.run_queue(chosen, false) else {
            Claims::end(&mut self.ctx, output);
            self.outputs.claims.note_empty(&mut self.ctx, source);
            self.ctx.counter.spent(Stage::Look, &Work::NONE);
            return None;
        };
        self.outputs.claims.charge(&mut self.ctx, taken.batch, output);
        self.note_claim((source, output));
        if chosen != unit {
            self.outputs.claims.give(unit.port);
            self.roster.schedule.ran(unit);
        }
        Some(Bill::Queue(taken))
    }

    /// Whether the queue pair `chosen` may run a batch in the turn of `unit`.
    fn may_use_turn(&self, chosen: Unit, unit: Unit) -> bool {
        self.outputs.claims.are_equal(&self.ctx, (chosen.port, unit.port))
            && self.roster.polls(chosen)
            && self.ctx.account.buckets().may_run(chosen.port)
    }

    /// Whether frames wait in the ring of a queue pair, or parts of a frame in its port's cutter.
    /// If only a system call can tell, the result is false.
    fn has_frames(&mut self, unit: Unit) -> bool {
        let now = self.ctx.last();
        let queue = &mut self.ctx.ports[unit.port.index()].queues[unit.queue.index()];
        queue.pending(now) == Pending::Yes || self.input.holds(unit.port)
    }

    #[inline]
    fn run_queue(&mut self, unit: Unit, lent: bool) -> Option<Bill> {
        let now = self.ctx.last();
        let queue = &mut self.ctx.ports[unit.port.index()].queues[unit.queue.index()];
        if queue.pending(now) == Pending::No && !self.input.holds(unit.port) {
            return None;
        }
        let waited = self.roster.delays.of(unit, now);
        self.input.run(&mut self.ctx, unit, waited, lent).map(Bill::Queue)
    }

    fn run_output(&mut self, unit: Unit, lent: bool) -> Option<Bill> {
        self.outputs.run(&mut self.ctx, &mut self.roster, unit.port, lent)
    }

    /// Runs a batch of a unit that has frames but no tokens, if the ingress policy of the unit's
    /// port allows the use of spare cycles. The core would otherwise be idle, because no unit that
    /// has tokens has frames.
    #[inline(never)]
    fn lend(&mut self) -> Option<Ran> {
        // If the schedule holds no unit, any unit may be without tokens.
        let held = match self.roster.schedule.held() {
            0 => self.roster.schedule.len(),
            held => held,
        };
        for _ in 0..held.min(BORROWERS) {
            let unit = self.roster.schedule.next_held()?;
            if !self.ctx.account.buckets().may_borrow(unit.port) {
                continue;
            }
            let bill = match unit.queue {
                OUTPUT => self.run_output(unit, true),
                _ => self.run_queue(unit, true),
            };
            if let Some(bill) = bill {
                return Some(Ran::alone(bill));
            }
        }
        None
    }
}
