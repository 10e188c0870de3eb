//! A batch is the at most 32 frames, about 64 KiB, that a worker handles in one turn.
//!
//! # Problem
//! A frame lies in its sender's memory, which the sender may change at any moment. The switch must
//! send exactly the headers that the switch classified. The numbered datapath rules 2 to 6 and 20
//! (`docs/internals/datapath-rules.md`) apply to a batch of frames.
//!
//! # Approach
//! A frame in a batch has a head and segments. A frame's head consists of its first [`HEAD_COPY`]
//! bytes. The switch copies the head once into a private slot, validates the copy and sends the
//! copy. The frame's other bytes are segments, which stay in the sender's memory or in the batch's
//! arena. The switch copies each segment once, directly to the destination. Segment pointers are
//! valid until [`Batch::clear`], so no pointer survives a turn of the worker.
//!
//! # Cost
//! A batch allocates memory once, when it is created.

use penstock_qos::policer::Size;

use crate::drop::DropReason;
use crate::offload::Offload;

/// Maximum number of frames in a batch. In C2QoS, the maximum number of frames in a batch is the
/// burst of a batch I/O task.
pub const BATCH_FRAMES: usize = 32;
/// Number of bytes at which a batch accepts no more frames, so that large TSO frames cannot make a
/// turn longer.
pub const BATCH_BYTES: usize = 64 * 1024;
/// Number of bytes at a frame's start that are copied into the frame's slot. The 128 bytes can
/// contain the headers of Ethernet, a VLAN tag, IPv6 and TCP with options.
pub const HEAD_COPY: usize = 128;
/// Longest frame in bytes that a port accepts: an IP packet of 64 KiB, an Ethernet header and two
/// VLAN tags.
pub const FRAME_MAX: usize = 65_535 + 14 + 8;
/// Shortest frame in bytes that a port accepts: an Ethernet header.
pub const FRAME_MIN: usize = 14;
/// Maximum number of segments in one descriptor chain, independent of the ring's size (datapath
/// rule 7).
pub const CHAIN_MAX: usize = 256;

const SLOT_HEADROOM: usize = 16;
const SLOT_BYTES: usize = 192;
pub(crate) const SEGMENTS_MAX: usize = 1024;
const ARENA_BYTES: usize = BATCH_BYTES + 2 * FRAME_MAX;

/// A piece of a frame that is not in the frame's slot, but in guest memory or in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) data: *const u8,
    pub(crate) len: u32,
}

/// Private copy of a frame's first bytes, with room for a VLAN tag before the copy.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Slot([u8; SLOT_BYTES]);

/// Forwarding decision about a frame. The classifier sets the verdict, and egress executes the
/// verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The switch drops the frame for the given reason.
    Drop(DropReason),
    /// The switch sends the frame to the port with the given number.
    Output(u16),
    /// The frame goes to the ports of the snapshot's output set with the given number.
    OutputSet(u16),
    /// The frame goes to every port of the given forwarding domain except the frame's input port.
    Flood(u16),
}

/// Metadata of a frame in a batch, without the frame's bytes. The metadata of one frame fills half
/// a cache line. Fields that have the same value in most new frames are adjacent, so that two or
/// three stores write these fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Frame {
    /// Present length of the frame in bytes, without FCS.
    pub len: u32,
    /// Hash of the frame's flow key. The hash selects a queue of the output port.
    pub hash: u32,
    pub verdict: Verdict,
    /// Offload metadata of the frame, with offsets from the frame's present start.
    pub offload: Offload,
    /// Priority and VLAN of the frame (802.1Q TCI). VLAN 0 is the untagged network.
    pub tci: u16,
    /// Whether the frame's bytes contain the VLAN tag. If `tagged` is false, only the field `tci`
    /// contains the VLAN tag.
    pub tagged: bool,
    start: u8,
    head: u8,
    seg_first: u16,
    seg_count: u16,
}

const _: () = assert!(size_of::<Frame>() == 32);
const _: () =
    assert!(SLOT_HEADROOM + 4 + HEAD_COPY < 256 && SLOT_HEADROOM + 4 + HEAD_COPY <= SLOT_BYTES);

impl Frame {
    const EMPTY: Self = Self {
        len: 0,
        hash: 0,
        verdict: Verdict::Drop(DropReason::Runt),
        offload: Offload::NONE,
        tci: 0,
        tagged: false,
        start: 0,
        head: 0,
        seg_first: 0,
        seg_count: 0,
    };

