//! Credit accounts: how much time each vCPU may use, how much it has used, and the resulting class.
//!
//! # Problem
//! Processor time is divided in proportion to weights. Time that no other VM wanted must not count
//! against a VM.
//!
//! # Source
//! Xen's credit scheduler (xen/common/sched_credit.c, 4.x). The module follows its rules and
//! constants and copies none of its text.
//!
//! # Quantities
//! - Credit: 1/10 ms of a processor ([`CreditTerms::XEN`]) or 1 ns ([`CreditTerms::FINE`]).
//! - Epoch: 30 ms, which is 300 of Xen's credits for each processor.
//! - Weight: applies to each active vCPU of a VM.
//! - Balance: the sum of the active vCPUs' credits after the last epoch.
//!
//! # Approach
//! Used time is converted to credits, which are burned. The remainder of the division is kept for
//! the next charge. If a tick finds a vCPU running, the vCPU becomes active and is no longer
//! boosted. In every epoch, all credits are divided among the active VMs by weight. A negative
//! balance is divided in the same way. A VM gets at most its cap, and at most the credits that its
//! active vCPUs could use. The rest goes to the VMs after it.
//!
//! A vCPU with credits below 0 is OVER, otherwise UNDER. Its credits are bounded to -1 epoch and
//! +1 epoch. A vCPU above the upper bound does not use its credits, so it stops earning and keeps
//! half. A vCPU that owes more than its cap for an epoch is parked until it is UNDER.
//!
//! # Example
//! On one processor, weights 256 and 512 get 100 and 200 credits per epoch. A test covers this.
//!
//! # Departures
//! [`CreditTerms::XEN`] has no departures. [`CreditTerms::FINE`] has these:
//!
//! - Credits are nanoseconds. With credits of 0.1 ms, rounding up would give a processor with 7 VMs
//!   301 credits and not 300.
//! - The lower bound is ten epochs (measured in `docs/reference/vcpu.md`). Above the upper bound
//!   only an idle vCPU stops earning. A vCPU's credits swing by about a slice. A bound of one slice
//!   would cut off part of this swing and distort the shares.
//! - A vCPU that is charged or has work is active. Ticks coincide with slices of 0.5 ms, so a tick
//!   might never find one of two vCPUs running.
//! - A positive balance is subtracted from the credits of the next epoch, just as a negative
//!   balance is added. Otherwise the time that pinned VMs leave on other processors would be handed
//!   out repeatedly. A VM that starts later would then wait until that credit is used up.
//!
//! # Cost
//! Each call is O(1), except `account`, which is O(vCPUs) per epoch.

use penstock_units::{Nanos, VcpuId, VmId, Weight};

use crate::contract::Contract;
use crate::reserve::Reserve;

/// Priority of a vCPU by its credits. The greater class runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The vCPU used more than its share.
    Over,
    /// The vCPU has credits left.
    Under,
    /// The vCPU was just woken, and it has credits or an I/O reserve.
    Boost,
}

/// Constants of a credit book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditTerms {
    /// Credits per millisecond of a processor.
    pub per_ms: i64,
    /// Number of epochs by which an account may be overdrawn.
    pub floor_epochs: i64,
    /// Whether only ticks make a vCPU active. If so, even a vCPU with work may stop earning at the
    /// upper bound. It earns again when a tick finds it running.
    pub sampled: bool,
}

impl CreditTerms {
    /// Length of an epoch, and of a slice.
    pub const EPOCH: Nanos = Nanos::from_millis(30);
    /// Time between two ticks.
    pub const TICK: Nanos = Nanos::from_millis(10);
    /// Constants of Xen's credit scheduler.
    pub const XEN: Self = Self { per_ms: 10, floor_epochs: 1, sampled: true };
    /// Constants of Penstock's credit queues.
    pub const FINE: Self = Self { per_ms: 1_000_000, floor_epochs: 10, sampled: false };

    /// Credits of one processor in an epoch.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.per_ms * 30
    }
}

#[derive(Clone, Debug)]
struct Account {
    vm: VmId,
    credit: i64,
    /// Remainder of the last division, in millionths of a credit.
    rest: u64,
    class: Class,
    active: bool,
    parked: bool,
    reserve: Reserve,
    /// Credit level down to which the vCPU runs on its reserve. `None` if it does not run on its
    /// reserve.
    drawing: Option<i64>,
}

