//! Placement: the processor of each vCPU.
//!
//! # Problem
//! Deadlines need room on one processor. None of them may be on the driver domain's processor.
//!
//! # Source
//! VM jitter §III-B: the driver domain preempts all others, and no real-time guest runs on its
//! processor.
//!
//! # Quantities
//! Shares are in millionths of a processor and hold when all vCPUs have work. The shares divide all
//! processors by weight, with at most one processor for each vCPU. The excess of a heavy vCPU above
//! one processor goes to the others.
//!
//! # Approach
//! 1. The driver domain's vCPUs take the first processors.
//! 2. Each heavy vCPU gets a processor before all others. A vCPU is heavy if its share would exceed
//!    a processor.
//! 3. vCPUs with deadlines follow, the shortest deadline first. Each goes to the processor that
//!    admits it and where deadlines take least. It never goes to the driver domain's processor, and
//!    if possible not to that of a heavy vCPU.
//! 4. All other vCPUs follow, the heaviest first. Each goes to the processor with the least weight.
//!    This processor is only the first one, because the credit queues balance these vCPUs.
//!
//! # Example
//! A driver domain and four VMs with D = 3 ms share three processors. Two of the VMs are placed on
//! the second processor and two on the third. A test covers this.
//!
//! # Departures
//! The paper only keeps real-time guests off the driver domain's processor. Here admission also
//! checks whether their deadlines fit.
//!
//! # Cost
//! Placement makes O(vCPUs x processors) calls of [`crate::admission`].

use core::cmp::Reverse;

use penstock_units::{CpuId, Nanos};
use thiserror::Error;

use crate::admission::{Claim, Limits, Refusal, WHOLE_PPM, admit};
use crate::contract::{Contract, Mode};

/// A VM to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Scheduling parameters of the VM.
    pub contract: Contract,
    /// Number of the VM's vCPUs.
    pub vcpus: u16,
}

/// Reason for which a VM cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// Only the driver domain's processors exist, so none is left for this VM.
    #[error("VM {vm} has no processor to run on; give the scheduler more than the driver domain's")]
    NoProcessor {
        /// Index of the VM in the list.
        vm: usize,
    },
    /// The VM's deadline fits on no processor.
    #[error("VM {vm} fits on no processor; nearest is {cpu}: {reason}")]
    Refused {
        /// Index of the VM in the list.
        vm: usize,
        /// The processor that comes nearest to admitting the VM.
        cpu: CpuId,
        /// Reason for the refusal on that processor.
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

/// Share of a processor for each vCPU of the VM when all have work, in millionths.
#[must_use]
pub fn share_ppm(guests: &[Guest], vm: usize, cpus: u16) -> u64 {
    let Some(mine) = guests.get(vm).map(weight) else { return 0 };
    let (left, sum) = besides_heavy(guests, cpus);
    (left * mine / sum.max(1)).min(WHOLE_PPM)
}

fn weight(guest: &Guest) -> u64 {
    u64::from(guest.contract.weight.get())
}

/// Share of all vCPUs that are not heavy, in millionths of a processor, and the sum of their
/// weights. A vCPU is heavy if its share would exceed a processor.
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

/// Assigns a processor to each vCPU of each VM, in the order of the list.
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

/// The processor where deadlines take least among those that admit the claim. Enters the claim
/// there.
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
        // The heavy VM has a processor to itself, and both deadlines are kept on the other
        // processor.
        let homes = place(&guests, 2, Limits::default()).unwrap();
        assert!(homes[0] == homes[1] && homes[0] != homes[2], "{homes:?}");
        // On one processor the heavy VM gets nearly all of it.
        assert_eq!(share_ppm(&guests, 0, 1), 9_803);
        assert!(place(&guests, 1, Limits::default()).is_err());
        // With as many heavy vCPUs as processors, light vCPUs are guaranteed nothing.
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
            error.to_string().starts_with("VM 2 fits on no processor; nearest is 0: "),
            "{error}"
        );
        assert_eq!(share_ppm(&many, 0, 1), 333_333);
        assert_eq!(share_ppm(&many, 9, 1), 0);
        assert_eq!(share_ppm(&many, 0, 5), WHOLE_PPM);
    }
}
