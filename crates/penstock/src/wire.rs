//! The wire format: generated gRPC types, and their conversion from and to
//! [`penstock_control::api`]. Nothing else in the program knows both.

use penstock_control::api;
use tonic::Status;

/// Generated from `proto/penstock/host/v1/host.proto`.
#[allow(missing_docs, clippy::pedantic, clippy::nursery, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("penstock.host.v1");
}

/// Largest message the daemon accepts: a configuration of 1,000 ports is about 200 kB.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Largest message a client accepts: 100,000 addresses or the counters of 4,096 ports.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Shortest interval of a watch.
pub const WATCH_MS_MIN: u32 = 100;
/// Longest interval of a watch.
pub const WATCH_MS_MAX: u32 = 3_600_000;

fn named(from: api::Named) -> Vec<v1::NamedCount> {
    from.into_iter().map(|(name, value)| v1::NamedCount { name, value }).collect()
}

fn unnamed(from: Vec<v1::NamedCount>) -> api::Named {
    from.into_iter().map(|count| (count.name, count.value)).collect()
}

/// A number that a daemon of another version made too wide for us.
fn narrow<T: TryFrom<u32>>(value: u32, what: &str) -> Result<T, Status> {
    T::try_from(value)
        .map_err(|_| Status::internal(format!("{what} {value} in the daemon's reply: too large")))
}

fn each<F, T, E>(from: Vec<F>, convert: impl Fn(F) -> Result<T, E>) -> Result<Vec<T>, E> {
    from.into_iter().map(convert).collect()
}

impl From<api::WorkerStatus> for v1::Worker {
    fn from(from: api::WorkerStatus) -> Self {
        Self {
            id: from.id.into(),
            core: from.core,
            stalled: from.stalled,
            heartbeat_age_ms: from.heartbeat_age_ms,
            busy_share_e4: from.busy_share_e4,
            schedule: from.schedule,
            counters: named(from.counters),
        }
    }
}

impl TryFrom<v1::Worker> for api::WorkerStatus {
    type Error = Status;
    fn try_from(from: v1::Worker) -> Result<Self, Status> {
        Ok(Self {
            id: narrow(from.id, "worker id")?,
            core: from.core,
            stalled: from.stalled,
            heartbeat_age_ms: from.heartbeat_age_ms,
            busy_share_e4: from.busy_share_e4,
            schedule: from.schedule,
            counters: unnamed(from.counters),
        })
    }
}

impl From<api::HostStatus> for v1::Status {
    fn from(from: api::HostStatus) -> Self {
        Self {
            name: from.name,
            version: from.version,
            config: from.config,
            generation: from.generation,
            uptime_s: from.uptime_s,
            vcpu_dir: from.vcpu_dir,
            tsc_hz: from.tsc_hz,
            workers: from.workers.into_iter().map(Into::into).collect(),
            fabric: from.fabric.map(Into::into),
            switch: from.switch.map(Into::into),
        }
    }
}

impl TryFrom<v1::Status> for api::HostStatus {
    type Error = Status;
    fn try_from(from: v1::Status) -> Result<Self, Status> {
        Ok(Self {
            name: from.name,
            version: from.version,
            config: from.config,
            generation: from.generation,
            uptime_s: from.uptime_s,
            vcpu_dir: from.vcpu_dir,
            tsc_hz: from.tsc_hz,
            workers: each(from.workers, TryInto::try_into)?,
            fabric: from.fabric.map(Into::into),
            switch: from.switch.map(Into::into),
        })
    }
}

impl From<api::FabricStatus> for v1::Fabric {
    fn from(from: api::FabricStatus) -> Self {
        Self {
            name: from.name,
            controller: from.controller,
            told: from.told,
            applied: from.applied,
            unkept: from.unkept,
            stale_ms: from.stale_ms,
            absent: from.absent,
            last_error: from.last_error,
            counters: named(from.counters),
        }
    }
}

