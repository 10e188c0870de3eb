//! What a fabric's controller told this host as a switch, beside its configuration.
//!
//! **Rule.** As for a host of the fabric ([`super::fabric`]): what was told is laid over each
//! configuration that is about to run, and all of it is done in one change, between the same two
//! batches, so that no frame sees a part of it. A code point that is in the same queue before and
//! after is in it throughout, and so are the frames that wait. What is read back is what the data
//! path has.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_qos::wfq::QUEUES_MAX;

use super::apply::lock;
use super::error::{ApiError, ErrorKind};
use super::fabric::Overlay;
use super::{Host, stopped};
use crate::api::QueueStatus;
use crate::config::{CodePoint, HostConfig, Port, Weight, Wfq};

/// Highest weight of a queue.
const WEIGHT_MAX: u32 = 10_000;

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

/// What was told of a port, ready to be laid over its configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Laid {
    weights: Vec<Weight>,
    map: BTreeMap<CodePoint, u8>,
    /// Queues that are wanted at least.
    queues: u8,
}

impl Laid {
    /// What is wrong with a number, otherwise.
    pub(super) fn new(weights: &[u32], map: &BTreeMap<u8, u8>) -> Result<Self, String> {
        let highest = map.values().copied().max().unwrap_or(0);
        let queues = weights.len().max(usize::from(highest) + 1);
        let queues = u8::try_from(queues).ok().filter(|n| usize::from(*n) <= QUEUES_MAX);
        let queues = queues.ok_or_else(|| format!("more than {QUEUES_MAX} queues are wanted"))?;
        let weight = |weight: &u32| match penstock_units::Weight::new((*weight).max(1).into()) {
            Ok(fine) if *weight <= WEIGHT_MAX => Ok(Weight(fine)),
            _ => Err(format!("weight {weight} is above {WEIGHT_MAX}")),
        };
        let weights = weights.iter().map(weight).collect::<Result<_, _>>()?;
        let mapped =
            |(number, queue): (&u8, &u8)| Ok((number.to_string().parse::<CodePoint>()?, *queue));
        let map = map.iter().map(mapped).collect::<Result<_, String>>()?;
        Ok(Self { weights, map, queues })
    }

    /// A port with these weights and this map, and at least as many queues as before.
    pub(super) fn over(&self, port: &mut Port) {
        let of = port.wfq.take().unwrap_or_default();
        let (weights, map) = (self.weights.clone(), self.map.clone());
        port.wfq = Some(Wfq { queues: of.queues.max(self.queues), weights, map, ..of });
    }
}

impl Host {
    /// The ports that a controller sets, as the data path has them; none if the host is no switch.
    ///
    /// # Errors
    /// As [`Host::stats`].
    pub fn switch_ports(&self) -> Result<Vec<SwitchPort>, ApiError> {
        let config = self.config();
        let Some(switch) = &config.switch else { return Ok(Vec::new()) };
        let set = |name: &str| config.ports.iter().any(|p| p.name == name && switch.sets(p));
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
            if !old.ports.iter().any(|port| port.name == *name && switch.sets(port)) {
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
