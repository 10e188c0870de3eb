//! A timing wheel, which finds the VMs whose next frame is due.
//!
//! # Problem
//!
//! Each VM with a shaper has a time at which its next frame departs. In each iteration of its loop,
//! a worker looks for VMs whose frame is due. The cost of looking for due VMs must not depend on
//! the number of waiting VMs.
//!
//! # Source
//!
//! The wheel is scheme 6 of Varghese, Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987.
//! Carousel (Saeed et al., SIGCOMM 2017) uses such a timing wheel for each core.
//!
//! # Approach
//!
//! A slot of the wheel lasts 2^11 ns ([`Wheel::SLOT`]). The wheel has 2^16 slots, which cover the
//! time from now to [`Wheel::HORIZON`]. An entry is in the slot that contains the entry's time, and
//! fires when the slot has *ended*. An entry of the wheel never fires early, and fires at most one
//! slot late. An entry beyond the horizon is in the last slot, and is armed again when this slot
//! ends. The entries of a slot fire in the order in which they were armed. A bitmap of three levels
//! finds the next nonempty slot.
//!
//! # Cost
//!
//! Arming, cancelling and firing an entry take O(1). The wheel allocates no memory after its
//! construction. The wheel takes 264 KiB plus 24 bytes per entry.

use penstock_units::Nanos;

const SHIFT: u32 = 11;
const SLOTS: u32 = 1 << 16;
const NIL: u32 = u32::MAX;
const WORD: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Time at which the entry is due, in ns.
    at: u64,
    next: u32,
    previous: u32,
    /// Number of the wheel's slot that contains the entry. An entry that is not armed has the slot
    /// [`NIL`].
    slot: u32,
}

/// Bitmap of the slots that have entries, in three levels.
#[derive(Clone, Debug)]
struct Bitmap {
    low: Box<[u64]>,
    middle: [u64; 16],
    top: u64,
}

const fn bit(n: u32) -> u64 {
    1 << (n % WORD)
}

impl Bitmap {
    fn new() -> Self {
        let low = vec![0; (SLOTS / WORD) as usize].into_boxed_slice();
        Self { low, middle: [0; 16], top: 0 }
    }

    fn set(&mut self, slot: u32) {
        self.low[(slot / WORD) as usize] |= bit(slot);
        self.middle[(slot / WORD / WORD) as usize] |= bit(slot / WORD);
        self.top |= bit(slot / WORD / WORD);
    }

    fn clear(&mut self, slot: u32) {
        let low = &mut self.low[(slot / WORD) as usize];
        *low &= !bit(slot);
        if *low == 0 {
            let middle = &mut self.middle[(slot / WORD / WORD) as usize];
            *middle &= !bit(slot / WORD);
            if *middle == 0 {
                self.top &= !bit(slot / WORD / WORD);
            }
        }
    }

    /// Returns the number of the first slot from `from` on that has entries; does not wrap around
    /// to slot 0.
    fn next(&self, from: u32) -> Option<u32> {
        let above = |n: u32| if n.is_multiple_of(WORD) { 0 } else { u64::MAX << (n % WORD) };
        let word = from / WORD;
        let here = self.low[word as usize] & (u64::MAX << (from % WORD));
        if here != 0 {
            return Some(word * WORD + here.trailing_zeros());
        }
        let group = word / WORD;
        let here = self.middle[group as usize] & above(word + 1);
        let word = if here != 0 {
            group * WORD + here.trailing_zeros()
        } else {
            let here = self.top & above(group + 1);
            if here == 0 {
                return None;
            }
            let group = here.trailing_zeros();
            group * WORD + self.middle[group as usize].trailing_zeros()
        };
        Some(word * WORD + self.low[word as usize].trailing_zeros())
    }
}

