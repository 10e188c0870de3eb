//! Checks `[switch]` against the rest of the file: the section's ports must have queues, and no
//! other section may set these queues.

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::release::Egress;
use super::super::switch::SwitchSection;
use super::super::values::check_node;
use super::world::World;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    let Some(object) = &draft.switch else { return };
    if draft.fabric.is_some() {
        let problem = "a host is either a server or a switch of a fabric";
        report.at(object, "name", problem, "remove [switch], or [fabric]");
    }
    let Some(switch) = &object.value else { return };
    switch.check(object, report);
    // The name of a host may be longer than a name in a topology.
    let host = draft.host.value.as_ref().map(|host| host.name.as_str());
    let default = host.filter(|name| switch.name.is_none() && !name.is_empty());
    check_node(object, default, "switch", report);
    check_ports(object, switch, draft, world, report);
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
                (problem, "set egress = \"wfq\" and `link` of the listed port")
            }
            Some(_) => continue,
        };
        report.at(object, &format!("ports.{at}"), problem, remedy);
    }
    let mut set = 0;
    for of in &draft.ports {
        let Some(port) = of.value.as_ref().filter(|port| switch.sets(&port.name, port.egress))
        else {
            continue;
        };
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
        report.at(
            object,
            "ports",
            problem,
            "set egress = \"wfq\" and `link` of the switch's ports",
        );
    }
}
