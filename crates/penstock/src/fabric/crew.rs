//! Creates the state of a fabric from the controller's file, and the [`Crew`] that carries out its
//! decisions. The crew is the set of switches and hosts that carry out the controller's decisions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use penstock_control::config::{ConfigError, ConfigErrors};
use penstock_controller::agents::Registry;
use penstock_controller::carry_out::{Crew, Interface, Switch};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::files::ControllerFile;
use penstock_controller::hosts::Hosts;
use penstock_controller::southbound::{SwitchDriver, few_queues, usable_queues};
use penstock_fabric::topology::NodeId;
use tokio::task::JoinSet;

use super::drivers::driver;

/// Maximum number of switches that the controller asks for their capabilities at a time.
const ASKED_AT_ONCE: usize = 32;

/// Creates the state of a fabric, and its crew of switches and hosts, each time this controller
/// becomes the leader. The drivers of the switches are created only once, even if this controller
/// becomes the leader again.
pub struct Maker {
    file: Arc<ControllerFile>,
    hosts: Arc<Registry>,
    drivers: BTreeMap<NodeId, Arc<dyn SwitchDriver>>,
}

impl Maker {
    /// Creates the drivers of all switches of the file `path`.
    ///
    /// # Errors
    /// Returns all mistakes of switches whose settings do not fit their drivers.
    pub fn new(
        file: Arc<ControllerFile>,
        hosts: Arc<Registry>,
        path: &Path,
    ) -> Result<Self, ConfigErrors> {
        let mistake = |object: String, (line, column), text: &str| {
            let (problem, remedy) =
                text.rsplit_once("; ").unwrap_or((text, "see docs/reference/southbound.md"));
            let (problem, remedy) = (problem.to_owned(), remedy.to_owned());
            ConfigError { file: path.display().to_string(), line, column, object, problem, remedy }
        };
        let empty = fabric(&file).map_err(|error| {
            ConfigErrors(vec![mistake("file".to_owned(), (0, 0), &format!("{error:#}"))])
        })?;
        let (mut drivers, mut mistakes) = (BTreeMap::new(), Vec::new());
        for (node, switch) in &file.switches {
            match driver(&file, &empty, *node, switch) {
                Ok(driver) => drop(drivers.insert(*node, driver)),
                Err(error) => {
                    let name = empty.topology().name(*node).to_string();
                    let text = format!("{error:#}");
                    let text = text.strip_prefix(&format!("switch {name}: ")).unwrap_or(&text);
                    mistakes.push(mistake(format!("switch {name:?}"), switch.place, text));
                }
            }
        }
        if mistakes.is_empty() {
            return Ok(Self { file, hosts, drivers });
        }
        mistakes.sort_by_key(|mistake| mistake.line);
        Err(ConfigErrors(mistakes))
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

/// Reads each switch, and logs a warning for each switch on which a plan may use fewer queues than
/// the `queues` of the fabric, and for each port that a driver does not use. In observe mode,
/// nothing else reads the switches.
pub async fn ask(drivers: Vec<Arc<dyn SwitchDriver>>, queues: u8) {
    for warning in warnings(drivers, queues).await {
        tracing::warn!("{warning}");
    }
}

/// Asks up to [`ASKED_AT_ONCE`] switches at a time. Returns the warnings in the order of `drivers`.
async fn warnings(drivers: Vec<Arc<dyn SwitchDriver>>, queues: u8) -> Vec<String> {
    let mut waiting = drivers.into_iter().enumerate();
    let (mut asked, mut answers) = (JoinSet::new(), BTreeMap::new());
    loop {
        let room = ASKED_AT_ONCE - asked.len();
        for (at, driver) in waiting.by_ref().take(room) {
            asked.spawn(async move { (at, warnings_of(&*driver, queues).await) });
        }
        match asked.join_next().await {
            // A task fails only if a driver panics.
            Some(answer) => answers.extend(answer),
            None => return answers.into_values().flatten().collect(),
        }
    }
}

async fn warnings_of(driver: &dyn SwitchDriver, queues: u8) -> Vec<String> {
    let name = driver.name();
    let (usable, left_out) = match driver.look().await {
        Ok((can, state)) => (usable_queues(&can), state.left_out),
        Err(error) => return vec![format!("a switch cannot be read yet: {error}")],
    };
    let few = (usable < queues).then(|| format!("switch {name}: {}", few_queues(usable, queues)));
    let reason = |(port, reason): (String, String)| {
        format!("switch {name}: port {port} is not used: {reason}")
    };
    few.into_iter().chain(left_out.into_iter().map(reason)).collect()
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use penstock_controller::Stamp;
    use penstock_controller::southbound::{
        Capabilities, Change, DriverError, Faults, ONE_STEP, PortInfo, QueueCounters, SimSwitch,
        SwitchState,
    };
    use penstock_units::BitsPerSecond;
    use tokio::sync::Barrier;

    use super::*;

    /// Switch that answers with an error, but only if the controller asks as many switches at the
    /// same time as the barrier needs.
    #[derive(Debug)]
    struct Meeting {
        name: String,
        barrier: Arc<Barrier>,
        asked: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Meeting {
        fn unreachable(&self) -> DriverError {
            let (switch, problem) = (self.name.clone(), "it is off".to_owned());
            DriverError::Unreachable { switch, problem }
        }
    }

    #[tonic::async_trait]
    impl SwitchDriver for Meeting {
        fn name(&self) -> &str {
            &self.name
        }

        fn kind(&self) -> &'static str {
            "meeting"
        }

        async fn capabilities(&self) -> Result<Capabilities, DriverError> {
            let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(asked, Ordering::SeqCst);
            self.barrier.wait().await;
            self.asked.fetch_sub(1, Ordering::SeqCst);
            Err(self.unreachable())
        }

        async fn read_back(&self) -> Result<SwitchState, DriverError> {
            Err(self.unreachable())
        }

        async fn apply(&self, _: Stamp, _: &[Change]) -> Result<(), DriverError> {
            Err(self.unreachable())
        }

        async fn words(&self, _: &[Change]) -> Result<Vec<String>, DriverError> {
            Err(self.unreachable())
        }

        async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
            Err(self.unreachable())
        }
    }

    #[tokio::test]
    async fn switches_are_asked_at_once_within_a_limit_and_reported_in_order() {
        let barrier = Arc::new(Barrier::new(ASKED_AT_ONCE));
        let (asked, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let driver = |at: usize| -> Arc<dyn SwitchDriver> {
            Arc::new(Meeting {
                name: format!("leaf{at}"),
                barrier: Arc::clone(&barrier),
                asked: Arc::clone(&asked),
                most: Arc::clone(&most),
            })
        };
        let all = 3 * ASKED_AT_ONCE;
        let warnings = warnings((0..all).map(driver).collect(), 8);
        let warnings = tokio::time::timeout(Duration::from_secs(60), warnings).await;
        let warnings = warnings.expect("the switches wait for each other");
        assert_eq!((warnings.len(), most.load(Ordering::SeqCst)), (all, ASKED_AT_ONCE));
        for (at, warning) in warnings.iter().enumerate() {
            assert!(warning.contains(&format!("switch leaf{at}: ")), "{at}: {warning}");
        }
    }

    #[tokio::test]
    async fn too_few_queues_and_ports_that_are_not_used_are_reported() {
        let ports = ["a", "b"].map(|name| PortInfo { name: name.into(), rate: BitsPerSecond(1) });
        let switch = SimSwitch::new("leaf1", Capabilities::new(4, ONE_STEP), &ports);
        assert_eq!(warnings_of(&switch, 4).await, Vec::<String>::new());
        let foreign = [("b".to_owned(), "it has another map".to_owned())].into();
        switch.set_faults(Faults { foreign, ..Faults::default() });
        let warnings = warnings_of(&switch, 5).await;
        let few = "switch leaf1: the switch has 4 queues for plans, and the fabric's file says 5";
        assert!(warnings[0].starts_with(few), "{warnings:?}");
        assert_eq!(warnings[1], "switch leaf1: port b is not used: it has another map");
        assert_eq!(warnings.len(), 2);
    }
}
