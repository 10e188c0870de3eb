//! Frames that wait for an output need memory. If the output port has its own memory, waiting
//! frames are stored in the port's memory, so each frame is copied only once. Waiting frames of
//! other output ports are stored in the worker's frame store.
//!
//! A port's own memory has no reserve for the last batches of senders whose frames may not be
//! dropped. Their frames go to the frame store, which has one, if at most [`SPARE`] buffers of the
//! port are free. The spare buffers are for frames that leave the store: the port sends only from
//! its own memory.

use super::store::At;
use super::{CELL, FrameStore, Stored};
use crate::batch::{BATCH_FRAMES, Batch, BatchFull};
use crate::port::{Buffers, PortQueue};

/// Number of buffers of a port's own memory in which no frame waits, if the port's frames may not
/// be dropped.
pub(super) const SPARE: usize = 2 * BATCH_FRAMES;

/// The memory in which one output's frames wait.
pub(crate) struct Memory<'a> {
    store: &'a mut FrameStore,
    port: Option<&'a mut dyn Buffers>,
}

impl<'a> Memory<'a> {
    /// Returns the memory for waiting frames of a port with the queue pairs `queues`. A port with
    /// several queue pairs uses the store, because the worker selects a frame's queue pair only
    /// when it sends the frame.
    pub(crate) fn of(store: &'a mut FrameStore, queues: &'a mut [Box<dyn PortQueue>]) -> Self {
        let port = match queues {
            [only] => only.buffers(),
            _ => None,
        };
        Self { store, port }
    }

    /// Whether frames wait in the port's own memory. Checksum and segmentation offloads of a frame
    /// must be complete before the frame enters the port's memory.
    pub(crate) fn is_the_ports(&self) -> bool {
        self.port.is_some()
    }

    /// Returns the number of free bytes for waiting frames, without the reserve of the store.
    pub(crate) fn free_bytes(&self) -> u64 {
        match &self.port {
            Some(port) => (port.free() * CELL) as u64,
            None => self.store.free_bytes(),
        }
    }

    /// Works like [`Self::free_bytes`], without the spare buffers of a port's own memory.
    pub(super) fn free_bytes_to_hold(&self) -> u64 {
        match &self.port {
            Some(port) => (port.free().saturating_sub(SPARE) * CELL) as u64,
            None => self.store.free_bytes(),
        }
    }

    /// Copies frame `i` of `batch`, which came from port `source`, into the memory. If `holds` is
    /// true, the frame may not be dropped, and waits in the store if the port's own memory is full.
    /// Returns `None` if the memory has no room for the frame.
    pub(super) fn put(
        &mut self,
        batch: &Batch,
        i: usize,
        source: u16,
        holds: bool,
    ) -> Option<Stored> {
        match &mut self.port {
            Some(port) if !holds || port.free() > SPARE => {
                let mut frame = Stored::held(port.fill(batch, i)?, source);
                frame.hash = batch.at(i).hash;
                Some(frame)
            }
            _ => self.store.put(batch, i, source),
        }
    }

    /// Adds a frame to a batch if the frame must be copied to the port. A frame in the port's own
    /// memory is not added to the batch.
    ///
    /// # Errors
    /// Returns [`BatchFull`] if the batch or the port's own memory has no room for the frame.
    pub(super) fn load(
        &self,
        frame: &Stored,
        batch: &mut Batch,
        output: u16,
    ) -> Result<(), BatchFull> {
        match frame.at {
            At::Port(_) => Ok(()),
            At::Cells(_) => {
                let has_room = self.port.as_ref().is_none_or(|port| port.free() > batch.len());
                if has_room { self.store.load(frame, batch, output) } else { Err(BatchFull) }
            }
        }
    }

    /// Writes the code point `dscp` into a waiting frame. Returns false if the frame stays
    /// unchanged, because it is not IP.
    pub(super) fn mark(&mut self, frame: &Stored, dscp: u8) -> bool {
        let head = match (frame.at, &mut self.port) {
            (At::Port(held), Some(port)) => port.bytes(held),
            (At::Port(_), None) => None,
            (At::Cells(_), _) => self.store.head_mut(frame),
        };
        head.is_some_and(|head| crate::headers::mark(head, dscp).is_some())
    }

    /// Frees the memory of a waiting frame.
    pub(super) fn release(&mut self, frame: &Stored) {
        match (frame.at, &mut self.port) {
            (At::Port(held), Some(port)) => port.release(held),
            // The port has left with its memory.
            (At::Port(_), None) => {}
            (At::Cells(_), _) => self.store.release(frame),
        }
    }
}
