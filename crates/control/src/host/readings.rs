//! Collects readings for clients: states of ports, counters, MAC addresses and rules.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_dataplane::classify::Station;
use penstock_dataplane::counters::{PortReading, WorkerReading};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::port::kept::KeptAddress;
use penstock_dataplane::port::{AttachState, AttachStatus};
use penstock_qos::delay_scale::PARTS;
use penstock_units::PortId;

use super::apply::{Core, lock, worker_failed};
use super::data_path::DataPath;
use super::error::{ApiError, ErrorKind};
use super::state::{LivePort, Watch};
use crate::api::{
    Delays, FdbEntry, FlowStatus, HostStatus, Named, NamedCount, PortStats, PortStatus, Stats,
    WorkerStatus,
};
use crate::config::{HostConfig, Port, Rule};
use crate::snapshot::IdTable;

/// Selects the MAC addresses that match all fields of the filter. A filter field that is `None`
/// matches all MAC addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdbFilter {
    /// Selects the MAC addresses in this tenant's networks.
    pub tenant: Option<String>,
    /// Selects the MAC addresses in this VLAN; 0 means untagged.
    pub vlan: Option<u16>,
    /// Selects only the MAC addresses behind the port with this name.
    pub port: Option<String>,
}

/// Number of slots of the MAC table that one request reads. To read this number of slots, a worker
/// interrupts its work for some microseconds.
const FDB_CHUNK: usize = 512;

impl Core {
    pub(super) fn status(&self, config_path: String) -> HostStatus {
        let (host, generation, watches, schedule, vcpu_dir) = {
            let shared = lock(&self.shared);
            let vcpu_dir = shared.config.vcpu.as_ref().map(|vcpu| vcpu.run_dir());
            let vcpu_dir = vcpu_dir.map(|dir| dir.display().to_string()).unwrap_or_default();
            let schedule = shared.config.worker.schedule.to_string();
            let host = shared.config.host.clone();
            (host, shared.generation, shared.watches.clone(), schedule, vcpu_dir)
        };
        HostStatus {
            name: host.name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config_path,
            generation,
            uptime_s: self.switch.uptime().0 / 1_000_000_000,
            vcpu_dir,
            tsc_hz: self.switch.tsc().hz(),
            workers: worker_states(self.switch.as_ref(), &watches, &schedule),
            fabric: None,
            switch: None,
            machine: self.machine(),
            state_dir: host.state_dir.display().to_string(),
        }
    }

    pub(super) fn port_states(&self) -> Vec<PortStatus> {
        let (config, live) = self.ports_now();
        let known = |port: &Port| {
            let live = live.get(&port.name)?;
            let workers = self.switch.owners(live.id, live.attachment.queues());
            let mut status = port_status(port, live, workers);
            let qos = lock(&self.shared).terms(&port.name);
            status.policy = qos.ingress.name().to_owned();
            status.entitled = qos.entitlement.0;
            status.weight = qos.weight.get().into();
            status.priority = qos.priority.get().into();
            Some(status)
        };
        config.ports.iter().filter_map(known).collect()
    }

    /// Returns copies of the configuration and of the ports, for use without the lock of the state.
    fn ports_now(&self) -> (Arc<HostConfig>, std::collections::BTreeMap<String, LivePort>) {
        let shared = lock(&self.shared);
        (Arc::clone(&shared.config), shared.ports.clone())
    }

    pub(super) fn flow_states(&self) -> Vec<FlowStatus> {
        let (config, mut hits, now) = {
            let shared = lock(&self.shared);
            (Arc::clone(&shared.config), shared.hits.clone(), shared.compiler.hits())
        };
        for (name, count) in now {
            *hits.entry(name).or_default() += count;
        }
        let flow = |rule: &Rule| FlowStatus {
            name: rule.name.clone(),
            priority: rule.priority.into(),
            scope: rule.scope_text(),
            matching: rule.matching.to_string(),
            actions: rule.actions_text(),
            lookups: hits.get(&rule.name).copied().unwrap_or(0),
        };
        let mut flows: Vec<FlowStatus> = config.rules.iter().map(flow).collect();
        flows.sort_by_key(|flow| core::cmp::Reverse(flow.priority));
        flows
    }

