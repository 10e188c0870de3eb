//! HBS (hierarchical batch scheduler) chooses the queue pair of a port that runs the next batch.
//!
//! # Problem
//!
//! Ports compete for the core of their worker. An egress queue can order frames only after the core
//! has already spent cycles on them. With plain round robin, every port waits for all other ports.
//!
//! # Source
//!
//! The HBS scheduler is from C2QoS §IV-B, Fig. 8.
//!
//! # Quantities
//!
//! - Ports have eight latency classes (`Priority`); class 1 is served first.
//! - A *unit* is a queue pair of a port, which a worker polls.
//! - A *decision* chooses the unit that runs a batch next.
//! - A *check* tests whether frames wait at a unit.
//!
//! # Approach
//!
//! Units with tokens are *ready* and are in the queue of their class. Units without tokens are
//! *waiting*: no decision checks these units until a refill gives tokens to their port. A decision
//! checks the ready units, class by class from class 1 on, and chooses the first unit with frames.
//! After a check for frames, a unit goes to the end of its class. In every decision, an earlier
//! class with tokens and frames runs before later classes.
//!
//! The scheduler has two policies for units without frames:
//!
//! - The policy [`Readiness::Pending`] is Penstock's own and is not in the paper C2QoS. With
//!   [`Readiness::Pending`], a check for frames reads one word of memory, so a decision checks all
//!   ready units of a class before the next class.
//! - The policy [`Readiness::Demotion`] is from C2QoS (§IV-B.3), for units that must be polled to
//!   find their frames. A *loop* is a decision in which the unit was checked. After
//!   [`DEMOTE_AFTER`] consecutive loops without frames, a unit is demoted by one class. A demoted
//!   unit returns to its configured class when the unit sends a frame. With
//!   [`Readiness::Demotion`], a decision checks each unit for frames at most once.
//!
//! # Example
//!
//! In an example, units 1 and 2 are in class 1, unit 3 is in class 3, and frames wait at all three
//! units. In the example, units 1 and 2 run in turn until neither has tokens. When neither unit 1
//! nor unit 2 has tokens, unit 3 runs. When a refill gives tokens to unit 2 of the example, unit 2
//! runs the next batch.
//!
//! # Starvation
//!
//! The units of a class delay later classes only until their ports have no tokens. If a unit is
//! idle, a decision spends only one check on it.
//!
//! # Departures
//!
//! C2QoS does not state after how many loops a unit is demoted, so the number is Penstock's choice.
//! In all other respects, the scheduler HBS follows the paper C2QoS.
//!
//! # Cost
//!
//! A decision takes O(1), plus a check of each ready unit that precedes the chosen unit and has no
//! frames. After a refill, the worker tests at most [`RELEASE_MOST`] waiting units for new tokens.
//! The scheduler allocates no memory after its construction.

use penstock_units::Priority;

/// Number of consecutive decisions without frames after which a unit is demoted by one class.
pub const DEMOTE_AFTER: u8 = 3;

/// Maximum number of waiting units that are tested for new tokens after a refill. The maximum of 32
/// tests limits the cost of a refill. At most 32 units can run a batch in one or two refill
/// intervals, so the maximum of 32 tests delays no unit.
pub const RELEASE_MOST: usize = 32;

/// Policy for units (queue pairs) that have no frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// Units without frames keep their class with the policy [`Readiness::Pending`]. A decision
    /// checks units without frames, and continues with the next unit.
    #[default]
    Pending,
    /// Units without frames are demoted class by class (C2QoS §IV-B.3).
    Demotion,
}

impl Readiness {
    /// Returns the name of the policy in configuration and statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Demotion => "demotion",
        }
    }
}

const CLASSES: usize = Priority::CLASSES;
const _: () = assert!(CLASSES == WAITING as usize);
/// Number of the queue that contains the units without tokens. The queues 0 to 7 are the queues of
/// the eight classes.
const WAITING: u8 = 8;
/// Queue number of a unit that has not joined the scheduler.
const ABSENT: u8 = u8::MAX;
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    /// Number of the decision that last checked the unit; used only with [`Readiness::Demotion`].
    looked_in: u32,
    /// Number of the queue that contains the unit: a class from 0, or the queue of waiting units.
    queue: u8,
    /// Configured latency class of the unit, as an index from 0.
    class: u8,
    /// Class in which the unit runs now. The unit's class number is higher than `class` while the
    /// unit is demoted.
    effective: u8,
    /// Number of consecutive decisions that checked the unit and found no frames.
    empty: u8,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

