//! Accounts of credits: what every vCPU may use, used, and in which class it therefore is.
//!
//! **Problem.** Processor time in proportion to weights, without counting against anybody the time
//! that nobody else wanted. **Source.** Xen's credit scheduler (xen/common/sched_credit.c, 4.x);
//! its rules and constants, not its text.
//!
//! **Quantities.** A credit: 1/10 ms of a processor ([`CreditTerms::XEN`]) or 1 ns
//! ([`CreditTerms::FINE`]). Epoch: 30 ms, 300 of Xen's credits for each processor. Weight counts
//! for each active vCPU. Balance: the sum of the active ones' credits after the last epoch.
//!
//! **Rule.** Used time is burned, with the remainder of the division kept. Who is found running at
//! a tick is active, and no longer boosted. Every epoch each active VM is given its weight's part
//! of all credits (and of a negative balance), at most what its active vCPUs could use, or its
//! cap; what it cannot use goes to those after it. Below 0 a vCPU is OVER, else UNDER. Bounds are
//! -1 epoch, and +1 epoch: whoever has more does not use what it is given, earns no more, and keeps
//! half. Who is below its cap by more than it may use in an epoch is parked until it is UNDER.
//!
//! **Example** (a test). Weights 256 and 512 on one processor: 100 and 200 credits an epoch.
//!
//! **Departures** of [`CreditTerms::FINE`], none of [`CreditTerms::XEN`]. With a credit of 0.1 ms,
//! rounding up gives a processor with 7 VMs 301 credits for 300; so credits are nanoseconds. Bounds
//! that are as wide as a slice cut off what a slice swings, and with it shares; so the lower one is
//! ten epochs (measured in `docs/vcpu.md`), and above the upper one only who was idle stops
//! earning. Ticks fall together with slices of 0.5 ms, and one vCPU of two may never be found; so
//! who is charged or has work is active. What pinned VMs leave of other processors
//! would be handed out again and again, and who starts later would wait until it is used up; so a
//! positive balance is taken off as a negative one is added.
//! **Cost.** O(1) but for `account`, O(vCPUs) an epoch.

use penstock_units::{Nanos, VcpuId, VmId, Weight};

use crate::contract::Contract;
use crate::reserve::Reserve;

/// A vCPU's place by credit; greater goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It used more than its part.
    Over,
    /// It has credits left.
    Under,
    /// It has, and has just been woken.
    Boost,
}

/// Constants of a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditTerms {
    /// Credits in a millisecond of a processor.
    pub per_ms: i64,
    /// Epochs by which an account may be overdrawn.
    pub floor_epochs: i64,
    /// Whether ticks are how it is found out who is active: who has work may stop earning at the
    /// upper bound, and begins again when a tick finds it running.
    pub sampled: bool,
}

impl CreditTerms {
    /// An epoch, and the slice.
    pub const EPOCH: Nanos = Nanos::from_millis(30);
    /// Between two ticks.
    pub const TICK: Nanos = Nanos::from_millis(10);
    /// Xen's.
    pub const XEN: Self = Self { per_ms: 10, floor_epochs: 1, sampled: true };
    /// Penstock's.
    pub const FINE: Self = Self { per_ms: 1_000_000, floor_epochs: 10, sampled: false };

    /// Credits of a processor in an epoch.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.per_ms * 30
    }
}

#[derive(Clone, Debug)]
struct Account {
    vm: VmId,
    credit: i64,
    /// Of the last division, in millionths of a credit.
    rest: u64,
    class: Class,
    active: bool,
    parked: bool,
    reserve: Reserve,
    /// It runs on its reserve, down to this.
    drawing: Option<i64>,
}

#[derive(Clone, Debug)]
struct Holder {
    weight: i64,
    cap_pct: i64,
    vcpus: Vec<VcpuId>,
    active: i64,
}

/// Whose standing an epoch changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parking {
    /// They may not run.
    pub parked: Vec<VcpuId>,
    /// They may again.
    pub unparked: Vec<VcpuId>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct CreditBook {
    terms: CreditTerms,
    cpus: i64,
    accounts: Vec<Option<Account>>,
    holders: Vec<Option<Holder>>,
    /// VMs with active vCPUs, in the order in which they are served.
    order: Vec<VmId>,
    /// Of active vCPUs.
    weight: i64,
    balance: i64,
}

