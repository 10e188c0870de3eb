//! The input is a sequence of a guest's writes to a split ring, mixed with the switch's calls on
//! the ring.
//!
//! **Rule.** No byte outside the guest's regions changes. After each `take` and `give`, the frames,
//! used entries and used index equal those of `model`. If ring and buffers overlap in memory, the
//! target does not compare results.

use std::sync::Arc;

use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::VNET_HDR_LEN;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::split_ring::{RingAddresses, RingSpec, SplitRing};

use crate::guest::{
    Guest, REGIONS, TABLES, USER, address, check_taken, fill, length, place, with_guest,
};
use crate::input::Input;
use crate::model::{Memory, Range, WRITE, overlap};

const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x600;
const SIZE_MAX_LOG2: usize = 6;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    with_guest(|guest, batch| {
        let mut input = Input::new(data);
        let Some(mut game) = Game::new(&mut input, guest) else { return };
        while !input.is_empty() {
            batch.clear();
            batch.errors = 0;
            game.step(&mut input, batch);
        }
    });
}

/// State of a test with one split ring.
struct Game<'a> {
    guest: &'a Guest,
    ring: SplitRing,
    size: u16,
    header: usize,
    mergeable: bool,
    /// Available index that the guest last wrote in `offer`.
    offered: u16,
    used: u16,
}

impl<'a> Game<'a> {
    /// Creates a ring from the input. Returns `None` if the switch refuses the ring.
    fn new(input: &mut Input<'_>, guest: &'a Guest) -> Option<Self> {
        let shape = input.u8();
        let size = 1_u16 << (usize::from(shape & 7)).min(SIZE_MAX_LOG2);
        let mergeable = shape & 8 != 0;
        let header = if mergeable || shape & 16 == 0 { VNET_HDR_LEN } else { 10 };
        let start = if shape & 32 != 0 { 0xfff0_u16 } else { 0 };
        guest.write(USED + 2, &start.to_le_bytes());
        guest.write(AVAILABLE + 2, &start.to_le_bytes());
        let (available, used) = (USER + AVAILABLE, USER + USED);
        let at = RingAddresses { descriptors: USER + DESCRIPTORS, available, used };
        let spec = RingSpec {
            base: start.into(),
            event_idx: shape & 64 != 0,
            mergeable,
            header,
            ..RingSpec::new(size.into(), at)
        };
        let ring = SplitRing::new(spec, Arc::clone(&guest.memory)).ok()?;
        Some(Self { guest, ring, size, header, mergeable, offered: start, used: start })
    }

    fn step(&mut self, input: &mut Input<'_>, batch: &mut Batch) {
        match input.below(10) {
            0 => {
                let at = DESCRIPTORS + 16 * u64::from(input.u8() % 64);
                self.guest.write(at, &descriptor(input));
            }
            1 => {
                let at = TABLES + 16 * u64::from(input.u8() % 64);
                self.guest.write(at, &descriptor(input));
            }
            2 => {
                let head = u16::from(input.u8());
                self.offer(head, 1);
            }
            3 => {
                let (head, count) = (u16::from(input.u8()), input.u8() % 64);
                self.offer(head, count);
            }
            4 => self.guest.write(AVAILABLE + 2, &input.u16().to_le_bytes()),
            5 => {
                let at = address(input);
                let len = input.below(32);
                let bytes = input.slice(len);
                self.guest.write(at, bytes);
            }
            6 | 7 => self.take(batch),
            8 => self.give(input, batch),
            _ => {
                self.ring.notify();
                let _ = self.ring.has_waiting();
            }
        }
    }

    /// Makes `count` consecutive heads available, starting with `head`.
    fn offer(&mut self, head: u16, count: u8) {
        for i in 0..u16::from(count) {
            let at = AVAILABLE + 4 + 2 * u64::from(self.offered % self.size);
            self.guest.write(at, &head.wrapping_add(i).to_le_bytes());
            self.offered = self.offered.wrapping_add(1);
        }
        self.guest.write(AVAILABLE + 2, &self.offered.to_le_bytes());
    }

    /// The next available entry; a split ring uses the low half of the protocol's number.
    fn base(&self) -> u16 {
        u16::try_from(self.ring.base() & 0xffff).unwrap_or(0)
    }