/// Next choice of the scheduler: a unit whose ring the caller must check for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Slot by which the unit is identified.
    pub slot: usize,
    /// Whether the worker may send its pending notifications now. The value is false only for a
    /// unit of the last class that is not the last unit checked in its round.
    pub ends_round: bool,
}

/// The batch scheduler of one worker.
#[derive(Clone, Debug)]
pub struct BatchScheduler {
    nodes: Box<[Node]>,
    queues: [Queue; CLASSES + 1],
    readiness: Readiness,
    len: u32,
    /// Bitmap of classes with a ready unit; bit 0 is class 1.
    occupied: u8,
    /// Class whose units the current decision checks for frames. The field `left` is the number of
    /// units in `class` that the current decision has not checked yet.
    class: u8,
    left: u32,
    /// Number of the current decision; used only with [`Readiness::Demotion`].
    sweep: u32,
    /// Number of units of the last class that the scheduler has checked in the current round. A
    /// round ends when all units of the last class have been checked.
    round: u32,
    /// Slot of the unit that the last call of [`Self::next_glance`] returned. The next call begins
    /// after this unit.
    glance: u32,
}

impl BatchScheduler {
    /// Returns a scheduler for slots 0 to `slots` - 1, in which no unit has joined.
    #[must_use]
    pub fn new(slots: usize, readiness: Readiness) -> Self {
        let node = Node {
            next: NIL,
            previous: NIL,
            looked_in: 0,
            queue: ABSENT,
            class: 0,
            effective: 0,
            empty: 0,
        };
        Self {
            nodes: vec![node; slots].into_boxed_slice(),
            queues: [Queue { head: NIL, tail: NIL, len: 0 }; CLASSES + 1],
            readiness,
            len: 0,
            occupied: 0,
            class: 0,
            left: 0,
            sweep: 0,
            round: 0,
            glance: NIL,
        }
    }

    /// Adds a unit at the end of its class. If the unit has already joined, `add` does nothing.
    pub fn add(&mut self, slot: usize, class: Priority) {
        let Some(node) = self.nodes.get_mut(slot) else { return };
        if node.queue != ABSENT {
            return;
        }
        node.class = class_of(class);
        node.effective = node.class;
        node.empty = 0;
        self.push(slot, class_of(class));
    }

    /// Removes a unit.
    pub fn remove(&mut self, slot: usize) {
        if self.is_there(slot) {
            self.unlink(slot);
        }
    }

    /// Moves a unit to another class. A unit that waits for tokens still waits after the change of
    /// its class.
    pub fn set_class(&mut self, slot: usize, class: Priority) {
        let class = class_of(class);
        if !self.is_there(slot) || self.nodes[slot].class == class {
            return;
        }
        let waits = self.nodes[slot].queue == WAITING;
        (self.nodes[slot].class, self.nodes[slot].effective) = (class, class);
        if !waits {
            self.move_to(slot, class);
        }
    }

    /// Starts a decision. The caller must call `begin` before the first [`Self::next_look`] of each
    /// decision.
    #[inline]
    pub fn begin(&mut self) {
        // `next_look` starts with the class after this one, which wraps to class 0.
        (self.class, self.left) = (ABSENT, 0);
        if self.readiness == Readiness::Demotion {
            self.sweep = self.sweep.wrapping_add(1);
        }
    }

    /// Returns the next unit that this decision must check for frames. Returns `None` if the
    /// decision has checked all units. The scheduler moves a returned unit to the end of its class.
    /// The caller must call [`Self::ran`] if the unit ran a batch, and [`Self::hold`] if its port
    /// has no tokens.
    #[inline]
    pub fn next_look(&mut self) -> Option<Candidate> {
        match self.readiness {
            Readiness::Pending => self.next_pending(),
            Readiness::Demotion => self.next_demoting(),
        }
    }

    #[inline]
    fn next_pending(&mut self) -> Option<Candidate> {
        while self.left == 0 {
            let from = self.class.wrapping_add(1);
            let later = u32::from(self.occupied) >> from.min(31);
            if later == 0 {
                return None;
            }
            self.class = from + class_of_bit(later);
            self.left = self.queues[usize::from(self.class)].len;
        }
        self.left -= 1;
        let slot = self.rotate(self.class);
        Some(Candidate { slot, ends_round: self.ends_round(self.class) })
    }

