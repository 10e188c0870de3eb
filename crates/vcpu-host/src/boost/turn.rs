//! What a scheduling thread does at one poll.

use std::io;

use penstock_units::{Nanos, VcpuId};
use penstock_vcpu::credit_book::{Class, CreditTerms};
use penstock_vcpu::deadline_queue::SLICE;
use penstock_vcpu::double_queue::DoubleQueue;
use penstock_vcpu::{Cause, Mode, VcpuScheduler as _};

use super::seat::{Lent, Seen, Sitter};
use super::{Boost, CPU, Note, WAITS};
use crate::bells::Ear;
use crate::policy::PolicyError;
use crate::watchdog::STALL;
use crate::weight;

/// Added to what a poll took, for going to the scheduling thread and back.
const SWITCH: Nanos = Nanos::from_micros(20);
/// Who was lent a slice and ran for so long had it: the scheduling thread takes the rest.
/// Going to a vCPU of KVM and back takes up to 80 us where virtualisation is nested.
const NEARLY: Nanos = Nanos(SLICE.0 * 3 / 5);
/// Epochs without running after which a vCPU is asked whether it has work, where all are read in
/// each.
const PATIENCE: u8 = 3;
/// Beside so many others a vCPU runs in every other epoch only.
const MANY: usize = 10;
/// So often a slice is lent anew, of which it is not known whether anybody ran in it: who else is
/// due waits so much longer, and for more than 1 ms beyond a deadline nobody should.
const UNSURE: u8 = 2;
/// Who runs for so long between two polls does more than answer.
const HALF: Nanos = Nanos(SLICE.0 / 2);

impl Boost {
    pub(super) fn poll(&mut self, now: Nanos) {
        let still = now.saturating_sub(self.due);
        let takings = self.parts.table.takings(self.parts.at).unwrap_or(self.takings);
        // The watchdog may have seen it stand still for longer than it did itself.
        if std::mem::replace(&mut self.takings, takings) != takings || still > STALL {
            self.report.notes.push(Note::StoodStill(still));
            for sitter in &mut self.sitters {
                sitter.forget(&self.parts.table);
            }
        }
        self.late = still > HALF;
        let tick = now >= self.next_tick;
        if tick {
            self.next_tick = now + CreditTerms::TICK;
        }
        // Those without a deadline have nothing but their share, and that is reckoned by epochs.
        let (others, turns) = (now >= self.next_account, self.turns_of_others());
        let own = self.cost + SWITCH;
        let mut at = 0;
        while at < self.sitters.len() {
            let sitter = &mut self.sitters[at];
            let its_turn = others && at % turns == self.epochs % turns;
            if !its_turn && !sitter.has_deadline() {
                at += 1;
                continue;
            }
            match sitter.look(now, own) {
                Ok(seen) => {
                    self.saw(now, at, seen, tick);
                    at += 1;
                }
                Err(error) => self.drop_out(now, at, &error),
            }
        }
        if std::mem::take(&mut self.kept) {
            self.owe_behind(now);
        }
        self.lend_and_take(now);
        if now.saturating_sub(self.next_account) > CreditTerms::EPOCH {
            // New, or stood still: what was not handed out then is not owed.
            self.next_account = now;
        }
        if now >= self.next_account {
            // On average exactly once in an epoch, however late each is.
            self.next_account += CreditTerms::EPOCH;
            self.epochs = self.epochs.wrapping_add(1);
            self.account(now);
        }
        if now >= self.next_report {
            self.send_report(now);
        }
        self.late = false;
    }

    /// In so many epochs all without a deadline are read: of many, none runs much in one.
    fn turns_of_others(&self) -> usize {
        1 + self.sitters.len() / MANY
    }

    /// A thread that cannot be read any more has exited.
    fn drop_out(&mut self, now: Nanos, at: usize, error: &io::Error) {
        let mut sitter = self.sitters.swap_remove(at);
        sitter.release(&self.parts.table);
        if let Some(vm) = self.queue.book().vm_of(sitter.vcpu) {
            self.queue.remove(now, vm);
        }
        self.report.notes.push(Note::lost(sitter.seat.thread, error));
    }

