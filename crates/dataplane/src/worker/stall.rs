//! Whose memory made the worker's thread sleep.
//!
//! **Problem.** A page fault in a file that a peer shares waits while the peer punches a hole into
//! it (`FALLOC_FL_PUNCH_HOLE`), some 220 ms for a GiB, and all ports of the worker wait with it.
//! The kernel says neither that a fault waited nor where. **Rule.** Who uses a peer's memory says
//! whose it is before it does ([`enter`]). A timer signals the thread every 10 ms
//! ([`super::Interrupter`]); during a fault the signal waits too. A gap between two of them in
//! which the thread gave up its core by itself is noted with the port whose memory it was at: a
//! core that was taken away, by the kernel or by a hypervisor, shows no such switch. The worker
//! asks after a batch that took too long ([`SLEEP_MAX`]) and did not wait for its core meanwhile.
//! A process that is stopped (SIGSTOP, the freezer of its control group, a debugger) sleeps too,
//! but a wait for memory ends with a page fault that the kernel counts: without one it is nobody's.
//! **Shorter waits** are added up by sampling: a signal that was due while the thread slept comes
//! late, so what share of signals comes late over a port is the share of time that it makes the
//! worker wait ([`Late`]). A port over which [`LATE_MAX`] of a second's hundred signals came late
//! is stopped like one that made the worker sleep once for long.
//! **Cost.** One store where a port's memory is entered or left; one system call a signal.

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use penstock_units::{Nanos, PortId};

use super::Worker;
use super::interrupter::PERIOD_MS;
use crate::port::PortQueue;
use crate::tsc::CycleCounter;

/// The longest that a batch may sleep in a peer's memory: such a port is stopped.
pub const SLEEP_MAX: Nanos = Nanos::from_millis(20);

/// A gap between two signals that is none of theirs.
const GAP: u64 = 3 * Nanos::from_millis(PERIOD_MS).0 / 2;

/// Nanoseconds between two signals.
const PERIOD: u64 = Nanos::from_millis(PERIOD_MS).0;

/// A signal that comes later than this, in nanoseconds, was due while the thread slept.
const LATE: u64 = 500_000;

/// How many signals may come late over one port within [`WINDOW`]: a tenth of a worker's time.
const LATE_MAX: u64 = 10;

/// Late signals are added up within a second: so many signals.
const SIGNALS: usize = 100;
const WINDOW: u64 = SIGNALS as u64 * PERIOD;

/// No port's memory.
const NOBODY: u32 = u32::MAX;

/// What made the thread sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its memory.
    Memory,
    /// Its call descriptor.
    Call,
    /// It did not sleep: the file behind its memory has become shorter.
    Gone,
}

/// What is known of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) port: PortId,
    pub(super) cause: Cause,
    /// For how long.
    pub(super) slept: Nanos,
    /// It may as well have been the memory of this port, from which a copy was under way.
    pub(super) or: Option<PortId>,
}

/// Signals that came late: whose memory was used, when the signal came, how many were due by then.
/// The handler of one thread uses it. A window has no more signals than there are places.
struct Late {
    signals: [Cell<(u32, u64, u64)>; SIGNALS],
    next: Cell<usize>,
}

impl Late {
    const fn new() -> Self {
        let signals = [const { Cell::new((NOBODY, 0, 0)) }; SIGNALS];
        Self { signals, next: Cell::new(0) }
    }

    /// Notes `due` late signals. Returns for how long the port made the thread wait within the
    /// window, in nanoseconds, if that is too much; then its account begins anew.
    fn add(&self, port: u32, now: u64, due: u64) -> Option<u64> {
        let next = self.next.get();
        self.signals[next].set((port, now, due));
        self.next.set((next + 1) % self.signals.len());
        let of_port = || {
            let is_recent = |when| now.saturating_sub(when) < WINDOW;
            self.signals.iter().filter(move |signal| {
                let (whose, when, _) = signal.get();
                whose == port && is_recent(when)
            })
        };
        let late: u64 = of_port().map(|signal| signal.get().2).sum();
        if late < LATE_MAX {
            return None;
        }
        of_port().for_each(|signal| signal.set((NOBODY, 0, 0)));
        Some(late * PERIOD)
    }
}