    pub(super) fn addresses(&self, filter: &FdbFilter) -> Result<Vec<FdbEntry>, ApiError> {
        let ids = lock(&self.shared).compiler.ids().clone();
        let domains = meant(&ids, filter)?;
        let names: HashMap<u16, &str> = ids.ports().map(|(name, id)| (id, name)).collect();
        let mut entries = Vec::new();
        let mut from = Some(0);
        while let Some(slot) = from {
            let chunk = self.switch.fdb_chunk(slot, FDB_CHUNK).map_err(worker_failed)?;
            for record in chunk.entries {
                let Some((tenant, vlan)) = domains.get(&record.domain) else { continue };
                let port = names.get(&record.port).copied().unwrap_or_default();
                if filter.port.as_deref().is_some_and(|wanted| wanted != port) {
                    continue;
                }
                entries.push(FdbEntry {
                    tenant: (*tenant).to_owned(),
                    vlan: (*vlan).into(),
                    mac: record.mac.to_string(),
                    port: port.to_owned(),
                    age_s: record.age_s(chunk.now_s),
                    is_static: record.pinned,
                });
            }
            from = chunk.next;
        }
        // A moved address may be in the tables of two workers. The younger entry is valid.
        let key = |entry: &FdbEntry| (entry.tenant.clone(), entry.vlan, entry.mac.clone());
        entries.sort_by_cached_key(|entry| (key(entry), entry.age_s));
        entries.dedup_by_key(|entry| key(entry));
        Ok(entries)
    }

    /// Returns all learned addresses for the next process.
    pub(super) fn learned(&self) -> Result<Vec<KeptAddress>, ApiError> {
        let all = self.addresses(&FdbFilter::default())?;
        let learned = all.into_iter().filter(|entry| !entry.is_static);
        let kept = learned.map(|FdbEntry { tenant, vlan, mac, port, age_s, .. }| KeptAddress {
            tenant,
            vlan: u16::try_from(vlan).unwrap_or(u16::MAX),
            mac,
            port,
            age_s,
        });
        Ok(kept.collect())
    }

    /// Learns addresses of the former process, as far as their networks and ports still exist.
    pub(super) fn relearn(&self, kept: &[KeptAddress]) -> Result<(), ApiError> {
        let ids = lock(&self.shared).compiler.ids().clone();
        let domains = meant(&ids, &FdbFilter::default())?;
        let domains: HashMap<(&str, u16), u16> =
            domains.iter().map(|(domain, (tenant, vlan))| ((*tenant, *vlan), *domain)).collect();
        let station = |of: &KeptAddress| {
            let domain = *domains.get(&(of.tenant.as_str(), of.vlan))?;
            let (mac, port) = (of.mac.parse().ok()?, PortId(ids.port(&of.port)?));
            Some(Station { domain, mac, port, age_s: of.age_s })
        };
        let stations = kept.iter().filter_map(station).collect();
        self.switch.fdb_relearn(stations).map_err(worker_failed)
    }

    pub(super) fn flush(&self, filter: &FdbFilter) -> Result<usize, ApiError> {
        let ids = lock(&self.shared).compiler.ids().clone();
        let domains = meant(&ids, filter)?;
        let port = filter.port.as_deref().and_then(|name| ids.port(name)).map(PortId);
        if filter.tenant.is_none() && filter.vlan.is_none() {
            return self.switch.fdb_flush(port, None).map_err(worker_failed);
        }
        let mut flushed = 0;
        for domain in domains.keys() {
            flushed += self.switch.fdb_flush(port, Some(*domain)).map_err(worker_failed)?;
        }
        Ok(flushed)
    }

