//! One vCPU as a scheduling thread sees it: its files, temporary real-time policy, weight and
//! counts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_units::{Nanos, VcpuId};
use penstock_vcpu::deadline_queue::SLICE;
use penstock_vcpu::{Contract, Mode};

use crate::bells::Ear;
use crate::clock;
use crate::lease::{Entry, Identity, LENT, LeaseTable, STANDING};
use crate::policy::{self, Policy, PolicyError};
use crate::schedstat::Schedstat;
use crate::threads;
use crate::weight::Weigher;

/// Slice that the kernel's fair class uses for a vCPU with a deadline. Whenever the scheduling
/// thread wakes, the fair class chooses the next thread again. The fair class prefers threads with
/// a shorter slice.
const SHORT: Nanos = Nanos::from_micros(100);

/// A vCPU that is assigned to a processor, with its scheduling parameters.
#[derive(Clone, Debug)]
pub struct Seat {
    pub vm: Arc<str>,
    pub thread: Identity,
    /// Number of the vCPU's entry in the table of thread policies.
    pub slot: usize,
    /// Scheduling policy of the vCPU's thread before the scheduler managed the thread.
    pub saved: Policy,
    /// Parameters of the vCPU's VM. If the scheduler refused the deadline, the parameters contain
    /// no deadline.
    pub contract: Contract,
    /// Weight of the vCPU without credits, in millionths of the kernel's default weight.
    pub base_ppm: u64,
    /// The vCPU's share of the processor if all vCPUs have work, in millionths.
    pub share_ppm: u64,
    /// Method of setting the vCPU's weight: a nice value or a cgroup's weight.
    pub weigher: Weigher,
}

/// The current temporary real-time policy of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lent {
    No,
    /// The vCPU has a real-time slice, which began at the given time.
    Slice(Nanos),
    /// The vCPU is blocked and keeps a real-time policy (a standing lease), so the vCPU runs at
    /// once when an event wakes the vCPU.
    Standing,
}

impl Lent {
    /// Real-time priority of the vCPU's thread; `None` if the thread has no temporary real-time
    /// policy.
    pub const fn priority(self) -> Option<u8> {
        match self {
            Self::No => None,
            Self::Slice(_) => Some(LENT),
            Self::Standing => Some(STANDING),
        }
    }

    /// Time until which the watchdog does not end the vCPU's temporary real-time policy. 0 if the
    /// vCPU has no such policy.
    pub const fn until(self) -> Nanos {
        match self {
            Self::No => Nanos(0),
            Self::Slice(since) => Nanos(since.0 + SLICE.0 + SLICE.0),
            Self::Standing => Nanos(u64::MAX),
        }
    }
}

/// Counts of one vCPU since the vCPU was assigned to the scheduling thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Total run time of the vCPU.
    pub ran: Nanos,
    /// Number of real-time slices that the vCPU got and used.
    pub boosts: u64,
    /// Number of reported events for the vCPU.
    pub events: u64,
    /// Number of the vCPU's waits that were longer than the deadline plus two real-time slices. The
    /// wait of an aperiodic vCPU starts at an event.
    pub missed: u64,
    /// Longest wait of the vCPU for its processor.
    pub longest: Nanos,
}

/// Activity of a vCPU between two readings of its run time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Run time of the vCPU between the two readings.
    pub ran: Nanos,
    /// Time for which the vCPU waited before it ran. If the vCPU ran several times between two
    /// readings, `waited` is the mean of the vCPU's waits. `waited` is `None` if the vCPU did not
    /// start to run.
    pub waited: Option<Nanos>,
    /// Time at which the vCPU last ran. All time since the last reading counts as waiting, except
    /// run time and finished waits. If the vCPU was blocked since the last reading, `left` is
    /// earlier than the vCPU's true last run.
    pub left: Nanos,
}

/// Time of the next attempt after the kernel refused a temporary real-time policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    again: Nanos,
    pause: Nanos,
}

impl Refused {
    /// Pause between the first refusal of a temporary real-time policy and the next attempt.
    const SOON: Nanos = Nanos::from_secs(1);
    /// Longest pause between a refusal of a temporary real-time policy and the next attempt.
    const LATE: Nanos = Nanos::from_secs(64);
}

