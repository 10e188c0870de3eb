//! VTRR, virtual-time round robin: an output shared by weight among few clients, O(1) a decision.
//!
//! **Problem.** Round robin with one long turn each is fair once a cycle and bursty within it; fair
//! queueing by virtual time needs a sorted queue. **Source.** FS-VDE §4.1; Nieh, Vaill, Zhong,
//! "Virtual-Time Round-Robin", USENIX ATC 2001.
//!
//! **Quantities.** A client's share S: its weight over the common divisor of all weights. A *turn*
//! is so many bytes ([`Vtrr::turn`]); a *cycle* is one turn for each unit of share of those with
//! frames. Time counter TC: turns left in this cycle. VFT: the client's virtual finishing time,
//! QVT: the queue's virtual time, both in turns per share, as numbers of 2^56.
//!
//! **Rule.** Clients stand by share, the largest first. At the start of a cycle TC = S, QVT = 0,
//! VFT = 1/S. A turn of C: TC -= 1, VFT += 1/S, QVT += 1/sum(S). After C comes its successor N if
//! TC_N > TC_C (counters never grow along the line), or if VFT_N - (QVT + 1/sum(S)) < 1/S_N (it is
//! behind); else, or if C has none, the head of the line.
//!
//! **Bytes.** A turn adds its bytes to a signed account; who has at least half of its next frame
//! there sends it, and may end below 0; who has less is passed over, at the price of its turn. So
//! what a client sent differs from its turns by half a frame to either side, and a turn, whatever
//! the sizes, and what many light clients have sent too much is made up by what others have sent
//! too little (with "above 0 sends" thirty of them, with large segments, were a megabyte ahead
//! together). What is left of a turn when the queue runs empty is kept; a debt is kept too and paid
//! by the cycles that pass, and forgotten once nobody has frames.
//!
//! **Coming and going within a cycle.** Who gets frames again has VFT = max(its old, QVT + 1/S) and
//! TC = S x (turns left)/(turns of a cycle), rounded, no more than it left with in this cycle. QVT
//! advances by the shares of those with frames alone.
//!
//! **Example** (a test, and FS-VDE's). Shares 5, 3, 1: c1 c2 c3 c1 c2 c1 c2 c1 c1.
//!
//! **Departures.** FS-VDE makes the list of a cycle and skips who is idle, and counts packets. This
//! runs online, idle clients are out of the line, and counts bytes. **Error.** Not constant: with
//! one client of share 10 and ten of 1 the first is 4.5 turns behind at the worst, with two dozen
//! of any shares some are twenty ahead. So turns are shorter where there are more clients, which
//! keeps it below a segment of 64 KiB; and beyond [`CLIENTS_MAX`] there is [`crate::eevdf`].
//! **Cost.** A turn: a few instructions; a segment of 64 KiB is paid in 16 to 43 turns. Joining:
//! the line of at most 32 is sorted again.

use penstock_units::Weight;

use crate::discipline::{Discipline, QUANTUM};

/// Most clients; beyond it the error would be more than is worth the speed.
pub const CLIENTS_MAX: usize = 32;

/// The shortest turn: one MTU's frame.
const TURN_MIN: u32 = 1_536;
/// Clients up to whom a turn has [`QUANTUM`].
const CLIENTS_FEW: u32 = 8;

/// One turn per share.
const ONE: u64 = 1 << 56;
/// Two virtual times that differ by less are equal: more than what rounding down adds up to in a
/// cycle (a turn's part of 2^56 for each of 320,000 turns), less than the least difference that two
/// can have (2^56 / (10,000 x 320,000), 22 million).
const EQUAL: u64 = 1 << 20;
const ABSENT: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Client {
    slot: usize,
    weight: Weight,
    has_frames: bool,
    share: u64,
    /// 1 / share.
    step: u64,
    /// VFT.
    finish: u64,
    /// TC.
    turns: u64,
    /// Bytes that it may still send, or owes.
    account: i64,
    /// Bytes of its next frame.
    head: u32,
    /// The cycle and the busy period in which it ran empty.
    cycle: u64,
    period: u64,
}

