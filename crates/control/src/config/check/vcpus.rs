//! Checks `[vcpu]` and `[[vm]]`: the keys of each table, and whether the CPUs can meet all
//! deadlines.

use std::collections::HashSet;

use penstock_toml::{Object, Report};
use penstock_vcpu::planned::planned;
use penstock_vcpu::terms::{Mistake, VcpuSection, VmTable};

use super::super::draft::Draft;
use super::super::machine::Machine;
use super::super::values::{check_count, check_names};

const VMS_MAX: usize = 1_024;

pub(super) fn check(draft: &Draft<'_>, machine: &Machine, report: &mut Report<'_>) {
    check_names(&draft.vms, report);
    check_count(&draft.vms, "vm", VMS_MAX, report);
    check_ports(draft, report);
    for object in &draft.vms {
        let mistakes = object.value.as_ref().map(VmTable::mistakes);
        tell(object, mistakes.unwrap_or_default(), report);
    }
    let Some(object) = &draft.vcpu else {
        if let Some(vm) = draft.vms.first() {
            let remedy = "add [vcpu] with the CPUs of all VMs, such as `cpus = [2, 3]`";
            report.at(vm, "name", "there is no [vcpu]", remedy);
        }
        return;
    };
    let Some(section) = &object.value else { return };
    tell(object, section.mistakes(), report);
    check_cpus(object, section, draft, machine, report);
    check_deadlines(section, draft, report);
}

fn tell<T>(object: &Object<'_, T>, mistakes: Vec<Mistake>, report: &mut Report<'_>) {
    for Mistake { key, problem, remedy } in mistakes {
        report.at(object, key, problem, remedy);
    }
}

/// Checks that each VM that a port names exists.
fn check_ports(draft: &Draft<'_>, report: &mut Report<'_>) {
    for object in &draft.ports {
        let Some(vm) = object.value.as_ref().and_then(|port| port.vm.as_deref()) else { continue };
        if draft.vms.iter().any(|known| known.name.as_deref() == Some(vm)) {
            continue;
        }
        let mut names: Vec<&str> = draft.vms.iter().filter_map(|it| it.name.as_deref()).collect();
        names.sort_unstable();
        names.truncate(8);
        let remedy = match names.as_slice() {
            [] => "add a [[vm]] of this name, or remove `vm`".to_owned(),
            names => {
                format!("add a [[vm]] of this name, or name an existing VM: {}", names.join(", "))
            }
        };
        report.at(object, "vm", format!("VM {vm:?} does not exist"), remedy);
    }
}

/// Checks that the CPUs for VMs exist, and that no worker polls on a CPU for VMs.
fn check_cpus(
    object: &Object<'_, VcpuSection>,
    section: &VcpuSection,
    draft: &Draft<'_>,
    machine: &Machine,
    report: &mut Report<'_>,
) {
    let cores = draft.worker.value.as_ref().map(|worker| worker.cores.clone()).unwrap_or_default();
    let default = if cores.is_empty() { machine.default_core() } else { None };
    for (at, cpu) in section.cpus.iter().enumerate() {
        let path = format!("cpus.{at}");
        if cores.contains(cpu) || default == Some(*cpu) {
            let problem = format!("a worker of the switch polls on CPU {cpu}");
            let remedy = "remove the CPU, or name other `cores` in [worker]";
            report.at(object, &path, problem, remedy);
        }
        if machine.cores.as_ref().is_some_and(|usable| !usable.contains(cpu)) {
            let problem = format!("CPU {cpu} is offline, or this process may not use it");
            report.at(object, &path, problem, "choose another CPU");
        }
    }
}

/// Checks that the CPUs can meet the deadlines of all VMs at the same time. The check uses the
/// planned number of vCPUs of each VM.
fn check_deadlines(section: &VcpuSection, draft: &Draft<'_>, report: &mut Report<'_>) {
    if !section.mistakes().is_empty() {
        return;
    }
    let mut names: HashSet<&str> = HashSet::new();
    let vms: Vec<(&Object<'_, VmTable>, &VmTable)> = draft
        .vms
        .iter()
        .filter_map(|object| {
            let table = object.value.as_ref().filter(|table| table.mistakes().is_empty())?;
            // The second VM of a name has been reported already.
            names.insert(&table.name).then_some((object, table))
        })
        .collect();
    let tables: Vec<&VmTable> = vms.iter().map(|(_, table)| *table).collect();
    for ((object, _), planned) in vms.iter().zip(planned(section, &tables)) {
        if let Some(problem) = planned.problem {
            let (problem, remedy) = problem.split_once("; ").unwrap_or((&problem, ""));
            let more =
                if remedy.contains("[vcpu]") { "" } else { ", or add CPUs to [vcpu] `cpus`" };
            let remedy = format!("{remedy}{more}");
            report.at(object, "deadline", problem, remedy.trim_start_matches(", "));
        }
    }
}
