//! DRR over a tenant's VMs: divides the tenant's share by weight.
//!
//! # Source
//!
//! FS-VDE §4.1, "hierarchical fairness"; Shreedhar, Varghese, "Efficient Fair Queuing using Deficit
//! Round Robin", SIGCOMM 1995.
//!
//! # Approach
//!
//! VMs with frames are in a ring. A turn adds the VM's quantum to its account, which is signed as
//! in [`crate::vtrr`]. A VM sends while its account is above 0. The heaviest VM's quantum is
//! [`QUANTUM`], and the quanta of others are proportional to their weights. If all VMs are still in
//! debt after a round, further rounds are added at once, until the first VM is out of debt. A
//! decision therefore takes at most three rounds for any weights and sizes.

use penstock_units::Weight;

use crate::discipline::QUANTUM;

/// Fractional bits of a byte in accounts, so that the lightest weight (1 of 10,000) has a quantum.
const SHIFT: u32 = 20;
/// Number of rounds that pays any debt. VMs of an idle tenant are credited with these rounds.
const FORGIVE: u64 = 1 << 32;
const NIL: u32 = u32::MAX;

/// A VM's position and account in its tenant's ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub weight: Weight,
    /// Bytes that the VM may still send, in 2^-20; negative if it is in debt.
    account: i64,
    quantum: i64,
    /// The round in which the VM ran empty.
    round: u64,
    next: u32,
    previous: u32,
}

impl Place {
    pub const fn new(weight: Weight) -> Self {
        Self { weight, account: 0, quantum: 0, round: 0, next: NIL, previous: NIL }
    }

    pub fn charge(&mut self, bytes: u32) {
        self.account -= i64::from(bytes) << SHIFT;
    }

    /// Sets the quantum for a tenant with a heaviest VM of weight `heaviest`.
    pub fn weigh(&mut self, heaviest: Weight) {
        let whole = i64::from(QUANTUM) << SHIFT;
        self.quantum = whole * i64::from(self.weight.get()) / i64::from(heaviest.get());
    }
}

/// The VMs of a tenant that have frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// The VM that has its turn.
    turn: u32,
    active: u32,
    round: u64,
    /// Turns that remain until the next round.
    left: u32,
}

/// Access to the VMs by slot.
pub(super) trait Places {
    fn place(&mut self, vm: u32) -> &mut Place;
}

impl Ring {
    pub const EMPTY: Self = Self { turn: NIL, active: 0, round: 0, left: 0 };

    pub const fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Adds a VM behind all others. The VM must not be in the ring.
    pub fn enter(&mut self, vms: &mut impl Places, vm: u32) {
        let round = self.round;
        let place = vms.place(vm);
        if place.account < 0 {
            let rounds = i64::try_from((round - place.round).min(FORGIVE)).unwrap_or(i64::MAX);
            let due = place.quantum.saturating_mul(rounds);
            place.account = place.account.saturating_add(due).min(0);
        }
        self.active += 1;
        if self.turn == NIL {
            (place.next, place.previous) = (vm, vm);
            self.turn = vm;
            self.left = 1;
            return;
        }
        let next = self.turn;
        let previous = vms.place(next).previous;
        let place = vms.place(vm);
        (place.next, place.previous) = (next, previous);
        vms.place(next).previous = vm;
        vms.place(previous).next = vm;
    }

    /// Removes a VM that is in the ring.
    pub fn go(&mut self, vms: &mut impl Places, vm: u32) {
        self.active -= 1;
        if self.active == 0 {
            self.round = self.round.saturating_add(FORGIVE);
            self.turn = NIL;
            vms.place(vm).round = self.round - FORGIVE;
            return;
        }
        let place = vms.place(vm);
        place.round = self.round;
        let (next, previous) = (place.next, place.previous);
        vms.place(previous).next = next;
        vms.place(next).previous = previous;
        if self.turn == vm {
            // Point to the previous VM, so that the next turn goes to the VM after the removed one.
            self.turn = previous;
        }
    }

    /// The VM that sends next; `None` if the ring is empty.
    pub fn pick(&mut self, vms: &mut impl Places) -> Option<u32> {
        if self.turn == NIL {
            return None;
        }
        let mut passed = 0;
        loop {
            let holder = vms.place(self.turn);
            if holder.account > 0 {
                return Some(self.turn);
            }
            if passed == self.active {
                self.pay(vms);
                passed = 0;
            }
            let next = holder_next(vms, self.turn);
            self.turn = next;
            let place = vms.place(next);
            if place.account <= 0 {
                place.account += place.quantum;
            }
            passed += 1;
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.round = self.round.saturating_add(1);
                self.left = self.active;
            }
        }
    }

    /// Ends a state in which all VMs are in debt: adds the rounds after which the first of them is
    /// not.
    fn pay(&mut self, vms: &mut impl Places) {
        let mut rounds = i64::MAX;
        let mut vm = self.turn;
        for _ in 0..self.active {
            let place = vms.place(vm);
            rounds = rounds.min(place.account.saturating_neg() / place.quantum.max(1));
            vm = place.next;
        }
        for _ in 0..self.active {
            let place = vms.place(vm);
            place.account += place.quantum * rounds;
            vm = place.next;
        }
        self.round = self.round.saturating_add(rounds.unsigned_abs());
    }
}

fn holder_next(vms: &mut impl Places, vm: u32) -> u32 {
    vms.place(vm).next
}
