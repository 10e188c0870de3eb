//! The other workers of a switch, as one worker sees them.

use std::sync::Arc;

use penstock_units::{PortId, WorkerId};

use super::directory::{Directory, Home};
use super::handover::{Found, Inbox, Outbox, handover};
use super::positions::Positions;
use crate::batch::Batch;
use crate::classify::News;

/// What became of a frame for another worker's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// It is on its way.
    Over,
    /// The ring to that worker is full.
    Full,
    /// The port has no queue pair that is ready.
    Down,
    /// The port is not attached.
    NoPort,
}

/// See the module's text.
pub struct Peers {
    id: WorkerId,
    directory: Arc<Directory>,
    /// By worker; `None` is the worker itself.
    outboxes: Vec<Option<Outbox>>,
    inboxes: Vec<Inbox>,
    /// The inbox to be looked at next.
    next: usize,
}

impl core::fmt::Debug for Peers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Peers").field("id", &self.id).field("others", &self.inboxes.len()).finish()
    }
}

/// What workers of one switch share: the ends of the rings between them, one set each, and what an
/// onlooker needs to know.
#[derive(Debug)]
pub struct Mesh {
    /// One for each worker, from 0.
    pub peers: Vec<Peers>,
    /// Who owns which queue pair.
    pub directory: Arc<Directory>,
    /// Where the rings stand.
    pub rings: Vec<Arc<Positions>>,
}

impl Mesh {
    /// For `workers` workers and up to `ports` ports.
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
    /// Of a worker that is alone.
    #[must_use]
    pub fn none(ports: usize) -> Self {
        let directory = Arc::new(Directory::new(ports, 1));
        Self { id: WorkerId(0), directory, outboxes: Vec::new(), inboxes: Vec::new(), next: 0 }
    }

    /// Whether there is no other worker.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.inboxes.is_empty()
    }

    pub(super) fn id(&self) -> WorkerId {
        self.id
    }

    pub(super) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Hands frame `i` of `batch`, which came from `source`, to a worker that can deliver it.
    pub(crate) fn hand_over(
        &mut self,
        batch: &Batch,
        i: usize,
        source: PortId,
        output: u16,
    ) -> Handed {
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

    /// Tells all others. What finds no room is not told; it will be told again.
    pub(super) fn tell(&mut self, news: News) {
        for outbox in self.outboxes.iter_mut().flatten() {
            let _ = outbox.tell(news);
        }
    }

    /// Lets the others see what was handed over.
    #[inline]
    pub(super) fn show(&mut self) {
        for outbox in self.outboxes.iter_mut().flatten() {
            outbox.show();
        }
    }

    /// Fills the empty batch from the next inbox that has something; [`Self::release`] ends it.
    pub(super) fn fill(&mut self, batch: &mut Batch) -> Found {
        for _ in 0..self.inboxes.len() {
            self.next = if self.next + 1 < self.inboxes.len() { self.next + 1 } else { 0 };
            match self.inboxes[self.next].fill(batch) {
                Found::Nothing => self.inboxes[self.next].release(),
                found => return found,
            }
        }
        Found::Nothing
    }

    /// Gives back the cells of the last [`Self::fill`].
    #[inline]
    pub(super) fn release(&mut self) {
        if let Some(inbox) = self.inboxes.get_mut(self.next) {
            inbox.release();
        }
    }
}
