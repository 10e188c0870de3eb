//! The device side of a packed virtqueue (virtio 1.2 §2.8).
//!
//! # Problem
//! As in a split ring, an attacker in the guest may rewrite every word of a packed ring at any
//! moment. In a packed ring, a flag in each descriptor says whether the descriptor is available. An
//! attacker in the guest may therefore make a descriptor available and withdraw the descriptor
//! later.
//!
//! # Approach
//! The numbered datapath rules 3, 5 to 8 and 12 to 14 (`docs/internals/datapath-rules.md`) apply to
//! packed rings. One load reads the half of a descriptor with length, id and flags, and another
//! load reads the address. The switch uses only the loaded copies of a descriptor. The search for
//! the end of a chain examines a limited number of descriptors. A chain without an end stops the
//! ring, because the switch cannot find the beginning of the next chain. The switch writes a used
//! descriptor with a single store of length, id and flags. [`PackedRing::publish`] stores the first
//! used descriptor of a burst last. Until the first used descriptor is stored, the driver sees no
//! used descriptor of the burst. The switch only echoes a descriptor's id and never uses the id as
//! an index.
//!
//! # Order
//! The switch returns all chains of a packed ring in order. If `IN_ORDER` was negotiated, one used
//! descriptor per burst returns all chains of the burst (§2.8.9). The used position is always the
//! position of the first descriptor that was not returned.
#![allow(unsafe_code, reason = "uses raw guest pointers; each block names its invariant")]

mod events;
mod give;
mod live;
mod position;
mod resume;
mod track;
mod walk;

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::ring::call::Call;
use super::ring::frames::{take_pieces, take_plain};
use super::ring::pieces::Piece;
use super::ring::{BAD_CHAINS_MAX, BadChain, F_INDIRECT, F_NEXT, F_WRITE, PIECES_MAX};
pub use super::ring::{RING_SIZE_MAX, RingAddresses, RingError, RingSpec};
use crate::batch::{BATCH_FRAMES, Batch, CHAIN_MAX};
use crate::mem::prefetch;
use crate::port::dirty_log::RingLog;
use crate::port::guest_memory::GuestMemory;
use crate::port::inflight::PackedInflight;
use position::{F_AVAIL, F_USED, Position};

/// Number of descriptors that the switch looks at to estimate how many chains wait.
const LOOK_MAX: u16 = 64;

/// Copy of a packed ring's descriptor that was read once from guest memory.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    guest: u64,
    len: u32,
    id: u16,
    flags: u16,
}

/// The next buffers of a packed ring, each of which consists of one descriptor.
struct Singles {
    /// A null piece marks a descriptor that is not plain and needs [`PackedRing::walk`].
    pieces: [Piece; BATCH_FRAMES],
    ids: [u16; BATCH_FRAMES],
    len: usize,
    /// True if the list of buffers is short because the driver made no more descriptors available.
    dry: bool,
}

/// Host addresses of the ring, the driver's event area and the device's event area.
type Parts = (*mut u64, *mut u32, *mut u32);

/// The device side of one packed virtqueue, with the switch's positions in the ring.
pub struct PackedRing {
    ring: *mut u64,
    driver_event: *mut u32,
    device_event: *mut u32,
    size: u16,
    /// Position of the next descriptor that the switch examines for available chains.
    next: Position,
    /// Position of the next used descriptor that the switch writes.
    used: Position,
    /// Number of descriptors that the switch took and has not yet published as used.
    held: u16,
    /// Number of descriptors in `held` that the switch has already written back, but not yet
    /// published.
    returned: u16,
    /// The first used descriptor of the burst that is not yet published: the index, and the word
    /// with length, id and flags.
    first: Option<(u16, u64)>,
    /// Number of descriptors that the switch published since it last read the driver's event area.
    unsignalled: u32,
    header: usize,
    event_idx: bool,
    in_order: bool,
    mergeable: bool,
    stopped: bool,
    /// Equals [`resume::MARKED`] if the ring has marks for the next switch, otherwise 0.
    mark: u16,
    bad_chains: u32,
    hint: usize,
    taken: usize,
    ids: [u16; BATCH_FRAMES],
    spans: [u16; BATCH_FRAMES],
    call: Call,
    memory: Arc<GuestMemory>,
    log: Option<RingLog>,
    inflight: Option<PackedInflight>,
}

// SAFETY: the pointers lead into `memory`, which lives as long as the ring, and exactly one thread
// has the ring at any time. WHY: control threads build rings, and a worker runs them.
unsafe impl Send for PackedRing {}