impl Client {
    /// Whether it may send its next frame.
    const fn may_send(&self) -> bool {
        self.account > 0 && self.account * 2 >= self.head as i64
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Vtrr {
    /// By share, the largest first; as many as there are clients.
    line: Vec<Client>,
    /// By slot: the place in the line.
    place: Box<[u8]>,
    /// Bytes of a turn.
    turn: u32,
    /// Places with frames, and those of them that have turns left; bit 0 is the head.
    runnable: u32,
    funded: u32,
    /// The place whose turn it is.
    current: Option<usize>,
    /// Of those with frames: shares in all, turns left in all.
    shares: u64,
    left: u64,
    /// QVT.
    time: u64,
    /// 1 / shares; 0 when it is to be computed again.
    step: u64,
    /// Turns that a client alone had since its last cycle.
    alone: u64,
    cycle: u64,
    period: u64,
}

/// Places from `from` on.
const fn from(from: usize) -> u32 {
    if from >= 32 { 0 } else { u32::MAX << from }
}

const fn bit(place: usize) -> u32 {
    1 << place
}

const fn first(of: u32) -> usize {
    of.trailing_zeros() as usize
}

const fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

impl Vtrr {
    /// Room for clients in slots below `slots`, of which [`CLIENTS_MAX`] at a time.
    ///
    /// # Panics
    /// [`Discipline::join`] does when there are as many already.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            line: Vec::with_capacity(CLIENTS_MAX),
            place: vec![ABSENT; slots].into_boxed_slice(),
            turn: QUANTUM,
            runnable: 0,
            funded: 0,
            current: None,
            shares: 0,
            left: 0,
            time: 0,
            step: 0,
            alone: 0,
            cycle: 0,
            period: 0,
        }
    }

    /// Clients there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Bytes of a turn: the fewer, the more clients there are.
    #[must_use]
    pub const fn turn(&self) -> u32 {
        self.turn
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn place_of(&self, slot: usize) -> Option<usize> {
        self.place.get(slot).filter(|place| **place != ABSENT).map(|place| usize::from(*place))
    }

    /// The line in its order, after who is in it or a weight has changed. A cycle begins; accounts
    /// stay.
    fn line_up(&mut self) {
        self.line.sort_by_key(|client| core::cmp::Reverse(client.weight.get()));
        let weights = self.line.iter().map(|client| u64::from(client.weight.get()));
        let common = weights.fold(0, divisor).max(1);
        (self.runnable, self.shares, self.current) = (0, 0, None);
        let clients = u32::try_from(self.line.len()).unwrap_or(u32::MAX);
        self.turn = (QUANTUM * CLIENTS_FEW / clients.max(1)).clamp(TURN_MIN, QUANTUM);
        for (place, client) in self.line.iter_mut().enumerate() {
            client.share = u64::from(client.weight.get()) / common;
            client.step = ONE / client.share;
            #[expect(clippy::cast_possible_truncation, reason = "below CLIENTS_MAX")]
            let at = place as u8;
            self.place[client.slot] = at;
            if client.has_frames {
                self.runnable |= bit(place);
                self.shares += client.share;
            }
        }
        self.step = 0;
        self.begin_cycle();
    }

    fn begin_cycle(&mut self) {
        self.cycle += 1;
        (self.time, self.left, self.funded) = (0, self.shares, self.runnable);
        let mut rest = self.runnable;
        while rest != 0 {
            let client = &mut self.line[first(rest)];
            (client.turns, client.finish) = (client.share, client.step);
            rest &= rest - 1;
        }
    }

    fn step(&mut self) -> u64 {
        if self.step == 0 {
            self.step = ONE / self.shares.max(1);
        }
        self.step
    }

    /// Whose turn comes after this one.
    fn choose(&mut self) -> usize {
        if self.funded == 0 {
            self.begin_cycle();
            return first(self.funded);
        }
        let head = first(self.funded);
        let Some(current) = self.current else { return head };
        let behind = self.funded & from(current + 1);
        if behind == 0 {
            return head;
        }
        let successor = first(behind);
        let next_time = self.time + self.step();
        let (this, next) = (&self.line[current], &self.line[successor]);
        let began = next.finish - next.step;
        if next.turns > this.turns || began + EQUAL < next_time { successor } else { head }
    }

    /// A turn for the client at `place`, unless what it still has is enough.
    fn grant(&mut self, place: usize) {
        let (step, turn) = (self.step(), self.turn);
        let client = &mut self.line[place];
        if client.may_send() {
            return;
        }
        client.account += i64::from(turn);
        client.turns -= 1;
        client.finish += client.step;
        self.left -= 1;
        self.time += step;
        if client.turns == 0 {
            self.funded &= !bit(place);
        }
    }

    /// As many turns as it takes for the only client with frames: nobody else wants them.
    fn grant_alone(&mut self, place: usize) {
        let client = &mut self.line[place];
        if client.may_send() {
            return;
        }
        let short = (i64::from(client.head) / 2 - client.account).max(0).unsigned_abs();
        let turns = short / u64::from(self.turn) + 1;
        // No more than what is short and a turn.
        client.account += i64::try_from(turns).unwrap_or(0) * i64::from(self.turn);
        self.alone += turns;
        if self.alone >= client.share {
            self.cycle += self.alone / client.share - 1;
            self.alone %= client.share;
            self.begin_cycle();
        }
    }
}

impl Discipline for Vtrr {
    fn join(&mut self, slot: usize, weight: Weight) {
        if let Some(place) = self.place_of(slot) {
            self.line[place].weight = weight;
        } else {
            assert!(self.line.len() < CLIENTS_MAX, "more than {CLIENTS_MAX} clients");
            self.line.push(Client {
                slot,
                weight,
                has_frames: false,
                share: 1,
                step: ONE,
                finish: 0,
                turns: 0,
                account: 0,
                head: 0,
                cycle: self.cycle,
                period: self.period,
            });
        }
        self.line_up();
    }

