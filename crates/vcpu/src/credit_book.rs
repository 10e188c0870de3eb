//! Credit accounts of vCPUs. An account has the time that a vCPU may still use, and the vCPU's
//! resulting class.
//!
//! # Problem
//! The scheduler divides processor time in proportion to weights. A VM may use time that no other
//! VM needs. A VM that uses spare time must have no disadvantage later.
//!
//! # Source
//! The source is Xen's credit scheduler (xen/common/sched_credit.c, 4.x). The implementation
//! follows the rules and constants of Xen's `sched_credit.c` and copies none of its text.
//!
//! # Quantities
//! - Credit: 1/10 ms of processor time ([`CreditTerms::XEN`]) or 1 ns of processor time
//!   ([`CreditTerms::FINE`]).
//! - Epoch: 30 ms, which is 300 of Xen's credits for each processor.
//! - Weight: a VM's weight counts once for each of its active vCPUs.
//! - Balance: the sum of the credits of all active vCPUs after the last epoch.
//! - Tick: every 10 ms, the scheduler samples the running vCPU.
//!
//! # Approach
//! The scheduler converts the run time of a vCPU to credits and subtracts these credits from the
//! vCPU's account. Fractions of a credit are carried over to the next charge. A vCPU that runs at a
//! tick becomes *active*, which means that the vCPU earns credits. A vCPU that runs at a tick loses
//! its boost.
//!
//! In every epoch, the scheduler divides new credits by weight among the VMs with active vCPUs. If
//! the sum of all credits (the balance) is negative, the next epoch's new credits increase by the
//! missing amount. A VM gets at most its cap, and at most the credits that its active vCPUs could
//! use in an epoch. If a VM cannot get all of its credits, the remaining credits go to the VMs that
//! follow.
//!
//! A vCPU with credits below 0 is OVER, otherwise UNDER. The lower bound of a vCPU's credits is
//! minus one epoch, and the upper bound is one epoch. A vCPU above the upper bound loses half of
//! its credits and is no longer active. If a VM has a cap, the scheduler parks a vCPU that owes
//! more credits than its part of the cap. A parked vCPU does not run until its credits are 0 or
//! more.
//!
//! # Example
//! On one processor, VMs with weights 256 and 512 get 100 and 200 credits per epoch.
//!
//! # Departures
//! With [`CreditTerms::XEN`], the credit book behaves as in Xen. [`CreditTerms::FINE`] departs from
//! Xen in the following points:
//!
//! - A credit is one nanosecond of processor time. With credits of 0.1 ms, rounding up the credits
//!   of each VM has an effect. For example, with 7 VMs on a processor, rounding up would give out
//!   301 credits of 0.1 ms instead of 300.
//! - The lower bound of a vCPU's credits is minus ten epochs (measured in
//!   `docs/reference/vcpu.md`).
//! - Only an idle vCPU with credits above the upper bound stops earning credits. The credits of a
//!   busy vCPU vary by about a slice, which is as long as an epoch. An upper bound on the credits
//!   of busy vCPUs would therefore distort the shares of these vCPUs.
//! - A vCPU that is charged or has work is active. Ticks do not decide whether a vCPU is active.
//!   Because ticks fall on the boundaries of 0.5 ms slices, a vCPU might never run at a tick.
//! - The scheduler subtracts a positive balance from the credits of the next epoch. Without the
//!   subtraction of the balance, pinned VMs would get credits for time on other processors. A VM
//!   that starts later would wait until the pinned VMs have used up their surplus credits.
//!
//! # Cost
//! Each call of a credit book is O(1), except `account`, which is O(vCPUs) per epoch.

use penstock_units::{Nanos, VcpuId, VmId, Weight};

use crate::contract::Contract;
use crate::reserve::Reserve;

/// Priority of a vCPU by its credits. Among runnable vCPUs, a vCPU with the greater `Class` value
/// runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The vCPU used more than its share.
    Over,
    /// The vCPU has credits left.
    Under,
    /// The vCPU was just woken, and has credits left or an I/O reserve.
    Boost,
}

/// Constants of a [`CreditBook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditTerms {
    /// Number of credits for a millisecond of processor time.
    pub per_ms: i64,
    /// Lower bound of a vCPU's credits, as a number of epochs. The lower bound in credits is minus
    /// `floor_epochs` times the credits of one processor in an epoch.
    pub floor_epochs: i64,
    /// Whether a vCPU becomes active only if it runs at a tick, as in Xen. If `sampled` is true, a
    /// vCPU with credits above the upper bound earns no credits until it runs at a tick again, even
    /// if it is busy.
    pub sampled: bool,
}

impl CreditTerms {
    /// Length of an epoch, and of a slice of the credit scheduler.
    pub const EPOCH: Nanos = Nanos::from_millis(30);
    /// Time between two ticks of a processor.
    pub const TICK: Nanos = Nanos::from_millis(10);
    /// Constants of the credit accounts in Xen's credit scheduler.
    pub const XEN: Self = Self { per_ms: 10, floor_epochs: 1, sampled: true };
    /// Constants of the credit accounts in Penstock's scheduler.
    pub const FINE: Self = Self { per_ms: 1_000_000, floor_epochs: 10, sampled: false };

    /// Number of credits for the time of one processor in an epoch.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.per_ms * 30
    }
}