    fn next_demoting(&mut self) -> Option<Candidate> {
        let mut ends_round = false;
        loop {
            let candidate = self.next_pending()?;
            ends_round |= candidate.ends_round;
            let (slot, sweep) = (candidate.slot, self.sweep);
            let node = &mut self.nodes[slot];
            if node.looked_in == sweep {
                // This decision already looked at the unit and demoted it to this class.
                continue;
            }
            node.looked_in = sweep;
            // If the unit sends, the caller calls [`Self::ran`], which resets `empty`.
            node.empty += 1;
            if node.empty >= DEMOTE_AFTER {
                node.empty = 0;
                if usize::from(node.effective) + 1 < CLASSES {
                    node.effective += 1;
                    let to = node.effective;
                    self.move_to(slot, to);
                }
            }
            return Some(Candidate { slot, ends_round });
        }
    }

    #[inline]
    fn ends_round(&mut self, class: u8) -> bool {
        if self.occupied >> class > 1 {
            return true;
        }
        self.round += 1;
        let ends = self.round >= self.queues[usize::from(class)].len;
        if ends {
            self.round = 0;
        }
        ends
    }

    /// Reports that the unit ran a batch.
    #[inline]
    pub fn ran(&mut self, slot: usize) {
        if self.readiness == Readiness::Pending {
            return;
        }
        let Some(node) = self.nodes.get_mut(slot) else { return };
        node.empty = 0;
        if node.effective != node.class {
            node.effective = node.class;
            let (queue, class) = (node.queue, node.class);
            if queue < WAITING {
                self.move_to(slot, class);
            }
        }
    }

    /// Reports that the unit's port has no tokens. The unit waits until [`Self::release`] finds
    /// that its port has tokens.
    #[inline]
    pub fn hold(&mut self, slot: usize) {
        if self.nodes.get(slot).is_some_and(|node| node.queue < WAITING) {
            self.move_to(slot, WAITING);
        }
    }

    /// Tests the first `most` waiting units for tokens after a refill. A waiting unit becomes ready
    /// if `has_tokens` returns true for the unit's slot. The units that have waited longest for
    /// tokens are tested first. The next call of `release` begins with the waiting units that were
    /// not tested. Returns the number of waiting units that became ready in this call.
    pub fn release(&mut self, most: usize, mut has_tokens: impl FnMut(usize) -> bool) -> usize {
        let all = self.waiting() <= most;
        let mut released = 0;
        let mut at = self.queues[usize::from(WAITING)].head;
        for _ in 0..most.min(self.waiting()) {
            let slot = at as usize;
            at = self.nodes[slot].next;
            if has_tokens(slot) {
                let class = self.nodes[slot].effective;
                self.move_to(slot, class);
                released += 1;
            } else if !all {
                self.rotate(WAITING);
            }
        }
        released
    }

    /// Makes the unit of `slot` ready if the unit waits for tokens. The caller must know that the
    /// unit has tokens now.
    pub fn release_slot(&mut self, slot: usize) {
        if self.nodes.get(slot).is_some_and(|node| node.queue == WAITING) {
            let class = self.nodes[slot].effective;
            self.move_to(slot, class);
        }
    }

    /// Returns one of the units that wait for tokens. Repeated calls of `next_waiting` return all
    /// waiting units in turn.
    pub fn next_waiting(&mut self) -> Option<usize> {
        (self.waiting() > 0).then(|| self.rotate(WAITING))
    }

    /// Returns a ready unit to check outside of decisions. Successive calls of `next_glance` return
    /// all ready units in turn. Checks outside of scheduling decisions find the frames of classes
    /// that get no turn because earlier classes use the whole core.
    pub fn next_glance(&mut self) -> Option<usize> {
        let gone_on = self.nodes.get(self.glance as usize).filter(|node| node.queue < WAITING);
        let (mut slot, class) = gone_on.map_or((NIL, ABSENT), |node| (node.next, node.queue));
        if slot == NIL {
            let later = u32::from(self.occupied) >> class.wrapping_add(1).min(31);
            let queue = if later == 0 {
                self.queues.get(class_of_bit(self.occupied.into()) as usize)?
            } else {
                &self.queues[usize::from(class.wrapping_add(1) + class_of_bit(later))]
            };
            slot = queue.head;
        }
        self.glance = slot;
        (slot != NIL).then_some(slot as usize)
    }

