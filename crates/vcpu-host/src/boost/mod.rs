//! The boost actuator: a real-time thread on each scheduled processor that lends `SCHED_FIFO`.
//!
//! **Problem.** The kernel's fair class divides a processor well and lets a vCPU wait for 20 ms
//! beside five others. **Source.** VM jitter §III-A; measured, `docs/vcpu.md`. **Quantities.** S:
//! 0.5 ms, a slice and the time between polls. D: a vCPU's deadline.
//!
//! **Rule.** At most every S, and whenever somebody is due or has something of ours:
//! 1. what each vCPU with a deadline ran since the last poll, and since when it waits, is read and
//!    charged; who was lent a slice and did not run has nothing to do;
//! 2. what was lent before is taken back, and who is due ([`DoubleQueue::due`]) is lent a slice;
//!    And while nobody is due, more to who goes on after its slice for an event and has a reserve;
//! 3. every 10 ms an aperiodic vCPU that did not run is asked whether it has work; every 30 ms
//!    those without deadlines are read too, of many some in each, credits are handed out and
//!    weights follow them ([`crate::weight`]);
//! 4. what the switch rang ([`crate::bells`]) is heard; a vCPU that something came for is lent to
//!    at once if it can pay. Before the thread sleeps it leaves word that it wants to be woken.
//!
//! Who is blocked and has credits or a reserve keeps a real-time policy (a standing lease), so that
//! it runs at once when it is woken; once it ran for half a slice and goes on that is over. Its
//! priority is below that of a slice: who is due never waits for it. Of two that are woken the
//! second waits for the first, so while two have one both are looked at in every slot; who waits
//! is owed a slice within its deadline. Where only one has one and does not use it for a tick it is
//! looked at every tick only, as Xen ends a BOOST at ticks.
//!
//! A vCPU that the kernel refuses to lend to is tried again after 1 s, and then after twice as long
//! each time, up to 64 s.
//!
//! A poll that comes late by more than half a slice found the processor taken by others below, and
//! so did the vCPU that was lent to, whatever the kernel says it ran: its slice is lent anew.
//!
//! **Departures.** What wakes a blocked vCPU is not known, so all counts as an event. **Cost.** One
//! wake-up and O(vCPUs with deadlines) reads of a file in procfs each poll; two polls for each
//! slice that is lent.

pub mod seat;
mod turn;

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use penstock_units::{CpuId, Nanos, VcpuId};
use penstock_vcpu::bells::{Bell, SOCKET_PREFIX};
use penstock_vcpu::deadline_queue::SLICE;
use penstock_vcpu::double_queue::DoubleQueue;
use penstock_vcpu::{Cause, VcpuScheduler as _};

use crate::bells::{Bells, Ear};
use crate::clock;
use crate::lease::{Identity, LeaseTable};
use crate::policy::{self, Policy};
use crate::restore;
use crate::schedstat::Schedstat;
use seat::{Seat, Sitter, Tally};

/// Priority of a scheduling thread: above what it lends, below the watchdog.
pub const PRIORITY: u8 = 90;
/// Between two reports.
pub const REPORT: Nanos = Nanos::from_secs(1);

/// The one processor of a scheduling thread, as its queue numbers it.
const CPU: CpuId = CpuId(0);
/// Waits that a report has room for; two turns for each poll are the most there can be.
const WAITS: usize = 8_192;

/// What a scheduling thread is told.
#[derive(Debug)]
pub enum Order {
    /// These are the vCPUs from now on; who gives the order hears when it is done.
    Seats(Vec<Seat>, SyncSender<()>),
    /// These VMs have bells.
    Bells(Arc<Bells>, Vec<(String, Bell)>),
    /// Give everything back and end.
    Stop,
}

/// What a scheduling thread wants to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A vCPU's thread has exited.
    Gone(Identity),
    /// The kernel refused to lend to it, or to weigh it: why.
    Refused(Identity, String),
    /// The kernel refused to lend to it: its cgroup has no real-time budget.
    NoBudget(Identity),
    /// The kernel refused to lend to it before, and does no longer.
    Accepted(Identity),
    /// There is no room for it in the deadline queue.
    NoRoom(Identity),
    /// The thread stood still for so long; what it had lent was taken back meanwhile.
    StoodStill(Nanos),
}

impl Note {
    /// What it means that a thread cannot be read.
    fn lost(thread: Identity, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
            return Self::Gone(thread);
        }
        let remedy = match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "; raise its limit of open files (LimitNOFILE)",
            _ => "",
        };
        Self::Refused(thread, format!("how long it runs cannot be read: {error}{remedy}"))
    }
}

