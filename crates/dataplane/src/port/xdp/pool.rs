//! Tracks the place of each buffer of an AF_XDP queue: the kernel, the batch, a waiting frame, or
//! the free list.
//!
//! # Problem
//! A lost buffer never receives again. A buffer that is handed out twice holds two frames, perhaps
//! of two tenants.
//!
//! # Approach
//! Each buffer is in one place, and moves only from that place. A report of the kernel about a
//! buffer that it does not have is refused. There are two shares. A buffer of the *receive* share
//! is always with the kernel to be filled, or in the present batch. A buffer of the *send* share is
//! free, holds a waiting frame, or is with the kernel to be sent. However many frames wait, they
//! thus take no buffers from reception.
//!
//! # Cost
//! Each buffer takes one byte, which each move reads and writes once.

/// The place of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Free,
    /// The kernel has the buffer to receive a frame.
    Receive,
    /// The buffer is in the present batch, or on its way back to the kernel.
    Batch,
    /// The buffer holds a waiting frame.
    Held,
    /// The kernel has the buffer to send its frame.
    Send,
}

/// The places of all buffers of a queue.
#[derive(Debug)]
pub(super) struct Pool {
    places: Box<[Place]>,
    /// Free buffers, last in first out, so that the next one is most likely in the cache.
    free: Vec<u32>,
}

impl Pool {
    /// Buffers `0..receive` are with the kernel to receive; the `send` buffers behind them are
    /// free.
    pub(super) fn new(receive: u32, send: u32) -> Self {
        let count = receive + send;
        let place = |b| if b < receive { Place::Receive } else { Place::Free };
        Self { places: (0..count).map(place).collect(), free: (receive..count).rev().collect() }
    }

    /// Number of free buffers.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Moves a buffer to `to` if it is in `from`, and returns whether it moved.
    #[inline]
    fn shift(&mut self, buffer: u32, from: Place, to: Place) -> bool {
        match self.places.get_mut(buffer as usize) {
            Some(place) if *place == from => {
                *place = to;
                true
            }
            _ => false,
        }
    }

    /// The kernel has put a frame into the buffer. False if the kernel did not have it to receive.
    #[inline]
    pub(super) fn received(&mut self, buffer: u32) -> bool {
        self.shift(buffer, Place::Receive, Place::Batch)
    }

    /// The buffer goes back to the kernel to receive. False if it was not in the batch.
    #[inline]
    pub(super) fn refilled(&mut self, buffer: u32) -> bool {
        self.shift(buffer, Place::Batch, Place::Receive)
    }

    /// Takes a free buffer for a frame that waits or is sent at once.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        let buffer = self.free.pop()?;
        self.places[buffer as usize] = Place::Held;
        Some(buffer)
    }

    /// Whether a frame waits in the buffer.
    #[inline]
    pub(super) fn is_held(&self, buffer: u32) -> bool {
        self.places.get(buffer as usize) == Some(&Place::Held)
    }

    /// The kernel gets the buffer to send. False if no frame waited in it.
    #[inline]
    pub(super) fn sent(&mut self, buffer: u32) -> bool {
        self.shift(buffer, Place::Held, Place::Send)
    }

    /// The kernel has sent the buffer. False if the kernel did not have it to send.
    #[inline]
    pub(super) fn completed(&mut self, buffer: u32) -> bool {
        let was = self.shift(buffer, Place::Send, Place::Free);
        if was {
            self.free.push(buffer);
        }
        was
    }

    /// Frees the buffer of a waiting frame. False if no frame waited in it.
    pub(super) fn release(&mut self, buffer: u32) -> bool {
        let was = self.shift(buffer, Place::Held, Place::Free);
        if was {
            self.free.push(buffer);
        }
        was
    }

    /// Number of buffers in a place.
    #[cfg(test)]
    pub(super) fn count(&self, place: Place) -> usize {
        self.places.iter().filter(|&&p| p == place).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_buffer_moves_only_from_where_it_is() {
        let mut pool = Pool::new(2, 2);
        assert!(!pool.completed(0) && !pool.release(0) && !pool.sent(0) && !pool.refilled(0));
        assert!(pool.received(0) && !pool.received(0), "the kernel says it twice");
        assert!(!pool.received(2) && !pool.received(4) && !pool.received(u32::MAX));
        let held = pool.take().unwrap();
        assert!(pool.sent(held) && !pool.sent(held) && !pool.release(held));
        assert!(pool.completed(held) && !pool.completed(held));
        assert_eq!((pool.free(), pool.count(Place::Batch)), (2, 1));
    }

    proptest! {
        /// After any sequence of moves, valid or not, each buffer is in exactly one place and the
        /// receive share keeps its size.
        #[test]
        fn no_buffer_is_lost_or_handed_out_twice(
            moves in proptest::collection::vec((0..6_u8, 0..30_u32), 0..400)
        ) {
            const RECEIVE: u32 = 16;
            const SEND: u32 = 12;
            let mut pool = Pool::new(RECEIVE, SEND);
            let mut held: Vec<u32> = Vec::new();
            for (what, buffer) in moves {
                match what {
                    0 => { pool.received(buffer); }
                    1 => { pool.refilled(buffer); }
                    2 => if let Some(taken) = pool.take() {
                        prop_assert!(!held.contains(&taken));
                        held.push(taken);
                    }
                    3 => if pool.sent(buffer) { held.retain(|&b| b != buffer); },
                    4 => { pool.completed(buffer); }
                    _ => if pool.release(buffer) { held.retain(|&b| b != buffer); },
                }
                let mut free = pool.free.clone();
                free.sort_unstable();
                free.dedup();
                prop_assert_eq!(free.len(), pool.free());
                prop_assert_eq!(free.len(), pool.count(Place::Free));
                prop_assert_eq!(held.len(), pool.count(Place::Held));
                let receive = pool.count(Place::Receive) + pool.count(Place::Batch);
                prop_assert_eq!(receive, RECEIVE as usize);
                let send = pool.free() + held.len() + pool.count(Place::Send);
                prop_assert_eq!(send, SEND as usize);
            }
        }
    }
}
