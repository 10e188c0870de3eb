//! Weights of the VMs of all tenants, from which the largest weight of a tenant is found.
//!
//! # Problem
//!
//! DRR ([`super::rounds`]) divides the weight of a VM by the largest weight of its tenant's VMs. A
//! snapshot of the configuration may give other weights to any of an output's 4,096 VMs, while
//! frames wait. The change of one weight must not cost a look at all VMs.
//!
//! # Approach
//!
//! Each tenant counts its VMs that have the largest weight ([`Heaviest`]). The count changes when a
//! VM joins, leaves or gets another weight. Only if the count falls to 0, the weights of the other
//! VMs are read.
//!
//! # Cost
//!
//! A change takes a few comparisons. If the last VM with the largest weight leaves or gets a
//! smaller weight, the change reads 8 bytes for each VM of the output. The table contains only
//! these 8 bytes for each VM, so the weights of 4,096 VMs take 32 KiB.

use penstock_units::Weight;

use super::NONE;

/// Largest weight of a tenant's VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heaviest {
    /// Largest weight; [`Weight::ONE`] if the tenant has no VM.
    pub weight: Weight,
    /// Number of the tenant's VMs that have the largest weight.
    vms: u32,
}

impl Heaviest {
    /// State of a tenant without VMs.
    pub const NONE: Self = Self { weight: Weight::ONE, vms: 0 };

    /// Whether the tenant has no VM.
    pub const fn is_none(&self) -> bool {
        self.vms == 0
    }

    fn add(&mut self, weight: Weight) {
        if weight > self.weight {
            *self = Self { weight, vms: 1 };
        } else if weight == self.weight {
            self.vms += 1;
        }
    }

    fn remove(&mut self, weight: Weight) {
        if weight == self.weight {
            self.vms = self.vms.saturating_sub(1);
        }
    }
}

/// Tenant and weight of each VM of an output.
#[derive(Clone, Debug)]
pub(super) struct Weights(Box<[(u32, Weight)]>);

impl Weights {
    pub fn new(vms: usize) -> Self {
        Self(vec![(NONE, Weight::ONE); vms].into_boxed_slice())
    }

    /// Whether the VM in slot `vm` belongs to a tenant.
    pub fn is_of(&self, vm: usize, tenant: u32) -> bool {
        self.0.get(vm).is_some_and(|(of, _)| *of == tenant)
    }

    /// Sets the weight of a tenant's VM, or removes the VM if `weight` is `None`. Changes the
    /// largest weight of the tenant, which is `heaviest`.
    pub fn set(&mut self, vm: usize, tenant: u32, weight: Option<Weight>, heaviest: &mut Heaviest) {
        let Some(place) = self.0.get_mut(vm) else { return };
        let (of, old) = *place;
        *place = (if weight.is_some() { tenant } else { NONE }, weight.unwrap_or_default());
        if let Some(weight) = weight {
            heaviest.add(weight);
        }
        if of == tenant {
            heaviest.remove(old);
        }
        if heaviest.is_none() {
            *heaviest = self.heaviest(tenant);
        }
    }

    fn heaviest(&self, tenant: u32) -> Heaviest {
        let mut heaviest = Heaviest::NONE;
        let all = self.0.iter().filter(|(of, _)| *of == tenant);
        all.for_each(|(_, weight)| heaviest.add(*weight));
        heaviest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_weight_follows_all_changes() {
        let weight = |of: u64| Some(Weight::new(of).unwrap());
        let mut weights = Weights::new(4);
        let mut heaviest = Heaviest::NONE;
        let mut largest = |vm, of| {
            weights.set(vm, 7, of, &mut heaviest);
            (heaviest.weight.get(), heaviest.vms)
        };
        assert_eq!(largest(0, weight(1)), (1, 1));
        assert_eq!(largest(1, weight(5)), (5, 1));
        assert_eq!(largest(2, weight(5)), (5, 2));
        assert_eq!(largest(3, weight(2)), (5, 2));
        assert_eq!(largest(1, weight(3)), (5, 1));
        assert_eq!(largest(2, weight(2)), (3, 1), "from the weights of the others");
        assert_eq!(largest(1, None), (2, 2));
        assert_eq!(largest(2, weight(9)), (9, 1));
        assert_eq!(largest(2, None), (2, 1));
        assert_eq!(largest(3, None), (1, 1));
        assert_eq!(largest(0, None), (1, 0));
    }

    #[test]
    fn tenants_do_not_see_each_other() {
        let mut weights = Weights::new(2);
        let (mut one, mut other) = (Heaviest::NONE, Heaviest::NONE);
        weights.set(0, 1, Weight::new(4).ok(), &mut one);
        weights.set(1, 2, Weight::new(8).ok(), &mut other);
        assert!(weights.is_of(0, 1) && !weights.is_of(1, 1) && !weights.is_of(9, 1));
        weights.set(1, 2, None, &mut other);
        assert_eq!((one.weight.get(), other), (4, Heaviest::NONE));
    }
}