    /// All counters. For an exact reading of counters, the caller must prevent changes of the
    /// configuration during the call.
    pub(super) fn counters(&self, exact: bool) -> Result<Stats, ApiError> {
        let (config, live) = self.ports_now();
        let (deleted, watches) = {
            let shared = lock(&self.shared);
            (shared.deleted, shared.watches.clone())
        };
        let taken: HashMap<PortId, PortReading> = if exact {
            self.switch.checkpoint().map_err(worker_failed)?.into_iter().collect()
        } else {
            HashMap::new()
        };
        // The counters grow while this thread waits for the lock. With an earlier time, the rate
        // between two readings would be wrong by the difference of the waits.
        let time_ns = self.switch.uptime().0;
        let reading = |port: &LivePort| {
            // The counters of a port that is not attached do not change.
            taken.get(&port.id).copied().unwrap_or_else(|| port.counters.read())
        };
        let named = config.ports.iter().filter_map(|port| Some((port, live.get(&port.name)?)));
        let mut readings: Vec<(String, PortReading)> =
            named.map(|(port, live)| (port.name.clone(), reading(live))).collect();
        readings.extend(deleted.map(|last| ("(deleted)".to_owned(), last)));
        let schedule = config.worker.schedule.to_string();
        let mut ports: Vec<PortStats> =
            readings.iter().map(|(name, reading)| port_stats(name, reading)).collect();
        {
            let shared = lock(&self.shared);
            for port in &mut ports {
                port.rtp = shared.compiler.rtp(&port.port);
                port.queues = shared.compiler.queues(&port.port);
            }
        }
        Ok(Stats {
            time_ns,
            exact,
            violations: if exact { violations(&readings) } else { Vec::new() },
            ports,
            workers: worker_states(self.switch.as_ref(), &watches, &schedule),
            links: Vec::new(),
        })
    }
}

/// Returns the numbers of the networks that match a filter's tenant and VLAN.
fn meant<'a>(
    ids: &'a IdTable,
    filter: &FdbFilter,
) -> Result<HashMap<u16, (&'a str, u16)>, ApiError> {
    let missing = |object: String, list: &str| {
        let remedy = format!("see `penstock {list} list`");
        ApiError::new(ErrorKind::NotFound, object, "it does not exist", remedy)
    };
    if let Some(tenant) = filter.tenant.as_deref().filter(|name| ids.tenant(name).is_none()) {
        return Err(missing(format!("tenant {tenant:?}"), "tenant"));
    }
    if let Some(port) = filter.port.as_deref().filter(|name| ids.port(name).is_none()) {
        return Err(missing(format!("port {port:?}"), "port"));
    }
    let domains: HashMap<u16, (&str, u16)> = ids
        .networks()
        .filter(|(tenant, vlan, _)| {
            filter.tenant.as_deref().is_none_or(|wanted| wanted == *tenant)
                && filter.vlan.is_none_or(|wanted| wanted == *vlan)
        })
        .map(|(tenant, vlan, id)| (id, (tenant, vlan)))
        .collect();
    match filter.vlan {
        Some(vlan) if domains.is_empty() => Err(missing(format!("VLAN {vlan}"), "tenant")),
        _ => Ok(domains),
    }
}

/// Returns a sentence for each contradiction between counters. The received frames of a port and
/// their copies must be equal to the sum of its forwarded, dropped and queued frames. Over all
/// ports, the number of sent frames must be equal to the number of forwarded frames.
fn violations(readings: &[(String, PortReading)]) -> Vec<String> {
    let mut all: Vec<String> = readings
        .iter()
        .filter(|(_, reading)| reading.unaccounted() != 0)
        .map(|(name, r)| {
            format!(
                "port {name}: rx {} + replicated {} - forwarded {} - drops {} - queued {} is {}, \
                 not 0",
                r.rx_frames,
                r.replicated,
                r.forwarded,
                r.dropped(),
                r.queued,
                r.unaccounted()
            )
        })
        .collect();
    let sum = |field: fn(&PortReading) -> u64| -> u128 {
        readings.iter().map(|(_, reading)| u128::from(field(reading))).sum()
    };
    let (forwarded, sent) = (sum(|r| r.forwarded), sum(|r| r.tx_frames));
    if forwarded != sent {
        all.push(format!("all ports: {forwarded} frames forwarded, but {sent} frames sent"));
    }
    all
}

