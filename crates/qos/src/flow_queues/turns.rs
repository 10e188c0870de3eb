//! Turns of flows: new flows first, then old flows by the round of their next turn.
//!
//! # Approach
//!
//! New flows form one list. Old flows form a list for each of the next [`ROUNDS`] rounds, as in a
//! calendar. A bitmap tells which rounds have flows, so rounds without flows are skipped at once.
//! A flow is in at most one list.

const NIL: u32 = u32::MAX;
/// Number of rounds for which flows can have a turn, including the present round.
const ROUNDS: u32 = u64::BITS;
/// Largest number of rounds by which a turn can be ahead of the present round.
pub(super) const ROUNDS_AHEAD: u32 = ROUNDS - 1;

/// Flows in order, linked through [`Turns::next`].
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: NIL, last: NIL };

    const fn is_empty(&self) -> bool {
        self.first == NIL
    }

    fn push(&mut self, next: &mut [u32], flow: u32) {
        if let Some(last) = next.get_mut(self.last as usize) {
            *last = flow;
        } else {
            self.first = flow;
        }
        if let Some(own) = next.get_mut(flow as usize) {
            *own = NIL;
        }
        self.last = flow;
    }

    fn pop(&mut self, next: &[u32]) {
        self.first = next.get(self.first as usize).copied().unwrap_or(NIL);
        if self.is_empty() {
            self.last = NIL;
        }
    }
}

/// The flow that has its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub flow: u32,
    pub is_new: bool,
}

/// Order of the flows that have turns.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Successor of each flow in its list.
    next: Box<[u32]>,
    new: List,
    /// Old flows of each round, indexed by the round modulo [`ROUNDS`].
    old: [List; ROUNDS as usize],
    /// Bitmap of the entries of `old` that have flows.
    occupied: u64,
    /// Present round, modulo [`ROUNDS`].
    round: u32,
}

impl Turns {
    pub fn new(flows: usize) -> Self {
        let next = vec![NIL; flows].into_boxed_slice();
        Self { next, new: List::EMPTY, old: [List::EMPTY; ROUNDS as usize], occupied: 0, round: 0 }
    }

    /// Adds a flow behind the other new flows. The flow must have no turn.
    pub fn enter(&mut self, flow: u32) {
        self.new.push(&mut self.next, flow);
    }

    /// Gives an old flow a turn `rounds` rounds after the present one, from 1 to [`ROUNDS_AHEAD`].
    /// The flow must have no turn.
    pub fn follow(&mut self, flow: u32, rounds: u32) {
        let round = (self.round + rounds) % ROUNDS;
        self.old[round as usize].push(&mut self.next, flow);
        self.occupied |= 1_u64 << round;
    }

    /// Whether an old flow has a turn.
    pub const fn has_old(&self) -> bool {
        self.occupied != 0
    }

    /// Returns the flow that has its turn. If no flow of the present round is left, the next round
    /// begins.
    pub fn first(&mut self) -> Option<Turn> {
        if !self.new.is_empty() {
            return Some(Turn { flow: self.new.first, is_new: true });
        }
        if self.occupied == 0 {
            return None;
        }
        let ahead = self.occupied.rotate_right(self.round).trailing_zeros();
        self.round = (self.round + ahead) % ROUNDS;
        Some(Turn { flow: self.old[self.round as usize].first, is_new: false })
    }

    /// Ends the turn of the flow that [`Self::first`] returned last.
    pub fn leave(&mut self) {
        if !self.new.is_empty() {
            self.new.pop(&self.next);
            return;
        }
        let list = &mut self.old[self.round as usize];
        list.pop(&self.next);
        if list.is_empty() {
            self.occupied &= !(1_u64 << self.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends the present turn, and returns its flow.
    fn end(turns: &mut Turns) -> Option<u32> {
        let turn = turns.first()?;
        turns.leave();
        Some(turn.flow)
    }

    #[test]
    fn old_flows_have_their_turns_by_round_and_then_in_order() {
        let mut turns = Turns::new(8);
        for (flow, rounds) in [(0, 2), (1, ROUNDS_AHEAD), (2, 1), (3, 2), (4, 1)] {
            turns.follow(flow, rounds);
        }
        turns.enter(5);
        assert_eq!(end(&mut turns), Some(5), "a new flow is first");
        assert_eq!([0; 2].map(|_| end(&mut turns)), [Some(2), Some(4)]);
        // One round has passed.
        turns.follow(2, ROUNDS_AHEAD);
        turns.follow(4, 1);
        turns.enter(5);
        assert_eq!([0; 4].map(|_| end(&mut turns)), [Some(5), Some(0), Some(3), Some(4)]);
        assert_eq!([0; 3].map(|_| end(&mut turns)), [Some(1), Some(2), None]);
        assert!(!turns.has_old());
    }
}
