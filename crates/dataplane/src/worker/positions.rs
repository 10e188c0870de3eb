//! Where two threads stand in a ring of cells: one gives, the other takes.
//!
//! **Problem.** What goes from one worker to another has different lengths and must lie in one
//! piece; neither side may wait for the other. **Source.** Lamport's ring of one producer and one
//! consumer; the cached copies of the other's position are those of FastForward and MCRingBuffer.
//! **Rule.** Each side owns its position and stores it with release order when it is done with the
//! cells before it; it reads the other's only when the copy it has does not suffice. Cells between
//! the two belong to the taker, all others to the giver. A piece that does not fit before the end
//! begins at the start again; the giver is told which cells it skips. **Cost.** One store a burst
//! on each side, one load of a line that the other wrote.

use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

/// A position on a cache line (and its prefetched neighbour) of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Position(AtomicUsize);

/// Both positions; they count cells since the start and wrap with the integer.
#[derive(Debug)]
pub struct Positions {
    given: Position,
    taken: Position,
}

impl Positions {
    /// Cells given so far.
    #[must_use]
    pub fn given(&self) -> usize {
        self.given.0.load(Ordering::Acquire)
    }

    /// Cells taken so far.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.0.load(Ordering::Acquire)
    }
}

/// Cells that the giver has got: see [`Giver::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The first of the cells asked for.
    pub at: usize,
    /// First cell and number of those skipped before; the first must say so to the taker.
    pub skipped: Option<(usize, usize)>,
}

/// The side that fills cells.
#[derive(Debug)]
pub struct Giver {
    positions: Arc<Positions>,
    cells: usize,
    given: usize,
    shown: usize,
    taken_seen: usize,
}

/// The side that empties them.
#[derive(Debug)]
pub struct Taker {
    positions: Arc<Positions>,
    cells: usize,
    taken: usize,
    released: usize,
    given_seen: usize,
}

/// The two sides of a ring of `cells` cells, a power of two.
#[must_use]
pub fn positions(cells: usize) -> (Giver, Taker) {
    debug_assert!(cells.is_power_of_two());
    let zero = || Position(AtomicUsize::new(0));
    let positions = Arc::new(Positions { given: zero(), taken: zero() });
    let taker =
        Taker { positions: Arc::clone(&positions), cells, taken: 0, released: 0, given_seen: 0 };
    (Giver { positions, cells, given: 0, shown: 0, taken_seen: 0 }, taker)
}

impl Giver {
    /// Both positions, for whoever watches.
    #[must_use]
    pub fn positions(&self) -> Arc<Positions> {
        Arc::clone(&self.positions)
    }

    /// `n` cells in a row, to be filled before [`Self::show`]; `None` if there is no room.
    #[inline]
    pub fn claim(&mut self, n: usize) -> Option<Claim> {
        let at = self.given & (self.cells - 1);
        let skips = if at + n > self.cells { self.cells - at } else { 0 };
        let need = n.checked_add(skips)?;
        if self.free() < need {
            // Acquire: the taker is done with what it gave back.
            self.taken_seen = self.positions.taken.0.load(Ordering::Acquire);
            if self.free() < need {
                return None;
            }
        }
        self.given = self.given.wrapping_add(need);
        if skips == 0 {
            return Some(Claim { at, skipped: None });
        }
        Some(Claim { at: 0, skipped: Some((at, skips)) })
    }

    #[inline]
    fn free(&self) -> usize {
        self.cells - self.given.wrapping_sub(self.taken_seen)
    }

    /// Lets the taker see all cells claimed so far.
    #[inline]
    pub fn show(&mut self) {
        if self.shown != self.given {
            self.positions.given.0.store(self.given, Ordering::Release);
            self.shown = self.given;
        }
    }
}

impl Taker {
    /// The next cell to look at, if the giver has shown one.
    #[inline]
    pub fn next(&mut self) -> Option<usize> {
        if self.taken == self.given_seen {
            // Acquire: what the cells hold was written before.
            self.given_seen = self.positions.given.0.load(Ordering::Acquire);
            if self.taken == self.given_seen {
                return None;
            }
        }
        Some(self.taken & (self.cells - 1))
    }

    /// Goes on behind `n` cells, which stay ours until [`Self::release`].
    #[inline]
    pub fn pass(&mut self, n: usize) {
        debug_assert!(n <= self.given_seen.wrapping_sub(self.taken));
        self.taken = self.taken.wrapping_add(n);
    }

    /// Gives back all cells passed so far.
    #[inline]
    pub fn release(&mut self) {
        // Nothing new: the giver's copy of the line stays good.
        if self.released != self.taken {
            self.positions.taken.0.store(self.taken, Ordering::Release);
            self.released = self.taken;
        }
    }
}
