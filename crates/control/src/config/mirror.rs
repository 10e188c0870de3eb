//! The key `mirror` of a port: copies of the port's frames for another port.

use penstock_toml::text::is_default;
use penstock_toml::{Object, Report};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::Port;
use super::network::port_vlans;

/// Copies of a port's frames, as in `mirror = { to = "probe", direction = "in" }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mirror table such as { to = \"probe\" }")]
pub struct Mirror {
    /// Name of the port that gets the copies. It must carry the VLANs of the mirrored port.
    pub to: String,
    /// Frames to copy: `in` are the frames that the port sends into the switch, `out` are the
    /// frames that the switch sends to the port. Default `both`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub direction: Direction,
}

/// Direction of mirrored frames, as the switch sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Frames that the port sends into the switch.
    In,
    /// Frames that the switch sends to the port.
    Out,
    /// Both directions.
    #[default]
    Both,
}

impl Mirror {
    /// Whether frames are copied that the switch receives from the port.
    #[must_use]
    pub fn has_received(&self) -> bool {
        self.direction != Direction::Out
    }

    /// Whether frames are copied that the switch sends to the port.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.direction != Direction::In
    }
}

/// Checks the mirror of a port. `target` is the port that gets the copies, if it exists.
pub(super) fn check<T>(
    object: &Object<'_, T>,
    port: &Port,
    target: Option<&Port>,
    report: &mut Report<'_>,
) {
    let Some(mirror) = &port.mirror else { return };
    let Some(target) = target else {
        let remedy = "add a [[port]] of this name, or correct the name";
        report.at(object, "mirror.to", format!("there is no port {:?}", mirror.to), remedy);
        return;
    };
    if target.name == port.name {
        let problem = "the port mirrors itself";
        report.at(object, "mirror.to", problem, "name another port");
        return;
    }
    check_target(object, "mirror.to", target, Some(port), report);
}

/// Checks that a port can get copies. `source` is the port whose frames are copied, if it is only
/// one.
pub(super) fn check_target<T>(
    object: &Object<'_, T>,
    path: &str,
    target: &Port,
    source: Option<&Port>,
    report: &mut Report<'_>,
) {
    let name = &target.name;
    // Two mirrors could copy copies for ever.
    if target.mirror.is_some() {
        let problem = format!("port {name:?} has a mirror itself");
        report.at(object, path, problem, "remove one of the two mirrors");
    }
    if target.tenant.is_none() {
        let problem = format!("port {name:?} has no `tenant`");
        let remedy = "give the port that gets the copies a tenant of its own, such as `monitor`";
        report.at(object, path, problem, remedy);
    }
    let carried = port_vlans(target);
    let mut wanted = source.map(port_vlans).unwrap_or_default().into_iter();
    let problem = match wanted.find(|vlan| !carried.contains(vlan)) {
        None => return,
        Some(0) => format!("port {name:?} does not carry untagged frames"),
        Some(vlan) => format!("port {name:?} does not carry VLAN {vlan}"),
    };
    let remedy = "give the port that gets the copies the `vlan`, or a `trunk` with all VLANs, of \
                  the mirrored port";
    report.at(object, path, problem, remedy);
}
