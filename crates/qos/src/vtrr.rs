//! VTRR (virtual-time round robin) divides an output by weight among few clients, in O(1) per
//! decision.
//!
//! # Problem
//!
//! If each client has one long turn per cycle, round robin is fair over a cycle but bursty within a
//! cycle. Fair queueing by virtual time needs a sorted queue, which costs more per decision.
//!
//! # Source
//!
//! The sources are FS-VDE §4.1, and Nieh, Vaill, Zhong, "Virtual-Time Round-Robin", USENIX ATC
//! 2001.
//!
//! # Quantities
//!
//! - The share S of a client is its weight divided by the greatest common divisor of all weights.
//! - A *turn* is a number of bytes that a client may send ([`Vtrr::turn`]). In a *cycle*, each
//!   client with frames has as many turns as its share S.
//! - TC is the time counter of a client: the number of its remaining turns in this cycle.
//! - VFT is the client's virtual finishing time, and QVT is the queue's virtual time. The virtual
//!   times VFT and QVT are numbers of turns divided by shares, in units of 2^-56.
//!
//! # Approach
//!
//! All clients form a *line*, with the largest share first. A cycle starts with TC = S remaining
//! turns and the finishing time VFT = 1/S for each client, and with the queue's time QVT = 0. A
//! turn of a client subtracts 1 from its counter TC, adds 1/S to its virtual time VFT, and adds
//! 1/sum(S) to the queue's time QVT. After a turn of client C, the next client N in the line has a
//! turn if one of two conditions holds:
//!
//! - Client N has more remaining turns in the cycle than client C (TC_N > TC_C). VTRR's counters TC
//!   must not increase along the line of clients.
//! - Client N is behind its share in virtual time: VFT_N - (QVT + 1/sum(S)) < 1/S_N.
//!
//! If client N meets neither condition, or if client C is the last in the line, the first client in
//! the line has the next turn.
//!
//! Each turn adds the length of a turn ([`Vtrr::turn`]) to the client's account. If the account has
//! at least half of the next frame's bytes, the client sends the frame, and the account may become
//! negative. If the account has less than half of the next frame's bytes, the client is skipped
//! until its next turn. The bytes that a client sent differ from the bytes of its turns by at most
//! half a frame plus one turn. If clients could send whenever their account is above 0, thirty
//! clients with small weights and large segments could get ahead by a megabyte.
//!
//! A client without frames keeps the unused bytes of its last turn, or its debt. A client's debt
//! becomes smaller in later cycles. When no client has frames, the debts of all clients are
//! cancelled.
//!
//! If a client joins or leaves, or if its weight changes, another cycle begins, because the shares
//! may change. Before the other cycle begins, each client's account gets the bytes by which the
//! client is behind its share in the present cycle. The account loses the bytes by which the client
//! is ahead. The change thus moves no bytes between clients. The client behind the one that had the
//! last turn has the next turn, so that frequent changes of a weight delay no client.
//!
//! If an idle client gets frames within a cycle, its virtual finishing time VFT becomes max(old
//! VFT, QVT + 1/S). When an idle client gets frames, its number of remaining turns TC becomes S
//! times the remaining fraction of the cycle, rounded. If an idle client already had frames in the
//! current cycle, its number of remaining turns TC does not increase. The value sum(S) is the sum
//! of the shares of all clients with frames.
//!
//! # Example
//!
//! A test covers the example of the FS-VDE paper. In the example of FS-VDE, clients c1, c2 and c3
//! have shares of 5, 3 and 1. In the example of FS-VDE, the clients have their turns in the order
//! c1 c2 c3 c1 c2 c1 c2 c1 c1.
//!
//! # Departures
//!
//! FS-VDE computes the list of a cycle's turns in advance, skips idle clients and counts packets.
//! Penstock makes each decision when a frame can be sent, ignores idle clients and counts bytes.
//!
//! # Error
//!
//! A client's error is the difference between the number of its turns and its share of all turns.
//! The largest error of a client in VTRR grows with the number of clients:
//!
//! - With one client of share 10 and ten clients of share 1, the client of share 10 is behind by up
//!   to 4.5 turns.
//! - With 24 clients of arbitrary shares, VTRR lets some clients get ahead of their shares by
//!   twenty turns.
//!
//! VTRR makes turns shorter if there are more clients, so that a client's error stays below a
//! segment of 64 KiB. Above [`CLIENTS_MAX`] clients, [`crate::eevdf`] replaces VTRR.
//!
//! # Cost
//!
//! In VTRR, a turn costs the worker a few instructions. A segment of 64 KiB needs 16 to 43 turns.
//! While all clients are in debt for more than a cycle, VTRR skips whole cycles at once, which
//! changes no departure. One decision suffices for all frames that a client's account permits.
//! While only one client has frames, one decision suffices for
//! [`crate::discipline::ALONE_BYTES`] bytes.
//! When a client joins or leaves, or when its weight changes, VTRR sorts the line of at most 32
//! clients. A client that joins again with the same weight costs one comparison.