impl From<v1::Fabric> for api::FabricStatus {
    fn from(from: v1::Fabric) -> Self {
        Self {
            name: from.name,
            controller: from.controller,
            told: from.told,
            applied: from.applied,
            unkept: from.unkept,
            stale_ms: from.stale_ms,
            absent: from.absent,
            last_error: from.last_error,
            counters: unnamed(from.counters),
        }
    }
}

impl From<api::SwitchStatus> for v1::FabricSwitch {
    fn from(from: api::SwitchStatus) -> Self {
        let api::SwitchStatus { name, told, unkept, last_error, counters } = from;
        Self { name, told, unkept, last_error, counters: named(counters) }
    }
}

impl From<v1::FabricSwitch> for api::SwitchStatus {
    fn from(from: v1::FabricSwitch) -> Self {
        let v1::FabricSwitch { name, told, unkept, last_error, counters } = from;
        Self { name, told, unkept, last_error, counters: unnamed(counters) }
    }
}

impl From<api::PortStatus> for v1::Port {
    fn from(from: api::PortStatus) -> Self {
        Self {
            name: from.name,
            id: from.id.into(),
            kind: from.kind,
            tenant: from.tenant,
            vlan: from.vlan,
            target: from.target,
            state: from.state,
            error: from.error,
            queues: from.queues.into(),
            queues_up: from.queues_up.into(),
            features: from.features,
            ring_sizes: from.ring_sizes,
            workers: from.workers.into_iter().map(Into::into).collect(),
            policy: from.policy,
            entitled: from.entitled,
            weight: from.weight.into(),
            priority: from.priority.into(),
        }
    }
}

impl TryFrom<v1::Port> for api::PortStatus {
    type Error = Status;
    fn try_from(from: v1::Port) -> Result<Self, Status> {
        Ok(Self {
            name: from.name,
            id: narrow(from.id, "port id")?,
            kind: from.kind,
            tenant: from.tenant,
            vlan: from.vlan,
            target: from.target,
            state: from.state,
            error: from.error,
            queues: narrow(from.queues, "queue count")?,
            queues_up: narrow(from.queues_up, "queue count")?,
            features: from.features,
            ring_sizes: from.ring_sizes,
            workers: from
                .workers
                .into_iter()
                .map(|worker| narrow(worker, "worker"))
                .collect::<Result<_, _>>()?,
            policy: from.policy,
            entitled: from.entitled,
            weight: narrow(from.weight, "weight")?,
            priority: narrow(from.priority, "priority")?,
        })
    }
}

impl From<api::PortStats> for v1::PortStats {
    fn from(from: api::PortStats) -> Self {
        Self {
            port: from.port,
            counters: named(from.counters),
            drops: named(from.drops),
            tx_drops: named(from.tx_drops),
            delays: from.delays.into_iter().map(delays).collect(),
            rtp: from.rtp.into_iter().map(rtp).collect(),
            queues: from.queues.into_iter().map(queue).collect(),
        }
    }
}

fn queue(from: api::QueueStatus) -> v1::PortQueue {
    v1::PortQueue {
        queue: from.queue.into(),
        weight: from.weight.into(),
        dscps: from.dscps.into_iter().map(Into::into).collect(),
        frames: from.frames,
        bytes: from.bytes,
        drops: from.drops,
        backlog_frames: from.backlog_frames,
        backlog_bytes: from.backlog_bytes,
    }
}

fn of_queue(from: v1::PortQueue) -> api::QueueStatus {
    api::QueueStatus {
        // Numbers that do not fit, of a newer daemon, are shown as the largest.
        queue: u8::try_from(from.queue).unwrap_or(u8::MAX),
        weight: u16::try_from(from.weight).unwrap_or(u16::MAX),
        dscps: from.dscps.into_iter().filter_map(|dscp| u8::try_from(dscp).ok()).collect(),
        frames: from.frames,
        bytes: from.bytes,
        drops: from.drops,
        backlog_frames: from.backlog_frames,
        backlog_bytes: from.backlog_bytes,
    }
}

