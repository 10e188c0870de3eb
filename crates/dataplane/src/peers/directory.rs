//! The directory records which worker owns each queue pair.
//!
//! The control threads write the owners of queue pairs into the directory. A worker reads the
//! owners if it has a frame for a port of another worker.
//!
//! A queue pair's owner in the directory is a hint, not a lock. A worker hands on or drops a frame
//! for a queue pair that it does not own. Frames do not normally reach a wrong worker, because
//! control moves queue pairs only while all workers are paused ([`crate::worker::Workers`]).

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use penstock_units::{PortId, QueueId, WorkerId};

use super::split::Notes;
use crate::unit::QUEUES_MAX;

/// Maximum number of workers of a switch.
pub const WORKERS_MAX: usize = 16;
/// Marker for a queue pair without an owner.
const NONE: u8 = 0xff;

const _: () = assert!(QUEUES_MAX == size_of::<u64>() && WORKERS_MAX < NONE as usize);

/// Directory entry of one port, with one byte for each queue pair.
#[derive(Debug)]
struct Entry {
    /// Number of the worker that owns each queue pair, or [`NONE`].
    owners: AtomicU64,
    /// Whether each queue pair of the port can deliver frames, as its worker last reported. A queue
    /// pair with the value 0 cannot deliver frames.
    ready: AtomicU64,
}

/// The owners of all queue pairs, and the state of ports that workers share.
#[derive(Debug)]
pub struct Directory {
    entries: Box<[Entry]>,
    /// Cycle tokens of ports that move between two workers, indexed by port number.
    tokens: Box<[AtomicI64]>,
    /// For each port number, a bit mask of the workers with an output in which too many of the
    /// port's frames wait.
    pressed: Box<[AtomicU32]>,
    /// Cycle notes: the workers' reports to each other about the cycles of ports.
    pub(crate) notes: Notes,
}

/// Result of the search for a worker that can deliver a frame for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The worker with the given number can deliver the frame.
    At(WorkerId),
    /// No worker can deliver the frame now: no queue pair of another worker is ready.
    Down,
    /// No worker can deliver the frame: the port is not attached.
    Nowhere,
}

const fn bit_of(worker: WorkerId) -> u32 {
    1 << (worker.0 as u32 % u32::BITS)
}

impl Directory {
    pub(crate) fn new(ports: usize, workers: usize) -> Self {
        let entry = |_| Entry { owners: AtomicU64::new(u64::MAX), ready: AtomicU64::new(0) };
        Self {
            entries: (0..ports).map(entry).collect(),
            tokens: (0..ports).map(|_| AtomicI64::new(0)).collect(),
            pressed: (0..ports).map(|_| AtomicU32::new(0)).collect(),
            notes: Notes::new(ports, workers),
        }
    }

    /// Records for the other workers whether too many frames of a port wait in an output of
    /// `worker`. The workers that receive frames from the port read whether too many of the port's
    /// frames wait.
    pub(crate) fn set_pressed(&self, port: PortId, worker: WorkerId, pressed: bool) {
        let Some(place) = self.pressed.get(port.index()) else { return };
        // Several workers may set bits of one port, so this is a read-modify-write. It is off the
        // hot path.
        if pressed {
            place.fetch_or(bit_of(worker), Ordering::Relaxed);
        } else {
            place.fetch_and(!bit_of(worker), Ordering::Relaxed);
        }
    }

    /// Returns true if too many frames of the port wait in an output of any worker except `own`.
    #[inline]
    pub(crate) fn is_pressed_elsewhere(&self, port: PortId, own: WorkerId) -> bool {
        let pressed =
            self.pressed.get(port.index()).map_or(0, |place| place.load(Ordering::Relaxed));
        pressed & !bit_of(own) != 0
    }

    /// Stores a port's cycle tokens while the port moves between two workers. The control plane
    /// pauses both workers while a port moves between the workers.
    pub(crate) fn leave_tokens(&self, port: PortId, tokens: i64) {
        if let Some(place) = self.tokens.get(port.index()) {
            place.store(tokens, Ordering::Release);
        }
    }

    /// Takes the cycle tokens that [`Self::leave_tokens`] stored for a port. Returns 0 if no tokens
    /// are stored.
    pub(crate) fn take_tokens(&self, port: PortId) -> i64 {
        self.tokens.get(port.index()).map_or(0, |place| place.swap(0, Ordering::AcqRel))
    }

    /// Returns a bit mask of the workers that own queue pairs of the port.
    pub(crate) fn owners(&self, port: PortId) -> u32 {
        let Some(entry) = self.entries.get(port.index()) else { return 0 };
        let owners = entry.owners.load(Ordering::Acquire).to_le_bytes();
        let known = owners.into_iter().filter(|&owner| usize::from(owner) < WORKERS_MAX);
        known.fold(0, |set, owner| set | 1 << owner)
    }

    /// Sets the owner of a queue pair. `None` means that no worker owns the queue pair.
    pub(crate) fn set_owner(&self, port: PortId, queue: QueueId, owner: Option<WorkerId>) {
        let Some(entry) = self.entries.get(port.index()) else { return };
        let mut owners = entry.owners.load(Ordering::Relaxed).to_le_bytes();
        let owner = owner.and_then(|id| u8::try_from(id.0).ok()).unwrap_or(NONE);
        if let Some(place) = owners.get_mut(queue.index()) {
            *place = owner;
        }
        entry.owners.store(u64::from_le_bytes(owners), Ordering::Release);
    }

    /// Returns the worker that owns a queue pair. Returns `None` if no worker owns the queue pair,
    /// or if the port or queue pair does not exist.
    #[must_use]
    pub fn owner(&self, port: PortId, queue: QueueId) -> Option<WorkerId> {
        let owners = self.entries.get(port.index())?.owners.load(Ordering::Acquire).to_le_bytes();
        let owner = *owners.get(queue.index())?;
        (owner != NONE).then_some(WorkerId(owner.into()))
    }

    /// Reports whether a queue pair can deliver frames. Only the queue pair's owner may call this
    /// function.
    pub(crate) fn set_ready(&self, port: PortId, queue: QueueId, ready: bool) {
        let Some(entry) = self.entries.get(port.index()) else { return };
        let bits = 0xff_u64 << (8 * (queue.index() % QUEUES_MAX));
        // Two queue pairs of a port may have two owners, so this is a read-modify-write. It is off
        // the hot path.
        if ready {
            entry.ready.fetch_or(bits, Ordering::Release);
        } else {
            entry.ready.fetch_and(!bits, Ordering::Release);
        }
    }

    /// Returns the worker to which worker `own` hands a frame with flow hash `hash`. `home` never
    /// returns the calling worker `own` itself.
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
