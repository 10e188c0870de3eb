//! A queue of a scheduler whose flows may have queues of their own.

use penstock_units::Nanos;

use super::FlowTable;
use crate::frame_pool::{Frame, Pool, Queue};

/// Waiting frames that a scheduler serves as one queue. With `flows`, the frames are in the queues
/// of their flows, and `queue` only counts them. Otherwise, the frames are in `queue`, in the order
/// of their arrival.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub queue: &'a mut Queue,
    pub flows: Option<&'a mut FlowTable>,
}

impl Line<'_> {
    /// Adds a frame of the flow with the hash `hash`. The caller must check that the pool has a
    /// free entry.
    pub fn push<T: Copy + Default>(
        &mut self,
        pool: &mut Pool<T>,
        hash: u32,
        (item, bytes): (T, u32),
        now: Nanos,
    ) {
        match &mut self.flows {
            Some(flows) => flows.push(pool, hash, (item, bytes.max(1)), now),
            None => pool.push(self.queue, item, bytes, now),
        }
        self.count();
    }

    /// Removes and returns the next frame. Returns `None` if no frame waits.
    pub fn pop<T: Copy + Default>(&mut self, pool: &mut Pool<T>) -> Option<Frame<T>> {
        let frame = match &mut self.flows {
            Some(flows) => flows.pop(pool),
            None => pool.pop(self.queue),
        };
        self.count();
        frame
    }

    /// Gives the flow of the frame that [`Self::pop`] returned last `bytes` bytes back, because the
    /// scheduler drops the frame. Without flow queues, the call does nothing.
    pub fn give_back(&mut self, bytes: u32) {
        if let Some(flows) = &mut self.flows {
            flows.give_back(bytes);
        }
    }

    /// Returns the length of the next frame in bytes. Returns `None` if no frame waits.
    pub fn head<T: Copy + Default>(&mut self, pool: &Pool<T>) -> Option<u32> {
        match &mut self.flows {
            Some(flows) => flows.head(pool).map(|(_, bytes)| bytes),
            None => pool.head(self.queue).map(|frame| frame.bytes),
        }
    }

    /// Removes and returns the first frame of a flow with many waiting bytes
    /// ([`FlowTable::evict`]). Returns `None` if no frame waits, or if the flows have no queues.
    pub fn evict<T: Copy + Default>(&mut self, pool: &mut Pool<T>) -> Option<Frame<T>> {
        let frame = self.flows.as_mut()?.evict(pool);
        self.count();
        frame
    }

    fn count(&mut self) {
        if let Some(flows) = &self.flows {
            (self.queue.frames, self.queue.bytes) = (flows.len(), flows.bytes());
        }
    }
}
