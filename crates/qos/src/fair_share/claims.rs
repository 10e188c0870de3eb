//! Claims: frames that wait in a VM's ring, and that the output has not got yet.
//!
//! # Problem
//!
//! If a core and not the output is the bottleneck, frames wait in the VMs' rings. A copy of each
//! frame into a queue, only to choose among the VMs, takes time of the core.
//!
//! # Approach
//!
//! The ring of a VM is the tail of the VM's queue. A VM with a *claim* takes part in the discipline
//! like a VM with a waiting frame of the claimed length. If the discipline's choice is a VM that
//! has only a claim, the caller takes frames from the VM's ring and passes them to the output. Then
//! the caller reports what passed ([`FairShare::passed`]), and the accounts are charged for it.
//! Waiting frames of the VM come before its claim, so the VM's frames stay in order.
//!
//! Limits and counters of waiting frames do not include claims.
//!
//! # Several batches for one decision
//!
//! A decision for each batch takes time of the core. While only few VMs have claims, the caller may
//! let a VM pass several batches for one decision ([`FairShare::again`]). The VM is charged for all
//! of them before the next decision, so its share stays the same. In a *rotation* of a number of
//! batches, each VM passes its part of them in a row, and at least one. A VM with a small share
//! thus waits about as long as with one decision for each batch.
//!
//! If another VM gets frames or a claim, the next batch needs a decision.

use super::{FairShare, NONE, Slots, narrow};
use crate::discipline::Discipline as _;

/// What an output sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A waiting frame, which [`FairShare::next`] returns.
    Frame,
    /// The frames in the ring of the VM in this slot.
    Claim(usize),
}

impl<T: Copy + Default> FairShare<T> {
    /// Returns what the output sends next. Returns `None` if no frame waits and no VM has a claim.
    pub fn turn(&mut self) -> Option<Turn> {
        if !self.goes_on() {
            self.settle();
            self.burst = Some(self.decide()?);
        }
        let slot = self.burst.as_ref()?.vm as usize;
        let is_claim = self.vms.get(slot)?.queue.is_empty();
        Some(if is_claim { Turn::Claim(slot) } else { Turn::Frame })
    }

    /// Returns the slot of the VM that the last [`Self::turn`] returned, if the VM's next batch may
    /// pass without another decision. A VM may pass its part of a rotation of `batches` batches in
    /// a row, and at least one batch. Returns `None` if frames wait, or if the VM has no claim.
    #[must_use]
    pub fn again(&self, batches: u32) -> Option<usize> {
        let burst = self.burst.filter(|burst| (1..batches).contains(&burst.batches))?;
        let (slot, tenant) = (burst.vm as usize, burst.tenant as usize);
        let vm = self.vms.get(slot).filter(|vm| vm.claim > 0 && self.is_empty())?;
        let (own, all) = if self.many { self.eevdf.part(tenant) } else { self.vtrr.part(tenant) };
        let weights = self.tenants.get(tenant)?.ring.weights;
        let due = u64::from(batches) * own * u64::from(vm.place.weight().get());
        (u64::from(burst.batches) * all * weights < due).then_some(slot)
    }

    /// Sets the claim of a VM: the expected length in bytes of the frames that the VM hands over
    /// next. 0 withdraws the claim. The call does nothing if the slot has no VM.
    pub fn claim(&mut self, slot: usize, bytes: u32) {
        let Some(vm) = self.vms.get(slot).filter(|vm| vm.tenant != NONE) else { return };
        let (before, waits, tenant) = (vm.claim, !vm.queue.is_empty(), vm.tenant as usize);
        if before == bytes {
            return;
        }
        if waits {
            // The claim is behind the waiting frames, and decides nothing yet.
            self.put_claim(slot, bytes);
            return;
        }
        self.settle();
        self.put_claim(slot, bytes);
        if before == 0 {
            let ring = &mut self.tenants[tenant].ring;
            let silent = ring.is_empty();
            ring.enter(&mut Slots(&mut self.vms), narrow(slot));
            if silent {
                self.choose(tenant);
                self.announce(tenant);
            }
        } else if bytes == 0 {
            self.silence(tenant, slot);
        } else if self.tenants[tenant].chosen == narrow(slot) {
            self.announce(tenant);
        }
    }

    /// Sets the claim of a VM and the number of claims, without a decision.
    pub(super) fn put_claim(&mut self, slot: usize, bytes: u32) {
        let claim = &mut self.vms[slot].claim;
        self.claims = self.claims + u32::from(bytes > 0) - u32::from(*claim > 0);
        *claim = bytes;
    }

