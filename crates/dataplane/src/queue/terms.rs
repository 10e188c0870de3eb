//! A snapshot contains the configuration of each output queue.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_qos::egress_policer::EgressPolicer;
use penstock_qos::fair_share::Bound;
use penstock_qos::pair_table::{PairLimits, PairTable};
use penstock_qos::shaper::Smoothing;
use penstock_units::{BitsPerSecond, Nanos, Weight};

use super::pair_lines::PairLines;
use super::{Classes, LaneCounters, OutputQueue};

/// The order in which an output sends its waiting frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Frames are sent in the order of their arrival. Frames that find no room in the queue are
    /// dropped.
    #[default]
    Fifo,
    /// Tenants share the output by weight, and a tenant's VMs share the tenant's part by weight
    /// (FS-VDE §4.1). The worker does not poll a VM with too many waiting frames until there is
    /// room.
    FairShare,
    /// Several queues share the output by weight. Within a queue, frames are sent in the order of
    /// arrival. A frame's code point selects the frame's queue ([`Classes`]). Frames that find no
    /// room in their queue are dropped.
    Wfq,
    /// Each flow has its own queue, the flows send in turn, and a flow with few frames goes first
    /// (RFC 8290). CoDel signals congestion to a flow that waits too long. If there is no room, the
    /// flow with the most waiting bytes loses its first frame.
    FqCodel,
}

impl Order {
    /// Returns the order's name in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::FairShare => "fair-share",
            Self::Wfq => "wfq",
            Self::FqCodel => "fq-codel",
        }
    }

    /// Whether senders share the output by weight. The senders of a shared output are charged for
    /// the CPU cycles that the delivery of their frames takes.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::FairShare | Self::Wfq)
    }
}

/// Method by which a shaper limits the rate of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShaperKind {
    /// A token bucket gets its tokens in portions, at the given interval. Experiments use the token
    /// bucket as the baseline.
    TokenBucket(Nanos),
    /// The shaper spaces frames evenly and sends the frames one by one.
    Smooth(Smoothing),
}

impl ShaperKind {
    /// Whether a shaper of this kind can become one of kind `other` between two frames.
    pub(crate) fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Smooth(_), Self::Smooth(_)) => true,
            (one, other) => one == other,
        }
    }
}

/// A shaper's rate limit and method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeTerms {
    /// Rate limit in bits per second of frames. The rate includes the FCS but not the other bytes
    /// that a link adds.
    pub rate: BitsPerSecond,
    pub kind: ShaperKind,
}

/// The rule for the times at which an output may send its waiting frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// The output sends waiting frames without a rate limit.
    #[default]
    None,
    /// Frames are sent at the pace of a link with the given rate. The rate includes all overhead
    /// that Ethernet adds to a frame.
    Link(BitsPerSecond),
    /// A shaper determines the time at which each frame is sent.
    Shaped(ShapeTerms),
}

/// Configuration of an output queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTerms {
    pub order: Order,
    pub pacing: Pacing,
    /// Limits on the bytes of waiting frames and on each frame's wait. The limits on waiting apply
    /// per VM with [`Order::FairShare`], per queue with [`Order::Wfq`], and for the whole output
    /// with [`Order::Fifo`] and [`Order::FqCodel`].
    pub bound: Bound,
    /// Whether each flow has its own queue within the queue of its VM ([`Order::FairShare`] with
    /// `Excess::Drop`) or of its code point ([`Order::Wfq`]). The other orders ignore the value.
    pub flows: bool,
    /// Limit on the waiting bytes of a tenant with a rate ceiling, at an output with
    /// [`Order::Wfq`].
    pub held_bytes: u64,
    /// Maximum number of waiting frames of the whole output. With [`Order::Wfq`], a queue's frames
    /// may not exceed the output's remaining room for frames.
    pub frames: u32,
}

impl Default for QueueTerms {
    /// A queue of 4,096 frames in the order of arrival, without a rate. 256 KiB of a tenant with a
    /// rate ceiling may wait.
    fn default() -> Self {
        Self {
            order: Order::Fifo,
            pacing: Pacing::None,
            bound: Bound::default(),
            flows: false,
            held_bytes: 256 * 1024,
            frames: 4_096,
        }
    }
}

/// Weights of a sending port at outputs that tenants and VMs share by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareTerms {
    /// Weight of the port's tenant among all tenants.
    pub tenant: Weight,
    /// Weight of the port's VM among the tenant's VMs.
    pub vm: Weight,
}

/// The pairs of VMs at an output, and lines for frames that wait for their limits.
#[derive(Debug, Default)]
struct HomePairs {
    table: Option<Arc<PairTable>>,
    /// Lines for the pairs that the queue has not taken yet, or lines for former pairs that the
    /// queue has given back.
    spare: Option<Box<PairLines>>,
}

/// Place from which a worker takes the queue of an output. The control plane allocates the queue
/// and its memory. The worker that gets the port takes the queue, and returns the queue when the
/// port leaves.
#[derive(Debug)]
pub struct QueueHome {
    terms: QueueTerms,
    /// Number of source ports.
    ports: usize,
    pacing: Mutex<Pacing>,
    classes: Mutex<Arc<Classes>>,
    limit: Mutex<Option<Arc<EgressPolicer>>>,
    pairs: Mutex<HomePairs>,
    /// Number of changes of `pacing`, `classes`, `limit` and `pairs`. With each snapshot, the
    /// worker reads these values again only if the number of changes is another one.
    changes: AtomicU32,
    lanes: Option<Arc<LaneCounters>>,
    queue: Mutex<Option<Box<OutputQueue>>>,
}