#[derive(Clone, Debug)]
struct Holder {
    weight: i64,
    cap_pct: i64,
    vcpus: Vec<VcpuId>,
    active: i64,
}

/// vCPUs that an epoch parked or unparked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parking {
    /// vCPUs that may no longer run.
    pub parked: Vec<VcpuId>,
    /// vCPUs that may run again.
    pub unparked: Vec<VcpuId>,
}

/// The accounts of all VMs.
#[derive(Clone, Debug)]
pub struct CreditBook {
    terms: CreditTerms,
    cpus: i64,
    accounts: Vec<Option<Account>>,
    holders: Vec<Option<Holder>>,
    /// VMs with active vCPUs, in the order in which they are served.
    order: Vec<VmId>,
    /// Sum of the weights of all active vCPUs.
    weight: i64,
    balance: i64,
}

/// `a * b / c`, rounded up; 0 if `a` or `b` is 0.
fn part(a: i64, b: i64, c: i64) -> i64 {
    let (wide, c) = (i128::from(a) * i128::from(b), i128::from(c.max(1)));
    i64::try_from((wide + c - 1).div_euclid(c)).unwrap_or(i64::MAX)
}

/// Stores `value` under the first free number and returns that number.
fn put<T>(slots: &mut Vec<Option<T>>, value: T) -> Option<u16> {
    let at = slots.iter().position(Option::is_none).unwrap_or(slots.len());
    let number = u16::try_from(at).ok()?;
    if at == slots.len() {
        slots.push(None);
    }
    slots[at] = Some(value);
    Some(number)
}

impl CreditBook {
    /// An empty book for `cpus` processors.
    #[must_use]
    pub fn new(terms: CreditTerms, cpus: u16) -> Self {
        Self {
            terms,
            cpus: i64::from(cpus),
            accounts: Vec::new(),
            holders: Vec::new(),
            order: Vec::new(),
            weight: 0,
            balance: 0,
        }
    }

    /// Constants of this book.
    #[must_use]
    pub const fn terms(&self) -> CreditTerms {
        self.terms
    }

    fn account_of(&self, vcpu: VcpuId) -> Option<&Account> {
        self.accounts.get(vcpu.index())?.as_ref()
    }

    fn account_mut(&mut self, vcpu: VcpuId) -> Option<&mut Account> {
        self.accounts.get_mut(vcpu.index())?.as_mut()
    }

    /// Opens accounts for a VM. Its vCPUs have no credits, are UNDER and are not active. `None` if
    /// no number is free.
    pub fn open(&mut self, contract: &Contract, vcpus: usize) -> Option<(VmId, Vec<VcpuId>)> {
        let weight = i64::from(Weight::get(contract.weight));
        let cap_pct = i64::from(contract.cap_pct);
        let holder = Holder { weight, cap_pct, vcpus: Vec::new(), active: 0 };
        let vm = VmId(put(&mut self.holders, holder)?);
        let account = Account {
            vm,
            credit: 0,
            rest: 0,
            class: Class::Under,
            active: false,
            parked: false,
            reserve: Reserve::new(contract.io_reserve_pct),
            drawing: None,
        };
        let mut opened = Vec::new();
        for _ in 0..vcpus {
            let number = put(&mut self.accounts, account.clone());
            opened.extend(number.map(VcpuId));
        }
        let complete = opened.len() == vcpus;
        self.holders[vm.index()].as_mut()?.vcpus.clone_from(&opened);
        if !complete {
            self.close(vm);
            return None;
        }
        Some((vm, opened))
    }

    /// Lets `vcpu` continue with the account that `was` has in `before`: with its credits, its
    /// reserve, and its activity.
    pub fn resume(&mut self, vcpu: VcpuId, before: &Self, was: VcpuId) {
        let Some(old) = before.account_of(was) else { return };
        let Some(account) = self.account_mut(vcpu) else { return };
        account.reserve.resume(old.reserve);
        (account.credit, account.rest) = (old.credit, old.rest);
        (account.class, account.drawing) = (old.class, old.drawing);
        if old.active {
            self.balance += old.credit;
            self.activate(vcpu);
        }
    }

    /// Closes the accounts of a VM.
    pub fn close(&mut self, vm: VmId) {
        let Some(holder) = self.holders.get_mut(vm.index()).and_then(Option::take) else { return };
        self.weight -= holder.weight * holder.active;
        self.order.retain(|other| *other != vm);
        for vcpu in holder.vcpus {
            self.accounts[vcpu.index()] = None;
        }
    }