    fn leave(&mut self, slot: usize) {
        let Some(gone) = self.place_of(slot) else { return };
        self.drained(slot);
        self.line.remove(gone);
        self.place[slot] = ABSENT;
        self.line_up();
    }

    fn backlogged(&mut self, slot: usize, head: u32) {
        let Some(place) = self.place_of(slot) else { return };
        self.line[place].head = head;
        if self.line[place].has_frames {
            return;
        }
        let alone = self.runnable == 0;
        // In the proportion in which those who run have turns left.
        let part = |share: u64, left: u64, shares: u64| (2 * share * left + shares) / (2 * shares);
        let (cycle, shares, left) = (self.cycle, self.shares, self.left);
        let client = &mut self.line[place];
        client.has_frames = true;
        if client.period != self.period {
            client.account = client.account.max(0);
        } else if client.account < 0 {
            let turns = (cycle - client.cycle).saturating_mul(client.share);
            let due = turns.saturating_mul(u64::from(self.turn));
            let due = i64::try_from(due).unwrap_or(i64::MAX);
            client.account = client.account.saturating_add(due).min(0);
        }
        self.runnable |= bit(place);
        self.shares += client.share;
        self.step = 0;
        if alone {
            self.begin_cycle();
            return;
        }
        let turns = part(client.share, left, shares);
        let (had, old) =
            if client.cycle == cycle { (client.turns, client.finish) } else { (u64::MAX, 0) };
        client.turns = turns.min(had);
        client.finish = old.max(self.time + client.step);
        self.left += client.turns;
        if client.turns > 0 {
            self.funded |= bit(place);
        }
    }

    fn drained(&mut self, slot: usize) {
        let Some(place) = self.place_of(slot) else { return };
        let client = &mut self.line[place];
        if !client.has_frames {
            return;
        }
        client.has_frames = false;
        self.runnable &= !bit(place);
        self.funded &= !bit(place);
        (client.cycle, client.period) = (self.cycle, self.period);
        // What it had gathered for a long frame was for that.
        client.account = client.account.min(i64::from(self.turn));
        self.shares -= client.share;
        self.left -= client.turns;
        (self.step, self.alone) = (0, 0);
        if self.runnable == 0 {
            self.period += 1;
            self.current = None;
        }
    }

    fn pick(&mut self) -> Option<usize> {
        if self.runnable == 0 {
            return None;
        }
        if self.runnable.is_power_of_two() {
            let place = first(self.runnable);
            self.grant_alone(place);
            self.current = Some(place);
            return Some(self.line[place].slot);
        }
        loop {
            if let Some(place) = self.current
                && self.runnable & bit(place) != 0
                && self.line[place].may_send()
            {
                return Some(self.line[place].slot);
            }
            let next = self.choose();
            self.current = Some(next);
            self.grant(next);
        }
    }

