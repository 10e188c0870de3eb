//! Checks `[fabric]` against the rest of the file: the uplink must exist, and the keys that the
//! controller sets must be absent.

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::fabric::FabricSection;
use super::super::release::Egress;
use super::super::values::check_node;
use super::world::World;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    let Some(object) = &draft.fabric else { return };
    for tenant in &draft.tenants {
        if tenant.value.as_ref().is_some_and(|value| value.dscp.is_some()) {
            let problem = "with [fabric], the controller assigns DSCPs";
            report.at(tenant, "dscp", problem, "remove `dscp`, or [fabric]");
        }
    }
    let Some(fabric) = &object.value else { return };
    fabric.check(object, report);
    // The name of a host may be longer than a name in a topology.
    let host = draft.host.value.as_ref().map(|host| host.name.as_str());
    let default = host.filter(|name| fabric.name.is_none() && !name.is_empty());
    check_node(object, default, "server", report);
    check_uplink(object, fabric, draft, world, report);
}

fn check_uplink(
    object: &Object<'_, FabricSection>,
    fabric: &FabricSection,
    draft: &Draft<'_>,
    world: &World<'_>,
    report: &mut Report<'_>,
) {
    let name = &fabric.uplink;
    let port = match world.ports.get(name.as_str()) {
        None => {
            let problem = format!("port {name:?} does not exist");
            report.at(object, "uplink", problem, "name a [[port]] of this file");
            return;
        }
        Some(None) => return,
        Some(Some(port)) => port,
    };
    if port.tenant.is_some() || port.egress != Egress::Wfq {
        let problem = format!("port {name:?} has a `tenant`, or its egress is not \"wfq\"");
        let remedy =
            "set egress = \"wfq\" and `link` of the uplink's port, and remove the port's `tenant`";
        report.at(object, "uplink", problem, remedy);
    }
    let Some(wfq) = &port.wfq else { return };
    let Some(of) = draft.ports.iter().find(|other| other.name.as_deref() == Some(name)) else {
        return;
    };
    let keys = [
        ("weights", !wfq.weights.is_empty()),
        ("map", !wfq.map.is_empty()),
        ("ceilings", !wfq.ceilings.is_empty()),
    ];
    for (key, given) in keys {
        if given {
            let problem = format!("with [fabric], the controller sets `{key}` of the uplink");
            report.at(of, &format!("wfq.{key}"), problem, format!("remove `{key}`, or [fabric]"));
        }
    }
}
