//! A capture copies frames of one port, with what the switch did with each frame.
//!
//! # Problem
//!
//! An operator wants to see what a guest sends and receives, and which frames the switch drops and
//! why. A copy costs cycles, and no guest may pay for the operator's look.
//!
//! # Approach
//!
//! A capture belongs to a worker, and every worker has each capture. The worker copies the chosen
//! frames into a buffer of the capture ([`Record`]). Control exchanges the buffer for an empty
//! buffer several times per second, so the worker allocates and frees no memory. If the buffer is
//! full, the worker counts the frames that it does not copy.
//!
//! A capture of received frames copies a frame before the limits and the classifier see it, because
//! both may change the frame. The verdict is added after the delivery. A capture of dropped frames
//! copies a frame when the switch drops it.
//!
//! # Cost
//!
//! The copies of all captures of a worker may use one cycle in [`SHARE`]. Above this budget, the
//! captures pause for about 80 ms, then take some thousand frames, and so on. The ports' counters
//! say how many frames the captures left out. The worker charges the used cycles to the host and
//! not to a port. A worker whose captures pause does the same as a worker without captures: one
//! comparison per batch. So only control can end a pause, when it next exchanges a buffer.

mod budget;
mod filter;
mod key;
mod record;

pub use budget::SHARE;
pub use filter::Filter;
pub use key::HeaderReader;
pub use record::{Direction, Fate, Record, records};

use std::sync::Arc;

use penstock_units::{Cycles, PortId};

use crate::batch::{BATCH_FRAMES, Batch};
use crate::counters::{Counter, PortCounters};
use crate::drop::DropReason;
use crate::unit::Unit;
use budget::Budget;
use record::Header;

/// Maximum number of captures at once.
pub const CAPTURES_MAX: usize = 4;
/// Size of a capture's buffer in bytes.
pub const BUFFER_BYTES: usize = 4 << 20;
/// Estimated cost of sending a frame alone instead of in a burst.
///
/// The worker cannot measure this difference, because it sends the frame only once. An estimate
/// suffices, because its error has a bound: the budget allows at most one such frame in
/// `SHARE * ALONE` = 200,000 cycles. If the true cost is higher by 1,000 cycles, the captures use
/// half a percent of the core more. The error is also limited by what a frame alone needs: function
/// calls, and accesses to memory that the driver's core also uses, but no system call. TAP and
/// packet ports make one call for each frame in any case, and all ports notify their drivers once
/// in a batch. `scripts/test-capture.sh` measures the whole effect on another port. With an
/// estimate of 100 cycles, and one cycle in 200 for captures, a port beside a capture of drops kept
/// 97.5 % of its rate.
const ALONE: Cycles = Cycles(500);

/// What a capture takes.
#[derive(Debug)]
pub struct CaptureTerms {
    /// Number of the capture, which the caller chooses.
    pub id: u64,
    pub port: PortId,
    /// Whether the capture takes frames that the switch receives from the port.
    pub received: bool,
    /// Whether the capture takes frames that the switch sends to the port.
    pub sent: bool,
    /// Whether the capture takes only frames that the switch drops.
    pub drops: bool,
    /// Headers that a frame must have. The capture takes all frames if the filter is `None`.
    pub filter: Option<Filter>,
    /// Number of bytes of a frame that the capture copies.
    pub snap_len: u32,
    /// Clock that measures the cost of the capture.
    pub clock: fn() -> Cycles,
}

/// Numbers of a capture since control last exchanged the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that the capture left out because of its budget, whether they pass the filter or not.
    pub left_out: u64,
    /// Frames that the capture left out because its buffer was full.
    pub lost: u64,
}

#[derive(Debug)]
struct Capture {
    terms: Box<CaptureTerms>,
    buffer: Vec<u8>,
    tally: Tally,
    /// Frames that the capture left out since the last record.
    missed: u32,
    /// Last reading of [`Capture::countable`] in a pause.
    counted: u64,
    /// Position in `buffer` of each frame of the present batch that waits for its verdict.
    pending: [Option<usize>; BATCH_FRAMES],
}

/// The captures of one worker.
#[derive(Debug, Default)]
pub struct Captures {
    list: Vec<Capture>,
    budget: Budget,
    /// Cycles since the last call of [`Self::take_spent`].
    spent: Cycles,
    /// Time of the present batch.
    at: Cycles,
    /// Whether the captures take frames of the present batch, and do not pause.
    open: bool,
}

