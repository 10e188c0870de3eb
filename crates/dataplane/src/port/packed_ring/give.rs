//! Delivery of frames into the receive buffers of a packed ring's driver.

use super::super::ring::frames::{count_sent, write_all, write_pieces};
use super::super::ring::pieces::Piece;
use super::super::ring::{F_WRITE, PIECES_MAX, SEARCH_MAX};
use super::walk::Walked;
use super::{PackedRing, Singles};
use crate::batch::{Batch, CHAIN_MAX};
use crate::port::TxOutcome;

/// A descriptor chain that receives a frame or a part of a frame.
#[derive(Clone, Copy)]
struct Chain {
    id: u16,
    span: u16,
    pieces: usize,
}

impl PackedRing {
    /// Writes the frames with the indices `frames` into the driver's buffers, in order. The driver
    /// sees the frames after `publish`. Each pass of the function handles all frames (datapath rule
    /// 12).
    pub fn give(&mut self, batch: &Batch, frames: &[u8], out: &mut TxOutcome) {
        if self.log.is_some() {
            return self.give_logged(batch, frames, out);
        }
        let (mut rest, mut cursor, mut steps) = (frames, 0, SEARCH_MAX);
        let mut singles = self.fetch(rest.len(), F_WRITE, |_| ());
        while let Some((&i, others)) = rest.split_first() {
            // If no descriptor was consumed, the last fetch is still valid, so no descriptor is
            // read twice.
            if cursor > 0 && cursor >= singles.len && !singles.dry {
                singles = self.fetch(rest.len(), F_WRITE, |_| ());
                cursor = 0;
            }
            let fit = self.fitting(batch, rest, &singles.pieces[..singles.len], cursor);
            if fit > 0 {
                self.give_plain(batch, &rest[..fit], &singles, cursor, out);
                cursor += fit;
                rest = &rest[fit..];
                continue;
            }
            rest = others;
            if cursor >= singles.len && singles.dry {
                self.refuse_dry(out);
            } else {
                cursor += self.give_scattered(batch, usize::from(i), &mut steps, out);
            }
        }
    }

    /// Number of frames, from the start of `frames`, that fit into the buffers from number `first`
    /// on, with one frame per buffer.
    #[inline(always)]
    fn fitting(&self, batch: &Batch, frames: &[u8], pieces: &[Piece], first: usize) -> usize {
        let fits = |(&i, piece): (&u8, &Piece)| {
            piece.len as usize >= self.header + batch.at(usize::from(i)).len as usize
        };
        let pieces = pieces.get(first..).unwrap_or(&[]);
        frames.iter().zip(pieces).take_while(|pair| fits(*pair)).count()
    }

    /// Writes one frame into each buffer from number `first` on. The caller has checked that every
    /// frame fits its buffer.
    #[inline(always)]
    fn give_plain(
        &mut self,
        batch: &Batch,
        frames: &[u8],
        singles: &Singles,
        first: usize,
        out: &mut TxOutcome,
    ) {
        let header = self.header;
        let pieces = &singles.pieces[first..][..frames.len()];
        // SAFETY: each piece has room for header and frame, all in one region.
        // WHY: raw copies are the only permitted way into guest memory.
        unsafe { write_all(batch, frames, pieces, header) };
        for (&i, &id) in frames.iter().zip(&singles.ids[first..]) {
            let frame = batch.at(usize::from(i));
            self.consume(1);
            #[expect(clippy::cast_possible_truncation, reason = "at most 12 + FRAME_MAX")]
            self.push_used(id, (header + frame.len as usize) as u32, 1);
            count_sent(out, frame.len, frame.offload);
        }
        // A good buffer resets the count, because only bad chains in a row stop the ring.
        self.bad_chains = 0;
    }