/// How many signals were due after `last` and until `now` while the thread slept, if it did: those
/// that were not handled in time. They are due each [`PERIOD`] from `first` on.
fn late(first: u64, last: u64, now: u64) -> u64 {
    let number = |at: u64| at.saturating_sub(first) / PERIOD;
    let in_time = now.saturating_sub(first) % PERIOD < LATE;
    match number(now) - number(last.min(now)) {
        ..=1 if in_time => 0,
        due => due,
    }
}

/// A thread that sleeps over a port. The signal's handler runs on the same thread, between any two
/// instructions of it, and cells are enough.
struct Watch {
    /// Whose memory is used.
    at: Cell<u32>,
    /// Whose memory the frames of the batch lie in, while they are written to another port.
    source: Cell<u32>,
    /// Within [`write_to`]: more was read than the port's own private copies.
    copies: Cell<bool>,
    armed: Cell<bool>,
    /// When the first signal was due.
    first: Cell<u64>,
    late: Late,
    /// When the last signal came, and what the thread had used by then.
    signal: Cell<u64>,
    used: Cell<Usage>,
    /// What was noted last.
    noted: Cell<Note>,
    /// For how long something slept that is to be looked at, in nanoseconds; 0: nothing did.
    due: Cell<u64>,
}

/// Who was at work when something was noted.
#[derive(Clone, Copy)]
struct Note {
    at: u32,
    cause: Cause,
    when: u64,
    /// Who else it may have been.
    or: u32,
    /// Page faults before it.
    faults: i64,
}

/// Nothing was noted.
const NOTHING: Note = Note { at: NOBODY, cause: Cause::Memory, when: 0, or: NOBODY, faults: 0 };

/// What the kernel counts of a thread.
#[derive(Clone, Copy)]
struct Usage {
    /// How often it gave up its core by itself.
    switches: i64,
    /// Page faults that are done with.
    faults: i64,
}

impl Usage {
    const NONE: Self = Self { switches: 0, faults: 0 };

    /// So far, of the calling thread. One system call, which a signal handler may make.
    fn now() -> Self {
        getrusage(UsageWho::RUSAGE_THREAD).map_or(Self::NONE, |usage| Self {
            switches: usage.voluntary_context_switches(),
            faults: usage.minor_page_faults() + usage.major_page_faults(),
        })
    }
}

thread_local! {
    static WATCH: Watch = const {
        Watch {
            at: Cell::new(NOBODY),
            source: Cell::new(NOBODY),
            copies: Cell::new(false),
            armed: Cell::new(false),
            first: Cell::new(0),
            late: Late::new(),
            signal: Cell::new(0),
            used: Cell::new(Usage::NONE),
            noted: Cell::new(NOTHING),
            due: Cell::new(0),
        }
    };
}

fn now() -> u64 {
    let at = clock_gettime(ClockId::CLOCK_MONOTONIC);
    at.map_or(0, |at| u64::try_from(at.num_nanoseconds()).unwrap_or(0))
}

/// From here on the memory of `port` is used.
#[inline(always)]
pub(crate) fn enter(port: PortId) {
    WATCH.with(|watch| watch.at.set(u32::from(port.0)));
    compiler_fence(Ordering::SeqCst);
}

/// The memory of `port` is used by `what`: it is written to from whosever memory was used before.
#[inline(always)]
pub(crate) fn write_to<T>(port: PortId, what: impl FnOnce() -> T) -> T {
    WATCH.with(|watch| {
        let source = watch.at.replace(u32::from(port.0));
        watch.source.set(source);
        compiler_fence(Ordering::SeqCst);
        let done = what();
        compiler_fence(Ordering::SeqCst);
        watch.at.set(source);
        watch.copies.set(false);
        done
    })
}

