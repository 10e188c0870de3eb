//! EEVDF (earliest eligible virtual deadline first) divides an output by weight among many clients.
//!
//! # Problem
//!
//! The *error* of a discipline is the difference between the bytes that a client sent and its share
//! by weight. In VTRR ([`crate::vtrr`]), the error grows with the number of clients. More than 32
//! clients need a discipline whose error does not depend on the number of clients.
//!
//! # Source
//!
//! The discipline is from Stoica, Abdel-Wahab, "Earliest Eligible Virtual Deadline First",
//! TR-95-22, Old Dominion University, 1995. WF2Q+ (Bennett, Zhang, 1997) chooses packets by the
//! same rule as EEVDF.
//!
//! Other disciplines with a constant error have disadvantages:
//!
//! - GR3 (Group Ratio Round-Robin) has a constant error only if the ratios of weights are bounded.
//! - In DRR+, tenants would have to declare which clients are latency-critical.
//! - WF2Q+ makes a decision for each packet. EEVDF makes a decision for each request, which may
//!   contain several small frames.
//!
//! # Quantities
//!
//! - The virtual time v of a client is the number of bytes that the client sent, divided by its
//!   weight.
//! - The output's virtual time V is the weighted mean of v over the clients with frames. If a
//!   client's virtual time v is above V, the client is ahead of its share; if v is below V, it is
//!   behind. A client is ahead of its share by (v - V) × weight bytes. Summed over all clients with
//!   frames, the bytes ahead of and behind the shares cancel out exactly.
//! - A *request* is [`QUANTUM`] bytes, or one frame if the frame is longer.
//!
//! Virtual times are multiples of 2^-32 byte per weight. The remainder of the division that
//! computes the virtual time V is added to the next division.
//!
//! # Approach
//!
//! A client that is not ahead of its share (v <= V) is *eligible*. The virtual deadline of a
//! request is d = v + request/weight. The eligible client with the earliest deadline sends until
//! its next frame does not fit into the request. When a request ends, the client starts another
//! request.
//!
//! A client's request must be at least as long as the client's first frame. If a request were
//! shorter than its first frame, the client's deadline would be too early, and the frame would
//! delay other clients. With shorter requests, a client with half of the link's weight was 400 KB
//! behind its share in a test.
//!
//! A client's *account* is the number of bytes by which it is ahead of its share or behind it. A
//! client without frames keeps its account, but is at most 64 KiB behind its share. A client
//! without frames does not collect a share that it could use later. The accounts of all clients are
//! reset when no client has frames.
//!
//! A client keeps its account because it may always have few and short frames. The queue of a
//! client with few, short frames is empty at the end of each request. If idle clients lost their
//! accounts, a client with few, short frames would get 7 % of its share while 40 clients send large
//! segments. When a client leaves that is ahead of or behind its share, V changes so that all other
//! accounts stay exact.
//!
//! # Example
//!
//! In an example, three clients have weights 1, 1 and 2, and each frame is as long as a request. Of
//! every 8 frames in the example, the clients with weights 1, 1 and 2 send 2, 2 and 4. In the
//! example, the client with weight 2 (half of the output) is at most two frames ahead of its share.
//!
//! # Cost
//!
//! A request takes O(log n) for n clients, because two heaps contain the clients. One decision
//! suffices for all frames that fit into a request. While only one client has frames, one decision
//! suffices for [`crate::discipline::ALONE_BYTES`] bytes. EEVDF allocates no memory after its
//! construction. A client differs from its share by less than the longest request, plus 64 KiB if
//! the client was idle.

use penstock_units::Weight;

use crate::discipline::{Allowance, Discipline, QUANTUM};
use crate::heap::SlotHeap;