fn delays(from: api::Delays) -> v1::Delays {
    v1::Delays { name: from.name, counts: from.counts }
}

fn rtp(from: api::RtpStatus) -> v1::RtpStream {
    v1::RtpStream {
        udp_port: from.udp_port.into(),
        ssrc: from.ssrc,
        packets: from.packets,
        lost: from.lost,
        jitter_ns: from.jitter_ns,
        jitter_max_ns: from.jitter_max_ns,
    }
}

impl From<v1::PortStats> for api::PortStats {
    fn from(from: v1::PortStats) -> Self {
        Self {
            port: from.port,
            counters: unnamed(from.counters),
            drops: unnamed(from.drops),
            tx_drops: unnamed(from.tx_drops),
            delays: from.delays.into_iter().map(of_delays).collect(),
            rtp: from.rtp.iter().map(of_rtp).collect(),
            queues: from.queues.into_iter().map(of_queue).collect(),
        }
    }
}

fn of_delays(from: v1::Delays) -> api::Delays {
    api::Delays { name: from.name, counts: from.counts }
}

fn of_rtp(from: &v1::RtpStream) -> api::RtpStatus {
    api::RtpStatus {
        // A port that does not fit is shown as none.
        udp_port: u16::try_from(from.udp_port).unwrap_or(0),
        ssrc: from.ssrc,
        packets: from.packets,
        lost: from.lost,
        jitter_ns: from.jitter_ns,
        jitter_max_ns: from.jitter_max_ns,
    }
}

impl From<api::LinkStatus> for v1::Link {
    fn from(from: api::LinkStatus) -> Self {
        let part = |part: api::LinkPart| v1::LinkPart { port: part.port, bps: part.bps };
        Self {
            port: from.port,
            capacity_bps: from.capacity_bps,
            sent_permille: from.sent_permille,
            load_permille: from.load_permille,
            limited: from.limited,
            since_ms: from.since_ms,
            entered: from.entered,
            parts: from.parts.into_iter().map(part).collect(),
        }
    }
}

impl From<v1::Link> for api::LinkStatus {
    fn from(from: v1::Link) -> Self {
        let part = |part: v1::LinkPart| api::LinkPart { port: part.port, bps: part.bps };
        Self {
            port: from.port,
            capacity_bps: from.capacity_bps,
            sent_permille: from.sent_permille,
            load_permille: from.load_permille,
            limited: from.limited,
            since_ms: from.since_ms,
            entered: from.entered,
            parts: from.parts.into_iter().map(part).collect(),
        }
    }
}

impl From<api::Consumer> for v1::Consumer {
    fn from(from: api::Consumer) -> Self {
        Self {
            port: from.port,
            used: from.used,
            entitled: from.entitled,
            share_permille: from.share_permille,
            priority: from.priority.into(),
            pps: from.pps,
            bps: from.bps,
        }
    }
}

impl TryFrom<v1::Consumer> for api::Consumer {
    type Error = Status;
    fn try_from(from: v1::Consumer) -> Result<Self, Status> {
        Ok(Self {
            port: from.port,
            used: from.used,
            entitled: from.entitled,
            share_permille: from.share_permille,
            priority: narrow(from.priority, "priority")?,
            pps: from.pps,
            bps: from.bps,
        })
    }
}

impl From<api::Explanation> for v1::Explanation {
    fn from(from: api::Explanation) -> Self {
        Self {
            limit: from.limit.name().to_owned(),
            limit_port: from.limit.port().to_owned(),
            port: from.port,
            window_ms: from.window_ms,
            why: from.why,
            remedy: from.remedy,
            sends_pps: from.sends_pps,
            sends_bps: from.sends_bps,
            dropped_permille: from.dropped_permille,
            policy: from.policy,
            entitled: from.entitled,
            used: from.used,
            weight: from.weight.into(),
            priority: from.priority.into(),
            throttled_permille: from.throttled_permille,
            full_permille: from.full_permille,
            worker: from.worker.into(),
            busy_permille: from.busy_permille,
            stolen_permille: from.stolen_permille,
            consumers: from.consumers.into_iter().map(Into::into).collect(),
            inside_profile: from.inside_profile,
            profile: from.profile,
            bound_us: from.bound_us,
            latency: from.latency,
            bound: from.bound.map(Into::into),
            vm: from.vm,
            vcpu_dir: from.vcpu_dir,
            warnings: from.warnings,
        }
    }
}

