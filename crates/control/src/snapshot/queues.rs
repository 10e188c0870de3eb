//! Keeps the queues of output ports, which outlive a snapshot.
//!
//! If only rates and weights change, a queue and its waiting frames are kept. If the size of a
//! queue's memory changes, the queue is replaced.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_dataplane::queue::{LaneReading, QueueHome};
use penstock_qos::pair_table::PairTable;
use penstock_units::Weight;

use super::egress_policers::ReceivePolicers;
use super::ids::IdTable;
use crate::api::QueueStatus;
use crate::config::{HostConfig, PORTS_MAX, TENANTS_MAX};

/// The queues of a configuration, by the name of the port.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueTable(BTreeMap<String, Arc<QueueHome>>);

impl QueueTable {
    /// Creates the output queues of `config`, and reuses queues of the previous configuration.
    /// Output queues whose memory size is unchanged are kept with their frames.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let queues = config.ports.iter().filter_map(|port| {
            let terms = config.queued(port)?;
            let old = self.0.get(&port.name);
            let home = old.filter(|old| old.fits(&terms)).cloned().unwrap_or_else(|| {
                let old = old.map(|old| &**old);
                QueueHome::in_place_of(old, terms, PORTS_MAX, TENANTS_MAX)
            });
            Some((port.name.clone(), home))
        });
        Self(queues.collect())
    }

    /// Sets the rates, limits, weights and code points of `config` on the ports' queues, and sets
    /// `pairs` on the queue of the fabric's uplink.
    pub(super) fn pace(
        &self,
        config: &HostConfig,
        ids: &IdTable,
        limits: &ReceivePolicers,
        pairs: Option<&Arc<PairTable>>,
    ) {
        let uplink = config.fabric.as_ref().map(|fabric| &fabric.uplink);
        let mut lines = false;
        for port in &config.ports {
            if let (Some(terms), Some(home)) = (config.queued(port), self.0.get(&port.name)) {
                home.set_pacing(terms.pacing);
                home.set_limit(limits.of(&port.name).filter(|limit| limit.waits()));
                lines |= home.set_pairs(pairs.filter(|_| uplink == Some(&port.name)));
                let old = home.classes();
                let classes = port.classes(|tenant| ids.tenant(tenant), &old);
                if let Some(classes) = classes.filter(|new| **new != *old) {
                    home.set_classes(classes);
                }
            }
        }
        if let Some(pairs) = pairs {
            pairs.set_lines(lines);
        }
    }

    /// Returns the counters of the port's `wfq` queues; empty for other ports.
    pub(super) fn read(&self, port: &str) -> Vec<QueueStatus> {
        let of = |home: &Arc<QueueHome>| Some((Arc::clone(home), home.classes()));
        let Some((home, classes)) = self.0.get(port).and_then(of) else { return Vec::new() };
        let Some(lanes) = home.lanes() else { return Vec::new() };
        let status = |(queue, weight): (u8, &Weight)| {
            let LaneReading { frames, bytes, drops, backlog_frames, backlog_bytes } =
                lanes.read(queue);
            QueueStatus {
                queue: queue.into(),
                weight: weight.get().into(),
                dscps: (0_u8..64)
                    .filter(|dscp| classes.queue_of(*dscp) == queue)
                    .map(Into::into)
                    .collect(),
                frames,
                bytes,
                drops,
                backlog_frames,
                backlog_bytes,
                unmapped: if queue == 0 { lanes.unmapped() } else { 0 },
            }
        };
        (0_u8..).zip(classes.weights()).map(status).collect()
    }

    pub(super) fn of(&self, port: &str) -> Option<Arc<QueueHome>> {
        self.0.get(port).cloned()
    }
}