impl core::fmt::Debug for PackedRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PackedRing")
            .field("size", &self.size)
            .field("next", &self.next)
            .field("used", &self.used)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl PackedRing {
    /// Checks the ring's addresses and continues the ring at the position `spec.base`.
    ///
    /// # Errors
    /// Returns a [`RingError`] if the ring's size, position or an address is invalid.
    pub fn new(spec: RingSpec, memory: Arc<GuestMemory>) -> Result<Self, RingError> {
        let size = position::checked_size(spec.size)?;
        let (ring, driver_event, device_event) = Self::locate(&memory, spec.at, size)?;
        let start = position::start(spec.base, size)?;
        let mut ring = Self {
            ring,
            driver_event,
            device_event,
            size,
            next: start,
            used: start,
            held: 0,
            returned: 0,
            first: None,
            unsignalled: 0,
            header: spec.header,
            event_idx: spec.event_idx,
            in_order: spec.in_order,
            mergeable: spec.mergeable,
            stopped: false,
            mark: 0,
            bad_chains: 0,
            hint: 0,
            taken: 0,
            ids: [0; BATCH_FRAMES],
            spans: [0; BATCH_FRAMES],
            call: Call::new(spec.call),
            memory,
            log: None,
            inflight: None,
        };
        ring.mark = ring.mark_found();
        ring.suppress_kicks();
        Ok(ring)
    }

    /// Host addresses of the ring and its two event areas. The function checks the whole range of
    /// the ring and of each event area.
    fn locate(memory: &GuestMemory, ring: RingAddresses, size: u16) -> Result<Parts, RingError> {
        let at = |what, user, len, align| {
            memory.translate_user(user, len, align).ok_or(RingError::Address(what, user))
        };
        let descriptors = at("packed ring", ring.descriptors, 16 * u64::from(size), 16)?;
        let driver_event = at("driver event area", ring.available, 4, 4)?;
        let device_event = at("device event area", ring.used, 4, 4)?;
        Ok((descriptors.cast(), driver_event.cast(), device_event.cast()))
    }

    /// Position of the ring for the front end, encoded like [`RingSpec::base`].
    #[must_use]
    pub fn base(&self) -> u32 {
        u32::from(self.next.to_base()) | u32::from(self.used.to_base()) << 16
    }

    /// Number of entries of the packed ring.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Whether the switch stopped the ring because the driver broke the virtio rules too often.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// One of the two 64-bit halves of the descriptor at `index`. Half 0 is the descriptor's
    /// address, and half 1 is length, id and flags.
    #[inline(always)]
    fn half(&self, index: u16, half: usize) -> &AtomicU64 {
        debug_assert!(index < self.size && half < 2);
        // SAFETY: a position's index is below the size, so the word lies in the checked ring, which
        // is 16-aligned and stays mapped.
        // WHY: the driver writes these words while they are read, which is defined only for
        // atomics.
        unsafe { AtomicU64::from_ptr(self.ring.add(2 * usize::from(index) + half)) }
    }

    /// Reads the descriptor at position `at` once. Returns `None` if the driver has not made the
    /// descriptor available.
    #[inline(always)]
    fn read(&self, at: Position) -> Option<Descriptor> {
        let word = self.half(at.index, 1).load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "its fields")]
        let (len, id, flags) = (word as u32, (word >> 32) as u16, (word >> 48) as u16);
        if flags & (F_AVAIL | F_USED) != at.ready {
            return None;
        }
        Some(Descriptor { guest: self.half(at.index, 0).load(Ordering::Relaxed), len, id, flags })
    }

    /// Whether the driver has made a chain available that the switch has not examined.
    #[inline]
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let flags = self.half(self.next.index, 1).load(Ordering::Relaxed) >> 48;
        !self.stopped && flags & u64::from(F_AVAIL | F_USED) == u64::from(self.next.ready)
    }

    /// Number of chains that the driver has made available and that the switch has not examined.
    /// The ring has no index, so the count looks at the next 64 descriptors only.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let (mut at, mut chains) = (self.next, 0);
        for _ in 0..if self.stopped { 0 } else { LOOK_MAX.min(self.size) } {
            let Some(descriptor) = self.read(at) else { break };
            chains += usize::from(descriptor.flags & F_NEXT == 0);
            at.advance(1, self.size);
        }
        chains
    }

    #[cold]
    fn stop(&mut self) {
        self.stopped = true;
    }

    #[cold]
    fn count_bad_chain(&mut self) {
        self.bad_chains += 1;
        if self.bad_chains >= BAD_CHAINS_MAX {
            self.stop();
        }
    }

    /// Reads up to `want` buffers of one descriptor each, and translates and prefetches the plain
    /// buffers. `fetch` ends at a chain of several descriptors or at the end of the available
    /// descriptors. `fetch` does not advance the position of the ring.
    #[inline(always)]
    fn fetch(&mut self, want: usize, wanted: u16, prefetch: impl Fn(*mut u8)) -> Singles {
        let mut singles = Singles {
            pieces: [Piece::NONE; BATCH_FRAMES],
            ids: [0; BATCH_FRAMES],
            len: 0,
            dry: true,
        };
        if self.stopped {
            return singles;
        }
        let room = usize::from(self.size - self.held);
        let want = want.min(room).min(BATCH_FRAMES);
        let mut at = self.next;
        while singles.len < want {
            let Some(d) = self.read(at) else { return singles };
            if d.flags & F_NEXT != 0 {
                break;
            }
            singles.ids[singles.len] = d.id;
            if d.flags & (F_WRITE | F_INDIRECT) == wanted
                && d.id < self.size
                && let Some(host) = self.memory.translate(d.guest, d.len, &mut self.hint)
            {
                singles.pieces[singles.len] = Piece { at: host, len: d.len };
                prefetch(host);
                prefetch(host.wrapping_add(64));
            }
            singles.len += 1;
            at.advance(1, self.size);
        }
        singles.dry = want == 0;
        singles
    }

    /// Counts the next `span` descriptors of the ring as consumed.
    #[inline(always)]
    fn consume(&mut self, span: u16) {
        self.next.advance(span, self.size);
        self.held += span;
    }

    /// Takes frames into `batch` until the ring is empty or the batch is full.
    pub fn take(&mut self, batch: &mut Batch) {
        self.taken = 0;
        let room = BATCH_FRAMES - batch.len();
        while self.taken < room && batch.has_room() {
            let singles = self.fetch(room - self.taken, 0, |at| prefetch(at));
            if !self.take_singles(batch, &singles) || singles.dry {
                return;
            }
            let chain_next = self.taken < room && batch.has_room();
            if chain_next && !self.take_chain(batch) {
                return;
            }
        }
    }

    /// Takes frames from the fetched buffers while the buffers are still available and `batch` has
    /// room. Returns false if the switch cannot take more buffers.
    #[inline]
    fn take_singles(&mut self, batch: &mut Batch, singles: &Singles) -> bool {
        for (piece, id) in singles.pieces.iter().zip(singles.ids).take(singles.len) {
            if !batch.has_room() {
                return false;
            }
            if piece.at.is_null() {
                if !self.take_chain(batch) {
                    return false;
                }
                if self.spans[self.taken - 1] != 1 {
                    // The driver has since turned this descriptor into a chain, so the fetched copy
                    // is out of date.
                    return true;
                }
                continue;
            }
            // SAFETY: the piece was translated in `memory`, which lives longer than the turn.
            // WHY: no slice over guest memory may exist.
            let taken = unsafe { take_plain(batch, *piece, self.header) };
            self.took(id, 1, taken, batch);
        }
        true
    }

    /// Takes a frame from the next chain, which may have several descriptors. Returns false if
    /// there is no chain or the ring is stopped.
    fn take_chain(&mut self, batch: &mut Batch) -> bool {
        let mut pieces = [Piece::NONE; PIECES_MAX];
        let limit = self.size - self.held;
        let Some(walked) = self.walk(self.next, 0, limit, &mut pieces, &mut { CHAIN_MAX }) else {
            return false;
        };
        let taken = walked.pieces.and_then(|count| {
            // SAFETY: `walk` found every piece in `memory`, which lives longer than the turn.
            // WHY: as for a plain frame.
            unsafe { take_pieces(batch, &pieces[..count], self.header) }
        });
        self.took(walked.id, walked.span, taken, batch);
        true
    }

    /// Records a taken chain, so that [`Self::complete_taken`] returns the chain.
    #[inline(always)]
    fn took(&mut self, id: u16, span: u16, taken: Result<(), BadChain>, batch: &mut Batch) {
        self.consume(span);
        self.ids[self.taken] = id;
        self.spans[self.taken] = span;
        self.taken += 1;
        if taken.is_err() {
            batch.errors += 1;
            self.count_bad_chain();
        } else {
            self.bad_chains = 0;
        }
    }

    /// Returns the chains of the last [`Self::take`] to the driver. The driver sees the returned
    /// chains after `publish`.
    #[inline]
    pub fn complete_taken(&mut self) {
        let taken = core::mem::take(&mut self.taken);
        if taken > 0 && self.in_order {
            // §2.8.9: one used descriptor with the id of the last chain returns all chains.
            let span = self.spans[..taken].iter().sum();
            self.push_used(self.ids[taken - 1], 0, span);
            return;
        }
        for k in 0..taken {
            self.push_used(self.ids[k], 0, self.spans[k]);
        }
    }

    /// Returns a chain of `span` descriptors to the driver. `len` is the number of bytes that the
    /// switch wrote into the chain.
    #[inline(always)]
    fn push_used(&mut self, id: u16, len: u32, span: u16) {
        if span > 1 {
            self.mark_last(id, span);
        }
        let written = if len > 0 { F_WRITE } else { 0 };
        let flags = self.used.used_flags() | written;
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        if self.returned == 0 {
            self.first = Some((self.used.index, word));
        } else {
            if self.inflight.is_some() {
                self.save_overwritten();
            }
            self.half(self.used.index, 1).store(word, Ordering::Release);
        }
        self.returned += span;
        self.used.advance(span, self.size);
    }

    /// Makes the used descriptors visible to the driver.
    #[inline]
    pub fn publish(&mut self) {
        if let Some((index, word)) = self.first.take() {
            if self.inflight.is_some() {
                self.publish_tracked(index, word);
            } else {
                self.half(index, 1).store(word, Ordering::Release);
            }
            let returned = core::mem::take(&mut self.returned);
            self.held -= returned;
            self.unsignalled = self.unsignalled.saturating_add(u32::from(returned));
            if self.log.is_some() {
                self.log_used(index, returned);
            }
        }
    }
}
