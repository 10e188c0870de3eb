//! Walks the chains of a packed ring to find their ends and their buffers.

use super::super::ring::pieces::{Piece, add_pieces, indirect_table};
use super::super::ring::{BadChain, F_INDIRECT, F_NEXT, F_WRITE};
use super::position::Position;
use super::{Descriptor, PackedRing};
use crate::batch::CHAIN_MAX;

/// Result of a walk along a descriptor chain.
pub(super) struct Walked {
    /// Buffer id that the driver gave the chain.
    pub(super) id: u16,
    /// Number of descriptors in the ring that the chain occupies.
    pub(super) span: u16,
    /// Number of pieces of host memory in the chain's buffers, or [`BadChain`] for an invalid
    /// chain.
    pub(super) pieces: Result<usize, BadChain>,
}

impl PackedRing {
    /// Walks along the chain at position `from` and translates the chain's buffers to pieces of
    /// host memory. The argument `wanted` is the write flag that each descriptor of the chain must
    /// have. `limit` is the maximum number of descriptors that the driver can have made available
    /// from `from` on. `steps` is the number of descriptors that the walk may examine, including
    /// descriptors of indirect tables.
    ///
    /// Returns `None` if no descriptor is available, or if the chain has no end. A chain without an
    /// end stops the ring.
    pub(super) fn walk(
        &mut self,
        from: Position,
        wanted: u16,
        limit: u16,
        pieces: &mut [Piece],
        steps: &mut usize,
    ) -> Option<Walked> {
        if self.stopped || limit == 0 {
            return None;
        }
        let mut at = from;
        let mut d = self.read(at)?;
        let mut found = Ok(0);
        // The step count ends every loop that the driver may build.
        for span in 1..=limit.min(CHAIN_MAX_SPAN) {
            let alone = span == 1 && d.flags & F_NEXT == 0;
            found = found.and_then(|count| self.add(d, alone, wanted, pieces, count, steps));
            if d.flags & F_NEXT == 0 {
                // No driver needs an id beyond the ring's size, and another device might use the id
                // as an index. The chain is refused, and its id is echoed like any other id.
                let pieces = if d.id < self.size { found } else { Err(BadChain) };
                return Some(Walked { id: d.id, span, pieces });
            }
            if span == limit {
                break;
            }
            at.advance(1, self.size);
            match self.read(at) {
                Some(next) => d = next,
                // §2.8.6: the driver makes the head available last, so an honest driver's chain is
                // complete here.
                None => break,
            }
        }
        self.stop();
        None
    }

    /// Appends the buffer of descriptor `d` to the first `count` entries of `pieces`.
    fn add(
        &mut self,
        d: Descriptor,
        alone: bool,
        wanted: u16,
        pieces: &mut [Piece],
        count: usize,
        steps: &mut usize,
    ) -> Result<usize, BadChain> {
        *steps = steps.checked_sub(1).ok_or(BadChain)?;
        if d.flags & F_INDIRECT != 0 {
            // A table must stand alone (datapath rule 7). Its own write flag has no meaning.
            return if alone {
                self.add_table(d, wanted, pieces, count, steps)
            } else {
                Err(BadChain)
            };
        }
        if d.flags & F_WRITE != wanted {
            return Err(BadChain);
        }
        add_pieces(&self.memory, d.guest, d.len, pieces, count)
    }

    /// Appends the buffers of all descriptors of an indirect table in order, and ignores the `NEXT`
    /// flags (§2.8.7).
    fn add_table(
        &mut self,
        d: Descriptor,
        wanted: u16,
        pieces: &mut [Piece],
        mut count: usize,
        steps: &mut usize,
    ) -> Result<usize, BadChain> {
        let (table, size) = indirect_table(&self.memory, d.guest, d.len, &mut self.hint)?;
        let table: *const [u64; 2] = table.cast();
        for entry in 0..usize::from(size) {
            *steps = steps.checked_sub(1).ok_or(BadChain)?;
            // SAFETY: entry < size, and the table was checked for that many entries and for its
            // alignment.
            // WHY: volatile, so that the descriptor is read exactly once.
            let [guest, word] = unsafe { table.add(entry).read_volatile() };
            #[expect(clippy::cast_possible_truncation, reason = "its fields")]
            let (len, flags) = (word as u32, (word >> 48) as u16);
            if flags & F_INDIRECT != 0 || flags & F_WRITE != wanted {
                return Err(BadChain);
            }
            count = add_pieces(&self.memory, guest, len, pieces, count)?;
        }
        Ok(count)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "256")]
const CHAIN_MAX_SPAN: u16 = CHAIN_MAX as u16;
