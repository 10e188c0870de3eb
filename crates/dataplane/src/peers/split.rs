//! If several workers spend one port's cycles, the workers report the spent cycles to each other.
//!
//! # Approach
//!
//! Each worker writes the level of its cycle bucket for the port to a shared record, the note
//! (`penstock_qos::share`). A port's home worker is the first worker that owns a queue pair of the
//! port. The home worker of a port decides how many cycle tokens move between the port's workers.
//! If the home worker gives tokens to a worker, the worker adds the tokens to its own bucket.
//! Workers also write the cycles that they spent on the port's handed-over frames. The home worker
//! takes the cycles of handed-over frames from its own bucket.
//!
//! Each number in a cycle note has one writer. Workers read each other's cycle notes only between
//! batches. If a worker reads an outdated number in a cycle note, the worker only changes its
//! bucket later.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use penstock_units::{PortId, WorkerId};

/// Cycle bucket of one port on one worker, as the workers of the port report it to each other.
#[derive(Debug, Default)]
pub(crate) struct Note {
    /// Level of the worker's bucket for the port, in tokens. The worker that owns the bucket writes
    /// the level.
    level: AtomicI64,
    /// Value of `told` that the worker had added to its bucket when it wrote `level`.
    booked: AtomicI64,
    /// Depth of the worker's bucket for the port, in tokens.
    depth: AtomicI64,
    /// Cycles that the worker spent on the port's frames without having a bucket for the port. Only
    /// the worker writes `foreign`.
    foreign: AtomicU64,
    /// Tokens given to the worker since the start, minus tokens taken from the worker. Only the
    /// port's home worker writes `told`.
    told: AtomicI64,
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    workers: usize,
    notes: Box<[Note]>,
}

impl Notes {
    /// Creates one cycle note (`Note`) for each of `ports` ports on each of `workers` workers. A
    /// switch with a single worker needs no cycle notes.
    pub(crate) fn new(ports: usize, workers: usize) -> Self {
        let count = if workers > 1 { ports * workers } else { 0 };
        Self { workers, notes: (0..count).map(|_| Note::default()).collect() }
    }

    fn of(&self, port: PortId, worker: WorkerId) -> Option<&Note> {
        self.notes.get(port.index() * self.workers + worker.index())
    }

    /// Number of workers that write cycle notes about ports.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the tokens given to `worker` since the start, minus tokens taken from `worker`.
    pub(crate) fn told(&self, port: PortId, worker: WorkerId) -> i64 {
        self.of(port, worker).map_or(0, |note| note.told.load(Relaxed))
    }

    /// Writes the level and depth of a worker's bucket. Only the thread of `worker` may call
    /// `note`, after the worker added the tokens `told` to its bucket.
    pub(crate) fn note(&self, port: PortId, worker: WorkerId, level: i64, told: i64, depth: i64) {
        let Some(note) = self.of(port, worker) else { return };
        note.level.store(level, Relaxed);
        note.booked.store(told, Relaxed);
        note.depth.store(depth, Relaxed);
    }

    /// Returns the level and depth of a worker's bucket, in tokens. The level includes tokens that
    /// the home worker gave and that the worker has not yet added to its bucket.
    pub(crate) fn level(&self, port: PortId, worker: WorkerId) -> (i64, i64) {
        let Some(note) = self.of(port, worker) else { return (0, 0) };
        let due = note.told.load(Relaxed) - note.booked.load(Relaxed);
        (note.level.load(Relaxed) + due, note.depth.load(Relaxed))
    }

    /// Gives `tokens` to `worker`, or takes tokens from `worker` if `tokens` is negative. Only the
    /// port's home worker may call this function.
    pub(crate) fn tell(&self, port: PortId, worker: WorkerId, tokens: i64) {
        let Some(note) = self.of(port, worker) else { return };
        note.told.store(note.told.load(Relaxed) + tokens, Relaxed);
    }

    /// Adds cycles that `worker` spent on frames of a port for which the worker has no bucket.
    pub(crate) fn spend(&self, port: PortId, worker: WorkerId, cycles: u64) {
        let Some(note) = self.of(port, worker) else { return };
        note.foreign.store(note.foreign.load(Relaxed).wrapping_add(cycles), Relaxed);
    }

    /// Returns the sum of the cycles of [`Self::spend`] over all workers. The sum of the cycles
    /// wraps around at the integer's maximum.
    pub(crate) fn spent(&self, port: PortId) -> u64 {
        let first = port.index() * self.workers;
        let notes = self.notes.get(first..first + self.workers).unwrap_or(&[]);
        notes.iter().fold(0, |sum, note| sum.wrapping_add(note.foreign.load(Relaxed)))
    }
}
