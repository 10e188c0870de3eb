//! The plan of vCPUs in `host check` and `vcpu check`: the VMs of each CPU, and the share of the
//! CPU that deadlines reserve.

use penstock_vcpu::admission::density_ppm;
use penstock_vcpu::planned;
use penstock_vcpu::terms::{VcpuSection, VmTable};
use serde_json::{Value, json};

use crate::table::{Table, or_dash, percent, to_f64};

struct Processor<'a> {
    cpu: u32,
    /// VM of each vCPU on this processor, with the vCPU's share of the processor in millionths.
    vms: Vec<(&'a VmTable, u64)>,
    /// Share of the processor that deadlines reserve, in millionths.
    taken: u64,
}

fn ask(vms: &[VmTable], section: &VcpuSection) -> Vec<planned::Planned> {
    planned::planned(section, &vms.iter().collect::<Vec<_>>())
}

fn plan<'a>(
    tables: &'a [VmTable],
    section: &VcpuSection,
    all: &[planned::Planned],
) -> Vec<Processor<'a>> {
    let of = |cpu: &u32| {
        let (mut vms, mut taken) = (Vec::new(), 0);
        for (vm, planned) in tables.iter().zip(all) {
            for place in planned.places.iter().filter(|place| place.cpu == *cpu) {
                vms.push((vm, place.share_ppm));
                let kept = vm.contract().filter(|it| it.mode.is_real_time());
                let kept = kept.filter(|_| planned.problem.is_none());
                taken += kept.map_or(0, |contract| density_ppm(contract.deadline));
            }
        }
        Processor { cpu: *cpu, vms, taken }
    };
    section.cpus.iter().map(of).collect()
}

fn parts(ppm: u64) -> f64 {
    to_f64(ppm) / 1e6
}

#[must_use]
pub fn text(tables: &[VmTable], section: &VcpuSection) -> String {
    let all = ask(tables, section);
    let mut table = Table::new(">CPU|VMS, SHARE, DEADLINE|>RESERVED|>LIMIT");
    for Processor { cpu, vms, taken } in plan(tables, section, &all) {
        let vm = |(vm, share): &(&VmTable, u64)| {
            let deadline = vm.deadline.as_ref().map(|it| format!(" {it}")).unwrap_or_default();
            format!("{} {}{deadline}", vm.name, percent(parts(*share)))
        };
        let vms: Vec<String> = vms.iter().map(vm).collect();
        let limit = percent(parts(section.limits().density_ppm));
        table.row([cpu.to_string(), or_dash(&vms.join(", ")), percent(parts(taken)), limit]);
    }
    let mut text = table.render();
    for (vm, planned) in tables.iter().zip(&all) {
        if let Some(granted) = planned.granted {
            let (name, part) = (&vm.name, percent(parts(granted.ppm())));
            text.push_str(&format!("{name}: each vCPU has {part} of a CPU reserved\n"));
        }
    }
    text
}

#[must_use]
pub fn json(tables: &[VmTable], section: &VcpuSection) -> Value {
    let cpu = |planned: Processor<'_>| {
        let vm = |(vm, share): &(&VmTable, u64)| {
            let share = parts(*share);
            json!({ "vm": vm.name, "share": share, "deadline": vm.deadline })
        };
        json!({
            "cpu": planned.cpu,
            "vms": planned.vms.iter().map(vm).collect::<Vec<_>>(),
            "deadlines": parts(planned.taken),
            "limit": parts(section.limits().density_ppm),
        })
    };
    plan(tables, section, &ask(tables, section)).into_iter().map(cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_says_whose_it_is() {
        let text_of = "[host]\nname = \"h\"\n[vcpu]\ncpus = [0, 1]\n\
             [[vm]]\nname = \"voice\"\npid = 1\nvcpu_mode = \"periodic\"\ndeadline = \"3 ms\"\n\
             [[vm]]\nname = \"db\"\npid = 2\nvcpu_weight = 3\n";
        let config: penstock_control::config::HostConfig = toml::from_str(text_of).unwrap();
        let (section, vms) = (config.vcpu.unwrap(), config.vms);
        let said = text(&vms, &section);
        assert!(said.contains("voice 100.0 % 3 ms") && said.contains("14.3 %"), "{said}");
        let one = VcpuSection { cpus: vec![4], ..section };
        let value = json(&vms, &one);
        assert_eq!((&value[0]["cpu"], &value[0]["vms"][1]["share"]), (&4.into(), &0.75.into()));
        assert_eq!(value.as_array().unwrap().len(), 1);
    }
}
