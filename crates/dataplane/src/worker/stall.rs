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
//! **Cost.** One store where a port's memory is entered or left; one system call a signal.

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use penstock_units::{Nanos, PortId};

use super::interrupter::PERIOD_MS;

/// The longest that a batch may sleep in a peer's memory: such a port is stopped.
pub const SLEEP_MAX: Nanos = Nanos::from_millis(20);

/// A gap between two signals that is none of theirs.
const GAP: u64 = 3 * Nanos::from_millis(PERIOD_MS).0 / 2;

/// No port's memory.
const NOBODY: u32 = u32::MAX;

/// What made the thread sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its memory.
    Memory,
    /// Its call descriptor.
    Call,
}

/// A thread that sleeps over a port. The signal's handler runs on the same thread, between any two
/// instructions of it, and cells are enough.
struct Watch {
    /// Whose memory is used.
    at: Cell<u32>,
    /// Whose memory the frames of the batch lie in, while they are written to another port.
    source: Cell<u32>,
    armed: Cell<bool>,
    /// When the last signal came, and how often the thread had given up its core by then.
    signal: Cell<u64>,
    switches: Cell<i64>,
    /// Who was noted last, what for, and when.
    noted: Cell<(u32, Cause, u64)>,
}

thread_local! {
    static WATCH: Watch = const {
        Watch {
            at: Cell::new(NOBODY),
            source: Cell::new(NOBODY),
            armed: Cell::new(false),
            signal: Cell::new(0),
            switches: Cell::new(0),
            noted: Cell::new((NOBODY, Cause::Memory, 0)),
        }
    };
}

fn now() -> u64 {
    let at = clock_gettime(ClockId::CLOCK_MONOTONIC);
    at.map_or(0, |at| u64::try_from(at.num_nanoseconds()).unwrap_or(0))
}

/// How often the thread gave up its core by itself.
fn switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
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
        done
    })
}

/// Within [`write_to`]: `what` uses the memory that is read from.
#[inline(always)]
pub(crate) fn read_from(what: impl FnOnce()) {
    WATCH.with(|watch| {
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
    WATCH.with(|watch| watch.switches.set(switches()));
}

/// The thread is signalled from now on.
pub(super) fn arm() {
    WATCH.with(|watch| {
        watch.signal.set(now());
        watch.switches.set(switches());
        watch.armed.set(true);
    });
}

/// The signal came; called by its handler, so: two system calls that may be made there, and cells.
pub(super) fn signal() {
    WATCH.with(|watch| {
        if !watch.armed.get() {
            return;
        }
        let (now, switches) = (now(), switches());
        let gap = now.saturating_sub(watch.signal.replace(now));
        let slept = switches > watch.switches.replace(switches);
        if gap > GAP && slept && watch.at.get() != NOBODY {
            watch.noted.set((watch.at.get(), Cause::Memory, now));
        }
    });
}

/// A write to the call descriptor of whose memory is used had to be broken off.
pub(crate) fn note_call() {
    WATCH.with(|watch| watch.noted.set((watch.at.get(), Cause::Call, now())));
}

/// Whether [`note_call`] was called and nobody asked [`culprit`] since.
pub(super) fn waited_for_call() -> bool {
    WATCH.with(|watch| matches!(watch.noted.get(), (at, Cause::Call, _) if at != NOBODY))
}

/// Who made the thread sleep within the last `within`, and by what. Asked once.
pub(super) fn culprit(within: Nanos) -> Option<(PortId, Cause)> {
    let (at, cause, when) = WATCH.with(|watch| watch.noted.replace((NOBODY, Cause::Memory, 0)));
    let since = now().saturating_sub(when);
    let recent = since <= within.0.saturating_add(GAP);
    let port = u16::try_from(at).ok().filter(|_| recent)?;
    Some((PortId(port), cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gap of twice the period between two signals, with a switch or without.
    fn gap(switched: bool) {
        WATCH.with(|watch| {
            watch.armed.set(true);
            watch.signal.set(now().saturating_sub(2 * GAP));
            watch.switches.set(switches() - i64::from(switched));
        });
        signal();
    }

    #[test]
    fn whoever_is_at_work_when_the_thread_sleeps_is_noted_once() {
        enter(PortId(3));
        gap(true);
        assert_eq!(culprit(SLEEP_MAX), Some((PortId(3), Cause::Memory)));
        assert_eq!(culprit(SLEEP_MAX), None);
        // A core that was taken away is nobody's fault, nor is a sleep of one's own.
        gap(false);
        assert_eq!(culprit(SLEEP_MAX), None);
        leave();
        gap(true);
        assert_eq!(culprit(SLEEP_MAX), None);
    }

    #[test]
    fn who_is_written_to_is_not_blamed_for_who_is_read_from() {
        enter(PortId(1));
        let noted = write_to(PortId(2), || {
            read_from(|| gap(true));
            let read = culprit(SLEEP_MAX);
            gap(true);
            (read, culprit(SLEEP_MAX))
        });
        let by = |port| Some((PortId(port), Cause::Memory));
        assert_eq!(noted, (by(1), by(2)));
        gap(true);
        assert_eq!(culprit(SLEEP_MAX), by(1), "what is left of it");
    }

    #[test]
    fn what_is_long_over_is_not_remembered() {
        enter(PortId(5));
        gap(true);
        WATCH.with(|watch| {
            let (at, cause, when) = watch.noted.get();
            watch.noted.set((at, cause, when.saturating_sub(1_000_000_000)));
        });
        assert_eq!(culprit(SLEEP_MAX), None);
        assert!(!waited_for_call());
        note_call();
        assert!(waited_for_call());
        assert_eq!(culprit(SLEEP_MAX), Some((PortId(5), Cause::Call)));
        assert!(!waited_for_call());
    }
}
