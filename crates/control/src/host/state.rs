//! What the host knows of itself, behind a lock that is never held while the worker is asked.

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

/// A port as it runs.
#[derive(Clone)]
pub(super) struct LivePort {
    pub(super) id: PortId,
    pub(super) attachment: Attachment,
    /// They outlive a new attachment.
    pub(super) counters: PortCounterSets,
    /// The configured worker.
    pub(super) worker: Option<u16>,
    /// `None` in state `error`.
    pub(super) link: Option<Arc<dyn Link>>,
    pub(super) error: Option<AttachError>,
}

/// The state that readings are made of.
pub(super) struct Shared {
    pub(super) config: Arc<HostConfig>,
    /// The configuration's text, unsaved changes included.
    pub(super) text: Arc<str>,
    pub(super) compiler: Compiler,
    pub(super) ports: BTreeMap<String, LivePort>,
    pub(super) generation: u64,
    /// What rules have decided in tables that are no more, by name.
    pub(super) hits: HashMap<String, u64>,
    /// The last counters of all deleted ports.
    pub(super) deleted: Option<PortReading>,
    /// One for each worker.
    pub(super) watches: Vec<Watch>,
    /// What ports are entitled to.
    pub(super) pricing: Pricing,
    /// What tenants sent and received over the network.
    pub(super) network: Ledger,
}

impl Shared {
    /// What a port bought and its class, with what was learned since it was configured.
    pub(super) fn terms(&self, port: &str) -> PortQos {
        let mut qos = self.compiler.bought(port);
        let id = self.compiler.ids().port(port).map(PortId);
        if let Some(learned) = id.and_then(|id| self.pricing.learned(id)) {
            qos.entitlement = learned.entitlement;
        }
        qos
    }
}

/// What only changes need; its lock is held through a whole change.
pub(super) struct Changing {
    pub(super) machine: Machine,
    /// The file's text as it was last read or written.
    pub(super) file_text: Option<String>,
    /// `[host]` as in the file; the running one may come from the command line.
    pub(super) file_host: HostSection,
    /// When ports in state `error` are tried again.
    pub(super) next_retry: Nanos,
    pub(super) stopped: bool,
    /// What the fabric's controller told.
    pub(super) overlay: Overlay,
}

impl Changing {
    /// What runs when the file says `parsed`: with what a restart alone can change as in `old`, and
    /// with what the fabric's controller told.
    pub(super) fn running(&self, parsed: HostConfig, old: &HostConfig) -> HostConfig {
        let (host, fabric, switch) = (old.host.clone(), old.fabric.clone(), old.switch.clone());
        self.overlay.over(HostConfig { host, fabric, switch, ..parsed })
    }
}

/// The watchdog: a worker whose heartbeat stands still for longer than [`Self::LIMIT`] is stalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watch {
    /// The heartbeat last seen, and when it was first seen.
    last: Option<(u64, Nanos)>,
    /// How long it had not moved at the last look.
    pub(super) age: Nanos,
    pub(super) stalled: bool,
}

/// What a look at the heartbeat found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallChange {
    Nothing,
    Stalled,
    Recovered,
}

impl Watch {
    pub(super) const LIMIT: Nanos = Nanos::from_secs(1);

    /// Compares the heartbeat with the last one. Says [`StallChange::Stalled`] once a stall.
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
