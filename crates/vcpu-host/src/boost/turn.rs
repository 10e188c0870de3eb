//! The work of a scheduling thread at one poll.

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

/// Time for switching from a vCPU to the scheduling thread and back, in addition to the duration of
/// the poll.
const SWITCH: Nanos = Nanos::from_micros(20);
/// Run time at which a vCPU has used up a lent real-time slice, because the scheduling thread takes
/// the remaining time. With nested virtualisation, a switch to a vCPU of KVM and back takes up to
/// 80 us.
const NEARLY: Nanos = Nanos(SLICE.0 * 3 / 5);
/// Number of epochs of 30 ms without run time after which the scheduling thread reads a vCPU's
/// state. If the scheduling thread reads only some of the vCPUs in each epoch (30 ms), it reads a
/// vCPU's state after more epochs.
const PATIENCE: u8 = 3;
/// Number of competing vCPUs above which a vCPU does not run in every epoch (30 ms).
const MANY: usize = 10;
/// Number of times that the scheduling thread repeats a real-time slice in which the vCPU perhaps
/// did not run. Other due vCPUs wait during each repeated real-time slice. If a real-time slice is
/// repeated at most twice, no vCPU waits for more than 1 ms beyond its deadline.
const UNSURE: u8 = 2;
/// A vCPU that runs for half a real-time slice between two polls does more than answer an event.
const HALF: Nanos = Nanos(SLICE.0 / 2);

