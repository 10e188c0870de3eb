//! The input is a sequence of a guest's writes to a packed ring, mixed with the switch's calls on
//! the ring.
//!
//! **Rule.** No byte outside the guest's regions changes. The chains that `take` consumes are the
//! chains that `model` finds in the same part of the ring. The switch returns each consumed chain
//! under the chain's id. The frames that `give` reports as delivered are in the used buffers. If
//! ring and buffers overlap in memory, the target does not compare results.

use std::sync::Arc;

use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::VNET_HDR_LEN;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::packed_ring::{PackedRing, RingAddresses, RingSpec};

use crate::guest::{
    Guest, REGIONS, TABLES, USER, address, check_taken, fill, length, place, with_guest,
};
use crate::input::Input;
use crate::model::{AVAIL, Chain, Memory, Packed, Range, USED, WRITE, overlap};

const RING: u64 = 0;
const DRIVER_EVENT: u64 = 0x400;
const DEVICE_EVENT: u64 = 0x404;
const SIZE_MAX: usize = 64;
/// Initial value of a packed ring: positions 0, and wrap counters 1.
const FRESH: u32 = 0x8000_8000;

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

/// Position in a packed ring, with the flags of an available descriptor at the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    index: u16,
    ready: u16,
}

impl At {
    fn of_base(half: u16) -> Self {
        Self { index: half & 0x7fff, ready: if half & 0x8000 == 0 { USED } else { AVAIL } }
    }

    const fn advance(&mut self, size: u16) {
        self.index += 1;
        if self.index == size {
            *self = Self { index: 0, ready: self.ready ^ (AVAIL | USED) };
        }
    }

    const fn forward(mut self, by: u16, size: u16) -> Self {
        let mut i = 0;
        while i < by {
            self.advance(size);
            i += 1;
        }
        self
    }
}

/// A chain that the packed ring consumed: its first position, its id and its buffers.
struct Consumed {
    at: At,
    id: u16,
    chain: Option<Chain>,
}

/// State of a test with one packed ring.
struct Game<'a> {
    guest: &'a Guest,
    ring: PackedRing,
    size: u16,
    mergeable: bool,
    in_order: bool,
    /// Position at which the guest makes the next descriptor available.
    offered: At,
}

impl<'a> Game<'a> {
    /// Creates a ring from the input. Returns `None` if the switch refuses the ring.
    fn new(input: &mut Input<'_>, guest: &'a Guest) -> Option<Self> {
        let (shape, size) = (input.u8(), 1 + input.below(SIZE_MAX));
        let size = u16::try_from(size).ok()?;
        let (mergeable, in_order) = (shape & 1 != 0, shape & 2 != 0);
        let (available, used) = (USER + DRIVER_EVENT, USER + DEVICE_EVENT);
        let at = RingAddresses { descriptors: USER + RING, available, used };
        let spec = RingSpec {
            base: FRESH,
            event_idx: shape & 4 != 0,
            in_order,
            mergeable,
            ..RingSpec::new(size.into(), at)
        };
        let ring = PackedRing::new(spec, Arc::clone(&guest.memory)).ok()?;
        let offered = At { index: 0, ready: AVAIL };
        Some(Self { guest, ring, size, mergeable, in_order, offered })
    }