    /// Returns the claim of a VM in bytes, or 0 if the VM has no claim.
    #[must_use]
    pub fn claimed(&self, slot: usize) -> u32 {
        self.vms.get(slot).map_or(0, |vm| vm.claim)
    }

    /// Whether at least one VM has a claim.
    #[must_use]
    pub const fn has_claims(&self) -> bool {
        self.claims > 0
    }

    /// Withdraws the claims of all VMs.
    pub fn withdraw_claims(&mut self) {
        for slot in 0..self.vms.len() {
            if self.claims == 0 {
                break;
            }
            self.claim(slot, 0);
        }
    }

    /// Reports that frames of the VM passed the output without waiting, because the last
    /// [`Self::turn`] returned the VM's claim. The frames have `bytes` bytes on the link. `claim`
    /// is the VM's new claim in bytes, or 0.
    pub fn passed(&mut self, slot: usize, (frames, bytes): (u32, u32), claim: u32) {
        let Some(vm) = self.vms.get_mut(slot).filter(|vm| vm.tenant != NONE) else { return };
        vm.account.sent_bytes += u64::from(bytes);
        vm.account.sent_frames += u64::from(frames);
        let Some(burst) = self.burst.as_mut().filter(|burst| burst.vm as usize == slot) else {
            // The turn ended meanwhile.
            self.claim(slot, claim);
            return;
        };
        // The frames were chosen together, so they count like one frame.
        burst.sent = burst.sent.saturating_add(bytes);
        burst.last = bytes;
        burst.batches += 1;
        self.put_claim(slot, claim);
        if !self.vms[slot].is_active() {
            self.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_units::{Nanos, Weight};

    use super::*;
    use crate::fair_share::{Bound, Capacity, Offer};

    /// Returns an output with a VM of each of two tenants. The first tenant has the weight 2.
    fn output() -> FairShare<u32> {
        let mut fair = FairShare::new(Capacity { tenants: 2, vms: 2, frames: 100 });
        for (slot, weight) in [(0, 2), (1, 1)] {
            assert!(fair.set_tenant(slot, Weight::new(weight).unwrap()));
            assert!(fair.set_vm(slot, slot, Weight::ONE, Bound::default()));
        }
        fair
    }

    #[test]
    fn vms_that_only_claim_get_their_shares() {
        for (batches, frames) in [([2_688, 2_688], 32), ([49_216, 49_216], 32), ([9_000, 500], 6)] {
            let mut fair = output();
            batches.iter().enumerate().for_each(|(vm, bytes)| fair.claim(vm, *bytes));
            let mut sent = [0_u64; 2];
            for _ in 0..20_000 {
                let Some(Turn::Claim(vm)) = fair.turn() else { unreachable!("both claim") };
                sent[vm] += u64::from(batches[vm]);
                fair.passed(vm, (frames, batches[vm]), batches[vm]);
            }
            let (due, batch) = (2 * sent[1], u64::from(batches[0].max(batches[1])));
            assert!(sent[0].abs_diff(due) <= 4 * batch + 20_000, "{batches:?}: {sent:?}");
            assert!(fair.is_empty());
        }
    }

    /// Lets VMs pass batches until `vm` has passed some. Returns their number.
    fn run_of(fair: &mut FairShare<u32>, vm: usize) -> u32 {
        loop {
            let Some(Turn::Claim(chosen)) = fair.turn() else { unreachable!("a VM has a claim") };
            assert_eq!(fair.again(8), None, "nothing passed for this decision");
            let mut batches = 0;
            while batches == 0 || fair.again(8).is_some() {
                fair.passed(chosen, (6, 66_000), 66_000);
                batches += 1;
            }
            if chosen == vm {
                return batches;
            }
        }
    }

    #[test]
    fn a_vm_passes_its_part_of_a_rotation_in_a_row() {
        let mut fair = output();
        [0, 1].iter().for_each(|vm| fair.claim(*vm, 66_000));
        // The VMs have two thirds and a third of eight batches.
        assert_eq!([0, 1].map(|vm| run_of(&mut fair, vm)), [6, 3]);
        fair.claim(1, 0);
        assert_eq!(run_of(&mut fair, 0), 8, "no other VM has a claim");

        let mut fair = FairShare::new(Capacity { tenants: 2, vms: 3, frames: 100 });
        [0, 1].iter().for_each(|slot| assert!(fair.set_tenant(*slot, Weight::ONE)));
        let weigh = |fair: &mut FairShare<u32>, vm: usize, weight: u64| {
            let weight = Weight::new(weight).unwrap();
            assert!(fair.set_vm(vm, vm / 2, weight, Bound::default()));
        };
        [(0, 3), (1, 1), (2, 9)].iter().for_each(|(vm, weight)| weigh(&mut fair, *vm, *weight));
        [0, 1, 2].iter().for_each(|vm| fair.claim(*vm, 66_000));
        assert_eq!([0, 1, 2].map(|vm| run_of(&mut fair, vm)), [3, 1, 4]);
        weigh(&mut fair, 0, 1);
        assert_eq!([0, 1, 2].map(|vm| run_of(&mut fair, vm)), [2, 2, 4]);
        fair.claim(1, 0);
        assert_eq!([0, 2].map(|vm| run_of(&mut fair, vm)), [4, 4]);
    }

    #[test]
    fn each_of_many_vms_has_a_decision_for_each_batch() {
        let mut fair = FairShare::new(Capacity { tenants: 40, vms: 40, frames: 100 });
        for slot in 0..40 {
            assert!(fair.set_tenant(slot, Weight::ONE));
            assert!(fair.set_vm(slot, slot, Weight::ONE, Bound::default()));
            fair.claim(slot, 66_000);
        }
        assert_eq!((fair.discipline_name(), run_of(&mut fair, 7)), ("eevdf", 1));
        let Some(Turn::Claim(vm)) = fair.turn() else { unreachable!("all claim") };
        fair.passed(vm, (6, 66_000), 66_000);
        assert_eq!([40, 41].map(|batches| fair.again(batches)), [None, Some(vm)]);
    }

    #[test]
    fn a_run_of_batches_ends_if_another_vm_has_frames_or_a_claim() {
        let after = |change: fn(&mut FairShare<u32>)| {
            let mut fair = output();
            fair.claim(0, 3_000);
            assert_eq!((fair.again(8), fair.turn()), (None, Some(Turn::Claim(0))));
            fair.passed(0, (2, 3_000), 3_000);
            assert_eq!(fair.again(8), Some(0));
            change(&mut fair);
            fair.again(8)
        };
        assert_eq!(after(|_| ()), Some(0));
        assert_eq!(after(|fair| fair.claim(1, 3_000)), None);
        assert_eq!(after(|fair| fair.claim(0, 0)), None);
        assert_eq!(after(|fair| fair.accept(1, 7, 1_000, Nanos(1))), None);
        assert_eq!(after(|fair| fair.accept(0, 7, 1_000, Nanos(1))), None);
    }

    #[test]
    fn runs_of_batches_change_no_share() {
        for batch in [2_688, 66_000] {
            let mut fair = output();
            [0, 1].iter().for_each(|vm| fair.claim(*vm, batch));
            let mut sent = [0_u64; 2];
            for _ in 0..20_000 {
                let vm = fair.again(8).unwrap_or_else(|| match fair.turn() {
                    Some(Turn::Claim(vm)) => vm,
                    turn => unreachable!("{turn:?}"),
                });
                sent[vm] += u64::from(batch);
                fair.passed(vm, (32, batch), batch);
            }
            let (due, batch) = (2 * sent[1], u64::from(batch));
            assert!(sent[0].abs_diff(due) <= 16 * batch + 20_000, "{batch}: {sent:?}");
        }
    }

    #[test]
    fn waiting_frames_of_a_vm_come_before_its_claim() {
        let mut fair = output();
        fair.claim(0, 3_000);
        assert_eq!(fair.turn(), Some(Turn::Claim(0)));
        assert_eq!(fair.offer(0, 7, 1_000, Nanos(1)), Offer::Queued);
        assert_eq!(fair.turn(), Some(Turn::Frame));
        assert_eq!(fair.next(Nanos(1), |_, _| {}).map(|next| next.item), Some(7));
        assert_eq!((fair.turn(), fair.next(Nanos(1), |_, _| {})), (Some(Turn::Claim(0)), None));
        fair.passed(0, (2, 3_000), 0);
        assert_eq!((fair.turn(), fair.claimed(0)), (None, 0));
        assert_eq!(fair.account(0).map(|account| account.sent_bytes), Some(4_000));
    }

    #[test]
    fn a_withdrawn_claim_and_a_removed_vm_have_no_turn() {
        let mut fair = output();
        fair.claim(0, 3_000);
        fair.claim(1, 3_000);
        fair.claim(0, 0);
        assert_eq!(fair.turn(), Some(Turn::Claim(1)));
        fair.remove_vm(1, |_| unreachable!("no frame waits"));
        assert_eq!(fair.turn(), None);
        fair.claim(1, 3_000);
        assert_eq!(fair.turn(), None, "the slot has no VM");
        fair.claim(0, 1);
        fair.withdraw_claims();
        assert_eq!(fair.turn(), None);
    }
}