/// Within [`write_to`]: `what` uses the memory that is read from.
#[inline(always)]
pub(crate) fn read_from(what: impl FnOnce()) {
    WATCH.with(|watch| {
        watch.copies.set(true);
        let target = watch.at.replace(watch.source.get());
        compiler_fence(Ordering::SeqCst);
        what();
        compiler_fence(Ordering::SeqCst);
        watch.at.set(target);
    });
}

/// Nobody's memory is used any more: ports come and go, and what sleeps is no frame's work.
pub(super) fn leave() {
    WATCH.with(|watch| {
        watch.at.set(NOBODY);
        watch.source.set(NOBODY);
    });
}

/// The thread slept because it wanted to.
pub(super) fn rested() {
    leave();
    WATCH.with(|watch| {
        watch.used.set(Usage::now());
        watch.noted.set(NOTHING);
    });
}

/// The thread is signalled from now on. Returns when for the first time.
pub(super) fn arm() -> Nanos {
    WATCH.with(|watch| {
        let now = now();
        watch.signal.set(now);
        watch.first.set(now + PERIOD);
        watch.used.set(Usage::now());
        watch.armed.set(true);
        Nanos(now + PERIOD)
    })
}

/// The signal came; called by its handler, so: two system calls that may be made there, and cells.
pub(super) fn signal() {
    WATCH.with(|watch| {
        if !watch.armed.get() {
            return;
        }
        let (now, used) = (now(), Usage::now());
        let last = watch.signal.replace(now);
        let before = watch.used.replace(used);
        let slept = used.switches > before.switches;
        if !slept || watch.at.get() == NOBODY {
            return;
        }
        let due = late(watch.first.get(), last, now);
        let waited = (due > 0).then(|| watch.late.add(watch.at.get(), now, due)).flatten();
        if let Some(waited) = waited {
            watch.due.set(watch.due.get().max(waited));
        }
        if now.saturating_sub(last) > GAP || waited.is_some() {
            let or = if watch.copies.get() { watch.source.get() } else { NOBODY };
            // A fault that waited may be taken again, and counted, only behind this signal.
            let (at, faults) = (watch.at.get(), before.faults);
            watch.noted.set(Note { at, cause: Cause::Memory, when: now, or, faults });
        }
    });
}

/// A write to the call descriptor of whose memory is used had to be broken off.
pub(crate) fn note_call() {
    note(Cause::Call);
}

/// Memory that is used is gone, and zeroes of ours are in its place: what is written to them stays.
/// From a signal handler.
pub(crate) fn note_gone() {
    note(Cause::Gone);
}

fn note(cause: Cause) {
    WATCH.with(|watch| {
        if watch.armed.get() && watch.at.get() != NOBODY {
            let (at, when) = (watch.at.get(), now());
            watch.noted.set(Note { at, cause, when, or: NOBODY, faults: 0 });
            watch.due.set(watch.due.get().max(1));
        }
    });
}

/// Something took so long although it had its core.
pub(super) fn took(slept: Nanos) {
    WATCH.with(|watch| watch.due.set(slept.0.max(1)));
}

/// Whether there is something to ask [`culprit`] about.
#[inline(always)]
pub(super) fn is_due() -> bool {
    WATCH.with(|watch| watch.due.get() != 0)
}

/// Who made the thread sleep, by what and for how long; or whose memory is gone. Asked once.
pub(super) fn culprit() -> Option<Found> {
    let (slept, noted) = WATCH.with(|watch| (watch.due.take(), watch.noted.replace(NOTHING)));
    let Note { at, cause, when, or, faults } = noted;
    let since = now().saturating_sub(when);
    let recent = since <= slept.saturating_add(GAP);
    let port = u16::try_from(at).ok().filter(|_| recent)?;
    if cause == Cause::Memory && Usage::now().faults <= faults {
        return None;
    }
    let or = u16::try_from(or).ok().map(PortId);
    Some(Found { port: PortId(port), cause, slept: Nanos(slept), or })
}