impl Captures {
    /// Creates the list of captures, with room for all of them.
    #[must_use]
    pub fn new() -> Self {
        Self { list: Vec::with_capacity(CAPTURES_MAX), ..Self::default() }
    }

    /// Lowers the budget to that of a worker that may use `capacity` of the `core` cycles that its
    /// core has per second.
    pub(crate) fn lower_budget(&mut self, capacity: u64, core: u64) {
        self.budget.lower(capacity, core);
    }

    /// Whether captures run, and do not pause.
    #[inline(always)]
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open
    }

    /// Adds a capture with an empty buffer. Returns both if the worker has too many captures.
    pub fn add(
        &mut self,
        terms: Box<CaptureTerms>,
        buffer: Vec<u8>,
        counters: &[Option<Arc<PortCounters>>],
    ) -> Option<(Box<CaptureTerms>, Vec<u8>)> {
        if self.list.len() >= CAPTURES_MAX {
            return Some((terms, buffer));
        }
        let (tally, pending) = (Tally::default(), [None; BATCH_FRAMES]);
        let mut capture = Capture { terms, buffer, tally, missed: 0, counted: 0, pending };
        capture.counted = capture.countable(counters);
        self.list.push(capture);
        None
    }

    /// Removes a capture. Returns its terms, its buffer and its numbers.
    pub fn remove(&mut self, id: u64) -> Option<(Box<CaptureTerms>, Vec<u8>, Tally)> {
        let at = self.list.iter().position(|capture| capture.terms.id == id)?;
        let Capture { terms, buffer, tally, .. } = self.list.swap_remove(at);
        Some((terms, buffer, tally))
    }

    /// Exchanges a capture's buffer for an empty buffer. Returns the empty buffer if the worker has
    /// no such capture.
    pub fn exchange(
        &mut self,
        id: u64,
        empty: Vec<u8>,
        counters: &[Option<Arc<PortCounters>>],
    ) -> Result<(Vec<u8>, Tally), Vec<u8>> {
        let paused = !self.open;
        let Some(capture) = self.list.iter_mut().find(|capture| capture.terms.id == id) else {
            return Err(empty);
        };
        if paused {
            let now = capture.countable(counters);
            capture.leave_out(now.wrapping_sub(capture.counted));
            capture.counted = now;
        }
        let tally = core::mem::take(&mut capture.tally);
        Ok((core::mem::replace(&mut capture.buffer, empty), tally))
    }

    /// Begins a batch at time `at`, if it has not begun yet. Returns whether the captures take
    /// frames of the batch. If the budget is spent, a pause begins.
    pub fn begin(&mut self, at: Cycles, counters: &[Option<Arc<PortCounters>>]) -> bool {
        if self.open && at != self.at {
            self.at = at;
            if !self.budget.may(at) {
                self.turn(false, counters);
            }
        }
        self.open
    }

    /// Ends a pause if the budget allows it at time `at`. A worker without captures is always in a
    /// pause.
    pub fn resume(&mut self, at: Cycles, counters: &[Option<Arc<PortCounters>>]) {
        if self.list.is_empty() {
            self.open = false;
        } else if !self.open && self.budget.may(at) {
            self.turn(true, counters);
        }
    }

    /// Begins or ends a pause. At its end, the counters say how many frames the captures left out.
    #[cold]
    fn turn(&mut self, open: bool, counters: &[Option<Arc<PortCounters>>]) {
        self.open = open;
        for capture in &mut self.list {
            let now = capture.countable(counters);
            if open {
                capture.leave_out(now.wrapping_sub(capture.counted));
            }
            capture.counted = now;
        }
    }

    /// Returns the cycles that the captures used since the last call.
    pub fn take_spent(&mut self) -> Cycles {
        core::mem::take(&mut self.spent)
    }

    /// Whether a capture takes frames that the switch receives from `port`, and does not pause.
    #[must_use]
    pub fn takes_received_from(&self, port: u16) -> bool {
        let takes = |of: &CaptureTerms| of.received && of.port.0 == port;
        self.open && self.list.iter().any(|capture| takes(&capture.terms))
    }

    /// Whether a capture takes frames that the switch sends to `port`.
    #[must_use]
    pub fn takes_sent_to(&self, port: u16) -> bool {
        let takes = |of: &CaptureTerms| of.sent && !of.drops && of.port.0 == port;
        self.open && self.list.iter().any(|capture| takes(&capture.terms))
    }

    /// Whether frame `i` must be sent alone, because a capture needs to know what becomes of it.
    #[must_use]
    pub fn follows(&mut self, i: usize, source: PortId, output: u16) -> bool {
        if !self.open {
            return false;
        }
        let followed = self.list.iter().any(|capture| {
            let CaptureTerms { port, received, sent, drops, .. } = *capture.terms;
            let of_port = received && port == source || sent && port.0 == output;
            if drops { of_port } else { capture.pending[i % BATCH_FRAMES].is_some() }
        });
        if followed {
            self.budget.spend(ALONE);
            self.spent += ALONE;
        }
        followed
    }

    /// Copies the frames of a batch that the worker has just received. `policed` says whether a
    /// limit may drop some of the frames next.
    pub fn received(&mut self, batch: &mut Batch, unit: Unit, policed: bool) {
        if !self.open {
            return;
        }
        for i in 0..batch.len() {
            // The classifier overwrites the hash. Until then, it says which frames a limit dropped.
            batch.frame_mut(i).hash = u32::try_from(i).unwrap_or(0);
        }
        self.each(|capture, at| {
            let CaptureTerms { port, received, drops, .. } = *capture.terms;
            if port != unit.port || !received || drops && !policed {
                return;
            }
            for i in 0..batch.len() {
                let header = Header::new(at, unit, Direction::Received);
                capture.pending[i] = capture.take(batch, i, unit.port, header);
            }
        });
    }

    /// Notes which frames of the batch a limit dropped. Call this function after
    /// [`Self::received`].
    pub fn policed(&mut self, batch: &mut Batch) {
        if !self.open {
            return;
        }
        for capture in &mut self.list {
            let before = core::mem::replace(&mut capture.pending, [None; BATCH_FRAMES]);
            let mut gone = before;
            for (pending, frame) in capture.pending.iter_mut().zip(batch.frames()) {
                let was = frame.hash as usize % BATCH_FRAMES;
                (*pending, gone[was]) = (before[was], None);
            }
            for at in gone.into_iter().flatten() {
                record::set_fate(&mut capture.buffer, at, Fate::Dropped(DropReason::Policed), None);
            }
        }
        // The classifier leaves the hash of a frame that it cannot parse, and such a frame may
        // still have a copy.
        for i in 0..batch.len() {
            batch.frame_mut(i).hash = 0;
        }
    }

    /// Notes that a copy of frame `i` went to `output`, or on its way there, as `fate` says.
    pub fn passed(&mut self, i: usize, output: u16, fate: Fate) {
        for capture in &mut self.list {
            if let Some(at) = capture.pending[i % BATCH_FRAMES]
                && record::fate(&capture.buffer, at).yields_to(fate)
            {
                record::set_fate(&mut capture.buffer, at, fate, Some(PortId(output)));
            }
        }
    }

    /// Notes that the switch dropped frame `i`, which came from `source` and has the output
    /// `output` if it has one.
    pub fn dropped(
        &mut self,
        batch: &Batch,
        i: usize,
        (source, output): (PortId, Option<u16>),
        reason: DropReason,
    ) {
        let fate = Fate::Dropped(reason);
        let to = output.map(PortId);
        if !self.concerns(source, to) {
            return;
        }
        self.each(|capture, at| {
            if let Some(place) = capture.pending[i % BATCH_FRAMES] {
                record::set_fate(&mut capture.buffer, place, fate, to);
                return;
            }
            let CaptureTerms { port, received, sent, drops, .. } = *capture.terms;
            let direction = if received && port == source {
                Direction::Received
            } else if sent && Some(port) == to {
                Direction::Sent
            } else {
                return;
            };
            if drops {
                let other = if direction == Direction::Received { to } else { Some(source) };
                let header = Header { fate, other, ..Header::of(at, port, direction) };
                capture.take(batch, i, source, header);
            }
        });
    }

    /// Records a frame that the worker dropped as it received it, before [`Self::received`].
    pub fn refused(&mut self, batch: &Batch, i: usize, unit: Unit, reason: DropReason) {
        if !self.concerns(unit.port, None) {
            return;
        }
        self.each(|capture, at| {
            let CaptureTerms { port, received, .. } = *capture.terms;
            if received && port == unit.port {
                let header = Header::new(at, unit, Direction::Received);
                let header = Header { fate: Fate::Dropped(reason), ..header };
                capture.take(batch, i, port, header);
            }
        });
    }

    /// Records a frame that the switch dropped after it waited in a queue. The frame's bytes are
    /// gone.
    pub fn dropped_unseen(&mut self, source: u16, output: PortId, reason: DropReason) {
        if !self.concerns(PortId(source), Some(output)) {
            return;
        }
        self.each(|capture, at| {
            let CaptureTerms { port, received, sent, drops, .. } = *capture.terms;
            let direction = if received && port.0 == source {
                Direction::Received
            } else if sent && port == output {
                Direction::Sent
            } else {
                return;
            };
            // No filter can match bytes that are gone.
            if !drops || capture.terms.filter.is_some() {
                return;
            }
            let other = if direction == Direction::Received { output } else { PortId(source) };
            // The queue may drop the frame between two batches.
            let at = at.max((capture.terms.clock)());
            let header = Header::of(at, port, direction);
            let header = Header { fate: Fate::Dropped(reason), other: Some(other), ..header };
            capture.put(header, 0, |_| ());
        });
    }

    /// Returns a bit mask of the captures that take frame `i`, which goes to a queue pair. The
    /// frame must then be sent alone, and [`Self::sent`] called if the port took it.
    pub fn choose_sent(&mut self, batch: &Batch, i: usize, (source, to): (PortId, Unit)) -> u32 {
        let (mut chosen, mut bit) = (0, 1);
        self.each(|capture, _| {
            let CaptureTerms { port, sent, drops, .. } = *capture.terms;
            let wanted = sent && !drops && port == to.port;
            if wanted && capture.matches(batch, i, source) {
                chosen |= bit;
            }
            bit <<= 1;
        });
        chosen
    }

    /// Copies frame `i`, which a queue pair took, for the chosen captures.
    pub fn sent(&mut self, chosen: u32, batch: &Batch, i: usize, (source, to): (PortId, Unit)) {
        let mut rest = chosen;
        self.each(|capture, at| {
            if rest & 1 != 0 {
                let header = Header::new(at, to, Direction::Sent);
                let header = Header { fate: Fate::Forwarded, other: Some(source), ..header };
                capture.copy(batch, i, header);
            }
            rest >>= 1;
        });
    }

    /// Ends a batch: records of frames whose verdict is not of interest are taken back.
    pub fn end_batch(&mut self) {
        if !self.open {
            return;
        }
        for capture in &mut self.list {
            let pending = core::mem::replace(&mut capture.pending, [None; BATCH_FRAMES]);
            if !capture.terms.drops {
                continue;
            }
            for at in pending.into_iter().flatten() {
                if !matches!(record::fate(&capture.buffer, at), Fate::Dropped(_)) {
                    record::void(&mut capture.buffer, at);
                }
            }
            // Void records at the end make room for others.
            if let Some(first) = pending.into_iter().flatten().min()
                && record::records(&capture.buffer[first..]).next().is_none()
            {
                capture.buffer.truncate(first);
            }
        }
    }

    /// Whether a capture may take a frame from `source` to `output`, so that another port's frames
    /// cost the captures nothing.
    fn concerns(&self, source: PortId, output: Option<PortId>) -> bool {
        let of_port = |of: &CaptureTerms| {
            of.received && of.port == source || of.sent && Some(of.port) == output
        };
        self.open && self.list.iter().any(|capture| of_port(&capture.terms))
    }

    /// Runs `work`, and counts its cycles as used by the captures.
    pub fn charge<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let clock = self.list.first().map(|capture| capture.terms.clock);
        let began = clock.map(|clock| clock());
        let result = work();
        if let (Some(clock), Some(began)) = (clock, began) {
            let cost = clock().saturating_sub(began);
            self.budget.spend(cost);
            self.spent += cost;
        }
        result
    }

    /// Runs `what` for each capture unless they pause, and measures the cycles.
    fn each(&mut self, mut what: impl FnMut(&mut Capture, Cycles)) {
        let Self { list, budget, spent, at, open } = self;
        let Some(clock) = list.first().filter(|_| *open).map(|capture| capture.terms.clock) else {
            return;
        };
        let began = clock();
        for capture in list {
            what(capture, *at);
        }
        let cost = clock().saturating_sub(began);
        budget.spend(cost);
        *spent += cost;
    }
}

