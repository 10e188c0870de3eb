//! VTRR, virtual-time round robin: shares an output by weight among few clients, at O(1) per
//! decision.
//!
//! # Problem
//!
//! Round robin with one long turn per client is fair over a cycle but bursty within it. Fair
//! queueing by virtual time needs a sorted queue.
//!
//! # Source
//!
//! FS-VDE §4.1; Nieh, Vaill, Zhong, "Virtual-Time Round-Robin", USENIX ATC 2001.
//!
//! # Quantities
//!
//! - S is a client's share: its weight divided by the greatest common divisor of all weights.
//! - A *turn* is a number of bytes ([`Vtrr::turn`]). A *cycle* has one turn for each unit of share
//!   of the clients with frames.
//! - TC is the time counter: the client's remaining turns in this cycle.
//! - VFT is the client's virtual finishing time, and QVT the queue's virtual time. Both are in
//!   turns per share, in units of 2^-56.
//!
//! # Approach
//!
//! Clients are in a line ordered by share, largest first. A cycle starts with TC = S, QVT = 0 and
//! VFT = 1/S. A turn of client C sets TC -= 1, VFT += 1/S and QVT += 1/sum(S). C's successor N is
//! next under either of two conditions:
//!
//! - TC_N > TC_C, because counters never grow along the line.
//! - VFT_N - (QVT + 1/sum(S)) < 1/S_N, because N is behind.
//!
//! Otherwise, or if C has no successor, the head of the line is next.
//!
//! A turn adds its bytes to a signed account. A client sends its next frame if its account covers
//! at least half of the frame, and the account may go below 0. If the account covers less, the
//! client is skipped and loses the turn. Thus a client's bytes differ from its turns by at most
//! half a frame and a turn. Surpluses and deficits of clients balance. With the rule "above 0
//! sends", thirty light clients with large segments were a megabyte ahead together.
//!
//! A client that runs empty keeps the rest of its turn. A client that runs empty in debt keeps the
//! debt. Later cycles pay the debt, and the debt is cancelled when no client has frames.
//!
//! A client that gets frames again within a cycle has VFT = max(its old VFT, QVT + 1/S). Its TC is
//! S times the remaining fraction of the cycle, rounded. TC never exceeds the value with which the
//! client ran empty in this cycle. QVT advances by the shares of the clients with frames only.
//!
//! # Example
//!
//! In a test, which is FS-VDE's own example, shares 5, 3, 1 give c1 c2 c3 c1 c2 c1 c2 c1 c1.
//!
//! # Departures
//!
//! FS-VDE computes the list of a cycle, skips idle clients and counts packets. This implementation
//! decides online, removes idle clients from the line and counts bytes.
//!
//! # Error
//!
//! The error is not constant. With one client of share 10 and ten of share 1, the first lags by up
//! to 4.5 turns. With two dozen clients of arbitrary shares, some clients lead by twenty turns.
//! Therefore turns are shorter if there are more clients, which keeps the error below a segment of
//! 64 KiB. Above [`CLIENTS_MAX`] clients, [`crate::eevdf`] replaces VTRR.
//!
//! # Cost
//!
//! A turn takes a few instructions. A segment of 64 KiB needs 16 to 43 turns. A join sorts the line
//! of at most 32 clients.

use penstock_units::Weight;

use crate::discipline::{Discipline, QUANTUM};

/// Maximum number of clients. Beyond this number the error outweighs the speed.
pub const CLIENTS_MAX: usize = 32;

/// The shortest turn in bytes: a frame of one MTU.
const TURN_MIN: u32 = 1_536;
/// Up to this number of clients, a turn has [`QUANTUM`] bytes.
const CLIENTS_FEW: u32 = 8;

/// One turn per share, the unit of virtual time.
const ONE: u64 = 1 << 56;
/// Virtual times are equal if they differ by less than this. The bound exceeds the accumulated
/// rounding error of a cycle (320,000 turns, one unit each). It is below the smallest true
/// difference, 2^56 / (10,000 × 320,000), or 22 million.
const EQUAL: u64 = 1 << 20;
const ABSENT: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Client {
    slot: usize,
    weight: Weight,
    has_frames: bool,
    share: u64,
    /// 1/S in units of virtual time.
    step: u64,
    /// VFT of the client.
    finish: u64,
    /// TC of the client.
    turns: u64,
    /// Bytes that the client may still send. Negative if the client is in debt.
    account: i64,
    /// Length of the client's next frame in bytes.
    head: u32,
    /// The cycle in which the client ran empty. The next field is the busy period.
    cycle: u64,
    period: u64,
}

