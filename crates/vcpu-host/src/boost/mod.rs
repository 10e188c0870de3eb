//! Lets a vCPU run before its turn. On each scheduled processor, a real-time thread (the
//! *scheduling thread*) gives the policy `SCHED_FIFO` to the threads of vCPUs for short times.
//!
//! # Problem
//! The kernel's fair class divides a processor well, but a vCPU beside five others may wait for 20
//! ms.
//!
//! # Source
//! The source is the paper VM jitter, §III-A. `docs/reference/vcpu.md` has measurements.
//!
//! # Terms
//! | Term | Meaning |
//! |---|---|
//! | S, slice | 0.5 ms: the run time that a vCPU gets at once, and the time between two polls |
//! | D, deadline | longest time for which a vCPU of the VM should wait |
//! | due | a vCPU is due if it must get a slice now to meet its deadline |
//! | temporary policy | real-time policy for one slice, or for a blocked vCPU (a standing lease) |
//! | credits | processor time by which a vCPU is behind its share |
//! | reserve | processor time that a vCPU may use for events even if it has no credits |
//! | can pay | a vCPU can pay if it has credits or a reserve |
//! | tick, epoch | 10 ms, 30 ms |
//!
//! # Approach
//! The scheduling thread polls at most every 0.5 ms (S). While a vCPU has a temporary real-time
//! policy, and when a vCPU is due, the scheduling thread always polls. At a poll, the scheduling
//! thread does the following steps:
//! 1. For each vCPU with a deadline, read the vCPU's run time since the last poll, and the time
//!    since which the vCPU waits. Charge the run time to the vCPU's credits. If a vCPU had a
//!    real-time slice and did not run, the vCPU has no work.
//! 2. End the earlier temporary real-time policies, and lend a slice to the vCPU that is due
//!    ([`DoubleQueue::due`]). If no vCPU is due, a vCPU that has not finished its work for an event
//!    may get another real-time slice. The additional real-time slice counts against the vCPU's
//!    reserve.
//! 3. At each tick (10 ms), check whether aperiodic vCPUs that did not run have work.
//! 4. In each epoch (30 ms), also read the vCPUs without deadlines, or a part of these vCPUs if
//!    there are many. At the end of each epoch (30 ms), distribute credits, and set weights by the
//!    credits ([`crate::weight`]).
//! 5. Read the frame-arrival counters (bells), to learn for which VMs the switch has new frames
//!    ([`crate::bells`]). If the counter of a VM has changed, frames have arrived for the VM. If a
//!    vCPU of the VM has credits or a reserve, lend a real-time slice to the vCPU at once. Before
//!    the scheduling thread sleeps, it asks the switch for a wake-up when the next frame arrives.
//!
//! # Standing leases
//! If a blocked vCPU has credits or a reserve, the vCPU keeps a real-time policy, the standing
//! lease. With a standing lease, a blocked vCPU runs at once when an event wakes the vCPU.
//! - A standing lease (the real-time policy of a blocked vCPU) ends if the vCPU runs for more than
//!   half a slice.
//! - A standing lease (the real-time policy of a blocked vCPU) has a lower priority than a slice,
//!   so due vCPUs do not wait for vCPUs with a standing lease.
//! - If events wake two vCPUs that have real-time policies while blocked, the second vCPU waits for
//!   the first vCPU. A woken vCPU that waits for another vCPU must get a real-time slice within its
//!   own deadline. To notice the waiting vCPU, the scheduling thread polls every 0.5 ms while
//!   several vCPUs have standing leases (real-time policies of blocked vCPUs).
//! - If only one vCPU has a standing real-time lease and the vCPU does not run for 10 ms, the
//!   scheduling thread reads this vCPU only every 10 ms. In Xen's credit scheduler, a BOOST ends at
//!   ticks.
//!
//! # Refusals and delays
//! If the kernel refuses a temporary real-time policy for a vCPU, the scheduling thread retries
//! after 1 s. Each further refusal doubles the pause before the next attempt, up to 64 s.
//!
//! If a poll is late by more than half a real-time slice, a hypervisor below this machine took the
//! processor. During the delay, the vCPU with the temporary real-time policy did not run, although
//! the kernel counts the delay as the vCPU's run time. After a late poll, the scheduling thread
//! therefore lends the real-time slice again.
//!
//! # Departures
//! The scheduling thread does not know which event wakes a blocked vCPU, so every wake-up counts as
//! an event.
//!
//! # Cost
//! Each poll takes one wake-up, and one read of a procfs file for each vCPU with a deadline. Each
//! real-time slice that the scheduling thread lends takes two polls.

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

