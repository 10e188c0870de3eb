//! A ring of cells has two threads, each with a position: the producer (`Giver`) fills cells, and
//! the consumer (`Taker`) empties cells.
//!
//! # Problem
//!
//! Records between two workers differ in length, and each record must lie in adjacent cells. The
//! sending worker and the receiving worker must never wait for each other.
//!
//! # Source
//!
//! The source is Lamport's ring of one producer and one consumer. FastForward and MCRingBuffer also
//! keep a cached copy of the position at the ring's other end.
//!
//! # Approach
//!
//! The producer and the consumer of a ring each own one position. The producer or consumer stores
//! its position with release order when it is done with the cells before the position. The producer
//! loads the consumer's position only if its cached copy does not suffice, and the consumer does
//! likewise. The consumer (`Taker`) owns the cells between the two positions, and the producer
//! (`Giver`) owns all other cells.
//!
//! If a record does not fit before the end of the ring, the producer writes the record at the
//! ring's start. [`Claim::skipped`] tells the producer which cells at the ring's end the claim
//! skips.
//!
//! # Cost
//!
//! The producer and the consumer each make one store per burst, and one load of a cache line that
//! the other wrote.

use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

/// A position that fills a pair of cache lines alone, because the CPU prefetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Position(AtomicUsize);

/// Positions of a ring's producer (`Giver`) and consumer (`Taker`), counted in cells since the
/// start. Both positions wrap around at `usize::MAX`.
#[derive(Debug)]
pub struct Positions {
    given: Position,
    taken: Position,
}

impl Positions {
    /// Number of cells that the ring's producer has filled since the start, modulo `usize::MAX +
    /// 1`.
    #[must_use]
    pub fn given(&self) -> usize {
        self.given.0.load(Ordering::Acquire)
    }

    /// Number of cells that the ring's consumer has emptied since the start, modulo `usize::MAX +
    /// 1`.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.0.load(Ordering::Acquire)
    }
}

/// Ring cells that the producer reserved with [`Giver::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Ring index of the first claimed cell.
    pub at: usize,
    /// Index of the first skipped ring cell, and the number of skipped cells before the ring's end.
    /// The producer must write the number of skipped cells to the first skipped cell, for the
    /// consumer. `skipped` is `None` if no cell was skipped.
    pub skipped: Option<(usize, usize)>,
}

/// The side of a cell ring that fills cells (the producer).
#[derive(Debug)]
pub struct Giver {
    positions: Arc<Positions>,
    cells: usize,
    given: usize,
    shown: usize,
    taken_seen: usize,
}

/// The side of a cell ring that empties cells (the consumer).
#[derive(Debug)]
pub struct Taker {
    positions: Arc<Positions>,
    cells: usize,
    taken: usize,
    released: usize,
    given_seen: usize,
}

/// Creates the producer and the consumer of a ring with `cells` cells. `cells` must be a power of
/// two.
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
    /// Returns the positions of the producer and the consumer, for a reader that is neither.
    #[must_use]
    pub fn positions(&self) -> Arc<Positions> {
        Arc::clone(&self.positions)
    }

    /// Reserves `n` adjacent cells, which the producer must fill before [`Self::show`]. Returns
    /// `None` if the ring has no room.
    #[inline]
    pub fn claim(&mut self, n: usize) -> Option<Claim> {
        let at = self.given & (self.cells - 1);
        let skips = if at + n > self.cells { self.cells - at } else { 0 };
        let need = n.checked_add(skips)?;
        if self.free() < need {
            // Acquire: the taker is done with the cells that it returned.
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

    /// Makes all cells that the producer reserved visible to the consumer.
    #[inline]
    pub fn show(&mut self) {
        if self.shown != self.given {
            self.positions.given.0.store(self.given, Ordering::Release);
            self.shown = self.given;
        }
    }
}

impl Taker {
    /// Returns the index of the consumer's next cell to read. Returns `None` if the producer has
    /// made no further cell visible.
    #[inline]
    pub fn next_cell(&mut self) -> Option<usize> {
        if self.taken == self.given_seen {
            // Acquire: the giver wrote the cells before it stored its position.
            self.given_seen = self.positions.given.0.load(Ordering::Acquire);
            if self.taken == self.given_seen {
                return None;
            }
        }
        Some(self.taken & (self.cells - 1))
    }

    /// Advances the consumer's reading position by `n` cells. The consumer keeps the cells until
    /// [`Self::release`].
    #[inline]
    pub fn pass(&mut self, n: usize) {
        debug_assert!(n <= self.given_seen.wrapping_sub(self.taken));
        self.taken = self.taken.wrapping_add(n);
    }

    /// Gives all cells that the consumer has read back to the producer.
    #[inline]
    pub fn release(&mut self) {
        // Without a change, no store invalidates the giver's copy of the cache line.
        if self.released != self.taken {
            self.positions.taken.0.store(self.taken, Ordering::Release);
            self.released = self.taken;
        }
    }
}