/// `a * b / c`, rounded up; 0 of nothing.
fn part(a: i64, b: i64, c: i64) -> i64 {
    let (wide, c) = (i128::from(a) * i128::from(b), i128::from(c.max(1)));
    i64::try_from((wide + c - 1).div_euclid(c)).unwrap_or(i64::MAX)
}

/// The first free number, which is taken with `value`.
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
    /// Nobody's, for so many processors.
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

    /// Its constants.
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

    /// Opens accounts for a VM: without credits, UNDER, not active. `None`: all numbers are taken.
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

    /// Goes on with the account that `was` has in `before`: its credits, its reserve, and whether
    /// it earns.
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

    /// Closes a VM's accounts.
    pub fn close(&mut self, vm: VmId) {
        let Some(holder) = self.holders.get_mut(vm.index()).and_then(Option::take) else { return };
        self.weight -= holder.weight * holder.active;
        self.order.retain(|other| *other != vm);
        for vcpu in holder.vcpus {
            self.accounts[vcpu.index()] = None;
        }
    }

    /// A VM's vCPUs.
    #[must_use]
    pub fn vcpus(&self, vm: VmId) -> &[VcpuId] {
        let holder = self.holders.get(vm.index()).and_then(Option::as_ref);
        holder.map_or(&[], |holder| &holder.vcpus)
    }

    /// The VM a vCPU belongs to.
    #[must_use]
    pub fn vm_of(&self, vcpu: VcpuId) -> Option<VmId> {
        self.account_of(vcpu).map(|account| account.vm)
    }

    /// Whether there is such an account.
    #[must_use]
    pub fn has(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some()
    }

    /// What it has left.
    #[must_use]
    pub fn credit(&self, vcpu: VcpuId) -> i64 {
        self.account_of(vcpu).map_or(0, |account| account.credit)
    }

    /// Its class.
    #[must_use]
    pub fn class(&self, vcpu: VcpuId) -> Class {
        self.account_of(vcpu).map_or(Class::Over, |account| account.class)
    }

    /// Whether it used its cap up.
    #[must_use]
    pub fn parked(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some_and(|account| account.parked)
    }

    /// Whether it takes part in what is handed out.
    #[must_use]
    pub fn active(&self, vcpu: VcpuId) -> bool {
        self.account_of(vcpu).is_some_and(|account| account.active)
    }

    /// What is reserved for its I/O.
    #[must_use]
    pub fn reserve(&self, vcpu: VcpuId) -> i64 {
        self.account_of(vcpu).map_or(0, |account| account.reserve.level())
    }

    /// It ran for so long.
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

    /// It was blocked and is woken, by an external event or not: boosted, if it has credits left,
    /// or a reserve for events. For how long it may run on its reserve.
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

    /// It had a slice for an event and goes on: boosted, if its reserve is more than another slice
    /// for the next event. Without credits left by that alone, as it may only compute.
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

    /// For how long it may run on its reserve; `None`: it does not.
    #[must_use]
    pub fn drawing(&self, vcpu: VcpuId) -> Option<Nanos> {
        let account = self.account_of(vcpu)?;
        let level = (account.reserve.level() - account.drawing?).max(0).unsigned_abs();
        let per_ms = self.terms.per_ms.max(1).unsigned_abs();
        Some(Nanos(level.saturating_mul(1_000_000) / per_ms))
    }

    /// It runs on its reserve no longer.
    pub fn end_drawing(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.drawing.take().is_some() {
            account.class = if account.credit < 0 { Class::Over } else { Class::Under };
        }
    }

    /// It is found running at a tick, charged before.
    pub fn tick(&mut self, vcpu: VcpuId) {
        let Some(account) = self.account_mut(vcpu) else { return };
        if account.class == Class::Boost && account.drawing.is_none() {
            account.class = Class::Under;
        }
        self.activate(vcpu);
    }

    /// It earns, if it did not.
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

    /// Hands out an epoch's credits. `busy` says who has work.
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
            // What nobody could use does not pile up.
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
                    // Who could not use all stands in front, so that others come behind it.
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

    /// One vCPU's part; its credits afterwards, 0 of one that is not active.
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
