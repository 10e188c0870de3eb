//! Plans the placement of the VMs of a configuration. The plan assumes that all VMs run with their
//! configured numbers of vCPUs.

use crate::admission::Limits;
use crate::reservation::{Ask, Granted, Taken, kernel_limit_ppm, plan, taken};
use crate::seating::{Place, Present, seat};
use crate::terms::{VcpuSection, VmTable};

/// Linux's default limit on the run time of deadline threads, in microseconds per second.
const RT_RUNTIME_US: i64 = 950_000;

/// Processors, reservation and problem of one VM in the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Processor and share of each vCPU of the VM; empty for a VM in mode `reserved`.
    pub places: Vec<Place>,
    /// Reservation of each vCPU of the VM. The reservation is `None` if the VM requests no
    /// reservation or the plan refuses the request.
    pub granted: Option<Granted>,
    /// Reason why the plan refuses the VM's request, with a remedy. `None` means that the plan does
    /// not refuse the request.
    pub problem: Option<String>,
}

/// Plans all VMs and returns one result for each VM, in the order of `vms`. The configuration
/// tables must be valid ([`VcpuSection::mistakes`], [`VmTable::mistakes`]).
#[must_use]
pub fn planned(section: &VcpuSection, vms: &[&VmTable]) -> Vec<Planned> {
    let cpus = u64::try_from(section.cpus.len()).unwrap_or(u64::MAX);
    let ask = |vm: &&VmTable| Ask {
        reserve: vm.reserve(),
        weight: vm.contract().map_or(1, |contract| u64::from(contract.weight.get())),
        vcpus: u64::from(vm.vcpus()),
    };
    let asks: Vec<Ask> = vms.iter().map(ask).collect();
    let granted = plan(&asks, cpus, kernel_limit_ppm(RT_RUNTIME_US, None));
    let mut all: Vec<Planned> = Vec::new();
    let (mut present, mut whose, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (vm, granted)) in vms.iter().zip(granted).enumerate() {
        let mut planned = Planned::default();
        match granted {
            Some(Ok(granted)) => {
                planned.granted = Some(granted);
                held.push((granted, u64::from(vm.vcpus())));
            }
            Some(Err(why)) => planned.problem = Some(why.to_string()),
            None => {
                if let Some(contract) = vm.contract() {
                    present.push(Present { contract, vcpus: vm.vcpus() });
                    whose.push(at);
                }
            }
        }
        all.push(planned);
    }
    let (limits, taken): (Limits, Taken) = (section.limits(), taken(&held, cpus));
    for (at, seated) in whose.into_iter().zip(seat(&present, &section.cpus, limits, taken)) {
        all[at].places = seated.vcpus;
        all[at].problem = seated.problem;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, more: &str) -> VmTable {
        let table = format!("name = \"{name}\"\npid = 1\n{more}");
        toml::from_str(&table).unwrap()
    }

    #[test]
    fn reserved_time_is_not_shared() {
        let section = VcpuSection { cpus: vec![1], run_dir: None, deadlines_max: None };
        let voice = vm("voice", "vcpu_mode = \"periodic\"\ndeadline = \"3 ms\"\n");
        let terms = "vcpu_mode = \"reserved\"\ndeadline = \"10 ms\"\nruntime = \"5 ms\"\n";
        let fixed = vm("fixed", terms);
        let one = planned(&section, &[&voice, &fixed]);
        assert_eq!((one[0].places[0].share_ppm, &one[0].problem), (500_000, &None));
        assert_eq!(one[1].granted.unwrap().ppm(), 500_000);
        let two = planned(&section, &[&voice, &fixed, &fixed]);
        assert!(two[2].problem.clone().unwrap().contains("above the limit of 95.0 %"), "{two:?}");
        assert!(two[0].problem.is_none(), "who is refused takes nothing from others");
    }
}