    /// Number of units that have joined, ready or waiting.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the scheduler has no units.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of units that wait for tokens.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues[usize::from(WAITING)].len as usize
    }

    /// Returns the class in which a unit runs now, and whether the unit is ready. Returns `None` if
    /// the slot has no unit.
    #[must_use]
    pub fn state(&self, slot: usize) -> Option<(Priority, bool)> {
        let node = self.nodes.get(slot).filter(|node| node.queue != ABSENT)?;
        let class = Priority::new(u64::from(node.effective) + 1).ok()?;
        Some((class, node.queue < WAITING))
    }

    fn is_there(&self, slot: usize) -> bool {
        self.nodes.get(slot).is_some_and(|node| node.queue != ABSENT)
    }

    /// Moves the first unit of a queue, which must not be empty, to the end of the queue, and
    /// returns the unit.
    #[inline]
    fn rotate(&mut self, class: u8) -> usize {
        let queue = &mut self.queues[usize::from(class)];
        let head = queue.head;
        if queue.tail != head {
            let (slot, tail) = (head as usize, queue.tail);
            let second = self.nodes[slot].next;
            (queue.head, queue.tail) = (second, head);
            self.nodes[second as usize].previous = NIL;
            self.nodes[tail as usize].next = head;
            (self.nodes[slot].previous, self.nodes[slot].next) = (tail, NIL);
        }
        head as usize
    }

    fn move_to(&mut self, slot: usize, queue: u8) {
        self.unlink(slot);
        self.push(slot, queue);
    }

    fn push(&mut self, slot: usize, number: u8) {
        let Ok(at) = u32::try_from(slot) else { return };
        let queue = &mut self.queues[usize::from(number)];
        let tail = core::mem::replace(&mut queue.tail, at);
        queue.len += 1;
        self.len += 1;
        match self.nodes.get_mut(tail as usize) {
            Some(last) => last.next = at,
            None => queue.head = at,
        }
        let node = &mut self.nodes[slot];
        (node.next, node.previous, node.queue) = (NIL, tail, number);
        if number < WAITING {
            self.occupied |= 1 << number;
        }
    }

    fn unlink(&mut self, slot: usize) {
        let Node { next, previous, queue: number, .. } = self.nodes[slot];
        let queue = &mut self.queues[usize::from(number)];
        queue.len -= 1;
        self.len -= 1;
        if number < WAITING && queue.len == 0 {
            self.occupied &= !(1 << number);
        }
        // The unit no longer counts in the current decision.
        if number == self.class {
            self.left = self.left.min(queue.len);
        }
        match previous {
            NIL => queue.head = next,
            at => self.nodes[at as usize].next = next,
        }
        let queue = &mut self.queues[usize::from(number)];
        match next {
            NIL => queue.tail = previous,
            at => self.nodes[at as usize].previous = previous,
        }
        self.nodes[slot].queue = ABSENT;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "below 8")]
fn class_of(class: Priority) -> u8 {
    class.index() as u8
}

