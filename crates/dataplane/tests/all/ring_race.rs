//! A guest rewrites its rings, descriptors, headers and frames while the switch reads this memory
//! (datapath rules 3 to 8). The switch does not crash, accesses no byte outside the guest's
//! regions, and sends exactly the headers that it classified.
#![allow(unsafe_code, reason = "the test plays the guest, which writes rings into shared memory")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::headers::parse::parse;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::guest_memory::GuestMemory;
use penstock_dataplane::port::packed_ring::PackedRing;
use penstock_dataplane::port::split_ring::{RingAddresses, RingSpec, SplitRing};

use crate::ring_bed::{USER, map, memory_file};

const MEMORY: u64 = 1 << 16;
/// Number of bytes of the file before and after the guest's region. Bytes outside the region do not
/// belong to the guest.
const FENCE: u64 = 1 << 12;
const FENCE_BYTE: u8 = 0xc5;
/// Value of the words of guest memory that the guest does not write: all bits zero, which is a
/// virtio-net header without offload requests.
const OWN: u64 = 0;
const SIZE: u16 = 64;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x600;
/// Number of bursts with at least one available chain after which the test ends.
const BURSTS: usize = 6_000;
/// Number of bursts after which the test gives up if no race happens.
const TRIES: usize = 20_000_000;

/// A file that contains the guest's region in the middle, and a mapping of the whole file.
struct Shared {
    base: *mut u8,
    len: usize,
    memory: Arc<GuestMemory>,
}

// SAFETY: a mapping belongs to no thread and is accessed only by atomics.
// WHY: the guest's thread writes while the switch's thread reads.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Self {
        let len = MEMORY + 2 * FENCE;
        let file = memory_file(len);
        let memory = map(&file, &[(0, FENCE, MEMORY)]);
        let bytes = NonZeroUsize::new(usize::try_from(len).unwrap()).unwrap();
        let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping of the test's own file. WHY: the guest's view of its memory.
        let base = unsafe { mmap(None, bytes, rw, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
        let shared = Self { base: base.as_ptr().cast(), len: bytes.get(), memory };
        for at in (0..len).step_by(8) {
            let inside = (FENCE..FENCE + MEMORY).contains(&at);
            let fence = u64::from_ne_bytes([FENCE_BYTE; 8]);
            shared.file_word(at).store(if inside { OWN } else { fence }, Ordering::Relaxed);
        }
        shared
    }

    fn file_word(&self, at: u64) -> &AtomicU64 {
        assert!(at + 8 <= self.len as u64 && at.is_multiple_of(8));
        // SAFETY: inside the mapping and aligned. WHY: shared with the switch's thread.
        unsafe { AtomicU64::from_ptr(self.base.add(usize::try_from(at).unwrap()).cast()) }
    }

    /// Returns the 64-bit word at a guest address. An address beyond the region wraps around.
    fn word(&self, guest: u64) -> &AtomicU64 {
        self.file_word(FENCE + (guest % MEMORY) / 8 * 8)
    }

    fn half(&self, guest: u64) -> &AtomicU16 {
        let at = FENCE + guest;
        assert!(guest + 2 <= MEMORY && guest.is_multiple_of(2));
        // SAFETY: inside the region and aligned. WHY: as in `file_word`.
        unsafe { AtomicU16::from_ptr(self.base.add(usize::try_from(at).unwrap()).cast()) }
    }

    fn fence_is_whole(&self) -> bool {
        let fence = u64::from_ne_bytes([FENCE_BYTE; 8]);
        let outside = (0..FENCE).chain(FENCE + MEMORY..MEMORY + 2 * FENCE).step_by(8);
        outside.into_iter().all(|at| self.file_word(at).load(Ordering::Relaxed) == fence)
    }

    /// Makes more entries of a split ring available by increasing the available index, as a correct
    /// driver does. The ring entries between the old and the new available index contain random
    /// values.
    fn offer(&self, packed: bool, chains: u16) {
        if !packed {
            let index = self.half(AVAILABLE + 2);
            index.store(index.load(Ordering::Relaxed).wrapping_add(chains), Ordering::Relaxed);
        }
    }

    fn spec(&self) -> RingSpec {
        let at =
            RingAddresses { descriptors: USER, available: USER + AVAILABLE, used: USER + USED };
        RingSpec::new(SIZE.into(), at)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let base = std::ptr::NonNull::new(self.base.cast()).unwrap();
        // SAFETY: the range that mmap returned. WHY: munmap has no safe form.
        unsafe { munmap(base, self.len) }.unwrap();
    }
}

