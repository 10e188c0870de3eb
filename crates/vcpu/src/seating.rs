//! Places running VMs by choosing a processor for each vCPU. If the deadline of a VM fits on no
//! processor, the VM runs without a deadline.

use penstock_units::CpuId;

use crate::Contract;
use crate::admission::{Claim, Limits, Refusal, WHOLE_PPM, admit};
use crate::placement::{Guest, PlacementError, place};
use crate::reservation::Taken;

/// A running VM that must be placed on processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Scheduling parameters that the VM requested.
    pub contract: Contract,
    /// Number of vCPUs of the running VM.
    pub vcpus: u16,
}

/// Result of the placement for one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    /// Scheduling parameters of the VM that are in force. If admission control refused the
    /// requested deadline, the contract in force has no deadline.
    pub contract: Contract,
    /// Reason why the VM's requested deadline was refused, with a remedy. `None` means that no
    /// deadline was refused.
    pub problem: Option<String>,
    /// Processor and share of each vCPU of the VM.
    pub vcpus: Vec<Place>,
}

/// Processor, share and base weight of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the processor, as in [`crate::terms::VcpuSection::cpus`].
    pub cpu: u32,
    /// The vCPU's share of the processor's unreserved time if all vCPUs have work, in millionths.
    pub share_ppm: u64,
    /// The vCPU's weight divided by the average weight of the vCPUs on the processor, in
    /// millionths.
    pub base_ppm: u64,
}

/// Places all VMs on the processors `cpus`. `taken` is the part of the processors `cpus` that is
/// reserved for other VMs. If the deadline of a VM does not fit, the VM runs by weight, and the
/// result states the reason.
#[must_use]
pub fn seat(present: &[Present], cpus: &[u32], limits: Limits, taken: Taken) -> Vec<Seated> {
    let mut seated: Vec<Seated> = present
        .iter()
        .map(|vm| Seated { contract: vm.contract, problem: None, vcpus: Vec::new() })
        .collect();
    let count = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    let unreserved = WHOLE_PPM.saturating_sub(taken.most_ppm);
    let limits = Limits { density_ppm: limits.density_ppm.min(unreserved) };
    let whole = WHOLE_PPM.saturating_sub(taken.mean_ppm);
    // Each iteration removes a deadline, so the loop ends.
    loop {
        let guests: Vec<Guest> = seated
            .iter()
            .zip(present)
            .map(|(vm, asked)| Guest { contract: vm.contract, vcpus: asked.vcpus })
            .collect();
        let refused = match place(&guests, count, limits) {
            Ok(homes) => match check(&guests, &homes, limits, (count, whole)) {
                Ok(()) => {
                    fill(&mut seated, &guests, &homes, (cpus, whole));
                    return seated;
                }
                Err(refused) => refused,
            },
            Err(PlacementError::Refused { vm, cpu, reason }) => (vm, cpu, reason),
            // Without processors nothing is placed. A configuration has at least one processor.
            Err(_) => return seated,
        };
        let (vm, cpu, reason) = refused;
        let at = cpus.get(cpu.index()).copied().unwrap_or(0);
        let seat = &mut seated[vm];
        if !seat.contract.mode.is_real_time() {
            return seated;
        }
        let beside = match taken.most_ppm {
            0 => String::new(),
            ppm => {
                format!(" (up to {} % of this processor is reserved for other VMs)", ppm / 10_000)
            }
        };
        seat.problem = Some(format!("deadline refused: on processor {at}, {reason}{beside}"));
        seat.contract = Contract::by_credit(seat.contract.weight);
    }
}

fn weight(guest: &Guest) -> u64 {
    u64::from(guest.contract.weight.get())
}

/// Number of vCPUs on processor `cpu`, and the sum of the vCPUs' weights.
fn load(guests: &[Guest], homes: &[Vec<CpuId>], cpu: CpuId) -> (u64, u64) {
    let there = guests.iter().zip(homes).flat_map(|(guest, homes)| {
        homes.iter().filter(move |home| **home == cpu).map(move |_| weight(guest))
    });
    there.fold((0, 0), |(count, sum), weight| (count + 1, sum + weight))
}

/// Checks after the placement whether the deadlines on each processor still fit. In the check after
/// placement, a vCPU's share depends only on the weights of the vCPUs on its own processor.
fn check(
    guests: &[Guest],
    homes: &[Vec<CpuId>],
    limits: Limits,
    (cpus, whole): (u16, u64),
) -> Result<(), (usize, CpuId, Refusal)> {
    for cpu in (0..cpus).map(CpuId) {
        let (_, sum) = load(guests, homes, cpu);
        let real_time = |guest: &&Guest| guest.contract.mode.is_real_time();
        let (mut claims, mut whose) = (Vec::new(), Vec::new());
        for (vm, guest) in guests.iter().enumerate().filter(|(_, guest)| real_time(guest)) {
            for _ in homes[vm].iter().filter(|home| **home == cpu) {
                let share_ppm = whole * weight(guest) / sum.max(1);
                claims.push(Claim { deadline: guest.contract.deadline, share_ppm });
                whose.push(vm);
                if let Err(reason) = admit(&claims, false, limits) {
                    return Err((vm, cpu, reason));
                }
            }
        }
    }
    Ok(())
}

