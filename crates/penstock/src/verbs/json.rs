//! Readings as JSON: counters by name, `{"rx_frames": 7}`, in the daemon's order.

use std::collections::BTreeMap;

use penstock_control::api::{
    Delays, FabricStatus, HostStatus, LinkStatus, Named, PortStats, QueueStatus, RtpStatus, Stats,
    SwitchStatus, WorkerStatus,
};
use penstock_qos::delay_scale;
use serde::{Serialize, Serializer};

/// Counters as an object.
#[derive(Debug)]
struct Counts<'a>(&'a Named);

impl Serialize for Counts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// A worker.
#[derive(Debug, Serialize)]
struct Worker<'a> {
    id: u16,
    core: u32,
    stalled: bool,
    heartbeat_age_ms: u64,
    busy_share_e4: u32,
    schedule: &'a str,
    counters: Counts<'a>,
}

impl<'a> From<&'a WorkerStatus> for Worker<'a> {
    fn from(from: &'a WorkerStatus) -> Self {
        Self {
            id: from.id,
            core: from.core,
            stalled: from.stalled,
            heartbeat_age_ms: from.heartbeat_age_ms,
            busy_share_e4: from.busy_share_e4,
            schedule: &from.schedule,
            counters: Counts(&from.counters),
        }
    }
}

/// The daemon's status.
#[derive(Debug, Serialize)]
pub struct Host<'a> {
    name: &'a str,
    version: &'a str,
    config: &'a str,
    generation: u64,
    uptime_s: u64,
    tsc_hz: u64,
    workers: Vec<Worker<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fabric: Option<Fabric<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<Switch<'a>>,
}

/// A host as a switch of a fabric.
#[derive(Debug, Serialize)]
struct Switch<'a> {
    name: &'a str,
    told: &'a str,
    unkept: bool,
    last_error: &'a str,
    counters: Counts<'a>,
}

impl<'a> From<&'a SwitchStatus> for Switch<'a> {
    fn from(from: &'a SwitchStatus) -> Self {
        let SwitchStatus { name, told, unkept, last_error, counters } = from;
        Self { name, told, unkept: *unkept, last_error, counters: Counts(counters) }
    }
}

/// A host's part in a fabric.
#[derive(Debug, Serialize)]
struct Fabric<'a> {
    name: &'a str,
    controller: &'a str,
    told: &'a str,
    applied: &'a str,
    unkept: &'a str,
    stale_ms: Option<u64>,
    absent: &'a [String],
    last_error: &'a str,
    counters: Counts<'a>,
}

impl<'a> From<&'a FabricStatus> for Fabric<'a> {
    fn from(from: &'a FabricStatus) -> Self {
        Self {
            name: &from.name,
            controller: &from.controller,
            told: &from.told,
            applied: &from.applied,
            unkept: &from.unkept,
            stale_ms: from.stale_ms,
            absent: &from.absent,
            last_error: &from.last_error,
            counters: Counts(&from.counters),
        }
    }
}

impl<'a> From<&'a HostStatus> for Host<'a> {
    fn from(from: &'a HostStatus) -> Self {
        Self {
            name: &from.name,
            version: &from.version,
            config: &from.config,
            generation: from.generation,
            uptime_s: from.uptime_s,
            tsc_hz: from.tsc_hz,
            workers: from.workers.iter().map(Into::into).collect(),
            fabric: from.fabric.as_ref().map(Into::into),
            switch: from.switch.as_ref().map(Into::into),
        }
    }
}

/// A port's counters.
#[derive(Debug, Serialize)]
struct Port<'a> {
    port: &'a str,
    counters: Counts<'a>,
    drops: Counts<'a>,
    tx_drops: Counts<'a>,
    delays: BTreeMap<&'a str, Waits>,
    rtp: &'a [RtpStatus],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    queues: &'a [QueueStatus],
}

/// How long frames waited, in nanoseconds.
#[derive(Debug, Serialize)]
struct Waits {
    frames: u64,
    p50: Option<u64>,
    p99: Option<u64>,
    p99_9: Option<u64>,
    /// Where each part ends that has frames, and how many; the last may have no end.
    parts: Vec<(Option<u64>, u64)>,
}

impl From<&Delays> for Waits {
    fn from(from: &Delays) -> Self {
        let part = |(at, count): (usize, &u64)| {
            (*count > 0).then_some((delay_scale::end_of(at).map(|end| end.0), *count))
        };
        Self {
            frames: from.frames(),
            p50: from.percentile(50_000),
            p99: from.percentile(99_000),
            p99_9: from.percentile(99_900),
            parts: from.counts.iter().enumerate().filter_map(part).collect(),
        }
    }
}

impl<'a> From<&'a PortStats> for Port<'a> {
    fn from(from: &'a PortStats) -> Self {
        Self {
            port: &from.port,
            counters: Counts(&from.counters),
            drops: Counts(&from.drops),
            tx_drops: Counts(&from.tx_drops),
            delays: from.delays.iter().map(|d| (d.name.as_str(), d.into())).collect(),
            rtp: &from.rtp,
            queues: &from.queues,
        }
    }
}

/// A reading of all counters.
#[derive(Debug, Serialize)]
pub struct Reading<'a> {
    time_ns: u64,
    exact: bool,
    ports: Vec<Port<'a>>,
    workers: Vec<Worker<'a>>,
    links: &'a [LinkStatus],
    violations: &'a [String],
}

impl<'a> From<&'a Stats> for Reading<'a> {
    fn from(from: &'a Stats) -> Self {
        Self {
            time_ns: from.time_ns,
            exact: from.exact,
            ports: from.ports.iter().map(Into::into).collect(),
            workers: from.workers.iter().map(Into::into).collect(),
            links: &from.links,
            violations: &from.violations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::fixture::reading;

    #[test]
    fn counters_are_looked_up_by_name() {
        let stats = reading(1, &[("rx_frames", 7), ("rx_bytes", 9)], &[("rule", 2)]);
        let text = serde_json::to_string(&Reading::from(&stats)).unwrap();
        assert!(
            text.starts_with(concat!(
                r#"{"time_ns":1000000000,"exact":false,"ports":[{"port":"vm1","#,
                r#""counters":{"rx_frames":7,"rx_bytes":9},"drops":{"rule":2},"tx_drops":{},"#,
                r#""delays":{},"rtp":[]}]"#
            )),
            "{text}"
        );
    }
}
