//! What stands before an output, by configuration: the part of the snapshot that queues read.

use std::sync::{Arc, Mutex, PoisonError};

use penstock_qos::fair_share::Bound;
use penstock_units::{BitsPerSecond, Nanos, Weight};

use super::{Classes, LaneCounters, OutputQueue};

/// Who of those that wait goes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Who came first. What finds no room is dropped.
    #[default]
    Fifo,
    /// Tenants by weight, then their VMs, then frames (FS-VDE §4.1). Who has too much waiting is
    /// not polled until there is room.
    FairShare,
    /// A few queues by weight, each first come first served; which is a frame's, its code point
    /// says ([`Classes`]). What finds no room is dropped.
    Wfq,
}

impl Order {
    /// The name in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::FairShare => "fair-share",
            Self::Wfq => "wfq",
        }
    }

    /// Whether what waits has had its senders' turn, and is theirs to pay for.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::Fifo)
    }
}

/// How a rate is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShaperKind {
    /// Tokens come in portions, so often: the baseline.
    TokenBucket(Nanos),
    /// Frame after frame, within a window of spacings.
    Smooth,
}

/// A rate, and how it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeTerms {
    /// Bits of frames per second, frame check sequence and what else a link adds not counted.
    pub rate: BitsPerSecond,
    /// How.
    pub kind: ShaperKind,
}

/// When what waits may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// At once.
    #[default]
    None,
    /// As fast as a link of this rate carries it, with all that Ethernet adds to a frame.
    Link(BitsPerSecond),
    /// By a shaper.
    Shaped(ShapeTerms),
}

/// What stands before an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTerms {
    /// Who goes next.
    pub order: Order,
    /// When.
    pub pacing: Pacing,
    /// How much may wait: of each VM with [`Order::FairShare`], in each queue with [`Order::Wfq`],
    /// of all together with [`Order::Fifo`].
    pub bound: Bound,
    /// Frames that wait at most, of all together; with [`Order::Wfq`] no queue has more of them
    /// than are free.
    pub frames: u32,
}

/// A port's part of outputs that are shared by tenant and VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareTerms {
    /// The tenant's weight among tenants.
    pub tenant: Weight,
    /// The VM's weight among the tenant's.
    pub vm: Weight,
}

/// Where a queue is while no worker has it. Control makes it, with the queue's memory; the worker
/// that gets the port takes the queue out, and puts it back when the port leaves.
#[derive(Debug)]
pub struct QueueHome {
    terms: QueueTerms,
    pacing: Mutex<Pacing>,
    classes: Mutex<Arc<Classes>>,
    lanes: Option<Arc<LaneCounters>>,
    queue: Mutex<Option<Box<OutputQueue>>>,
}

impl QueueHome {
    /// A queue for `ports` sources of `tenants` tenants, empty.
    #[must_use]
    pub fn new(terms: QueueTerms, ports: usize, tenants: usize) -> Arc<Self> {
        Self::in_place_of(None, terms, ports, tenants)
    }

    /// The same, and its queues of [`Order::Wfq`] go on with the counters of those of `old`, if
    /// that has such.
    #[must_use]
    pub fn in_place_of(
        old: Option<&Self>,
        terms: QueueTerms,
        ports: usize,
        tenants: usize,
    ) -> Arc<Self> {
        let queue = OutputQueue::new(terms, ports, tenants);
        let lanes = queue.lane_counters();
        let kept = old.and_then(|old| old.lanes.clone()).filter(|_| lanes.is_some());
        let queue = match &kept {
            Some(kept) => queue.counting_in(Arc::clone(kept)),
            None => queue,
        };
        Arc::new(Self {
            terms,
            pacing: Mutex::new(terms.pacing),
            classes: Mutex::default(),
            lanes: kept.or(lanes),
            queue: Mutex::new(Some(Box::new(queue))),
        })
    }

    /// The classes of a [`Order::Wfq`] output from the next snapshot on; nothing to others.
    pub fn set_classes(&self, classes: Arc<Classes>) {
        *self.classes.lock().unwrap_or_else(PoisonError::into_inner) = classes;
    }

    /// The classes in use, or as of the next snapshot.
    #[must_use]
    pub fn classes(&self) -> Arc<Classes> {
        Arc::clone(&self.classes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the queues of a [`Order::Wfq`] output counted; `None` of others.
    #[must_use]
    pub fn lanes(&self) -> Option<&LaneCounters> {
        self.lanes.as_deref()
    }

    /// Whether this queue can go on under `terms`: only the rate differs.
    #[must_use]
    pub fn fits(&self, terms: &QueueTerms) -> bool {
        let kind = |pacing| match pacing {
            Pacing::None => (0, None),
            Pacing::Link(_) => (1, None),
            Pacing::Shaped(ShapeTerms { kind, .. }) => (2, Some(kind)),
        };
        let same = QueueTerms { pacing: self.terms.pacing, ..*terms } == self.terms;
        same && kind(terms.pacing) == kind(self.terms.pacing)
    }

    /// The pacing from the next snapshot on.
    pub fn set_pacing(&self, pacing: Pacing) {
        *self.pacing.lock().unwrap_or_else(PoisonError::into_inner) = pacing;
    }

    pub(crate) fn pacing(&self) -> Pacing {
        *self.pacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its terms.
    #[must_use]
    pub const fn terms(&self) -> &QueueTerms {
        &self.terms
    }

    /// Takes the queue; `None`: another worker has it.
    pub fn take(&self) -> Option<Box<OutputQueue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts it back.
    pub fn put(&self, queue: Box<OutputQueue>) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}
