//! Delivery of frames into the receive buffers of a split ring's driver.
#![allow(unsafe_code, reason = "guest memory by raw pointer; each block names its invariant")]

use super::{
    BATCH_FRAMES, BadChain, Batch, CHAIN_MAX, F_WRITE, PIECES_MAX, Piece, SEARCH_MAX, SplitRing,
    TxOutcome,
};
use crate::port::ring::frames::{count_sent, write_all, write_pieces};

impl SplitRing {
    /// Writes the frames with the indices `frames` into the driver's buffers, in order. The driver
    /// sees the frames after `publish`.
    ///
    /// `give` works in several passes. The pass that writes to the driver's cache lines has few
    /// other stores. A core writes its stores to the cache in program order. A store that waits
    /// behind a cache line in transit occupies a slot of the store queue, and this slot could
    /// request another line. If the driver ran on a distant core, the separate passes saved 320 of
    /// 500 cycles per frame. The store queue requests the lines of all its stores, so a prefetch of
    /// these lines gains nothing.
    pub fn give(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        let want = frames.len() as u16;
        let n = usize::from(self.credits(want).min(want)).min(BATCH_FRAMES);
        self.read_heads(n);
        self.prefetch_used(n);
        let mut window = self.memory.window(self.hint);
        self.make_ready(n, F_WRITE, &mut window, |_, _| ());
        let mut steps = SEARCH_MAX;
        let (mut frames, mut at) = (frames, 0);
        while !frames.is_empty() {
            let fit = self.fitting(batch, frames, at..n);
            let (here, rest) = frames.split_at(fit);
            self.give_plain(batch, here, at, out);
            at += fit;
            let Some((&i, rest)) = rest.split_first() else { break };
            at += self.give_scattered(batch, usize::from(i), at..n, &mut steps, out);
            frames = rest;
        }
    }

    /// Number of frames, from the start of `frames`, that fit into the buffers of `chains`, with
    /// one frame per buffer.
    #[inline(always)]
    fn fitting(&self, batch: &Batch, frames: &[u8], chains: core::ops::Range<usize>) -> usize {
        let pieces = self.burst.plain.get(chains).unwrap_or(&[]);
        let fits = |(&i, piece): (&u8, &Piece)| {
            piece.len as usize >= self.header + batch.at(usize::from(i)).len as usize
        };
        frames.iter().zip(pieces).take_while(|pair| fits(*pair)).count()
    }

