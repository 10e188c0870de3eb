//! One vCPU from the point of view of a scheduling thread.

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

/// Custom slice of a vCPU with a deadline. Whenever the scheduling thread wakes, the fair class
/// picks again, and a thread with a shorter slice is picked sooner.
const SHORT: Nanos = Nanos::from_micros(100);

/// A vCPU with its parameters on one processor.
#[derive(Clone, Debug)]
pub struct Seat {
    pub vm: Arc<str>,
    pub thread: Identity,
    /// Number of the vCPU's entry in the table of leases.
    pub slot: usize,
    /// Policy of the thread before it was managed.
    pub saved: Policy,
    /// Parameters of the vCPU's VM. If the deadline was refused, they contain no deadline.
    pub contract: Contract,
    /// Weight in millionths of the kernel's default.
    pub base_ppm: u64,
    /// Share of the processor if all vCPUs have work, in millionths.
    pub share_ppm: u64,
    /// Way to set the vCPU's weight.
    pub weigher: Weigher,
}

/// The present loan of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lent {
    No,
    /// The vCPU has a slice, which was lent at this time.
    Slice(Nanos),
    /// The vCPU is blocked and has a standing lease, so it will run at once when it is woken.
    Standing,
}

impl Lent {
    /// The real-time priority of the loan.
    pub const fn priority(self) -> Option<u8> {
        match self {
            Self::No => None,
            Self::Slice(_) => Some(LENT),
            Self::Standing => Some(STANDING),
        }
    }

    /// Time until which the watchdog does not take the loan back.
    pub const fn until(self) -> Nanos {
        match self {
            Self::No => Nanos(0),
            Self::Slice(since) => Nanos(since.0 + SLICE.0 + SLICE.0),
            Self::Standing => Nanos(u64::MAX),
        }
    }
}

/// Counts of one vCPU since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Time that the vCPU ran.
    pub ran: Nanos,
    /// Number of slices that the vCPU got and used.
    pub boosts: u64,
    /// Number of events for the vCPU.
    pub events: u64,
    /// Number of waits longer than the deadline plus two slices. For an aperiodic vCPU a wait
    /// counts from an event.
    pub missed: u64,
    /// Longest wait of the vCPU for its processor.
    pub longest: Nanos,
}

/// Activity of a vCPU since the last look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Time that the vCPU ran.
    pub ran: Nanos,
    /// How long the vCPU had waited before it ran; the mean if the vCPU ran several times. `None`
    /// if the vCPU did not start to run.
    pub waited: Option<Nanos>,
    /// Time at which the vCPU last ran. All time except run time and finished waits counts as the
    /// present wait. If the vCPU was blocked meanwhile, the value is thus too early.
    pub left: Nanos,
}

/// Retry state after a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    again: Nanos,
    pause: Nanos,
}

impl Refused {
    /// Pause after the first refusal.
    const SOON: Nanos = Nanos::from_secs(1);
    /// Longest pause.
    const LATE: Nanos = Nanos::from_secs(64);
}

#[derive(Debug)]
pub(crate) struct Sitter {
    pub seat: Seat,
    pub vcpu: VcpuId,
    /// Number of the vCPU's scheduling thread.
    by: u8,
    pub lent: Lent,
    pub tally: Tally,
    /// Number of slices in a row for which it is unknown whether the vCPU ran.
    pub unsure: u8,
    /// Whether the vCPU ran in the present slice. If it did, the slice is counted.
    pub used: bool,
    /// Whether the queue knows that the vCPU is blocked.
    pub blocked: bool,
    /// Whether the vCPU was woken under a standing lease and waits behind other vCPUs with loans.
    pub waits_behind: bool,
    /// Time at which the vCPU last used its standing lease.
    pub stood: Nanos,
    /// Time of an event after which the vCPU has not run yet.
    pub awaited: Option<Nanos>,
    /// View of the VM's bell; `None` if the VM has no bell.
    pub ear: Option<Ear>,
    /// Number of epochs in which the vCPU was not seen to run.
    pub idle: u8,
    /// Retry state if the kernel refused the last loan.
    pub refused: Option<Refused>,
    /// The last weight that was set, in millionths.
    pub parts: u64,
    /// Whether the vCPU had work when the weight was set.
    weighed: bool,
    stat: File,
    state: File,
    last: Schedstat,
    looked: Nanos,
    /// Duration of the vCPU's present wait at the last read.
    waits: Nanos,
    /// Whether the vCPU ran at the last read.
    ran_on: bool,
    nice: i8,
    /// [`policy::set`], or a test's replacement for it.
    set: fn(u32, Policy) -> Result<(), PolicyError>,
}

