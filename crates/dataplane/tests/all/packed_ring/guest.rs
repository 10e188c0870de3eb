//! The test guest has one packed ring, guest memory, and a driver that can also violate the
//! specification.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use penstock_dataplane::batch::Batch;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::packed_ring::{PackedRing, RingAddresses, RingError, RingSpec};

pub use crate::ring_bed::{BUFFERS, INDIRECT, MEMORY, NEXT, SECOND, WRITE, frames_of, pattern};
use crate::ring_bed::{Memory, USER, batch_of};

pub const AVAIL: u16 = 1 << 7;
pub const USED: u16 = 1 << 15;
/// Default number of entries in the ring. The ring's size is small, so that the ring wraps soon.
/// The ring's size is not a power of two, so that the tests detect code that masks an index.
pub const SIZE: u16 = 50;
pub const RING: u64 = 0;
pub const DRIVER_EVENT: u64 = 0x4000;
pub const DEVICE_EVENT: u64 = 0x4004;
/// Start position of a new packed ring: index 0, and value 1 in the two wrap counters.
pub const FRESH: u32 = 0x8000_8000;

/// A part of a buffer: guest address, number of bytes, and descriptor flags.
pub type Part = (u64, u32, u16);

/// A position in the packed ring with its wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub index: u16,
    pub wrap: bool,
}

impl Place {
    pub fn advance(&mut self, by: u16, size: u16) {
        for _ in 0..by {
            self.index += 1;
            if self.index == size {
                *self = Self { index: 0, wrap: !self.wrap };
            }
        }
    }

    pub fn to_base(self) -> u32 {
        u32::from(self.index) | u32::from(self.wrap) << 15
    }
}

/// The guest's side of one packed ring.
pub struct Guest {
    pub memory: Memory,
    pub size: u16,
    pub in_order: bool,
    pub avail: Place,
    pub used: Place,
    /// Buffers that the device has at present, in the order in which they were offered: buffer ID
    /// and number of descriptors.
    pub out: VecDeque<(u16, u16)>,
}

impl Deref for Guest {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Guest {
    pub fn new() -> Self {
        let fresh = Place { index: 0, wrap: true };
        Self {
            memory: Memory::new(),
            size: SIZE,
            in_order: false,
            avail: fresh,
            used: fresh,
            out: VecDeque::new(),
        }
    }

    /// Returns the addresses of the ring's parts, as the driver sets them.
    pub fn addresses() -> RingAddresses {
        RingAddresses {
            descriptors: USER + RING,
            available: USER + DRIVER_EVENT,
            used: USER + DEVICE_EVENT,
        }
    }

    pub fn ring(&self) -> PackedRing {
        self.ring_with(|_| ()).unwrap()
    }

    pub fn spec(&self) -> RingSpec {
        let spec = RingSpec::new(self.size.into(), Self::addresses());
        RingSpec { base: FRESH, in_order: self.in_order, ..spec }
    }

    pub fn ring_with(&self, edit: impl FnOnce(&mut RingSpec)) -> Result<PackedRing, RingError> {
        let mut spec = self.spec();
        edit(&mut spec);
        PackedRing::new(spec, Arc::clone(&self.map))
    }

    /// Returns the address of the ring in the guest's mapping, for threads that rewrite the ring.
    pub fn address(&self) -> usize {
        self.at(RING, 16) as usize
    }

    /// Writes descriptor `i` of the table or ring at `table`, with exactly the given flags.
    pub fn descriptor(&self, table: u64, i: u16, (guest, len, flags): Part, id: u16) {
        let at = table + 16 * u64::from(i);
        self.write(at, guest);
        self.write(at + 8, len);
        self.write(at + 12, id);
        self.write(at + 14, flags);
    }

    pub fn flags(&self, i: u16) -> u16 {
        self.read(RING + 16 * u64::from(i) + 14)
    }

    pub fn set_flags(&self, i: u16, flags: u16) {
        self.write(RING + 16 * u64::from(i) + 14, flags);
    }

    /// Writes a table of descriptors for an indirect buffer.
    pub fn table(&self, at: u64, parts: &[Part]) -> Part {
        for (i, part) in (0..).zip(parts) {
            self.descriptor(at, i, *part, 0x5a5a);
        }
        (at, 16 * parts.len() as u32, INDIRECT)
    }

    /// Returns the flags that a descriptor at ring position `place` has if it is available.
    pub fn available(place: Place) -> u16 {
        if place.wrap { AVAIL } else { USED }
    }