const SHIFT: u32 = 32;
/// Virtual time V of an output that has not sent yet. The virtual time of a client that is behind
/// its share is below V, but must not be below 0.
const START: u128 = 1 << 80;
/// Maximum number of bytes by which a client without frames may be behind its share. The maximum of
/// 64 KiB is the length of one segment that another client may send before the idle client's next
/// frame.
const OWED_MAX: u32 = 65_536;
/// Maximum number of bytes in one charge, which is longer than any frame. A charge of more bytes
/// counts as [`BYTES_MAX`] bytes.
const BYTES_MAX: u32 = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Idle,
    /// The client is not eligible to send, because it is ahead of its share (v > V). A client that
    /// is ahead of its share is in a heap that is ordered by its virtual time v.
    Ahead,
    /// The client is eligible to send (v <= V). An eligible client is in a heap that is ordered by
    /// deadline.
    Eligible,
    /// The client sends the current request.
    Current,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    state: State,
    weight: u64,
    /// Length of the client's next frame in bytes.
    head: u32,
    /// Virtual time v of the client, in multiples of 2^-32 byte per weight.
    time: u128,
    /// Deadline d: the virtual time by which the client's current request should be served.
    deadline: u128,
    /// Number of the busy period in which the client last had frames.
    period: u64,
    /// Difference V - v when the client's last frame left, in units of virtual time; 0 if the
    /// client was ahead of its share.
    owed: u128,
}

impl Client {
    /// Returns the virtual time that the client takes to send `bytes`. A number of bytes above
    /// [`BYTES_MAX`] counts as [`BYTES_MAX`].
    fn worth(&self, bytes: u32) -> u64 {
        (u64::from(bytes.min(BYTES_MAX)) << SHIFT) / self.weight
    }

    /// Starts a request for the next frame and the following frames that fit into the request.
    fn request(&mut self) {
        self.deadline = self.time + u128::from(self.worth(self.head.max(QUANTUM)));
    }

    fn has_frames(&self) -> bool {
        !matches!(self.state, State::Absent | State::Idle)
    }
}

/// The EEVDF discipline, with the accounts and requests of all clients.
#[derive(Clone, Debug)]
pub struct Eevdf {
    clients: Box<[Client]>,
    ahead: SlotHeap,
    eligible: SlotHeap,
    current: Option<usize>,
    /// Sum of the weights of clients with frames.
    weights: u64,
    /// Virtual time V of the output. The field `rest` is the remainder of the last division that
    /// computed the virtual time V.
    time: u128,
    rest: u64,
    period: u64,
}

