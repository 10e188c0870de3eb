//! Event suppression: what each side of a packed ring wants to be told (virtio 1.2 §2.8.14).
//!
//! Both areas are four bytes: a place in the ring with its wrap counter, then flags. They are read
//! and written in one piece, so a place never goes with another's flags.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use super::PackedRing;
use super::position::distance;
use super::resume::MARKED;

const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;
/// The other bits of the flags are reserved.
const FLAGS: u16 = 3;

impl PackedRing {
    fn area(&self, area: *mut u32) -> &AtomicU32 {
        // SAFETY: `new` checked four bytes, 4-aligned, for each of the two areas; they stay mapped.
        // WHY: the driver reads and writes them while we do: only atomics are defined.
        unsafe { AtomicU32::from_ptr(area) }
    }

    /// We stop polling: asks the driver to kick, then looks again. True if it may be left alone:
    /// whatever it makes available from now on, it kicks for.
    pub fn ask_for_kicks(&mut self) -> bool {
        self.wish(ENABLE);
        // Our wish must be visible before we look: the driver shows its chain before it looks.
        fence(Ordering::SeqCst);
        let alone = !self.has_waiting();
        if !alone {
            self.suppress_kicks();
        }
        alone
    }

    /// We poll: the driver shall not kick.
    pub fn suppress_kicks(&self) {
        self.wish(DISABLE);
    }

    /// The field for a place in the ring means nothing to the driver here: it has the ring's mark.
    fn wish(&self, flags: u16) {
        let wish = u32::from(self.mark) | u32::from(flags) << 16;
        self.area(self.device_event).store(wish, Ordering::Relaxed);
    }

    /// The mark that the ring's last device left, 0 if none.
    pub(super) fn mark_found(&self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "its first field")]
        let found = self.area(self.device_event).load(Ordering::Relaxed) as u16;
        if found == MARKED { MARKED } else { 0 }
    }

    /// After `publish` and a full fence: interrupts the driver if it asked for it.
    /// Returns the number of interrupts, 0 or 1.
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
            // The event is a descriptor that is among those just published.
            DESC if self.event_idx => {
                (1..=published).contains(&distance(event, self.used, self.size))
            }
            _ => true,
        };
        if wanted { self.call.interrupt() } else { 0 }
    }
}