/// A timing wheel. An entry is a number below the wheel's size, which is fixed at construction.
#[derive(Clone, Debug)]
pub struct Wheel {
    entries: Box<[Entry]>,
    /// For each slot of the wheel, the first and the last entry in the slot's list.
    slots: Box<[(u32, u32)]>,
    occupied: Bitmap,
    /// Number of the first slot whose entries may not have fired yet, counted from time 0.
    passed: u64,
    armed: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "the value is below the number of slots")]
const fn place(number: u64) -> u32 {
    (number % SLOTS as u64) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "entries are below 2^32")]
const fn narrow(entry: usize) -> u32 {
    entry as u32
}

impl Wheel {
    /// Duration of a slot, which is the longest delay that the wheel adds to an entry.
    pub const SLOT: Nanos = Nanos(1 << SHIFT);
    /// Largest distance of an entry's time from now, up to which the wheel arms the entry only
    /// once.
    pub const HORIZON: Nanos = Nanos((SLOTS as u64 - 2) << SHIFT);

    /// Returns an empty wheel for entries 0 to `entries` - 1, which starts at the time `now`.
    #[must_use]
    pub fn new(entries: usize, now: Nanos) -> Self {
        let entry = Entry { at: 0, next: NIL, previous: NIL, slot: NIL };
        Self {
            entries: vec![entry; entries].into_boxed_slice(),
            slots: vec![(NIL, NIL); SLOTS as usize].into_boxed_slice(),
            occupied: Bitmap::new(),
            passed: now.0 >> SHIFT,
            armed: 0,
        }
    }