/// One vCPU in a report.
#[derive(Clone, Debug)]
pub struct VcpuReport {
    /// Who.
    pub thread: Identity,
    /// Since it was taken in.
    pub tally: Tally,
    /// Nanoseconds behind its share, or ahead of it below 0.
    pub credit: i64,
    /// Nanoseconds it may run for events although it is ahead.
    pub reserve: i64,
    /// It waits for something.
    pub blocked: bool,
    /// Its weight in millionths of the kernel's default.
    pub parts: u64,
}

/// What a scheduling thread did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its processor.
    pub cpu: u32,
    /// Since it began.
    pub elapsed: Nanos,
    /// Its own time on the processor.
    pub own: Nanos,
    /// The part of it in which it did something, and did not go to sleep or wake.
    pub work: Nanos,
    /// Polls.
    pub polls: u64,
    /// Slots that it came too late for.
    pub skipped: u64,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuReport>,
    /// Waits since the last report: whose, and how long.
    pub waits: Vec<(Identity, Nanos)>,
    /// To be logged.
    pub notes: Vec<Note>,
}

/// What a scheduling thread is made of.
#[derive(Debug)]
pub struct Parts {
    /// Its number in the table of leases.
    pub at: usize,
    /// Its processor.
    pub cpu: u32,
    /// The table.
    pub table: Arc<LeaseTable>,
    /// Whether anything may be lent: there is a watchdog.
    pub lending: Arc<AtomicBool>,
    /// Where it is told what to do.
    pub orders: Receiver<Order>,
    /// Where its reports go; what does not fit is reported later.
    pub reports: SyncSender<Report>,
    /// Where it is told of events: a datagram is the name of a VM.
    pub events: UnixDatagram,
}

/// A scheduling thread.
#[derive(Debug)]
pub struct Boost {
    parts: Parts,
    queue: DoubleQueue,
    sitters: Vec<Sitter>,
    began: Nanos,
    /// How often the watchdog took back what was lent.
    takings: u64,
    /// When it was to poll next.
    due: Nanos,
    /// The poll that is going on came late by more than half a slice.
    late: bool,
    /// Since the last poll somebody ran by what it was lent.
    kept: bool,
    /// How long the last poll took.
    cost: Nanos,
    next_tick: Nanos,
    next_account: Nanos,
    /// Epochs that ended.
    epochs: usize,
    next_report: Nanos,
    report: Report,
}

/// Tells the scheduling threads in `dir` that something came for a VM from outside.
///
/// # Errors
/// No scheduler runs with this directory.
pub fn event(dir: &Path, vm: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let mut told = Err(io::ErrorKind::NotFound.into());
    for entry in std::fs::read_dir(dir)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(SOCKET_PREFIX) {
            told = socket.send_to(vm.as_bytes(), entry.path()).map(|_| ());
        }
    }
    told
}

