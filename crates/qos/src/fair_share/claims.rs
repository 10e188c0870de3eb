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

use super::{FairShare, NONE, Slots, narrow};

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