    /// Number of entries that are armed.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.armed
    }

    /// Whether the wheel has no armed entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Arms an entry for the time at which it is due. If the entry is already armed, the new time
    /// replaces its old time. An entry with a time in the past fires as soon as possible.
    pub fn arm(&mut self, entry: usize, at: Nanos) {
        if entry >= self.entries.len() {
            return;
        }
        self.cancel(entry);
        self.entries[entry].at = at.0;
        self.stand(entry);
        self.armed += 1;
    }

    fn stand(&mut self, entry: usize) {
        // One slot stays free, because `expire` arms an entry again while the entry's old slot is
        // still in use.
        let last = self.passed + u64::from(SLOTS) - 2;
        let number = (self.entries[entry].at >> SHIFT).clamp(self.passed, last);
        let slot = place(number);
        let (first, last) = self.slots[slot as usize];
        let id = narrow(entry);
        let of = &mut self.entries[entry];
        (of.slot, of.next, of.previous) = (slot, NIL, last);
        if last == NIL {
            self.occupied.set(slot);
            self.slots[slot as usize] = (id, id);
        } else {
            self.entries[last as usize].next = id;
            self.slots[slot as usize] = (first, id);
        }
    }

    /// Disarms an entry. Returns the time for which the entry was armed; `None` if it was not
    /// armed.
    pub fn cancel(&mut self, entry: usize) -> Option<Nanos> {
        let Entry { at, next, previous, slot } = *self.entries.get(entry)?;
        if slot == NIL {
            return None;
        }
        let ends = &mut self.slots[slot as usize];
        if previous == NIL {
            ends.0 = next;
        }
        if next == NIL {
            ends.1 = previous;
        }
        if ends.0 == NIL {
            self.occupied.clear(slot);
        }
        if previous != NIL {
            self.entries[previous as usize].next = next;
        }
        if next != NIL {
            self.entries[next as usize].previous = previous;
        }
        self.entries[entry].slot = NIL;
        self.armed -= 1;
        Some(Nanos(at))
    }

    /// Returns the number of the first slot with entries, counted from time 0.
    fn first(&self) -> Option<u64> {
        let from = place(self.passed);
        let found = self.occupied.next(from).or_else(|| self.occupied.next(0))?;
        Some(self.passed + u64::from(found.wrapping_sub(from) % SLOTS))
    }

    /// Disarms an entry that is due, and returns the entry and its time. Returns `None` if no entry
    /// is due.
    pub fn expire(&mut self, now: Nanos) -> Option<(usize, Nanos)> {
        let current = now.0 >> SHIFT;
        if current <= self.passed {
            return None;
        }
        while let Some(number) = self.first() {
            if number >= current {
                break;
            }
            // From now on, no entry can be armed for an earlier slot.
            self.passed = number;
            let entry = self.slots[place(number) as usize].0 as usize;
            let at = self.cancel(entry)?;
            if at.0 >> SHIFT <= number {
                return Some((entry, at));
            }
            // The entry's time was beyond the horizon. `passed` advances, so that the entry does
            // not return to this slot.
            self.passed = number + 1;
            self.arm(entry, at);
            self.passed = number;
        }
        self.passed = current;
        None
    }

    /// Returns a time before which no entry of the wheel is due. The caller may sleep until the
    /// returned time. Returns `None` if no entry is armed.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        self.first().map(|number| Nanos((number + 1) << SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = Wheel::SLOT.0;

    fn due(wheel: &mut Wheel, now: u64) -> Vec<usize> {
        std::iter::from_fn(|| wheel.expire(Nanos(now)).map(|(entry, _)| entry)).collect()
    }

    #[test]
    fn entries_fire_in_the_order_of_their_slots_and_none_before_its_time() {
        let mut wheel = Wheel::new(4, Nanos(0));
        wheel.arm(0, Nanos(10 * SLOT));
        wheel.arm(1, Nanos(3 * SLOT + 5));
        wheel.arm(2, Nanos(3 * SLOT + 1));
        wheel.arm(3, Nanos(1));
        assert_eq!(wheel.next_event(), Some(Nanos(SLOT)));
        assert_eq!(due(&mut wheel, SLOT - 1), []);
        assert_eq!(due(&mut wheel, SLOT), [3]);
        assert_eq!(wheel.next_event(), Some(Nanos(4 * SLOT)));
        assert_eq!(due(&mut wheel, 4 * SLOT - 1), []);
        assert_eq!(due(&mut wheel, 20 * SLOT), [1, 2, 0]);
        assert!(wheel.is_empty());
        assert_eq!(wheel.next_event(), None);
    }

    #[test]
    fn an_entry_is_armed_once_and_can_be_cancelled() {
        let mut wheel = Wheel::new(2, Nanos(0));
        wheel.arm(0, Nanos(SLOT));
        wheel.arm(0, Nanos(5 * SLOT));
        wheel.arm(1, Nanos(5 * SLOT));
        assert_eq!(wheel.len(), 2);
        assert_eq!(due(&mut wheel, 5 * SLOT), []);
        assert_eq!(wheel.cancel(0), Some(Nanos(5 * SLOT)));
        assert_eq!(wheel.cancel(0), None);
        assert_eq!(due(&mut wheel, 6 * SLOT), [1]);
        wheel.arm(0, Nanos(0));
        assert_eq!(due(&mut wheel, 7 * SLOT), [0], "a time that has passed is the next there is");
    }

    #[test]
    fn an_entry_beyond_the_horizon_fires_at_its_time() {
        let mut wheel = Wheel::new(3, Nanos(0));
        let far = 5 * Wheel::HORIZON.0 + 7;
        wheel.arm(0, Nanos(far));
        wheel.arm(1, Nanos(far + 3 * SLOT));
        let mut fired = Vec::new();
        let mut now = 0;
        while let Some(next) = wheel.next_event() {
            assert!(next.0 > now);
            now = next.0;
            while let Some((entry, at)) = wheel.expire(Nanos(now)) {
                assert!(at.0 <= now && now - at.0 <= SLOT, "{at:?} at {now}");
                fired.push(entry);
            }
        }
        assert_eq!(fired, [0, 1]);
        // The result is the same if the wheel is not called for a long time.
        wheel.arm(2, Nanos(now + far));
        assert_eq!(due(&mut wheel, now + far - 1), []);
        assert_eq!(due(&mut wheel, now + 3 * far), [2]);
    }
}