impl Boost {
    /// Nothing is scheduled yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let now = clock::now();
        Self {
            parts,
            queue: DoubleQueue::new(1),
            sitters: Vec::new(),
            began: now,
            takings: 0,
            due: now,
            late: false,
            kept: false,
            cost: Nanos(0),
            next_tick: now,
            next_account: now,
            epochs: 0,
            next_report: now + REPORT,
            report: Report::default(),
        }
    }

    /// Runs on its processor, with its policy, until it is told to stop.
    ///
    /// # Errors
    /// The kernel refuses the processor or the policy, or the table cannot be written.
    pub fn run(mut self) -> io::Result<()> {
        restore::confine(0, &[self.parts.cpu])?;
        self.parts.events.set_nonblocking(true)?;
        policy::set(0, Policy::Fifo { priority: PRIORITY }).map_err(io::Error::other)?;
        self.due = clock::now();
        let ended = self.turns();
        for sitter in &mut self.sitters {
            sitter.release(&self.parts.table);
        }
        self.parts.table.beat(self.parts.at, Nanos(0))?;
        ended
    }

    fn turns(&mut self) -> io::Result<()> {
        loop {
            let now = clock::now();
            if !self.obey(now) {
                return Ok(());
            }
            self.poll(now);
            self.listen(now);
            let next = self.next(now);
            self.parts.table.beat(self.parts.at, next)?;
            let after = clock::now();
            self.cost = after.saturating_sub(now);
            self.report.work += self.cost;
            self.report.polls += 1;
            self.due = next;
            self.wait(next);
        }
    }

    /// Until the next poll; who is told of an event meanwhile is lent to at once.
    fn wait(&mut self, next: Nanos) {
        let mut asked = false;
        loop {
            let now = clock::now();
            if now >= next {
                if !asked {
                    // Late: what was told meanwhile must not wait until it is in time again.
                    self.events(now);
                }
                self.report.skipped += (now.0 - next.0) / SLICE.0;
                return;
            }
            let left = std::time::Duration::from_nanos(next.0 - now.0);
            let mut fds = [PollFd::new(self.parts.events.as_fd(), PollFlags::POLLIN)];
            asked = true;
            // A signal only makes the wait begin anew.
            if ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None).is_ok_and(|n| n > 0) {
                let now = clock::now();
                self.events(now);
                // Who was lent to just now has to be looked at in the next slot.
                if self.next(now) < next {
                    return;
                }
            }
        }
    }

    /// Does as it is told; whether it goes on.
    fn obey(&mut self, now: Nanos) -> bool {
        loop {
            match self.parts.orders.try_recv() {
                Ok(Order::Seats(seats, done)) => {
                    self.seat(now, seats);
                    // Who gave the order may have stopped waiting.
                    let _ = done.try_send(());
                }
                Ok(Order::Bells(bells, names)) => self.give_ears(&bells, &names),
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Has these vCPUs and no others. Those that were there before go on with their accounts: who
    /// used more than its share owes that still when another VM comes or goes.
    fn seat(&mut self, now: Nanos, seats: Vec<Seat>) {
        let mut before = std::mem::take(&mut self.sitters);
        let by = u8::try_from(self.parts.at).unwrap_or(u8::MAX);
        let queue = std::mem::replace(&mut self.queue, DoubleQueue::new(1));
        for seat in seats {
            let thread = seat.thread;
            let Some(vcpu) = self.admit(now, &seat) else {
                self.report.notes.push(Note::NoRoom(thread));
                continue;
            };
            let known = before.iter().position(|sitter| sitter.seat.thread == thread);
            if let Some(sitter) = known.map(|at| before.swap_remove(at)) {
                self.queue.resume(now, vcpu, &queue, sitter.vcpu);
                let sitter = sitter.moved(seat, vcpu);
                if sitter.awaited.is_some() && !sitter.blocked {
                    self.queue.wake(now, vcpu, Cause::Event);
                }
                self.sitters.push(sitter);
                continue;
            }
            match Sitter::new(seat, vcpu, by) {
                Ok(sitter) => {
                    self.queue.wake(now, vcpu, Cause::Timer);
                    self.sitters.push(sitter);
                }
                Err(error) => {
                    if let Some(vm) = self.queue.book().vm_of(vcpu) {
                        self.queue.remove(now, vm);
                    }
                    self.report.notes.push(Note::lost(thread, &error));
                }
            }
        }
        for mut sitter in before {
            sitter.release(&self.parts.table);
        }
        for sitter in &mut self.sitters {
            sitter.forget(&self.parts.table);
        }
    }

    fn give_ears(&mut self, bells: &Arc<Bells>, names: &[(String, Bell)]) {
        for sitter in &mut self.sitters {
            let named = names.iter().find(|(name, _)| **name == *sitter.seat.vm);
            let named = named.filter(|_| sitter.has_deadline());
            let Some((_, bell)) = named else {
                sitter.ear = None;
                continue;
            };
            // What came since it was heard last must not be lost.
            if !sitter.ear.as_ref().is_some_and(|ear| ear.is_of(bells, *bell)) {
                sitter.ear = Some(Ear::new(Arc::clone(bells), *bell, self.parts.at));
            }
        }
    }

    fn admit(&mut self, now: Nanos, seat: &Seat) -> Option<VcpuId> {
        let vm = self.queue.add(now, &seat.contract.pinned(), &[CPU])?;
        vm.vcpus.first().copied()
    }

    fn send_report(&mut self, now: Nanos) {
        let own = Schedstat::read(Path::new("/proc/thread-self")).map(|stat| stat.ran);
        let book = self.queue.book();
        let vcpu = |sitter: &Sitter| VcpuReport {
            thread: sitter.seat.thread,
            tally: sitter.tally,
            credit: book.credit(sitter.vcpu),
            reserve: book.reserve(sitter.vcpu),
            blocked: sitter.blocked,
            parts: sitter.parts,
        };
        self.report.cpu = self.parts.cpu;
        self.report.elapsed = now.saturating_sub(self.began);
        let own = own.unwrap_or_default().as_nanos();
        self.report.own = Nanos(u64::try_from(own).unwrap_or(0));
        self.report.vcpus = self.sitters.iter().map(vcpu).collect();
        if self.parts.reports.try_send(self.report.clone()).is_ok() {
            self.report.waits.clear();
            self.report.notes.clear();
        }
        self.next_report = now + REPORT;
    }

    fn may_lend(&self) -> bool {
        self.parts.lending.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
