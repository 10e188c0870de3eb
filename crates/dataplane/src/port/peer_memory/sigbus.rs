//! Handler of the signal SIGBUS, so that a guest that shortens its memory's file does not end the
//! switch.
//!
//! # Problem
//! An access to a mapping beyond the file's end raises SIGBUS, which ends the process. Without a
//! handler, one guest could end the switch for all other guests (datapath rule 11).
//!
//! # Approach
//! The SIGBUS handler uses a list of all mapped regions of guests. On a SIGBUS inside a listed
//! region, the handler maps zeros over the pages from the faulting page to the region's end. The
//! handler makes one mapping, which never exceeds the region. After the SIGBUS handler has replaced
//! the pages, the access to the region continues, and the guest has damaged only its own rings. The
//! region's alarm notifies the vhost-user session, which then ends. A SIGBUS outside of all listed
//! regions goes to the previous handler.
//!
//! # Cost
//! The guard against shortened files costs nothing until a SIGBUS occurs. On a SIGBUS, the handler
//! searches the list of regions.
#![allow(unsafe_code, reason = "installs a SIGBUS handler, which calls mmap")]

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;

use crate::wake::stall;

/// Maximum number of listed regions: 1,024 ports with 32 regions each. If the list is full, the
/// caller refuses the region, so that the switch maps no region without a guard.
const PLACES: usize = 32 * 1024;

/// An entry in the list of guarded regions: the region's start, length, page size and alarm. A list
/// entry with a `start` of 0 is free.
struct RegionSlot {
    start: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    /// The complement (`!`) of the alarm's event descriptor. If `alarm` is 0 or more, the region
    /// has no alarm. An unused entry of the list of guarded regions is all zeros, and takes no
    /// space in the program's file.
    alarm: AtomicI32,
    /// Number of memory regions that were stored in this list entry since the process started. A
    /// reader compares two values of `taken` to detect that another region was stored during the
    /// read.
    taken: AtomicUsize,
}

impl RegionSlot {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            alarm: AtomicI32::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Stores a region in the list entry, and returns true, if the entry is free.
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

    /// Start, length and page size of the region in the list entry. `None` if the list entry is
    /// free or is being changed.
    fn read(&self) -> Option<(usize, usize, usize)> {
        let taken = self.taken.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        let (len, page) = (self.len.load(Ordering::Relaxed), self.page.load(Ordering::Relaxed));
        // Meanwhile the place may have got another region at the same address.
        fence(Ordering::Acquire);
        let same = self.start.load(Ordering::Relaxed) == start
            && self.taken.load(Ordering::Relaxed) == taken;
        (same && start > 1).then_some((start, len, page))
    }
}

static PLACES_USED: AtomicUsize = AtomicUsize::new(0);
static REGIONS: [RegionSlot; PLACES] = [const { RegionSlot::new() }; PLACES];
/// Number of missing pages that the handler replaced since the process started.
static REPLACED: AtomicUsize = AtomicUsize::new(0);
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Keeps a region in the list of guarded regions. The owner must drop the `Guard` before it unmaps
/// the region.
#[derive(Debug)]
pub(super) struct Guard {
    place: usize,
    /// The session's eventfd. The guard keeps the eventfd open for as long as the handler may write
    /// to it.
    alarm: OnceLock<Arc<EventFd>>,
}

impl Guard {
    /// Adds a mapping to the list of guarded regions. `None` if the list is full or the handler
    /// cannot be installed.
    pub(super) fn new(start: *mut c_void, len: usize, page: usize) -> Option<Self> {
        if BEFORE.get().is_none() {
            let before = install()?;
            // A second thread would find this module's own handler as the previous one, so only the
            // first result is kept.
            let _ = BEFORE.set(before);
        }
        let (start, page) = (start as usize, page.max(4096));
        let taken = REGIONS.iter().position(|place| place.take(start, len, page))?;
        PLACES_USED.fetch_max(taken + 1, Ordering::Release);
        Some(Self { place: taken, alarm: OnceLock::new() })
    }