    /// The vCPUs of a VM; empty for an unknown VM.
    #[must_use]
    pub fn vcpus(&self, vm: VmId) -> &[VcpuId] {
        let holder = self.holders.get(vm.index()).and_then(Option::as_ref);
        holder.map_or(&[], |holder| &holder.vcpus)
    }

    /// The VM to which a vCPU belongs.
    #[must_use]
    pub fn vm_of(&self, vcpu: VcpuId) -> Option<VmId> {
        self.account_of(vcpu).map(|account| account.vm)
    }

    /// Whether the vCPU has an account.
    #[must_use]
    pub fn has(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some()
    }

    /// Credits of a vCPU, negative if overdrawn. 0 for an unknown vCPU.
    #[must_use]
    pub fn credit(&self, vcpu: VcpuId) -> i64 {
        self.account_of(vcpu).map_or(0, |account| account.credit)
    }

    /// Class of a vCPU. [`Class::Over`] for an unknown vCPU.
    #[must_use]
    pub fn class(&self, vcpu: VcpuId) -> Class {
        self.account_of(vcpu).map_or(Class::Over, |account| account.class)
    }

    /// Whether the vCPU has used up its cap.
    #[must_use]
    pub fn parked(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some_and(|account| account.parked)
    }

    /// Whether the vCPU earns credits.
    #[must_use]
    pub fn active(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some_and(|account| account.active)
    }

    /// Credits reserved for the vCPU's I/O.
    #[must_use]
    pub fn reserve(&self, vcpu: VcpuId) -> i64 {
        self.account_of(vcpu).map_or(0, |account| account.reserve.level())
    }

    /// Burns the credits for `ran` of running time.
    pub fn burn(&mut self, vcpu: VcpuId, ran: Nanos) {
        let per_ms = self.terms.per_ms;
        let Some(account) = self.account_mut(vcpu) else { return };
        let wide = u128::from(ran.0) * u128::from(per_ms.unsigned_abs());
        let wide = wide + u128::from(account.rest);
        account.rest = u64::try_from(wide % 1_000_000).unwrap_or(0);
        let mut used = i64::try_from(wide / 1_000_000).unwrap_or(i64::MAX);
        if let Some(kept) = account.drawing {
            used = account.reserve.draw(used, kept);
        }
        account.credit = account.credit.saturating_sub(used);
        if !self.terms.sampled {
            self.activate(vcpu);
        }
    }

