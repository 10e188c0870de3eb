//! The stall watch finds the port that made the worker's thread sleep.
//!
//! # Problem
//!
//! A page fault in a file that a peer shares blocks while the peer punches a hole into the file
//! (`FALLOC_FL_PUNCH_HOLE`). Punching a hole of one GiB takes about 220 ms, and all ports of the
//! worker wait. The kernel does not report that a page fault blocked, nor the address of the fault.
//!
//! # Approach
//!
//! Before code uses a peer's memory, it calls [`enter`] with the number of the peer's port. A timer
//! signals the thread every 10 ms ([`super::Interrupter`]). If a page fault blocks the worker's
//! thread, the thread also gets the timer's signal late. If the time between two signals is long,
//! the signal handler checks whether the thread gave up its core voluntarily in this time. If the
//! thread gave up its core for long, the handler records the port in the memory of which the thread
//! was working. If the kernel or a hypervisor took the core away, the kernel counts no voluntary
//! context switch of the thread.
//!
//! After a batch longer than [`SLEEP_MAX`] without a wait for the core, the worker calls
//! [`culprit`] to find the port that blocked the thread. A process that is stopped by SIGSTOP, the
//! cgroup freezer or a debugger also sleeps. A time in which the whole process was stopped does not
//! count as a sleep of the thread ([`super::witness`]). If the thread waited for a peer's memory,
//! the kernel also counts a page fault. If the kernel counted no page fault while the thread slept,
//! the worker blames no port for the sleep.
//!
//! The timer's signals also reveal waits that are shorter than [`SLEEP_MAX`], by sampling. A signal
//! that was due while the thread slept comes late. The share of late signals during the use of a
//! port's memory is the share of time for which the port blocked the worker ([`Late`]). If at least
//! [`LATE_MAX`] of the hundred signals in a second came late while the worker used one port's
//! memory, the worker stops this port.
//!
//! # Cost
//!
//! The stall watch costs one store each time the worker starts or stops using a port's memory, and
//! one system call per timer signal.

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use penstock_units::{Nanos, PortId};

use super::interrupter::PERIOD_MS;
use super::witness::{WITNESS, Witness};

/// Longest time for which access to a port's memory may block a batch. The worker stops a port if a
/// batch sleeps in the port's memory for longer.
pub const SLEEP_MAX: Nanos = Nanos::from_millis(20);

/// Longest regular gap between two signals, in nanoseconds. If the gap between two timer signals is
/// longer than this constant, the thread was delayed.
pub(super) const GAP: u64 = 3 * Nanos::from_millis(PERIOD_MS).0 / 2;

/// Time between two signals of the timer, in nanoseconds.
const PERIOD: u64 = Nanos::from_millis(PERIOD_MS).0;

/// If a signal comes later than this delay in nanoseconds, the thread slept when the signal was
/// due.
const LATE: u64 = 500_000;

/// Number of timer signals that may come late within [`WINDOW`] while one port's memory is in use.
/// At this number, the worker stops the port. Ten late signals of the hundred signals in a second
/// mean that the port blocked the worker for a tenth of the time.
const LATE_MAX: u64 = 10;

/// Number of timer signals within [`WINDOW`].
const SIGNALS: usize = 100;
/// Length in nanoseconds of the period over which late timer signals of a port are added up: one
/// second.
const WINDOW: u64 = SIGNALS as u64 * PERIOD;

/// Marker of a thread that uses the memory of no port.
const NOBODY: u32 = u32::MAX;

/// Reason for which a port blocked the worker's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The thread slept in a page fault in the port's memory.
    Memory,
    /// The thread slept in a write to the port's call descriptor.
    Call,
    /// The thread did not sleep, but a peer shortened the file behind the port's memory.
    Gone,
}

/// The port that made the worker's thread sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) port: PortId,
    pub(crate) cause: Cause,
    /// Duration of the thread's sleep.
    pub(crate) slept: Nanos,
    /// Another port that may be the cause of the sleep, because the thread was copying from that
    /// port's memory. The value is `None` if the thread was not copying from another port's memory.
    pub(crate) or: Option<PortId>,
}

/// Ring buffer of the timer signals that came late: for each signal, the port in use, the time, and
/// the number of signals that were due. Only the signal handler of one thread accesses this ring
/// buffer. The array is large enough for all timer signals within [`WINDOW`].
struct Late {
    signals: [Cell<(u32, u64, u64)>; SIGNALS],
    next: Cell<usize>,
}