#[derive(Clone, Debug)]
struct Account {
    vm: VmId,
    credit: i64,
    /// Fraction of a credit that is carried over to the next charge, in millionths of a credit.
    rest: u64,
    class: Class,
    active: bool,
    parked: bool,
    reserve: Reserve,
    /// Run time is charged to the vCPU's I/O reserve until the reserve has fallen to this number of
    /// credits. `None` means that run time is not charged to the I/O reserve.
    drawing: Option<i64>,
}

#[derive(Clone, Debug)]
struct Holder {
    weight: i64,
    cap_pct: i64,
    vcpus: Vec<VcpuId>,
    active: i64,
}

/// vCPUs that [`CreditBook::account`] parked or unparked at the end of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parking {
    /// vCPUs that may no longer run, because their VM has used up its cap.
    pub parked: Vec<VcpuId>,
    /// vCPUs that may run again, because their credits are 0 or more.
    pub unparked: Vec<VcpuId>,
}

/// The credit accounts of all VMs and their vCPUs.
#[derive(Clone, Debug)]
pub struct CreditBook {
    terms: CreditTerms,
    cpus: i64,
    accounts: Vec<Option<Account>>,
    holders: Vec<Option<Holder>>,
    /// VMs with active vCPUs, in the order in which they get credits.
    order: Vec<VmId>,
    /// Sum of the weights of all active vCPUs.
    weight: i64,
    balance: i64,
}

/// Computes `a * b / c`, rounded up.
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
    /// Makes a credit book without accounts for `cpus` processors.
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

    /// Returns the constants of the credit accounts in the credit book.
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

    /// Opens an account without credits for each vCPU of a VM. The VM's vCPUs start in the class
    /// UNDER and are not active. Returns `None` if no VM or vCPU number is free.
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

    /// Copies the account of vCPU `was` from the earlier credit book `before` to vCPU `vcpu` of
    /// this credit book. The function copies the vCPU's credits, class and I/O reserve, and whether
    /// the vCPU is active.
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

    /// Closes the accounts of a VM, so that the numbers of the VM and its vCPUs are free again.
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

    /// The VM to which a vCPU belongs. Returns `None` for an unknown vCPU.
    #[must_use]
    pub fn vm_of(&self, vcpu: VcpuId) -> Option<VmId> {
        self.account_of(vcpu).map(|account| account.vm)
    }

    /// Whether vCPU `vcpu` has an account in this credit book.
    #[must_use]
    pub fn has(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some()
    }

    /// Credits of a vCPU, negative if the vCPU used more than its share. 0 for an unknown vCPU.
    #[must_use]
    pub fn credit(&self, vcpu: VcpuId) -> i64 {
        self.account_of(vcpu).map_or(0, |account| account.credit)
    }

    /// Returns the class of the vCPU in the credit scheduler. The class of an unknown vCPU is
    /// [`Class::Over`].
    #[must_use]
    pub fn class(&self, vcpu: VcpuId) -> Class {
        self.account_of(vcpu).map_or(Class::Over, |account| account.class)
    }

    /// Whether the vCPU is parked because it has used up its cap.
    #[must_use]
    pub fn parked(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some_and(|account| account.parked)
    }

    /// Whether the vCPU is active, which means that it earns credits.
    #[must_use]
    pub fn active(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some_and(|account| account.active)
    }

    /// Credits in the vCPU's I/O reserve. 0 for an unknown vCPU.
    #[must_use]
    pub fn reserve(&self, vcpu: VcpuId) -> i64 {
        self.account_of(vcpu).map_or(0, |account| account.reserve.level())
    }

    /// Charges a vCPU for the run time `ran`. The charged credits come from the vCPU's I/O reserve
    /// or from its ordinary credits.
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

    /// Boosts a woken vCPU that has credits left. The function boosts a vCPU without credits if an
    /// external event woke the vCPU and the vCPU has an I/O reserve. The run time of a vCPU that is
    /// boosted by its reserve is charged to the reserve.
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

    /// Boosts a vCPU that used its slice for an event and has more work. The vCPU is boosted only
    /// if its I/O reserve exceeds the credits of one slice. The credits of one slice stay in the
    /// reserve for the next event.
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

    /// Run time that can still be charged to the vCPU's I/O reserve. Returns `None` if run time is
    /// not charged to the reserve.
    #[must_use]
    pub fn drawing(&self, vcpu: VcpuId) -> Option<Nanos> {
        let account = self.account_of(vcpu)?;
        let level = (account.reserve.level() - account.drawing?).max(0).unsigned_abs();
        let per_ms = self.terms.per_ms.max(1).unsigned_abs();
        Some(Nanos(level.saturating_mul(1_000_000) / per_ms))
    }

    /// Stops charging the vCPU's I/O reserve. After the call of `end_drawing`, the vCPU's credits
    /// determine the vCPU's class.
    pub fn end_drawing(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.drawing.take().is_some() {
            account.class = if account.credit < 0 { Class::Over } else { Class::Under };
        }
    }

    /// Records that the vCPU ran at a tick. The caller must charge the vCPU's run time before the
    /// call of `tick`.
    pub fn tick(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.class == Class::Boost && account.drawing.is_none() {
            account.class = Class::Under;
        }
        self.activate(vcpu);
    }

    /// Makes the vCPU active, so that it earns credits.
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

    /// Distributes the credits of an epoch. `busy` returns whether a vCPU has work.
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
            // Unused credits do not accumulate.
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
                    // A VM that could not use all its credits moves to the front, so that the VMs
                    // behind this VM get the remaining credits.
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

    /// Gives one vCPU its part of the VM's credits. Returns the vCPU's new number of credits, or 0
    /// if the vCPU is not active.
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
