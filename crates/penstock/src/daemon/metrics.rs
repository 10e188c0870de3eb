//! The Prometheus page: every counter with its meaning and unit, in the OpenMetrics text format.
//!
//! # Approach
//!
//! - The list of metrics (the catalogue) follows the declarations of the counters
//!   ([`PortReading::FIELDS`], [`WorkerReading::FIELDS`]). If a counter is added to the
//!   declarations, its metric and its line in `docs/reference/metrics.md` need no change in this
//!   module. A test compares this list of metrics with `docs/reference/metrics.md`.
//! - OpenMetrics requires the unit at a name's end. For example, the counter `rx_frames` in frames
//!   is `penstock_port_rx_frames_total`, and `cycles_ingress` in cycles is
//!   `penstock_port_ingress_cycles_total`.
//! - Units are Prometheus' base units: nanoseconds become seconds, and rates in bits become bytes.
//!
//! # Cost
//!
//! A scrape takes no lock of the data path.

mod vcpus;

use std::fmt;

use penstock_control::api::{
    Delays, FabricStatus, HostStatus, LinkStatus, MachineChange, Named, PortStats, PortStatus,
    QueueStatus, RtpStatus, Stats, SwitchStatus,
};
use penstock_control::host::{ObjectLabel, PortLearning};
use penstock_control::report::Cause;
use penstock_dataplane::counters::{PortReading, WorkerReading};
use penstock_qos::delay_scale;
use penstock_vcpu_host::state::State;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::rates::counter;
use crate::table::to_f64;
use crate::verbs::delays;