    /// Returns the number of bytes in the frame's slot, which is the minimum of [`HEAD_COPY`] and
    /// the frame's length.
    #[inline]
    pub(crate) const fn head_len(&self) -> usize {
        self.head as usize
    }

    /// Whether the frame has segments, which contain the bytes after the frame's head.
    #[inline]
    pub(crate) const fn has_segments(&self) -> bool {
        self.seg_count != 0
    }
}

/// Error: the batch has no room for the frame, so the frame stays in its port or queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFull;

/// Up to [`BATCH_FRAMES`] frames with their metadata, slots and segments.
pub struct Batch {
    slots: [Slot; BATCH_FRAMES],
    frames: [Frame; BATCH_FRAMES],
    len: usize,
    /// Present limit on the number of frames in the batch, at most [`BATCH_FRAMES`].
    most: usize,
    bytes: usize,
    segments: [Segment; SEGMENTS_MAX],
    segment_count: usize,
    arena: Box<[u8]>,
    arena_used: usize,
    /// Frames that a rule mirrors, one bit for each, and the port of each frame's copy.
    mirrored: u32,
    mirrors: [u16; BATCH_FRAMES],
    /// Frames and bytes that the segmentation requests add to the batch on a wire, with the number
    /// of frames and bytes of the batch at the time of the count. `None` if they were not counted.
    added: Option<(usize, usize, Size)>,
    /// Number of descriptor chains or reads without a usable frame. A port increments `errors` for
    /// each unusable chain or read. The worker adds `errors` to the port's counters and then resets
    /// `errors`.
    pub errors: u32,
}

// SAFETY: the segments point into `arena` or into guest memory that the port of the frames keeps
// mapped. Only the thread that owns the batch dereferences them, and only before `clear`.
// WHY: a worker builds its batches before its thread starts.
#[allow(unsafe_code, reason = "raw segment pointers make `Batch` !Send")]
unsafe impl Send for Batch {}

impl core::fmt::Debug for Batch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Batch").field("frames", &self.frames()).finish_non_exhaustive()
    }
}