impl Eevdf {
    /// Returns a discipline without clients, with room for slots 0 to `slots` - 1.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let absent = Client {
            state: State::Absent,
            weight: 1,
            head: 0,
            time: 0,
            deadline: 0,
            period: 0,
            owed: 0,
        };
        Self {
            clients: vec![absent; slots].into_boxed_slice(),
            ahead: SlotHeap::new(slots),
            eligible: SlotHeap::new(slots),
            current: None,
            weights: 0,
            time: START,
            rest: 0,
            period: 0,
        }
    }

    /// Puts a client with frames into the heap for its state: eligible to send, or ahead of its
    /// share.
    fn queue(&mut self, slot: usize) {
        let client = &mut self.clients[slot];
        if client.time <= self.time {
            client.state = State::Eligible;
            self.eligible.push(slot, client.deadline);
        } else {
            client.state = State::Ahead;
            self.ahead.push(slot, client.time);
        }
    }

    /// Changes the weight of a client. The client stays ahead of its share, or behind it, by the
    /// same number of bytes. Its current request keeps its bytes. So neither the output's virtual
    /// time V nor another client changes.
    fn reweigh(&mut self, slot: usize, weight: u64) {
        let waits = match self.clients[slot].state {
            State::Ahead => self.ahead.remove(slot),
            State::Eligible => self.eligible.remove(slot),
            State::Absent | State::Idle | State::Current => false,
        };
        let (time, client) = (self.time, &mut self.clients[slot]);
        let (old, new) = (u128::from(client.weight), u128::from(weight));
        let scaled = |virtual_time: u128| virtual_time.saturating_mul(old) / new;
        let request = scaled(client.deadline.saturating_sub(client.time));
        client.time = if client.time >= time {
            time.saturating_add(scaled(client.time - time))
        } else {
            time.saturating_sub(scaled(time - client.time))
        };
        client.deadline = client.time.saturating_add(request);
        client.owed = scaled(client.owed);
        if client.has_frames() {
            self.weights = self.weights - client.weight + weight;
        }
        client.weight = weight;
        if waits {
            client.request();
            self.queue(slot);
        }
    }

    /// Recomputes the output's virtual time V when a client gets frames (`with`) or has no more
    /// frames. The new virtual time V is exact to 2^-32 byte per weight.
    fn shift_mean(&mut self, slot: usize, with: bool) {
        let client = &self.clients[slot];
        let (weight, weights) = (u128::from(client.weight), u128::from(self.weights));
        let all = if with { weights + weight } else { weights - weight };
        self.rest = 0;
        if all == 0 {
            return;
        }
        let (apart, client_ahead) = if client.time >= self.time {
            (client.time - self.time, true)
        } else {
            (self.time - client.time, false)
        };
        let by = apart.saturating_mul(weight) / all;
        // A client that is ahead raises the mean when it joins and lowers it when it leaves.
        if client_ahead == with {
            self.time = self.time.saturating_add(by);
        } else {
            self.time = self.time.saturating_sub(by);
        }
    }
}

impl Discipline for Eevdf {
    fn join(&mut self, slot: usize, weight: Weight) {
        let weight = u64::from(weight.get());
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.state == State::Absent {
            (client.state, client.weight, client.owed) = (State::Idle, weight, 0);
            (client.time, client.period) = (self.time, self.period);
        } else if client.weight != weight {
            self.reweigh(slot, weight);
        }
    }

    fn leave(&mut self, slot: usize) {
        self.drained(slot);
        if let Some(client) = self.clients.get_mut(slot) {
            client.state = State::Absent;
        }
    }