impl From<api::LatencyBound> for v1::LatencyBound {
    fn from(from: api::LatencyBound) -> Self {
        let api::LatencyBound { port, rounds, begun, beside, above, .. } = from;
        let (above_rate, capacity, left_us) = (from.above_rate, from.capacity, from.left_us);
        Self { port, rounds, begun, beside, above, above_rate, capacity, left_us }
    }
}

impl From<v1::LatencyBound> for api::LatencyBound {
    fn from(from: v1::LatencyBound) -> Self {
        let v1::LatencyBound { port, rounds, begun, beside, above, .. } = from;
        let (above_rate, capacity, left_us) = (from.above_rate, from.capacity, from.left_us);
        Self { port, rounds, begun, beside, above, above_rate, capacity, left_us }
    }
}

impl TryFrom<v1::Explanation> for api::Explanation {
    type Error = Status;
    fn try_from(from: v1::Explanation) -> Result<Self, Status> {
        Ok(Self {
            limit: api::Limit::from_names(&from.limit, &from.limit_port),
            port: from.port,
            window_ms: from.window_ms,
            why: from.why,
            remedy: from.remedy,
            sends_pps: from.sends_pps,
            sends_bps: from.sends_bps,
            dropped_permille: from.dropped_permille,
            policy: from.policy,
            entitled: from.entitled,
            used: from.used,
            weight: narrow(from.weight, "weight")?,
            priority: narrow(from.priority, "priority")?,
            throttled_permille: from.throttled_permille,
            full_permille: from.full_permille,
            worker: narrow(from.worker, "worker")?,
            busy_permille: from.busy_permille,
            stolen_permille: from.stolen_permille,
            consumers: each(from.consumers, TryInto::try_into)?,
            inside_profile: from.inside_profile,
            profile: from.profile,
            bound_us: from.bound_us,
            latency: from.latency,
            bound: from.bound.map(Into::into),
            vm: from.vm,
            vcpu_dir: from.vcpu_dir,
            warnings: from.warnings,
        })
    }
}

impl From<api::Stats> for v1::Stats {
    fn from(from: api::Stats) -> Self {
        Self {
            time_ns: from.time_ns,
            exact: from.exact,
            ports: from.ports.into_iter().map(Into::into).collect(),
            workers: from.workers.into_iter().map(Into::into).collect(),
            links: from.links.into_iter().map(Into::into).collect(),
            violations: from.violations,
        }
    }
}

impl TryFrom<v1::Stats> for api::Stats {
    type Error = Status;
    fn try_from(from: v1::Stats) -> Result<Self, Status> {
        Ok(Self {
            time_ns: from.time_ns,
            exact: from.exact,
            ports: from.ports.into_iter().map(Into::into).collect(),
            workers: each(from.workers, TryInto::try_into)?,
            links: from.links.into_iter().map(Into::into).collect(),
            violations: from.violations,
        })
    }
}

impl From<api::FdbEntry> for v1::FdbEntry {
    fn from(from: api::FdbEntry) -> Self {
        Self {
            tenant: from.tenant,
            vlan: from.vlan.into(),
            mac: from.mac,
            port: from.port,
            age_s: from.age_s,
            is_static: from.is_static,
        }
    }
}