    /// Writes frame `i` into chained, indirect or merged buffers, which is the general case.
    /// Returns the number of consumed descriptors.
    pub(super) fn give_scattered(
        &mut self,
        batch: &Batch,
        i: usize,
        steps: &mut usize,
        out: &mut TxOutcome,
    ) -> usize {
        let frame = batch.frame(i);
        let need = self.header + frame.len as usize;
        let mut pieces = [Piece::NONE; PIECES_MAX];
        let mut chains = [Chain { id: 0, span: 0, pieces: 0 }; CHAIN_MAX];
        let (mut count, mut used, mut space) = (0, 0, 0);
        let (mut at, mut limit) = (self.next, self.size - self.held);
        while space < need {
            if count > 0 && (count == CHAIN_MAX || *steps == 0 || used == PIECES_MAX) {
                return self.refuse_crumbs(out);
            }
            if *steps == 0 || (count > 0 && !self.mergeable) {
                out.too_big += 1;
                return 0;
            }
            let Some(walked) = self.walk(at, F_WRITE, limit, &mut pieces[used..], steps) else {
                self.refuse_dry(out);
                return 0;
            };
            let Walked { id, span, pieces: Ok(n @ 1..) } = walked else {
                // The search may have ended inside a valid chain.
                let crumbs = *steps == 0 && walked.pieces.is_err();
                return if crumbs {
                    self.refuse_crumbs(out)
                } else {
                    self.refuse_buffer(&walked, count, out)
                };
            };
            space += pieces[used..used + n].iter().map(|p| p.len as usize).sum::<usize>();
            chains[count] = Chain { id, span, pieces: n };
            used += n;
            count += 1;
            limit -= span;
            at.advance(span, self.size);
        }
        self.bad_chains = 0;
        let before = self.held;
        self.scatter(batch, i, &pieces[..used], &chains[..count]);
        count_sent(out, frame.len, frame.offload);
        usize::from(self.held - before)
    }

    /// Counts a dropped frame for which the driver made no buffer available.
    #[cold]
    fn refuse_dry(&self, out: &mut TxOutcome) {
        out.ring_full += u32::from(!self.stopped);
        out.down += u32::from(self.stopped);
    }

    /// Counts a dropped frame that would need more buffers than the search examines, because each
    /// buffer is too small. No real driver has such small buffers, so the buffers count as bad
    /// chains.
    #[cold]
    fn refuse_crumbs(&mut self, out: &mut TxOutcome) -> usize {
        out.too_big += 1;
        self.count_bad_chain();
        0
    }

    /// Counts a bad receive buffer as an error. If the bad buffer is the first buffer of a frame,
    /// the switch returns the buffer empty. A bad buffer that is not a frame's first buffer is
    /// returned when it becomes the first buffer of a frame.
    #[cold]
    fn refuse_buffer(&mut self, walked: &Walked, before: usize, out: &mut TxOutcome) -> usize {
        out.error += 1;
        self.count_bad_chain();
        if before > 0 || self.stopped {
            return 0;
        }
        self.consume(walked.span);
        self.push_used(walked.id, 0, walked.span);
        usize::from(walked.span)
    }

    /// Writes frame `i` into `pieces`, the guest memory of the receive chains `chains`.
    fn scatter(&mut self, batch: &Batch, i: usize, pieces: &[Piece], chains: &[Chain]) {
        #[expect(clippy::cast_possible_truncation, reason = "at most CHAIN_MAX")]
        let buffers = chains.len() as u16;
        // SAFETY: the pieces together have room for header and frame, because the caller summed
        // them up.
        // WHY: as for a plain frame.
        unsafe { write_pieces(batch, i, pieces, buffers, self.header) };
        let mut left = self.header + batch.frame(i).len as usize;
        if self.log.is_some() {
            self.log_pieces(pieces, left);
        }
        let mut first = 0;
        for chain in chains {
            let room: usize =
                pieces[first..first + chain.pieces].iter().map(|p| p.len as usize).sum();
            let here = left.min(room);
            self.consume(chain.span);
            #[expect(clippy::cast_possible_truncation, reason = "at most 12 + FRAME_MAX")]
            self.push_used(chain.id, here as u32, chain.span);
            left -= here;
            first += chain.pieces;
        }
    }
}