/// Returns the index of the bitmap's lowest set bit, which is the first class with a ready unit.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most 32")]
fn class_of_bit(bits: u32) -> u8 {
    bits.trailing_zeros() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(n: u64) -> Priority {
        Priority::new(n).unwrap()
    }

    #[test]
    fn one_unit_is_released_alone() {
        let mut hbs = BatchScheduler::new(3, Readiness::Pending);
        for slot in 0..3 {
            hbs.add(slot, class(2));
        }
        hbs.hold(0);
        hbs.hold(1);
        [1, 1, 2, 7].into_iter().for_each(|slot| hbs.release_slot(slot));
        let states: Vec<_> = (0..3).filter_map(|slot| hbs.state(slot)).map(|s| s.1).collect();
        assert_eq!((hbs.waiting(), states), (1, vec![false, true, true]));
    }

    /// Makes one scheduling decision, and returns the slot of the first unit with frames.
    fn decide(hbs: &mut BatchScheduler, frames: impl Fn(usize) -> bool) -> Option<usize> {
        hbs.begin();
        while let Some(candidate) = hbs.next_look() {
            if frames(candidate.slot) {
                hbs.ran(candidate.slot);
                return Some(candidate.slot);
            }
        }
        None
    }

    #[test]
    fn classes_are_strict_and_units_of_a_class_take_turns() {
        let mut hbs = BatchScheduler::new(8, Readiness::Pending);
        for (slot, priority) in [(3, 3), (1, 1), (2, 1)] {
            hbs.add(slot, class(priority));
        }
        let picks: Vec<_> = (0..4).map(|_| decide(&mut hbs, |_| true)).collect();
        assert_eq!(picks, [Some(1), Some(2), Some(1), Some(2)]);
        hbs.hold(1);
        hbs.hold(2);
        assert_eq!(decide(&mut hbs, |_| true), Some(3));
        assert_eq!((hbs.len(), hbs.waiting()), (3, 2));
        assert_eq!(hbs.release(9, |slot| slot == 2), 1);
        assert_eq!(decide(&mut hbs, |_| true), Some(2));
        assert_eq!(decide(&mut hbs, |slot| slot == 3), Some(3), "the ready ones without frames");
        assert_eq!(decide(&mut hbs, |_| false), None);
    }

    #[test]
    fn a_silent_unit_falls_by_class_and_returns_when_it_sends() {
        let mut hbs = BatchScheduler::new(4, Readiness::Demotion);
        hbs.add(0, class(1));
        hbs.add(1, class(2));
        let mut looks = 0;
        let mut silent = |hbs: &mut BatchScheduler| {
            hbs.begin();
            while let Some(candidate) = hbs.next_look() {
                if candidate.slot == 1 {
                    hbs.ran(1);
                    return;
                }
                looks += 1;
            }
        };
        (0..8).for_each(|_| silent(&mut hbs));
        assert_eq!(looks, 3 + 3, "in class 1, then in class 2 in turn with the other");
        assert_eq!(hbs.state(0), Some((class(3), true)));
        hbs.ran(0);
        assert_eq!(hbs.state(0), Some((class(1), true)));
    }

    /// C2QoS §IV-B.3 demotes a unit after a number of loops; one loop is one scheduling decision in
    /// Penstock. Tests that a unit without frames keeps its class in the first decision, regardless
    /// of the number of other units.
    #[test]
    fn one_decision_is_one_loop_however_few_units_there_are() {
        for others in 0..3 {
            let mut hbs = BatchScheduler::new(4, Readiness::Demotion);
            hbs.add(0, class(1));
            (1..=others).for_each(|n| hbs.add(n, class(n as u64 + 1)));
            for decision in 1..=DEMOTE_AFTER {
                assert_eq!(hbs.state(0), Some((class(1), true)), "{others} others, {decision}");
                hbs.begin();
                let looks = core::iter::from_fn(|| hbs.next_look());
                let looked = looks.filter(|candidate| candidate.slot == 0).count();
                assert_eq!(looked, 1, "{others} others, {decision}");
            }
            assert_eq!(hbs.state(0), Some((class(2), true)), "{others} others");
        }
    }

    #[test]
    fn a_unit_keeps_waiting_when_its_class_changes() {
        let mut hbs = BatchScheduler::new(4, Readiness::Pending);
        hbs.add(0, class(8));
        hbs.hold(0);
        hbs.set_class(0, class(2));
        assert_eq!(hbs.state(0), Some((class(2), false)));
        hbs.release(9, |_| true);
        assert_eq!(hbs.state(0), Some((class(2), true)));
        hbs.remove(0);
        hbs.remove(0);
        assert!(hbs.is_empty() && hbs.state(0).is_none());
    }

    /// Tests that a release checks a bounded number of waiting units. After several calls of
    /// `release`, every waiting unit was tested.
    #[test]
    fn a_release_is_bounded_and_leaves_nobody_out() {
        let mut hbs = BatchScheduler::new(10, Readiness::Pending);
        for slot in 0..10 {
            hbs.add(slot, class(1));
            hbs.hold(slot);
        }
        let mut asked = Vec::new();
        for _ in 0..4 {
            let released = hbs.release(3, |slot| {
                asked.push(slot);
                slot == 4
            });
            assert!(released <= 1);
        }
        assert_eq!(asked[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((hbs.state(4), hbs.waiting()), (Some((class(1), true)), 9));
        let turns: Vec<_> = (0..10).filter_map(|_| hbs.next_waiting()).collect();
        assert_eq!(turns[0], turns[9], "in turn");
        assert_eq!(hbs.release(9, |_| true), 9);
        assert_eq!(hbs.next_waiting(), None);
    }

    #[test]
    fn glances_reach_every_unit() {
        let mut hbs = BatchScheduler::new(8, Readiness::Pending);
        assert_eq!(hbs.next_glance(), None);
        for (slot, priority) in [(0, 1), (1, 1), (2, 4), (3, 8)] {
            hbs.add(slot, class(priority));
        }
        let seen: Vec<_> = (0..5).filter_map(|_| hbs.next_glance()).collect();
        assert_eq!(seen, [0, 1, 2, 3, 0]);
    }
}
