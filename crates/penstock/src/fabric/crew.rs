//! Creates the state of a fabric from the controller's file, and the [`Crew`] that carries out its
//! decisions. The crew is the set of switches and hosts that carry out the controller's decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use penstock_controller::agents::Registry;
use penstock_controller::carry_out::{Crew, Interface, Switch};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::files::ControllerFile;
use penstock_controller::hosts::Hosts;
use penstock_controller::southbound::{SwitchDriver, usable_queues};
use penstock_fabric::topology::NodeId;

use super::drivers::driver;

/// Creates the state of a fabric, and its crew of switches and hosts, each time this controller
/// becomes the leader. The drivers of the switches are created only once, even if this controller
/// becomes the leader again.
pub struct Maker {
    file: Arc<ControllerFile>,
    hosts: Arc<Registry>,
    drivers: BTreeMap<NodeId, Arc<dyn SwitchDriver>>,
}

impl Maker {
    /// Creates the drivers of all switches.
    ///
    /// # Errors
    /// Returns an error if the settings of a switch do not fit its driver.
    pub fn new(file: Arc<ControllerFile>, hosts: Arc<Registry>) -> Result<Self> {
        let empty = fabric(&file)?;
        let mut drivers = BTreeMap::new();
        for (node, switch) in &file.switches {
            drivers.insert(*node, driver(&file, &empty, *node, switch)?);
        }
        Ok(Self { file, hosts, drivers })
    }

    /// Returns the drivers of all switches.
    pub fn drivers(&self) -> Vec<Arc<dyn SwitchDriver>> {
        self.drivers.values().cloned().collect()
    }

    /// Creates a fabric without tenants, and a crew that has not carried out any decision.
    ///
    /// # Errors
    /// Returns an error if the settings of the fabric are invalid.
    pub fn make(&self) -> Result<(Fabric, Crew)> {
        let fabric = fabric(&self.file)?;
        let topology = fabric.topology();
        let mut switches = BTreeMap::new();
        for (node, switch) in &self.file.switches {
            let Some(driver) = self.drivers.get(node) else { continue };
            let mut ports = BTreeMap::new();
            for port in fabric.ports_of(*node) {
                let far =
                    if port.up { topology.parent(port.link) } else { topology.child(port.link) };
                let names = switch.interfaces.get(&far).cloned().unwrap_or_default();
                ports.insert(port, Interface { names });
            }
            let (driver, canary) = (Arc::clone(driver), switch.canary);
            switches.insert(*node, Switch { driver, ports, canary });
        }
        let hosts: Arc<dyn Hosts> = self.hosts.clone();
        let limit = Duration::from_millis(self.file.answer_ms);
        Ok((fabric, Crew::new(switches, hosts, limit)))
    }
}

/// Asks each switch how many queues a plan may use, and logs a warning for each switch that has
/// fewer than the `queues` of the fabric. Such a switch refuses plans that use all queues.
pub async fn ask(drivers: Vec<Arc<dyn SwitchDriver>>, queues: u8) {
    for driver in drivers {
        match driver.capabilities().await {
            Ok(can) if usable_queues(&can) < queues => tracing::warn!(
                "switch {}: a plan may use {} queues, but the fabric has {queues}; raise \
                 `reserved_queues` in the fabric's file",
                driver.name(),
                usable_queues(&can)
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!("its number of queues is not known yet: {error}"),
        }
    }
}

fn fabric(file: &ControllerFile) -> Result<Fabric> {
    let (of, settings) = (&file.fabric, file.binding.clone());
    let fabric = Fabric::new(of.topology.clone(), of.headroom_permille, of.policy, settings);
    let mut fabric = fabric.context("settings of the fabric")?;
    for (node, service) in &of.out {
        let name = of.topology.name(*node).to_string();
        fabric.set_service(&name, *service, false).map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    Ok(fabric)
}