    fn backlogged(&mut self, slot: usize, head: u32) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.head = head;
        match client.state {
            State::Absent | State::Current => return,
            State::Idle => {}
            State::Ahead => return client.request(),
            State::Eligible => {
                client.request();
                self.eligible.remove(slot);
                self.queue(slot);
                return;
            }
        }
        let owed = core::mem::take(&mut client.owed);
        client.time = if client.period != self.period {
            self.time
        } else if owed > 0 {
            // The client lowers V when it joins. V - v is measured from the lowered V.
            let (weight, others) = (u128::from(client.weight), u128::from(self.weights));
            self.time.saturating_sub(owed + owed * weight / others.max(1))
        } else {
            client.time.max(self.time)
        };
        client.request();
        self.shift_mean(slot, true);
        self.weights += self.clients[slot].weight;
        self.queue(slot);
    }

    fn drained(&mut self, slot: usize) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        match client.state {
            State::Absent | State::Idle => return,
            State::Ahead => _ = self.ahead.remove(slot),
            State::Eligible => _ = self.eligible.remove(slot),
            State::Current => self.current = None,
        }
        client.state = State::Idle;
        client.period = self.period;
        let most = u128::from(client.worth(OWED_MAX));
        client.owed = self.time.saturating_sub(client.time).min(most);
        self.shift_mean(slot, false);
        self.weights -= self.clients[slot].weight;
        if self.weights == 0 {
            self.period += 1;
        }
    }

    fn pick(&mut self) -> Option<usize> {
        if let Some(slot) = self.current {
            let client = &mut self.clients[slot];
            if client.time + u128::from(client.worth(client.head)) <= client.deadline {
                return Some(slot);
            }
            client.request();
            self.current = None;
            self.queue(slot);
        }
        while let Some((time, slot)) = self.ahead.first() {
            if time > self.time {
                break;
            }
            self.ahead.remove(slot);
            self.queue(slot);
        }
        // If no client is eligible, rounding errors of the mean are the only cause.
        let slot = self.eligible.pop().or_else(|| self.ahead.pop())?;
        self.clients[slot].state = State::Current;
        self.current = Some(slot);
        Some(slot)
    }

    fn allowance(&self) -> Allowance {
        let Some(client) = self.current.and_then(|slot| self.clients.get(slot)) else {
            return Allowance::NONE;
        };
        if self.weights == client.weight {
            return Allowance::ALONE;
        }
        // The largest number of bytes for which `worth` is at most the rest of the request.
        let rest = client.deadline.saturating_sub(client.time);
        let bytes = ((rest + 1) * u128::from(client.weight) - 1) >> SHIFT;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        Allowance { bytes, overdraft: false, alone: false }
    }

    fn part(&self, slot: usize) -> (u64, u64) {
        let client = self.clients.get(slot).filter(|client| client.has_frames());
        (client.map_or(0, |client| client.weight), self.weights)
    }

    fn charge(&mut self, slot: usize, bytes: u32, next: u32) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.state != State::Current {
            return;
        }
        let by = client.worth(bytes);
        client.time += u128::from(by);
        client.head = next;
        let sum = self.rest + by * client.weight;
        self.time += u128::from(sum / self.weights);
        self.rest = sum % self.weights;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(weights: &[u64]) -> Eevdf {
        let mut eevdf = Eevdf::new(weights.len());
        for (slot, weight) in weights.iter().enumerate() {
            eevdf.join(slot, Weight::new(*weight).unwrap());
            eevdf.backlogged(slot, QUANTUM);
        }
        eevdf
    }

    fn send(eevdf: &mut Eevdf, bytes: u32) -> usize {
        let slot = eevdf.pick().unwrap();
        assert_eq!(eevdf.pick(), Some(slot), "asked again it says the same");
        eevdf.charge(slot, bytes, bytes);
        slot
    }

    #[test]
    fn weights_1_1_2_get_their_shares_evenly_spread() {
        let mut eevdf = with(&[1, 1, 2]);
        let order: Vec<_> = (0..80).map(|_| send(&mut eevdf, QUANTUM)).collect();
        let of = |slot: usize| order.iter().filter(|s| **s == slot).count();
        assert_eq!([of(0), of(1), of(2)], [20, 20, 40]);
        for n in 1..=order.len() {
            let third = order[..n].iter().filter(|s| **s == 2).count();
            assert!(third.abs_diff(n / 2) <= 1, "{third} of {n}: {order:?}");
        }
    }

    #[test]
    fn leads_and_lags_sum_to_zero() {
        let mut eevdf = with(&[1, 7, 300, 10_000]);
        let mut seed = 1_u32;
        for n in 0..5_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            send(&mut eevdf, 64 + (seed >> 16));
            if n % 100 == 0 {
                let slot = n / 100 % 4;
                eevdf.drained(slot);
                eevdf.backlogged(slot, QUANTUM);
            }
            let lag = |c: &Client| {
                let apart = i128::try_from(eevdf.time).unwrap() - i128::try_from(c.time).unwrap();
                apart * i128::from(c.weight)
            };
            let sum: i128 = eevdf.clients.iter().map(lag).sum();
            // The sum is converted to bytes. The rounding of the mean is one unit per weight.
            assert!((sum >> SHIFT).abs() <= 1, "{sum}");
        }
    }

    #[test]
    fn idle_time_gives_no_credit_and_running_empty_erases_no_debt() {
        let mut eevdf = with(&[1, 1]);
        eevdf.drained(1);
        (0..100).for_each(|_| assert_eq!(send(&mut eevdf, QUANTUM), 0));
        eevdf.backlogged(1, QUANTUM);
        let order: Vec<_> = (0..20).map(|_| send(&mut eevdf, QUANTUM)).collect();
        assert_eq!(order.iter().filter(|s| **s == 1).count(), 10, "{order:?}");
        // Client 0 sends 16 requests, has no frames for a time, and returns. Client 1 then sends as
        // many requests first.
        while eevdf.pick() != Some(0) {
            send(&mut eevdf, QUANTUM);
        }
        eevdf.charge(0, 16 * QUANTUM, QUANTUM);
        eevdf.drained(0);
        eevdf.backlogged(0, QUANTUM);
        let order: Vec<_> = (0..15).map(|_| send(&mut eevdf, QUANTUM)).collect();
        assert_eq!(order, [1; 15]);
    }

    /// In this test, a client never has more than one frame, so the client's queue is empty after
    /// each frame. In this test, the 40 other clients send frames of 65,000 bytes.
    #[test]
    fn a_client_that_runs_empty_while_behind_keeps_its_share() {
        let mut eevdf = with(&[1; 41]);
        let mut sent = [0_u64; 41];
        for _ in 0..200_000 {
            let slot = eevdf.pick().unwrap();
            let bytes = if slot == 0 { 60 } else { 65_000 };
            eevdf.charge(slot, bytes, bytes);
            sent[slot] += u64::from(bytes);
            if slot == 0 {
                eevdf.drained(0);
                eevdf.backlogged(0, 60);
            }
        }
        let due = sent.iter().sum::<u64>() / 41;
        assert!(sent.iter().all(|sent| sent.abs_diff(due) <= 130_000), "{sent:?}");
    }

    #[test]
    fn the_lag_of_an_idle_client_is_bounded() {
        let mut eevdf = with(&[1, 1]);
        // Client 1 waits for 100 requests and then has no frames for a long time.
        while eevdf.pick() != Some(0) {
            send(&mut eevdf, QUANTUM);
        }
        eevdf.charge(0, 100 * QUANTUM, QUANTUM);
        eevdf.drained(1);
        (0..1_000).for_each(|_| assert_eq!(send(&mut eevdf, QUANTUM), 0));
        eevdf.backlogged(1, QUANTUM);
        let first = (0..1_000).take_while(|_| send(&mut eevdf, QUANTUM) == 1).count();
        let most = 2 * OWED_MAX / QUANTUM + 1;
        assert!((1..=most as usize).contains(&first), "{first}");
    }

    #[test]
    fn a_changed_weight_leaves_the_accounts_of_all_clients() {
        let mut eevdf = with(&[1, 1]);
        while eevdf.pick() != Some(1) {
            send(&mut eevdf, QUANTUM);
        }
        // Client 1 is 15 requests ahead of client 0, and then has no frames for a time.
        eevdf.charge(1, 16 * QUANTUM, QUANTUM);
        eevdf.drained(1);
        eevdf.join(0, Weight::new(2).unwrap());
        eevdf.backlogged(1, QUANTUM);
        // With weight 2, client 0 must send twice as many requests.
        let order: Vec<_> = (0..60).map(|_| send(&mut eevdf, QUANTUM)).collect();
        assert!(order[..29].iter().all(|slot| *slot == 0), "{order:?}");
        assert!(order[..36].contains(&1), "{order:?}");
    }

    #[test]
    fn leaving_and_changing_weight_take_effect_at_once() {
        let mut eevdf = with(&[1, 1, 1]);
        eevdf.leave(1);
        eevdf.join(2, Weight::new(3).unwrap());
        let order: Vec<_> = (0..40).map(|_| send(&mut eevdf, QUANTUM)).collect();
        assert_eq!(order.iter().filter(|s| **s == 2).count(), 30, "{order:?}");
        eevdf.leave(0);
        eevdf.leave(2);
        eevdf.leave(7);
        assert_eq!(eevdf.pick(), None);
    }
}
