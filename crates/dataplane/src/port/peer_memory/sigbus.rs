//! A guest that shortens the file behind its memory must not end the switch.
//!
//! **Problem.** Touching a page beyond a file's end is SIGBUS, which ends the process: one guest
//! would take all others with it (datapath rule 11). **Rule.** Mapped guest regions are listed; on
//! SIGBUS inside one, all from that page to the region's end is replaced by zeroes of our own, in
//! one mapping and never beyond the region, and the access goes on. The guest has hurt its own
//! rings; the region's alarm tells its session, which ends. A SIGBUS anywhere else is treated as
//! before. **Cost.** Nothing until it happens; a walk over the list then.
#![allow(unsafe_code, reason = "a signal handler and a mapping put in place by it")]

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;

use crate::worker::stall;

/// Regions that can be listed: 1,024 ports of 32 regions. A region that finds no place is
/// refused by the caller, so that none is mapped unguarded.
const PLACES: usize = 32 * 1024;

/// Start, length, page size and alarm; a start of 0 is a free place. A place nobody took is all
/// zeroes, so that the list takes no room in the program's file.
struct Place {
    start: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    /// The complement (`!`) of an event descriptor. Not negative: no alarm.
    alarm: AtomicI32,
    /// How often the place was taken: who reads it while it changes hands reads neither region.
    taken: AtomicUsize,
}

impl Place {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            alarm: AtomicI32::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Puts a region there, if the place is free.
    fn take(&self, start: usize, len: usize, page: usize) -> bool {
        if self.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.len.store(len, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.start.store(start, Ordering::Release);
        true
    }

    fn free(&self) {
        self.start.store(0, Ordering::Release);
    }

    /// Start, length and page size of one region; `None`: there is none, or it is changing.
    fn read(&self) -> Option<(usize, usize, usize)> {
        let taken = self.taken.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        let (len, page) = (self.len.load(Ordering::Relaxed), self.page.load(Ordering::Relaxed));
        // Another region may have begun at the same address meanwhile.
        fence(Ordering::Acquire);
        let same = self.start.load(Ordering::Relaxed) == start
            && self.taken.load(Ordering::Relaxed) == taken;
        (same && start > 1).then_some((start, len, page))
    }
}

static PLACES_USED: AtomicUsize = AtomicUsize::new(0);
static REGIONS: [Place; PLACES] = [const { Place::new() }; PLACES];
/// Pages replaced since start.
static REPLACED: AtomicUsize = AtomicUsize::new(0);
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A listed region; off the list when dropped, which must be before it is unmapped.
#[derive(Debug)]
pub(super) struct Guard {
    place: usize,
    /// Kept open for as long as the handler may write to it.
    alarm: OnceLock<Arc<EventFd>>,
}

impl Guard {
    /// Lists a mapping. `None` if the list is full or the handler cannot be installed.
    pub(super) fn new(start: *mut c_void, len: usize, page: usize) -> Option<Self> {
        if BEFORE.get().is_none() {
            let before = install()?;
            // Whoever came second found our own handler in place: only the first is kept.
            let _ = BEFORE.set(before);
        }
        let (start, page) = (start as usize, page.max(4096));
        let taken = REGIONS.iter().position(|place| place.take(start, len, page))?;
        PLACES_USED.fetch_max(taken + 1, Ordering::Release);
        Some(Self { place: taken, alarm: OnceLock::new() })
    }

    /// Has `alarm` rung when pages of the region are gone. It must not be one that makes a writer
    /// wait; only the first is taken.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        let alarm = self.alarm.get_or_init(|| Arc::clone(alarm));
        REGIONS[self.place].alarm.store(!alarm.as_fd().as_raw_fd(), Ordering::Release);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The alarm first: the place may be another region's as soon as it is free.
        REGIONS[self.place].alarm.store(0, Ordering::Release);
        REGIONS[self.place].free();
    }
}

/// Mappings that are listed now.
#[must_use]
pub fn guarded_mappings() -> usize {
    REGIONS.iter().filter(|place| place.start.load(Ordering::Relaxed) != 0).count()
}