impl Client {
    /// Whether the account covers at least half of the next frame.
    const fn may_send(&self) -> bool {
        self.account > 0 && self.account * 2 >= self.head as i64
    }
}

/// The state of the VTRR discipline.
#[derive(Clone, Debug)]
pub struct Vtrr {
    /// All clients by share, the largest first.
    line: Vec<Client>,
    /// Index into the line by slot.
    place: Box<[u8]>,
    /// Bytes of a turn.
    turn: u32,
    /// Bitmap of the clients with frames. The next field is the bitmap of the clients with
    /// remaining turns. Bit 0 is the head of the line.
    runnable: u32,
    funded: u32,
    /// Index of the client that has its turn.
    current: Option<usize>,
    /// Sum of the shares of the clients with frames. The next field is the sum of their remaining
    /// turns.
    shares: u64,
    left: u64,
    /// QVT of the output.
    time: u64,
    /// 1/sum(S). 0 if it must be recomputed.
    step: u64,
    /// Number of turns since the last cycle in which a single client had frames.
    alone: u64,
    cycle: u64,
    period: u64,
}

/// Bitmap of all indices from `from` on.
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
    /// A discipline for slots below `slots`, with at most [`CLIENTS_MAX`] clients at a time.
    ///
    /// # Panics
    /// [`Discipline::join`] panics if there are [`CLIENTS_MAX`] clients already.
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

    /// Number of clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Bytes of a turn. More clients make turns shorter.
    #[must_use]
    pub const fn turn(&self) -> u32 {
        self.turn
    }

    /// Whether there are no clients.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn place_of(&self, slot: usize) -> Option<usize> {
        self.place.get(slot).filter(|place| **place != ABSENT).map(|place| usize::from(*place))
    }

    /// Sorts the line after its members or weights changed. A new cycle begins; accounts stay.
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

    /// Picks the client of the next turn.
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

    /// Gives the client a turn, unless its account suffices for the next frame.
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

    /// Gives the only client with frames as many turns as its next frame needs.
    fn grant_alone(&mut self, place: usize) {
        let client = &mut self.line[place];
        if client.may_send() {
            return;
        }
        let short = (i64::from(client.head) / 2 - client.account).max(0).unsigned_abs();
        let turns = short / u64::from(self.turn) + 1;
        // The account gets the missing bytes, plus at most one turn.
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
        // The client's turns are proportional to the remaining turns of the others.
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
        // Bytes saved up for a long frame are lost.
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

    /// The clients of the next `n` turns if all frames have exactly the length of a turn.
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
    fn shares_5_3_1_repeat_the_published_schedule() {
        for weights in [[5, 3, 1], [5_000, 3_000, 1_000]] {
            let mut vtrr = line(&weights);
            for _ in 0..4 {
                assert_eq!(turns(&mut vtrr, 9), [0, 1, 2, 0, 1, 0, 1, 0, 0]);
            }
        }
        assert_eq!(turns(&mut line(&[3, 2, 1]), 6), [0, 1, 2, 0, 1, 0]);
    }

    #[test]
    fn a_client_that_joins_gets_its_part_of_the_remaining_cycle() {
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
        // Client 0 alone began a cycle with 4 turns. Client 1 joined at once and has all of its 5
        // turns.
        let first = turns(&mut vtrr, 5);
        vtrr.backlogged(2, QUANTUM);
        // 4 of 9 turns remain. Client 2 gets 4 × 4/9 turns, rounded to 2.
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
    fn turns_pay_for_a_large_segment_and_an_idle_output_forgets_debt() {
        let mut vtrr = line(&[1, 1]);
        assert_eq!(vtrr.pick(), Some(0));
        vtrr.charge(0, 16 * QUANTUM, QUANTUM);
        // Client 0 owes 15 turns.
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
    fn a_client_that_left_is_not_picked_and_others_stay() {
        let mut vtrr = line(&[3, 2, 1]);
        vtrr.leave(1);
        vtrr.leave(1);
        assert_eq!(turns(&mut vtrr, 8), [0, 2, 0, 0, 0, 2, 0, 0]);
        vtrr.drained(2);
        assert_eq!(turns(&mut vtrr, 3), [0, 0, 0]);
        assert_eq!(vtrr.len(), 2);
    }
}