impl Boost {
    pub(super) fn poll(&mut self, now: Nanos) {
        let still = now.saturating_sub(self.due);
        let takings = self.parts.table.takings(self.parts.at).unwrap_or(self.takings);
        // The watchdog may have seen a longer stall than this thread.
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
        // vCPUs without a deadline have only a share, and epochs suffice to compute shares.
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
            // The thread is new or was stalled. vCPUs get no credits for the time of a stall.
            self.next_account = now;
        }
        if now >= self.next_account {
            // The next time counts from the planned time, so that credits are distributed once per
            // epoch on average, even if each distribution is late.
            self.next_account += CreditTerms::EPOCH;
            self.epochs = self.epochs.wrapping_add(1);
            self.account(now);
        }
        if now >= self.next_report {
            self.send_report(now);
        }
        self.late = false;
    }

    /// Number of epochs (30 ms) in which the scheduling thread reads each vCPU without a deadline
    /// once. If a processor has many vCPUs, no vCPU runs for long in one epoch (30 ms), so the
    /// thread may read each vCPU less often.
    fn turns_of_others(&self) -> usize {
        1 + self.sitters.len() / MANY
    }

    /// Removes a vCPU because the vCPU's thread has exited or can no longer be read.
    fn drop_out(&mut self, now: Nanos, at: usize, error: &io::Error) {
        let mut sitter = self.sitters.swap_remove(at);
        sitter.release(&self.parts.table);
        if let Some(vm) = self.queue.book().vm_of(sitter.vcpu) {
            self.queue.remove(now, vm);
        }
        self.report.notes.push(Note::lost(sitter.seat.thread, error));
    }

    /// Reports a vCPU's activity since the last poll to the queue.
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
                // The vCPU has priority over all others and did not run, so it probably has no
                // work.
                if now.saturating_sub(since) >= HALF && ask(now, queue, sitter) {
                    sitter.lent = Lent::Standing;
                }
            }
            Lent::Slice(_) => {
                sitter.count_slice();
                if late && sitter.unsure < UNSURE {
                    // A hypervisor below took the processor, or entering a guest takes long. The
                    // scheduling thread is late too, and the kernel's run time includes time in
                    // which the vCPU did not run.
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
                // The vCPU may have answered several events since the last read.
                if seen.ran < HALF || sitter.is_runnable() == Some(false) {
                    queue.blocked(now, vcpu);
                    sitter.blocked = true;
                }
                // Otherwise the code below ends the temporary policy, unless the vCPU is due.
            }
            Lent::No if seen.ran > Nanos(0) => {
                if std::mem::take(&mut sitter.blocked) {
                    queue.wake(now, vcpu, Cause::Timer);
                }
                ran(queue, sitter, seen);
            }
            Lent::No => {
                // A periodic vCPU is checked when it does not use its next slice.
                if tick && sitter.waits_for_events() {
                    ask(now, queue, sitter);
                }
            }
        }
    }

    /// Finds woken vCPUs that wait despite a standing lease (the real-time policy of a blocked
    /// vCPU), because another vCPU with a temporary real-time policy ran. Each vCPU that the
    /// function finds must get a real-time slice within the vCPU's deadline. The caller calls
    /// `owe_behind` after a vCPU with a temporary real-time policy ran.
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
                // The thread lent the slice for an event a moment ago, and no other vCPU is due.
                Lent::Slice(since) if due.is_none() && now.saturating_sub(since) < HALF => Ok(()),
                Lent::Slice(_) => sitter.take_back(&self.parts.table),
                Lent::Standing if !lending || !stands => sitter.take_back(&self.parts.table),
                Lent::No if lending && stands => sitter.lend(&self.parts.table, Lent::Standing),
                Lent::Standing | Lent::No => Ok(()),
            };
            self.lent(now, at, done);
        }
    }

    /// Finds a vCPU that has not finished its work for an event in one real-time slice, and has
    /// credits or a reserve for another slice.
    fn goes_on(&self, now: Nanos) -> Option<VcpuId> {
        let goes_on = |it: &&Sitter| it.may_be_lent_to(now) && self.queue.goes_on(it.vcpu);
        self.sitters.iter().find(goes_on).map(|sitter| sitter.vcpu)
    }

    /// Records whether the kernel accepted or refused a temporary real-time policy for vCPU number
    /// `at`.
    fn lent(&mut self, now: Nanos, at: usize, done: Result<(), PolicyError>) {
        let sitter = &mut self.sitters[at];
        let thread = sitter.seat.thread;
        match done {
            // The next look notices that the thread has exited.
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

    /// Time of the scheduling thread's next poll. While a vCPU has a temporary real-time policy,
    /// the next poll is at the beginning of the next slot of 0.5 ms.
    pub(super) fn next(&self, now: Nanos) -> Nanos {
        let slot = Nanos((now.0 / SLICE.0 + 1) * SLICE.0);
        let stand = |sitter: &&Sitter| sitter.lent == Lent::Standing;
        let beside = self.sitters.iter().filter(stand).count() > 1;
        let watched = |sitter: &Sitter| match sitter.lent {
            Lent::Slice(_) => true,
            // If no other vCPU is active, a poll costs more than the time that the vCPU could take
            // from others in a tick. If an event wakes another vCPU, this vCPU must not wait for
            // the tick.
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
            // A slice that becomes due later can wait for the quiet poll, because a wake-up costs
            // more than the work.
            Some(due) if self.may_lend() => due.min(quiet + CreditTerms::TICK),
            _ => quiet,
        };
        // A blocked vCPU without credits or reserve gets its standing lease as soon as it has
        // credits or reserve, and not at a later tick.
        let stands = |sitter: &Sitter| {
            let contract = &sitter.seat.contract;
            let waits = sitter.blocked && sitter.lent == Lent::No && sitter.may_be_lent_to(now);
            (waits && contract.mode == Mode::Periodic).then(|| sitter.stood + contract.deadline)
        };
        let stands = self.sitters.iter().filter_map(stands).min();
        stands.filter(|_| self.may_lend()).map_or(due, |stands| stands.min(due)).max(slot)
    }

    /// Distributes credits to the vCPUs at the end of an epoch (30 ms), and sets the vCPUs' weights
    /// by the credits.
    fn account(&mut self, now: Nanos) {
        let turns = u8::try_from(self.turns_of_others()).unwrap_or(u8::MAX);
        // The counter must be able to exceed the limit.
        let patience = PATIENCE.saturating_mul(turns).min(u8::MAX - 1);
        for sitter in &mut self.sitters {
            // If many vCPUs have work, each vCPU runs only in one of several epochs. Reading a
            // vCPU's state costs more than all other work for the vCPU.
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
                let why = format!("the weight of the vCPU's cgroup cannot be set: {error}");
                sitter.seat.weigher = weight::Weigher::Nice;
                self.report.notes.push(Note::Refused(thread, why));
            }
        }
    }

    /// Receives datagrams about events of VMs, and lends a real-time policy at once to vCPUs that
    /// have work, and credits or a reserve.
    pub(super) fn events(&mut self, now: Nanos) {
        let mut name = [0; 256];
        // The loop is bounded, so that a stream of datagrams cannot keep the thread from polling.
        for _ in 0..64 {
            let Ok(length) = self.parts.events.recv(&mut name) else { return };
            let named = |at: &usize| self.sitters[*at].seat.vm.as_bytes() == &name[..length];
            let whose: Vec<usize> = (0..self.sitters.len()).filter(named).collect();
            // The order is reversed, because the last vCPU takes the place of a vCPU that has
            // exited.
            for at in whose.into_iter().rev() {
                // The VM's frame-arrival counter reports the same event as the datagram, so the
                // counter is read and ignored.
                let _ = self.sitters[at].ear.as_mut().is_some_and(Ear::hear);
                self.event(now, at);
            }
        }
    }

    /// Reads for which VMs frames arrived. Requests wake-ups by the switch for vCPUs that may get a
    /// temporary real-time policy.
    pub(super) fn listen(&mut self, now: Nanos) {
        let waits = self.may_lend() && self.sitters.len() > 1;
        // The order is reversed, because the last vCPU takes the place of a vCPU that has exited.
        for at in (0..self.sitters.len()).rev() {
            if self.sitters[at].ear.as_mut().is_some_and(Ear::hear) {
                self.event(now, at);
            }
            let Some(sitter) = self.sitters.get_mut(at) else { continue };
            // One event is enough, and a vCPU with a temporary policy already runs for the event.
            let wants = waits && sitter.lent == Lent::No && sitter.awaited.is_none();
            if wants && sitter.may_be_lent_to(now) && sitter.ear.as_mut().is_some_and(Ear::summon) {
                self.event(now, at);
            }
        }
    }

    /// Handles an event for vCPU number `at`: counts the event and lends a real-time slice if the
    /// vCPU has credits or a reserve.
    fn event(&mut self, now: Nanos, at: usize) {
        let own = self.cost + SWITCH;
        let sitter = &mut self.sitters[at];
        sitter.tally.events += 1;
        // A blocked vCPU with a standing lease runs without a new temporary policy.
        if sitter.seat.contract.mode == Mode::None || sitter.lent == Lent::Standing {
            return;
        }
        // The vCPU's run time until now was not for this event, and must not count as the answer.
        match sitter.look(now, own) {
            Ok(seen) => self.saw(now, at, seen, false),
            Err(error) => return self.drop_out(now, at, &error),
        }
        let lending = self.may_lend();
        let sitter = &mut self.sitters[at];
        self.queue.wake(now, sitter.vcpu, Cause::Event);
        sitter.blocked = false;
        sitter.awaited.get_or_insert(now);
        // A vCPU with a slice may get another slice, in case the current slice ends before the vCPU
        // has handled the event.
        let may = lending && sitter.may_be_lent_to(now);
        if sitter.lent == Lent::No && may && pays(&self.queue, sitter.vcpu) {
            let done = sitter.lend(&self.parts.table, Lent::Slice(now));
            self.lent(now, at, done);
        }
    }
}

/// Whether the vCPU has credits or a reserve for running before its turn when an event wakes the
/// vCPU.
fn pays(queue: &DoubleQueue, vcpu: VcpuId) -> bool {
    queue.book().class(vcpu) != Class::Over || queue.book().reserve(vcpu) > 0
}

/// Whether a blocked vCPU may run at once when an event wakes the vCPU. A blocked vCPU that has
/// credits or a reserve may always run at once. A periodic vCPU that has no credits and no reserve
/// may run at once only once per deadline, because admission reserved that time.
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

/// Whether the kernel says that the vCPU has no work. If the vCPU has no work, the function reports
/// to the queue that the vCPU is blocked.
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
