//! Switches with their drivers, as the controller's file describes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use penstock_control::config::fabric::{ControllerFile, DriverFile, SwitchFile};
use penstock_controller::agents::Registry;
use penstock_controller::carry_out::{Crew, Interface, Switch};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::hosts::Hosts;
use penstock_controller::southbound::linux_tc::{self, Netns, TcSwitch};
use penstock_controller::southbound::sonic::{self, Endpoint, MapMode, SonicSwitch};
use penstock_controller::southbound::{Capabilities, PortInfo, SimSwitch, SwitchDriver};
use penstock_fabric::queue_binding::Mode;
use penstock_fabric::topology::NodeId;
use penstock_units::BitsPerSecond;

/// Where controllers on this machine keep each other from the same switch.
const LOCKS: &str = "/run/penstock";

/// Makes a fabric and its crew, anew for each term; drivers stay.
pub struct Maker {
    file: Arc<ControllerFile>,
    hosts: Arc<Registry>,
    drivers: BTreeMap<NodeId, Arc<dyn SwitchDriver>>,
}

impl Maker {
    /// With drivers for all switches.
    ///
    /// # Errors
    /// A switch that cannot be driven so.
    pub fn new(file: Arc<ControllerFile>, hosts: Arc<Registry>) -> Result<Self> {
        let empty = fabric(&file)?;
        let mut drivers = BTreeMap::new();
        for (node, switch) in &file.switches {
            drivers.insert(*node, driver(&file, &empty, *node, switch)?);
        }
        Ok(Self { file, hosts, drivers })
    }

    /// An empty fabric, and a crew that was told nothing yet.
    ///
    /// # Errors
    /// Settings that cannot work.
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

fn fabric(file: &ControllerFile) -> Result<Fabric> {
    let (of, settings) = (&file.fabric, file.binding.clone());
    let fabric = Fabric::new(of.topology.clone(), of.headroom_permille, of.policy, settings);
    let mut fabric = fabric.context("the settings of the fabric")?;
    for (node, service) in &of.out {
        let name = of.topology.name(*node).to_string();
        fabric.set_service(&name, *service, false).map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    Ok(fabric)
}

fn driver(
    file: &ControllerFile,
    fabric: &Fabric,
    node: NodeId,
    switch: &SwitchFile,
) -> Result<Arc<dyn SwitchDriver>> {
    let topology = fabric.topology();
    let name = topology.name(node).to_string();
    let mut ports = Vec::new();
    for port in fabric.ports_of(node) {
        let far = if port.up { topology.parent(port.link) } else { topology.child(port.link) };
        let interfaces = switch.interfaces.get(&far).cloned().unwrap_or_default();
        // Several cables share the link's rate evenly.
        let cables = u64::try_from(interfaces.len().max(1)).unwrap_or(u64::MAX);
        let rate = BitsPerSecond(topology.rate(port.link).0 / cables);
        ports.extend(interfaces.into_iter().map(|name| PortInfo { name, rate }));
    }
    let queues = file.binding.queues;
    Ok(match &switch.driver {
        DriverFile::Sim => {
            let can = Capabilities {
                queues,
                classes: queues.max(8),
                weights: (1, 100),
                remap: true,
                fixed_map: BTreeMap::new(),
                map_per_port: true,
            };
            Arc::new(SimSwitch::new(&name, can, &ports))
        }
        DriverFile::LinuxTc { netns } => {
            let locks = Path::new(LOCKS);
            let runner =
                netns.as_ref().map_or_else(|| Netns::own(locks), |netns| Netns::new(netns, locks));
            let settings = linux_tc::Settings { queues, ..linux_tc::Settings::default() };
            let made = TcSwitch::new(&name, &ports, settings, Arc::new(runner));
            Arc::new(made.with_context(|| format!("switch {name}"))?)
        }
        DriverFile::Sonic { address } => sonic(file, &name, &ports, address)?,
    })
}

fn sonic(
    file: &ControllerFile,
    name: &str,
    ports: &[PortInfo],
    address: &str,
) -> Result<Arc<dyn SwitchDriver>> {
    let endpoint = if let Some(path) = address.strip_prefix("unix://") {
        Endpoint::Unix(path.into())
    } else {
        let tcp = address.strip_prefix("redis://").and_then(|rest| rest.rsplit_once(':'));
        let tcp = tcp.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        let (host, port) = tcp.with_context(|| {
            format!("switch {name}: address `{address}`; write redis://HOST:PORT or unix:///PATH")
        })?;
        Endpoint::Tcp(host, port)
    };
    let values = file.binding.palette.values().iter().copied();
    let mode = match file.binding.mode {
        Mode::StaticMap => MapMode::Static(values.zip(1..file.binding.queues).collect()),
        Mode::PerPortMap => MapMode::PerPort,
        Mode::PerEgressMap => anyhow::bail!(
            "switch {name}: SONiC maps code points where packets come in; write `map = \
             \"per-port-map\"` or \"static-map\""
        ),
    };
    let queues = file.binding.queues;
    let settings = sonic::Settings { mode, queues, ..sonic::Settings::default() };
    let switch = SonicSwitch::new(name, ports, settings, endpoint);
    Ok(Arc::new(switch.with_context(|| format!("switch {name}"))?))
}