impl Capture {
    /// Returns a count that grows by one for each frame that the capture would take.
    fn countable(&self, counters: &[Option<Arc<PortCounters>>]) -> u64 {
        let CaptureTerms { port, received, sent, drops, .. } = *self.terms;
        let Some(Some(counters)) = counters.get(port.index()) else { return 0 };
        let sum = |of: &[Counter]| of.iter().map(Counter::get).fold(0, u64::wrapping_add);
        let of = |wanted: bool, count: u64| if wanted { count } else { 0 };
        if drops {
            of(received, sum(&counters.drops)).wrapping_add(of(sent, sum(&counters.tx_drops)))
        } else {
            of(received, counters.rx_frames.get()).wrapping_add(of(sent, counters.tx_frames.get()))
        }
    }

    fn leave_out(&mut self, frames: u64) {
        self.tally.left_out += frames;
        self.missed = self.missed.saturating_add(u32::try_from(frames).unwrap_or(u32::MAX));
    }

    /// Copies frame `i`, which came from `source`, if the filter allows it. Returns the position of
    /// the record.
    fn take(&mut self, batch: &Batch, i: usize, source: PortId, header: Header) -> Option<usize> {
        if self.matches(batch, i, source) { self.copy(batch, i, header) } else { None }
    }

    /// Whether frame `i`, which came from `source`, has the headers that the capture wants.
    fn matches(&mut self, batch: &Batch, i: usize, source: PortId) -> bool {
        self.terms.filter.as_mut().is_none_or(|filter| filter.matches(batch, i, source))
    }