impl Sitter {
    /// Opens the thread's files in procfs, which each poll reads.
    pub fn new(seat: Seat, vcpu: VcpuId, by: u8) -> io::Result<Self> {
        let Identity { pid, tid, .. } = seat.thread;
        let task = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        Self::open(&task, seat, (vcpu, by), clock::now(), policy::set)
    }

    /// Like [`Self::new`], for a thread whose files are in the directory `task`.
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

    /// Gives the thread new parameters. An unanswered event and the state of the bell are kept.
    pub fn moved(self, seat: Seat, vcpu: VcpuId) -> Self {
        // A loan may be tried at once. The refusal is kept all the same, because the service may
        // learn of it after this change: the next loan must then be reported as accepted.
        let refused = self.refused.map(|_| Refused { again: Nanos(0), pause: Refused::SOON });
        // From now on, the vCPU's cgroup may be weighed instead of the thread, so the thread's own
        // nice value is reset.
        let nice = match seat.weigher {
            Weigher::Nice => self.nice,
            Weigher::Group { .. } => nice_of(seat.saved),
        };
        let ear = self.ear.filter(|_| seat.contract.mode.is_real_time());
        Self { seat, vcpu, ear, refused, nice, parts: 0, ..self }
    }

    /// Whether a loan may be tried: the kernel accepted the last loan, or the pause after a refusal
    /// is over.
    pub fn may_be_lent_to(&self, now: Nanos) -> bool {
        self.refused.is_none_or(|refused| now >= refused.again)
    }

    /// Records that the kernel refused a loan.
    pub fn refuse(&mut self, now: Nanos) {
        let twice = |before: Refused| Nanos(before.pause.0 * 2).min(Refused::LATE);
        let pause = self.refused.map_or(Refused::SOON, twice);
        self.refused = Some(Refused { again: now + pause, pause });
    }

    pub fn has_deadline(&self) -> bool {
        self.seat.contract.mode.is_real_time()
    }

    /// Whether the vCPU's state must be read. This is necessary if only an event makes the vCPU due
    /// and the vCPU is not known to be blocked.
    pub fn waits_for_events(&self) -> bool {
        self.seat.contract.mode == Mode::Aperiodic && !self.blocked
    }