impl Batch {
    /// Allocates an empty batch and the batch's arena.
    #[must_use]
    pub fn new() -> Box<Self> {
        Box::new(Self {
            slots: [Slot([0; SLOT_BYTES]); BATCH_FRAMES],
            frames: [Frame::EMPTY; BATCH_FRAMES],
            len: 0,
            most: BATCH_FRAMES,
            bytes: 0,
            segments: [Segment { data: core::ptr::null(), len: 0 }; SEGMENTS_MAX],
            segment_count: 0,
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            arena_used: 0,
            mirrored: 0,
            mirrors: [0; BATCH_FRAMES],
            added: None,
            errors: 0,
        })
    }

    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.bytes = 0;
        self.segment_count = 0;
        self.arena_used = 0;
        self.added = None;
    }

    /// Limits the batch to `frames` frames, at most [`BATCH_FRAMES`], from this call on.
    #[inline]
    pub fn limit(&mut self, frames: usize) {
        self.most = if frames < BATCH_FRAMES { frames } else { BATCH_FRAMES };
    }

    /// Returns the present limit on the number of frames.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Whether any frame's bytes contain a VLAN tag. The check of a batch's frames has no branch
    /// per frame.
    #[inline]
    #[must_use]
    pub(crate) fn carries_tags(&self) -> bool {
        self.frames().iter().fold(false, |any, frame| any | frame.tagged)
    }

    /// Whether any frame has a pending checksum or segmentation. The check of a batch's frames has
    /// no branch per frame.
    #[inline]
    #[must_use]
    pub(crate) fn asks_for_offloads(&self) -> bool {
        let asks = |f: &Frame| u16::from_ne_bytes([f.offload.flags, f.offload.gso_type]);
        self.frames().iter().fold(0, |all, frame| all | asks(frame)) != 0
    }

    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the sum of the lengths of the batch's frames in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes the frames and bytes that the segmentation requests of all frames add on a wire.
    pub(crate) fn note_added(&mut self, added: Size) {
        self.added = Some((self.len, self.bytes, added));
    }

    /// Returns the number of frames and bytes of the whole batch on a wire. Returns `None` if they
    /// were not counted, or if a frame changed since.
    pub(crate) fn on_wire(&self) -> Option<Size> {
        let (len, bytes, added) = self.added?;
        if (len, bytes) != (self.len, self.bytes) {
            return None;
        }
        let whole = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let Size { bytes: more, frames } = added;
        Some(Size { bytes: whole(bytes).saturating_add(more), frames: whole(len) + frames })
    }

    /// Whether the batch accepts another frame. The batch must be below its limit of frames and
    /// below 64 KiB, and have room for the segments of the longest chain.
    #[inline]
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.len < self.most
            && self.bytes < BATCH_BYTES
            && self.segment_count + 2 * CHAIN_MAX <= SEGMENTS_MAX
    }

    /// Notes that a copy of frame `i` goes to `port`.
    pub(crate) fn mirror(&mut self, i: usize, port: u16) {
        self.mirrored |= 1 << (i % BATCH_FRAMES);
        self.mirrors[i % BATCH_FRAMES] = port;
    }

    /// Takes one port of [`Self::mirror`], with a bit mask of its frames. Returns `None` if no
    /// frame has a copy any more.
    pub(crate) fn take_mirror(&mut self) -> Option<(u16, u32)> {
        let first = self.mirrored.trailing_zeros() as usize;
        let port = *self.mirrors.get(first)?;
        let of_port = |i: &usize| self.mirrored >> i & 1 == 1 && self.mirrors[*i] == port;
        let frames = (first..BATCH_FRAMES).filter(of_port).fold(0, |all, i| all | 1 << i);
        self.mirrored &= !frames;
        Some((port, frames))
    }

    /// Removes the frames with a cleared bit in `keep` from the batch. The frames that remain in
    /// the batch keep their order.
    pub(crate) fn retain(&mut self, keep: u32) {
        let mut to = 0;
        for from in 0..self.len {
            if keep >> (from % BATCH_FRAMES) & 1 == 0 {
                self.bytes -= self.frames[from].len as usize;
                continue;
            }
            if to != from {
                self.frames[to] = self.frames[from];
                self.slots[to] = self.slots[from];
            }
            to += 1;
        }
        self.len = to;
    }

    #[inline]
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.len]
    }

    /// Returns the metadata of frame `i`. Panics if the batch has no frame `i`.
    #[inline]
    #[must_use]
    pub fn frame(&self, i: usize) -> &Frame {
        assert!(i < self.len);
        self.at(i)
    }

    /// Returns the metadata of frame `i` without a check in release builds, for loops whose `i` is
    /// always in the batch.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> &Frame {
        debug_assert!(i < self.len);
        &self.frames[i % BATCH_FRAMES]
    }

    #[inline(always)]
    pub(crate) fn at_mut(&mut self, i: usize) -> &mut Frame {
        debug_assert!(i < self.len);
        &mut self.frames[i % BATCH_FRAMES]
    }

    /// Returns the address of the slot bytes of frame `i`, of which [`Frame::head_len`] bytes are
    /// valid.
    #[inline(always)]
    pub(crate) fn head_at(&self, i: usize) -> *const u8 {
        let start = self.at(i).start;
        self.slots[i % BATCH_FRAMES].0.as_ptr().wrapping_add(start as usize)
    }

    #[inline]
    pub fn frame_mut(&mut self, i: usize) -> &mut Frame {
        assert!(i < self.len);
        self.at_mut(i)
    }

    /// Returns the head of frame `i`: the frame's first [`HEAD_COPY`] bytes, or the whole frame if
    /// the frame is shorter.
    #[inline]
    #[must_use]
    pub fn head(&self, i: usize) -> &[u8] {
        let f = &self.frames[i];
        &self.slots[i].0[f.start as usize..f.start as usize + f.head as usize]
    }

    #[inline]
    pub fn head_mut(&mut self, i: usize) -> &mut [u8] {
        let f = &self.frames[i];
        &mut self.slots[i].0[f.start as usize..f.start as usize + f.head as usize]
    }

    /// Returns [`HEAD_COPY`] bytes of the slot, starting at the frame's first byte. The bytes after
    /// the frame's end contain old data. A parser can therefore read at fixed offsets and compare
    /// the offsets with `len` once.
    #[inline]
    #[must_use]
    pub fn head_window(&self, i: usize) -> &[u8; HEAD_COPY] {
        // The start is at most SLOT_HEADROOM + 4, because only stripping a tag moves it forward.
        let start = (self.at(i).start as usize).min(SLOT_BYTES - HEAD_COPY);
        match self.slots[i % BATCH_FRAMES].0[start..].first_chunk() {
            Some(window) => window,
            None => unreachable!("HEAD_COPY bytes fit behind the frame's start"),
        }
    }

    /// Removes the VLAN tag of frame `i`: stores the tag's TCI in `tci` and moves the MAC addresses
    /// forward by four bytes. The caller must check that bytes 12..14 are the 802.1Q `EtherType`
    /// and that the frame has at least 18 bytes.
    #[inline]
    pub fn strip_tag(&mut self, i: usize) {
        self.added = None;
        let f = &mut self.frames[i];
        let s = f.start as usize;
        debug_assert!(f.head >= 18 && s + 18 <= SLOT_BYTES);
        let slot = &mut self.slots[i].0;
        f.tci = u16::from_be_bytes([slot[s + 14], slot[s + 15]]);
        slot.copy_within(s..s + 12, s + 4);
        f.start += 4;
        f.head -= 4;
        f.len -= 4;
        f.tagged = false;
        f.offload.csum_start = f.offload.csum_start.saturating_sub(4);
        f.offload.hdr_len = f.offload.hdr_len.saturating_sub(4);
    }

    /// Adds the VLAN tag in `tci` to frame `i` if `tagged` is true, or removes the tag if `tagged`
    /// is false.
    #[inline]
    pub fn set_tagged(&mut self, i: usize, tagged: bool) {
        let f = &mut self.frames[i];
        if f.tagged == tagged {
            return;
        }
        self.added = None;
        let s = f.start as usize;
        let slot = &mut self.slots[i].0;
        if tagged {
            let to = s - 4;
            slot.copy_within(s..s + 12, to);
            slot[to + 12..to + 14].copy_from_slice(&0x8100_u16.to_be_bytes());
            slot[to + 14..to + 16].copy_from_slice(&f.tci.to_be_bytes());
            f.start -= 4;
            f.head += 4;
            f.len += 4;
            f.tagged = true;
            if f.offload.needs_csum() {
                f.offload.csum_start += 4;
            }
            if f.offload.is_gso() {
                f.offload.hdr_len += 4;
            }
        } else {
            let tci = f.tci;
            self.strip_tag(i);
            self.frames[i].tci = tci;
        }
    }

    /// Adds a frame. Copies the frame's head into a slot and the whole frame into the arena.
    ///
    /// # Errors
    /// Returns [`BatchFull`] if the batch has no room for the frame. A failed call leaves the batch
    /// unchanged.
    pub fn push(&mut self, bytes: &[u8], offload: Offload) -> Result<(), BatchFull> {
        if !self.has_room() {
            return Err(BatchFull);
        }
        debug_assert!((FRAME_MIN..=FRAME_MAX).contains(&bytes.len()));
        let Some(space) = self.arena_space(bytes.len()) else { return Err(BatchFull) };
        space.copy_from_slice(bytes);
        self.push_arena(bytes.len(), offload);
        Ok(())
    }

    /// Adds a frame of `len` bytes that consists of `head`, at most [`HEAD_COPY`] bytes, and zeros.
    /// Synthetic ports use `push_head`, because it copies only the frame's head.
    ///
    /// # Errors
    /// Returns [`BatchFull`] if the batch has no room for the frame. A failed call leaves the batch
    /// unchanged.
    pub fn push_head(&mut self, head: &[u8], len: usize) -> Result<(), BatchFull> {
        static ZEROS: [u8; FRAME_MAX] = [0; FRAME_MAX];
        if !self.has_room() {
            return Err(BatchFull);
        }
        let head = &head[..head.len().min(HEAD_COPY)];
        let len = len.clamp(head.len().max(FRAME_MIN), FRAME_MAX);
        let copied = len.min(HEAD_COPY);
        let slot = &mut self.slots[self.len].0[SLOT_HEADROOM..SLOT_HEADROOM + copied];
        let (first, rest) = slot.split_at_mut(head.len());
        first.copy_from_slice(head);
        rest.fill(0);
        if len > copied {
            self.segments[self.segment_count] = segment(ZEROS.as_ptr(), len - copied);
        }
        self.commit(len, copied, usize::from(len > copied), Offload::NONE);
        Ok(())
    }

    /// Returns `len` unused bytes of the arena, or `None` if the arena has no room. A port may read
    /// a frame into the returned bytes and then add the frame with [`Self::push_arena`].
    #[inline]
    pub fn arena_space(&mut self, len: usize) -> Option<&mut [u8]> {
        self.arena.get_mut(self.arena_used..self.arena_used.checked_add(len)?)
    }

    /// Adds the frame that lies in the first `len` bytes of the arena's unused space. The caller
    /// must check [`Self::has_room`] before the call.
    pub fn push_arena(&mut self, len: usize, offload: Offload) {
        self.push_arena_from(0, len, offload);
    }

    /// Adds a frame like [`Self::push_arena`]. The frame begins `skip` bytes after the start of the
    /// arena's unused space.
    pub fn push_arena_from(&mut self, skip: usize, len: usize, offload: Offload) {
        self.arena_used += skip;
        let from = self.arena_used;
        let head = len.min(HEAD_COPY);
        let i = self.len;
        self.slots[i].0[SLOT_HEADROOM..SLOT_HEADROOM + head]
            .copy_from_slice(&self.arena[from..from + head]);
        if len > head {
            let rest = self.arena[from + head..from + len].as_ptr();
            self.segments[self.segment_count] = segment(rest, len - head);
        }
        self.arena_used += len.next_multiple_of(64);
        self.commit(len, head, usize::from(len > head), offload);
    }

    /// Calls `piece` with the address and length in bytes of each part of frame `i`, in order. A
    /// part of the frame may lie in guest memory.
    #[inline]
    pub(crate) fn each_piece(&self, i: usize, mut piece: impl FnMut(*const u8, usize)) {
        let head = self.head(i);
        piece(head.as_ptr(), head.len());
        for s in self.segments(i) {
            piece(s.data, s.len as usize);
        }
    }

    /// Copies `head`, at most [`HEAD_COPY`] bytes, into the slot of the frame that is being built.
    #[inline]
    pub(crate) fn fill_slot(&mut self, head: &[u8]) {
        let slot = &mut self.slots[self.len % BATCH_FRAMES].0;
        slot[SLOT_HEADROOM..SLOT_HEADROOM + head.len()].copy_from_slice(head);
    }

    /// Returns the address of the [`HEAD_COPY`] writable bytes in the slot of the frame that is
    /// being built.
    #[inline]
    pub(crate) fn next_slot(&mut self) -> *mut u8 {
        self.slots[self.len % BATCH_FRAMES].0[SLOT_HEADROOM..].as_mut_ptr()
    }

    /// Adds a segment to the frame that is being built. [`Self::has_room`] ensures space for the
    /// longest chain.
    #[inline]
    pub(crate) fn add_segment(&mut self, pending: usize, data: *const u8, len: usize) {
        self.segments[self.segment_count + pending] = segment(data, len);
    }

    /// Finishes the frame that is being built. The caller has written `head` bytes to
    /// [`Self::next_slot`] and added `segments` segments.
    #[inline]
    pub(crate) fn commit(&mut self, len: usize, head: usize, segments: usize, offload: Offload) {
        #[expect(clippy::cast_possible_truncation, reason = "bounded by FRAME_MAX, SEGMENTS_MAX")]
        let frame = Frame {
            len: len as u32,
            start: SLOT_HEADROOM as u8,
            head: head as u8,
            seg_first: self.segment_count as u16,
            seg_count: segments as u16,
            offload,
            ..Frame::EMPTY
        };
        debug_assert!(self.len < BATCH_FRAMES && head <= HEAD_COPY);
        self.frames[self.len % BATCH_FRAMES] = frame;
        self.segment_count += segments;
        self.bytes += len;
        self.len += 1;
    }

    /// Returns the segments of frame `i`, which follow the frame's head.
    #[inline]
    pub(crate) fn segments(&self, i: usize) -> &[Segment] {
        let f = self.at(i);
        &self.segments[f.seg_first as usize..f.seg_first as usize + f.seg_count as usize]
    }

    /// Removes the `count` bytes after the first `first` bytes of frame `i`, and lets `change` edit
    /// the remaining bytes. The frame's bytes then lie in the arena. Returns false, and leaves the
    /// frame unchanged, if the arena has no room for the frame or the frame is not long enough.
    pub(crate) fn cut_out(
        &mut self,
        i: usize,
        (first, count): (usize, usize),
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let (old, used) = (self.frame(i).len as usize, self.arena_used);
        if first + count >= old || !self.at(i).has_segments() {
            return false;
        }
        let mut arena = core::mem::take(&mut self.arena);
        let copied = arena.get_mut(used..used + old).map(|copy| {
            self.copy_to(i, copy);
            copy.copy_within(..first, count);
            change(&mut copy[count..]);
        });
        self.arena = arena;
        if copied.is_none() {
            return false;
        }
        let (from, len) = (used + count, old - count);
        let (head, start) = (len.min(HEAD_COPY), usize::from(self.frames[i].start));
        self.slots[i].0[start..start + head].copy_from_slice(&self.arena[from..from + head]);
        let rest = segment(self.arena[from + head..from + len].as_ptr(), len - head);
        let frame = &mut self.frames[i];
        self.segments[usize::from(frame.seg_first)] = rest;
        #[expect(clippy::cast_possible_truncation, reason = "the frame was longer before")]
        {
            (frame.len, frame.head) = (len as u32, head as u8);
        }
        frame.seg_count = u16::from(len > head);
        self.bytes -= count;
        self.arena_used = (used + old).next_multiple_of(64);
        true
    }

    #[inline(always)]
    pub(crate) fn take_in_if(&mut self, wanted: bool) {
        if wanted {
            self.take_in();
        }
    }

    /// Copies all segments outside the arena into the arena. The arena has room for the segments of
    /// a batch if the arena contains no frame of the batch yet.
    #[cold]
    fn take_in(&mut self) {
        for i in 0..self.len {
            let (first, count) = (self.frames[i].seg_first as usize, self.frames[i].seg_count);
            let end = first + count as usize;
            let arena = self.arena.as_ptr_range();
            if self.segments[first..end].iter().all(|s| arena.contains(&s.data)) {
                continue;
            }
            let len: usize = self.segments[first..end].iter().map(|s| s.len as usize).sum();
            let Some(room) = self.arena.get_mut(self.arena_used..self.arena_used + len) else {
                return;
            };
            let mut at = 0;
            for s in &self.segments[first..end] {
                // SAFETY: as in `copy_to`; `room` is as long as all segments together. WHY: as in
                // `copy_to`.
                #[allow(unsafe_code, reason = "a segment may lie in guest memory")]
                unsafe {
                    crate::mem::copy(room[at..].as_mut_ptr(), s.data, s.len as usize);
                }
                at += s.len as usize;
            }
            if count > 0 {
                self.segments[first] = segment(room.as_ptr(), len);
                self.frames[i].seg_count = 1;
                self.arena_used += len.next_multiple_of(64);
            }
        }
    }

    /// Appends frame `i` in its present form to `out`.
    pub fn copy_out(&self, i: usize, out: &mut Vec<u8>) {
        let from = out.len();
        out.resize(from + self.frames[i].len as usize, 0);
        self.copy_to(i, &mut out[from..]);
    }

    /// Copies frame `i` in its present form to `out`, which must have exactly the frame's length.
    pub fn copy_to(&self, i: usize, out: &mut [u8]) {
        self.copy_part(i, 0, out);
    }

    /// Copies the bytes of frame `i` in its present form from offset `from` on to `out`. The frame
    /// must have as many bytes behind `from` as `out` has.
    pub(crate) fn copy_part(&self, i: usize, from: usize, out: &mut [u8]) {
        let head = self.head(i).get(from..).unwrap_or_default();
        let mut skip = from.saturating_sub(self.head(i).len());
        let (first, mut rest) = out.split_at_mut(head.len().min(out.len()));
        first.copy_from_slice(&head[..first.len()]);
        for s in self.segments(i) {
            let there = (s.len as usize).saturating_sub(skip).min(rest.len());
            let (to, after) = core::mem::take(&mut rest).split_at_mut(there);
            // SAFETY: a segment has `len` readable bytes until the batch is cleared, because its
            // port keeps guest memory mapped for the turn. If `to` has bytes, `skip` is below `len`
            // and `to` has at most `len - skip` bytes.
            // WHY: guest memory may change during the copy, so no slice over it may exist.
            #[allow(unsafe_code, reason = "a segment may lie in guest memory")]
            unsafe {
                if !to.is_empty() {
                    crate::mem::copy(to.as_mut_ptr(), s.data.add(skip), to.len());
                }
            }
            skip = skip.saturating_sub(s.len as usize);
            rest = after;
        }
        debug_assert!(rest.is_empty());
    }
}

