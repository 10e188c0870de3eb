//! The boost actuator: a real-time thread on each scheduled processor, which lends `SCHED_FIFO`.
//!
//! # Problem
//! The kernel's fair class divides a processor well, but beside five other vCPUs it lets a vCPU
//! wait for 20 ms.
//!
//! # Source
//! VM jitter §III-A; measurements in `docs/reference/vcpu.md`.
//!
//! # Quantities
//! S is 0.5 ms: a slice, and the time between polls. D is a vCPU's deadline.
//!
//! # Approach
//! The thread polls at most every S, and whenever a vCPU is due or has a loan:
//! 1. For each vCPU with a deadline, read how long the vCPU ran since the last poll and since when
//!    it waits, and charge the vCPU. A vCPU that was lent a slice and did not run has nothing to
//!    do.
//! 2. Take back the earlier loans, and lend a slice to the due vCPU ([`DoubleQueue::due`]). If none
//!    is due, lend more to a vCPU that continues after its slice for an event and has a reserve.
//! 3. Every 10 ms, check whether an aperiodic vCPU that did not run has work. Every 30 ms, also
//!    read the vCPUs without deadlines. If there are many, read a part of them each time. Then hand
//!    out credits, and set weights by the credits ([`crate::weight`]).
//! 4. Read which bells the switch rang ([`crate::bells`]). If frames arrived for a vCPU that can
//!    pay, it gets a loan at once. Before the thread sleeps, it requests wake-ups.
//!
//! # Standing leases
//! A blocked vCPU with credits or a reserve keeps a real-time policy (a standing lease), so that it
//! runs at once when it is woken. The lease ends if the vCPU continues after it ran for half a
//! slice. The lease's priority is below that of a slice, so a due vCPU never waits for it. If two
//! vCPUs with standing leases are woken, the second waits for the first. For this reason, both are
//! examined in every slot while two vCPUs have standing leases, and the waiting one is owed a slice
//! within its deadline. A single vCPU with a standing lease that it does not use for a tick is
//! examined only every tick. Xen likewise ends a BOOST at ticks.
//!
//! # Refusals and delays
//! If the kernel refuses to lend to a vCPU, the thread retries after 1 s, and then after twice as
//! long each time, up to 64 s. If a poll comes late by more than half a slice, a hypervisor below
//! took the processor. The vCPU with the loan lost time too, even if the kernel counts it as run.
//! For this reason, the vCPU's slice is lent again.
//!
//! # Departures
//! The event that wakes a blocked vCPU is unknown, so every wake-up counts as an event.
//!
//! # Cost
//! Each poll takes one wake-up and O(vCPUs with deadlines) reads of a file in procfs. Each slice
//! that is lent takes two polls.

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

/// Priority of a scheduling thread. It is above the priorities that the thread lends and below the
/// watchdog's.
pub const PRIORITY: u8 = 90;
/// Time between two reports.
pub const REPORT: Nanos = Nanos::from_secs(1);

/// Number of the thread's single processor in its queue.
const CPU: CpuId = CpuId(0);
/// Number of waits for which a report has room. Each poll causes at most two turns.
const WAITS: usize = 8_192;

/// An order to a scheduling thread.
#[derive(Debug)]
pub enum Order {
    /// Schedule these vCPUs from now on, and confirm when it is done.
    Seats(Vec<Seat>, SyncSender<()>),
    /// These VMs have bells.
    Bells(Arc<Bells>, Vec<(String, Bell)>),
    /// Take back all loans and end.
    Stop,
}

/// An event that a scheduling thread wants to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A vCPU's thread has exited.
    Gone(Identity),
    /// The kernel refused a loan or a weight for the thread, with this error.
    Refused(Identity, String),
    /// The kernel refused a loan for the thread, because its cgroup has no real-time budget.
    NoBudget(Identity),
    /// The kernel accepts loans to the thread again, after a refusal.
    Accepted(Identity),
    /// The deadline queue has no room for the thread.
    NoRoom(Identity),
    /// The scheduling thread stalled for this long, and its loans were taken back meanwhile.
    StoodStill(Nanos),
}