fn next(n: &mut u64) -> u64 {
    *n ^= *n << 13;
    *n ^= *n >> 7;
    *n ^= *n << 17;
    *n
}

/// Rewrites descriptors, heads, headers and frames until `stop` is set. Most of the random values
/// are nearly valid, so that the switch continues to read the ring instead of refusing it at once.
fn rewrite(shared: &Shared, packed: bool, stop: &AtomicBool, seed: u64) {
    let mut n = seed;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..16 {
            let (slot, what) = (next(&mut n) % u64::from(SIZE), next(&mut n));
            let address = match what & 15 {
                0 => what,
                1 => MEMORY - 64,
                _ => 0x2000 + (what >> 8) % 0xa000,
            };
            let len = match what >> 4 & 15 {
                0 => what >> 32,
                1 => 16 * (what >> 40 & 7),
                2 => 0,
                _ => 26 + (what >> 32) % 3000,
            };
            let flags = [0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 6];
            let flags = flags[usize::try_from(what >> 12 & 15).unwrap()];
            let chained = (what >> 20) % u64::from(SIZE);
            shared.word(16 * slot).store(address, Ordering::Relaxed);
            // A packed descriptor has its id where a split descriptor has its flags. Two additional
            // flags say which side owns it.
            let owner = [0x80, 0x80, 0x8000, 0x8080][usize::try_from(what >> 54 & 3).unwrap()];
            let (low, high) = if packed { (chained, flags | owner) } else { (flags, chained) };
            let rest = (len & 0xffff_ffff) | low << 32 | high << 48;
            shared.word(16 * slot + 8).store(rest, Ordering::Relaxed);
            let head = AVAILABLE + 4 + 2 * slot;
            shared.half(head).store(u16::try_from(what >> 26 & 63).unwrap(), Ordering::Relaxed);
            // Headers and frames, in the middle of buffers.
            let word = if what & 1 == 0 { OWN } else { what };
            shared.word(0x2000 + (what >> 3) % 0xa000).store(word, Ordering::Relaxed);
        }
    }
}

/// A split or packed ring, with the calls that a worker makes.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

impl Ring {
    fn new(shared: &Shared, packed: bool) -> Self {
        let (spec, memory) = (shared.spec(), Arc::clone(&shared.memory));
        if packed {
            let spec = RingSpec { base: 0x8000_8000, ..spec };
            Self::Packed(PackedRing::new(spec, memory).unwrap())
        } else {
            Self::Split(SplitRing::new(spec, memory).unwrap())
        }
    }

    fn take(&mut self, batch: &mut Batch) {
        match self {
            Self::Split(ring) => ring.take(batch),
            Self::Packed(ring) => ring.take(batch),
        }
    }

    fn done(&mut self) {
        match self {
            Self::Split(ring) => {
                ring.complete_taken();
                ring.publish();
                ring.notify();
            }
            Self::Packed(ring) => {
                ring.complete_taken();
                ring.publish();
                ring.notify();
            }
        }
    }

    fn give(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        match self {
            Self::Split(ring) => ring.give(batch, frames, out),
            Self::Packed(ring) => ring.give(batch, frames, out),
        }
    }

    fn is_stopped(&self) -> bool {
        match self {
            Self::Split(ring) => ring.is_stopped(),
            Self::Packed(ring) => ring.is_stopped(),
        }
    }
}

/// Checks that the switch sends the headers that the classifier saw, even if the guest changes the
/// headers. Returns the number of valid frames.
fn looked_at_is_sent(batch: &mut Batch) -> usize {
    let mut good = 0;
    for i in 0..batch.len() {
        let Ok(headers) = parse(batch, i, 0) else { continue };
        good += 1;
        let (head, offload, len) =
            (batch.head(i).to_vec(), batch.frame(i).offload, batch.frame(i).len);
        let mut sent = Vec::new();
        batch.copy_out(i, &mut sent);
        assert_eq!((sent[..head.len()] == head[..], sent.len()), (true, len as usize));
        // Parsing the sent bytes again gives the same result.
        let mut again = Batch::new();
        let tag = batch.frame(i).tci != 0;
        again.push(&sent, offload).unwrap();
        if !tag {
            let second = parse(&mut again, 0, 0).unwrap();
            assert_eq!(second.key, headers.key);
        }
    }
    good
}

