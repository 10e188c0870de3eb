//! Layout of the records in a capture's buffer: a header of [`HEADER`] bytes, then the frame.

use penstock_units::{Cycles, PortId, QueueId};

use crate::drop::DropReason;
use crate::unit::Unit;

/// Length of a record's header in bytes.
const HEADER: usize = 40;
/// Offsets of the fields that are written after the frame was copied.
const FATE: usize = 8;
const OTHER: usize = 10;
/// Number of [`Fate::Dropped`] with the first reason.
const FIRST_REASON: u8 = 5;
/// Port number that means "no port".
const NO_PORT: u16 = u16::MAX;

/// Whether the switch received a frame from the port or sent the frame to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Received,
    Sent,
}

/// What the switch did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The frame has gone nowhere yet.
    Undecided,
    /// Every receiver's port took the frame.
    Forwarded,
    /// The frame waits in the queue of an output, which may still drop it.
    Queued,
    /// The frame is on its way to another worker, which may still drop it.
    HandedOver,
    Dropped(DropReason),
    /// The record is void.
    Void,
}

impl Fate {
    /// Order of the fates of a frame with several receivers: the highest one is the frame's fate. A
    /// drop is certain, and so the other fates are in the order of what may still go wrong.
    const fn rank(self) -> u8 {
        match self {
            Self::Undecided | Self::Void => 0,
            Self::Forwarded => 1,
            Self::Queued => 2,
            Self::HandedOver => 3,
            Self::Dropped(_) => 4,
        }
    }

    /// Whether a frame with this fate at one receiver and the fate `other` at the next one has the
    /// fate `other`.
    pub(super) const fn yields_to(self, other: Self) -> bool {
        self.rank() <= other.rank()
    }

    const fn number(self) -> u8 {
        match self {
            Self::Undecided => 0,
            Self::Forwarded => 1,
            Self::Void => 2,
            Self::Queued => 3,
            Self::HandedOver => 4,
            Self::Dropped(reason) => FIRST_REASON + reason as u8,
        }
    }

    fn of(number: u8) -> Self {
        match number {
            0 => Self::Undecided,
            1 => Self::Forwarded,
            3 => Self::Queued,
            4 => Self::HandedOver,
            dropped => {
                let at = dropped.checked_sub(FIRST_REASON);
                let reason = at.and_then(|at| DropReason::ALL.get(at as usize));
                reason.map_or(Self::Void, |reason| Self::Dropped(*reason))
            }
        }
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub at: Cycles,
    pub fate: Fate,
    pub direction: Direction,
    pub other: Option<PortId>,
    pub port: PortId,
    pub queue: QueueId,
    pub len: u32,
    pub missed: u32,
    pub tci: u16,
}

impl Header {
    pub(super) const fn new(at: Cycles, unit: Unit, direction: Direction) -> Self {
        Self {
            at,
            fate: Fate::Undecided,
            direction,
            other: None,
            port: unit.port,
            queue: unit.queue,
            len: 0,
            missed: 0,
            tci: 0,
        }
    }

    /// Returns the header of a frame without a queue pair.
    pub(super) const fn of(at: Cycles, port: PortId, direction: Direction) -> Self {
        Self::new(at, Unit { port, queue: QueueId(0) }, direction)
    }
}

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Cycle counter of the worker at the beginning of the frame's batch.
    pub at: Cycles,
    pub fate: Fate,
    pub direction: Direction,
    /// The other port: the last output of a received frame, or the source of a sent frame.
    pub other: Option<PortId>,
    /// Port of the capture.
    pub port: PortId,
    pub queue: QueueId,
    /// Length of the frame in bytes, without FCS. 0 if the frame's bytes are unknown.
    pub len: u32,
    /// Frames that the capture left out since the record before.
    pub missed: u32,
    /// Priority and VLAN of the frame inside the switch.
    pub tci: u16,
    /// The first bytes of the frame.
    pub bytes: &'a [u8],
}