/// Pages of guests' memory that were gone when touched, since start.
#[must_use]
pub fn pages_replaced() -> usize {
    REPLACED.load(Ordering::Relaxed)
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`; the handler only does what a handler may: atomics,
    // mmap, madvise, write and sigaction. WHY: there is no safe form.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        let done = libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr());
        (done == 0).then(|| before.assume_init())
    }
}

extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. WHY: C interface.
    let at = unsafe { (*info).si_addr() } as usize;
    // SAFETY: the thread's own; a handler must leave it as it found it. WHY: C interface.
    let errno = unsafe { *libc::__errno_location() };
    if replace_from(at) {
        // SAFETY: as above. WHY: as above.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    // Not ours: let the access fault again under whatever was in place before.
    let before: *const libc::sigaction = BEFORE.get().map_or(core::ptr::null(), |b| b);
    // SAFETY: a null or a valid action. WHY: C interface.
    unsafe {
        if before.is_null() {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        } else {
            libc::sigaction(libc::SIGBUS, before, core::ptr::null_mut());
        }
    }
}

/// Puts zeroes over a listed region from the page of `at` to its end, if `at` lies in one. All that
/// follows is gone as well, and one mapping for each page would use up the process's mappings.
fn replace_from(at: usize) -> bool {
    let used = PLACES_USED.load(Ordering::Acquire).min(PLACES);
    for place in &REGIONS[..used] {
        let Some((start, len, page)) = place.read() else { continue };
        if at >= start && at - start < len && page.is_power_of_two() {
            // Counted from the region's start: the kernel need not have put it at a multiple.
            let offset = (at - start) & !(page - 1);
            let (from, bytes) = ((start + offset) as *mut c_void, len - offset);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags =
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: from there to its end the mapping is ours, is listed, so still mapped, and
            // begins and ends on page boundaries. WHY: nothing else can replace pages.
            let mapped = unsafe { libc::mmap(from, bytes, protection, flags, -1, 0) };
            if mapped == libc::MAP_FAILED {
                return false;
            }
            // What was marked on the old mapping is not on the new one, which the guest's bytes
            // come into by our own writes. SAFETY: just mapped. It is one system call, so a
            // handler may make it. WHY: there is no safe form.
            unsafe { libc::madvise(from, bytes, libc::MADV_DONTDUMP) };
            REPLACED.fetch_add(bytes.div_ceil(page), Ordering::Relaxed);
            ring(!place.alarm.load(Ordering::Acquire));
            stall::note_gone();
            return true;
        }
    }
    false
}

/// Tells a region's session, which has nothing to look for in it any more. A negative `alarm` is
/// none.
fn ring(alarm: i32) {
    if alarm >= 0 {
        let one = 1_u64;
        // SAFETY: an event descriptor that the listed region keeps open, and eight bytes of ours.
        // It does not wait, and a signal handler may call it. WHY: there is no safe form.
        unsafe { libc::write(alarm, (&raw const one).cast(), size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    /// Else the list, with room for all regions, is part of the program's file.
    #[test]
    fn a_place_nobody_took_is_all_zeroes() {
        let place = Place::new();
        let sizes = [&place.start, &place.len, &place.page, &place.taken];
        assert_eq!(sizes.map(|n| n.load(Ordering::Relaxed)), [0; 4]);
        assert_eq!(place.alarm.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_place_that_changes_hands_is_read_whole_or_not_at_all() {
        static PLACE: Place = Place::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        let owner = std::thread::spawn(|| {
            // Regions that begin at the same address and are not of the same length.
            for n in 1..2_000_000 {
                assert!(PLACE.take(4096, n, 3 * n));
                PLACE.free();
            }
            assert!(PLACE.take(4096, 1, 3));
            DONE.store(true, Ordering::Release);
        });
        let mut read = 0_u64;
        while !DONE.load(Ordering::Acquire) {
            if let Some((start, len, page)) = PLACE.read() {
                assert_eq!((start, page), (4096, 3 * len), "parts of two regions");
                read += 1;
            }
        }
        owner.join().unwrap();
        assert_eq!(PLACE.read(), Some((4096, 1, 3)), "after {read} regions");
    }
}
