//! The module `running` changes the vrings of a running vhost-user port. A vring stays with the
//! worker while the session changes the vring, so that frames keep flowing.

use std::sync::Arc;

use penstock_units::QueueId;
use vhost::vhost_user::Result;

use super::super::queue::{ChangeRing, RingChange, Side};
use super::super::throttle;
use super::super::virtqueue::Virtqueue;
use super::{F_LOG_ALL, F_RING_PACKED, Session, SessionError, refuse};
use crate::port::dirty_log::RingLog;
use crate::port::guest_memory::GuestMemory;
use crate::port::inflight::RingLayout;

impl Session {
    /// Layout of the driver's rings: split or packed.
    pub(super) fn layout(&self) -> RingLayout {
        if self.has(F_RING_PACKED) { RingLayout::Packed } else { RingLayout::Split }
    }

    /// Finds the position of a ring that is about to start. If the session has an inflight region,
    /// the ring records its progress in the region.
    pub(super) fn place(&mut self, index: usize, ring: &mut Virtqueue) -> Result<()> {
        let queue = u16::try_from(index).unwrap_or(u16::MAX);
        let recover = core::mem::take(&mut self.rings[index].recover);
        let size = u16::try_from(self.rings[index].size).unwrap_or(u16::MAX);
        // The region is read once, because the front end may change it between two reads.
        let region = self.inflight.as_ref().filter(|_| recover);
        let stood = region.and_then(|region| region.packed(queue, size)?.positions());
        if !self.rings[index].exact && stood.is_none() {
            ring.resume().map_err(|source| refuse(SessionError::Start { ring: index, source }))?;
        }
        if let Some(inflight) = &self.inflight
            && !ring.track(inflight, queue, stood)
        {
            let what = "the ring's progress is not recorded: the inflight region has no entry for \
                        the ring";
            tracing::warn!(port = %self.name, ring = index, "{what}");
        }
        ring.set_log(self.log_of(index));
        Ok(())
    }

    /// The dirty log of ring number `index`. Returns `None` if the ring's writes are not logged.
    fn log_of(&self, index: usize) -> Option<RingLog> {
        let log = self.log.as_ref().filter(|_| self.has(F_LOG_ALL))?;
        Some(RingLog { log: Arc::clone(log), used: self.rings[index].log_used })
    }

    /// Passes the session's dirty log to every running ring. After the call, the worker no longer
    /// writes to any previous dirty log.
    pub(super) fn set_logs(&mut self) {
        if self.has(F_LOG_ALL) && self.log.is_none() {
            let what = "the driver requested a dirty log, but did not set one";
            tracing::warn!(port = %self.name, "{what}");
        }
        (0..self.rings.len()).for_each(|index| self.set_log(index));
    }

    /// Passes the session's dirty log to ring number `index` if the ring runs.
    pub(super) fn set_log(&mut self, index: usize) {
        if self.rings[index].running {
            let _ = self.change_running(index, RingChange::Log(self.log_of(index)));
        }
    }

    /// Passes the driver's call descriptor to ring number `index` if the ring runs.
    pub(super) fn set_call(&mut self, index: usize) {
        if self.rings[index].running {
            let call = self.rings[index].call.as_ref().and_then(|call| call.try_clone().ok());
            let _ = self.change_running(index, RingChange::Call(call));
        }
    }

    /// Replaces the memory map of the running rings.
    pub(super) fn remap(&mut self, memory: GuestMemory) -> Result<()> {
        let memory = Arc::new(memory);
        memory.set_alarm(&self.halt.alarm);
        for index in 0..self.rings.len() {
            if !self.rings[index].running {
                continue;
            }
            let change = RingChange::Move(Arc::clone(&memory), self.rings[index].at);
            if let Some(RingChange::Refused(error)) = self.change_running(index, change) {
                return Err(refuse(SessionError::Memory { ring: index, source: error }));
            }
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Lets the worker change a ring between two batches. Returns the value that the ring's setting
    /// had before the change.
    fn change_running(&self, index: usize, change: RingChange) -> Option<RingChange> {
        let side = if index.is_multiple_of(2) { Side::Tx } else { Side::Rx };
        let queue = QueueId(u16::try_from(index / 2).unwrap_or(u16::MAX));
        self.spend(throttle::EXCHANGE);
        let message = Box::new(ChangeRing { side, change });
        match self.rings_owner.exchange(queue, message) {
            Ok(answer) => answer.downcast::<ChangeRing>().ok().map(|answer| answer.change),
            Err(error) => {
                // The port is being deleted, so its queues and rings have left the worker.
                tracing::debug!(port = %self.name, %error, "ring not changed");
                None
            }
        }
    }
}
