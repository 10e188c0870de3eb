//! Simulated switches of a fabric, for experiments with the real controller. A switch's interface
//! has the name of the node at the other end of the link.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_controller::carry_out::{Interface, Switch};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::southbound::{Capabilities, PortInfo, SimSwitch};
use penstock_fabric::queue_binding::Port;
use penstock_fabric::topology::NodeId;

/// Returns the name of a switch's interface for a port.
pub(super) fn far(fabric: &Fabric, port: Port) -> String {
    let topology = fabric.topology();
    let far = if port.up { topology.parent(port.link) } else { topology.child(port.link) };
    topology.name(far).to_string()
}

/// Creates a simulated switch with eight queues for each switch of the fabric.
pub(super) fn sim_switches(fabric: &Fabric) -> BTreeMap<NodeId, Arc<SimSwitch>> {
    let topology = fabric.topology();
    let info = |port: Port| PortInfo { name: far(fabric, port), rate: topology.rate(port.link) };
    let switch = |node: NodeId| {
        let ports: Vec<PortInfo> = fabric.ports_of(node).into_iter().map(info).collect();
        let switch = SimSwitch::new(topology.name(node), Capabilities::new(8, 8), &ports);
        (node, Arc::new(switch))
    };
    (1..topology.layers()).flat_map(|layer| topology.layer(layer)).map(switch).collect()
}

/// Returns the switches as a controller sees them.
pub(super) fn connected(
    fabric: &Fabric,
    switches: &BTreeMap<NodeId, Arc<SimSwitch>>,
) -> BTreeMap<NodeId, Switch> {
    let port = |port: Port| (port, Interface { names: vec![far(fabric, port)] });
    let switch = |(node, switch): (&NodeId, &Arc<SimSwitch>)| {
        let ports = fabric.ports_of(*node).into_iter().map(port).collect();
        let driver = Arc::clone(switch);
        (*node, Switch { driver, ports, canary: false })
    };
    switches.iter().map(switch).collect()
}
