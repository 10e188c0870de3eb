//! Placement, which chooses the processor of each vCPU.
//!
//! # Problem
//! The deadlines on one processor must fit together, and no vCPU with a deadline may be on the
//! driver domain's processor.
//!
//! # Source
//! By VM jitter §III-B, the driver domain preempts all other VMs, and no real-time guest runs on
//! the driver domain's processor.
//!
//! # Quantities
//! A vCPU's share is the part of a processor that the vCPU gets if all vCPUs have work, in
//! millionths. The time of all processors is divided among vCPUs by weight, but a vCPU gets at most
//! one processor. If a vCPU's part by weight exceeds one processor, the other vCPUs share the
//! excess.
//!
//! # Approach
//! 1. The driver domain's vCPUs take the first processors.
//! 2. Each vCPU with a share that would exceed one processor (a heavy vCPU) gets a processor before
//!    all other vCPUs.
//! 3. After the heavy vCPUs, which need a whole processor, placement assigns the vCPUs with
//!    deadlines, the shortest deadline first. A vCPU with a deadline goes to the processor with the
//!    lowest sum of deadline slices of all processors that admit the vCPU. Placement puts no vCPU
//!    with a deadline on the driver domain's processor. A vCPU with a deadline shares a processor
//!    with a heavy vCPU (a vCPU that needs a whole processor) only if no other processor admits the
//!    deadline.
//! 4. Placement assigns the vCPUs without deadlines last, the heaviest vCPU first. Each vCPU
//!    without a deadline goes to the processor with the least weight. The vCPU may move to another
//!    processor later, because the credit queues balance the load.
//!
//! # Example
//! A driver domain and four VMs with a deadline of 3 ms share three processors. In this example
//! with one driver domain and four VMs, placement puts two VMs on the second processor and two VMs
//! on the third.
//!
//! # Departures
//! The paper on VM jitter requires only that no real-time guest is on the driver domain's
//! processor. Penstock's placement also checks whether the deadlines fit on the processors.
//!
//! # Cost
//! Placement makes O(vCPUs x processors) calls of [`crate::admission`].

use core::cmp::Reverse;

use penstock_units::{CpuId, Nanos};
use thiserror::Error;

use crate::admission::{Claim, Limits, Refusal, WHOLE_PPM, admit};
use crate::contract::{Contract, Mode};

/// A VM that placement assigns to processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Scheduling parameters of the VM.
    pub contract: Contract,
    /// Number of the VM's vCPUs. All vCPUs of the VM have the same contract.
    pub vcpus: u16,
}

/// Reason why a VM cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// No processor exists, or the VM has a deadline and every processor belongs to the driver
    /// domain.
    #[error(
        "VM {vm} has no processor to run on; give the scheduler processors that the driver domain \
         does not use"
    )]
    NoProcessor {
        /// Index of the VM in the list of VMs.
        vm: usize,
    },
    /// The VM's deadline fits on no processor.
    #[error("VM {vm} fits on no processor; closest is processor {cpu}: {reason}")]
    Refused {
        /// Index of the VM in the list of VMs.
        vm: usize,
        /// The processor that is closest to admitting the VM.
        cpu: CpuId,
        /// Reason why the processor `cpu` does not admit the VM.
        reason: Refusal,
    },
}

#[derive(Clone, Debug, Default)]
struct Load {
    driver: bool,
    /// Whether the processor has a vCPU with a share that would exceed the processor.
    heavy: bool,
    claims: Vec<Claim>,
    weight: u64,
}

/// Share of a processor for each vCPU of VM `vm` if all vCPUs have work, in millionths. 0 for an
/// unknown VM.
#[must_use]
pub fn share_ppm(guests: &[Guest], vm: usize, cpus: u16) -> u64 {
    let Some(mine) = guests.get(vm).map(weight) else { return 0 };
    let (left, sum) = besides_heavy(guests, cpus);
    (left * mine / sum.max(1)).min(WHOLE_PPM)
}

fn weight(guest: &Guest) -> u64 {
    u64::from(guest.contract.weight.get())
}

/// Returns the capacity of the processors that heavy vCPUs do not need, in millionths, and the
/// total weight of all other vCPUs. A vCPU is heavy if its share would exceed a processor.
fn besides_heavy(guests: &[Guest], cpus: u16) -> (u64, u64) {
    let mut order: Vec<&Guest> = guests.iter().collect();
    order.sort_by_key(|guest| Reverse(weight(guest)));
    let mut left = u64::from(cpus) * WHOLE_PPM;
    let mut sum: u64 = guests.iter().map(|guest| weight(guest) * u64::from(guest.vcpus)).sum();
    for guest in order {
        if left * weight(guest) <= WHOLE_PPM * sum {
            break;
        }
        left -= WHOLE_PPM * u64::from(guest.vcpus);
        sum -= weight(guest) * u64::from(guest.vcpus);
    }
    (left, sum)
}

