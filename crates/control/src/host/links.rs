//! Checks ten times a second whether the link of an uplink is the bottleneck. While the link is the
//! bottleneck, each VM is limited to its part of the link.
//!
//! Source: C2QoS §VII. The module [`penstock_qos::bottleneck`] contains the rules of the
//! NIC-bottleneck handler. The host reads the counters of watched links, applies the handler's
//! rules, and sets a flag for each link. Workers read a link's flag before each batch. Changing a
//! link's flag needs no snapshot and no request to a worker. The workers' snapshot always contains
//! the limit on each VM's part of a watched link ([`crate::snapshot::WatchedLink`]). The link's
//! flag only switches the limits on the VMs' parts of the link on and off.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use penstock_dataplane::counters::PortCounterSets;
use penstock_qos::bottleneck::{Bottleneck, Change, Sent, held_back};
use penstock_units::Nanos;

use super::apply::{Core, lock};
use crate::api::{LinkPart, LinkStatus};
use crate::snapshot::WatchedLink;

/// State of each watched link, by the name of the uplink's port.
#[derive(Debug, Default)]
pub(super) struct Handlers(Mutex<BTreeMap<String, Handler>>);

#[derive(Debug)]
struct Handler {
    bottleneck: Bottleneck,
    /// Time at which the limits of the link were last switched on or off; `None` if the limits were
    /// never switched.
    since: Option<Nanos>,
    looked: Nanos,
}

impl Handlers {
    /// Reads the counters of every watched link, and switches the link's limits on or off. The
    /// argument `now` is a monotonic time in nanoseconds.
    pub(super) fn look(&self, core: &Core, now: Nanos) {
        let (links, counters) = {
            let shared = lock(&core.shared);
            let links = shared.compiler.links().clone();
            if links.is_empty() && lock(&self.0).is_empty() {
                return;
            }
            let counters: BTreeMap<String, PortCounterSets> =
                shared.ports.iter().map(|(name, p)| (name.clone(), p.counters.clone())).collect();
            (links, counters)
        };
        let mut handlers = lock(&self.0);
        handlers.retain(|name, _| links.contains_key(name));
        for (name, link) in &links {
            let Some(sets) = counters.get(name) else { continue };
            let held_back = held_back(link.capacity, Nanos(link.waited.load(Ordering::Relaxed)));
            let sent = Sent { bytes: sets.read().tx_link, held_back };
            let handler = handlers.entry(name.clone()).or_insert_with(|| Handler::new(link));
            if handler.bottleneck.capacity() != link.capacity {
                *handler = Handler::new(link);
            }
            handler.look(name, link, sent, now);
        }
    }

    /// Returns the state of each watched link, for clients.
    pub(super) fn status(&self, core: &Core) -> Vec<LinkStatus> {
        let links = lock(&core.shared).compiler.links().clone();
        let handlers = lock(&self.0);
        links.iter().map(|(name, link)| status(name, link, handlers.get(name))).collect()
    }
}

impl Handler {
    fn new(link: &WatchedLink) -> Self {
        // The flag of a removed handler would stay set.
        link.active.store(false, Ordering::Relaxed);
        let bottleneck = Bottleneck::new(link.capacity);
        Self { bottleneck, since: None, looked: Nanos::ZERO }
    }

    fn look(&mut self, name: &str, link: &WatchedLink, sent: Sent, now: Nanos) {
        self.looked = now;
        // A link that was removed and added again has a new flag, and may have an old handler.
        link.active.store(self.bottleneck.is_limited(), Ordering::Relaxed);
        let Some(change) = self.bottleneck.observe(now, sent) else { return };
        let limited = change == Change::Enter;
        link.active.store(limited, Ordering::Relaxed);
        self.since = Some(now);
        let load = self.bottleneck.load_permille();
        let percent = format!("{}.{} %", load / 10, load % 10);
        let (capacity, vms) = (link.capacity.to_string(), link.parts().count());
        match change {
            Change::Enter => tracing::warn!(
                port = name,
                capacity,
                load = percent,
                vms,
                "the link is the bottleneck: each VM is limited to its part of the link"
            ),
            Change::Leave => tracing::info!(
                port = name,
                capacity,
                load = percent,
                vms,
                "the link has room again: VMs are no longer limited to their parts of the link"
            ),
        }
    }
}

fn status(name: &str, link: &WatchedLink, handler: Option<&Handler>) -> LinkStatus {
    let parts = link.parts().map(|(port, rate)| LinkPart { port: port.to_owned(), bps: rate.0 });
    let mut status = LinkStatus {
        port: name.to_owned(),
        capacity_bps: link.capacity.0,
        parts: parts.collect(),
        ..LinkStatus::default()
    };
    if let Some(Handler { bottleneck, since, looked }) = handler {
        status.limited = bottleneck.is_limited();
        status.sent_permille = bottleneck.sent_permille();
        status.load_permille = bottleneck.load_permille();
        status.entered = bottleneck.entered();
        status.since_ms = since.map_or(0, |since| looked.saturating_sub(since).0 / 1_000_000);
    }
    status
}