    /// Tells the queue what a vCPU did since the last poll.
    fn saw(&mut self, now: Nanos, at: usize, seen: Seen, tick: bool) {
        let late = self.late;
        let (sitter, queue) = (&mut self.sitters[at], &mut self.queue);
        if let Some(waited) = seen.waited
            && self.report.waits.len() < WAITS
        {
            self.report.waits.push((sitter.seat.thread, waited));
        }
        let vcpu = sitter.vcpu;
        self.kept |= sitter.lent != Lent::No && seen.ran > Nanos(0);
        match sitter.lent {
            Lent::Slice(since) if seen.ran == Nanos(0) => {
                // It goes before all others and did not run: most likely it has nothing to do.
                if now.saturating_sub(since) >= HALF && ask(now, queue, sitter) {
                    sitter.lent = Lent::Standing;
                }
            }
            Lent::Slice(_) => {
                sitter.count_slice();
                if late && sitter.unsure < UNSURE {
                    // A hypervisor below took the processor, or guests enter it slowly: who lends
                    // is late as well, and the kernel counts as run what was no turn.
                    sitter.unsure += 1;
                    queue.stood(vcpu, seen.ran);
                } else {
                    sitter.unsure = 0;
                    ran(queue, sitter, seen);
                }
            }
            Lent::Standing if seen.ran == Nanos(0) => {}
            Lent::Standing => {
                sitter.tally.boosts += 1;
                sitter.stood = now;
                queue.wake(now, vcpu, Cause::Event);
                (sitter.blocked, sitter.waits_behind) = (false, false);
                ran(queue, sitter, seen);
                // It may have answered several times since it was looked at last.
                if seen.ran < HALF || sitter.is_runnable() == Some(false) {
                    queue.blocked(now, vcpu);
                    sitter.blocked = true;
                }
                // Else it is taken back below, unless it is due.
            }
            Lent::No if seen.ran > Nanos(0) => {
                if std::mem::take(&mut sitter.blocked) {
                    queue.wake(now, vcpu, Cause::Timer);
                }
                ran(queue, sitter, seen);
            }
            Lent::No => {
                // A periodic one is asked when it does not use its next slice.
                if tick && sitter.waits_for_events() {
                    ask(now, queue, sitter);
                }
            }
        }
    }

    /// Somebody ran by what it was lent. Whoever has a standing lease and was woken meanwhile waits
    /// behind that one, and perhaps behind more: it is owed a slice within its deadline.
    fn owe_behind(&mut self, now: Nanos) {
        for sitter in &mut self.sitters {
            let stands = sitter.lent == Lent::Standing && sitter.blocked && sitter.stood != now;
            if stands && sitter.is_runnable() == Some(true) {
                self.queue.wake(now, sitter.vcpu, Cause::Event);
                (sitter.blocked, sitter.waits_behind) = (false, true);
            }
        }
    }

    fn lend_and_take(&mut self, now: Nanos) {
        let lending = self.may_lend();
        let due = self.queue.due(now, CPU).or_else(|| self.goes_on(now)).filter(|_| lending);
        for at in 0..self.sitters.len() {
            let sitter = &mut self.sitters[at];
            let may = sitter.may_be_lent_to(now);
            let stays = due == Some(sitter.vcpu) && may;
            let stands =
                (sitter.blocked || sitter.waits_behind) && may && stands(now, &self.queue, sitter);
            let done = match sitter.lent {
                _ if stays => sitter.lend(&self.parts.table, Lent::Slice(now)),
                // Lent for an event a moment ago, and nobody else is due.
                Lent::Slice(since) if due.is_none() && now.saturating_sub(since) < HALF => Ok(()),
                Lent::Slice(_) => sitter.take_back(&self.parts.table),
                Lent::Standing if !lending || !stands => sitter.take_back(&self.parts.table),
                Lent::No if lending && stands => sitter.lend(&self.parts.table, Lent::Standing),
                Lent::Standing | Lent::No => Ok(()),
            };
            self.lent(now, at, done);
        }
    }

