//! Which worker owns which queue pair: written by control, read by workers that have a frame for
//! another's port.
//!
//! A hint and no lock: a frame that goes to the wrong worker is handed on or counted as dropped.
//! Control moves queue pairs only while all workers are held ([`super::Workers`]), so that does
//! not happen.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use penstock_units::{PortId, QueueId, WorkerId};

use super::QUEUES_MAX;
use super::split::Notes;

/// Maximum number of workers.
pub const WORKERS_MAX: usize = 16;
/// Nobody's.
const NONE: u8 = 0xff;

const _: () = assert!(QUEUES_MAX == size_of::<u64>() && WORKERS_MAX < NONE as usize);

/// One port: a byte a queue pair.
#[derive(Debug)]
struct Entry {
    owners: AtomicU64,
    /// Not zero: frames can be delivered there, as far as the owner said last.
    ready: AtomicU64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Directory {
    entries: Box<[Entry]>,
    /// Tokens of ports between two workers.
    tokens: Box<[AtomicI64]>,
    /// By port: the workers of which an output has too much of it waiting, a bit each.
    pressed: Box<[AtomicU32]>,
    /// What workers tell each other about ports' cycles.
    pub(super) notes: Notes,
}

/// Where a frame for a port can be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// By this worker.
    At(WorkerId),
    /// Nowhere now: no queue pair is ready.
    Down,
    /// Nowhere: the port is not attached.
    Nowhere,
}

const fn bit_of(worker: WorkerId) -> u32 {
    1 << (worker.0 as u32 % u32::BITS)
}

impl Directory {
    pub(super) fn new(ports: usize, workers: usize) -> Self {
        let entry = |_| Entry { owners: AtomicU64::new(u64::MAX), ready: AtomicU64::new(0) };
        Self {
            entries: (0..ports).map(entry).collect(),
            tokens: (0..ports).map(|_| AtomicI64::new(0)).collect(),
            pressed: (0..ports).map(|_| AtomicU32::new(0)).collect(),
            notes: Notes::new(ports, workers),
        }
    }

    /// An output of `worker` has too much of a port waiting, or none has any more: for the workers
    /// that take the port's frames.
    pub(super) fn set_pressed(&self, port: PortId, worker: WorkerId, pressed: bool) {
        let Some(place) = self.pressed.get(port.index()) else { return };
        // Several workers may press a port: a read-modify-write, off the hot path.
        if pressed {
            place.fetch_or(bit_of(worker), Ordering::Relaxed);
        } else {
            place.fetch_and(!bit_of(worker), Ordering::Relaxed);
        }
    }

    /// Whether an output of a worker other than `own` has.
    #[inline]
    pub(super) fn is_pressed_elsewhere(&self, port: PortId, own: WorkerId) -> bool {
        let pressed =
            self.pressed.get(port.index()).map_or(0, |place| place.load(Ordering::Relaxed));
        pressed & !bit_of(own) != 0
    }

    /// Keeps a port's tokens while it is between two workers; control holds both.
    pub(super) fn leave_tokens(&self, port: PortId, tokens: i64) {
        if let Some(place) = self.tokens.get(port.index()) {
            place.store(tokens, Ordering::Release);
        }
    }

    /// Those that were left for a port.
    pub(super) fn take_tokens(&self, port: PortId) -> i64 {
        self.tokens.get(port.index()).map_or(0, |place| place.swap(0, Ordering::AcqRel))
    }

    /// Which workers own queue pairs of a port, one bit each.
    pub(super) fn owners(&self, port: PortId) -> u32 {
        let Some(entry) = self.entries.get(port.index()) else { return 0 };
        let owners = entry.owners.load(Ordering::Acquire).to_le_bytes();
        let known = owners.into_iter().filter(|&owner| usize::from(owner) < WORKERS_MAX);
        known.fold(0, |set, owner| set | 1 << owner)
    }

    /// Makes `owner` the owner of a queue pair, or nobody.
    pub(super) fn set_owner(&self, port: PortId, queue: QueueId, owner: Option<WorkerId>) {
        let Some(entry) = self.entries.get(port.index()) else { return };
        let mut owners = entry.owners.load(Ordering::Relaxed).to_le_bytes();
        let owner = owner.and_then(|id| u8::try_from(id.0).ok()).unwrap_or(NONE);
        if let Some(place) = owners.get_mut(queue.index()) {
            *place = owner;
        }
        entry.owners.store(u64::from_le_bytes(owners), Ordering::Release);
    }