impl<C: CycleCounter> Worker<C> {
    /// A batch took far too long and had its core all the while: the port over which it slept is
    /// stopped, here at once and everywhere by its own control side. Where a copy slept and it may
    /// have been either side's memory, neither is; what that sender sends is first taken into
    /// memory of ours from then on, so that the next time there is no doubt.
    #[cold]
    #[inline(never)]
    pub(super) fn stop_sleeper(&mut self) {
        let Some(found) = culprit() else { return };
        if let Some(apart) = found.or.and_then(|port| self.apart.get_mut(port.index()))
            && !*apart
        {
            *apart = true;
            return;
        }
        let Some(slot) = self.ports.get_mut(found.port.index()) else { return };
        let stop = |queue: &mut Box<dyn PortQueue>| queue.stop(found.cause, found.slept);
        let stopped = slot.queues.iter_mut().map(stop).filter(|stopped| *stopped).count();
        if stopped > 0
            && let Some(counters) = &self.port_counters[found.port.index()]
        {
            counters.stopped.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page fault of the calling thread's own: the allocator keeps nothing of this size.
    fn fault() {
        let mut fresh = std::hint::black_box(vec![0_u8; 1 << 26]);
        fresh[0] = 1;
        std::hint::black_box(fresh);
    }

    /// What the thread had used before one more switch, or before none.
    fn before(switched: bool) {
        WATCH.with(|watch| {
            let used = Usage::now();
            let switches = used.switches - i64::from(switched);
            watch.used.set(Usage { switches, faults: used.faults - 1 });
        });
    }

    /// A gap of twice the period between two signals, with a switch or without, and with a page
    /// fault, in a batch that took longer than any may.
    fn gap(switched: bool) {
        WATCH.with(|watch| {
            watch.armed.set(true);
            watch.signal.set(now().saturating_sub(2 * GAP));
        });
        before(switched);
        signal();
        took(SLEEP_MAX);
    }

    fn who() -> Option<(u16, Cause, Option<u16>)> {
        culprit().map(|found| (found.port.0, found.cause, found.or.map(|port| port.0)))
    }

    #[test]
    fn whoever_is_at_work_when_the_thread_sleeps_is_noted_once() {
        enter(PortId(3));
        gap(true);
        assert!(is_due());
        assert_eq!(who(), Some((3, Cause::Memory, None)));
        assert_eq!((who(), is_due()), (None, false));
        // A core that was taken away is nobody's fault, nor is a sleep of one's own.
        gap(false);
        assert_eq!(who(), None);
        leave();
        gap(true);
        assert_eq!(who(), None);
        enter(PortId(3));
        gap(true);
        rested();
        assert_eq!(who(), None);
    }

    /// A stopped process looks as if it slept over the port that was being polled.
    #[test]
    fn a_sleep_without_a_page_fault_is_nobodys() {
        // The first time, the code's own pages may be faulted in.
        let [_, noted] = [(); 2].map(|()| {
            enter(PortId(3));
            WATCH.with(|watch| {
                watch.armed.set(true);
                watch.signal.set(now().saturating_sub(2 * GAP));
                let used = Usage::now();
                watch.used.set(Usage { switches: used.switches - 1, ..used });
            });
            signal();
            took(SLEEP_MAX);
            who()
        });
        assert_eq!(noted, None);
    }

    #[test]
    fn who_is_written_to_is_not_blamed_for_who_is_read_from() {
        enter(PortId(1));
        let noted = write_to(PortId(2), || {
            gap(true);
            let written = who();
            read_from(|| gap(true));
            let read = who();
            gap(true);
            (written, read, who())
        });
        let by = |port, or| Some((port, Cause::Memory, or));
        // Once something is copied, a sleep of the copy may be either's.
        assert_eq!(noted, (by(2, None), by(1, Some(1)), by(2, Some(1))));
        gap(true);
        assert_eq!(who(), by(1, None), "what is left of it");
    }

    #[test]
    fn who_naps_beside_a_thief_blames_nobody() {
        enter(PortId(4));
        // The nap, of its own, and then a core that is taken away until two signals are due.
        WATCH.with(|watch| {
            watch.armed.set(true);
            watch.signal.set(now().saturating_sub(2 * GAP));
        });
        before(true);
        rested();
        enter(PortId(4));
        signal();
        took(SLEEP_MAX);
        assert_eq!(who(), None);
    }

    #[test]
    fn a_signal_is_late_if_it_was_due_in_a_sleep() {
        const FIRST: u64 = 7_000;
        let at = |periods: u64, more: u64| FIRST + periods * PERIOD + more;
        for (last, now, due) in [
            (at(3, 0), at(4, 20_000), 0),
            (at(3, 20_000), at(4, LATE), 1),
            (at(3, 0), at(4, PERIOD - 1), 1),
            // One that was due stands for all.
            (at(3, 0), at(5, 10), 2),
            (at(3, PERIOD - 1), at(9, PERIOD - 1), 6),
            // None was: it was sent for another reason.
            (at(3, 0), at(3, PERIOD / 2), 0),
            (0, at(0, 0), 0),
        ] {
            assert_eq!(late(FIRST, last, now), due, "{last} {now}");
        }
    }

    #[test]
    fn waits_of_a_window_are_added_up_by_port() {
        let late = Late::new();
        // A tenth of the time, in turns with another port and with one that waited long ago.
        let mut now = 5 * WINDOW;
        assert_eq!(late.add(1, now - WINDOW, LATE_MAX - 1), None);
        for _ in 1..LATE_MAX {
            now += PERIOD;
            assert_eq!((late.add(1, now, 1), late.add(2, now, 1)), (None, None));
        }
        assert_eq!(late.add(1, now, 1), Some(LATE_MAX * PERIOD));
        assert_eq!(late.add(1, now, 1), None, "it begins anew");
        assert_eq!(late.add(2, now, 1), Some(LATE_MAX * PERIOD));
        // Less than a tenth goes on for ever.
        for _ in 0..100 {
            now += WINDOW.div_ceil(LATE_MAX - 1);
            assert_eq!(late.add(3, now, 1), None);
        }
    }

    /// A wait that no signal ends, as of a page fault.
    fn waits(ms: i64) {
        use nix::sys::signal::{SigSet, SigmaskHow};
        let mut signals = SigSet::empty();
        signals.add(crate::worker::INTERRUPT_SIGNAL);
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
        let wait = nix::sys::time::TimeSpec::milliseconds(ms);
        let flags = nix::time::ClockNanosleepFlags::empty();
        nix::time::clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &wait).unwrap();
        before.thread_set_mask().unwrap();
    }

    #[test]
    fn a_port_with_short_waits_without_end_is_found() {
        let _timer = crate::worker::Interrupter::arm().unwrap();
        for ms in [3, 15] {
            enter(PortId(6));
            let waits = (0..2_000).take_while(|_| {
                waits(ms);
                fault();
                !is_due()
            });
            let waits = waits.count();
            assert!(waits < 2_000, "never found");
            assert_eq!(who(), Some((6, Cause::Memory, None)), "after {waits} waits of {ms} ms");
        }
        // Of its own it may wait as long as it wants.
        leave();
        (0..20).for_each(|_| waits(15));
        assert!(!is_due());
    }

    #[test]
    fn what_is_long_over_is_not_remembered() {
        enter(PortId(5));
        gap(true);
        WATCH.with(|watch| {
            let noted = watch.noted.get();
            let when = noted.when.saturating_sub(1_000_000_000);
            watch.noted.set(Note { when, ..noted });
        });
        assert_eq!(who(), None);
        for (note, cause) in [(note_call as fn(), Cause::Call), (note_gone, Cause::Gone)] {
            assert!(!is_due());
            note();
            assert!(is_due());
            assert_eq!(who(), Some((5, cause, None)));
        }
    }
}
