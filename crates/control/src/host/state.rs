//! State of the host, behind a lock that is never held during a request to a worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use penstock_dataplane::counters::{PortCounterSets, PortReading};
use penstock_dataplane::schedule::PortQos;
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
    /// Counters of the port. They stay when the port is attached again.
    pub(super) counters: PortCounterSets,
    /// The configured worker.
    pub(super) worker: Option<u16>,
    /// Control side of the attached port; `None` in state `error`.
    pub(super) link: Option<Arc<dyn Link>>,
    pub(super) error: Option<AttachError>,
}

/// State for readings.
pub(super) struct Shared {
    pub(super) config: Arc<HostConfig>,
    /// The configuration's text, with unsaved changes.
    pub(super) text: Arc<str>,
    pub(super) compiler: Compiler,
    pub(super) ports: BTreeMap<String, LivePort>,
    pub(super) generation: u64,
    /// Hits of rules in former tables, by rule name.
    pub(super) hits: HashMap<String, u64>,
    /// Sum of the counters of all deleted ports.
    pub(super) deleted: Option<PortReading>,
    /// Watchdogs, one for each worker.
    pub(super) watches: Vec<Watch>,
    /// Entitlements of ports.
    pub(super) pricing: Pricing,
    /// Use of the network by tenants.
    pub(super) network: Ledger,
}

impl Shared {
    /// Entitlement and class of a port, with learned corrections.
    pub(super) fn terms(&self, port: &str) -> PortQos {
        let mut qos = self.compiler.bought(port);
        let id = self.compiler.ids().port(port).map(PortId);
        if let Some(learned) = id.and_then(|id| self.pricing.learned(id)) {
            qos.entitlement = learned.entitlement;
        }
        qos
    }
}

/// State for changes. Its lock is held for a whole change.
pub(super) struct Changing {
    pub(super) machine: Machine,
    /// The file's text at the last reading or writing.
    pub(super) file_text: Option<String>,
    /// `[host]` of the file. The command line may override it in the running configuration.
    pub(super) file_host: HostSection,
    /// Time of the next attempt to attach ports in state `error`.
    pub(super) next_retry: Nanos,
    pub(super) stopped: bool,
    /// The plan of the fabric's controller.
    pub(super) overlay: Overlay,
}

impl Changing {
    /// The configuration that runs for the file `parsed`. It contains the controller's plan. Keys
    /// that need a restart keep the values of `old`.
    pub(super) fn running(&self, parsed: HostConfig, old: &HostConfig) -> HostConfig {
        let (host, fabric, switch) = (old.host.clone(), old.fabric.clone(), old.switch.clone());
        self.overlay.over(HostConfig { host, fabric, switch, ..parsed })
    }
}

/// The watchdog of a worker. The worker is stalled if its heartbeat does not change for
/// [`Self::LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watch {
    /// The last heartbeat, and the time when it was first seen.
    last: Option<(u64, Nanos)>,
    /// Age of the heartbeat at the last check.
    pub(super) age: Nanos,
    pub(super) stalled: bool,
}

/// Result of a check of the heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallChange {
    Nothing,
    Stalled,
    Recovered,
}

impl Watch {
    pub(super) const LIMIT: Nanos = Nanos::from_secs(1);

    /// Compares the heartbeat with the last one. Returns [`StallChange::Stalled`] once for each
    /// stall.
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