use penstock_units::Weight;

use crate::discipline::{Allowance, Discipline, QUANTUM};

/// Maximum number of clients that VTRR supports. With more clients in VTRR, the bytes of a client
/// could differ too much from its share.
pub const CLIENTS_MAX: usize = 32;

/// Shortest turn in bytes, which is a frame of one MTU.
const TURN_MIN: u32 = 1_536;
/// Maximum number of clients with which a turn has [`QUANTUM`] bytes.
const CLIENTS_FEW: u32 = 8;

/// Increase of a client's virtual time in one turn if its share is 1.
const ONE: u64 = 1 << 56;
/// Two virtual times count as equal if they differ by less than this number of units. The value of
/// `EQUAL` is above the largest rounding error of virtual times in a cycle: 320,000 units, one per
/// turn. The value of `EQUAL` is below the smallest difference between unequal virtual times: 2^56
/// / (10,000 × 320,000), or 22 million units.
const EQUAL: u64 = 1 << 20;
const ABSENT: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Client {
    slot: usize,
    weight: Weight,
    has_frames: bool,
    share: u64,
    /// Increase of VFT per turn: 1/S in units of virtual time, where S is the client's share.
    step: u64,
    /// Virtual finishing time (VFT) of the client.
    finish: u64,
    /// Time counter (TC): number of the client's remaining turns in this cycle.
    turns: u64,
    /// Account of the client: the bytes that it may still send. A client with a negative account is
    /// in debt.
    account: i64,
    /// Length of the client's next frame in bytes.
    head: u32,
    /// Number of the cycle in which the client last had frames. The field `begun` is the value of
    /// [`Vtrr::begun`] at that time, and `period` is the number of the client's last busy period.
    cycle: u64,
    begun: u64,
    period: u64,
}

impl Client {
    /// Whether the client's account has at least half of the bytes of its next frame.
    const fn may_send(&self) -> bool {
        self.account > 0 && self.account * 2 >= self.head as i64
    }

    /// Returns the number of bytes that the account lacks until the client may send, or 0.
    fn missing(&self) -> u64 {
        let needed = i64::from(self.head.div_ceil(2).max(1));
        needed.saturating_sub(self.account).max(0).unsigned_abs()
    }
}

/// The VTRR discipline of one output.
#[derive(Clone, Debug)]
pub struct Vtrr {
    /// The *line*: all clients, with the largest share first.
    line: Vec<Client>,
    /// For each slot, the index of the slot's client in `line`.
    place: Box<[u8]>,
    turn: u32,
    /// Bitmap of the clients with frames. The field `funded` is the bitmap of the clients with
    /// remaining turns. In the bitmaps `runnable` and `funded`, bit 0 is the first client of the
    /// line.
    runnable: u32,
    funded: u32,
    /// Index in `line` of the client that has the current turn.
    current: Option<usize>,
    /// Sum of the shares of all clients with frames. The field `left` is the total number of turns
    /// that the clients with frames still have in this cycle.
    shares: u64,
    left: u64,
    /// Virtual time of the output (QVT).
    time: u64,
    /// Increase of QVT per turn: 1 divided by the sum of the shares, in units of virtual time. A
    /// value of 0 means that the increase must be recomputed.
    step: u64,
    /// Number of turns since the last cycle that one client took while no other client had frames.
    alone: u64,
    /// Number of cycles that ended because no client had a turn left. The field `begun` is the
    /// number of cycles that began. A cycle also begins when the line changes.
    cycle: u64,
    begun: u64,
    period: u64,
}