impl Late {
    const fn new() -> Self {
        let signals = [const { Cell::new((NOBODY, 0, 0)) }; SIGNALS];
        Self { signals, next: Cell::new(0) }
    }

    /// Records `due` timer signals that came late while the memory of port `port` was in use. If
    /// the port blocked the thread for too long within the window, returns the blocked time in
    /// nanoseconds and forgets the port's late signals.
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

/// Returns the number of timer signals that were due after time `last` and up to time `now`, and
/// that the kernel delivered late. The timer's signals are due every [`PERIOD`] nanoseconds,
/// beginning at time `first`.
fn late(first: u64, last: u64, now: u64) -> u64 {
    let number = |at: u64| at.saturating_sub(first) / PERIOD;
    let in_time = now.saturating_sub(first) % PERIOD < LATE;
    match number(now) - number(last.min(now)) {
        ..=1 if in_time => 0,
        due => due,
    }
}

/// The stall watch's record of the thread: the port in use, the recent timer signals, and the last
/// sleep. The signal handler interrupts the watched thread between two instructions, so `Cell`
/// fields suffice.
struct Watch {
    /// Number of the port in the memory of which the thread works at present ("port in use").
    /// [`NOBODY`] means that the thread uses no port's memory.
    at: Cell<u32>,
    /// While the thread copies frames from one port to another port, number of the port from which
    /// the frames come.
    source: Cell<u32>,
    /// Whether the thread has read from the memory of the frames' source port ([`read_from`])
    /// during the present copy ([`write_to`]).
    copies: Cell<bool>,
    armed: Cell<bool>,
    /// Time at which the timer's first signal was due, in nanoseconds.
    first: Cell<u64>,
    late: Late,
    /// Time of the timer's last signal, in nanoseconds.
    signal: Cell<u64>,
    /// Page faults and voluntary context switches of the thread, as the kernel counted them at the
    /// last signal.
    used: Cell<Usage>,
    /// The last recorded sleep, interrupted call or loss of memory, or [`NOTHING`] if none was
    /// recorded.
    noted: Cell<Note>,
    /// Duration in nanoseconds of the sleep of which the worker should find the cause with
    /// [`culprit`]. The value is 0 if the worker need not call [`culprit`].
    due: Cell<u64>,
}

/// A recorded event (a sleep, an interrupted call or lost memory), and the port in use at that
/// time.
#[derive(Clone, Copy)]
struct Note {
    at: u32,
    cause: Cause,
    when: u64,
    /// Number of another port that may also have caused the event, or [`NOBODY`].
    or: u32,
    /// Number of the thread's page faults that the kernel had counted before the sleep.
    faults: i64,
}

/// The value of a [`Note`] that contains no event.
const NOTHING: Note = Note { at: NOBODY, cause: Cause::Memory, when: 0, or: NOBODY, faults: 0 };

/// Counts that the kernel keeps for a thread.
#[derive(Clone, Copy)]
struct Usage {
    /// Number of the thread's voluntary context switches.
    switches: i64,
    /// Number of the thread's finished page faults.
    faults: i64,
}

impl Usage {
    const NONE: Self = Self { switches: 0, faults: 0 };