impl Note {
    /// The note for a thread that cannot be read.
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

/// State of one vCPU in a report.
#[derive(Clone, Debug)]
pub struct VcpuReport {
    pub thread: Identity,
    /// Counts since the vCPU was added.
    pub tally: Tally,
    /// Nanoseconds that the vCPU is behind its share; negative if it is ahead.
    pub credit: i64,
    /// Nanoseconds that the vCPU may run for events although it is ahead.
    pub reserve: i64,
    /// Whether the vCPU waits for an event.
    pub blocked: bool,
    /// Weight in millionths of the kernel's default.
    pub parts: u64,
}

/// Report of a scheduling thread.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub cpu: u32,
    /// Time since the thread began.
    pub elapsed: Nanos,
    /// The thread's own time on the processor.
    pub own: Nanos,
    /// The part of `own` in which the thread worked, without going to sleep and waking.
    pub work: Nanos,
    pub polls: u64,
    /// Number of slots for which the thread came too late.
    pub skipped: u64,
    pub vcpus: Vec<VcpuReport>,
    /// Waits since the last report: the vCPU and the length.
    pub waits: Vec<(Identity, Nanos)>,
    /// Events to be logged.
    pub notes: Vec<Note>,
}

/// Inputs of a scheduling thread.
#[derive(Debug)]
pub struct Parts {
    /// Number of the thread in the table of leases.
    pub at: usize,
    pub cpu: u32,
    pub table: Arc<LeaseTable>,
    /// Whether loans are allowed, which requires a running watchdog.
    pub lending: Arc<AtomicBool>,
    /// Receives the orders of the service.
    pub orders: Receiver<Order>,
    /// Sends the reports. If the channel is full, they are sent later.
    pub reports: SyncSender<Report>,
    /// Receives events: a datagram is the name of a VM.
    pub events: UnixDatagram,
}

/// The state of a scheduling thread.
#[derive(Debug)]
pub struct Boost {
    parts: Parts,
    queue: DoubleQueue,
    sitters: Vec<Sitter>,
    began: Nanos,
    /// How often the watchdog has taken back the thread's loans.
    takings: u64,
    /// Planned time of the next poll.
    due: Nanos,
    /// Whether the present poll is late by more than half a slice.
    late: bool,
    /// Whether a vCPU ran on a loan since the last poll.
    kept: bool,
    /// Duration of the last poll.
    cost: Nanos,
    next_tick: Nanos,
    next_account: Nanos,
    /// Number of epochs that have ended.
    epochs: usize,
    next_report: Nanos,
    report: Report,
}

/// Reports to the scheduling threads in `dir` that an external event came for a VM. This starts the
/// VM's deadline.
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
    /// A thread without vCPUs.
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

    /// Runs on its processor, with its policy, until it is ordered to stop.
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

    /// Waits until the next poll. If an event comes for a vCPU meanwhile, the vCPU gets a loan at
    /// once.
    fn wait(&mut self, next: Nanos) {
        let mut asked = false;
        loop {
            let now = clock::now();
            if now >= next {
                if !asked {
                    // The poll is late, and events must not wait until polls are on time again.
                    self.events(now);
                }
                self.report.skipped += (now.0 - next.0) / SLICE.0;
                return;
            }
            let left = std::time::Duration::from_nanos(next.0 - now.0);
            let mut fds = [PollFd::new(self.parts.events.as_fd(), PollFlags::POLLIN)];
            asked = true;
            // A signal only restarts the wait.
            if ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None).is_ok_and(|n| n > 0) {
                let now = clock::now();
                self.events(now);
                // A vCPU that just got a loan must be examined in the next slot.
                if self.next(now) < next {
                    return;
                }
            }
        }
    }

    /// Executes pending orders. Returns false if the thread must stop.
    fn obey(&mut self, now: Nanos) -> bool {
        loop {
            match self.parts.orders.try_recv() {
                Ok(Order::Seats(seats, done)) => {
                    self.seat(now, seats);
                    // The sender of the order may have stopped waiting.
                    let _ = done.try_send(());
                }
                Ok(Order::Bells(bells, names)) => self.give_ears(&bells, &names),
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Schedules exactly these vCPUs. A vCPU that was scheduled before keeps its account. If it
    /// used more than its share, it thus still owes the excess when another VM comes or goes.
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
            // If the bell was rung since the last read, the ring must not be lost.
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