    fn step(&mut self, input: &mut Input<'_>, batch: &mut Batch) {
        match input.below(10) {
            0 => {
                let at = RING + 16 * (u64::from(input.u8()) % u64::from(self.size));
                let flags = self.any_flags(input);
                self.guest.write(at, &descriptor(input, flags));
            }
            1 => {
                let at = TABLES + 16 * u64::from(input.u8() % 64);
                let flags = u16::from(input.u8() & 7);
                self.guest.write(at, &descriptor(input, flags));
            }
            2 | 3 => self.offer(input),
            4 => self.guest.write(DRIVER_EVENT, &input.u32().to_le_bytes()),
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

    /// Reads arbitrary descriptor flags from the input, including the flags of availability.
    fn any_flags(&self, input: &mut Input<'_>) -> u16 {
        let (kind, flags) = (input.u8(), u16::from(input.u8() & 7));
        match kind % 4 {
            0 => flags | AVAIL,
            1 => flags | USED,
            2 => flags | AVAIL | USED,
            _ => input.u16(),
        }
    }

    /// Makes a chain of some descriptors available, and writes the first descriptor's flags last.
    fn offer(&mut self, input: &mut Input<'_>) {
        let parts = 1 + input.below(4);
        let mut words = Vec::new();
        let mut at = self.offered;
        for part in 0..parts {
            let more = u16::from(part + 1 < parts);
            let flags = u16::from(input.u8() & 6) | more;
            words.push((at.index, descriptor(input, flags | at.ready)));
            at.advance(self.size);
        }
        for (index, bytes) in words.iter().rev() {
            self.guest.write(RING + 16 * u64::from(*index), bytes);
        }
        self.offered = at;
    }

    fn memory<'m>(&self, bytes: &'m [u8]) -> Memory<'m> {
        Memory { bytes, regions: &REGIONS, table: (place(RING), self.size) }
    }

    /// Returns the ring's available and used positions.
    fn stands(&self) -> (At, At) {
        let base = self.ring.base();
        let half = |n: u32| At::of_base(u16::try_from(n & 0xffff).unwrap_or(0));
        (half(base), half(base >> 16))
    }

    /// Returns the chains from `from` to the ring's present position, and the state of the next
    /// descriptor. A call consumes at most one round of the ring.
    fn consumed(
        &self,
        memory: &Memory<'_>,
        from: At,
        all: bool,
        wanted: u16,
    ) -> (Vec<Consumed>, Packed) {
        let (to, _) = self.stands();
        let (mut at, mut chains, mut spans) = (from, Vec::new(), 0);
        while (at != to || (all && spans == 0)) && spans < self.size {
            let Packed::Chain { id, span, chain } = memory.packed_chain(at.index, at.ready, wanted)
            else {
                panic!("the switch consumed a chain at {at:?}, which has none")
            };
            chains.push(Consumed { at, id, chain });
            spans += span;
            at = at.forward(span, self.size);
        }
        assert_eq!(at, to, "the ring's position is inside a chain");
        (chains, memory.packed_chain(to.index, to.ready, wanted))
    }

    fn take(&mut self, batch: &mut Batch) {
        let before = self.guest.bytes();
        let memory = self.memory(&before);
        let (from, used) = self.stands();
        self.ring.take(batch);
        let some = batch.len() + batch.errors as usize > 0;
        let (chains, next) = self.consumed(&memory, from, some, 0);
        let wanted: Vec<_> = chains
            .iter()
            .map(|c| c.chain.as_ref().and_then(|chain| memory.frame_in(chain, VNET_HDR_LEN)))
            .collect();
        check_taken(batch, &wanted);
        // If the switch consumed a whole round, no chain is available before the switch returns
        // chains.
        let spans: usize = chains.len();
        if !self.ring.is_stopped() && spans < BATCH_FRAMES && batch.has_room() && !some {
            assert!(matches!(next, Packed::Nothing), "{next:?} was not consumed");
        }
        self.ring.complete_taken();
        self.ring.publish();
        if chains.is_empty() {
            return;
        }
        let after = self.guest.bytes();
        self.compare_used(&self.memory(&after), used, &chains, from);
        assert_eq!(self.stands().0, self.stands().1, "chains not returned");
    }

    /// Checks that the switch returned each consumed chain under the chain's id, with length 0.
    fn compare_used(&self, after: &Memory<'_>, used: At, chains: &[Consumed], from: At) {
        assert_eq!(used, from, "earlier chains not returned");
        if self.in_order {
            let last = chains.last().map(|c| c.id);
            assert_eq!(Some(self.used_at(after, used)), last.map(|id| (id, 0)), "one id per burst");
            return;
        }
        for c in chains {
            assert_eq!(self.used_at(after, c.at), (c.id, 0), "used at {:?}", c.at);
        }
    }