fn fields(names: &[(&'static str, &'static str, &'static str)], values: Vec<u64>) -> Named {
    names.iter().zip(values).map(|((name, ..), value)| NamedCount::new(name, value)).collect()
}

fn by_reason(counts: &[u64]) -> Named {
    let reasons = DropReason::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
    reasons.map(|(reason, count)| NamedCount::new(reason.name(), *count)).collect()
}

fn port_stats(name: &str, reading: &PortReading) -> PortStats {
    PortStats {
        port: name.to_owned(),
        counters: fields(PortReading::FIELDS, reading.values()),
        drops: by_reason(&reading.drops),
        tx_drops: by_reason(&reading.tx_drops),
        delays: delays(reading),
        rtp: Vec::new(),
        queues: Vec::new(),
    }
}

fn delays(reading: &PortReading) -> Vec<Delays> {
    let kinds = [
        ("waited", &reading.waited),
        ("varied", &reading.varied),
        ("tx_waited", &reading.tx_waited),
        ("shaped", &reading.shaped),
    ];
    let used = |(name, counts): (&str, &[u64; PARTS])| {
        let last = counts.iter().rposition(|count| *count > 0)?;
        Some(Delays { name: name.to_owned(), counts: counts[..=last].to_vec() })
    };
    kinds.into_iter().filter_map(used).collect()
}

fn worker_states(switch: &dyn DataPath, watches: &[Watch], schedule: &str) -> Vec<WorkerStatus> {
    let numbered = (0..).zip(switch.workers());
    let watched = numbered.zip(watches);
    watched
        .map(|((id, (reading, core)), watch)| {
            let (busy, idle) =
                (u128::from(reading.cycles_charged), u128::from(reading.cycles_idle));
            let share = busy * 10_000 / (busy + idle).max(1);
            WorkerStatus {
                id,
                core: core.unwrap_or(u32::MAX),
                stalled: watch.stalled,
                heartbeat_age_ms: watch.age.0 / 1_000_000,
                busy_share_e4: u32::try_from(share).unwrap_or(10_000),
                schedule: schedule.to_owned(),
                counters: fields(WorkerReading::FIELDS, reading.values()),
            }
        })
        .collect()
}

fn port_status(port: &Port, live: &LivePort, workers: Vec<u16>) -> PortStatus {
    let status = live.link.as_ref().map_or_else(
        || AttachStatus {
            state: AttachState::Error,
            error: live.error.as_ref().map(ToString::to_string),
            features: Vec::new(),
            ring_sizes: Vec::new(),
            queues_up: 0,
        },
        |link| link.status(),
    );
    let state = match status.state {
        AttachState::Waiting => "waiting",
        AttachState::Connected => "connected",
        AttachState::Up => "up",
        AttachState::Down => "down",
        AttachState::Error => "error",
    };
    PortStatus {
        name: port.name.clone(),
        id: live.id.0.into(),
        kind: port.attachment().map_or_else(String::new, |of| of.kind().to_owned()),
        tenant: port.tenant.clone().unwrap_or_default(),
        vlan: port.vlan_text(),
        target: live.attachment.target(),
        state: state.to_owned(),
        error: status.error.unwrap_or_default(),
        queues: live.attachment.queues().into(),
        queues_up: status.queues_up.into(),
        features: status.features.into_iter().map(str::to_owned).collect(),
        ring_sizes: status.ring_sizes,
        workers: workers.into_iter().map(Into::into).collect(),
        labels: port.labels.as_map().clone(),
        ..PortStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(rx: u64, forwarded: u64, dropped: u64, tx: u64) -> PortReading {
        let mut reading =
            PortReading { rx_frames: rx, forwarded, tx_frames: tx, ..PortReading::default() };
        reading.drops[DropReason::Rule as usize] = dropped;
        reading
    }

    #[test]
    fn identities_that_do_not_hold_are_named() {
        let good = [("a".to_owned(), reading(10, 7, 3, 0)), ("b".to_owned(), reading(0, 0, 0, 7))];
        assert_eq!(violations(&good), Vec::<String>::new());
        let bad = [("a".to_owned(), reading(10, 7, 2, 0)), ("b".to_owned(), reading(0, 0, 0, 6))];
        assert_eq!(
            violations(&bad),
            [
                "port a: rx 10 + replicated 0 - forwarded 7 - drops 2 - queued 0 is 1, not 0",
                "all ports: 7 frames forwarded, but 6 frames sent"
            ]
        );
    }
}
