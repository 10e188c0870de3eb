//! What workers tell each other about a port whose cycles several of them spend.
//!
//! **Rule** (`penstock_qos::share`). Each worker notes its bucket's level here; the port's home,
//! the first of its owners, says who gives tokens to whom; each books that itself. What a worker
//! spends on frames that another handed over is noted, too, and the home takes it from its bucket.
//! Every number has one writer, none is read in a batch, and what is read late is only booked late.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use penstock_units::{PortId, WorkerId};

/// One port on one worker.
#[derive(Debug, Default)]
pub(super) struct Note {
    /// Written by the worker: its tokens, what it had booked of `told` by then, its depth.
    level: AtomicI64,
    booked: AtomicI64,
    depth: AtomicI64,
    /// Written by the worker: cycles it spent on the port's frames without having a bucket for it.
    foreign: AtomicU64,
    /// Written by the port's home: tokens given to this worker so far, less those taken.
    told: AtomicI64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Notes {
    workers: usize,
    notes: Box<[Note]>,
}

impl Notes {
    /// For `ports` ports; a worker that is alone needs none.
    pub(super) fn new(ports: usize, workers: usize) -> Self {
        let count = if workers > 1 { ports * workers } else { 0 };
        Self { workers, notes: (0..count).map(|_| Note::default()).collect() }
    }

    fn of(&self, port: PortId, worker: WorkerId) -> Option<&Note> {
        self.notes.get(port.index() * self.workers + worker.index())
    }

    /// How many workers there are.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// What `worker` was told in all.
    pub(super) fn told(&self, port: PortId, worker: WorkerId) -> i64 {
        self.of(port, worker).map_or(0, |note| note.told.load(Relaxed))
    }

    /// Notes a bucket's level, by its worker, which has booked `told`.
    pub(super) fn note(&self, port: PortId, worker: WorkerId, level: i64, told: i64, depth: i64) {
        let Some(note) = self.of(port, worker) else { return };
        note.level.store(level, Relaxed);
        note.booked.store(told, Relaxed);
        note.depth.store(depth, Relaxed);
    }

    /// A bucket's level as its worker noted it, with what it had not booked then; and its depth.
    pub(super) fn level(&self, port: PortId, worker: WorkerId) -> (i64, i64) {
        let Some(note) = self.of(port, worker) else { return (0, 0) };
        let due = note.told.load(Relaxed) - note.booked.load(Relaxed);
        (note.level.load(Relaxed) + due, note.depth.load(Relaxed))
    }

    /// Tells `worker` to book `tokens`; by the port's home alone.
    pub(super) fn tell(&self, port: PortId, worker: WorkerId, tokens: i64) {
        let Some(note) = self.of(port, worker) else { return };
        note.told.store(note.told.load(Relaxed) + tokens, Relaxed);
    }

    /// Notes what `worker` spent for a port of others.
    pub(super) fn spend(&self, port: PortId, worker: WorkerId, cycles: u64) {
        let Some(note) = self.of(port, worker) else { return };
        note.foreign.store(note.foreign.load(Relaxed).wrapping_add(cycles), Relaxed);
    }

    /// What all workers spent so.
    pub(super) fn spent(&self, port: PortId) -> u64 {
        let first = port.index() * self.workers;
        let notes = self.notes.get(first..first + self.workers).unwrap_or(&[]);
        notes.iter().fold(0, |sum, note| sum.wrapping_add(note.foreign.load(Relaxed)))
    }
}