    /// Reads the kernel's counts for the calling thread. Makes one system call, which is allowed in
    /// a signal handler.
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

/// The monotonic clock's time in nanoseconds.
pub(super) fn now() -> u64 {
    let at = clock_gettime(ClockId::CLOCK_MONOTONIC);
    at.map_or(0, |at| u64::try_from(at.num_nanoseconds()).unwrap_or(0))
}

/// Records that the thread uses the memory of `port` from now on.
#[inline(always)]
pub(crate) fn enter(port: PortId) {
    WATCH.with(|watch| watch.at.set(u32::from(port.0)));
    compiler_fence(Ordering::SeqCst);
}

/// Runs the function `what`, which copies frames into the memory of `port`. The frames come from
/// the memory of the port that was in use before the call.
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

/// Runs the function `what`, which reads frames from the source port's memory. The caller is inside
/// a call of [`write_to`].
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

/// Records that the thread uses no port's memory. Until the next call of [`enter`], the worker
/// blames no port for a sleep, for example while the control plane adds ports.
pub(crate) fn leave() {
    WATCH.with(|watch| {
        watch.at.set(NOBODY);
        watch.source.set(NOBODY);
    });
}

/// Records that the thread's last sleep was voluntary, because the thread had no work.
pub(crate) fn rested() {
    leave();
    WATCH.with(|watch| {
        watch.used.set(Usage::now());
        watch.noted.set(NOTHING);
    });
}

/// Starts the watch of the calling thread's sleeps. Returns the time at which the timer's first
/// signal is due.
pub(crate) fn arm() -> Nanos {
    WATCH.with(|watch| {
        let now = now();
        watch.signal.set(now);
        watch.first.set(now + PERIOD);
        watch.used.set(Usage::now());
        watch.armed.set(true);
        Nanos(now + PERIOD)
    })
}

/// Handles a signal of the timer that watches the thread's sleeps. The handler only sets `Cell`
/// values and calls `clock_gettime` and `getrusage`, which are allowed in a signal handler.
pub(crate) fn signal() {
    signal_with(&WITNESS);
}

fn signal_with(witness: &Witness) {
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
        // In a time in which the whole process was stopped, no signal of the timer was due.
        let last = last.saturating_add(witness.silent(last, now));
        let due = late(watch.first.get(), last, now);
        let waited = (due > 0).then(|| watch.late.add(watch.at.get(), now, due)).flatten();
        if let Some(waited) = waited {
            watch.due.set(watch.due.get().max(waited));
        }
        if now.saturating_sub(last) > GAP || waited.is_some() {
            let or = if watch.copies.get() { watch.source.get() } else { NOBODY };
            // The kernel may restart a fault that blocked, and count it only after this signal.
            let (at, faults) = (watch.at.get(), before.faults);
            watch.noted.set(Note { at, cause: Cause::Memory, when: now, or, faults });
        }
    });
}

/// Records that a timer signal interrupted a blocked write to the call descriptor of the port in
/// use.
pub(crate) fn note_call() {
    note(Cause::Call);
}

/// Records that the memory of the port in use no longer exists. Zeroed pages of the switch's own
/// process replace the lost VM memory, so data written to these pages does not reach the VM. The
/// function is called from a signal handler.
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

/// Records that the thread's last work took the time `slept`, although the thread kept its core. If
/// the whole process was stopped for all but less than [`SLEEP_MAX`] of this time, nothing is
/// recorded.
pub(crate) fn took(slept: Nanos) {
    took_beside(&WITNESS, slept);
}

fn took_beside(witness: &Witness, slept: Nanos) {
    let now = now();
    let slept = slept.0.saturating_sub(witness.silent(now.saturating_sub(slept.0), now));
    if slept >= SLEEP_MAX.0 {
        WATCH.with(|watch| watch.due.set(slept));
    }
}

/// Whether an event was recorded for which the worker should call [`culprit`].
#[inline(always)]
pub(crate) fn is_due() -> bool {
    WATCH.with(|watch| watch.due.get() != 0)
}

