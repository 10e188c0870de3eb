//! HBS, the hierarchical batch scheduler: whose batch is next.
//!
//! **Problem.** Ports compete for the worker's core when their batches are taken, long before any
//! egress queue could order them: with a batch each in turn, everybody waits for everybody.
//!
//! **Source.** C2QoS §IV-B, Fig. 8.
//!
//! **Quantities.** Eight classes (`Priority`, 1 first). A *unit* is what a worker polls: a queue
//! pair of a port. A *decision* is one choice of a unit to run a batch; a *look* asks a unit
//! whether frames wait.
//!
//! **Rule.** Units with tokens are *ready*, in the queue of their class; units without are
//! *waiting* until a refill gives their port tokens. A decision goes through the ready queues from
//! class 1 on and takes the first unit that has frames; within a class first in, first out: who
//! was looked at or ran goes to the end. So no class runs while one before it has tokens and work.
//!
//! What happens to units without frames is a policy. [`Readiness::Pending`], ours: a look costs no
//! more than reading a word, so each decision looks at every ready unit of a class before it goes
//! to the next. [`Readiness::Demotion`], the paper's (§IV-B.3), for units that cannot be asked: a
//! unit that sent nothing in [`DEMOTE_AFTER`] loops in a row falls by one class, and is back in its
//! own as soon as it has sent. A loop is a decision in which the unit was looked at; a decision
//! looks at a unit once.
//!
//! **Example** (a test). Units 1, 2 in class 1, unit 3 in class 3, all with frames: 1, 2, 1, 2, ...
//! until both are held for want of tokens, then 3. When a refill releases 2, 2 is next.
//!
//! **Starvation.** By tokens: a higher class runs no longer than they last. By idle units: a look
//! is all they get.
//!
//! **Departures.** None; what the paper leaves open is how many loops demote: here 3.
//!
//! **Cost.** A decision: one look at each ready unit without frames in the classes before the one
//! that runs, and O(1). A release: what it is told to look at, [`RELEASE_MOST`] after a refill.
//! Queues are lists through one array: nothing is allocated after the start.

use penstock_units::Priority;

/// Decisions in a row that looked at a unit and found nothing, after which it falls by a class.
pub const DEMOTE_AFTER: u8 = 3;

/// Units without tokens that a refill asks for: what it costs must not grow with their number. As
/// many as have a batch each in a refill interval or two, so that nobody waits longer for it.
pub const RELEASE_MOST: usize = 32;

/// How units without frames are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// A look, and on to the next.
    #[default]
    Pending,
    /// They fall through the classes (C2QoS §IV-B.3).
    Demotion,
}

impl Readiness {
    /// The name in configuration and statistics.
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
/// The queue of those without tokens, behind those of the classes.
const WAITING: u8 = 8;
/// In no queue.
const ABSENT: u8 = u8::MAX;
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    /// The decision in which it was last looked at (for demotion).
    looked_in: u32,
    /// Which queue it is in.
    queue: u8,
    /// The class it has.
    class: u8,
    /// The class it runs in: higher numbers after demotion.
    effective: u8,
    /// Decisions in a row whose look found nothing.
    empty: u8,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

/// A unit to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its slot.
    pub slot: usize,
    /// What was done for others before may be told to them now: this one is of a class above the
    /// last, or the last class has been gone round.
    pub ends_round: bool,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct BatchScheduler {
    nodes: Box<[Node]>,
    queues: [Queue; CLASSES + 1],
    readiness: Readiness,
    /// Units there.
    len: u32,
    /// Classes with a ready unit, bit 0 for class 1.
    occupied: u8,
    /// Of the decision under way: the class, and units of it still to look at.
    class: u8,
    left: u32,
    /// Number of the decision (for demotion).
    sweep: u32,
    /// Units of the last class looked at since its round began.
    round: u32,
    /// Where [`Self::next_glance`] goes on.
    glance: u32,
}

impl BatchScheduler {
    /// Room for `slots` units, none there yet.
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

    /// A unit joins, at the end of its class.
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

    /// A unit leaves.
    pub fn remove(&mut self, slot: usize) {
        if self.is_there(slot) {
            self.unlink(slot);
        }
    }

    /// A unit gets another class; it keeps its tokens' state.
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

    /// Begins a decision.
    #[inline]
    pub fn begin(&mut self) {
        // The first class before the first: `next_look` goes on from there.
        (self.class, self.left) = (ABSENT, 0);
        if self.readiness == Readiness::Demotion {
            self.sweep = self.sweep.wrapping_add(1);
        }
    }

    /// The next unit to look at in this decision; `None`: all were looked at. It goes to the end
    /// of its class: whoever asks says [`Self::ran`] or [`Self::hold`] if it did or must not run.
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
                // It fell into this class by its look in this decision.
                continue;
            }
            node.looked_in = sweep;
            // If the unit sends, the caller calls [`Self::ran`], which resets this.
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

    /// The unit ran a batch.
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

    /// The unit's port is out of tokens: it waits for [`Self::release`].
    #[inline]
    pub fn hold(&mut self, slot: usize) {
        if self.nodes.get(slot).is_some_and(|node| node.queue < WAITING) {
            self.move_to(slot, WAITING);
        }
    }

    /// After a refill: of those that wait the first `most` are looked at; those that `has_tokens`
    /// says yes to are ready again, in the order in which they were held. If more wait than were
    /// looked at, the others come first the next time. Returns how many are ready again.
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

    /// One of those that wait, another one each time.
    pub fn next_waiting(&mut self) -> Option<usize> {
        (self.waiting() > 0).then(|| self.rotate(WAITING))
    }

    /// A ready unit for a glance outside any decision, another one each time: how those behind
    /// classes that fill the core are found to have frames.
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

    /// Units there, ready or waiting.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Units that wait for tokens.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues[usize::from(WAITING)].len as usize
    }

    /// The class that a unit runs in now, and whether it is ready; `None`: it is not there.
    #[must_use]
    pub fn state(&self, slot: usize) -> Option<(Priority, bool)> {
        let node = self.nodes.get(slot).filter(|node| node.queue != ABSENT)?;
        let class = Priority::new(u64::from(node.effective) + 1).ok()?;
        Some((class, node.queue < WAITING))
    }

    fn is_there(&self, slot: usize) -> bool {
        self.nodes.get(slot).is_some_and(|node| node.queue != ABSENT)
    }

    /// Moves the head of a class, which is not empty, to its end.
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
        // A decision under way does not count on it any more.
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

/// The lowest set bit.
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

    /// Runs a decision: the first candidate with frames.
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
    fn classes_are_strict_and_those_of_one_class_take_turns() {
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
    fn a_silent_unit_falls_class_by_class_and_is_back_at_once() {
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

    /// C2QoS §IV-B.3 counts loops, and a decision is a loop: in the first one a unit that is silent
    /// keeps its class, whoever else is there.
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

    /// However many wait, a release looks at a few, and at all of them in turn.
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
    fn glances_come_to_everybody() {
        let mut hbs = BatchScheduler::new(8, Readiness::Pending);
        assert_eq!(hbs.next_glance(), None);
        for (slot, priority) in [(0, 1), (1, 1), (2, 4), (3, 8)] {
            hbs.add(slot, class(priority));
        }
        let seen: Vec<_> = (0..5).filter_map(|_| hbs.next_glance()).collect();
        assert_eq!(seen, [0, 1, 2, 3, 0]);
    }
}