fn segment(data: *const u8, len: usize) -> Segment {
    #[expect(clippy::cast_possible_truncation, reason = "a segment is at most FRAME_MAX long")]
    Segment { data, len: len as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{F_NEEDS_CSUM, GSO_TCPV4};

    fn frame(len: usize) -> Vec<u8> {
        (0..251_u8).map(|i| i.wrapping_mul(7)).cycle().take(len).collect()
    }

    #[test]
    fn frames_of_any_length_come_out_as_they_went_in() {
        let mut batch = Batch::new();
        for len in [14, 60, 127, 128, 129, 1514, 40_000] {
            batch.clear();
            batch.push(&frame(len), Offload::NONE).unwrap();
            let mut out = Vec::new();
            batch.copy_out(0, &mut out);
            assert_eq!(out, frame(len));
            assert_eq!(batch.frame(0).len as usize, len);
        }
    }

    #[test]
    fn a_synthetic_frame_is_its_head_and_zeros() {
        let mut batch = Batch::new();
        for (head, len) in [(54, 60), (60, 1514), (128, 9_000), (20, 128), (300, 100)] {
            batch.clear();
            batch.push_head(&frame(head), len).unwrap();
            let mut out = Vec::new();
            batch.copy_out(0, &mut out);
            let head = head.min(HEAD_COPY);
            let mut whole = frame(head);
            whole.resize(len.max(head), 0);
            assert_eq!(out, whole);
            assert_eq!(batch.bytes(), whole.len());
        }
    }

    #[test]
    fn a_batch_ends_at_32_frames_or_64_kib() {
        let mut batch = Batch::new();
        let pushed = (0..40).filter(|_| batch.push(&frame(60), Offload::NONE).is_ok()).count();
        assert_eq!(pushed, BATCH_FRAMES);
        batch.clear();
        let pushed = (0..40).filter(|_| batch.push(&frame(40_000), Offload::NONE).is_ok()).count();
        assert_eq!(pushed, 2);
    }

    #[test]
    fn frames_that_are_kept_stay_whole_and_in_order() {
        let mut batch = Batch::new();
        let lens = [60, 300, 61, 1_514, 62];
        lens.iter().for_each(|&len| batch.push(&frame(len), Offload::NONE).unwrap());
        batch.retain(0b11010);
        let kept: Vec<u32> = batch.frames().iter().map(|f| f.len).collect();
        assert_eq!((kept, batch.bytes()), (vec![300, 1_514, 62], 1_876));
        for (i, len) in [300, 1_514, 62].into_iter().enumerate() {
            let mut out = Vec::new();
            batch.copy_out(i, &mut out);
            assert_eq!(out, frame(len));
        }
        batch.retain(0);
        assert!(batch.is_empty() && batch.bytes() == 0 && batch.has_room());
    }

    #[test]
    fn a_tag_comes_off_and_goes_on_again() {
        let mut tagged = frame(200);
        tagged[12..16].copy_from_slice(&[0x81, 0, 0x60, 7]);
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 58,
            gso_size: 100,
            csum_start: 38,
            csum_offset: 16,
        };
        let mut batch = Batch::new();
        batch.push(&tagged, offload).unwrap();
        batch.strip_tag(0);
        assert_eq!(batch.frame(0).tci, 0x6007);
        assert_eq!(batch.frame(0).offload.csum_start, 34);
        let mut plain = Vec::new();
        batch.copy_out(0, &mut plain);
        assert_eq!(plain[..12], tagged[..12]);
        assert_eq!(plain[12..], tagged[16..]);

        for _ in 0..2 {
            batch.set_tagged(0, true);
            let mut again = Vec::new();
            batch.copy_out(0, &mut again);
            assert_eq!(again, tagged);
            assert_eq!(batch.frame(0).offload, offload);
            batch.set_tagged(0, false);
            let mut bare = Vec::new();
            batch.copy_out(0, &mut bare);
            assert_eq!(bare, plain);
            assert_eq!(batch.frame(0).tci, 0x6007);
        }
    }
}
