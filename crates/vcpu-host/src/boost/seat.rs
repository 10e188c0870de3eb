//! One vCPU as a scheduling thread sees it.

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

/// Custom slice of a vCPU with a deadline: whenever the scheduling thread wakes, the fair class
/// picks anew, and who has the shorter slice is picked sooner.
const SHORT: Nanos = Nanos::from_micros(100);

/// A vCPU and its terms on one processor.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Name of its VM.
    pub vm: Arc<str>,
    /// Its thread.
    pub thread: Identity,
    /// Its entry in the table of leases.
    pub slot: usize,
    /// How it was scheduled before.
    pub saved: Policy,
    /// What its VM was promised; of a VM that was refused its deadline, what is left.
    pub contract: Contract,
    /// Its weight in millionths of the kernel's default.
    pub base_ppm: u64,
    /// Its part of the processor when all have work.
    pub share_ppm: u64,
    /// By what its weight is set.
    pub weigher: Weigher,
}

/// What a vCPU has of a scheduling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lent {
    /// Nothing.
    No,
    /// A slice, since then.
    Slice(Nanos),
    /// It is blocked, and will run at once when it is woken.
    Standing,
}

impl Lent {
    /// The real-time priority that goes with it.
    pub const fn priority(self) -> Option<u8> {
        match self {
            Self::No => None,
            Self::Slice(_) => Some(LENT),
            Self::Standing => Some(STANDING),
        }
    }

    /// Until when it is not taken back by others.
    pub const fn until(self) -> Nanos {
        match self {
            Self::No => Nanos(0),
            Self::Slice(since) => Nanos(since.0 + SLICE.0 + SLICE.0),
            Self::Standing => Nanos(u64::MAX),
        }
    }
}

/// Numbers of one vCPU since it was taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// It ran for so long.
    pub ran: Nanos,
    /// Slices it was lent and used.
    pub boosts: u64,
    /// Events that came for it.
    pub events: u64,
    /// Waits longer than its deadline and two slices; of an aperiodic one, from an event on.
    pub missed: u64,
    /// The longest wait for its processor.
    pub longest: Nanos,
}

/// What happened since it was looked at last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// It ran for so long.
    pub ran: Nanos,
    /// It came to run, and had waited for so long; of several times, the mean.
    pub waited: Option<Nanos>,
    /// When it ran last, if it did: what is neither run nor finished waiting is the present wait.
    /// A time too early if it was blocked meanwhile.
    pub left: Nanos,
}

/// When one that was refused is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    again: Nanos,
    pause: Nanos,
}

impl Refused {
    /// After the first refusal.
    const SOON: Nanos = Nanos::from_secs(1);
    /// At the longest.
    const LATE: Nanos = Nanos::from_secs(64);
}

#[derive(Debug)]
pub(crate) struct Sitter {
    pub seat: Seat,
    pub vcpu: VcpuId,
    /// Number of the scheduling thread it sits at.
    by: u8,
    pub lent: Lent,
    pub tally: Tally,
    /// Slices of its in a row of which it is not known whether it ran.
    pub unsure: u8,
    /// It ran in the slice that it has: that one is counted.
    pub used: bool,
    /// The core was told that it is blocked.
    pub blocked: bool,
    /// It was woken, has a standing lease, and waits behind others that run by what they were lent.
    pub waits_behind: bool,
    /// When a standing lease of it was used last.
    pub stood: Nanos,
    /// An event came then, and it did not run since.
    pub awaited: Option<Nanos>,
    /// What the switch says of its VM, if that has a bell.
    pub ear: Option<Ear>,
    /// Epochs since it was seen to run.
    pub idle: u8,
    /// The kernel refused to lend to it, last time it was tried.
    pub refused: Option<Refused>,
    /// Last weight that was set.
    pub parts: u64,
    /// It had work when that was set.
    weighed: bool,
    stat: File,
    state: File,
    last: Schedstat,
    looked: Nanos,
    /// For how long it had been waiting then.
    waits: Nanos,
    /// It ran at the last look.
    ran_on: bool,
    nice: i8,
    /// [`policy::set`], or what a test has for it.
    set: fn(u32, Policy) -> Result<(), PolicyError>,
}

impl Sitter {
    /// Opens what is read at every poll.
    pub fn new(seat: Seat, vcpu: VcpuId, by: u8) -> io::Result<Self> {
        let Identity { pid, tid, .. } = seat.thread;
        let task = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        Self::open(&task, seat, (vcpu, by), clock::now(), policy::set)
    }

    /// The same of a thread whose files are in the directory `task`.
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

    /// The same thread on new terms. An event that it did not answer yet is not forgotten, nor how
    /// far its bell was heard.
    pub fn moved(self, seat: Seat, vcpu: VcpuId) -> Self {
        let refused = None;
        // Its cgroup may be weighed from now on, and not it: what was reckoned for it is over.
        let nice = match seat.weigher {
            Weigher::Nice => self.nice,
            Weigher::Group { .. } => nice_of(seat.saved),
        };
        let ear = self.ear.filter(|_| seat.contract.mode.is_real_time());
        Self { seat, vcpu, ear, refused, nice, parts: 0, ..self }
    }

    /// Whether the kernel took what was lent last, or may be asked again.
    pub fn may_be_lent_to(&self, now: Nanos) -> bool {
        self.refused.is_none_or(|refused| now >= refused.again)
    }

    /// The kernel refused to lend to it.
    pub fn refuse(&mut self, now: Nanos) {
        let twice = |before: Refused| Nanos(before.pause.0 * 2).min(Refused::LATE);
        let pause = self.refused.map_or(Refused::SOON, twice);
        self.refused = Some(Refused { again: now + pause, pause });
    }

