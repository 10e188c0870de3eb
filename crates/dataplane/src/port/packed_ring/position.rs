//! Positions in a packed ring. A position consists of an index and a wrap counter (virtio 1.2
//! §2.8.1).

use super::super::ring::{RING_SIZE_MAX, RingError};

pub(super) const F_AVAIL: u16 = 1 << 7;
pub(super) const F_USED: u16 = 1 << 15;
const WRAP: u16 = 1 << 15;

/// A position in a packed ring: an index, and the state of the wrap counter at that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Index of the descriptor, always below the ring's size.
    pub(super) index: u16,
    /// The `AVAIL` and `USED` bits of a descriptor that is available at this position. In an
    /// available descriptor, `AVAIL` equals the driver's wrap counter, and `USED` is the inverse.
    pub(super) ready: u16,
}

impl Position {
    /// Decodes a position: the index from bits 0 to 14, and the wrap counter from bit 15. `None` if
    /// the index is beyond the ring.
    pub(super) const fn from_base(half: u16, size: u16) -> Option<Self> {
        let ready = if half & WRAP == 0 { F_USED } else { F_AVAIL };
        let index = half & !WRAP;
        if index < size { Some(Self { index, ready }) } else { None }
    }

    /// Encodes the ring position as 16 bits, as vhost-user does: index and wrap counter. `to_base`
    /// is the inverse of [`Self::from_base`].
    pub(super) const fn to_base(self) -> u16 {
        self.index | if self.ready == F_AVAIL { WRAP } else { 0 }
    }

    /// The `AVAIL` and `USED` bits of a used descriptor at this ring position. The `AVAIL` and
    /// `USED` bits of a used descriptor both equal the wrap counter.
    #[inline(always)]
    pub(super) const fn used_flags(self) -> u16 {
        if self.ready == F_AVAIL { F_AVAIL | F_USED } else { 0 }
    }

    /// Moves the position `by` descriptors forward. The number
    /// `by` must not exceed the ring size `size`.
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

    /// Returns the position `by` descriptors before this position. The number `by` must not exceed
    /// the number of descriptors in the ring.
    pub(super) const fn back(self, by: u16, size: u16) -> Self {
        if by <= self.index {
            return Self { index: self.index - by, ready: self.ready };
        }
        #[expect(clippy::cast_possible_truncation, reason = "below the size")]
        let index = (self.index as u32 + size as u32 - by as u32) as u16;
        Self { index, ready: self.ready ^ (F_AVAIL | F_USED) }
    }

    /// Number of the ring position, counted over two rounds of the ring. The index and the wrap
    /// counter have the same values again after two rounds.
    pub(super) const fn of_two_rounds(self, size: u16) -> u32 {
        self.index as u32 + if self.ready == F_AVAIL { 0 } else { size as u32 }
    }
}

/// Returns the number of descriptors from position `event` to position `to`, below twice the ring
/// size. `event` is an index and a wrap counter that the driver wrote. The index in `event` may be
/// any value.
pub(super) fn distance(event: u16, to: Position, size: u16) -> u32 {
    let rounds = 2 * u32::from(size);
    let event = u32::from(event & !WRAP) + if event & WRAP == 0 { u32::from(size) } else { 0 };
    (to.of_two_rounds(size) + rounds - event % rounds) % rounds
}

/// Checks the number of entries of a packed ring, which need not be a power of two (virtio 1.2
/// §2.8.10.1).
pub(super) fn checked_size(size: u32) -> Result<u16, RingError> {
    match u16::try_from(size) {
        Ok(entries) if (1..=RING_SIZE_MAX).contains(&size) => Ok(entries),
        _ => Err(RingError::PackedSize(size)),
    }
}

/// Start position of a packed ring for which the front end gave the base `base`.
///
/// The previous device took the descriptors between the used and the available position, but did
/// not return these descriptors. The ring starts at the used position, so that the switch takes the
/// descriptors again. If the upper half of a ring's base is 0, the front end gave no used position.
/// A ring's base has only 16 bits in DPDK's driver and in the front end of the `vhost` crate.
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
        // Three descriptors were taken and not returned. In one of the cases they lie across the
        // ring's end.
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
