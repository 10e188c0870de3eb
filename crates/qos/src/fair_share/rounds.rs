//! Deficit round robin (DRR) divides a tenant's share among its VMs by weight.
//!
//! # Source
//!
//! The sources are FS-VDE §4.1 ("hierarchical fairness") and Shreedhar, Varghese, "Efficient Fair
//! Queuing using Deficit Round Robin", SIGCOMM 1995.
//!
//! # Approach
//!
//! The VMs of a tenant that have frames form a ring and take turns. Each turn adds the VM's quantum
//! to its account, which may be negative as in [`crate::vtrr`]. When it is a VM's turn, the VM
//! sends frames while its account is above 0. The VM with the largest weight has the quantum
//! [`QUANTUM`], and the quanta of other VMs are proportional to their weights.
//!
//! If the largest weight changes, the quanta change from the next round on, so that all VMs have
//! the same number of turns with either quanta. Until then, no quantum exceeds [`QUANTUM`]. Each VM
//! computes its quantum again when it next needs it. So a change of the largest weight takes the
//! same time for any number of VMs, and changes no account.
//!
//! After a round of turns, all VMs of a tenant may still be in debt. If all VMs are in debt, some
//! rounds are skipped, and each VM gets its quanta for the skipped rounds at once. The number of
//! skipped rounds is the smallest number after which some VM is out of debt. For any weights and
//! frame sizes, a decision among a tenant's VMs takes at most three rounds of turns.

use penstock_units::Weight;

use super::weights::Heaviest;
use crate::discipline::QUANTUM;

/// Number of fractional bits in a VM's account, which counts bytes. With 20 fractional bits, even a
/// VM with the smallest weight (1 of 10,000) has a quantum above 0.
const SHIFT: u32 = 20;
/// Number of rounds after which no VM is in debt, however large its debt was. When a tenant becomes
/// idle, its round number increases by `FORGIVE`, which cancels all debts (negative accounts) of
/// its VMs.
const FORGIVE: u64 = 1 << 32;
const NIL: u32 = u32::MAX;

/// State of a VM in its tenant's ring of VMs, with the VM's account in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    weight: Weight,
    /// Value of [`Ring::scale`] from which `quantum` was computed. The value is `None` if the VM's
    /// own weight has changed since.
    scale: Option<Weight>,
    /// Bytes that the VM may still send, in units of 2^-20 bytes. A negative account means that the
    /// VM sent more bytes than its turns allowed.
    account: i64,
    quantum: i64,
    /// Number of the round in which the VM last had frames.
    round: u64,
    next: u32,
    previous: u32,
}

impl Place {
    pub const fn new(weight: Weight) -> Self {
        let scale = None;
        Self { weight, scale, account: 0, quantum: 0, round: 0, next: NIL, previous: NIL }
    }

    pub const fn weight(&self) -> Weight {
        self.weight
    }

    /// Changes the weight of the VM. The VM keeps its account.
    pub fn set_weight(&mut self, weight: Weight) {
        (self.weight, self.scale) = (weight, None);
    }

    pub fn charge(&mut self, bytes: u32) {
        self.account -= i64::from(bytes) << SHIFT;
    }

    /// Returns the number of bytes that the VM may send before its account is used up. A frame that
    /// begins below this number may exceed it. The account must be above 0.
    pub fn bytes(&self) -> u64 {
        let whole = self.account.saturating_add((1 << SHIFT) - 1) >> SHIFT;
        whole.max(0).unsigned_abs()
    }

    /// Returns the quantum. The argument `scale` is the weight of a VM with the largest quantum.
    fn quantum(&mut self, scale: Weight) -> i64 {
        if self.scale != Some(scale) {
            self.weigh(scale);
        }
        self.quantum
    }

    #[cold]
    fn weigh(&mut self, scale: Weight) {
        let whole = i64::from(QUANTUM) << SHIFT;
        let weight = self.weight.min(scale);
        self.quantum = whole * i64::from(weight.get()) / i64::from(scale.get());
        self.scale = Some(scale);
    }
}

/// Ring of the VMs of a tenant that have frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// Largest weight of all VMs of the tenant, with and without frames.
    pub heaviest: Heaviest,
    /// Sum of the weights of the VMs in the ring.
    pub weights: u64,
    /// Weight of a VM with the quantum [`QUANTUM`] in the current round, which was the largest
    /// weight when the round began.
    scale: Weight,
    /// Slot of the VM whose turn it is to send.
    turn: u32,
    active: u32,
    round: u64,
    /// Number of VMs of the tenant that still have a turn in the current round.
    left: u32,
}

/// Gives the ring of a tenant's VMs access to the [`Place`] of each VM.
pub(super) trait Places {
    fn place(&mut self, vm: u32) -> &mut Place;
}

impl Ring {
    pub const EMPTY: Self = Self {
        heaviest: Heaviest::NONE,
        weights: 0,
        scale: Weight::ONE,
        turn: NIL,
        active: 0,
        round: 0,
        left: 0,
    };

    pub const fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Whether only one VM is in the ring.
    pub const fn is_single(&self) -> bool {
        self.active == 1
    }

    /// Adds a VM to the ring, behind all other VMs. The caller must check that the VM is not in the
    /// ring yet.
    pub fn enter(&mut self, vms: &mut impl Places, vm: u32) {
        if self.turn == NIL {
            self.scale = self.heaviest.weight;
        }
        let (round, scale) = (self.round, self.scale);
        let place = vms.place(vm);
        if place.account < 0 {
            let rounds = i64::try_from((round - place.round).min(FORGIVE)).unwrap_or(i64::MAX);
            let due = place.quantum(scale).saturating_mul(rounds);
            place.account = place.account.saturating_add(due).min(0);
        }
        self.active += 1;
        self.weights += u64::from(place.weight.get());
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

    /// Removes a VM from the ring; the VM must be in the ring.
    pub fn go(&mut self, vms: &mut impl Places, vm: u32) {
        self.active -= 1;
        self.weights -= u64::from(vms.place(vm).weight.get());
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
            // The next turn must go to the VM after the removed one, so `turn` is set to the VM
            // before it.
            self.turn = previous;
        }
    }

    /// Returns the slot of the VM that sends next; `None` if no VM of the tenant has frames.
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
                place.account += place.quantum(self.scale);
            }
            passed += 1;
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.round = self.round.saturating_add(1);
                self.left = self.active;
                self.scale = self.heaviest.weight;
            }
        }
    }

    /// Skips rounds if all VMs of the tenant are in debt; each VM gets its quanta for the skipped
    /// rounds. The number of skipped rounds is the smallest number after which some VM is out of
    /// debt.
    fn pay(&mut self, vms: &mut impl Places) {
        let (mut rounds, scale) = (i64::MAX, self.scale);
        let mut vm = self.turn;
        for _ in 0..self.active {
            let place = vms.place(vm);
            rounds = rounds.min(place.account.saturating_neg() / place.quantum(scale).max(1));
            vm = place.next;
        }
        for _ in 0..self.active {
            let place = vms.place(vm);
            place.account += place.quantum(scale) * rounds;
            vm = place.next;
        }
        self.round = self.round.saturating_add(rounds.unsigned_abs());
    }
}

fn holder_next(vms: &mut impl Places, vm: u32) -> u32 {
    vms.place(vm).next
}