    pub fn has_deadline(&self) -> bool {
        self.seat.contract.mode.is_real_time()
    }

    /// Only an event makes it due, and it is not known to be blocked: that has to be asked.
    pub fn waits_for_events(&self) -> bool {
        self.seat.contract.mode == Mode::Aperiodic && !self.blocked
    }

    /// Reads how long it ran until `now`. `own` is how long the scheduling thread itself kept it
    /// from running.
    pub fn look(&mut self, now: Nanos, own: Nanos) -> io::Result<Seen> {
        let stat = Schedstat::read_from(&self.stat)?;
        let since = |new: std::time::Duration, old| {
            Nanos(u64::try_from(new.saturating_sub(old).as_nanos()).unwrap_or(u64::MAX))
        };
        let (ran, waited) = (since(stat.ran, self.last.ran), since(stat.waited, self.last.waited));
        let turns = stat.turns - self.last.turns;
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        // The kernel counts a wait when it ends, so the present one began before the last look, or
        // else, if it ran since, after that.
        let open = self.waits + elapsed;
        let waits = open.saturating_sub(ran).saturating_sub(waited);
        let most = if ran > Nanos(0) { elapsed.saturating_sub(ran) } else { open };
        self.waits = waits.min(most);
        let waits = self.waits;
        // Who ran until the last look and went on after it did not wait for anybody but us.
        let ours = u64::from(self.ran_on);
        let came = turns > ours || (turns > 0 && waited > own);
        let waited = came.then(|| Nanos(waited.0 / turns.saturating_sub(ours).max(1)));
        self.ran_on = ran > Nanos(0) && waits <= own;
        self.tally.ran += ran;
        self.last = stat;
        if let Some(waited) = waited {
            self.tally.longest = self.tally.longest.max(waited);
            // An aperiodic one has a deadline for events, and may wait for its turn else.
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

    /// Whether it has work: it runs or waits for a processor. `None`: it is gone.
    pub fn is_runnable(&self) -> Option<bool> {
        // The state comes behind the name, which has at most 64 bytes.
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

    /// Gives it a real-time policy.
    pub fn lend(&mut self, table: &LeaseTable, how: Lent) -> Result<(), PolicyError> {
        (self.used, self.waits_behind) = (false, false);
        let had = std::mem::replace(&mut self.lent, how);
        let Some(priority) = how.priority().filter(|_| how.priority() != had.priority()) else {
            return Ok(());
        };
        let (tid, policy) = (self.seat.thread.tid, Policy::Fifo { priority });
        // What stands nowhere nobody else could take back.
        let entered = self.enter(table, how.until());
        let entered = entered.map_err(|source| PolicyError::Refused { tid, policy, source });
        entered.and_then(|()| (self.set)(tid, policy)).inspect_err(|_| {
            self.lent = had;
            let _ = self.enter(table, had.until());
        })
    }

    /// It ran in what it was lent.
    pub fn count_slice(&mut self) {
        self.tally.boosts += u64::from(!std::mem::replace(&mut self.used, true));
    }

    /// Takes it back.
    pub fn take_back(&mut self, table: &LeaseTable) -> Result<(), PolicyError> {
        if std::mem::replace(&mut self.lent, Lent::No) == Lent::No {
            return Ok(());
        }
        let done = (self.set)(self.seat.thread.tid, self.fair());
        // One that says more than there is has the watchdog look once for nothing.
        let _ = self.enter(table, Nanos(0));
        done
    }

    /// How it is scheduled while it has nothing of ours but its weight.
    fn fair(&self) -> Policy {
        match self.seat.saved {
            Policy::Fair { slice, .. } => {
                let slice = if self.has_deadline() { SHORT } else { slice };
                Policy::Fair { nice: self.nice, slice }
            }
            other => other,
        }
    }

    /// Sets its weight, unless it has that one. The error is one of its cgroup.
    pub fn weigh(&mut self, parts: u64) -> io::Result<()> {
        let works = !self.blocked;
        if (parts, works) == (self.parts, self.weighed) {
            return Ok(());
        }
        self.weighed = works;
        let first = std::mem::replace(&mut self.parts, parts) == 0;
        let Some(nice) = self.seat.weigher.apply(parts, works)? else { return Ok(()) };
        // Who runs once in several epochs has a credit that goes up and down by what it runs then,
        // and its weight would follow. What a step of nice leaves undone is in the next credits.
        if !first && !self.has_deadline() && nice.abs_diff(self.nice) <= 1 {
            return Ok(());
        }
        let changed = std::mem::replace(&mut self.nice, nice) != nice;
        if changed && self.lent == Lent::No {
            // A thread that is gone by now is found out at the next look.
            let _ = (self.set)(self.seat.thread.tid, self.fair());
        }
        Ok(())
    }

    /// It is new, or the watchdog put it back as it was: nothing of ours holds.
    pub fn forget(&mut self, table: &LeaseTable) {
        (self.lent, self.waits_behind) = (Lent::No, false);
        self.parts = 0;
        // What stands nowhere is not changed, but what was lent is taken back all the same.
        let entered = self.enter(table, Nanos(0)).is_ok();
        let policy = if entered { self.fair() } else { self.seat.saved };
        let _ = (self.set)(self.seat.thread.tid, policy);
    }

    /// Gives it back as it was found.
    pub fn release(&mut self, table: &LeaseTable) {
        let _ = (self.set)(self.seat.thread.tid, self.seat.saved);
        let _ = table.clear(self.seat.slot, self.seat.thread);
        self.lent = Lent::No;
    }
}

fn nice_of(policy: Policy) -> i8 {
    if let Policy::Fair { nice, .. } = policy { nice } else { 0 }
}
