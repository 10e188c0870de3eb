//! `[fabric]`, and that nobody else gives what the fabric gives.

use penstock_toml::{Object, Report};

use super::super::draft::Draft;
use super::super::joining::FabricSection;
use super::super::release::Egress;
use super::world::World;

/// Most controllers.
const CONTROLLERS_MAX: usize = 16;
/// Longest name in a topology.
const NODE_BYTES_MAX: usize = 63;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    let Some(object) = &draft.fabric else { return };
    for tenant in &draft.tenants {
        if tenant.value.as_ref().is_some_and(|value| value.dscp.is_some()) {
            let problem = "with [fabric], the controller assigns DSCPs";
            report.at(tenant, "dscp", problem, "remove `dscp`, or [fabric]");
        }
    }
    let Some(fabric) = &object.value else { return };
    check_self(object, fabric, report);
    check_controllers(object, fabric, report);
    check_uplink(object, fabric, draft, world, report);
}

fn check_self(object: &Object<'_, FabricSection>, fabric: &FabricSection, report: &mut Report<'_>) {
    if let Some(name) = &fabric.name
        && (name.is_empty()
            || name.len() > NODE_BYTES_MAX
            || name.chars().any(|c| c.is_control() || c.is_whitespace()))
    {
        let problem = format!("{name:?} is not a name of a server");
        let remedy = "write its name in the topology (1 to 63 characters, no blanks)";
        report.at(object, "name", problem, remedy);
    }
    if let Some(plan) = fabric.plan.as_ref().filter(|plan| !plan.is_absolute()) {
        report.at(object, "plan", format!("path {plan:?} is relative"), "write an absolute path");
    }
    if fabric.tls.as_ref().is_some_and(|tls| tls.server_name.is_empty()) {
        let problem = "`server_name` is empty";
        report.at(object, "tls.server_name", problem, "write the name in their certificates");
    }
}

fn check_controllers(
    object: &Object<'_, FabricSection>,
    fabric: &FabricSection,
    report: &mut Report<'_>,
) {
    let number = fabric.controllers.len();
    if number == 0 || number > CONTROLLERS_MAX {
        let problem = format!("{number} controllers; there can be 1 to {CONTROLLERS_MAX}");
        report.at(object, "controllers", problem, "name the controllers that this host may use");
    }
    for (at, controller) in fabric.controllers.iter().enumerate() {
        let path = format!("controllers.{at}");
        let (scheme, address) = match controller.split_once("://") {
            Some((scheme, address)) => (Some(scheme), address),
            None => (None, controller.as_str()),
        };
        let named = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = named.and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            let problem = format!("{controller:?} has no host or no port");
            report.at(object, &path, problem, "write both, as in \"10.0.0.1:7000\"");
        }
        let (wrong, remedy) = match (scheme, &fabric.tls) {
            (None, _) | (Some("https"), Some(_)) | (Some("http"), None) => continue,
            (Some("https"), None) => ("it is https, but there is no `tls`", "add `tls`"),
            (Some("http"), Some(_)) => ("it is http, but there is `tls`", "write https://"),
            _ => ("neither http:// nor https://", "write host:port"),
        };
        report.at(object, &path, format!("{controller:?} is {wrong}"), remedy);
    }
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
        let problem = format!("port {name:?} has no `wfq` queues for all tenants");
        let remedy = "say egress = \"wfq\" and `link` there, and no `tenant`";
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