    /// Who had a slice for an event that was not enough.
    fn goes_on(&self, now: Nanos) -> Option<VcpuId> {
        let goes_on = |it: &&Sitter| it.may_be_lent_to(now) && self.queue.goes_on(it.vcpu);
        self.sitters.iter().find(goes_on).map(|sitter| sitter.vcpu)
    }

    /// Notes that the kernel refused to lend, or that it does no longer.
    fn lent(&mut self, now: Nanos, at: usize, done: Result<(), PolicyError>) {
        let sitter = &mut self.sitters[at];
        let thread = sitter.seat.thread;
        match done {
            // One that is gone is found out at the next look.
            Err(PolicyError::Gone { .. }) => {}
            Err(error) => {
                sitter.refuse(now);
                let note = match error {
                    PolicyError::NoBudget { .. } => Note::NoBudget(thread),
                    error => Note::Refused(thread, error.to_string()),
                };
                self.report.notes.push(note);
            }
            Ok(()) if sitter.lent != Lent::No && sitter.refused.take().is_some() => {
                self.report.notes.push(Note::Accepted(thread));
            }
            Ok(()) => {}
        }
    }

    /// When there is something to do next. Who has something of ours is looked at in the next slot.
    pub(super) fn next(&self, now: Nanos) -> Nanos {
        let slot = Nanos((now.0 / SLICE.0 + 1) * SLICE.0);
        let stand = |sitter: &&Sitter| sitter.lent == Lent::Standing;
        let beside = self.sitters.iter().filter(stand).count() > 1;
        let watched = |sitter: &Sitter| match sitter.lent {
            Lent::Slice(_) => true,
            // Where all is quiet looking costs more than a tick of it would take from others, but
            // another one that is woken must not wait for that.
            Lent::Standing => beside || now.saturating_sub(sitter.stood) < CreditTerms::TICK,
            Lent::No => false,
        };
        let ticks = |sitter: &Sitter| sitter.lent == Lent::Standing || sitter.waits_for_events();
        let quiet = match self.sitters.iter().any(ticks) && self.may_lend() {
            true => self.next_tick.min(self.next_account),
            false => self.next_account,
        };
        let due = match self.queue.next_due(CPU) {
            _ if self.sitters.iter().any(watched) => slot,
            // That can wait for the next slice: waking costs more than what is done then.
            Some(due) if self.may_lend() => due.min(quiet + CreditTerms::TICK),
            _ => quiet,
        };
        // Who is blocked and cannot pay gets a standing lease then, and not at a tick after it.
        let stands = |sitter: &Sitter| {
            let contract = &sitter.seat.contract;
            let waits = sitter.blocked && sitter.lent == Lent::No && sitter.may_be_lent_to(now);
            (waits && contract.mode == Mode::Periodic).then(|| sitter.stood + contract.deadline)
        };
        let stands = self.sitters.iter().filter_map(stands).min();
        stands.filter(|_| self.may_lend()).map_or(due, |stands| stands.min(due)).max(slot)
    }

    /// Hands out credits, and has weights follow them.
    fn account(&mut self, now: Nanos) {
        let turns = u8::try_from(self.turns_of_others()).unwrap_or(u8::MAX);
        // What is counted must be able to exceed it.
        let patience = PATIENCE.saturating_mul(turns).min(u8::MAX - 1);
        for sitter in &mut self.sitters {
            // Of many that have work each runs in one of several epochs only, and asking costs more
            // than all else that is done for it.
            sitter.idle = sitter.idle.saturating_add(1);
            if sitter.idle > patience && !sitter.blocked && !ask(now, &mut self.queue, sitter) {
                sitter.idle = 0;
            }
        }
        self.queue.account(now);
        for at in 0..self.sitters.len() {
            let sitter = &mut self.sitters[at];
            let credit = self.queue.book().credit(sitter.vcpu);
            let parts = weight::parts(sitter.seat.base_ppm, sitter.seat.share_ppm, credit);
            if let Err(error) = sitter.weigh(parts) {
                let thread = sitter.seat.thread;
                let why = format!("its cgroup's weight cannot be set: {error}");
                sitter.seat.weigher = weight::Weigher::Nice;
                self.report.notes.push(Note::Refused(thread, why));
            }
        }
    }