    /// Boosts a vCPU that is woken from block if it has credits left. A vCPU without credits is
    /// boosted if an external event woke it and it has a reserve. Also sets how far the vCPU may
    /// run on its reserve.
    pub fn boost(&mut self, vcpu: VcpuId, event: bool) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.parked {
            return;
        }
        if account.class == Class::Under {
            account.class = Class::Boost;
        } else if event && account.class == Class::Over && account.reserve.level() > 0 {
            account.drawing = Some(0);
            account.class = Class::Boost;
        }
    }

    /// Boosts a vCPU that had a slice for an event and has more to do. Its reserve must exceed
    /// another slice, which is kept for the next event. Credits alone do not boost the vCPU,
    /// because it may only compute.
    pub fn go_on(&mut self, vcpu: VcpuId, slice: Nanos) {
        let kept = i64::try_from(
            u128::from(slice.0) * u128::from(self.terms.per_ms.unsigned_abs()) / 1_000_000,
        );
        let kept = kept.unwrap_or(i64::MAX);
        let Some(account) = self.account_mut(vcpu) else { return };
        if !account.parked && account.reserve.level() > kept {
            account.drawing = Some(kept);
            account.class = Class::Boost;
        }
    }

    /// Time for which the vCPU may still run on its reserve. `None` if it does not run on its
    /// reserve.
    #[must_use]
    pub fn drawing(&self, vcpu: VcpuId) -> Option<Nanos> {
        let account = self.account_of(vcpu)?;
        let level = (account.reserve.level() - account.drawing?).max(0).unsigned_abs();
        let per_ms = self.terms.per_ms.max(1).unsigned_abs();
        Some(Nanos(level.saturating_mul(1_000_000) / per_ms))
    }

    /// Ends a vCPU's running on its reserve.
    pub fn end_drawing(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.drawing.take().is_some() {
            account.class = if account.credit < 0 { Class::Over } else { Class::Under };
        }
    }

    /// Records that a tick found the vCPU running. The vCPU's time must have been charged before.
    pub fn tick(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.class == Class::Boost && account.drawing.is_none() {
            account.class = Class::Under;
        }
        self.activate(vcpu);
    }

    /// Lets the vCPU earn credits.
    fn activate(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu).filter(|account| !account.active) else {
            return;
        };
        account.active = true;
        let vm = account.vm;
        if let Some(holder) = self.holders.get_mut(vm.index()).and_then(Option::as_mut) {
            holder.active += 1;
            self.weight += holder.weight;
            if holder.active == 1 {
                self.order.insert(0, vm);
            }
        }
    }

    /// Hands out the credits of an epoch. `busy` says which vCPUs have work.
    pub fn account(&mut self, busy: impl Fn(VcpuId) -> bool) -> Parking {
        let mut parking = Parking::default();
        if !self.terms.sampled {
            let all = self.holders.iter().flatten().flat_map(|holder| holder.vcpus.iter().copied());
            for vcpu in all.filter(|vcpu| busy(*vcpu)).collect::<Vec<_>>() {
                self.activate(vcpu);
            }
        }
        let (weights, owed) = (self.weight, (-self.balance).max(0));
        let mut total = self.terms.epoch() * self.cpus + owed;
        if !self.terms.sampled {
            // Credits that no VM could use do not accumulate.
            total = (total - self.balance.max(0)).max(0);
        }
        let (mut left, mut balance, mut short) = (weights, 0, false);
        if weights == 0 {
            self.balance = 0;
            return parking;
        }
        for vm in self.order.clone() {
            let Some(holder) = self.holders[vm.index()].clone() else { continue };
            let weight = holder.weight * holder.active;
            left -= weight;
            let mut peak = holder.active * self.terms.epoch() + part(owed, weight, weights);
            let mut cap = None;
            if holder.cap_pct != 0 {
                let all = part(holder.cap_pct, self.terms.epoch(), 100);
                peak = peak.min(all);
                cap = Some(part(all, 1, holder.active));
            }
            let mut fair = part(total, weight, weights);
            if fair < peak {
                short = true;
            } else {
                if left > 0 {
                    total += part(fair - peak, weights, left);
                }
                if short {
                    // A VM that could not use all its credits goes to the front, so that the others
                    // come after it.
                    self.order.retain(|other| *other != vm);
                    self.order.insert(0, vm);
                }
                fair = peak;
            }
            let each = part(fair, 1, holder.active);
            for vcpu in holder.vcpus {
                balance += self.give(vcpu, each, cap, busy(vcpu), &mut parking);
            }
        }
        self.balance = balance;
        parking
    }

    /// Gives one vCPU its part of its VM's credits. Returns the vCPU's credits afterwards, or 0 if
    /// the vCPU is not active.
    fn give(
        &mut self,
        vcpu: VcpuId,
        each: i64,
        cap: Option<i64>,
        busy: bool,
        parking: &mut Parking,
    ) -> i64 {
        let terms = self.terms;
        let Some(account) = self.account_mut(vcpu).filter(|account| account.active) else {
            return 0;
        };
        account.credit += account.reserve.fill(each);
        if account.credit < 0 {
            if account.drawing.is_none() {
                account.class = Class::Over;
            }
            if cap.is_some_and(|cap| account.credit < -cap) && !account.parked {
                account.parked = true;
                parking.parked.push(vcpu);
            }
            account.credit = account.credit.max(-terms.epoch() * terms.floor_epochs);
            return account.credit;
        }
        account.drawing = None;
        account.class = Class::Under;
        if std::mem::take(&mut account.parked) {
            parking.unparked.push(vcpu);
        }
        if account.credit > terms.epoch() && (terms.sampled || !busy) {
            account.credit /= 2;
            account.active = false;
            let (credit, vm) = (account.credit, account.vm);
            if let Some(holder) = self.holders[vm.index()].as_mut() {
                holder.active -= 1;
                self.weight -= holder.weight;
                if holder.active == 0 {
                    self.order.retain(|other| *other != vm);
                }
            }
            return credit;
        }
        account.credit
    }
}

#[cfg(test)]
#[path = "credit_book_tests.rs"]
mod tests;
