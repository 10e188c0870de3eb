//! `[switch]`: that its ports have queues, and that nobody else sets them.

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::release::Egress;
use super::super::switching::SwitchSection;
use super::world::World;

/// Longest name in a topology.
const NODE_BYTES_MAX: usize = 63;
/// Most names that controllers may have.
const CONTROLLERS_MAX: usize = 16;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    let Some(object) = &draft.switch else { return };
    if draft.fabric.is_some() {
        let problem = "a host is either a server or a switch of a fabric";
        report.at(object, "name", problem, "remove [switch], or [fabric]");
    }
    let Some(switch) = &object.value else { return };
    check_self(object, switch, report);
    check_listen(object, switch, report);
    check_ports(object, switch, draft, world, report);
}

fn check_self(object: &Object<'_, SwitchSection>, switch: &SwitchSection, report: &mut Report<'_>) {
    if let Some(name) = &switch.name
        && (name.is_empty()
            || name.len() > NODE_BYTES_MAX
            || name.chars().any(|c| c.is_control() || c.is_whitespace()))
    {
        let problem = format!("{name:?} is not a name of a switch");
        let remedy = "write its name in the topology (1 to 63 characters, no blanks)";
        report.at(object, "name", problem, remedy);
    }
    if let Some(plan) = switch.plan.as_ref().filter(|plan| !plan.is_absolute()) {
        report.at(object, "plan", format!("path {plan:?} is relative"), "write an absolute path");
    }
}

fn check_listen(
    object: &Object<'_, SwitchSection>,
    switch: &SwitchSection,
    report: &mut Report<'_>,
) {
    match (&switch.listen, &switch.tls) {
        (Some(_), None) => {
            let problem = "anyone who can reach `listen` could set queues";
            report.at(object, "listen", problem, "add `tls`, or remove it and use the socket");
        }
        (None, Some(_)) => {
            report.at(
                object,
                "tls",
                "`tls` without `listen`",
                "add `listen`, the address for controllers",
            );
        }
        _ => {}
    }
    let Some(tls) = &switch.tls else { return };
    let number = tls.controllers.len();
    if number == 0 || number > CONTROLLERS_MAX || tls.controllers.iter().any(String::is_empty) {
        let problem = format!("`controllers` has {number} names, or an empty name");
        let remedy = format!("write 1 to {CONTROLLERS_MAX} names in their certificates");
        report.at(object, "tls.controllers", problem, remedy);
    }
}

fn check_ports(
    object: &Object<'_, SwitchSection>,
    switch: &SwitchSection,
    draft: &Draft<'_>,
    world: &World<'_>,
    report: &mut Report<'_>,
) {
    for (at, name) in switch.ports.iter().enumerate() {
        let (problem, remedy) = match world.ports.get(name.as_str()) {
            None => (format!("port {name:?} does not exist"), "name a [[port]] of this file"),
            Some(Some(port)) if port.egress != Egress::Wfq => {
                let problem = format!("port {name:?} has no `wfq` queues");
                (problem, "say egress = \"wfq\" and `link` there")
            }
            Some(_) => continue,
        };
        report.at(object, &format!("ports.{at}"), problem, remedy);
    }
    let mut set = 0;
    for of in &draft.ports {
        let Some(port) = of.value.as_ref().filter(|port| switch.sets(port)) else { continue };
        set += 1;
        let Some(wfq) = &port.wfq else { continue };
        for (key, given) in [("weights", !wfq.weights.is_empty()), ("map", !wfq.map.is_empty())] {
            if given {
                let problem = format!("with [switch], the controller sets `{key}` of its ports");
                let remedy = format!("remove `{key}`, or name other `ports` in [switch]");
                report.at(of, &format!("wfq.{key}"), problem, remedy);
            }
        }
    }
    if set == 0 && switch.ports.is_empty() && draft.ports.iter().all(|port| port.value.is_some()) {
        let problem = "no port has `wfq` queues";
        report.at(object, "ports", problem, "set egress = \"wfq\" and `link` of its ports");
    }
}