    /// Reads of which VMs something came, and lends to those at once that compute and can pay.
    pub(super) fn events(&mut self, now: Nanos) {
        let mut name = [0; 256];
        // As many as can be sent between two polls must not keep it from polling.
        for _ in 0..64 {
            let Ok(length) = self.parts.events.recv(&mut name) else { return };
            let named = |at: &usize| self.sitters[*at].seat.vm.as_bytes() == &name[..length];
            let whose: Vec<usize> = (0..self.sitters.len()).filter(named).collect();
            // From behind: one that is gone is replaced by the last.
            for at in whose.into_iter().rev() {
                // The bell that woke us says the same.
                let _ = self.sitters[at].ear.as_mut().is_some_and(Ear::hear);
                self.event(now, at);
            }
        }
    }

    /// Hears what the switch rang, and leaves word with it where that may be acted on.
    pub(super) fn listen(&mut self, now: Nanos) {
        let waits = self.may_lend() && self.sitters.len() > 1;
        // From behind: one that is gone is replaced by the last.
        for at in (0..self.sitters.len()).rev() {
            if self.sitters[at].ear.as_mut().is_some_and(Ear::hear) {
                self.event(now, at);
            }
            let Some(sitter) = self.sitters.get_mut(at) else { continue };
            // One event is enough, and who has something of ours runs for it.
            let wants = waits && sitter.lent == Lent::No && sitter.awaited.is_none();
            if wants && sitter.may_be_lent_to(now) && sitter.ear.as_mut().is_some_and(Ear::summon) {
                self.event(now, at);
            }
        }
    }

    /// Something came for one vCPU.
    fn event(&mut self, now: Nanos, at: usize) {
        let own = self.cost + SWITCH;
        let sitter = &mut self.sitters[at];
        sitter.tally.events += 1;
        // Who is blocked and has a standing lease runs for it by itself.
        if sitter.seat.contract.mode == Mode::None || sitter.lent == Lent::Standing {
            return;
        }
        // What it ran until now was not for this event, and must not count as the answer to it.
        match sitter.look(now, own) {
            Ok(seen) => self.saw(now, at, seen, false),
            Err(error) => return self.drop_out(now, at, &error),
        }
        let lending = self.may_lend();
        let sitter = &mut self.sitters[at];
        self.queue.wake(now, sitter.vcpu, Cause::Event);
        sitter.blocked = false;
        sitter.awaited.get_or_insert(now);
        // Who has a slice is owed another one, in case that it ends before this event is seen to.
        let may = lending && sitter.may_be_lent_to(now);
        if sitter.lent == Lent::No && may && pays(&self.queue, sitter.vcpu) {
            let done = sitter.lend(&self.parts.table, Lent::Slice(now));
            self.lent(now, at, done);
        }
    }
}

/// Whether it may run before its turn for what wakes it.
fn pays(queue: &DoubleQueue, vcpu: VcpuId) -> bool {
    queue.book().class(vcpu) != Class::Over || queue.book().reserve(vcpu) > 0
}

/// Whether one that is blocked may run at once when it is woken: if it can pay, and a periodic one
/// that cannot once in its deadline, which was admitted because its share pays for that.
fn stands(now: Nanos, queue: &DoubleQueue, sitter: &Sitter) -> bool {
    let contract = &sitter.seat.contract;
    let again = sitter.stood + contract.deadline;
    contract.mode.is_real_time()
        && (pays(queue, sitter.vcpu) || (contract.mode == Mode::Periodic && now >= again))
}

fn ran(queue: &mut DoubleQueue, sitter: &Sitter, Seen { ran, left, .. }: Seen) {
    if ran >= NEARLY {
        queue.served(left, sitter.vcpu, ran);
    } else {
        queue.ran(left, sitter.vcpu, ran);
    }
}

/// Whether it has no work: asked of the kernel, and told to the queue.
fn ask(now: Nanos, queue: &mut DoubleQueue, sitter: &mut Sitter) -> bool {
    let blocked = sitter.is_runnable() == Some(false);
    if blocked {
        queue.blocked(now, sitter.vcpu);
        sitter.blocked = true;
    }
    blocked
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