    /// Writes one frame into each of the burst's buffers from number `first` on. The caller has
    /// checked that every frame fits its buffer.
    #[inline(always)]
    fn give_plain(&mut self, batch: &Batch, frames: &[u8], first: usize, out: &mut TxOutcome) {
        if frames.is_empty() {
            return;
        }
        let header = self.header;
        let pieces = &self.burst.plain[first..][..frames.len()];
        // SAFETY: each piece has room for header and frame, all in one region.
        // WHY: raw copies are the only permitted way into guest memory.
        unsafe { write_all(batch, frames, pieces, header) };
        let (mut bytes, mut tso) = (0, 0);
        for (k, &i) in (0..).zip(frames) {
            let frame = batch.at(usize::from(i));
            let head = self.burst.heads[(first + usize::from(k)) % BATCH_FRAMES];
            #[expect(clippy::cast_possible_truncation, reason = "at most 12 + FRAME_MAX")]
            let len = (header + frame.len as usize) as u32;
            self.write_used(self.next_used.wrapping_add(k), head, len);
            bytes += u64::from(frame.len);
            tso += u32::from(frame.offload.is_gso());
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        let count = frames.len() as u16;
        self.next_used = self.next_used.wrapping_add(count);
        self.next_available = self.next_available.wrapping_add(count);
        // A good buffer resets the count, because only bad chains in a row stop the ring.
        self.bad_chains = 0;
        out.frames += u32::from(count);
        out.bytes += bytes;
        out.tso += tso;
    }

    /// Writes frame `i` into chained, indirect or merged buffers, which is the general case.
    /// `known` is the range of the burst's chain heads that were read and not used yet. The
    /// function does not read the heads in `known` again. Returns the number of consumed chains.
    #[inline(never)]
    fn give_scattered(
        &mut self,
        batch: &Batch,
        i: usize,
        known: core::ops::Range<usize>,
        steps: &mut usize,
        out: &mut TxOutcome,
    ) -> usize {
        let frame = batch.frame(i);
        let need = self.header + frame.len as usize;
        let mut pieces = [Piece::NONE; PIECES_MAX];
        let mut chains = [(0_u16, 0_usize); CHAIN_MAX];
        let (mut count, mut used, mut space) = (0, 0, 0);
        while space < need {
            if count > 0 && (count == CHAIN_MAX || *steps == 0 || used == PIECES_MAX) {
                return self.refuse_crumbs(out);
            }
            if *steps == 0 || (count > 0 && !self.mergeable) {
                out.too_big += 1;
                return 0;
            }
            #[expect(clippy::cast_possible_truncation, reason = "at most CHAIN_MAX")]
            let ahead = count as u16;
            if self.credits(ahead + 1) <= ahead {
                out.ring_full += u32::from(!self.stopped);
                out.down += u32::from(self.stopped);
                return 0;
            }
            let head = match known.clone().nth(count) {
                Some(at) => self.burst.heads[at % BATCH_FRAMES],
                None => self.head_at(self.next_available.wrapping_add(ahead)),
            };
            let n = match self.walk(head, F_WRITE, &mut pieces[used..], steps) {
                Ok(n) if n > 0 => n,
                // The search ended inside a chain that may be valid.
                Err(BadChain) if *steps == 0 => return self.refuse_crumbs(out),
                _ => return self.refuse_buffer(head, count, out),
            };
            space += pieces[used..used + n].iter().map(|p| p.len as usize).sum::<usize>();
            chains[count] = (head, n);
            used += n;
            count += 1;
        }
        self.bad_chains = 0;
        self.scatter(batch, i, &pieces[..used], &chains[..count]);
        count_sent(out, frame.len, frame.offload);
        count
    }

    /// Counts a dropped frame that would need more buffers than the search examines, because each
    /// buffer is too small. No real driver has buffers of such a small size, so these buffers count
    /// as bad chains.
    #[cold]
    fn refuse_crumbs(&mut self, out: &mut TxOutcome) -> usize {
        out.too_big += 1;
        self.count_bad_chain();
        0
    }

    /// Handles a bad receive buffer. If the bad buffer is the first buffer of a frame, the switch
    /// returns the buffer empty. A later bad buffer is returned when it becomes the first buffer of
    /// a frame.
    #[cold]
    fn refuse_buffer(&mut self, head: u16, before: usize, out: &mut TxOutcome) -> usize {
        out.error += 1;
        self.count_bad_chain();
        if before > 0 || self.stopped {
            return 0;
        }
        if head >= self.size {
            self.stop("the driver's available ring names a descriptor that does not exist");
            return 0;
        }
        self.push_used(head, 0);
        self.next_available = self.next_available.wrapping_add(1);
        1
    }

    /// Writes frame `i` into the list `pieces` of guest memory. The slice `chains` has the head and
    /// the number of pieces of each chain.
    fn scatter(&mut self, batch: &Batch, i: usize, pieces: &[Piece], chains: &[(u16, usize)]) {
        #[expect(clippy::cast_possible_truncation, reason = "at most CHAIN_MAX")]
        let buffers = chains.len() as u16;
        // SAFETY: the pieces together have room for header and frame, because the caller summed
        // them up.
        // WHY: as for a plain frame.
        unsafe { write_pieces(batch, i, pieces, buffers, self.header) };
        let mut left = self.header + batch.frame(i).len as usize;
        let mut first = 0;
        for &(head, n) in chains {
            let room: usize = pieces[first..first + n].iter().map(|p| p.len as usize).sum();
            let here = left.min(room);
            #[expect(clippy::cast_possible_truncation, reason = "at most 12 + FRAME_MAX")]
            self.push_used(head, here as u32);
            left -= here;
            first += n;
        }
        self.next_available = self.next_available.wrapping_add(buffers);
    }
}