    /// Returns id and length of the used descriptor at a position.
    fn used_at(&self, memory: &Memory<'_>, at: At) -> (u16, u32) {
        let place = place(RING) + 16 * usize::from(at.index);
        let flags = memory.u16(place + 14) & (AVAIL | USED);
        let want = if at.ready == AVAIL { AVAIL | USED } else { 0 };
        assert_eq!(flags, want, "descriptor {at:?} is not marked as used");
        (memory.u16(place + 12), memory.u32(place + 8))
    }

    fn give(&mut self, input: &mut Input<'_>, batch: &mut Batch) {
        let frames = fill(input, batch);
        let order: Vec<u8> = (0..).take(frames.len()).collect();
        let before = self.guest.bytes();
        let (from, used) = self.stands();
        let mut out = TxOutcome::default();
        self.ring.give(batch, &order, &mut out);
        self.ring.publish();
        let told = out.frames + out.ring_full + out.too_big + out.down + out.error;
        assert_eq!(told as usize, frames.len(), "{out:?}");
        let memory = self.memory(&before);
        let (chains, _) = self.consumed(&memory, from, out.frames > 0, WRITE);
        let after = self.guest.bytes();
        if !self.in_order && used == from && self.apart(&chains) {
            self.compare_given(&frames, &chains, &self.memory(&after), &out);
        }
    }

    /// Whether no two of the ring's parts and the chains' buffers share a byte.
    fn apart(&self, chains: &[Consumed]) -> bool {
        let mut all: Vec<Range> = vec![
            (place(RING), 16 * usize::from(self.size)),
            (place(DRIVER_EVENT), 4),
            (place(DEVICE_EVENT), 4),
        ];
        for chain in chains.iter().filter_map(|c| c.chain.as_ref()) {
            all.extend(&chain.buffers);
            all.extend(chain.table);
        }
        !overlap(&mut all)
    }

    /// Checks that the driver's used buffers contain exactly the frames that the switch reported as
    /// delivered.
    fn compare_given(
        &self,
        frames: &[Vec<u8>],
        chains: &[Consumed],
        after: &Memory<'_>,
        out: &TxOutcome,
    ) {
        let (mut at, mut found, mut last) = (0, 0, None);
        while let Some(first) = chains.get(at) {
            let (id, len) = self.used_at(after, first.at);
            assert_eq!(id, first.id, "used at {:?}", first.at);
            if len == 0 {
                at += 1;
                continue;
            }
            let mut bytes = Vec::new();
            let (mut buffers, mut i) = (1, 0);
            while i < buffers {
                let c = chains.get(at + i).expect("number of buffers in the header");
                let (id, len) = self.used_at(after, c.at);
                assert_eq!(id, c.id, "used at {:?}", c.at);
                let chain = c.chain.as_ref().expect("a valid used chain");
                let mut part = after.gather(chain);
                assert!(len as usize <= part.len(), "used length above the buffers");
                part.truncate(len as usize);
                bytes.extend(part);
                i += 1;
                if self.mergeable {
                    // The virtio header may be spread over several buffers; its last field has the
                    // number of buffers.
                    let said = bytes.get(10..12).map(|b| u16::from_le_bytes([b[0], b[1]]));
                    buffers = said.map_or(i + 1, usize::from).min(chains.len() - at);
                }
            }
            let frame = bytes.split_off(VNET_HDR_LEN.min(bytes.len()));
            let index = frame.first().map(|b| usize::from(*b));
            assert!(index > last, "frames out of order");
            assert_eq!(Some(&frame), index.and_then(|i| frames.get(i)), "a frame's bytes");
            last = index;
            found += 1;
            at += buffers;
        }
        assert_eq!(found, out.frames, "{out:?}");
    }
}

/// Encodes a descriptor with the given flags.
fn descriptor(input: &mut Input<'_>, flags: u16) -> [u8; 16] {
    let (guest, len) = (address(input), length(input));
    // Some inputs have an id beyond the ring.
    let id = u16::from(input.u8() % 72);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&guest.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&id.to_le_bytes());
    bytes[14..].copy_from_slice(&flags.to_le_bytes());
    bytes
}
