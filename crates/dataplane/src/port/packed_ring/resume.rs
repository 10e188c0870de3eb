//! Finds the position of a packed ring from the ring itself.
//!
//! # Problem
//! A packed ring keeps no index in the guest's memory, and QEMU's network device requests no
//! inflight region. If QEMU loses its switch, it gives the next switch the same position as the
//! last one, usually the ring's start. A ring that continues at that position never moves again.
//!
//! # Approach
//! Only the driver changes the `AVAIL` bits, so they give the driver's position. The search goes
//! back from there to the last used descriptor, and the ring continues behind it. A buffer of
//! several descriptors gets one used descriptor, in its first place (virtio 1.2 §2.8.6); the
//! buffer's other places still look available. For this reason the switch also marks the last place
//! of such a buffer as used, with `NEXT`, the buffer's id and its number of places. No driver reads
//! that place, since each driver counts its buffers' descriptors itself. If a ring is marked from
//! its start, the device's event area says so, in the field that drivers ignore without `DESC`
//! (§2.8.14).
//!
//! # Bursts that were not made visible
//! The first descriptor of a burst is written last. If the switch dies before this write, the other
//! descriptors are used already, and the driver's content in them is lost. The next switch makes
//! such a burst visible. Its first buffer is returned with length 0, and drivers drop such buffers.
//!
//! # Trust
//! The ring may contain any values. Each word is read once, into a copy. The search ends after one
//! round, and a word is replaced only if it still has the value that was read. A ring is refused if
//! its position is uncertain, for example if another switch stopped in the middle of the ring.

use core::sync::atomic::Ordering;

use super::super::ring::{F_NEXT, RingError};
use super::PackedRing;
use super::position::{F_AVAIL, F_USED, Position, distance};

/// Value in the device's event area that says that the ring is marked from its start.
pub(super) const MARKED: u16 = 0x5073;
/// Number of times that a ring is read again if its driver writes to it meanwhile.
const READS: u32 = 16;
const START: Position = Position { index: 0, ready: F_AVAIL };

/// Position of a ring, derived from a copy of it.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    used: Position,
    /// First places of used buffers that were not made visible, the last one first, with the words
    /// that make them visible.
    hidden: Vec<(u16, u64)>,
}

impl PackedRing {
    /// Continues the ring at its real position, whatever base the front end gave. Only for rings
    /// that no worker has yet and whose position no inflight region records.
    ///
    /// # Errors
    /// [`RingError::Lost`] if the position is uncertain. The ring is then unchanged.
    pub fn resume(&mut self) -> Result<(), RingError> {
        if self.mark == 0 && self.used != START {
            // Another switch ran the ring. Its front end gives the position, which may be wrong.
            return if is_possible(&self.copy(), self.used) {
                Ok(())
            } else {
                Err(RingError::Lost)
            };
        }
        for _ in 0..READS {
            let words = self.copy();
            if self.mark == 0 && words.iter().all(|word| flags(*word) & F_USED == 0) {
                // The ring is in the state in which its driver initialised it, with or without
                // buffers.
                self.mark = MARKED;
                self.suppress_kicks();
                return Ok(());
            }
            let Some(standing) = find(&words) else { continue };
            if self.mark == 0 {
                let at_start = standing.used == START;
                return if at_start { Ok(()) } else { Err(RingError::Lost) };
            }
            for (index, shown) in standing.hidden {
                let read = words[usize::from(index)];
                let order = (Ordering::Release, Ordering::Relaxed);
                let _ = self.half(index, 1).compare_exchange(read, shown, order.0, order.1);
            }
            self.next = standing.used;
            self.used = standing.used;
            return Ok(());
        }
        Err(RingError::Lost)
    }

    /// Copies the second half of each descriptor, from the last to the first. If the copy contains
    /// a descriptor that the driver added meanwhile, it thus also contains all descriptors that
    /// were added earlier.
    fn copy(&self) -> Vec<u64> {
        let read = |index| self.half(index, 1).load(Ordering::Acquire);
        let mut words: Vec<u64> = (0..self.size).rev().map(read).collect();
        words.reverse();
        words
    }

    /// Marks the last of the `span` places of a returned buffer, before the first place is written.
    pub(super) fn mark_last(&self, id: u16, span: u16) {
        if self.mark != 0 {
            let mut last = self.used;
            last.advance(span - 1, self.size);
            let word = word(last.used_flags() | F_NEXT, id, span.into());
            self.half(last.index, 1).store(word, Ordering::Release);
        }
    }
}

const fn flags(word: u64) -> u16 {
    (word >> 48) as u16
}

const fn word(flags: u16, id: u16, len: u32) -> u64 {
    len as u64 | (id as u64) << 32 | (flags as u64) << 48
}

/// The position at which the driver makes the next descriptor available. `None` if the copy is
/// inconsistent, as when the driver was writing a chain.
fn driver_position(words: &[u64]) -> Option<Position> {
    let wrap = |word: &u64| flags(*word) & F_AVAIL;
    let first = wrap(words.first()?);
    let round = words.iter().take_while(|word| wrap(word) == first).count();
    if words[round..].iter().any(|word| wrap(word) == first) {
        return None;
    }
    let (round, size) = (u16::try_from(round).ok()?, u16::try_from(words.len()).ok()?);
    let mut at = Position { index: 0, ready: if first == 0 { F_USED } else { F_AVAIL } };
    at.advance(round, size);
    Some(at)
}

