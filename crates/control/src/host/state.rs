//! State of the running host, which a lock protects. No thread holds the lock of [`Shared`] during
//! a request to a worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::snapshot::PortQos;
use penstock_units::{Nanos, PortId};

use super::data_path::{AttachError, Link};
use super::ledger::Ledger;
use super::overlay::Overlay;
use super::pricing::Pricing;
use crate::config::{Attachment, HostConfig, HostSection, Machine};
use crate::snapshot::Compiler;

#[derive(Clone)]
pub(super) struct LivePort {
    pub(super) id: PortId,
    pub(super) attachment: Attachment,
    /// Counters of the port's frames. The port's counters keep their values if the port is attached
    /// again.
    pub(super) counters: PortCounterSets,
    /// Number of the configured worker; `None` if the queue pairs are distributed over all workers.
    pub(super) worker: Option<u16>,
    /// Control side of the attached port; `None` if the port is in state `error`.
    pub(super) link: Option<Arc<dyn Link>>,
    pub(super) error: Option<AttachError>,
}

/// State of the host that functions read to report counters and settings.
pub(super) struct Shared {
    pub(super) config: Arc<HostConfig>,
    /// Text of the running configuration, with unsaved changes.
    pub(super) text: Arc<str>,
    pub(super) compiler: Compiler,
    pub(super) ports: BTreeMap<String, LivePort>,
    pub(super) generation: u64,
    /// Hits that were counted in replaced rule tables, by the rule's name.
    pub(super) hits: HashMap<String, u64>,
    /// Sum of the counters of all ports that were deleted.
    pub(super) deleted: Option<PortReading>,
    /// Watchdogs of the workers, one for each worker.
    pub(super) watches: Vec<Watch>,
    /// Entitlements of ports.
    pub(super) pricing: Pricing,
    /// Frames and bytes that each tenant exchanges over the network.
    pub(super) network: Ledger,
}

impl Shared {
    /// Returns all attached ports with their names.
    pub(super) fn attached(&self) -> Vec<(String, Arc<dyn Link>)> {
        let link = |(name, port): (&String, &LivePort)| Some((name.clone(), port.link.clone()?));
        self.ports.iter().filter_map(link).collect()
    }

    /// Returns the entitlement and latency class of a port, with learned corrections.
    pub(super) fn terms(&self, port: &str) -> PortQos {
        let mut qos = self.compiler.bought(port);
        let id = self.compiler.ids().port(port).map(PortId);
        if let Some(learned) = id.and_then(|id| self.pricing.learned(id)) {
            qos.entitlement = learned.entitlement;
        }
        qos
    }
}

/// State of the host that only a change of the configuration uses. A change of the configuration
/// holds the lock of `Changing` from start to end.
pub(super) struct Changing {
    pub(super) machine: Machine,
    /// Text of the configuration file when the host last read or wrote it.
    pub(super) file_text: Option<String>,
    /// The section `[host]` of the configuration file. Command-line options may override keys of
    /// `[host]` in the running configuration.
    pub(super) file_host: HostSection,
    /// Time of the next attempt to attach ports in state `error`.
    pub(super) next_retry: Nanos,
    pub(super) stopped: bool,
    /// The plan of the fabric's controller that is in force.
    pub(super) overlay: Overlay,
}

impl Changing {
    /// Returns the configuration to run for the parsed file `parsed`, with the controller's plan.
    /// Keys that take effect only at a restart have the values of the old configuration `old`.
    pub(super) fn running(&self, parsed: HostConfig, old: &HostConfig) -> HostConfig {
        let (host, fabric, switch) = (old.host.clone(), old.fabric.clone(), old.switch.clone());
        self.overlay.over(HostConfig { host, fabric, switch, ..parsed })
    }
}

/// Watchdog that detects a stalled worker. A worker is stalled if its heartbeat does not change for
/// [`Self::LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watch {
    /// The worker's last heartbeat, and the time at which the watchdog first saw this heartbeat.
    last: Option<(u64, Nanos)>,
    /// Time since the worker's heartbeat last changed, at the last check.
    pub(super) age: Nanos,
    pub(super) stalled: bool,
}

/// Result of a check of a worker's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallChange {
    Nothing,
    Stalled,
    Recovered,
}

impl Watch {
    pub(super) const LIMIT: Nanos = Nanos::from_secs(1);

    /// Compares the worker's heartbeat with its previous heartbeat. Returns
    /// [`StallChange::Stalled`] only once while a worker stays stalled.
    pub(super) fn look(&mut self, heartbeat: u64, now: Nanos) -> StallChange {
        let since = match self.last {
            Some((last, since)) if last == heartbeat => since,
            _ => now,
        };
        self.last = Some((heartbeat, since));
        self.age = now.saturating_sub(since);
        let was = core::mem::replace(&mut self.stalled, self.age > Self::LIMIT);
        match (was, self.stalled) {
            (false, true) => StallChange::Stalled,
            (true, false) => StallChange::Recovered,
            _ => StallChange::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_that_stands_still_for_a_second_is_a_stall_once() {
        let mut watch = Watch::default();
        let at = |ms| Nanos::from_millis(ms);
        assert_eq!(watch.look(7, at(0)), StallChange::Nothing);
        assert_eq!(watch.look(7, at(1_000)), StallChange::Nothing);
        assert_eq!(watch.look(7, at(1_001)), StallChange::Stalled);
        assert_eq!(watch.look(7, at(9_000)), StallChange::Nothing);
        assert_eq!((watch.stalled, watch.age), (true, at(9_000)));
        assert_eq!(watch.look(8, at(9_100)), StallChange::Recovered);
        assert_eq!((watch.stalled, watch.age), (false, at(0)));
    }
}
