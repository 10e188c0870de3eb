//! A port's large segments are cut before a shaper or a slow rate limit, and leave part by part.
//!
//! # Problem
//!
//! A guest sends TCP segments of 64 KiB. Behind a shaper of 2 Mbit/s, such a segment would leave in
//! one burst and then hold the port for a quarter of a second.
//!
//! # Source
//!
//! VM jitter §III-C spaces single packets. Offload metadata is from virtio 1.2 §5.1.6.2.
//!
//! # Approach
//!
//! If a batch from the port's ring contains a large segment, the cutter copies the whole batch and
//! the guest gets its buffers back. From then on, the worker takes the port's frames from the
//! cutter and not from a ring, until the cutter is empty. A segment is cut into the frames that a
//! guest without TSO would have sent, so the later stages treat each part like such a frame. The
//! cutter thus holds at most one batch of a port, and the guest's other frames wait in its rings.
//!
//! The cutter cuts only a segment whose metadata agrees with its headers. Other frames pass as they
//! are, and classification drops the invalid ones with their reason.
//!
//! # Cost
//!
//! Cutting costs two copies of a segment, one of them within the cache, and the checksums of its
//! parts. A port without a shaper and without a slow limit has no cutter. A cutter has 220 KB of
//! memory, which the control plane allocates and frees ([`Spares`]).

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_units::{Nanos, PortId, QueueId};

use crate::batch::Batch;
use crate::counters::PortCounters;
use crate::finish::Segmenter;
use crate::headers::key_of;

/// Frames that the worker took from a port's rings and that have not left the cutter yet.
#[derive(Debug)]
pub(super) struct Cutter {
    held: Box<Batch>,
    /// Number of frames in `held` that left or that the segmenter is cutting.
    begun: usize,
    segmenter: Segmenter,
    /// Number of segments that the segmenter has yet to cut.
    left: usize,
    /// Time at which the held frames arrived in the ring of the queue pair `from`.
    arrived: Nanos,
    from: QueueId,
}

impl Cutter {
    pub fn new() -> Self {
        let (held, segmenter) = (Batch::new(), Segmenter::new());
        let from = QueueId(0);
        Self { held, begun: 0, segmenter, left: 0, arrived: Nanos::ZERO, from }
    }

    /// Number of frames that have not left the cutter yet.
    pub fn len(&self) -> usize {
        self.held.len() - self.begun + self.left
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Time at which the frames of the last [`Self::give`] arrived in the port's ring.
    pub const fn arrived(&self) -> Nanos {
        self.arrived
    }

    /// Queue pair in whose ring the frames of the last [`Self::give`] arrived.
    pub const fn from(&self) -> QueueId {
        self.from
    }

    /// Takes all frames of `batch`, which arrived in the ring of queue pair `from` at time
    /// `arrived`. The cutter must be empty. The frames of `batch` must not need the guest's memory.
    pub fn take(
        &mut self,
        batch: &mut Box<Batch>,
        (from, arrived): (QueueId, Nanos),
        counters: &PortCounters,
    ) {
        core::mem::swap(batch, &mut self.held);
        batch.clear();
        (self.begun, self.from, self.arrived) = (0, from, arrived);
        counters.queued.add(self.held.len() as u64);
    }

    /// Moves the next frames into `batch` while `batch` has room, and cuts large segments.
    pub fn give(&mut self, batch: &mut Batch, port: PortId, counters: &PortCounters) {
        while batch.has_room() && !self.is_empty() {
            if self.left > 0 {
                let before = batch.len();
                self.segmenter.fill(&self.held, self.begun - 1, batch);
                self.left -= (batch.len() - before).min(self.left);
                if batch.len() == before {
                    break;
                }
            } else if let Some(segments) = self.begin(port) {
                self.begun += 1;
                self.left = segments;
                counters.rx_cut.add(1);
                counters.replicated.add(segments as u64 - 1);
                counters.queued.add(segments as u64 - 1);
            } else if copy(&self.held, self.begun, batch) {
                self.begun += 1;
            } else {
                break;
            }
        }
        counters.queued.sub(batch.len() as u64);
    }

    /// Discards all frames. Returns the number of discarded frames.
    pub fn clear(&mut self) -> usize {
        let lost = self.len();
        self.held.clear();
        (self.begun, self.left) = (0, 0);
        lost
    }

    /// Begins to cut the next held frame. Returns the number of its segments. Returns `None` if the
    /// frame is not a valid large segment.
    fn begin(&mut self, port: PortId) -> Option<usize> {
        let (i, held) = (self.begun, &mut *self.held);
        if !held.frame(i).offload.is_gso() {
            return None;
        }
        key_of(held, i, port)?;
        self.segmenter.begin(held, i, usize::MAX).ok()
    }
}

/// Cutters that no port uses. The control plane allocates them before a request that may need some,
/// and frees those that are left before a later request, so the worker's thread does neither.
#[allow(clippy::vec_box, reason = "a cutter moves between the list and its port in its box")]
pub(super) struct Spares(Mutex<Vec<Box<Cutter>>>);

impl core::fmt::Debug for Spares {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}

impl Spares {
    /// Creates an empty list, which takes `most` cutters without an allocation.
    pub fn new(most: usize) -> Self {
        Self(Mutex::new(Vec::with_capacity(most)))
    }

    /// Changes the number of spare cutters to `count`.
    pub fn provide(&self, count: usize) {
        let missing = count.saturating_sub(self.lock().len());
        let mut new: Vec<_> = (0..missing).map(|_| Box::new(Cutter::new())).collect();
        let mut spares = self.lock();
        spares.append(&mut new);
        let kept = count.min(spares.len());
        let rest = spares.split_off(kept);
        // A worker may wait for the lock, so memory is freed without it.
        drop(spares);
        drop(rest);
    }

    /// Takes a spare cutter, or allocates one if there is none.
    pub fn take(&self) -> Box<Cutter> {
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| Box::new(Cutter::new()))
    }

    /// Takes back a cutter that holds no frames.
    pub fn put(&self, cutter: Box<Cutter>) {
        self.lock().push(cutter);
    }

    /// Number of spare cutters.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    #[allow(clippy::vec_box, reason = "as in the type")]
    fn lock(&self) -> MutexGuard<'_, Vec<Box<Cutter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies frame `i` of `from` to the end of `to`. Returns false if `to` has no room for the frame.
fn copy(from: &Batch, i: usize, to: &mut Batch) -> bool {
    let (len, offload) = (from.frame(i).len as usize, from.frame(i).offload);
    let Some(space) = to.arena_space(len) else { return false };
    from.copy_to(i, space);
    to.push_arena(len, offload);
    true
}