    /// Sets the eventfd that the handler signals if pages of the region are missing. A write to the
    /// eventfd must not block. The first call for a region sets the alarm, and later calls have no
    /// effect.
    pub(super) fn set_alarm(&self, alarm: &Arc<EventFd>) {
        let alarm = self.alarm.get_or_init(|| Arc::clone(alarm));
        REGIONS[self.place].alarm.store(!alarm.as_fd().as_raw_fd(), Ordering::Release);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The alarm is cleared first, because another region may take the place as soon as it is
        // free.
        REGIONS[self.place].alarm.store(0, Ordering::Release);
        REGIONS[self.place].free();
    }
}

/// Number of mappings that are guarded against a shortened file now.
#[must_use]
pub fn guarded_mappings() -> usize {
    REGIONS.iter().filter(|place| place.start.load(Ordering::Relaxed) != 0).count()
}

/// Number of pages of guests' memory that were missing when the switch accessed them. The number of
/// replaced pages is counted from the start of the process.
#[must_use]
pub fn pages_replaced() -> usize {
    REPLACED.load(Ordering::Relaxed)
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`. The handler uses only atomics, mmap, madvise, write
    // and sigaction, which a signal handler may use. WHY: no safe form exists.
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
    // SAFETY: `errno` is the thread's own variable. A handler must leave it unchanged. WHY: C
    // interface.
    let errno = unsafe { *libc::__errno_location() };
    if replace_from(at) {
        // SAFETY: as above. WHY: as above.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    // The address is not in a listed region: the access faults again under the previous handler.
    let before: *const libc::sigaction = BEFORE.get().map_or(core::ptr::null(), |b| b);
    // SAFETY: `before` is null or a valid action. WHY: C interface.
    unsafe {
        if before.is_null() {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        } else {
            libc::sigaction(libc::SIGBUS, before, core::ptr::null_mut());
        }
    }
}

/// Replaces the pages of a listed region with zeros, from the page of address `at` to the region's
/// end. Returns false if the address `at` lies in no guarded region. The handler replaces the pages
/// up to the region's end at once, because all of them are missing. If the handler made one mapping
/// per page, the process could run out of mappings.
fn replace_from(at: usize) -> bool {
    let used = PLACES_USED.load(Ordering::Acquire).min(PLACES);
    for place in &REGIONS[..used] {
        let Some((start, len, page)) = place.read() else { continue };
        if at >= start && at - start < len && page.is_power_of_two() {
            // The offset is rounded relative to the region's start, because the start need not be a
            // multiple of the page size.
            let offset = (at - start) & !(page - 1);
            let (from, bytes) = ((start + offset) as *mut c_void, len - offset);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags =
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: the range from `from` to the region's end belongs to this process. The region
            // is listed, hence still mapped, and begins and ends on page borders. WHY: nothing else
            // can replace pages.
            let mapped = unsafe { libc::mmap(from, bytes, protection, flags, -1, 0) };
            if mapped == libc::MAP_FAILED {
                return false;
            }
            // The new mapping lacks the old mapping's advice, and the switch will write guests'
            // bytes into it. SAFETY: the range was just mapped. `madvise` is a single system call,
            // so a handler may make it. WHY: no safe form exists.
            unsafe { libc::madvise(from, bytes, libc::MADV_DONTDUMP) };
            REPLACED.fetch_add(bytes.div_ceil(page), Ordering::Relaxed);
            ring(!place.alarm.load(Ordering::Acquire));
            stall::note_gone();
            return true;
        }
    }
    false
}

/// Signals a region's alarm, which ends the region's vhost-user session.
fn ring(alarm: i32) {
    if alarm >= 0 {
        let one = 1_u64;
        // SAFETY: the listed region keeps the event descriptor open, and `one` is eight bytes of
        // this stack. `write` does not block here, and a signal handler may call it. WHY: no safe
        // form exists.
        unsafe { libc::write(alarm, (&raw const one).cast(), size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    /// An empty slot of the list must be all zeros. If a slot is not all zeros, the whole list
    /// takes space in the program's file.
    #[test]
    fn a_place_nobody_took_is_all_zeroes() {
        let place = RegionSlot::new();
        let sizes = [&place.start, &place.len, &place.page, &place.taken];
        assert_eq!(sizes.map(|n| n.load(Ordering::Relaxed)), [0; 4]);
        assert_eq!(place.alarm.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_place_that_gets_another_region_is_read_whole_or_not_at_all() {
        static PLACE: RegionSlot = RegionSlot::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        let owner = std::thread::spawn(|| {
            // The regions begin at the same address and differ in length.
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
