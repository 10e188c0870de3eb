//! Where frames that wait for one output are: in the port's own memory, if it has some, so that
//! they are copied once on their way; else in the worker's store.

use super::store::At;
use super::{CELL, FrameStore, Stored};
use crate::batch::{Batch, BatchFull};
use crate::port::{Buffers, PortQueue};

/// See the module's text.
pub(crate) struct Memory<'a> {
    store: &'a mut FrameStore,
    port: Option<&'a mut dyn Buffers>,
}

impl<'a> Memory<'a> {
    /// Of a port with these queue pairs. With several of them a frame's is known only when it goes.
    pub(crate) fn of(store: &'a mut FrameStore, queues: &'a mut [Box<dyn PortQueue>]) -> Self {
        let port = match queues {
            [only] => only.buffers(),
            _ => None,
        };
        Self { store, port }
    }

    /// Whether frames wait in the port's own memory: they have to be finished.
    pub(crate) fn is_the_ports(&self) -> bool {
        self.port.is_some()
    }

    pub(super) fn free_bytes(&self) -> u64 {
        match &self.port {
            Some(port) => (port.free() * CELL) as u64,
            None => self.store.free_bytes(),
        }
    }

    /// Copies frame `i` of `batch`, which came from port `source`; `None`: there is no room.
    pub(super) fn put(&mut self, batch: &Batch, i: usize, source: u16) -> Option<Stored> {
        match &mut self.port {
            Some(port) => Some(Stored::held(port.fill(batch, i)?, source)),
            None => self.store.put(batch, i, source),
        }
    }

    /// Puts a frame into a batch, if it has to be copied from there to the port.
    pub(super) fn load(
        &self,
        frame: &Stored,
        batch: &mut Batch,
        output: u16,
    ) -> Result<(), BatchFull> {
        match frame.at {
            At::Port(_) => Ok(()),
            At::Cells(_) => self.store.load(frame, batch, output),
        }
    }

    /// A frame's memory is free again.
    pub(super) fn release(&mut self, frame: &Stored) {
        match (frame.at, &mut self.port) {
            (At::Port(held), Some(port)) => port.release(held),
            // Its port took its memory along.
            (At::Port(_), None) => {}
            (At::Cells(_), _) => self.store.release(frame),
        }
    }
}