#[derive(Debug)]
pub(crate) struct Sitter {
    pub seat: Seat,
    pub vcpu: VcpuId,
    /// Number of the scheduling thread that schedules the vCPU.
    by: u8,
    pub lent: Lent,
    pub tally: Tally,
    /// Number of consecutive real-time slices in which the vCPU perhaps did not run.
    pub unsure: u8,
    /// Whether the vCPU ran in the current real-time slice, so that the slice is already counted.
    pub used: bool,
    /// Whether the scheduling thread has reported to its queue that the vCPU is blocked.
    pub blocked: bool,
    /// Whether an event woke the blocked vCPU, and the vCPU still waits because other vCPUs with
    /// temporary real-time policies run first.
    pub waits_behind: bool,
    /// Time at which the vCPU last ran with a standing lease (the real-time policy of a blocked
    /// vCPU).
    pub stood: Nanos,
    /// Time of an event for the vCPU, if the vCPU has not run since the event.
    pub awaited: Option<Nanos>,
    /// Reader of the VM's frame-arrival counter (bell); `None` if the VM has no counter.
    pub ear: Option<Ear>,
    /// Number of consecutive epochs of 30 ms in which the vCPU did not run.
    pub idle: u8,
    /// Time of the next attempt, if the kernel refused the last temporary real-time policy.
    pub refused: Option<Refused>,
    /// The last weight of the vCPU that was set, in millionths of the kernel's default weight.
    pub parts: u64,
    /// Whether the vCPU had work when its weight was last set.
    weighed: bool,
    stat: File,
    state: File,
    last: Schedstat,
    looked: Nanos,
    /// Duration of the vCPU's current wait at the last read of its run time.
    waits: Nanos,
    /// Whether the vCPU was running at the last read of its run time.
    ran_on: bool,
    nice: i8,
    /// Function that sets a thread's policy, which is [`policy::set`] except in tests.
    set: fn(u32, Policy) -> Result<(), PolicyError>,
}

impl Sitter {
    /// Opens the procfs files of the vCPU's thread, which the scheduling thread reads at each poll.
    pub fn new(seat: Seat, vcpu: VcpuId, by: u8) -> io::Result<Self> {
        let Identity { pid, tid, .. } = seat.thread;
        let task = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        Self::open(&task, seat, (vcpu, by), clock::now(), policy::set)
    }

    /// Like [`Self::new`], for a thread with procfs files in the directory `task`.
    pub fn open(
        task: &Path,
        seat: Seat,
        (vcpu, by): (VcpuId, u8),
        now: Nanos,
        set: fn(u32, Policy) -> Result<(), PolicyError>,
    ) -> io::Result<Self> {
        let stat = File::open(task.join("schedstat"))?;
        let state = File::open(task.join("stat"))?;
        let last = Schedstat::read_from(&stat)?;
        let nice = nice_of(seat.saved);
        Ok(Self {
            seat,
            vcpu,
            by,
            lent: Lent::No,
            unsure: 0,
            used: false,
            tally: Tally::default(),
            blocked: false,
            waits_behind: false,
            stood: Nanos(0),
            awaited: None,
            ear: None,
            idle: 0,
            refused: None,
            parts: 0,
            weighed: true,
            stat,
            state,
            last,
            looked: now,
            waits: Nanos(0),
            ran_on: false,
            nice,
            set,
        })
    }

    /// Gives new parameters to a vCPU that is already scheduled. The vCPU keeps an unanswered
    /// event. If the new parameters have a deadline, the vCPU also keeps the reader of the VM's
    /// frame-arrival counter.
    pub fn moved(self, seat: Seat, vcpu: VcpuId) -> Self {
        // The scheduling thread may lend a policy at once. The recorded refusal stays, because the
        // service may read the report of the refusal after this change. The next lent policy must
        // therefore be reported as accepted.
        let refused = self.refused.map(|_| Refused { again: Nanos(0), pause: Refused::SOON });
        // From now on, the weight of the cgroup may replace the nice value, so the thread gets its
        // original nice value.
        let nice = match seat.weigher {
            Weigher::Nice => self.nice,
            Weigher::Group { .. } => nice_of(seat.saved),
        };
        let ear = self.ear.filter(|_| seat.contract.mode.is_real_time());
        Self { seat, vcpu, ear, refused, nice, parts: 0, ..self }
    }

