//! Sets the queues that a fabric's controller chooses for a host that is a switch of the fabric.
//!
//! The host adds the controller's queues to each configuration before the configuration takes
//! effect ([`super::overlay`]). All queues change together between two batches, so no frame sees a
//! part of a change. If a code point keeps its queue, waiting frames with this code point stay in
//! the queue. The data path provides the readings of queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::overlay::{Laid, Overlay, PortQueues};
use super::running::{Host, stopped};
use crate::api::QueueStatus;
use crate::config::HostConfig;

/// A port of a host that is a fabric's switch, with the state of its queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchPort {
    pub name: String,
    /// The port's queues, from queue 0 on.
    pub queues: Vec<QueueStatus>,
}

impl Host {
    /// Returns the ports whose queues a controller sets, with the data path's queues. The returned
    /// list of ports is empty if the host is not a switch of a fabric.
    ///
    /// # Errors
    /// Returns an error if a worker has ended.
    pub fn switch_ports(&self) -> Result<Vec<SwitchPort>, ApiError> {
        let config = self.config();
        let Some(switch) = &config.switch else { return Ok(Vec::new()) };
        let set =
            |name: &str| config.ports.iter().any(|p| p.name == name && switch.sets(name, p.egress));
        let stats = self.stats(false)?;
        let ports = stats.ports.into_iter().filter(|port| set(&port.port));
        Ok(ports.map(|port| SwitchPort { name: port.port, queues: port.queues }).collect())
    }

    /// Sets the queues of the switch's ports in one change between two batches. The queues in
    /// `ports` replace all queues that a controller set earlier. A port gets default queues if it
    /// is in the configuration but not in the map `ports`. Plans and queues from the fabric's
    /// controller never change the configuration file. Returns a text about each changed setting of
    /// the ports' queues. The returned list is empty if the same queues were already in force.
    ///
    /// # Errors
    /// Returns an error if the host is not a fabric's switch, a port does not exist, a number is
    /// out of range, or a worker has ended. After an error, the previous queues of the ports stay
    /// in force.
    pub fn set_switch(
        &self,
        ports: &BTreeMap<String, PortQueues>,
    ) -> Result<Vec<String>, ApiError> {
        let wrong = |problem: String, remedy: &str| {
            ApiError::new(ErrorKind::Invalid, "[switch]", problem, remedy)
        };
        let mut changing = lock(&self.changing);
        if changing.stopped {
            return Err(stopped());
        }
        let (old, text) = {
            let shared = lock(&self.core.shared);
            (Arc::clone(&shared.config), Arc::clone(&shared.text))
        };
        let Some(switch) = &old.switch else {
            let remedy = "add [switch] to the configuration and start the daemon again";
            return Err(wrong("this host is not a switch of a fabric".to_owned(), remedy));
        };
        let mut overlay = Overlay::default();
        for (name, queues) in ports {
            if !old
                .ports
                .iter()
                .any(|port| port.name == *name && switch.sets(&port.name, port.egress))
            {
                let problem = format!("a controller may not set the queues of port {name:?}");
                return Err(wrong(problem, "see `ports` of [switch]"));
            }
            let laid = Laid::new(&queues.weights, &queues.map).map_err(|problem| {
                wrong(format!("port {name:?}: {problem}"), "check the controller's queues")
            })?;
            overlay.ports.insert(name.clone(), laid);
        }
        let changes = self.lay(&old, overlay.over(HostConfig::clone(&old)), text)?;
        changing.overlay = overlay;
        Ok(changes)
    }
}
