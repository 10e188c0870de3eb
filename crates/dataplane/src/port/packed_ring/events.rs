//! Event suppression of a packed ring: driver and device each state which notifications they want
//! (virtio 1.2 §2.8.14).
//!
//! Driver and device each have an event area of four bytes: a ring position with its wrap counter,
//! then flags. The switch reads and writes an event area as one word, so that the position and the
//! flags always match.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use super::PackedRing;
use super::position::distance;
use super::resume::MARKED;

const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;
/// The two flag bits of an event area that are not reserved.
const FLAGS: u16 = 3;

impl PackedRing {
    fn area(&self, area: *mut u32) -> &AtomicU32 {
        // SAFETY: `new` checked four bytes, 4-aligned, for each of the two areas, and they stay
        // mapped.
        // WHY: the driver reads and writes them at the same time, which is defined only for
        // atomics.
        unsafe { AtomicU32::from_ptr(area) }
    }

    /// Prepares the ring for a time without polling: requests kicks from the driver, then looks for
    /// a chain again. Returns true if the worker need not poll the ring, because the driver kicks
    /// for every new chain.
    pub fn ask_for_kicks(&mut self) -> bool {
        self.wish(ENABLE);
        // The request must be visible before the ring is read again. The driver makes its chain
        // visible before it reads the request, so at least one side sees the other's write.
        fence(Ordering::SeqCst);
        let alone = !self.has_waiting();
        if !alone {
            self.suppress_kicks();
        }
        alone
    }

    /// Requests that the driver does not kick, because the worker polls the ring again.
    pub fn suppress_kicks(&self) {
        self.wish(DISABLE);
    }

    /// Writes `flags` into the device's event area. The driver ignores the position in the event
    /// area unless the flag `DESC` is set, so the position's field contains the ring's mark.
    fn wish(&self, flags: u16) {
        let wish = u32::from(self.mark) | u32::from(flags) << 16;
        self.area(self.device_event).store(wish, Ordering::Relaxed);
    }

    /// The mark that the ring's previous device left in the device's event area. 0 if the previous
    /// device left no mark.
    pub(super) fn mark_found(&self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "its first field")]
        let found = self.area(self.device_event).load(Ordering::Relaxed) as u16;
        if found == MARKED { MARKED } else { 0 }
    }

    /// Interrupts the driver if the driver enabled interrupts. The worker calls `notify` after
    /// `publish` and a full fence. Returns the number of interrupts sent to the driver, 0 or 1.
    #[inline]
    pub fn notify(&mut self) -> u32 {
        if self.unsignalled == 0 {
            return 0;
        }
        let published = core::mem::take(&mut self.unsignalled);
        let wish = self.area(self.driver_event).load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "its two fields")]
        let (event, flags) = (wish as u16, (wish >> 16) as u16 & FLAGS);
        let wanted = match flags {
            DISABLE => false,
            // The driver's event position is among the descriptors just published.
            DESC if self.event_idx => {
                (1..=published).contains(&distance(event, self.used, self.size))
            }
            _ => true,
        };
        if wanted { self.call.interrupt() } else { 0 }
    }
}