    /// Reads how long the vCPU ran until `now`. `own` is the time for which the scheduling thread
    /// itself kept the vCPU from running.
    pub fn look(&mut self, now: Nanos, own: Nanos) -> io::Result<Seen> {
        let stat = Schedstat::read_from(&self.stat)?;
        let since = |new: std::time::Duration, old| {
            Nanos(u64::try_from(new.saturating_sub(old).as_nanos()).unwrap_or(u64::MAX))
        };
        let (ran, waited) = (since(stat.ran, self.last.ran), since(stat.waited, self.last.waited));
        let turns = stat.turns - self.last.turns;
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        // The kernel counts a wait when it ends. If the vCPU ran since the last read, the present
        // wait began after that read, otherwise before it.
        let open = self.waits + elapsed;
        let waits = open.saturating_sub(ran).saturating_sub(waited);
        let most = if ran > Nanos(0) { elapsed.saturating_sub(ran) } else { open };
        self.waits = waits.min(most);
        let waits = self.waits;
        // A vCPU that ran until the last look and continued afterwards waited only for the
        // scheduling thread.
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

    /// Whether the vCPU runs or waits for a processor; `None` if its thread is gone.
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

    /// Gives the vCPU the real-time policy of a loan.
    pub fn lend(&mut self, table: &LeaseTable, how: Lent) -> Result<(), PolicyError> {
        (self.used, self.waits_behind) = (false, false);
        let had = std::mem::replace(&mut self.lent, how);
        let Some(priority) = how.priority().filter(|_| how.priority() != had.priority()) else {
            return Ok(());
        };
        let (tid, policy) = (self.seat.thread.tid, Policy::Fifo { priority });
        // Without an entry no other process could take the loan back.
        let entered = self.enter(table, how.until());
        let entered = entered.map_err(|source| PolicyError::Refused { tid, policy, source });
        entered.and_then(|()| (self.set)(tid, policy)).inspect_err(|_| {
            self.lent = had;
            let _ = self.enter(table, had.until());
        })
    }

    /// Counts the present slice, in which the vCPU ran.
    pub fn count_slice(&mut self) {
        self.tally.boosts += u64::from(!std::mem::replace(&mut self.used, true));
    }

    /// Takes the loan back.
    pub fn take_back(&mut self, table: &LeaseTable) -> Result<(), PolicyError> {
        if std::mem::replace(&mut self.lent, Lent::No) == Lent::No {
            return Ok(());
        }
        let done = (self.set)(self.seat.thread.tid, self.fair());
        // An entry without a loan only causes an unnecessary check by the watchdog.
        let _ = self.enter(table, Nanos(0));
        done
    }

    /// The vCPU's policy while it has no loan: fair, with its weight.
    fn fair(&self) -> Policy {
        match self.seat.saved {
            Policy::Fair { slice, .. } => {
                let slice = if self.has_deadline() { SHORT } else { slice };
                Policy::Fair { nice: self.nice, slice }
            }
            other => other,
        }
    }

    /// Sets the vCPU's weight if it differs from the present one. An error concerns the cgroup.
    pub fn weigh(&mut self, parts: u64) -> io::Result<()> {
        let works = !self.blocked;
        if (parts, works) == (self.parts, self.weighed) {
            return Ok(());
        }
        self.weighed = works;
        let first = std::mem::replace(&mut self.parts, parts) == 0;
        let Some(nice) = self.seat.weigher.apply(parts, works)? else { return Ok(()) };
        // If a vCPU runs once in several epochs, its credit swings with each run, and its weight
        // would follow. For this reason a single step of nice is omitted; the next credits correct
        // it.
        if !first && !self.has_deadline() && nice.abs_diff(self.nice) <= 1 {
            return Ok(());
        }
        let changed = std::mem::replace(&mut self.nice, nice) != nice;
        if changed && self.lent == Lent::No {
            // The next poll notices a thread that has gone.
            let _ = (self.set)(self.seat.thread.tid, self.fair());
        }
        Ok(())
    }

    /// Resets the vCPU's state. Called if the vCPU is new or the watchdog has restored it.
    pub fn forget(&mut self, table: &LeaseTable) {
        (self.lent, self.waits_behind) = (Lent::No, false);
        self.parts = 0;
        // If no entry could be written, the policy is not changed, but a loan is taken back all the
        // same.
        let entered = self.enter(table, Nanos(0)).is_ok();
        let policy = if entered { self.fair() } else { self.seat.saved };
        let _ = (self.set)(self.seat.thread.tid, policy);
    }

    /// Restores the thread's original policy.
    pub fn release(&mut self, table: &LeaseTable) {
        let _ = (self.set)(self.seat.thread.tid, self.seat.saved);
        let _ = table.clear(self.seat.slot, self.seat.thread);
        self.lent = Lent::No;
    }
}

fn nice_of(policy: Policy) -> i8 {
    if let Policy::Fair { nice, .. } = policy { nice } else { 0 }
}