    fn charge(&mut self, slot: usize, bytes: u32, next: u32) {
        if let Some(place) = self.place_of(slot) {
            let client = &mut self.line[place];
            client.account -= i64::from(bytes);
            client.head = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(weights: &[u64]) -> Vtrr {
        let mut vtrr = Vtrr::new(weights.len());
        for (slot, weight) in weights.iter().enumerate() {
            vtrr.join(slot, Weight::new(*weight).unwrap());
            vtrr.backlogged(slot, QUANTUM);
        }
        vtrr
    }

    /// Who has the next `n` turns, with frames of exactly one.
    fn turns(vtrr: &mut Vtrr, n: usize) -> Vec<usize> {
        let mut turn = || {
            let slot = vtrr.pick().unwrap();
            vtrr.charge(slot, QUANTUM, QUANTUM);
            slot
        };
        (0..n).map(|_| turn()).collect()
    }

    /// FS-VDE §4.1: "the VTRR scheduler makes schedule (c1, c2, c3, c1, c2, c1, c2, c1, c1)".
    #[test]
    fn shares_5_3_1_give_the_printed_schedule_again_and_again() {
        for weights in [[5, 3, 1], [5_000, 3_000, 1_000]] {
            let mut vtrr = line(&weights);
            for _ in 0..4 {
                assert_eq!(turns(&mut vtrr, 9), [0, 1, 2, 0, 1, 0, 1, 0, 0]);
            }
        }
        assert_eq!(turns(&mut line(&[3, 2, 1]), 6), [0, 1, 2, 0, 1, 0]);
    }

    #[test]
    fn a_client_that_joins_has_its_part_of_what_is_left_of_the_cycle() {
        let mut vtrr = line(&[4, 4]);
        vtrr.join(0, Weight::new(4).unwrap());
        let mut vtrr = {
            let mut longer = Vtrr::new(3);
            for (slot, weight) in [(0, 4), (1, 5), (2, 4)] {
                longer.join(slot, Weight::new(weight).unwrap());
            }
            vtrr = longer;
            vtrr.backlogged(0, QUANTUM);
            vtrr.backlogged(1, QUANTUM);
            vtrr
        };
        // 0 alone began a cycle with 4 turns; 1 came at once, so with all of its 5.
        let first = turns(&mut vtrr, 5);
        vtrr.backlogged(2, QUANTUM);
        // 4 of 9 turns are left: 2 is due 4 x 4/9, rounded 2.
        let rest = turns(&mut vtrr, 6);
        assert_eq!(rest.iter().filter(|slot| **slot == 2).count(), 2, "{first:?} {rest:?}");
        let cycle = turns(&mut vtrr, 13);
        let had = [0, 1, 2].map(|slot| cycle.iter().filter(|s| **s == slot).count());
        assert_eq!(had, [4, 5, 4]);
    }

    #[test]
    fn coming_and_going_within_a_cycle_gains_no_turn() {
        let mut vtrr = line(&[1, 1, 1]);
        assert_eq!(turns(&mut vtrr, 1), [0]);
        vtrr.drained(0);
        vtrr.backlogged(0, QUANTUM);
        assert_eq!(turns(&mut vtrr, 5), [1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_large_segment_is_paid_by_turns_and_a_debt_is_forgotten_when_all_is_idle() {
        let mut vtrr = line(&[1, 1]);
        assert_eq!(vtrr.pick(), Some(0));
        vtrr.charge(0, 16 * QUANTUM, QUANTUM);
        // 0 owes 15 turns.
        let after = turns(&mut vtrr, 17);
        assert_eq!(after.iter().filter(|slot| **slot == 1).count(), 16, "{after:?}");
        vtrr.drained(0);
        vtrr.drained(1);
        assert_eq!(vtrr.pick(), None);
        vtrr.backlogged(0, QUANTUM);
        vtrr.backlogged(1, QUANTUM);
        assert_eq!(turns(&mut vtrr, 4), [0, 1, 0, 1]);
    }

    #[test]
    fn who_leaves_is_not_picked_and_takes_nobody_along() {
        let mut vtrr = line(&[3, 2, 1]);
        vtrr.leave(1);
        vtrr.leave(1);
        assert_eq!(turns(&mut vtrr, 8), [0, 2, 0, 0, 0, 2, 0, 0]);
        vtrr.drained(2);
        assert_eq!(turns(&mut vtrr, 3), [0, 0, 0]);
        assert_eq!(vtrr.len(), 2);
    }
}
