//! The test compares random drivers and devices with a model, which is a queue of offered buffers
//! with the required results. The model of a packed ring is simpler than the ring: it has no
//! positions, flags or wrap counters.

use std::collections::VecDeque;

use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::packed_ring::PackedRing;
use proptest::prelude::*;

use crate::packed_ring::guest::{BUFFERS, Guest, Part, WRITE, frames_of};

/// Maximum number of descriptors of a buffer. `AREA` is the size in bytes of the part of guest
/// memory that each buffer may use.
const PARTS: u64 = 4;
const AREA: u64 = 0x1000;
const TABLES: u64 = BUFFERS + 64 * AREA;

/// A buffer that a random driver offers: lengths of the descriptors, indirect or direct, valid or
/// bad.
#[derive(Clone, Debug)]
struct Shape {
    lens: Vec<u32>,
    indirect: bool,
    /// Whether the last descriptor of the buffer has a wrong flag.
    bad: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Offer(Shape),
    /// The device takes frames from a transmit ring, or writes frames of the given lengths to a
    /// receive ring. If the device takes frames, the model ignores the lengths.
    Work(Vec<usize>),
    /// The driver takes back the buffers that the device has returned.
    Reap,
    /// A new device replaces the present device of the ring.
    Restart,
}

fn shape() -> impl Strategy<Value = Shape> {
    let lens =
        prop::collection::vec(prop_oneof![4 => 0_u32..300, 1 => Just(0)], 1..=PARTS as usize);
    (lens, any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(lens, indirect, bad)| Shape {
        lens,
        indirect,
        bad,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => shape().prop_map(Step::Offer),
        3 => prop::collection::vec(14_usize..700, 0..8).prop_map(Step::Work),
        3 => Just(Step::Reap),
        1 => Just(Step::Restart),
    ]
}

/// A buffer that the device has at present, according to the model.
#[derive(Debug)]
struct Offered {
    id: u16,
    parts: Vec<Part>,
    bad: bool,
    content: Vec<u8>,
}

struct World {
    guest: Guest,
    ring: PackedRing,
    mergeable: bool,
    writable: bool,
    free: VecDeque<u16>,
    offered: VecDeque<Offered>,
    /// IDs and lengths of the used buffers that the device must return next, in order.
    due: VecDeque<(u16, u32)>,
    /// Number of bad chains that the ring refused since the start of the test.
    refused: u32,
    count: u8,
}

impl World {
    fn new(size: u16, in_order: bool, mergeable: bool, writable: bool) -> Self {
        let mut guest = Guest::new();
        guest.size = size;
        guest.in_order = in_order;
        let ring = guest.ring_with(|s| s.mergeable = mergeable).unwrap();
        let (offered, due) = (VecDeque::new(), VecDeque::new());
        let free = (0..size).rev().collect();
        Self { guest, ring, mergeable, writable, free, offered, due, refused: 0, count: 0 }
    }

    fn descriptors_free(&self) -> usize {
        let out: u16 = self.guest.out.iter().map(|(_, span)| span).sum();
        usize::from(self.guest.size - out)
    }

    fn offer(&mut self, shape: &Shape) {
        let span = if shape.indirect { 1 } else { shape.lens.len() };
        if span > self.descriptors_free() {
            return;
        }
        let id = self.free.pop_front().unwrap();
        let good = if self.writable { WRITE } else { 0 };
        let area = BUFFERS + AREA * u64::from(id);
        let mut parts = Vec::new();
        let mut content = Vec::new();
        for (i, len) in (0..).zip(&shape.lens) {
            let bytes: Vec<u8> = (0..*len).map(|at| (at as u8) ^ self.count).collect();
            let at = area + AREA / PARTS * i;
            self.guest.fill(at, &bytes);
            content.extend(bytes);
            parts.push((at, *len, good));
        }
        if shape.bad {
            parts.last_mut().unwrap().2 = good ^ WRITE;
        }
        self.count = self.count.wrapping_add(1);
        if shape.indirect {
            let table = self.guest.table(TABLES + 16 * PARTS * u64::from(id), &parts);
            self.guest.offer(id, &[table]);
        } else {
            self.guest.offer(id, &parts);
        }
        self.offered.push_back(Offered { id, parts, bad: shape.bad, content });
    }

    /// Lets the device take frames, and checks that the frames and the number of bad chains are as
    /// the model expects.
    fn take(&mut self) {
        let mut batch = Batch::new();
        self.ring.take(&mut batch);
        let (mut want, mut bad) = (Vec::new(), 0);
        for _ in 0..32.min(self.offered.len()) {
            let offered = self.offered.pop_front().unwrap();
            self.due.push_back((offered.id, 0));
            if offered.bad || offered.content.len() < 12 + 14 {
                bad += 1;
            } else {
                want.push(offered.content[12..].to_vec());
            }
        }
        assert_eq!(frames_of(&batch), want);
        assert_eq!(batch.errors, bad);
        self.refused += bad;
        self.ring.complete_taken();
        self.ring.publish();
    }

    /// Returns the buffers in which a frame of `len` bytes must arrive. Returns `None` if no buffer
    /// may receive the frame, and counts the reason in `out`.
    fn place(&mut self, len: usize, out: &mut TxOutcome) -> Option<Vec<Offered>> {
        let need = 12 + len;
        let mut space = 0;
        let mut count = 0;
        while space < need {
            if count > 0 && !self.mergeable {
                out.too_big += 1;
                return None;
            }
            let Some(next) = self.offered.get(count) else {
                out.ring_full += 1;
                return None;
            };
            if next.bad || next.content.is_empty() {
                out.error += 1;
                if count == 0 {
                    self.due.push_back((next.id, 0));
                    self.offered.pop_front();
                }
                return None;
            }
            space += next.content.len();
            count += 1;
        }
        out.frames += 1;
        out.bytes += len as u64;
        let mut left = need;
        let buffers: Vec<_> = self.offered.drain(..count).collect();
        for buffer in &buffers {
            let here = left.min(buffer.content.len());
            self.due.push_back((buffer.id, here as u32));
            left -= here;
        }
        Some(buffers)
    }

    fn give(&mut self, lens: &[usize]) {
        let mut batch = Batch::new();
        let frames: Vec<Vec<u8>> = (1..)
            .zip(lens)
            .map(|(k, len)| (0..*len).map(|at| (at as u8).wrapping_mul(k)).collect())
            .collect();
        frames.iter().for_each(|frame| batch.push(frame, Offload::NONE).unwrap());
        let order: Vec<u8> = (0..frames.len() as u8).collect();
        let mut got = TxOutcome::default();
        self.ring.give(&batch, &order, &mut got);
        self.ring.publish();
        let mut want = TxOutcome::default();
        for frame in &frames {
            let Some(buffers) = self.place(frame.len(), &mut want) else { continue };
            let mut bytes: Vec<u8> = Vec::new();
            for (at, len, _) in buffers.iter().flat_map(|buffer| &buffer.parts) {
                bytes.extend(self.guest.bytes(*at, *len as usize));
            }
            assert_eq!(bytes[..10], [0; 10]);
            assert_eq!(bytes[10..12], (buffers.len() as u16).to_le_bytes());
            assert!(bytes[12..].starts_with(frame));
        }
        assert_eq!(got, want);
        self.refused += want.error;
    }

    fn reap(&mut self) {
        for (id, len, wrote) in self.guest.take_used() {
            let want = self.due.pop_front();
            assert_eq!((Some((id, len)), wrote), (want, len > 0));
            self.free.push_back(id);
        }
        assert!(self.due.is_empty(), "not given back: {:?}", self.due);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Offer(shape) => self.offer(shape),
            Step::Work(lens) if self.writable => self.give(lens),
            Step::Work(_) => self.take(),
            Step::Reap => self.reap(),
            Step::Restart => {
                let (base, mergeable) = (self.ring.base(), self.mergeable);
                self.ring = self
                    .guest
                    .ring_with(|s| {
                        s.base = base;
                        s.mergeable = mergeable;
                    })
                    .unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_ring_does_what_the_model_says(
        size in 1_u16..=40,
        in_order: bool,
        mergeable: bool,
        writable: bool,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(size, in_order, mergeable, writable);
        for step in &steps {
            // Bad chains in a row stop a ring, which other tests cover. A burst has at most 32.
            if world.refused + 32 >= 64 {
                break;
            }
            world.step(step);
        }
        prop_assert!(!world.ring.is_stopped());
        world.reap();
        let (used, avail) = (world.guest.used.to_base(), world.guest.avail.to_base());
        prop_assert_eq!(world.ring.base(), used | used << 16);
        prop_assert_eq!(world.offered.is_empty(), used == avail);
    }
}
