//! What a fabric's controller told this host as a switch, beside its configuration.
//!
//! **Rule.** As for a host of the fabric ([`super::overlay`]): what was told is laid over each
//! configuration that is about to run, and all of it is done in one change, between the same two
//! batches, so that no frame sees a part of it. A code point that is in the same queue before and
//! after is in it throughout, and so are the frames that wait. What is read back is what the data
//! path has.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::overlay::{Laid, Overlay};
use super::running::{Host, stopped};
use crate::api::QueueStatus;
use crate::config::HostConfig;

/// What the queues of a port are told: all of it, never a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortQueues {
    /// Weights from queue 0 on, 0 to 10000; 0 is as 1, the least there is.
    pub weights: Vec<u32>,
    /// The queue of each code point (1 to 63). Others are in queue 0.
    pub map: BTreeMap<u8, u8>,
}

/// A port that is set, as the data path has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchPort {
    /// The port.
    pub name: String,
    /// From queue 0 on.
    pub queues: Vec<QueueStatus>,
}

impl Host {
    /// The ports that a controller sets, as the data path has them; none if the host is no switch.
    ///
    /// # Errors
    /// As [`Host::stats`].
    pub fn switch_ports(&self) -> Result<Vec<SwitchPort>, ApiError> {
        let config = self.config();
        let Some(switch) = &config.switch else { return Ok(Vec::new()) };
        let set =
            |name: &str| config.ports.iter().any(|p| p.name == name && switch.sets(name, p.egress));
        let stats = self.stats(false)?;
        let ports = stats.ports.into_iter().filter(|port| set(&port.port));
        Ok(ports.map(|port| SwitchPort { name: port.port, queues: port.queues }).collect())
    }

    /// Has the ports of a switch do this, in one change between two batches; nothing of it is
    /// written anywhere. What was told before is over, also of ports that are not named. What
    /// changed, in words; nothing if all is so already.
    ///
    /// # Errors
    /// The host is no switch, or has no such port to be set; a number is out of range; the worker
    /// has ended. Nothing was changed.
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
                wrong(format!("port {name:?}: {problem}"), "see what the controller tells")
            })?;
            overlay.ports.insert(name.clone(), laid);
        }
        let changes = self.lay(&old, overlay.over(HostConfig::clone(&old)), text)?;
        changing.overlay = overlay;
        Ok(changes)
    }
}