    /// Whether the scheduling thread may try to lend a real-time policy to the vCPU. After the
    /// kernel refused a temporary real-time policy, the scheduling thread pauses for 1 s to 64 s
    /// before the next attempt.
    pub fn may_be_lent_to(&self, now: Nanos) -> bool {
        self.refused.is_none_or(|refused| now >= refused.again)
    }

    /// Records that the kernel refused a temporary real-time policy for the vCPU.
    pub fn refuse(&mut self, now: Nanos) {
        let twice = |before: Refused| Nanos(before.pause.0 * 2).min(Refused::LATE);
        let pause = self.refused.map_or(Refused::SOON, twice);
        self.refused = Some(Refused { again: now + pause, pause });
    }

    pub fn has_deadline(&self) -> bool {
        self.seat.contract.mode.is_real_time()
    }

    /// Whether the scheduling thread must read the vCPU's state at each tick (10 ms), to notice
    /// that the vCPU is blocked. The scheduling thread reads only aperiodic vCPUs at ticks (every
    /// 10 ms), because an aperiodic vCPU becomes due only after an event.
    pub fn waits_for_events(&self) -> bool {
        self.seat.contract.mode == Mode::Aperiodic && !self.blocked
    }

    /// Reads the vCPU's run time until `now`. `own` is the time that the scheduling thread itself
    /// uses for a poll. The vCPU cannot run during a poll.
    pub fn look(&mut self, now: Nanos, own: Nanos) -> io::Result<Seen> {
        let stat = Schedstat::read_from(&self.stat)?;
        let since = |new: std::time::Duration, old| {
            Nanos(u64::try_from(new.saturating_sub(old).as_nanos()).unwrap_or(u64::MAX))
        };
        let (ran, waited) = (since(stat.ran, self.last.ran), since(stat.waited, self.last.waited));
        let turns = stat.turns - self.last.turns;
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        // The kernel counts a wait when the wait ends. If the vCPU ran since the last read, the
        // current wait began after that read, otherwise before that read.
        let open = self.waits + elapsed;
        let waits = open.saturating_sub(ran).saturating_sub(waited);
        let most = if ran > Nanos(0) { elapsed.saturating_sub(ran) } else { open };
        self.waits = waits.min(most);
        let waits = self.waits;
        // A vCPU that ran at the last look and continued afterwards waited only for the scheduling
        // thread.
        let ours = u64::from(self.ran_on);
        let came = turns > ours || (turns > 0 && waited > own);
        let waited = came.then(|| Nanos(waited.0 / turns.saturating_sub(ours).max(1)));
        self.ran_on = ran > Nanos(0) && waits <= own;
        self.tally.ran += ran;
        self.last = stat;
        if let Some(waited) = waited {
            self.tally.longest = self.tally.longest.max(waited);
            // An aperiodic vCPU has a deadline for events only, and may otherwise wait for its
            // turn.
            let since = match self.seat.contract.mode {
                Mode::Periodic => Some(waited),
                Mode::Aperiodic => self.awaited.map(|at| now.saturating_sub(at + ran)),
                Mode::None | Mode::Driver => None,
            };
            let late = since.is_some_and(|wait| wait > self.seat.contract.deadline + SLICE + SLICE);
            self.tally.missed += u64::from(late);
        }
        if ran > Nanos(0) {
            (self.idle, self.awaited) = (0, None);
        }
        Ok(Seen { ran, waited, left: now.saturating_sub(waits) })
    }

    /// Whether the vCPU runs or waits for a processor; `None` if the vCPU's thread has exited.
    pub fn is_runnable(&self) -> Option<bool> {
        // The state follows the name, which has at most 64 bytes.
        let mut bytes = [0; 128];
        let length = self.state.read_at(&mut bytes, 0).ok()?;
        match threads::state(&String::from_utf8_lossy(bytes.get(..length)?))? {
            'Z' | 'X' => None,
            letter => Some(letter == 'R'),
        }
    }