    fn copy(&mut self, batch: &Batch, i: usize, header: Header) -> Option<usize> {
        let len = batch.frame(i).len;
        let copied = len.min(self.terms.snap_len) as usize;
        let header = Header { len, tci: batch.frame(i).tci, ..header };
        self.put(header, copied, |out| batch.copy_part(i, 0, out))
    }

    fn put(&mut self, header: Header, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<usize> {
        let header = Header { missed: self.missed, ..header };
        let at = record::put(&mut self.buffer, &header, len, fill);
        match at {
            Some(_) => self.missed = 0,
            None => {
                self.tally.lost += 1;
                self.missed = self.missed.saturating_add(1);
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture of the drops of port 0.
    fn of_drops(clock: fn() -> Cycles) -> Captures {
        let terms = CaptureTerms {
            id: 1,
            port: PortId(0),
            received: true,
            sent: true,
            drops: true,
            filter: None,
            snap_len: 0,
            clock,
        };
        let mut captures = Captures::new();
        assert!(captures.add(Box::new(terms), Vec::with_capacity(1_000), &[]).is_none());
        captures
    }

    #[test]
    fn the_budget_bounds_the_number_of_frames_that_are_sent_alone() {
        const ROUNDS: u64 = 200_000;
        const STEP: u64 = 10_000;
        let mut captures = of_drops(|| Cycles::ZERO);
        let mut alone = 0;
        for at in (1..=ROUNDS).map(|round| Cycles(round * STEP)) {
            captures.resume(at, &[]);
            if captures.begin(at, &[]) {
                let followed = (0..BATCH_FRAMES).filter(|i| captures.follows(*i, PortId(0), 1));
                alone += followed.count() as u64;
                captures.end_batch();
            }
        }
        let most = ROUNDS * STEP / (SHARE * ALONE.0);
        // The first frames use a full bucket.
        let first = 1_000_000 / ALONE.0 + BATCH_FRAMES as u64;
        assert!((most / 4..=most + first).contains(&alone), "{alone} of {most}");
    }

    #[test]
    fn a_frame_has_no_mark_of_the_capture_when_the_classifier_gets_it() {
        let mut captures = of_drops(|| Cycles::ZERO);
        captures.resume(Cycles(1), &[]);
        assert!(captures.begin(Cycles(2), &[]));
        let mut batch = Batch::new();
        for _ in 0..3 {
            batch.push_head(&[7; 14], 60).unwrap();
        }
        let unit = Unit { port: PortId(0), queue: penstock_units::QueueId(0) };
        captures.received(&mut batch, unit, true);
        assert_eq!(batch.frame(2).hash, 2);
        captures.policed(&mut batch);
        assert!(batch.frames().iter().all(|frame| frame.hash == 0));
    }

    #[test]
    fn a_frame_that_was_dropped_in_a_queue_has_the_time_of_the_drop() {
        let mut captures = of_drops(|| Cycles(7_000));
        captures.resume(Cycles(500), &[]);
        assert!(captures.begin(Cycles(1_000), &[]));
        captures.end_batch();
        // Between two batches.
        captures.dropped_unseen(0, PortId(3), DropReason::QueueLate);
        let (buffer, _) = captures.exchange(1, Vec::new(), &[]).unwrap();
        let taken: Vec<_> = records(&buffer).map(|record| (record.at, record.fate)).collect();
        assert_eq!(taken, [(Cycles(7_000), Fate::Dropped(DropReason::QueueLate))]);
    }
}
