//! Tracks the place of each buffer of an AF_XDP queue: with the kernel, in the batch, with a
//! waiting frame, or in the free list.
//!
//! # Problem
//! If the port loses track of a buffer, it never uses the buffer again. If the port uses a buffer
//! twice at the same time, two frames are in one buffer, perhaps frames of two tenants.
//!
//! # Approach
//! The pool records the one place of each buffer, and each move names the place that the buffer
//! leaves. If the kernel reports a buffer that it does not have, the pool refuses the report. The
//! buffers of an AF_XDP queue are divided into two shares, *receive* and *send*. A buffer of the
//! *receive* share is always with the kernel to be filled, or in the present batch. A buffer of the
//! *send* share is free, contains a waiting frame, or is with the kernel to be sent. Waiting frames
//! use only buffers of the send share, so that reception always keeps its buffers.
//!
//! # Cost
//! The pool needs one byte for each buffer, and each move of the buffer reads and writes this byte
//! once.

/// The place of a buffer of an AF_XDP queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Free,
    /// The kernel has the buffer, and may receive a frame into the buffer.
    Receive,
    /// The buffer is in the worker's present batch, or on its way back to the kernel.
    Batch,
    /// The buffer contains a frame that waits to be sent.
    Held,
    /// The kernel has the buffer, and sends the buffer's frame.
    Send,
}

/// The places of all buffers of an AF_XDP queue.
#[derive(Debug)]
pub(super) struct Pool {
    places: Box<[Place]>,
    /// Numbers of the free buffers, last in first out, so that the next buffer is most likely in
    /// the cache.
    free: Vec<u32>,
}

impl Pool {
    /// Creates a pool in which buffers `0..receive` are with the kernel to receive, and the next
    /// `send` buffers are free.
    pub(super) fn new(receive: u32, send: u32) -> Self {
        let count = receive + send;
        let place = |b| if b < receive { Place::Receive } else { Place::Free };
        Self { places: (0..count).map(place).collect(), free: (receive..count).rev().collect() }
    }

    /// Number of free buffers of the queue.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Moves `buffer` to place `to` if the buffer is in place `from`. Returns true if the buffer
    /// was in place `from` and moved to place `to`.
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

    /// Records that the kernel has put a frame into the buffer. Returns false if the kernel did not
    /// have the buffer to receive.
    #[inline]
    pub(super) fn received(&mut self, buffer: u32) -> bool {
        self.shift(buffer, Place::Receive, Place::Batch)
    }

    /// Records that the buffer goes back to the kernel to receive. Returns false if the buffer was
    /// not in the batch.
    #[inline]
    pub(super) fn refilled(&mut self, buffer: u32) -> bool {
        self.shift(buffer, Place::Batch, Place::Receive)
    }

    /// Takes a free buffer for a frame that waits or is sent at once. Returns `None` if no buffer
    /// is free.
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

    /// Records that the kernel gets the buffer to send. Returns false if no frame waited in the
    /// buffer.
    #[inline]
    pub(super) fn sent(&mut self, buffer: u32) -> bool {
        self.shift(buffer, Place::Held, Place::Send)
    }

    /// Records that the kernel has sent the buffer. Returns false if the kernel did not have the
    /// buffer for sending.
    #[inline]
    pub(super) fn completed(&mut self, buffer: u32) -> bool {
        let was = self.shift(buffer, Place::Send, Place::Free);
        if was {
            self.free.push(buffer);
        }
        was
    }

    /// Frees the buffer of a waiting frame. Returns false if no frame waited in the buffer.
    pub(super) fn release(&mut self, buffer: u32) -> bool {
        let was = self.shift(buffer, Place::Held, Place::Free);
        if was {
            self.free.push(buffer);
        }
        was
    }

    /// Number of buffers in the place `place`.
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
        /// Tests that each buffer is in exactly one place and the receive share keeps its size,
        /// after any sequence of valid and invalid moves.
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