    fn memory<'m>(&self, bytes: &'m [u8]) -> Memory<'m> {
        Memory { bytes, regions: &REGIONS, table: (0, self.size) }
    }

    fn head(&self, memory: &Memory<'_>, index: u16) -> u16 {
        memory.u16(place(AVAILABLE) + 4 + 2 * usize::from(index % self.size))
    }

    fn used_entry(&self, memory: &Memory<'_>, index: u16) -> (u32, u32) {
        let at = place(USED) + 4 + 8 * usize::from(index % self.size);
        (memory.u32(at), memory.u32(at + 4))
    }

    fn take(&mut self, batch: &mut Batch) {
        let before = self.guest.bytes();
        let memory = self.memory(&before);
        let base = self.base();
        let waiting = memory.u16(place(AVAILABLE) + 2).wrapping_sub(base);
        self.ring.take(batch);
        let taken = self.base().wrapping_sub(base);
        let heads: Vec<u16> =
            (0..taken).map(|i| self.head(&memory, base.wrapping_add(i))).collect();
        let wanted: Vec<_> = heads.iter().map(|h| memory.frame(*h, self.header)).collect();
        check_taken(batch, &wanted);
        if waiting <= self.size && !self.ring.is_stopped() {
            let all = usize::from(waiting).min(BATCH_FRAMES);
            assert!(usize::from(taken) >= all || !batch.has_room(), "{taken} of {waiting}");
        }
        self.ring.complete_taken();
        self.ring.publish();
        let after = self.guest.bytes();
        let memory = self.memory(&after);
        for (i, head) in (0..).zip(heads) {
            let entry = self.used_entry(&memory, self.used.wrapping_add(i));
            // A burst larger than the ring overwrites used entries.
            if taken <= self.size {
                assert_eq!(entry, (u32::from(head), 0), "used entry {i}");
            }
        }
        self.advance(taken, &memory);
    }

    fn advance(&mut self, by: u16, after: &Memory<'_>) {
        self.used = self.used.wrapping_add(by);
        if by > 0 {
            assert_eq!(after.u16(place(USED) + 2), self.used, "used index");
        }
    }

    fn give(&mut self, input: &mut Input<'_>, batch: &mut Batch) {
        let frames = fill(input, batch);
        let order: Vec<u8> = (0..).take(frames.len()).collect();
        let before = self.guest.bytes();
        let base = self.base();
        let mut out = TxOutcome::default();
        self.ring.give(batch, &order, &mut out);
        self.ring.publish();
        let told = out.frames + out.ring_full + out.too_big + out.down + out.error;
        assert_eq!(told as usize, frames.len(), "{out:?}");
        let taken = self.base().wrapping_sub(base);
        let after = self.guest.bytes();
        self.compare(&frames, base, taken, &before, &after, &out);
        let memory = self.memory(&after);
        let mut written = Vec::new();
        let apart = self.ranges(base, taken, &self.memory(&before), &mut written);
        if apart {
            self.advance(taken, &memory);
        } else {
            self.used = self.used.wrapping_add(taken);
        }
    }

    /// Returns true if no two of the ring's parts and the burst's buffers share a byte.
    fn ranges(&self, base: u16, taken: u16, before: &Memory<'_>, all: &mut Vec<Range>) -> bool {
        let n = usize::from(self.size);
        all.push((place(DESCRIPTORS), 16 * n));
        all.push((place(AVAILABLE), 6 + 2 * n));
        all.push((place(USED), 6 + 8 * n));
        for i in 0..taken {
            let head = self.head(before, base.wrapping_add(i));
            if let Some(chain) = before.chain(head, WRITE) {
                all.extend(chain.buffers);
                all.extend(chain.table);
            }
        }
        taken <= self.size && !overlap(all)
    }

    /// Checks that the driver's used buffers contain exactly the frames that the switch reported as
    /// delivered.
    fn compare(
        &self,
        frames: &[Vec<u8>],
        base: u16,
        taken: u16,
        before: &[u8],
        after: &[u8],
        out: &TxOutcome,
    ) {
        let (before, after) = (self.memory(before), self.memory(after));
        if !self.ranges(base, taken, &before, &mut Vec::new()) {
            return;
        }
        let (mut at, mut found, mut handed_back, mut last) = (0, 0, 0, None);
        while at < taken {
            let (_, len) = self.used_entry(&after, self.used.wrapping_add(at));
            if len == 0 {
                handed_back += 1;
                at += 1;
                continue;
            }
            let mut bytes = Vec::new();
            // The virtio header may be spread over several buffers; its last field has the number
            // of buffers.
            let (mut buffers, mut i) = (1, 0);
            while i < buffers {
                let head = self.head(&before, base.wrapping_add(at + i));
                let (id, len) = self.used_entry(&after, self.used.wrapping_add(at + i));
                assert_eq!(id, u32::from(head), "used entry {}", at + i);
                let chain = before.chain(head, WRITE).expect("a valid used chain");
                let mut part = after.gather(&chain);
                assert!(len as usize <= part.len(), "used length above the buffers");
                part.truncate(len as usize);
                bytes.extend(part);
                i += 1;
                if self.mergeable {
                    let said = bytes.get(10..12).map(|b| u16::from_le_bytes([b[0], b[1]]));
                    buffers = said.unwrap_or(i + 1).min(taken - at);
                }
            }
            let frame = bytes.split_off(self.header.min(bytes.len()));
            let index = frame.first().map(|b| usize::from(*b));
            assert!(index > last, "frames out of order");
            assert_eq!(Some(&frame), index.and_then(|i| frames.get(i)), "a frame's bytes");
            last = index;
            found += 1;
            at += buffers;
        }
        assert_eq!((found, handed_back <= out.error), (out.frames, true), "{out:?}");
    }
}

fn descriptor(input: &mut Input<'_>) -> [u8; 16] {
    let guest = address(input);
    let len = length(input);
    let flags = input.u8();
    // Some inputs have unknown flags.
    let flags = if flags > 0xf0 { u16::from(flags) } else { u16::from(flags & 7) };
    let next = u16::from(input.u8());
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&guest.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