impl QueueHome {
    /// Creates an empty output queue for `ports` source ports of `tenants` tenants, which a worker
    /// can take with [`Self::take`].
    #[must_use]
    pub fn new(terms: QueueTerms, ports: usize, tenants: usize) -> Arc<Self> {
        Self::in_place_of(None, terms, ports, tenants)
    }

    /// Creates an empty output queue that takes the place of the queue `old`. With [`Order::Wfq`],
    /// the new queue continues the class counters of `old`, if `old` has class counters.
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
            ports,
            pacing: Mutex::new(terms.pacing),
            classes: Mutex::default(),
            limit: Mutex::default(),
            pairs: Mutex::default(),
            changes: AtomicU32::new(1),
            lanes: kept.or(lanes),
            queue: Mutex::new(Some(Box::new(queue))),
        })
    }

    /// Sets the classes of a [`Order::Wfq`] output from the next snapshot on. A queue with an order
    /// other than [`Order::Wfq`] ignores classes.
    pub fn set_classes(&self, classes: Arc<Classes>) {
        *self.classes.lock().unwrap_or_else(PoisonError::into_inner) = classes;
        self.note_change();
    }

    /// Returns the classes that the control plane has set last. The worker uses these classes at
    /// the latest from the next snapshot of the configuration on.
    #[must_use]
    pub fn classes(&self) -> Arc<Classes> {
        Arc::clone(&self.classes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the limit for which the output's frames wait, from the next snapshot on.
    pub fn set_limit(&self, limit: Option<Arc<EgressPolicer>>) {
        let mut old = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match (&*old, &limit) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            *old = limit;
            self.note_change();
        }
    }

    /// Sets the pairs of VMs for whose limits frames wait, from the next snapshot on. Allocates the
    /// lines for their frames, and frees lines that the queue has given back. Frames wait only at
    /// an output with [`Order::Wfq`], and only for limits to guarantees. Returns whether they do.
    pub fn set_pairs(&self, table: Option<&Arc<PairTable>>) -> bool {
        let limits = |table: &&Arc<PairTable>| table.limits() == PairLimits::Guarantees;
        let table = table.filter(limits).filter(|_| self.terms.order == Order::Wfq);
        let former = self.lock_pairs().table.clone();
        let same = former.as_ref().map(Arc::as_ptr) == table.map(Arc::as_ptr);
        let new = table.filter(|_| !same).map(|table| Box::new(PairLines::new(table, self.ports)));
        let mut pairs = self.lock_pairs();
        let gone = if same {
            pairs.spare.take_if(|spare| table.is_none_or(|table| !spare.is_of(table)))
        } else {
            pairs.table = table.cloned();
            core::mem::replace(&mut pairs.spare, new)
        };
        // A worker may wait for the lock, so memory is freed without it.
        drop(pairs);
        drop(gone);
        if !same {
            self.note_change();
        }
        table.is_some()
    }

    fn lock_pairs(&self) -> MutexGuard<'_, HomePairs> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `lines`, which the queue has, are not those of the home's pairs.
    pub(super) fn has_other_lines(&self, lines: Option<&PairLines>) -> bool {
        match (&self.lock_pairs().table, lines) {
            (Some(table), Some(lines)) => !lines.is_of(table),
            (table, lines) => table.is_some() || lines.is_some(),
        }
    }

    /// Gives the lines of the home's pairs to the queue, and takes back those that it has.
    pub(super) fn exchange_lines(&self, lines: &mut Option<Box<PairLines>>) {
        core::mem::swap(lines, &mut self.lock_pairs().spare);
    }

    fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of changes of the values that the control plane may set. The first number
    /// is 1.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn limit(&self) -> Option<Arc<EgressPolicer>> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the queue counters of a [`Order::Wfq`] output. Returns `None` if the output's order
    /// is not [`Order::Wfq`].
    #[must_use]
    pub fn lanes(&self) -> Option<&LaneCounters> {
        self.lanes.as_deref()
    }

    /// Whether the queue can apply `terms` without a new queue, because only the rate or
    /// the smoothing differs.
    #[must_use]
    pub fn fits(&self, terms: &QueueTerms) -> bool {
        let paced = match (terms.pacing, self.terms.pacing) {
            (Pacing::None, Pacing::None) | (Pacing::Link(_), Pacing::Link(_)) => true,
            (Pacing::Shaped(one), Pacing::Shaped(other)) => one.kind.is_like(other.kind),
            _ => false,
        };
        paced && QueueTerms { pacing: self.terms.pacing, ..*terms } == self.terms
    }

    /// Sets the output's pacing from the next snapshot on.
    pub fn set_pacing(&self, pacing: Pacing) {
        let mut old = self.pacing.lock().unwrap_or_else(PoisonError::into_inner);
        if *old != pacing {
            *old = pacing;
            self.note_change();
        }
    }

    pub(crate) fn pacing(&self) -> Pacing {
        *self.pacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub const fn terms(&self) -> &QueueTerms {
        &self.terms
    }

    /// Gives the output queue to a worker. Returns `None` if a worker has already taken the output
    /// queue.
    pub fn take(&self) -> Option<Box<OutputQueue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes an output queue back from a worker.
    pub fn put(&self, queue: Box<OutputQueue>) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}