fn fill(
    seated: &mut [Seated],
    guests: &[Guest],
    homes: &[Vec<CpuId>],
    (cpus, whole): (&[u32], u64),
) {
    for (vm, seat) in seated.iter_mut().enumerate() {
        seat.vcpus = homes[vm]
            .iter()
            .map(|home| {
                let (count, sum) = load(guests, homes, *home);
                let mine = weight(&guests[vm]);
                Place {
                    cpu: cpus[home.index()],
                    share_ppm: mine * whole / sum.max(1),
                    base_ppm: mine * WHOLE_PPM * count / sum.max(1),
                }
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use penstock_units::{Nanos, Weight};

    fn hog(weight: u64) -> Present {
        Present { contract: Contract::by_credit(Weight::new(weight).unwrap()), vcpus: 1 }
    }

    fn periodic(deadline_ms: u64) -> Present {
        let deadline = Nanos::from_millis(deadline_ms);
        let contract = Contract::real_time(Mode::Periodic, deadline, Weight::ONE);
        Present { contract, vcpus: 1 }
    }

    fn seat(present: &[Present], cpus: &[u32], limits: Limits) -> Vec<Seated> {
        super::seat(present, cpus, limits, Taken::default())
    }

    #[test]
    fn reserved_time_counts_neither_for_shares_nor_for_deadlines() {
        let reserved = |ppm| Taken { mean_ppm: ppm, most_ppm: ppm };
        let present = [periodic(3), hog(1), hog(2)];
        let seated = super::seat(&present, &[1], Limits::default(), reserved(200_000));
        let places: Vec<Place> = seated.iter().map(|vm| vm.vcpus[0]).collect();
        assert_eq!(places[0], Place { cpu: 1, share_ppm: 200_000, base_ppm: 750_000 });
        assert_eq!((seated[0].problem.as_ref(), places[2].share_ppm), (None, 400_000));
        // The VM has a quarter of the unreserved half. A deadline of 3 ms needs a seventh, which is
        // more.
        let seated = super::seat(&present, &[1], Limits::default(), reserved(500_000));
        let problem = seated[0].problem.clone().unwrap();
        assert!(problem.contains("above the vCPU's share of 12.50 %"), "{problem}");
        assert!(
            problem.contains("(up to 50 % of this processor is reserved for other VMs)"),
            "{problem}"
        );
        // All reserved vCPUs may run on one processor. Deadlines do not fit there, although they
        // fit on average.
        let taken = Taken { mean_ppm: 450_000, most_ppm: 900_000 };
        let seated = super::seat(&[periodic(3), hog(1)], &[1, 2], Limits::default(), taken);
        assert!(seated[0].problem.clone().unwrap().contains("above the limit of 10.00 %"));
    }

    #[test]
    fn shares_and_weights_are_those_of_its_processor() {
        let seated = seat(&[periodic(3), hog(1), hog(2)], &[1], Limits::default());
        let places: Vec<Place> = seated.iter().map(|vm| vm.vcpus[0]).collect();
        assert_eq!(places[0], Place { cpu: 1, share_ppm: 250_000, base_ppm: 750_000 });
        assert_eq!(places[2], Place { cpu: 1, share_ppm: 500_000, base_ppm: 1_500_000 });
        assert!(seated.iter().all(|vm| vm.problem.is_none()));
    }

    #[test]
    fn a_vm_that_does_not_fit_runs_without_a_deadline_and_gets_the_reason() {
        let mut present = vec![hog(1); 7];
        present.push(periodic(3));
        let seated = seat(&present, &[4], Limits::default());
        let problem = seated[7].problem.clone().unwrap();
        assert!(problem.starts_with("deadline refused: on processor 4, "), "{problem}");
        assert!(problem.contains("give it more weight, or a deadline of 3.5 ms"), "{problem}");
        assert_eq!(seated[7].contract, Contract::by_credit(Weight::ONE));
        assert_eq!(seated[7].vcpus[0].share_ppm, 125_000);
        // Two processors have room for all deadlines.
        assert_eq!(seat(&present, &[4, 5], Limits::default())[7].problem, None);
        assert!(seat(&[], &[1], Limits::default()).is_empty());
    }
}