/// Returns the port that made the thread sleep, or the port that shortened its memory file. The
/// function reports each sleep and each loss of memory only once. Returns `None` if no port is to
/// blame.
pub(crate) fn culprit() -> Option<Found> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Causes a page fault of the calling thread: allocates a block that is too large for the
    /// allocator to reuse, and writes to the block.
    fn fault() {
        let mut fresh = std::hint::black_box(vec![0_u8; 1 << 26]);
        fresh[0] = 1;
        std::hint::black_box(fresh);
    }

    /// Changes the recorded kernel counts as if one page fault had happened since the last signal.
    /// If `switched` is true, one context switch also seems to have happened.
    fn before(switched: bool) {
        WATCH.with(|watch| {
            let used = Usage::now();
            let switches = used.switches - i64::from(switched);
            watch.used.set(Usage { switches, faults: used.faults - 1 });
        });
    }

    /// Simulates that the time between two timer signals was three periods, and that a page fault
    /// happened in this time. If `switched` is true, the thread also seems to have given up its
    /// core voluntarily in this time.
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
        // No port is to blame for a core that was taken away, or for a sleep without work.
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

    #[test]
    fn a_stop_of_the_whole_process_is_nobodys_although_pages_faulted() {
        let stopped = |witness: &Witness| {
            enter(PortId(3));
            WATCH.with(|watch| {
                watch.armed.set(true);
                watch.signal.set(now().saturating_sub(20 * PERIOD));
            });
            before(true);
            signal_with(witness);
            took(SLEEP_MAX);
            who()
        };
        let witness = Witness::new();
        witness.record(now().saturating_sub(21 * PERIOD));
        assert_eq!(stopped(&witness), None, "the witness was stopped, too");
        let witness = Witness::new();
        witness.record(now());
        assert_eq!(stopped(&witness), Some((3, Cause::Memory, None)));
        // The witness was stopped only for a part of the sleep.
        let witness = Witness::new();
        witness.record(now().saturating_sub(3 * PERIOD));
        assert_eq!(stopped(&witness), Some((3, Cause::Memory, None)));
    }

    /// A port's short sleep just before a stop of the process must not be taken for the whole stop.
    #[test]
    fn a_batch_that_a_stop_made_long_is_nobodys_although_somebody_slept_before() {
        let blamed = |witness: &Witness| {
            enter(PortId(3));
            WATCH.with(|watch| {
                watch.armed.set(true);
                watch.signal.set(now().saturating_sub(2 * GAP));
            });
            before(true);
            signal();
            took_beside(witness, Nanos(20 * PERIOD));
            is_due().then(who).flatten()
        };
        let witness = Witness::new();
        witness.record(now().saturating_sub(20 * PERIOD));
        assert_eq!(blamed(&witness), None, "the witness was stopped, too");
        let witness = Witness::new();
        witness.record(now());
        assert_eq!(blamed(&witness), Some((3, Cause::Memory, None)));
    }

    #[test]
    fn a_sleep_without_a_page_fault_is_nobodys() {
        // In the first round, pages of the code itself may cause page faults.
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
        // After a copy, either port may be the cause of a sleep.
        assert_eq!(noted, (by(2, None), by(1, Some(1)), by(2, Some(1))));
        gap(true);
        assert_eq!(who(), by(1, None), "only the source is in use");
    }

    #[test]
    fn who_naps_beside_a_thief_blames_nobody() {
        enter(PortId(4));
        // The thread rests, and then its core is taken away until two signals are due.
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
            // The kernel delivers one signal for all that were due.
            (at(3, 0), at(5, 10), 2),
            (at(3, PERIOD - 1), at(9, PERIOD - 1), 6),
            // No signal was due: this one has another reason.
            (at(3, 0), at(3, PERIOD / 2), 0),
            (0, at(0, 0), 0),
        ] {
            assert_eq!(late(FIRST, last, now), due, "{last} {now}");
        }
    }

    #[test]
    fn waits_of_a_window_are_added_up_by_port() {
        let late = Late::new();
        // A tenth of the time, alternating with another port. A wait of long ago does not count.
        let mut now = 5 * WINDOW;
        assert_eq!(late.add(1, now - WINDOW, LATE_MAX - 1), None);
        for _ in 1..LATE_MAX {
            now += PERIOD;
            assert_eq!((late.add(1, now, 1), late.add(2, now, 1)), (None, None));
        }
        assert_eq!(late.add(1, now, 1), Some(LATE_MAX * PERIOD));
        assert_eq!(late.add(1, now, 1), None, "the sum restarts from zero");
        assert_eq!(late.add(2, now, 1), Some(LATE_MAX * PERIOD));
        // A port that stays below a tenth is never reported.
        for _ in 0..100 {
            now += WINDOW.div_ceil(LATE_MAX - 1);
            assert_eq!(late.add(3, now, 1), None);
        }
    }

    /// Blocks the thread for `ms` milliseconds. Timer signals do not end this wait, as they do not
    /// end a page fault.
    fn waits(ms: i64) {
        use nix::sys::signal::{SigSet, SigmaskHow};
        let mut signals = SigSet::empty();
        signals.add(crate::wake::SIGNAL);
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
        let wait = nix::sys::time::TimeSpec::milliseconds(ms);
        let flags = nix::time::ClockNanosleepFlags::empty();
        nix::time::clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &wait).unwrap();
        before.thread_set_mask().unwrap();
    }

    #[test]
    fn a_port_with_short_waits_without_end_is_found() {
        let _timer = crate::wake::Interrupter::arm().unwrap();
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
        // The thread itself may wait as long as it wants.
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
