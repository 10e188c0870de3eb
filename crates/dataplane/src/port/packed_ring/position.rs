//! Positions in a packed ring, with their wrap counters (virtio 1.2 §2.8.1).

use super::super::ring::{RING_SIZE_MAX, RingError};

pub(super) const F_AVAIL: u16 = 1 << 7;
pub(super) const F_USED: u16 = 1 << 15;
const WRAP: u16 = 1 << 15;

/// An index in the ring and the state of the wrap counter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Always below the ring's size.
    pub(super) index: u16,
    /// The `AVAIL` and `USED` bits of a descriptor that is available here: `AVAIL` has the value of
    /// the wrap counter, `USED` its inverse.
    pub(super) ready: u16,
}

impl Position {
    /// Decodes an index and, in bit 15, the wrap counter; `None` if the index is beyond the ring.
    pub(super) const fn from_base(half: u16, size: u16) -> Option<Self> {
        let ready = if half & WRAP == 0 { F_USED } else { F_AVAIL };
        let index = half & !WRAP;
        if index < size { Some(Self { index, ready }) } else { None }
    }

    /// The inverse of [`Self::from_base`].
    pub(super) const fn to_base(self) -> u16 {
        self.index | if self.ready == F_AVAIL { WRAP } else { 0 }
    }

    /// Flags of a descriptor that is used here: both bits have the value of the wrap counter.
    #[inline(always)]
    pub(super) const fn used_flags(self) -> u16 {
        if self.ready == F_AVAIL { F_AVAIL | F_USED } else { 0 }
    }

    /// Moves the position `by` descriptors forward, at most one round.
    #[inline(always)]
    pub(super) const fn advance(&mut self, by: u16, size: u16) {
        let index = self.index as u32 + by as u32;
        let round = index >= size as u32;
        if round {
            self.ready ^= F_AVAIL | F_USED;
        }
        #[expect(clippy::cast_possible_truncation, reason = "below the size")]
        {
            self.index = (if round { index - size as u32 } else { index }) as u16;
        }
    }

    /// The position `by` descriptors back, at most one round.
    pub(super) const fn back(self, by: u16, size: u16) -> Self {
        if by <= self.index {
            return Self { index: self.index - by, ready: self.ready };
        }
        #[expect(clippy::cast_possible_truncation, reason = "below the size")]
        let index = (self.index as u32 + size as u32 - by as u32) as u16;
        Self { index, ready: self.ready ^ (F_AVAIL | F_USED) }
    }

    /// Number of the position within the two rounds after which everything repeats.
    pub(super) const fn of_two_rounds(self, size: u16) -> u32 {
        self.index as u32 + if self.ready == F_AVAIL { 0 } else { size as u32 }
    }
}

/// Number of descriptors from `event` to `to`, modulo two rounds. `event` is an unchecked index and
/// wrap counter as a driver writes them.
pub(super) fn distance(event: u16, to: Position, size: u16) -> u32 {
    let rounds = 2 * u32::from(size);
    let event = u32::from(event & !WRAP) + if event & WRAP == 0 { u32::from(size) } else { 0 };
    (to.of_two_rounds(size) + rounds - event % rounds) % rounds
}

/// Checks a packed ring's size, which need not be a power of two (virtio 1.2 §2.8.10.1).
pub(super) fn checked_size(size: u32) -> Result<u16, RingError> {
    match u16::try_from(size) {
        Ok(entries) if (1..=RING_SIZE_MAX).contains(&size) => Ok(entries),
        _ => Err(RingError::PackedSize(size)),
    }
}

/// Start position of a ring whose base is `base`.
///
/// The descriptors between the used and the available position were taken by the previous device
/// and not returned. The ring takes them again, so it starts at the used position. An upper half of
/// 0 means that the front end gave no used position: DPDK's driver and the front end of the `vhost`
/// crate have 16 bits for a base.
pub(super) fn start(base: u32, size: u16) -> Result<Position, RingError> {
    #[expect(clippy::cast_possible_truncation, reason = "its two halves")]
    let (low, high) = (base as u16, (base >> 16) as u16);
    let available = Position::from_base(low, size).ok_or(RingError::Base(base))?;
    let ahead = distance(high, available, size);
    Ok(match Position::from_base(high, size) {
        Some(used) if high != 0 && (1..u32::from(size)).contains(&ahead) => used,
        _ => available,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_flip_where_the_ring_ends() {
        let mut at = Position { index: 0, ready: F_AVAIL };
        for (by, index, ready) in
            [(3, 3, F_AVAIL), (2, 0, F_USED), (4, 4, F_USED), (5, 4, F_AVAIL), (1, 0, F_USED)]
        {
            at.advance(by, 5);
            assert_eq!(at, Position { index, ready });
        }
        assert_eq!(at.used_flags(), 0);
        at.advance(32_768, 32_768);
        assert_eq!(at, Position { index: 0, ready: F_AVAIL });
        at.index = 32_767;
        at.advance(32_768, 32_768);
        assert_eq!(at, Position { index: 32_767, ready: F_USED });
        assert_eq!(Position { index: 0, ready: F_AVAIL }.used_flags(), F_AVAIL | F_USED);
        for (index, by) in [(0, 1), (4, 5), (3, 2), (0, 5), (2, 2)] {
            let from = Position { index, ready: F_USED };
            let mut there = from.back(by, 5);
            there.advance(by, 5);
            assert_eq!(there, from);
        }
    }

    #[test]
    fn a_base_is_read_as_it_is_written() {
        for half in [0, 5, 0x8000, 0x8007] {
            let at = Position::from_base(half, 8).unwrap();
            assert_eq!(at.to_base(), half);
        }
        assert_eq!(start(0x8008, 8), Err(RingError::Base(0x8008)));
        let at = |half| Position::from_base(half, 8).unwrap();
        // Three descriptors were taken and not returned. In one case they lie across the ring's
        // end.
        assert_eq!(start(0x8002_8005, 8), Ok(at(0x8002)));
        assert_eq!(start(0x8006_0001, 8), Ok(at(0x8006)));
        // The front end gave no upper half.
        for low in [0x8000, 3, 0x8003] {
            assert_eq!(start(u32::from(low), 8), Ok(at(low)));
        }
        // The upper half is impossible.
        assert_eq!(start(0x8007_8005, 8), Ok(at(0x8005)));
        assert_eq!(start(0x800f_8005, 8), Ok(at(0x8005)));
    }

    #[test]
    fn distances_go_over_both_rounds() {
        let to = Position { index: 2, ready: F_USED };
        assert_eq!(distance(2, to, 8), 0);
        assert_eq!(distance(1, to, 8), 1);
        assert_eq!(distance(0x8007, to, 8), 3);
        assert_eq!(distance(0x8002, to, 8), 8);
        assert_eq!(distance(3, to, 8), 15);
        // The size is not a power of two.
        assert_eq!(distance(0x8006, Position { index: 0, ready: F_USED }, 7), 1);
        assert_eq!(distance(6, Position { index: 0, ready: F_AVAIL }, 7), 1);
        // A nonsensical event yields some number and no panic.
        assert!(distance(0x7fff, to, 1) < 2);
        assert!(distance(0xffff, to, 3) < 6);
    }

    #[test]
    fn sizes_need_not_be_powers_of_two() {
        assert_eq!(checked_size(1000), Ok(1000));
        assert_eq!(checked_size(32_768), Ok(32_768));
        for size in [0, 32_769, 65_536 + 8] {
            assert_eq!(checked_size(size), Err(RingError::PackedSize(size)));
        }
    }
}