fn race(packed: bool, seed: u64) {
    let shared = Shared::new();
    let stop = AtomicBool::new(false);
    let (mut frames, mut errors, mut delivered, mut parsed, mut stopped) = (0, 0, 0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(&shared, packed, &stop, seed));
        let mut ring = Ring::new(&shared, packed);
        let (mut batch, mut out) = (Batch::new(), Batch::new());
        let (mut good, mut burst) = (0, 0);
        // On a busy machine, the guest's thread may run rarely, so the race goes on until frames
        // passed in both directions.
        while good < BURSTS || frames <= 1000 || errors == 0 || delivered <= 100 {
            burst += 1;
            assert!(
                burst < TRIES,
                "{good} bursts in {TRIES}, {frames} frames, {errors} bad, {delivered} given"
            );
            shared.offer(packed, 16);
            batch.clear();
            batch.errors = 0;
            ring.take(&mut batch);
            frames += batch.len();
            errors += batch.errors;
            parsed += looked_at_is_sent(&mut batch);
            ring.done();
            out.clear();
            for _ in 0..8 {
                out.push(&[0x47; 900], Offload::NONE).unwrap();
            }
            shared.offer(packed, 12);
            let mut outcome = TxOutcome::default();
            ring.give(&out, &[0, 1, 2, 3, 4, 5, 6, 7], &mut outcome);
            ring.done();
            delivered += outcome.frames;
            if !batch.is_empty() || batch.errors > 0 || outcome.frames > 0 {
                good += 1;
            } else {
                std::thread::yield_now();
            }
            if ring.is_stopped() || burst % 512 == 511 {
                stopped += u32::from(ring.is_stopped());
                // The test resets the ring, as its session would after a reset of the guest.
                shared.half(AVAILABLE + 2).store(0, Ordering::Relaxed);
                shared.half(USED + 2).store(0, Ordering::Relaxed);
                ring = Ring::new(&shared, packed);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(shared.fence_is_whole(), "a byte outside of the guest's region was written");
    eprintln!("{frames} frames, {parsed} parsed, {errors} bad, {delivered} given, {stopped} stops");
}

/// Rewrites `csum_start` after the switch read the field. DPDK repaired a double fetch of
/// `csum_start` in commit 285e6b8b18.
#[test]
fn what_is_rewritten_after_it_was_read_changes_nothing() {
    const HEADER: u64 = 0x2000;
    let shared = Shared::new();
    // Flags: needs a checksum; csum_start 34, csum_offset 6.
    shared.word(HEADER).store(1 | 34 << 48, Ordering::Relaxed);
    shared.word(HEADER + 8).store(6 | 0x1111_1111 << 32, Ordering::Relaxed);
    shared.word(0).store(HEADER, Ordering::Relaxed);
    shared.word(8).store(12 + 400, Ordering::Relaxed);
    shared.half(AVAILABLE + 2).store(1, Ordering::Relaxed);
    let mut ring = Ring::new(&shared, false);
    let mut batch = Batch::new();
    ring.take(&mut batch);
    let (offload, head) = (batch.frame(0).offload, batch.head(0).to_vec());
    assert_eq!((offload.csum_start, offload.csum_offset, &head[..4]), (34, 6, &[0x11; 4][..]));
    for at in (0..64).step_by(8) {
        shared.word(HEADER + at).store(u64::MAX, Ordering::Relaxed);
        shared.word(at).store(u64::MAX, Ordering::Relaxed);
    }
    assert_eq!((batch.frame(0).offload, batch.head(0)), (offload, &head[..]));
    let mut sent = Vec::new();
    batch.copy_out(0, &mut sent);
    assert_eq!((sent.len(), &sent[..head.len()]), (400, &head[..]));
    // The ring returns the head that it took, although the guest has changed the ring.
    ring.done();
    assert_eq!(shared.half(USED + 2).load(Ordering::Relaxed), 1);
    assert_eq!(shared.half(USED + 4).load(Ordering::Relaxed), 0);
}

#[test]
fn a_split_ring_rewritten_while_it_is_read_hurts_nobody() {
    let _race = crate::common::one_race();
    race(false, 0x2545_f491_4f6c_dd1d);
}

#[test]
fn a_packed_ring_rewritten_while_it_is_read_hurts_nobody() {
    let _race = crate::common::one_race();
    race(true, 0x9e37_79b9_7f4a_7c15);
}