impl TryFrom<v1::FdbEntry> for api::FdbEntry {
    type Error = Status;
    fn try_from(from: v1::FdbEntry) -> Result<Self, Status> {
        Ok(Self {
            tenant: from.tenant,
            vlan: narrow(from.vlan, "VLAN")?,
            mac: from.mac,
            port: from.port,
            age_s: from.age_s,
            is_static: from.is_static,
        })
    }
}

impl From<api::FlowStatus> for v1::Flow {
    fn from(from: api::FlowStatus) -> Self {
        Self {
            name: from.name,
            priority: from.priority.into(),
            scope: from.scope,
            matching: from.matching,
            actions: from.actions,
            lookups: from.lookups,
        }
    }
}

impl TryFrom<v1::Flow> for api::FlowStatus {
    type Error = Status;
    fn try_from(from: v1::Flow) -> Result<Self, Status> {
        Ok(Self {
            name: from.name,
            priority: narrow(from.priority, "priority")?,
            scope: from.scope,
            matching: from.matching,
            actions: from.actions,
            lookups: from.lookups,
        })
    }
}

impl From<api::ChangeReport> for v1::ChangeReport {
    fn from(from: api::ChangeReport) -> Self {
        Self { generation: from.generation, changes: from.changes, warnings: from.warnings }
    }
}

impl From<v1::ChangeReport> for api::ChangeReport {
    fn from(from: v1::ChangeReport) -> Self {
        Self { generation: from.generation, changes: from.changes, warnings: from.warnings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_survive_the_wire() {
        let stats = api::Stats {
            time_ns: 7,
            exact: true,
            ports: vec![api::PortStats {
                port: "vm1".into(),
                counters: vec![("rx_frames".into(), 3)],
                drops: vec![("rule".into(), 1)],
                tx_drops: vec![("ring-full".into(), 2)],
                delays: vec![api::Delays { name: "waited".into(), counts: vec![0, 5] }],
                rtp: vec![api::RtpStatus { udp_port: 5_004, ssrc: 7, ..Default::default() }],
                queues: vec![api::QueueStatus {
                    queue: 1,
                    weight: 30,
                    dscps: vec![8, 46],
                    frames: 5,
                    bytes: 500,
                    drops: 3,
                    backlog_frames: 2,
                    backlog_bytes: 128,
                }],
            }],
            workers: vec![api::WorkerStatus { id: 1, core: 3, ..Default::default() }],
            links: vec![api::LinkStatus {
                port: "up".into(),
                capacity_bps: 10,
                limited: true,
                parts: vec![api::LinkPart { port: "vm1".into(), bps: 7 }],
                ..Default::default()
            }],
            violations: vec!["port vm1: 1 frame missing".into()],
        };
        assert_eq!(api::Stats::try_from(v1::Stats::from(stats.clone())).unwrap(), stats);
        let port = api::PortStatus { name: "vm1".into(), queues: 2, ..Default::default() };
        assert_eq!(api::PortStatus::try_from(v1::Port::from(port.clone())).unwrap(), port);
    }

    #[test]
    fn an_explanation_survives_the_wire() {
        let answer = api::Explanation {
            port: "vm1".into(),
            limit: api::Limit::Link("up".into()),
            consumers: vec![api::Consumer { port: "vm2".into(), used: 7, ..Default::default() }],
            inside_profile: Some(true),
            bound_us: Some(120),
            latency: "at most 120 us".into(),
            warnings: vec!["port vm1: too few cycles".into()],
            bound: Some(api::LatencyBound { rounds: 2, left_us: Some(7), ..Default::default() }),
            ..Default::default()
        };
        let back = api::Explanation::try_from(v1::Explanation::from(answer.clone())).unwrap();
        assert_eq!(back, answer);
    }

    #[test]
    fn a_number_that_does_not_fit_is_an_error_and_no_wrap() {
        let entry = v1::FdbEntry { vlan: 70_000, ..Default::default() };
        let error = api::FdbEntry::try_from(entry).unwrap_err();
        assert_eq!(error.message(), "VLAN 70000 in the daemon's reply: too large");
    }
}