#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub status: HostStatus,
    pub ports: Vec<PortStatus>,
    pub labels: Vec<ObjectLabel>,
    pub stats: Stats,
    /// The learned cost of each port that purchased cycles.
    pub learning: Vec<(String, PortLearning)>,
    /// For each port with a contract, the seconds with each cause ([`Cause`]).
    pub contracts: Vec<(String, Cause, u64)>,
    /// State of the vCPU scheduler, if one runs.
    pub vcpus: Option<State>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Info,
    Uptime,
    Generation,
    Tsc,
    Machine(fn(&MachineChange) -> f64),
    PortUp,
    /// Labels of objects of this kind. The kind is also the name of the metric's first label.
    Labels(&'static str),
    PortQueuesUp,
    Port(&'static str),
    /// A field of [`PortReading`] in nanoseconds, shown in seconds.
    PortTime(&'static str),
    Drops,
    TxDrops,
    Delay(&'static str),
    Rtp(fn(&RtpStatus) -> f64),
    RtpCount(fn(&RtpStatus) -> u64),
    Queue(fn(&QueueStatus) -> u64),
    WorkerStalled,
    HeartbeatAge,
    Worker(&'static str),
    Link(fn(&LinkStatus) -> f64),
    LinkEntered,
    LinkPart,
    Learning(fn(&PortLearning) -> Option<f64>),
    Contract,
    Fabric(fn(&FabricStatus) -> f64),
    FabricCount(&'static str),
    Switch(fn(&SwitchStatus) -> f64),
    SwitchCount(&'static str),
    Vcpu(vcpus::Of),
}

#[derive(Clone, Debug)]
struct Metric {
    /// Name of the metric, without the unit and without `_total`.
    name: String,
    unit: &'static str,
    is_gauge: bool,
    /// Names of the metric's labels, separated by commas, as in `docs/reference/metrics.md`.
    labels: &'static str,
    help: String,
    source: Source,
}

impl Metric {
    const fn kind(&self) -> MetricType {
        match self.source {
            Source::Delay(_) => MetricType::Histogram,
            _ if self.is_gauge => MetricType::Gauge,
            _ => MetricType::Counter,
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// Name of a field, without the unit that the encoder appends.
fn name(prefix: &str, field: &str, unit: &str) -> String {
    let stem = if field == unit {
        ""
    } else if let Some(stem) = field.strip_suffix(unit).and_then(|s| s.strip_suffix('_')) {
        stem
    } else if let Some(stem) = field.strip_prefix(unit).and_then(|s| s.strip_prefix('_')) {
        stem
    } else {
        field
    };
    if stem.is_empty() { prefix.to_owned() } else { format!("{prefix}_{stem}") }
}

fn gauge(
    name: &str,
    unit: &'static str,
    labels: &'static str,
    help: &str,
    source: Source,
) -> Metric {
    let (name, help) = (name.to_owned(), help.to_owned());
    Metric { name, unit, is_gauge: true, labels, help, source }
}

/// Gauges of a machine whose frames do not cost what they cost at the calibration.
fn machine_gauges() -> [Metric; 2] {
    [
        gauge(
            "penstock_host_cost_change",
            "",
            "",
            "cost of all frames over that of the calibration, minus 1; 0 if they agree",
            Source::Machine(|machine| f64::from(machine.cost_permille) / 1e3),
        ),
        gauge(
            "penstock_host_cost_changed",
            "seconds",
            "",
            "time for which the frames of all ports have cost more or less than at the calibration",
            Source::Machine(|machine| to_f64(machine.since_ms) / 1e3),
        ),
    ]
}

/// Gauges of the host, its ports and workers.
/// Metrics with the labels of ports, tenants and VMs.
fn label_gauges() -> [Metric; 3] {
    [
        ("port", "port, label, value", "a label of a port"),
        ("tenant", "tenant, label, value", "a label of a tenant"),
        ("vm", "vm, label, value", "a label of a VM with scheduled vCPUs"),
    ]
    .map(|(kind, labels, what)| {
        let help = format!("always 1; {what}, as the configuration has it");
        gauge(&format!("penstock_{kind}_labels"), "", labels, &help, Source::Labels(kind))
    })
}

fn gauges() -> Vec<Metric> {
    vec![
        gauge(
            "penstock_host_info",
            "",
            "host, version",
            "always 1; the labels contain the host's name and the version",
            Source::Info,
        ),
        gauge(
            "penstock_host_uptime",
            "seconds",
            "",
            "time since the daemon started",
            Source::Uptime,
        ),
        gauge(
            "penstock_host_config_generation",
            "",
            "",
            "number that increases with every accepted change of the configuration",
            Source::Generation,
        ),
        gauge("penstock_host_tsc", "hertz", "", "rate of the time-stamp counter", Source::Tsc),
        gauge(
            "penstock_port_up",
            "",
            "port, tenant, type, state",
            "1 if frames can pass through the port",
            Source::PortUp,
        ),
        gauge(
            "penstock_port_up",
            "queues",
            "port",
            "queue pairs that can pass frames",
            Source::PortQueuesUp,
        ),
        gauge(
            "penstock_worker_stalled",
            "",
            "worker",
            "1 if the worker is stalled: no heartbeat within the watchdog's limit",
            Source::WorkerStalled,
        ),
        gauge(
            "penstock_worker_heartbeat_age",
            "seconds",
            "worker",
            "time since the watchdog last saw a new heartbeat of the worker",
            Source::HeartbeatAge,
        ),
    ]
}

/// Returns all metrics, in the order in which the page `/metrics` prints the metrics.
fn catalogue() -> Vec<Metric> {
    let mut metrics = gauges();
    metrics.extend(label_gauges().into_iter().chain(machine_gauges()));
    for (field, unit, help) in PortReading::FIELDS {
        let (unit, source) = match *unit {
            "nanoseconds" => ("seconds", Source::PortTime(field)),
            unit => (unit, Source::Port(field)),
        };
        metrics.push(Metric {
            name: name("penstock_port", field, unit),
            unit,
            is_gauge: PortReading::GAUGES.contains(field),
            labels: "port",
            help: (*help).to_owned(),
            source,
        });
    }
    for (name, help, source) in [
        (
            "penstock_port_dropped",
            "frames from this port that were dropped, by reason",
            Source::Drops,
        ),
        (
            "penstock_port_tx_dropped",
            "frames to this port that were dropped, by reason",
            Source::TxDrops,
        ),
    ] {
        metrics.push(Metric {
            name: name.to_owned(),
            unit: "frames",
            is_gauge: false,
            labels: "port, reason",
            help: help.to_owned(),
            source,
        });
    }
    metrics.extend(delay_metrics());
    metrics.extend(rtp_metrics());
    metrics.extend(queue_metrics());
    // The heartbeat's TSC value has no meaning outside the process. The gauge above shows its age.
    for (field, unit, help) in WorkerReading::FIELDS.iter().filter(|(f, ..)| *f != "heartbeat") {
        metrics.push(Metric {
            name: name("penstock_worker", field, unit),
            unit,
            is_gauge: WorkerReading::GAUGES.contains(field),
            labels: "worker",
            help: (*help).to_owned(),
            source: Source::Worker(field),
        });
    }
    metrics.extend(link_metrics());
    metrics.extend(learning_metrics());
    metrics.push(Metric {
        name: "penstock_port_contract".to_owned(),
        unit: "seconds",
        is_gauge: false,
        labels: "port, cause",
        help:
            "time of the port's contract since the daemon's start, by what the port got and why: \
               the causes of `penstock report`"
                .to_owned(),
        source: Source::Contract,
    });
    metrics.extend(fabric_metrics());
    metrics.extend(switch_metrics());
    metrics.extend(vcpus::metrics());
    metrics
}

/// Metrics of a host that is a switch of a fabric.
fn switch_metrics() -> Vec<Metric> {
    let metric = |name: String, unit, help: &str, source| Metric {
        name,
        unit,
        is_gauge: matches!(source, Source::Switch(_)),
        labels: "",
        help: help.to_owned(),
        source,
    };
    let unkept: fn(&SwitchStatus) -> f64 = |s| f64::from(u8::from(s.unkept));
    let help = "1 while a restart would lose the decision in force";
    let unkept = metric("penstock_switch_unkept".into(), "", help, Source::Switch(unkept));
    let counts = [
        ("applied", "controllers' decisions that the switch carried out"),
        ("late", "decisions refused because a later decision was in force"),
        ("failed", "decisions that the switch could not carry out"),
    ];
    let count = |(field, help)| {
        let name = name("penstock_switch", field, "decisions");
        metric(name, "decisions", help, Source::SwitchCount(field))
    };
    core::iter::once(unkept).chain(counts.map(count)).collect()
}

/// Metrics of a host that is a server of a fabric.
fn fabric_metrics() -> Vec<Metric> {
    let metric = |name: &str, unit, is_gauge, help: &str, source| Metric {
        name: format!("penstock_fabric_{name}"),
        unit,
        is_gauge,
        labels: "",
        help: help.to_owned(),
        source,
    };
    let connected: fn(&FabricStatus) -> f64 = |f| f64::from(u8::from(!f.controller.is_empty()));
    let stale: fn(&FabricStatus) -> f64 = |f| f64::from(u8::from(f.stale_ms.is_some()));
    let since: fn(&FabricStatus) -> f64 = |f| to_f64(f.stale_ms.unwrap_or(0)) / 1e3;
    let absent: fn(&FabricStatus) -> f64 =
        |f| f64::from(u32::try_from(f.absent.len()).unwrap_or(u32::MAX));
    let sending: fn(&FabricStatus) -> f64 =
        |f| f.pairs.as_ref().map_or(0.0, |pairs| to_f64(pairs.sending));
    let pair_rate: fn(&FabricStatus) -> f64 =
        |f| f.pairs.as_ref().map_or(0.0, |pairs| to_f64(pairs.rate_bps) / 8.0);
    let unkept: fn(&FabricStatus) -> f64 = |f| f64::from(u8::from(!f.unkept.is_empty()));
    let gauges = [
        ("connected", "", "1 while this host's agent has a session with a controller", connected),
        (
            "stale",
            "",
            "1 if the agent had no contact with a controller for three report intervals",
            stale,
        ),
        ("stale", "seconds", "time since this host became stale; 0 if not stale", since),
        ("unkept", "", "1 while a restart would lose the plan in force", unkept),
        ("absent", "tenants", "tenants in the plan that are not configured on this host", absent),
        ("sending", "pairs", "pairs of VMs with a rate of their own that send here", sending),
        ("pair_rate", "bytes_per_second", "sum of the rates of these pairs", pair_rate),
    ];
    let counts = [
        ("sessions", "sessions", "sessions that a controller accepted"),
        ("reports", "reports", "reports of tenants' usage that were sent to a controller"),
        ("missed", "reports", "reports of tenants' usage that could not be made or sent"),
        ("applied", "plans", "a controller's plans that took effect"),
        ("failed", "plans", "plans that the switch could not carry out"),
        ("refused", "plans", "plans refused because a later plan was in force"),
        ("problems", "problems", "problems of the agent of any kind; the log has the details"),
    ];
    let gauges = gauges
        .map(|(name, unit, help, value)| metric(name, unit, true, help, Source::Fabric(value)));
    let counts = counts.map(|(field, unit, help)| {
        let source = Source::FabricCount(field);
        Metric {
            name: name("penstock_fabric", field, unit),
            ..metric("", unit, false, help, source)
        }
    });
    gauges.into_iter().chain(counts).collect()
}

/// Histograms of waiting times of frames. The sum of a histogram counts each frame with the middle
/// of its bucket, so the error of the sum is at most 12 %.
fn delay_metrics() -> [Metric; 4] {
    [
        ("waited", "wait", "time that frames from this port waited in the switch for an output"),
        (
            "varied",
            "wait_variation",
            "difference between the waits of consecutive frames from this port (RFC 3393)",
        ),
        ("tx_waited", "tx_wait", "time that frames for this port waited in the port's queue"),
        ("shaped", "shaping", "time that the shaper kept frames from this port in the port's ring"),
    ]
    .map(|(array, name, help)| Metric {
        name: format!("penstock_port_{name}"),
        unit: "seconds",
        is_gauge: false,
        labels: "port",
        help: help.to_owned(),
        source: Source::Delay(array),
    })
}

fn queue_metrics() -> [Metric; 7] {
    let metric = |name: &str, unit, is_gauge, help: &str, value: fn(&QueueStatus) -> u64| Metric {
        name: format!("penstock_queue{name}"),
        unit,
        is_gauge,
        labels: "port, queue",
        help: help.to_owned(),
        source: Source::Queue(value),
    };
    let sent = "frames that left the queue and went to the port";
    let of = "bytes of frames that left the queue, without FCS";
    let drops = "frames that were dropped because the queue was full or the wait too long";
    let waits = "frames that wait in the queue";
    let unmapped = "frames of queue 0 with a code point other than 0 that the port does not map";
    [
        metric("_weight", "", true, "weight of the queue among the port's queues", |q| {
            q.weight.into()
        }),
        metric("", "frames", false, sent, |q| q.frames),
        metric("", "bytes", false, of, |q| q.bytes),
        metric("_dropped", "frames", false, drops, |q| q.drops),
        metric("_backlog", "frames", true, waits, |q| q.backlog_frames),
        metric("_backlog", "bytes", true, "bytes that wait in the queue", |q| q.backlog_bytes),
        metric("_unmapped", "frames", false, unmapped, |q| q.unmapped),
    ]
}

fn rtp_metrics() -> [Metric; 4] {
    let metric = |name: &str, unit, is_gauge, help: &str, source| Metric {
        name: format!("penstock_rtp{name}"),
        unit,
        is_gauge,
        labels: "port, udp_port",
        help: help.to_owned(),
        source,
    };
    let jitter = Source::Rtp(|stream| to_f64(stream.jitter_ns) / 1e9);
    let most = Source::Rtp(|stream| to_f64(stream.jitter_max_ns) / 1e9);
    let lost = "missing sequence numbers of the RTP stream";
    [
        metric(
            "_jitter",
            "seconds",
            true,
            "interarrival jitter of the RTP stream (RFC 3550)",
            jitter,
        ),
        metric(
            "_jitter_max",
            "seconds",
            true,
            "largest jitter of the stream's current source",
            most,
        ),
        metric("", "packets", false, "packets of the stream", Source::RtpCount(|s| s.packets)),
        metric("_lost", "packets", false, lost, Source::RtpCount(|s| s.lost)),
    ]
}

/// Metrics of ports that purchased cycles.
fn learning_metrics() -> Vec<Metric> {
    let entitled: fn(&PortLearning) -> Option<f64> = |port| Some(to_f64(port.entitlement.0));
    let base: fn(&PortLearning) -> Option<f64> = |port| Some(to_f64(port.base.0));
    let error: fn(&PortLearning) -> Option<f64> = |port| port.model_error;
    let delivered: fn(&PortLearning) -> Option<f64> = |port| port.delivered;
    let inside: fn(&PortLearning) -> Option<f64> =
        |port| Some(f64::from(u8::from(port.breach.is_none())));
    let metric = |(name, unit, help, value): (&str, _, &str, _)| Metric {
        name: format!("penstock_port_{name}"),
        unit,
        is_gauge: true,
        labels: "port",
        help: help.to_owned(),
        source: Source::Learning(value),
    };
    [
        (
            "entitled",
            "cycles_per_second",
            "cycles that the port is entitled to, with the learner's correction",
            entitled,
        ),
        (
            "sold",
            "cycles_per_second",
            "cycles that the port purchased by `contract` or `cycles`",
            base,
        ),
        (
            "model_error",
            "ratio",
            "excess cost of the port's frames over the model, as a part of the model's cost",
            error,
        ),
        (
            "delivered",
            "ratio",
            "delivered rate as a part of the purchased rate, in the learner's last interval",
            delivered,
        ),
        ("in_profile", "", "1 while the port sends frames as its contract declares", inside),
    ]
    .map(metric)
    .into()
}

fn link_metrics() -> Vec<Metric> {
    let metric = |name: &str, unit, is_gauge, labels, help: &str, source| Metric {
        name: format!("penstock_link{name}"),
        unit,
        is_gauge,
        labels,
        help: help.to_owned(),
        source,
    };
    let capacity: fn(&LinkStatus) -> f64 = |link| to_f64(link.capacity_bps) / 8.0;
    let sent: fn(&LinkStatus) -> f64 = |link| to_f64(link.sent_permille) / 1e3;
    let load: fn(&LinkStatus) -> f64 = |link| to_f64(link.load_permille) / 1e3;
    let limited: fn(&LinkStatus) -> f64 = |link| f64::from(u8::from(link.limited));
    let of_link = [
        ("_capacity", "bytes_per_second", "capacity of the link behind the uplink", capacity),
        ("_sent", "ratio", "used part of the link's capacity in the last interval", sent),
        (
            "_load",
            "ratio",
            "part of the link's capacity used by sent frames and by frames that the link's limits \
             dropped",
            load,
        ),
        (
            "_limited",
            "",
            "1 while the link is the bottleneck and each VM is limited to its part",
            limited,
        ),
    ];
    let gauges = of_link.map(|(name, unit, help, value)| {
        metric(name, unit, true, "port", help, Source::Link(value))
    });
    let entered = "times the link became the bottleneck";
    let part = "limit of a VM on a link while the link is the bottleneck";
    let rest = [
        metric("_bottleneck", "times", false, "port", entered, Source::LinkEntered),
        metric("_part", "bytes_per_second", true, "port, vm", part, Source::LinkPart),
    ];
    gauges.into_iter().chain(rest).collect()
}

impl Reading {
    /// Returns the values of a metric that is not an integer counter, each value with its labels.
    fn values(&self, source: Source) -> Vec<(Labels, f64)> {
        let one = |value| vec![(Labels::new(), value)];
        let status = &self.status;
        match source {
            Source::Info => {
                vec![(
                    vec![("host", status.name.clone()), ("version", status.version.clone())],
                    1.0,
                )]
            }
            Source::Uptime => one(to_f64(status.uptime_s)),
            Source::Generation => one(to_f64(status.generation)),
            Source::Tsc => one(to_f64(status.tsc_hz)),
            Source::Machine(value) => one(status.machine.as_ref().map_or(0.0, value)),
            Source::Labels(kind) => {
                self.labels.iter().filter(|of| of.kind == kind).map(label).collect()
            }
            Source::PortUp => self.ports.iter().map(port_up).collect(),
            Source::PortQueuesUp => self
                .ports
                .iter()
                .map(|port| (vec![("port", port.name.clone())], f64::from(port.queues_up)))
                .collect(),
            Source::PortTime(field) => {
                let seconds = |port: &PortStats| to_f64(counter(&port.counters, field)) / 1e9;
                let ports = self.stats.ports.iter();
                ports.map(|port| (vec![("port", port.port.clone())], seconds(port))).collect()
            }
            Source::WorkerStalled => self.workers(|worker| f64::from(u8::from(worker.stalled))),
            Source::HeartbeatAge => self.workers(|worker| to_f64(worker.heartbeat_age_ms) / 1e3),
            Source::Link(value) => {
                let links = self.stats.links.iter();
                links.map(|link| (vec![("port", link.port.clone())], value(link))).collect()
            }
            Source::Learning(value) => {
                let known = |(port, state): &(String, PortLearning)| {
                    Some((vec![("port", port.clone())], value(state)?))
                };
                self.learning.iter().filter_map(known).collect()
            }
            Source::LinkPart => self.stats.links.iter().flat_map(link_parts).collect(),
            Source::Rtp(value) => self.streams(value),
            Source::Fabric(value) => {
                status.fabric.iter().map(|fabric| (Labels::new(), value(fabric))).collect()
            }
            Source::Switch(value) => {
                status.switch.iter().map(|switch| (Labels::new(), value(switch))).collect()
            }
            Source::Vcpu(of) => {
                self.vcpus.iter().flat_map(|state| vcpus::values(state, of)).collect()
            }
            Source::Port(_)
            | Source::Contract
            | Source::Drops
            | Source::TxDrops
            | Source::Delay(_)
            | Source::RtpCount(_)
            | Source::Queue(_)
            | Source::Worker(_)
            | Source::FabricCount(_)
            | Source::SwitchCount(_)
            | Source::LinkEntered => Vec::new(),
        }
    }

    fn streams<T>(&self, value: impl Fn(&RtpStatus) -> T) -> Vec<(Labels, T)> {
        let labels = |port: &str, stream: &RtpStatus| {
            vec![("port", port.to_owned()), ("udp_port", stream.udp_port.to_string())]
        };
        let ports = self.stats.ports.iter();
        let streams = ports.flat_map(|port| port.rtp.iter().map(move |stream| (port, stream)));
        streams.map(|(port, stream)| (labels(&port.port, stream), value(stream))).collect()
    }

    fn queues(&self, value: fn(&QueueStatus) -> u64) -> Vec<(Labels, u64)> {
        let labels = |port: &str, queue: &QueueStatus| {
            vec![("port", port.to_owned()), ("queue", queue.queue.to_string())]
        };
        let ports = self.stats.ports.iter();
        let queues = ports.flat_map(|port| port.queues.iter().map(move |queue| (port, queue)));
        queues.map(|(port, queue)| (labels(&port.port, queue), value(queue))).collect()
    }

    /// Delays of each port, if the metric is a histogram of delays.
    fn delays(&self, source: Source) -> impl Iterator<Item = (Labels, &Delays)> {
        let ports = self.stats.ports.iter();
        ports.filter_map(move |port| {
            let Source::Delay(name) = source else { return None };
            Some((vec![("port", port.port.clone())], delays::of(port, name)?))
        })
    }

    fn workers(
        &self,
        value: impl Fn(&penstock_control::api::WorkerStatus) -> f64,
    ) -> Vec<(Labels, f64)> {
        let labels = |id: u32| vec![("worker", id.to_string())];
        self.status.workers.iter().map(|worker| (labels(worker.id), value(worker))).collect()
    }

    /// Returns the values of a counter, which are exact to the last frame.
    fn counts(&self, source: Source) -> Vec<(Labels, u64)> {
        let by_reason = |port: &str, list: &Named| -> Vec<(Labels, u64)> {
            let labels =
                |reason: &str| vec![("port", port.to_owned()), ("reason", reason.to_owned())];
            list.iter().map(|count| (labels(&count.name), count.value)).collect()
        };
        let ports = &self.stats.ports;
        match source {
            Source::Port(field) => ports
                .iter()
                .map(|port| (vec![("port", port.port.clone())], counter(&port.counters, field)))
                .collect(),
            Source::Drops => ports.iter().flat_map(|p| by_reason(&p.port, &p.drops)).collect(),
            Source::TxDrops => ports.iter().flat_map(|p| by_reason(&p.port, &p.tx_drops)).collect(),
            Source::Contract => {
                let labels = |port: &str, cause: Cause| {
                    vec![("port", port.to_owned()), ("cause", cause.name().to_owned())]
                };
                let all = self.contracts.iter();
                all.map(|(port, cause, seconds)| (labels(port, *cause), *seconds)).collect()
            }
            Source::RtpCount(value) => self.streams(value),
            Source::Queue(value) => self.queues(value),
            Source::SwitchCount(field) => {
                let switch = self.status.switch.iter();
                switch.map(|switch| (Labels::new(), counter(&switch.counters, field))).collect()
            }
            Source::FabricCount(field) => {
                let fabric = self.status.fabric.iter();
                fabric.map(|fabric| (Labels::new(), counter(&fabric.counters, field))).collect()
            }
            Source::Worker(field) => self
                .stats
                .workers
                .iter()
                .map(|worker| {
                    (vec![("worker", worker.id.to_string())], counter(&worker.counters, field))
                })
                .collect(),
            Source::LinkEntered => {
                let links = self.stats.links.iter();
                links.map(|link| (vec![("port", link.port.clone())], link.entered)).collect()
            }
            Source::Vcpu(of) => {
                self.vcpus.iter().flat_map(|state| vcpus::counts(state, of)).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn link_parts(link: &LinkStatus) -> Vec<(Labels, f64)> {
    let labels = |vm: &str| vec![("port", link.port.clone()), ("vm", vm.to_owned())];
    link.parts.iter().map(|part| (labels(&part.port), to_f64(part.bps) / 8.0)).collect()
}

fn label(of: &ObjectLabel) -> (Labels, f64) {
    let labels =
        vec![(of.kind, of.name.clone()), ("label", of.label.clone()), ("value", of.value.clone())];
    (labels, 1.0)
}

fn port_up(port: &PortStatus) -> (Labels, f64) {
    let labels = vec![
        ("port", port.name.clone()),
        ("tenant", port.tenant.clone()),
        ("type", port.kind.clone()),
        ("state", port.state.clone()),
    ];
    (labels, f64::from(u8::from(port.state == "up")))
}

/// Encodes a histogram with one upper bound per octave.
fn encode_delays(delays: &Delays, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    let seconds = |nanos: u64| to_f64(nanos) / 1e9;
    let (mut ends, mut count, mut sum, mut begin) = (Vec::new(), 0, 0.0, 0_u64);
    for part in 0..delay_scale::PARTS {
        let frames = delays.counts.get(part).copied().unwrap_or(0);
        let end = delay_scale::end_of(part).map(|end| end.0);
        count += frames;
        sum += to_f64(frames) * seconds(begin.midpoint(end.unwrap_or(begin)));
        if part % 4 == 0 || end.is_none() {
            ends.push((end.map_or(f64::INFINITY, seconds), count));
            count = 0;
        }
        begin = end.unwrap_or(begin);
    }
    encoder.encode_histogram::<NoLabelSet>(sum, delays.frames(), &ends, None)
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for metric in catalogue() {
            let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.to_owned()));
            let kind = metric.kind();
            let mut family =
                encoder.encode_descriptor(&metric.name, &metric.help, unit.as_ref(), kind)?;
            let documented = |labels: &Labels| {
                labels.iter().map(|(key, _)| *key).eq(metric.labels.split(", "))
                    || labels.is_empty() && metric.labels.is_empty()
            };
            for (labels, delays) in self.delays(metric.source) {
                encode_delays(delays, family.encode_family(&labels)?)?;
            }
            for (labels, value) in self.values(metric.source) {
                debug_assert!(documented(&labels), "{}", metric.name);
                let family = family.encode_family(&labels)?;
                if metric.is_gauge {
                    ConstGauge::new(value).encode(family)?;
                } else {
                    ConstCounter::new(value).encode(family)?;
                }
            }
            for (labels, value) in self.counts(metric.source) {
                debug_assert!(documented(&labels), "{}", metric.name);
                let family = family.encode_family(&labels)?;
                if metric.is_gauge {
                    ConstGauge::new(to_f64(value)).encode(family)?;
                } else {
                    ConstCounter::new(value).encode(family)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes the text of `/metrics`.
///
/// # Errors
/// Returns an error if writing to a string fails, which does not happen in practice.
pub fn page(reading: Reading) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(reading));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[cfg(test)]
mod tests;
