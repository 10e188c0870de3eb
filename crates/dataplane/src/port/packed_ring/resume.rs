//! Derives the position of a packed ring from the content of the ring's descriptors.
//!
//! # Problem
//! A packed ring keeps no index in the guest's memory, and QEMU's network device requests no
//! inflight region. If QEMU loses its switch, QEMU gives the next switch the position that it gave
//! the last switch, usually the ring's start. A ring that continues at an outdated position never
//! carries frames again.
//!
//! # Approach
//! Only the driver changes the `AVAIL` bits, so the `AVAIL` bits give the driver's position. The
//! search goes back from the driver's position to the last used descriptor, and the ring continues
//! after that descriptor. A buffer of several descriptors gets one used descriptor, in the buffer's
//! first place (virtio 1.2 §2.8.6). The other descriptors of a used buffer still look available.
//! For this reason, the switch also marks the last descriptor of a buffer with several descriptors
//! as used. The used mark in a buffer's last descriptor has the flag `NEXT`, the buffer's id and
//! its number of descriptors. No driver reads the last descriptor of a used buffer, because drivers
//! remember how many descriptors each buffer has. If the switch has marked used buffers since the
//! ring's start, a field of the device's event area contains [`MARKED`]. Drivers ignore this field
//! of the event area without the flag `DESC` (§2.8.14).
//!
//! # Bursts that were not made visible
//! The switch writes the first descriptor of a burst last. If the switch dies before it writes the
//! first descriptor, the driver's content of the burst's other descriptors is already lost. The
//! next switch makes a burst that was not finished visible to the driver. The next switch returns
//! the burst's first buffer with length 0, and drivers drop buffers of length 0.
//!
//! # Trust
//! A guest may write any values into a packed ring. The switch reads each word of the ring once,
//! into a copy. The search for the last used descriptor ends after one round of the ring. The
//! switch replaces a word of the ring only if the word still has the value that was read. The
//! switch refuses a ring if the ring's position is uncertain, for example if another switch stopped
//! in the middle of the ring.

use core::sync::atomic::Ordering;

use super::super::ring::{F_NEXT, RingError};
use super::PackedRing;
use super::position::{F_AVAIL, F_USED, Position, distance};

/// Value in the device's event area which means that the switch has marked used buffers since the
/// ring's start.
pub(super) const MARKED: u16 = 0x5073;
/// Maximum number of attempts to read a ring while the driver writes to the ring.
const READS: u32 = 16;
const START: Position = Position { index: 0, ready: F_AVAIL };

/// Position of a packed ring, derived from a copy of the ring.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    used: Position,
    /// Used buffers that the last switch did not make visible: each buffer's first position, and
    /// the word that makes the buffer visible. The list `hidden` begins with the last buffer of the
    /// burst.
    hidden: Vec<(u16, u64)>,
}

impl PackedRing {
    /// Continues the ring at its real position, and ignores the base that the front end gave. The
    /// ring must not belong to a worker yet, and must have no inflight region that records the
    /// position.
    ///
    /// # Errors
    /// Returns [`RingError::Lost`] if the ring's position is uncertain. If the function returns an
    /// error, the ring is unchanged.
    pub fn resume(&mut self) -> Result<(), RingError> {
        if self.mark == 0 && self.used != START {
            // Another switch ran the ring. The front end gives the position, which may be wrong.
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

    /// Copies the second half of each descriptor, from the last descriptor to the first. The driver
    /// may add descriptors during the copying. Because the copying ends at the first descriptor, a
    /// copy with a new descriptor also contains all earlier descriptors.
    fn copy(&self) -> Vec<u64> {
        let read = |index| self.half(index, 1).load(Ordering::Acquire);
        let mut words: Vec<u64> = (0..self.size).rev().map(read).collect();
        words.reverse();
        words
    }

    /// Marks the last descriptor of a returned buffer of `span` descriptors as used. The caller
    /// must mark a buffer's last descriptor before the buffer's first descriptor is written.
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

/// The position at which the driver makes the next descriptor available. `None` if the copy of the
/// ring is inconsistent, for example because the driver was writing a chain.
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

/// Whether a ring may be at position `used`. All descriptors from `used` to the driver's position
/// must be available. `is_possible` also returns true for an inconsistent copy of the ring, because
/// the driver causes the inconsistency, and not the front end.
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

/// Derives a ring's position from a copy of a ring with marked used buffers.
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
        // The same case with chains of two and three places, and with their marks.
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