/// Real-time priority of a scheduling thread: above the priorities that the scheduling thread
/// lends, below the watchdog's priority.
pub const PRIORITY: u8 = 90;
/// Interval between two reports of a scheduling thread.
pub const REPORT: Nanos = Nanos::from_secs(1);

/// Number of the processor in the scheduling thread's queue. The scheduling thread's queue has only
/// one processor.
const CPU: CpuId = CpuId(0);
/// Maximum number of waits in a report.
const WAITS: usize = 8_192;

/// An order of the service to a scheduling thread.
#[derive(Debug)]
pub enum Order {
    /// Orders the scheduling thread to schedule exactly the listed vCPUs from now on, and to
    /// confirm the order on the channel.
    Seats(Vec<Seat>, SyncSender<()>),
    /// Gives the scheduling thread the file of frame-arrival counters (bells), and the number of
    /// each VM's counter.
    Bells(Arc<Bells>, Vec<(String, Bell)>),
    /// Orders the scheduling thread to end all temporary real-time policies and to exit.
    Stop,
}

/// An event of a scheduling thread that the service logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The thread of a scheduled vCPU has exited.
    Gone(Identity),
    /// The kernel refused a temporary real-time policy or a weight for the vCPU's thread. The
    /// string in `Refused` contains the kernel's error.
    Refused(Identity, String),
    /// The kernel refused a temporary real-time policy for the vCPU's thread, because the thread's
    /// cgroup has no real-time budget.
    NoBudget(Identity),
    /// The kernel accepted a temporary real-time policy for the vCPU's thread after an earlier
    /// refusal.
    Accepted(Identity),
    /// The deadline queue has no room for the vCPU.
    NoRoom(Identity),
    /// The scheduling thread stalled for the given time. The watchdog may have ended the thread's
    /// temporary real-time policies.
    StoodStill(Nanos),
}

impl Note {
    /// Converts the error of a read from a thread's procfs files to a note for the service.
    fn lost(thread: Identity, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
            return Self::Gone(thread);
        }
        let remedy = match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (LimitNOFILE)",
            _ => "",
        };
        Self::Refused(thread, format!("the vCPU's run time cannot be read: {error}{remedy}"))
    }
}

/// State of one vCPU in a scheduling thread's report.
#[derive(Clone, Debug)]
pub struct VcpuReport {
    pub thread: Identity,
    /// Counters of the vCPU since the vCPU was assigned to the scheduling thread.
    pub tally: Tally,
    /// Nanoseconds by which the vCPU is behind its share; negative if the vCPU is ahead of its
    /// share.
    pub credit: i64,
    /// Nanoseconds that the vCPU may run for events although the vCPU is ahead of its share.
    pub reserve: i64,
    /// Whether the vCPU has no work and waits for an event.
    pub blocked: bool,
    /// The vCPU's weight in millionths of the kernel's default weight.
    pub parts: u64,
}

/// Report of a scheduling thread to the service.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub cpu: u32,
    /// Time since the scheduling thread began.
    pub elapsed: Nanos,
    /// Processor time that the scheduling thread itself used.
    pub own: Nanos,
    /// Processor time of the scheduling thread, without the time for falling asleep and waking up.
    pub work: Nanos,
    pub polls: u64,
    /// Number of slots of 0.5 ms by which the scheduling thread's polls were late.
    pub skipped: u64,
    pub vcpus: Vec<VcpuReport>,
    /// The vCPU and the length of each wait since the last report.
    pub waits: Vec<(Identity, Nanos)>,
    /// Events since the last report that the service logs.
    pub notes: Vec<Note>,
}