/// Assigns a processor to each vCPU of each VM. The results are in the order of the VMs in
/// `guests`.
///
/// # Errors
/// Returns the first VM that cannot be placed, with the reason.
pub fn place(
    guests: &[Guest],
    cpus: u16,
    limits: Limits,
) -> Result<Vec<Vec<CpuId>>, PlacementError> {
    let mut loads = vec![Load::default(); usize::from(cpus)];
    let mut homes = vec![Vec::new(); guests.len()];
    let (left, sum) = besides_heavy(guests, cpus);
    let is_heavy = |guest: &Guest| left * weight(guest) > WHOLE_PPM * sum;
    let rank = |guest: &Guest| match guest.contract.mode {
        Mode::Driver => (0, Nanos(0), 0),
        Mode::None if is_heavy(guest) => (1, Nanos(0), u16::MAX - guest.contract.weight.get()),
        Mode::Periodic | Mode::Aperiodic => (2, guest.contract.deadline, 0),
        Mode::None => (3, Nanos(0), u16::MAX - guest.contract.weight.get()),
    };
    let mut order: Vec<usize> = (0..guests.len()).collect();
    order.sort_by_key(|vm| rank(&guests[*vm]));
    let mut drivers = (0..cpus).cycle();
    for vm in order {
        let guest = &guests[vm];
        let share_ppm = share_ppm(guests, vm, cpus);
        for _ in 0..guest.vcpus {
            let at = match guest.contract.mode {
                Mode::Driver => drivers.next().map(usize::from),
                Mode::None => (0..loads.len()).min_by_key(|at| loads[*at].weight),
                Mode::Periodic | Mode::Aperiodic => {
                    let claim = Claim { deadline: guest.contract.deadline, share_ppm };
                    Some(with_room(&mut loads, vm, claim, limits)?)
                }
            };
            let at = at.ok_or(PlacementError::NoProcessor { vm })?;
            loads[at].driver |= guest.contract.mode == Mode::Driver;
            loads[at].heavy |= is_heavy(guest);
            loads[at].weight += u64::from(guest.contract.weight.get());
            homes[vm].push(cpu_id(at));
        }
    }
    Ok(homes)
}

fn cpu_id(at: usize) -> CpuId {
    CpuId(u16::try_from(at).unwrap_or(u16::MAX))
}

/// Adds a vCPU's claim to a processor that admits the claim, and returns the processor. If several
/// processors admit the claim, the function chooses the processor with the lowest sum of deadline
/// slices.
fn with_room(
    loads: &mut [Load],
    vm: usize,
    claim: Claim,
    limits: Limits,
) -> Result<usize, PlacementError> {
    let taken = |load: &Load| -> u64 {
        load.claims.iter().map(|c| crate::admission::density_ppm(c.deadline)).sum()
    };
    let mut order: Vec<usize> = (0..loads.len()).filter(|at| !loads[*at].driver).collect();
    order.sort_by_key(|at| (loads[*at].heavy, taken(&loads[*at]), loads[*at].weight));
    let mut nearest = None;
    for at in order {
        loads[at].claims.push(claim);
        match admit(&loads[at].claims, false, limits) {
            Ok(()) => return Ok(at),
            Err(reason) => nearest = nearest.or(Some((at, reason))),
        }
        loads[at].claims.pop();
    }
    Err(match nearest {
        Some((at, reason)) => PlacementError::Refused { vm, cpu: cpu_id(at), reason },
        None => PlacementError::NoProcessor { vm },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::Weight;

    fn guest(mode: Mode, deadline_ms: u64) -> Guest {
        let deadline = Nanos::from_millis(deadline_ms);
        Guest { contract: Contract::real_time(mode, deadline, Weight::ONE), vcpus: 1 }
    }

    fn driver() -> Guest {
        Guest { contract: Contract::driver(Weight::ONE), vcpus: 1 }
    }

    #[test]
    fn deadlines_are_spread_and_keep_away_from_the_driver_domain() {
        let mut guests = vec![guest(Mode::Periodic, 3); 4];
        guests.push(driver());
        guests.push(guest(Mode::None, 0));
        let homes = place(&guests, 3, Limits::default()).unwrap();
        assert_eq!(homes[4], [CpuId(0)]);
        for cpu in [1, 2] {
            assert_eq!(homes[..4].iter().filter(|h| h[0] == CpuId(cpu)).count(), 2);
        }
        assert_eq!(homes[5], [CpuId(0)], "where least weight is");
    }

    #[test]
    fn the_others_get_what_a_heavy_vm_cannot_use() {
        let mut guests = vec![guest(Mode::Periodic, 3); 2];
        guests.push(Guest {
            contract: Contract::by_credit(Weight::new(100).unwrap()),
            ..guest(Mode::None, 0)
        });
        assert_eq!((share_ppm(&guests, 0, 2), share_ppm(&guests, 2, 2)), (500_000, WHOLE_PPM));
        // The heavy VM is alone on a processor, and both deadlines are kept on the other processor.
        let homes = place(&guests, 2, Limits::default()).unwrap();
        assert!(homes[0] == homes[1] && homes[0] != homes[2], "{homes:?}");
        // On a single processor, the heavy VM gets nearly all the time.
        assert_eq!(share_ppm(&guests, 0, 1), 9_803);
        assert!(place(&guests, 1, Limits::default()).is_err());
        // With as many heavy vCPUs as processors, the share of light vCPUs is 0.
        guests[2].vcpus = 2;
        assert_eq!((share_ppm(&guests, 0, 2), share_ppm(&guests, 2, 2)), (9_900, 990_099));
    }

    #[test]
    fn a_vm_that_fits_nowhere_gets_the_reason() {
        let alone = [driver(), guest(Mode::Aperiodic, 3)];
        let error = place(&alone, 1, Limits::default()).unwrap_err();
        assert_eq!(error, PlacementError::NoProcessor { vm: 1 });
        let many = vec![guest(Mode::Periodic, 1); 3];
        let error = place(&many, 1, Limits::default()).unwrap_err();
        assert!(
            error.to_string().starts_with("VM 2 fits on no processor; closest is processor 0: "),
            "{error}"
        );
        assert_eq!(share_ppm(&many, 0, 1), 333_333);
        assert_eq!(share_ppm(&many, 9, 1), 0);
        assert_eq!(share_ppm(&many, 0, 5), WHOLE_PPM);
    }
}
