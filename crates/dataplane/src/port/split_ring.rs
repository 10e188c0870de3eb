//! The device side of a split virtqueue (virtio 1.2 §2.7).
//!
//! # Problem
//! An attacker in the guest may rewrite every word of a split ring at any moment.
//!
//! # Approach
//! The numbered datapath rules 3, 5 to 8 and 12 to 14 (`docs/internals/datapath-rules.md`) apply to
//! split rings. The switch reads each guest word once into private memory, and validates and uses
//! only the private copy. A step count limits the walk along a descriptor chain. A burst passes
//! through stages, and each stage prefetches for the next stage. The switch publishes indices once
//! per burst. If a driver breaks a rule too often, or writes impossible indices, the switch stops
//! the driver's ring. A driver that breaks rules harms only its own port.
//!
//! # Order
//! The switch returns all chains in order, so the switch may offer `IN_ORDER`.
#![allow(unsafe_code, reason = "guest memory by raw pointer; each block names its invariant")]

mod burst;
mod give;
mod live;

use core::sync::atomic::{AtomicU16, Ordering, fence};
use std::sync::Arc;

use super::ring::call::Call;
use super::ring::frames::{prefetch_source, take_pieces, take_plain};
use super::ring::pieces::{Piece, add_pieces, indirect_table};
use super::ring::{BAD_CHAINS_MAX, BadChain, F_INDIRECT, F_NEXT, F_WRITE, PIECES_MAX, SEARCH_MAX};
pub use super::ring::{RING_SIZE_MAX, RingAddresses, RingError, RingSpec};
use crate::batch::{BATCH_FRAMES, Batch, CHAIN_MAX};
use crate::mem::prefetch_write;
use crate::port::TxOutcome;
use crate::port::guest_memory::GuestMemory;
use burst::{AHEAD, Burst};
use live::Records;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;
/// Replaces the prefetch distance [`AHEAD`] after a burst that ended because the batch had too many
/// bytes for another frame.
const FEW_AHEAD: usize = 2;

/// Copy of a split ring's descriptor that was read once from guest memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Descriptor {
    guest: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// Host addresses of the descriptor table, the available ring and the used ring.
type Parts = (*const Descriptor, *mut u16, *mut u16);

/// The device side of one split virtqueue, with the switch's indices.
pub struct SplitRing {
    descriptors: *const Descriptor,
    available: *mut u16,
    used: *mut u16,
    size: u16,
    mask: u16,
    next_available: u16,
    available_seen: u16,
    next_used: u16,
    published: u16,
    signalled: u16,
    header: usize,
    event_idx: bool,
    mergeable: bool,
    stopped: bool,
    bad_chains: u32,
    hint: usize,
    in_order: bool,
    /// Whether the last burst ended because the batch had too many bytes for another frame.
    cut_short: bool,
    /// Number of chains in the last burst that the switch took. The array `heads` contains the head
    /// descriptors of the taken chains.
    taken: usize,
    heads: [u16; BATCH_FRAMES],
    burst: Burst,
    call: Call,
    memory: Arc<GuestMemory>,
    /// Address from which the switch reads chain heads: the driver's available ring, or
    /// `Records::replay` after the crash of a previous switch.
    heads_at: *mut u16,
    replaying: bool,
    recording: bool,
    records: Box<Records>,
}

// SAFETY: the pointers lead into `memory`, which lives as long as the ring, and exactly one thread
// has the ring at any time. WHY: control threads build rings, and a worker runs them.
unsafe impl Send for SplitRing {}