    /// The owner of a queue pair.
    #[must_use]
    pub fn owner(&self, port: PortId, queue: QueueId) -> Option<WorkerId> {
        let owners = self.entries.get(port.index())?.owners.load(Ordering::Acquire).to_le_bytes();
        let owner = *owners.get(queue.index())?;
        (owner != NONE).then_some(WorkerId(owner.into()))
    }

    /// Notes whether a queue pair can deliver; for its owner.
    pub(super) fn set_ready(&self, port: PortId, queue: QueueId, ready: bool) {
        let Some(entry) = self.entries.get(port.index()) else { return };
        let bits = 0xff_u64 << (8 * (queue.index() % QUEUES_MAX));
        // Two queue pairs of a port may have two owners: a read-modify-write, off the hot path.
        if ready {
            entry.ready.fetch_or(bits, Ordering::Release);
        } else {
            entry.ready.fetch_and(!bits, Ordering::Release);
        }
    }

    /// Where to hand a frame with this flow hash; `own` is the worker that asks.
    pub(crate) fn home(&self, port: u16, hash: u32, own: WorkerId) -> Home {
        let Some(entry) = self.entries.get(usize::from(port)) else { return Home::Nowhere };
        let owners = entry.owners.load(Ordering::Acquire);
        if owners == u64::MAX {
            return Home::Nowhere;
        }
        let ready = entry.ready.load(Ordering::Acquire).to_le_bytes();
        let others = owners.to_le_bytes().into_iter().zip(ready);
        let others = others
            .filter(|&(owner, ready)| ready != 0 && owner != NONE && u16::from(owner) != own.0);
        let count = others.clone().count();
        if count == 0 {
            return Home::Down;
        }
        let mut others = others;
        let pick = others.nth(hash as usize % count);
        pick.map_or(Home::Down, |(owner, _)| Home::At(WorkerId(owner.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_to_a_ready_queue_of_another_worker() {
        let directory = Directory::new(2, 1);
        let (port, own) = (PortId(1), WorkerId(0));
        assert_eq!(directory.home(1, 0, own), Home::Nowhere);
        assert_eq!(directory.home(9, 0, own), Home::Nowhere, "no such port");
        for (queue, owner) in [(0, 0), (1, 1), (2, 2)] {
            directory.set_owner(port, QueueId(queue), Some(WorkerId(owner)));
        }
        assert_eq!(directory.home(1, 0, own), Home::Down);
        directory.set_ready(port, QueueId(0), true);
        assert_eq!(directory.home(1, 0, own), Home::Down, "its own is no help");
        assert_eq!(directory.home(1, 5, WorkerId(1)), Home::At(WorkerId(0)));
        directory.set_ready(port, QueueId(2), true);
        directory.set_ready(port, QueueId(1), true);
        assert_eq!(directory.home(1, 4, own), Home::At(WorkerId(1)));
        assert_eq!(directory.home(1, 5, own), Home::At(WorkerId(2)));
        directory.set_owner(port, QueueId(1), None);
        assert_eq!(directory.owner(port, QueueId(1)), None);
        assert_eq!(directory.owner(port, QueueId(2)), Some(WorkerId(2)));
        assert_eq!(directory.home(1, 4, own), Home::At(WorkerId(2)));
    }

    #[test]
    fn a_port_is_pressed_until_the_last_worker_eases_it() {
        let directory = Directory::new(2, 3);
        let (port, [a, b, c]) = (PortId(1), [0, 1, 2].map(WorkerId));
        let pressed = || [a, b, c].map(|own| directory.is_pressed_elsewhere(port, own));
        directory.set_pressed(port, a, true);
        assert_eq!(pressed(), [false, true, true], "its own outputs a worker knows by itself");
        directory.set_pressed(port, b, true);
        directory.set_pressed(port, a, false);
        assert_eq!(pressed(), [true, false, true]);
        directory.set_pressed(port, b, false);
        assert_eq!(pressed(), [false; 3]);
        assert!(!directory.is_pressed_elsewhere(PortId(9), a), "no such port");
    }
}