/// Returns a bitmap in which the bits `from` to 31 are set.
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
    /// Returns a discipline for client slots below `slots`, with at most [`CLIENTS_MAX`] clients at
    /// a time.
    ///
    /// # Panics
    /// The function [`Discipline::join`] panics if the discipline has [`CLIENTS_MAX`] clients
    /// already.
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
            begun: 0,
            period: 0,
        }
    }

    /// Number of clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Returns the number of bytes that a client may send in a turn.
    #[must_use]
    pub const fn turn(&self) -> u32 {
        self.turn
    }

    /// Whether the discipline has no clients.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn place_of(&self, slot: usize) -> Option<usize> {
        self.place.get(slot).filter(|place| **place != ABSENT).map(|place| usize::from(*place))
    }

    /// Moves to each account the bytes by which the client is behind its share in this cycle, or
    /// ahead of it. Afterwards, another cycle may begin, in which no client is ahead or behind.
    fn carry(&mut self) {
        if self.runnable == 0 {
            return;
        }
        let (time, turn, begun) = (i128::from(self.time), i128::from(self.turn), self.begun);
        for client in &mut self.line {
            // A client without frames in this cycle had no turn.
            let had_frames = client.has_frames || client.begun == begun;
            let own = if had_frames { client.finish.saturating_sub(client.step) } else { 0 };
            let turns = (time - i128::from(own)) * i128::from(client.share);
            let behind = i64::try_from(turns * turn / i128::from(ONE)).unwrap_or(0);
            let account = client.account.saturating_add(behind);
            // A client without frames pays its debt, but earns nothing.
            let most = if client.has_frames { i64::MAX } else { client.account.max(0) };
            client.account = account.min(most);
        }
    }

    /// Sorts `line` after a client has joined, left or changed its weight, and begins another
    /// cycle. The caller must call [`Self::carry`] before it changes the line.
    fn line_up(&mut self) {
        let current = self.current.map(|place| self.line[place].slot);
        self.line.sort_by_key(|client| core::cmp::Reverse(client.weight.get()));
        let weights = self.line.iter().map(|client| u64::from(client.weight.get()));
        let common = weights.fold(0, divisor).max(1);
        (self.runnable, self.shares) = (0, 0);
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
        self.current = current.and_then(|slot| self.place_of(slot));
        self.deal();
    }

    fn begin_cycle(&mut self) {
        self.cycle += 1;
        self.deal();
    }

    /// Gives each client with frames the turns of a whole cycle.
    fn deal(&mut self) {
        self.begun += 1;
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

    /// At the end of a cycle, skips all whole cycles after which no client with frames may send
    /// yet. Each of these clients gets its turns for the skipped cycles at once.
    fn skip_cycles(&mut self) {
        let turn = u64::from(self.turn);
        let (mut cycles, mut rest) = (u64::MAX, self.runnable);
        while rest != 0 {
            let client = &self.line[first(rest)];
            let (missing, granted) = (client.missing(), client.share * turn);
            if missing <= granted {
                return;
            }
            cycles = cycles.min((missing - 1) / granted);
            rest &= rest - 1;
        }
        let mut rest = self.runnable;
        while rest != 0 {
            let client = &mut self.line[first(rest)];
            let granted = i64::try_from(client.share * turn * cycles).unwrap_or(i64::MAX);
            client.account = client.account.saturating_add(granted);
            rest &= rest - 1;
        }
        self.cycle += cycles;
        self.begun += cycles;
    }

    /// Picks the client that has the next turn.
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

    /// Gives a client another turn if its account does not suffice for its next frame.
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

    /// If only one client has frames, gives the client at once all turns that its next frame needs.
    fn grant_alone(&mut self, place: usize) {
        let client = &mut self.line[place];
        if client.may_send() {
            return;
        }
        let short = (i64::from(client.head) / 2 - client.account).max(0).unsigned_abs();
        let turns = short / u64::from(self.turn) + 1;
        // The account gets the missing bytes, rounded up to whole turns.
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
        let place = self.place_of(slot);
        if place.is_some_and(|place| self.line[place].weight == weight) {
            return;
        }
        self.carry();
        if let Some(place) = place {
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
                begun: self.begun,
                period: self.period,
            });
        }
        self.line_up();
    }

    fn leave(&mut self, slot: usize) {
        let Some(gone) = self.place_of(slot) else { return };
        self.drained(slot);
        self.carry();
        self.line.remove(gone);
        self.place[slot] = ABSENT;
        // The client behind the one that left has the next turn.
        self.current = match self.current {
            Some(place) if place >= gone => place.checked_sub(1),
            other => other,
        };
        self.line_up();
    }

    fn backlogged(&mut self, slot: usize, head: u32) {
        let Some(place) = self.place_of(slot) else { return };
        self.line[place].head = head;
        if self.line[place].has_frames {
            return;
        }
        let alone = self.runnable == 0;
        // The client gets the same fraction of its turns as the others still have of theirs.
        let part = |share: u64, left: u64, shares: u64| (2 * share * left + shares) / (2 * shares);
        let (cycle, begun, shares, left) = (self.cycle, self.begun, self.shares, self.left);
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
            if client.begun == begun { (client.turns, client.finish) } else { (u64::MAX, 0) };
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
        (client.cycle, client.begun, client.period) = (self.cycle, self.begun, self.period);
        // Bytes beyond one turn, which were saved for a long frame, are lost.
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
            if self.funded == 0 {
                self.skip_cycles();
            }
            let next = self.choose();
            self.current = Some(next);
            self.grant(next);
        }
    }

    fn allowance(&self) -> Allowance {
        let Some(client) = self.current.and_then(|place| self.line.get(place)) else {
            return Allowance::NONE;
        };
        if self.runnable.is_power_of_two() {
            return Allowance::ALONE;
        }
        // The same rule as in [`Client::may_send`].
        let bytes = client.account.max(0).unsigned_abs();
        Allowance { bytes, overdraft: true, alone: false }
    }

    fn part(&self, slot: usize) -> (u64, u64) {
        let client = self.place_of(slot).map(|place| &self.line[place]);
        let client = client.filter(|client| client.has_frames);
        (client.map_or(0, |client| client.share), self.shares)
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
    use penstock_units::Rng;

    use super::*;

    fn line(weights: &[u64]) -> Vtrr {
        let mut vtrr = Vtrr::new(weights.len());
        for (slot, weight) in weights.iter().enumerate() {
            vtrr.join(slot, Weight::new(*weight).unwrap());
            vtrr.backlogged(slot, QUANTUM);
        }
        vtrr
    }

    /// Returns the clients of the next `n` turns, if each frame has the length of a turn.
    fn turns(vtrr: &mut Vtrr, n: usize) -> Vec<usize> {
        let mut turn = || {
            let slot = vtrr.pick().unwrap();
            vtrr.charge(slot, QUANTUM, QUANTUM);
            slot
        };
        (0..n).map(|_| turn()).collect()
    }

    /// Tests the example in FS-VDE §4.1: "the VTRR scheduler makes schedule (c1, c2, c3, c1, c2,
    /// c1, c2, c1, c1)".
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
        // Client 0 alone began a cycle with 4 turns. Client 1 got frames before the first turn and
        // has all of its 5 turns.
        let first = turns(&mut vtrr, 5);
        vtrr.backlogged(2, QUANTUM);
        // 4 of 9 turns remain. Client 2 gets 4 × 4/9 turns, rounded to 2.
        let rest = turns(&mut vtrr, 6);
        assert_eq!(rest.iter().filter(|slot| **slot == 2).count(), 2, "{first:?} {rest:?}");
        let cycle = turns(&mut vtrr, 13);
        let had = [0, 1, 2].map(|slot| cycle.iter().filter(|s| **s == slot).count());
        assert_eq!(had, [4, 5, 4]);
    }

    /// Picks like [`Vtrr::pick`], and skips no cycle.
    fn pick_turn_by_turn(vtrr: &mut Vtrr) -> usize {
        loop {
            if let Some(place) = vtrr.current
                && vtrr.runnable & bit(place) != 0
                && vtrr.line[place].may_send()
            {
                return vtrr.line[place].slot;
            }
            let next = vtrr.choose();
            vtrr.current = Some(next);
            vtrr.grant(next);
        }
    }

    #[test]
    fn skipped_cycles_change_no_departure_and_no_account() {
        for (seed, weights) in (0..).zip([&[1, 2][..], &[1; 9], &[7, 5, 3, 1], &[500, 1, 1]]) {
            let mut rng = Rng::new(seed);
            let mut skips = line(weights);
            let mut plain = skips.clone();
            for n in 0..1_000 {
                let slot = skips.pick().unwrap();
                assert_eq!(pick_turn_by_turn(&mut plain), slot);
                let mut length = || 64_u32 << rng.below(11);
                let (bytes, next) = (length(), length());
                [&mut skips, &mut plain].into_iter().for_each(|of| of.charge(slot, bytes, next));
                // From time to time, a client has no frames for a moment. Two others still have.
                if weights.len() > 2 && n % 7 == 0 {
                    [&mut skips, &mut plain].into_iter().for_each(|of| of.drained(slot));
                    assert_eq!(skips.pick(), Some(pick_turn_by_turn(&mut plain)));
                    [&mut skips, &mut plain].into_iter().for_each(|of| of.backlogged(slot, next));
                }
                assert_eq!(format!("{skips:?}"), format!("{plain:?}"), "after {n} departures");
            }
        }
    }

    #[test]
    fn cycles_in_which_all_pay_for_a_large_segment_are_skipped_at_once() {
        let mut vtrr = line(&[1, 1]);
        for _ in 0..2 {
            let slot = vtrr.pick().unwrap();
            vtrr.charge(slot, 16 * QUANTUM, 16 * QUANTUM);
        }
        let begun = vtrr.begun;
        vtrr.skip_cycles();
        // Each client is 15 turns in debt, and needs 8 more for half of the next segment.
        assert_eq!(vtrr.begun, begun + 22);
        assert_eq!(vtrr.pick(), Some(0));
        assert_eq!(vtrr.begun, begun + 23);
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
        // Client 0 has a debt of 15 turns.
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
    fn a_client_that_joins_again_with_its_weight_does_not_end_the_cycle() {
        let mut vtrr = line(&[5, 3, 1]);
        for turn in [0, 1, 2, 0, 1, 0, 1, 0, 0].repeat(4) {
            (0..3).for_each(|slot| vtrr.join(slot, Weight::new([5, 3, 1][slot]).unwrap()));
            assert_eq!(turns(&mut vtrr, 1), [turn]);
        }
    }

    /// In this test, the weight of client 2 changes in the middle of each cycle, so no cycle ends.
    #[test]
    fn a_changed_weight_leaves_the_accounts_of_the_others() {
        let mut vtrr = line(&[10, 2, 1]);
        let mut had = [0_i64; 3];
        for n in 0..1_000 {
            vtrr.join(2, Weight::new([1, 4][n % 2]).unwrap());
            turns(&mut vtrr, 3).iter().for_each(|slot| had[*slot] += 1);
            let apart = had[0] - 5 * had[1];
            assert!(apart.abs() <= 25, "after {n}: {had:?}");
        }
        // On average, client 2 gets 2.5 of 14.5 turns or a little less.
        assert!((400..600).contains(&had[2]), "{had:?}");
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