/// Number, processor, channels and shared table of a scheduling thread.
#[derive(Debug)]
pub struct Parts {
    /// Number of the scheduling thread in the table of thread policies.
    pub at: usize,
    pub cpu: u32,
    pub table: Arc<LeaseTable>,
    /// Whether the scheduling thread may lend real-time policies, which requires a running
    /// watchdog.
    pub lending: Arc<AtomicBool>,
    /// Channel from which the scheduling thread receives the orders of the service.
    pub orders: Receiver<Order>,
    /// Channel through which the scheduling thread sends reports to the service. If the channel is
    /// full, the scheduling thread sends a report later.
    pub reports: SyncSender<Report>,
    /// Socket for events. Each datagram is the name of a VM for which an event occurred.
    pub events: UnixDatagram,
}

/// The state of a scheduling thread, with its queue and its vCPUs.
#[derive(Debug)]
pub struct Boost {
    parts: Parts,
    queue: DoubleQueue,
    sitters: Vec<Sitter>,
    began: Nanos,
    /// Number of times that the watchdog has ended the scheduling thread's temporary real-time
    /// policies.
    takings: u64,
    /// Planned time of the scheduling thread's next poll.
    due: Nanos,
    /// Whether the current poll is late by more than half a real-time slice.
    late: bool,
    /// Whether a vCPU with a temporary real-time policy ran since the last poll. Other vCPUs may
    /// have waited for a vCPU with a temporary real-time policy.
    kept: bool,
    /// Duration of the scheduling thread's last poll.
    cost: Nanos,
    next_tick: Nanos,
    next_account: Nanos,
    /// Number of epochs of 30 ms that have ended.
    epochs: usize,
    next_report: Nanos,
    report: Report,
}

/// Reports an external event for a VM to the scheduling threads of `dir`. The event starts the VM's
/// deadline.
///
/// # Errors
/// Returns an error if no scheduler runs with the directory `dir`.
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
    /// Creates the state of a scheduling thread without vCPUs.
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

    /// Schedules vCPUs until [`Order::Stop`]. The calling thread moves to its processor and gets a
    /// real-time policy.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the processor or the policy, or if the table of
    /// thread policies cannot be written.
    pub fn run(mut self) -> io::Result<()> {
        restore::confine(0, &[self.parts.cpu]).map_err(|error| unusable(&error))?;
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

    /// Waits until the time of the scheduling thread's next poll. If an event occurs for a vCPU
    /// during the wait, the vCPU gets a temporary real-time policy at once.
    fn wait(&mut self, next: Nanos) {
        let mut asked = false;
        loop {
            let now = clock::now();
            if now >= next {
                if !asked {
                    // The poll is late. Events must not wait until polls are on time again.
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
                // A vCPU that just got a temporary real-time policy must be examined in the next
                // slot.
                if self.next(now) < next {
                    return;
                }
            }
        }
    }

    /// Executes pending orders of the service. Returns false if the scheduling thread must stop.
    fn obey(&mut self, now: Nanos) -> bool {
        loop {
            match self.parts.orders.try_recv() {
                Ok(Order::Seats(seats, done)) => {
                    self.seat(now, seats);
                    // The sender of the order may no longer wait for the confirmation.
                    let _ = done.try_send(());
                }
                Ok(Order::Bells(bells, names)) => self.give_ears(&bells, &names),
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Replaces the list of vCPUs that the scheduling thread schedules. A vCPU that the scheduling
    /// thread already schedules keeps its credits. A vCPU that used more than its share thus owes
    /// the excess even after another VM starts or ends.
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
            // Frames that arrived since the last read must not be lost, so the reader of an
            // unchanged counter stays.
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

/// Returns the error of a thread that the kernel does not move to its processor, with the remedy.
fn unusable(error: &io::Error) -> io::Error {
    let why = format!(
        "the CPU is offline, or this process may not use it ({error}); name another CPU in [vcpu] \
         `cpus`"
    );
    io::Error::new(error.kind(), why)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