impl core::fmt::Debug for SplitRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SplitRing")
            .field("size", &self.size)
            .field("next_available", &self.next_available)
            .field("next_used", &self.next_used)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl SplitRing {
    /// Checks the ring's addresses, and continues the ring at the position that the driver's memory
    /// records.
    ///
    /// # Errors
    /// Returns a [`RingError`] if the ring's size or an address is invalid.
    pub fn new(spec: RingSpec, memory: Arc<GuestMemory>) -> Result<Self, RingError> {
        let size = match u16::try_from(spec.size) {
            Ok(size) if size.is_power_of_two() => size,
            _ => return Err(RingError::Size(spec.size)),
        };
        let (descriptors, available, used) = Self::locate(&memory, spec.at, size)?;
        let mut ring = Self {
            descriptors,
            available,
            used,
            size,
            mask: size - 1,
            next_available: 0,
            available_seen: 0,
            next_used: 0,
            published: 0,
            signalled: 0,
            header: spec.header,
            event_idx: spec.event_idx,
            mergeable: spec.mergeable,
            stopped: false,
            bad_chains: 0,
            hint: 0,
            in_order: spec.in_order,
            cut_short: false,
            taken: 0,
            heads: [0; BATCH_FRAMES],
            burst: Burst::NONE,
            call: Call::new(spec.call),
            memory,
            heads_at: available.wrapping_add(2),
            replaying: false,
            recording: false,
            records: Box::default(),
        };
        // If the last switch died after publishing, the front end may have a position that is too
        // old. The used index in the driver's memory is right, because chains are returned in
        // order.
        ring.next_used = ring.word(ring.used, 1).load(Ordering::Acquire);
        ring.published = ring.next_used;
        ring.signalled = ring.next_used;
        ring.next_available = ring.next_used;
        ring.available_seen = ring.next_used;
        ring.suppress_kicks();
        Ok(ring)
    }

    /// Host addresses of the ring's three parts. `locate` checks the whole range of the descriptor
    /// table, the available ring and the used ring.
    fn locate(memory: &GuestMemory, ring: RingAddresses, size: u16) -> Result<Parts, RingError> {
        let n = u64::from(size);
        let at = |what, user, len, align| {
            memory.translate_user(user, len, align).ok_or(RingError::Address(what, user))
        };
        let descriptors = at("descriptor table", ring.descriptors, 16 * n, 16)?;
        let available = at("available ring", ring.available, 6 + 2 * n, 2)?;
        let used = at("used ring", ring.used, 6 + 8 * n, 4)?;
        Ok((descriptors.cast_const().cast(), available.cast(), used.cast()))
    }

    /// Host address of the driver's available entries.
    #[inline(always)]
    fn guest_heads(&self) -> *mut u16 {
        self.available.wrapping_add(2)
    }

    /// Index of the next available entry, which is the ring's base for the front end.
    #[must_use]
    pub fn base(&self) -> u32 {
        u32::from(self.next_available)
    }

    /// Number of entries of the split ring.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Whether the switch stopped the ring because the driver broke the virtio rules too often.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the 16-bit word number `at` of the available or used ring at `base`. Word 0 of an
    /// available or used ring is `flags`, and word 1 is `idx`.
    #[inline(always)]
    fn word(&self, base: *mut u16, at: usize) -> &AtomicU16 {
        // SAFETY: every caller stays within the bytes that `new` checked: 3 + size words of the
        // available ring, 3 + 4 * size of the used ring, size words where heads are read. All are
        // 2-aligned and stay mapped.
        // WHY: the driver writes these words while they are read, which is defined only for
        // atomics.
        unsafe { AtomicU16::from_ptr(base.add(at)) }
    }

    /// Whether the driver has made a chain available that the switch has not examined.
    #[inline]
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.stopped && self.word(self.available, 1).load(Ordering::Relaxed) != self.next_available
    }

    /// Number of chains that the driver has made available and that the switch has not examined. A
    /// driver may write any index, so the number is at most the ring's size.
    #[must_use]
    pub fn waiting(&self) -> usize {
        if self.stopped {
            return 0;
        }
        let available = self.word(self.available, 1).load(Ordering::Relaxed);
        usize::from(available.wrapping_sub(self.next_available).min(self.size))
    }

    /// Number of available chains. If the switch knows of fewer than `want` chains, it reads the
    /// driver's available index again.
    #[inline]
    fn credits(&mut self, want: u16) -> u16 {
        let known = self.available_seen.wrapping_sub(self.next_available);
        if known >= want || self.stopped {
            return known;
        }
        self.available_seen = self.word(self.available, 1).load(Ordering::Acquire);
        let now = self.available_seen.wrapping_sub(self.next_available);
        if now > self.size {
            self.stop("the driver's available index runs ahead of the ring");
            return 0;
        }
        if self.replaying {
            self.extend_replay();
        }
        now
    }

    #[cold]
    fn stop(&mut self, _why: &'static str) {
        self.stopped = true;
        self.available_seen = self.next_available;
    }

    #[inline(always)]
    fn head_at(&self, index: u16) -> u16 {
        self.word(self.heads_at, usize::from(index & self.mask)).load(Ordering::Relaxed)
    }

    /// Takes frames into `batch` until the ring is empty or the batch is full.
    pub fn take(&mut self, batch: &mut Batch) {
        self.taken = 0;
        if self.stopped {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        let room = (BATCH_FRAMES - batch.len()) as u16;
        let n = usize::from(self.credits(room).min(room)).min(BATCH_FRAMES);
        // Bursts of large segments end after one or two frames, so prefetches for more would be
        // wasted.
        let ahead = if self.cut_short { FEW_AHEAD } else { AHEAD };
        self.read_heads(n);
        let mut window = self.memory.window(self.hint);
        let (mut taken, header) = (0, self.header);
        while taken < n && batch.has_room() {
            self.make_ready((taken + ahead).min(n), 0, &mut window, prefetch_source);
            let piece = self.burst.plain[taken % BATCH_FRAMES];
            let ok = if piece.at.is_null() {
                self.take_chain(batch, self.burst.heads[taken % BATCH_FRAMES])
            } else {
                // SAFETY: the piece was translated in `memory`, which lives longer than the turn.
                // WHY: no slice over guest memory may exist.
                unsafe { take_plain(batch, piece, header) }
            };
            taken += 1;
            if ok.is_err() {
                batch.errors += 1;
                self.count_bad_chain();
            } else if self.bad_chains != 0 {
                self.bad_chains = 0;
            }
        }
        self.cut_short = taken < n;
        self.taken = taken;
        self.heads = self.burst.heads;
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        let taken = taken as u16;
        self.next_available = self.next_available.wrapping_add(taken);
        self.prefetch_used(usize::from(if self.in_order { taken.min(1) } else { taken }));
    }

    #[cold]
    fn count_bad_chain(&mut self) {
        self.bad_chains += 1;
        if self.bad_chains >= BAD_CHAINS_MAX {
            self.stop("the driver made too many bad chains available");
        }
    }

    /// Takes a frame from the descriptor chain that starts at `head`. The chain may have several
    /// descriptors, an indirect table, or buffers that cross borders of memory regions.
    // This function is not inlined, because otherwise every burst would pay for the stack space of
    // its pieces.
    #[inline(never)]
    fn take_chain(&mut self, batch: &mut Batch, head: u16) -> Result<(), BadChain> {
        let mut pieces = [Piece::NONE; PIECES_MAX];
        let count = self.walk(head, 0, &mut pieces, &mut { CHAIN_MAX })?;
        // SAFETY: `walk` found every piece in `memory`, which lives longer than the turn.
        // WHY: as for a plain frame.
        unsafe { take_pieces(batch, &pieces[..count], self.header) }
    }

    /// Walks along a chain and translates the chain's buffers to pieces of host memory. `wanted` is
    /// the write flag that each descriptor must have. `steps` is the number of descriptors that the
    /// walk may examine.
    fn walk(
        &mut self,
        head: u16,
        wanted: u16,
        pieces: &mut [Piece],
        steps: &mut usize,
    ) -> Result<usize, BadChain> {
        let mut table = Table { at: self.descriptors, size: self.size, indirect: false };
        let mut next = head;
        let mut count = 0;
        // The step count ends every loop that the driver may build.
        for _ in 0..CHAIN_MAX {
            *steps = steps.checked_sub(1).ok_or(BadChain)?;
            if next >= table.size {
                return Err(BadChain);
            }
            // SAFETY: next < table.size, and the table was checked for that many entries.
            // WHY: volatile, so that the descriptor is read exactly once.
            let d = unsafe { table.at.add(usize::from(next)).read_volatile() };
            if d.flags & F_INDIRECT != 0 {
                table = self.indirect_table(&table, d)?;
                next = 0;
                continue;
            }
            if d.flags & F_WRITE != wanted {
                return Err(BadChain);
            }
            count = add_pieces(&self.memory, d.guest, d.len, pieces, count)?;
            if d.flags & F_NEXT == 0 {
                return Ok(count);
            }
            next = d.next;
        }
        Err(BadChain)
    }

    fn indirect_table(&mut self, outer: &Table, d: Descriptor) -> Result<Table, BadChain> {
        if outer.indirect || d.flags & F_NEXT != 0 {
            return Err(BadChain);
        }
        let (at, size) = indirect_table(&self.memory, d.guest, d.len, &mut self.hint)?;
        Ok(Table { at: at.cast(), size, indirect: true })
    }

    /// Returns the chains of the last [`Self::take`] to the driver. The driver sees the returned
    /// chains after `publish`.
    #[inline]
    pub fn complete_taken(&mut self) {
        let (n, first) = (self.taken.min(BATCH_FRAMES), self.next_used);
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        let past = first.wrapping_add(n as u16);
        if self.in_order && n > 0 && !self.recording {
            // virtio 1.2 §2.7.9: one entry with the last chain returns all chains. This saves the
            // transfer of three lines from the driver's core.
            self.write_used(first, self.heads[n - 1], 0);
        } else {
            for (index, &head) in (0..).zip(&self.heads[..n]) {
                self.write_used(first.wrapping_add(index), head, 0);
            }
        }
        self.next_used = past;
        self.taken = 0;
    }

    #[inline(always)]
    fn push_used(&mut self, id: u16, len: u32) {
        self.write_used(self.next_used, id, len);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Writes entry number `index` of the used ring.
    #[inline(always)]
    fn write_used(&self, index: u16, id: u16, len: u32) {
        let entry = u64::from(id) | u64::from(len) << 32;
        let at = 2 + 4 * usize::from(index & self.mask);
        // SAFETY: the entry lies in the checked used ring, which is 4-aligned; `u64` needs 8, so
        // the write is unaligned. WHY: one store writes both id and length.
        unsafe { self.used.add(at).cast::<u64>().write_unaligned(entry) };
    }

    /// Prefetches the lines of the next `n` used entries and of the used index.
    #[inline(always)]
    fn prefetch_used(&self, n: usize) {
        const A_LINE: usize = 8;
        prefetch_write(self.used.cast());
        for k in (0..n).step_by(A_LINE) {
            let at = usize::from(self.next_used & self.mask) + k;
            prefetch_write(self.used.wrapping_add(2 + 4 * (at & usize::from(self.mask))).cast());
        }
    }

    /// Makes the used entries visible to the driver.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.next_used {
            if self.recording {
                return self.publish_recorded();
            }
            self.word(self.used, 1).store(self.next_used, Ordering::Release);
            self.published = self.next_used;
        }
    }

    /// Interrupts the driver if the driver enabled interrupts. The worker calls `notify` after
    /// `publish` and a full fence. Returns the number of interrupts, 0 or 1.
    #[inline]
    pub fn notify(&mut self) -> u32 {
        if self.signalled == self.published {
            return 0;
        }
        let old = core::mem::replace(&mut self.signalled, self.published);
        let wanted = if self.event_idx {
            let event =
                self.word(self.available, 2 + usize::from(self.size)).load(Ordering::Relaxed);
            // virtio 1.2 §2.7.7.2: the driver's event index is among the entries just published.
            self.published.wrapping_sub(event).wrapping_sub(1) < self.published.wrapping_sub(old)
        } else {
            self.word(self.available, 0).load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
        };
        if wanted { self.call.interrupt() } else { 0 }
    }

    /// Prepares the ring for a time without polling: requests kicks from the driver, then looks for
    /// a chain again. Returns true if the worker need not poll the ring, because the driver kicks
    /// for every new chain (virtio 1.2 §2.7.10).
    pub fn ask_for_kicks(&mut self) -> bool {
        if self.event_idx {
            let at = 2 + 4 * usize::from(self.size);
            self.word(self.used, at).store(self.next_available, Ordering::Relaxed);
        } else {
            self.word(self.used, 0).store(0, Ordering::Relaxed);
        }
        self.log_wish();
        // The request must be visible before the ring is read again. The driver makes its chain
        // visible before it reads the request, so at least one side sees the other's write.
        fence(Ordering::SeqCst);
        let alone = !self.has_waiting();
        if !alone {
            self.suppress_kicks();
        }
        alone
    }

    /// Requests that the driver does not kick, because the worker polls the ring again.
    pub fn suppress_kicks(&mut self) {
        if self.event_idx {
            let passed = self.next_available.wrapping_sub(1);
            let at = 2 + 4 * usize::from(self.size);
            self.word(self.used, at).store(passed, Ordering::Relaxed);
        } else {
            self.word(self.used, 0).store(USED_NO_NOTIFY, Ordering::Relaxed);
        }
        self.log_wish();
    }
}

struct Table {
    at: *const Descriptor,
    size: u16,
    indirect: bool,
}