    /// Makes the descriptors in `parts` available to the device as one buffer with ID `id`. The
    /// flags of the chain's first descriptor are written last, because these flags make the whole
    /// chain available.
    pub fn offer(&mut self, id: u16, parts: &[Part]) {
        let head = self.avail;
        for (i, (guest, len, flags)) in parts.iter().enumerate() {
            let last = i + 1 == parts.len();
            let next = if last { 0 } else { NEXT };
            let all = flags | next | Self::available(self.avail);
            let now = if i == 0 { !all & (AVAIL | USED) } else { all };
            // Only the id of the last descriptor counts.
            let id = if last { id } else { 0xfff0 };
            self.descriptor(RING, self.avail.index, (*guest, *len, now), id);
            self.avail.advance(1, self.size);
        }
        let next = if parts.len() > 1 { NEXT } else { 0 };
        self.set_flags(head.index, parts[0].2 | next | Self::available(head));
        self.out.push_back((id, parts.len() as u16));
    }

    /// Returns the buffers that the device has returned since the last call, each with ID, length
    /// and write flag.
    pub fn take_used(&mut self) -> Vec<(u16, u32, bool)> {
        let mut got = Vec::new();
        while !self.out.is_empty() {
            let flags = self.flags(self.used.index);
            if flags & (AVAIL | USED) != if self.used.wrap { AVAIL | USED } else { 0 } {
                break;
            }
            let at = RING + 16 * u64::from(self.used.index);
            let (id, len) = (self.read::<u16>(at + 12), self.read::<u32>(at + 8));
            // With in-order use, one entry may return several buffers. It has the id of the last
            // buffer.
            let count = match self.out.iter().position(|(known, _)| *known == id) {
                Some(at) if self.in_order => at + 1,
                Some(0) => 1,
                other => panic!("id {id} came back, found at {other:?} of {:?}", self.out),
            };
            let gone: Vec<_> = self.out.drain(..count).collect();
            self.used.advance(gone.iter().map(|(_, span)| span).sum(), self.size);
            let (last, before) = gone.split_last().unwrap();
            got.extend(before.iter().map(|(id, _)| (*id, 0, false)));
            got.push((last.0, len, flags & WRITE != 0));
        }
        got
    }

    /// Offers the frame `frame` to the device in a single descriptor with a new buffer ID.
    pub fn send_plain(&mut self, frame: &[u8]) {
        let id = self.avail.index;
        let at = BUFFERS + 0x1000 * u64::from(id);
        self.fill(at, &[0; 12]);
        self.fill(at + 12, frame);
        self.offer(id, &[(at, 12 + frame.len() as u32, 0)]);
    }

    /// Offers the frame `frame` to the device in a chain of `parts` descriptors.
    pub fn send_chain(&mut self, frame: &[u8], parts: u32) {
        let id = self.avail.index;
        let at = BUFFERS + 0x1000 * u64::from(id);
        self.fill(at, &[0; 12]);
        self.fill(at + 12, frame);
        let total = 12 + frame.len() as u32;
        let piece = |i: u32| {
            let rest = if i + 1 == parts { total - 14 * i } else { 14 };
            (at + u64::from(14 * i), rest, 0)
        };
        self.offer(id, &(0..parts).map(piece).collect::<Vec<_>>());
    }

    /// Posts one receive buffer for each length in `lens`. Returns the guest addresses of the
    /// posted buffers.
    pub fn post(&mut self, lens: &[u32]) -> Vec<u64> {
        let mut places = Vec::new();
        for len in lens {
            let id = self.avail.index;
            let at = BUFFERS + 0x1000 * u64::from(id);
            self.offer(id, &[(at, *len, WRITE)]);
            places.push(at);
        }
        places
    }
}

/// Takes all frames from the ring, and checks that no chain is bad.
pub fn take(ring: &mut PackedRing) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    ring.take(&mut batch);
    assert_eq!(batch.errors, 0);
    frames_of(&batch)
}

/// Takes all frames from the ring and returns their buffers to the driver. The function also
/// returns the number of bad chains in the ring.
pub fn taken(ring: &mut PackedRing) -> (Vec<Vec<u8>>, u32) {
    let mut batch = Batch::new();
    ring.take(&mut batch);
    let frames = frames_of(&batch);
    ring.complete_taken();
    ring.publish();
    (frames, batch.errors)
}

pub fn give(ring: &mut PackedRing, frames: &[Vec<u8>]) -> TxOutcome {
    let out = write(ring, frames);
    ring.publish();
    out
}

/// Writes the frames to the ring's receive buffers without publishing the buffers.
pub fn write(ring: &mut PackedRing, frames: &[Vec<u8>]) -> TxOutcome {
    let (batch, order) = batch_of(frames);
    let mut out = TxOutcome::default();
    ring.give(&batch, &order, &mut out);
    out
}