/// Appends a record whose frame has `len` copied bytes. Returns the record's position, or `None` if
/// the buffer has no room for it.
pub(super) fn put(
    buffer: &mut Vec<u8>,
    header: &Header,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    let at = buffer.len();
    if buffer.capacity() - at < HEADER + len {
        return None;
    }
    let direction = u8::from(header.direction == Direction::Sent);
    buffer.extend_from_slice(&header.at.0.to_le_bytes());
    buffer.extend_from_slice(&[header.fate.number(), direction]);
    let other = header.other.map_or(NO_PORT, |other| other.0);
    for number in [other, header.port.0, header.queue.0, header.tci, 0] {
        buffer.extend_from_slice(&number.to_le_bytes());
    }
    let copied = u32::try_from(len).unwrap_or(u32::MAX);
    for number in [header.len, copied, header.missed, 0, 0] {
        buffer.extend_from_slice(&number.to_le_bytes());
    }
    debug_assert_eq!(buffer.len(), at + HEADER);
    buffer.resize(at + HEADER + len, 0);
    fill(&mut buffer[at + HEADER..]);
    Some(at)
}

/// Returns what the switch did with the frame of the record at position `at`.
pub(super) fn fate(buffer: &[u8], at: usize) -> Fate {
    buffer.get(at + FATE).map_or(Fate::Void, |number| Fate::of(*number))
}

/// Changes the fate and the other port of the record at position `at`.
pub(super) fn set_fate(buffer: &mut [u8], at: usize, fate: Fate, other: Option<PortId>) {
    if let Some(number) = buffer.get_mut(at + FATE) {
        *number = fate.number();
    }
    if let (Some(other), Some(place)) = (other, buffer.get_mut(at + OTHER..at + OTHER + 2)) {
        place.copy_from_slice(&other.0.to_le_bytes());
    }
}

/// Makes the record at position `at` void.
pub(super) fn void(buffer: &mut [u8], at: usize) {
    set_fate(buffer, at, Fate::Void, None);
}

/// Returns the records of a buffer, without void records.
pub fn records(mut buffer: &[u8]) -> impl Iterator<Item = Record<'_>> {
    core::iter::from_fn(move || {
        let (header, rest) = buffer.split_first_chunk::<HEADER>()?;
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let (bytes, rest) = rest.split_at_checked(word(24) as usize)?;
        buffer = rest;
        let at = Cycles(u64::from_le_bytes(core::array::from_fn(|byte| header[byte])));
        let direction = if header[9] == 0 { Direction::Received } else { Direction::Sent };
        Some(Record {
            at,
            fate: Fate::of(header[FATE]),
            direction,
            other: Some(PortId(short(OTHER))).filter(|port| port.0 != NO_PORT),
            port: PortId(short(12)),
            queue: QueueId(short(14)),
            tci: short(16),
            len: word(20),
            missed: word(28),
            bytes,
        })
    })
    .filter(|record| record.fate != Fate::Void)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fate_has_a_number_of_its_own() {
        let dropped = DropReason::ALL.iter().map(|reason| Fate::Dropped(*reason));
        let others = [Fate::Undecided, Fate::Forwarded, Fate::Queued, Fate::HandedOver, Fate::Void];
        for fate in others.into_iter().chain(dropped) {
            assert_eq!(Fate::of(fate.number()), fate);
        }
    }

    #[test]
    fn of_several_receivers_the_least_certain_one_decides_unless_one_lost_the_frame() {
        let lost = Fate::Dropped(DropReason::RingFull);
        let rising = [Fate::Undecided, Fate::Forwarded, Fate::Queued, Fate::HandedOver, lost];
        for (at, fate) in rising.iter().enumerate() {
            assert!(rising[at..].iter().all(|next| fate.yields_to(*next)), "{fate:?}");
            assert!(rising[..at].iter().all(|before| !fate.yields_to(*before)), "{fate:?}");
        }
    }
}