    fn enter(&self, table: &LeaseTable, until: Nanos) -> io::Result<()> {
        let Seat { thread, saved, slot, .. } = self.seat;
        table.put(slot, &Entry { thread, saved, by: self.by, until })
    }

    /// Lends the real-time policy `how` to the vCPU's thread.
    pub fn lend(&mut self, table: &LeaseTable, how: Lent) -> Result<(), PolicyError> {
        (self.used, self.waits_behind) = (false, false);
        let had = std::mem::replace(&mut self.lent, how);
        let Some(priority) = how.priority().filter(|_| how.priority() != had.priority()) else {
            return Ok(());
        };
        let (tid, policy) = (self.seat.thread.tid, Policy::Fifo { priority });
        // Without an entry, no other process could end the temporary policy.
        let entered = self.enter(table, how.until());
        let entered = entered.map_err(|source| PolicyError::Refused { tid, policy, source });
        entered.and_then(|()| (self.set)(tid, policy)).inspect_err(|_| {
            self.lent = had;
            let _ = self.enter(table, had.until());
        })
    }

    /// Counts the vCPU's current real-time slice as used. Each real-time slice is counted at most
    /// once.
    pub fn count_slice(&mut self) {
        self.tally.boosts += u64::from(!std::mem::replace(&mut self.used, true));
    }

    /// Ends the temporary real-time policy of the vCPU's thread, if any.
    pub fn take_back(&mut self, table: &LeaseTable) -> Result<(), PolicyError> {
        if std::mem::replace(&mut self.lent, Lent::No) == Lent::No {
            return Ok(());
        }
        let done = (self.set)(self.seat.thread.tid, self.fair());
        // If the write fails, the entry stays and only causes an unnecessary check by the watchdog.
        let _ = self.enter(table, Nanos(0));
        done
    }

    /// The policy of the vCPU's thread while the vCPU has no temporary real-time policy: the fair
    /// class, with the vCPU's weight.
    fn fair(&self) -> Policy {
        match self.seat.saved {
            Policy::Fair { slice, .. } => {
                let slice = if self.has_deadline() { SHORT } else { slice };
                Policy::Fair { nice: self.nice, slice }
            }
            other => other,
        }
    }

    /// Sets the vCPU's weight if the weight has changed. Returns an error if the weight of the
    /// vCPU's cgroup cannot be set.
    pub fn weigh(&mut self, parts: u64) -> io::Result<()> {
        let works = !self.blocked;
        if (parts, works) == (self.parts, self.weighed) {
            return Ok(());
        }
        self.weighed = works;
        let first = std::mem::replace(&mut self.parts, parts) == 0;
        let Some(nice) = self.seat.weigher.apply(parts, works)? else { return Ok(()) };
        // If a vCPU runs once in several epochs, its credits and thus its weight would change with
        // each run. The function therefore ignores a change of a single nice step, which later
        // credits correct.
        if !first && !self.has_deadline() && nice.abs_diff(self.nice) <= 1 {
            return Ok(());
        }
        let changed = std::mem::replace(&mut self.nice, nice) != nice;
        if changed && self.lent == Lent::No {
            // The next poll notices that a thread has exited.
            let _ = (self.set)(self.seat.thread.tid, self.fair());
        }
        Ok(())
    }

    /// Forgets the vCPU's temporary real-time policy and weight, because the vCPU is new or the
    /// watchdog has restored the vCPU's thread.
    pub fn forget(&mut self, table: &LeaseTable) {
        (self.lent, self.waits_behind) = (Lent::No, false);
        self.parts = 0;
        // If the entry cannot be written, the thread gets its original policy, which also ends a
        // temporary policy.
        let entered = self.enter(table, Nanos(0)).is_ok();
        let policy = if entered { self.fair() } else { self.seat.saved };
        let _ = (self.set)(self.seat.thread.tid, policy);
    }

    /// Restores the original policy of the vCPU's thread.
    pub fn release(&mut self, table: &LeaseTable) {
        let _ = (self.set)(self.seat.thread.tid, self.seat.saved);
        let _ = table.clear(self.seat.slot, self.seat.thread);
        self.lent = Lent::No;
    }
}

fn nice_of(policy: Policy) -> i8 {
    if let Policy::Fair { nice, .. } = policy { nice } else { 0 }
}
