//! A worker uses rings and the directory to exchange frames with the other workers of the switch.

mod directory;
mod handover;
pub mod positions;
mod split;

pub use directory::{Directory, WORKERS_MAX};
pub(crate) use handover::Found;
pub use positions::Positions;
pub(crate) use split::Notes;

use std::sync::Arc;

use penstock_units::{PortId, WorkerId};

use directory::Home;
use handover::{Inbox, Outbox, handover};

use crate::batch::Batch;
use crate::classify::News;
use crate::egress::{Handed, Others};

/// One worker's ends of the rings to and from all other workers.
pub struct Peers {
    id: WorkerId,
    directory: Arc<Directory>,
    /// Sending ends of the rings, indexed by worker number. The ring end at the worker's own number
    /// is `None`.
    outboxes: Vec<Option<Outbox>>,
    inboxes: Vec<Inbox>,
    /// Index of the inbox that the worker read last.
    next: usize,
}

impl core::fmt::Debug for Peers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Peers").field("id", &self.id).field("others", &self.inboxes.len()).finish()
    }
}

/// State that the workers of one switch share: the rings between the workers, and the directory of
/// owners.
#[derive(Debug)]
pub struct Mesh {
    /// The ring ends of each worker, indexed by worker number.
    pub peers: Vec<Peers>,
    /// Directory of the owners of all queue pairs.
    pub directory: Arc<Directory>,
    /// Positions of all rings, for a reader that is not a worker.
    pub rings: Vec<Arc<Positions>>,
}

impl Mesh {
    /// Creates the rings for `workers` workers, and a directory of up to `ports` ports.
    #[must_use]
    pub fn new(workers: u16, ports: usize) -> Self {
        let directory = Arc::new(Directory::new(ports, workers.into()));
        let peers = |id| Peers {
            id: WorkerId(id),
            directory: Arc::clone(&directory),
            outboxes: (0..workers).map(|_| None).collect(),
            inboxes: Vec::new(),
            next: 0,
        };
        let mut peers: Vec<Peers> = (0..workers).map(peers).collect();
        let mut rings = Vec::new();
        for from in 0..usize::from(workers) {
            for to in (0..usize::from(workers)).filter(|&to| to != from) {
                let (outbox, inbox) = handover();
                rings.push(outbox.positions());
                peers[from].outboxes[to] = Some(outbox);
                peers[to].inboxes.push(inbox);
            }
        }
        Self { peers, directory, rings }
    }
}

impl Peers {
    /// Creates the peers of a switch's only worker, for up to `ports` ports.
    #[must_use]
    pub fn none(ports: usize) -> Self {
        let directory = Arc::new(Directory::new(ports, 1));
        Self { id: WorkerId(0), directory, outboxes: Vec::new(), inboxes: Vec::new(), next: 0 }
    }

    /// Whether the switch has no other worker.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.inboxes.is_empty()
    }

    pub(crate) fn id(&self) -> WorkerId {
        self.id
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Reports a learned address to all other workers. If the ring to a worker is full, the worker
    /// misses this report of the address, and gets a later report.
    pub(crate) fn tell(&mut self, news: News) {
        for outbox in self.outboxes.iter_mut().flatten() {
            let _ = outbox.tell(news);
        }
    }

    /// Makes all written records visible to the other workers.
    #[inline]
    pub(crate) fn show(&mut self) {
        for outbox in self.outboxes.iter_mut().flatten() {
            outbox.show();
        }
    }

    /// Fills the empty batch from the next inbox with frames. The caller must call
    /// [`Self::release`] when the batch is done.
    pub(crate) fn fill(&mut self, batch: &mut Batch) -> Found {
        for _ in 0..self.inboxes.len() {
            self.next = if self.next + 1 < self.inboxes.len() { self.next + 1 } else { 0 };
            match self.inboxes[self.next].fill(batch) {
                Found::Nothing => self.inboxes[self.next].release(),
                found => return found,
            }
        }
        Found::Nothing
    }

    /// Returns the ring cells that the last [`Self::fill`] used.
    #[inline]
    pub(crate) fn release(&mut self) {
        if let Some(inbox) = self.inboxes.get_mut(self.next) {
            inbox.release();
        }
    }
}

impl Others for Peers {
    fn is_empty(&self) -> bool {
        self.inboxes.is_empty()
    }

    fn hand_over(&mut self, batch: &Batch, i: usize, source: PortId, output: u16) -> Handed {
        if self.outboxes.is_empty() {
            return Handed::NoPort;
        }
        let home = match self.directory.home(output, batch.frame(i).hash, self.id) {
            Home::At(home) => home,
            Home::Down => return Handed::Down,
            Home::Nowhere => return Handed::NoPort,
        };
        let Some(Some(outbox)) = self.outboxes.get_mut(home.index()) else { return Handed::Down };
        if outbox.give(batch, i, source, output) { Handed::Over } else { Handed::Full }
    }
}
