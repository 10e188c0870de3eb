//! Queues that a fabric's controller sets on this host as a switch.
//!
//! The controller's queues are combined with each configuration before it runs, as on a server of
//! the fabric ([`super::overlay`]). All queues change together between two batches, so no frame
//! sees a part of a change. A code point whose queue does not change stays in that queue
//! throughout, with its waiting frames. Queues are read back from the data path.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::overlay::{Laid, Overlay};
use super::running::{Host, stopped};
use crate::api::QueueStatus;
use crate::config::HostConfig;

/// Weights and map of a port's queues. A value is the whole state, never a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortQueues {
    /// Weights from queue 0 on, 0 to 10000. 0 means 1, the least weight.
    pub weights: Vec<u32>,
    /// The queue of each code point (1 to 63). Other code points are in queue 0.
    pub map: BTreeMap<u8, u8>,
}

/// A port of the switch in the data path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchPort {
    pub name: String,
    /// Queues from queue 0 on.
    pub queues: Vec<QueueStatus>,
}

impl Host {
    /// The ports that a controller sets, with the data path's queues. The list is empty if the host
    /// is no switch of a fabric.
    ///
    /// # Errors
    /// The same as for [`Host::stats`].
    pub fn switch_ports(&self) -> Result<Vec<SwitchPort>, ApiError> {
        let config = self.config();
        let Some(switch) = &config.switch else { return Ok(Vec::new()) };
        let set =
            |name: &str| config.ports.iter().any(|p| p.name == name && switch.sets(name, p.egress));
        let stats = self.stats(false)?;
        let ports = stats.ports.into_iter().filter(|port| set(&port.port));
        Ok(ports.map(|port| SwitchPort { name: port.port, queues: port.queues }).collect())
    }

    /// Sets the queues of the switch's ports in one change between two batches. The new queues
    /// replace all earlier ones, also on ports that are not named. They are not saved to the
    /// configuration file. Returns the changes in words; the list is empty if the queues were in
    /// force already.
    ///
    /// # Errors
    /// The host is no switch of a fabric, it has no such port, a number is out of range, or the
    /// worker has ended. Nothing was changed.
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
            return Err(wrong("this host is no switch of a fabric".to_owned(), remedy));
        };
        let mut overlay = Overlay::default();
        for (name, queues) in ports {
            if !old
                .ports
                .iter()
                .any(|port| port.name == *name && switch.sets(&port.name, port.egress))
            {
                let problem = format!("port {name:?} is not a port with queues that may be set");
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