/// Whether a ring may be at position `used`: all descriptors from there to the driver's position
/// must be available. Also true for an inconsistent copy, because the front end did not cause it.
fn is_possible(words: &[u64], used: Position) -> bool {
    let (Some(driver), Ok(size)) = (driver_position(words), u16::try_from(words.len())) else {
        return true;
    };
    let ahead = distance(used.to_base(), driver, size);
    let mut at = used;
    ahead <= u32::from(size)
        && (0..ahead).all(|_| {
            let ready = flags(words[usize::from(at.index)]) & (F_AVAIL | F_USED) == at.ready;
            at.advance(1, size);
            ready
        })
}

/// Derives the position from a copy of a marked ring; the module's documentation has the method.
fn find(words: &[u64]) -> Option<Standing> {
    let size = u16::try_from(words.len()).ok()?;
    let read = |at: Position| words[usize::from(at.index)];
    let is_used = |at: Position| flags(read(at)) & (F_AVAIL | F_USED) == at.used_flags();
    let mut used = driver_position(words)?;
    let mut rest = size;
    while rest > 0 && !is_used(used.back(1, size)) {
        used = used.back(1, size);
        rest -= 1;
    }
    let mut hidden = Vec::new();
    let mut end = used;
    while rest > 0 {
        let last = end.back(1, size);
        let marked = is_used(last) && flags(read(last)) & F_NEXT != 0;
        let span = if marked { u16::try_from(read(last) & 0xffff_ffff).unwrap_or(0) } else { 1 };
        if span == 0 || span > rest {
            // The driver has reused the buffer's first places, so the buffer was visible.
            break;
        }
        let first = end.back(span, size);
        if !is_used(first) {
            #[expect(clippy::cast_possible_truncation, reason = "one of its fields")]
            let id = (read(last) >> 32) as u16;
            hidden.push((first.index, word(first.used_flags(), id, 0)));
        }
        end = first;
        rest -= span;
    }
    Some(Standing { used, hidden })
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u16 = F_AVAIL | F_USED;

    fn words(flags: &[u16]) -> Vec<u64> {
        (0..).zip(flags).map(|(id, flags)| word(*flags, id, 60)).collect()
    }

    fn at(index: u16, wrap: bool) -> Position {
        Position { index, ready: if wrap { F_AVAIL } else { F_USED } }
    }

    fn position(flags: &[u16]) -> Option<Position> {
        find(&words(flags)).map(|standing| standing.used)
    }

    #[test]
    fn the_position_is_behind_the_last_used_descriptor() {
        assert_eq!(position(&[0; 4]), Some(at(0, true)), "fresh");
        assert_eq!(
            position(&[F_AVAIL, F_AVAIL, 0, 0]),
            Some(at(0, true)),
            "two of the first round"
        );
        assert_eq!(position(&[F_AVAIL; 4]), Some(at(0, true)), "all of the first round");
        assert_eq!(position(&[W, F_AVAIL, 0, 0]), Some(at(1, true)));
        assert_eq!(position(&[W, W, W, W]), Some(at(0, false)), "a round is over");
        assert_eq!(position(&[F_USED, W, F_AVAIL, F_AVAIL]), Some(at(2, true)), "over the end");
        assert_eq!(position(&[0, F_USED, W, W]), Some(at(1, false)));
        assert_eq!(position(&[F_USED, F_USED, F_AVAIL, F_AVAIL]), Some(at(2, true)), "all over it");
        assert_eq!(position(&[0, 0, 0, 0]), Some(at(0, true)), "two rounds are over");
        assert_eq!(position(&[0, F_AVAIL, 0, F_AVAIL]), None, "no driver does that");
        assert_eq!(position(&[F_AVAIL]), Some(at(0, true)));
        assert_eq!(position(&[]), None);
    }

    #[test]
    fn a_burst_that_was_not_shown_is_found() {
        let hidden = |words: &[u64]| find(words).unwrap().hidden;
        // The first of three buffers is missing. All buffers before it were visible.
        assert_eq!(hidden(&words(&[W, F_AVAIL, W, W, F_AVAIL, 0])), [(1, word(W, 1, 0))]);
        // The same with chains of two and three places, and their marks.
        let mut chains = words(&[W, F_AVAIL, W | F_NEXT, F_AVAIL, F_AVAIL, W | F_NEXT, F_AVAIL, 0]);
        chains[2] = word(W | F_NEXT, 40, 2);
        chains[5] = word(W | F_NEXT, 41, 3);
        assert_eq!(find(&chains).unwrap().used, at(6, true));
        assert_eq!(hidden(&chains), [(3, word(W, 41, 0)), (1, word(W, 40, 0))]);
        // Impossible marks end the search.
        for span in [0, 7, u32::MAX] {
            chains[5] = word(W | F_NEXT, 41, span);
            assert_eq!(hidden(&chains), []);
        }
    }

    #[test]
    fn a_front_ends_position_must_be_possible() {
        let ring = words(&[F_USED, W, F_AVAIL, F_AVAIL]);
        let possible = [at(2, true), at(3, true), at(0, false), at(1, false)];
        for index in 0..4 {
            for wrap in [false, true] {
                let at = at(index, wrap);
                assert_eq!(is_possible(&ring, at), possible.contains(&at), "{at:?}");
            }
        }
        assert!(is_possible(&words(&[0, F_AVAIL, 0, F_AVAIL]), at(1, true)));
    }
}
