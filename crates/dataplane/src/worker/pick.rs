//! In each turn, the worker picks a unit with work by checking several sources in a fixed order.

use super::bill::Bill;
use super::{Worker, inbox, refill};
use crate::port::Pending;
use crate::tsc::{CycleCounter, Stage, Work};
use crate::unit::OUTPUT;
use crate::unit::Unit;

/// Maximum number of units without tokens that the worker checks for frames before a turn counts as
/// idle.
const BORROWERS: usize = 64;

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
    #[inline]
    pub(super) fn pick(&mut self) -> Option<Ran> {
        let among_others = !self.ctx.peers.is_empty();
        self.inbox_first = !self.inbox_first && among_others;
        if self.inbox_first
            && let Some(ran) = self.run_inbox()
        {
            return Some(ran);
        }
        if let Some(ran) = self.sweep() {
            return Some(ran);
        }
        self.pick_rare(among_others && !self.inbox_first)
    }

    /// Runs steps 3 to 6 of the list at [`Self::pick`].
    fn pick_rare(&mut self, inbox: bool) -> Option<Ran> {
        if inbox && let Some(ran) = self.run_inbox() {
            return Some(ran);
        }
        if self.roster.wake_some(&mut self.ctx)
            && let Some(ran) = self.sweep()
        {
            return Some(ran);
        }
        let held = self.roster.schedule.held() > 0;
        let now = self.ctx.last();
        if self.ctx.account.buckets_mut().is_due_early(now, held) {
            refill::run(&mut self.ctx, &mut self.roster, &self.input);
            if let Some(ran) = self.sweep() {
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
    fn sweep(&mut self) -> Option<Ran> {
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
            } else if let Some(bill) = self.run_queue(unit, false) {
                return Some(Ran { bill, sweep_ends });
            } else {
                self.ctx.account.buckets_mut().note_waiting(unit, false);
                self.roster.note_empty(&mut self.ctx, unit);
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
