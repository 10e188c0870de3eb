//! The controller's Prometheus page, in the OpenMetrics text format.
//!
//! # Approach
//!
//! Values come from the views that the controller's page shows (`penstock_controller::view`). A
//! graph of the controller's metrics therefore shows the same values as the controller's page. A
//! controller that does not lead has only `penstock_controller_leads` and
//! `penstock_controller_reading_age`. The function [`catalogue`] returns all metrics of the
//! controller as one table. A test writes the catalogue to `docs/reference/metrics.md`.
//!
//! # Cost
//!
//! There are 9 time series per tenant, 3 to 6 per server or switch, 7 per link, and 1 per port that
//! has tenants.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;

use crate::table::to_f64;

#[derive(Clone, Debug, Default)]
pub struct Reading {
    age: Duration,
    status: Value,
    tenants: Vec<Value>,
    ports: Vec<Value>,
    nodes: Vec<Value>,
    links: Vec<Value>,
}

impl Reading {
    /// Creates a reading from the view `status` and its age. The argument `parts` contains the
    /// views of tenants, bindings and topology, in this order. If the controller did not return a
    /// view, the view is null in `parts`.
    ///
    /// # Errors
    /// Returns an error if a view is missing or has another form.
    pub fn new(age: Duration, status: Value, parts: Vec<Value>) -> Result<Self> {
        let parts: [Value; 3] = parts
            .try_into()
            .ok()
            .context("metrics: the views of tenants, bindings and topology are needed")?;
        let [tenants, ports, mut topology] = parts;
        let list = |value: Value| match value {
            Value::Null => Ok(Vec::new()),
            Value::Array(list) => Ok(list),
            _ => anyhow::bail!("metrics: a list in the controller's view has another type"),
        };
        let (nodes, links) = (list(topology["nodes"].take())?, list(topology["links"].take())?);
        Ok(Self { age, status, tenants: list(tenants)?, ports: list(ports)?, nodes, links })
    }
}

/// Kinds of objects. A metric has one value for each object of the kind that the metric describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Every controller has this metric, whether the controller leads or not.
    Controller,
    Leader,
    Mode,
    Tenant,
    /// The metric has two values for each tenant: sent and received.
    TenantWay,
    Node,
    Server,
    Link,
    /// The metric has two values for each link: up and down.
    LinkWay,
    Port,
}

impl Of {
    /// Returns the names of the metric's labels, separated by commas, as in
    /// `docs/reference/metrics.md`.
    const fn labels(self) -> &'static str {
        match self {
            Self::Controller | Self::Leader => "",
            Self::Mode => "mode",
            Self::Tenant => "tenant",
            Self::TenantWay => "tenant, direction",
            Self::Node => "node, kind",
            Self::Server => "host",
            Self::Link => "below, above",
            Self::LinkWay => "below, above, direction",
            Self::Port => "node, to",
        }
    }
}

/// Path of a value in a JSON object, from the outermost key. A metric with two directions has two
/// paths: the first path is for up or sent, the second path for down or received.
type Path = &'static [&'static str];

/// A metric. `name` excludes the unit and `_total`. Views have rates in bits, but Prometheus' base
/// unit is the byte.
#[derive(Clone, Copy, Debug)]
struct Metric {
    name: &'static str,
    unit: &'static str,
    is_counter: bool,
    of: Of,
    /// Divisor from the view's unit to the metric's unit.
    per: u32,
    at: Path,
    help: &'static str,
}

const fn gauge(name: &'static str, unit: &'static str, of: Of, at: Path) -> Metric {
    Metric { name, unit, is_counter: false, of, per: 1, at, help: "" }
}

const fn counter(name: &'static str, unit: &'static str, at: Path) -> Metric {
    Metric { name, unit, is_counter: true, of: Of::Leader, per: 1, at, help: "" }
}

impl Metric {
    const fn per(self, per: u32) -> Self {
        Self { per, ..self }
    }

    const fn says(self, help: &'static str) -> Self {
        Self { help, ..self }
    }
}

/// Returns all metrics of the controller, in the order of its page `/metrics`.
fn catalogue() -> Vec<Metric> {
    [of_controller(), of_work(), of_agents(), of_tenants(), of_fabric()].concat()
}

fn of_controller() -> Vec<Metric> {
    use Of::{Controller, Leader, Mode};
    let gauge = |name, unit, at| gauge(name, unit, Leader, at);
    let always = |name, at| Metric { of: Controller, ..gauge(name, "", at) };
    vec![
        always("penstock_controller_leads", &["leads"])
            .says("1 if this controller leads; only the leader has the metrics below"),
        Metric { of: Controller, ..gauge("penstock_controller_reading_age", "seconds", &["age"]) }
            .says("age of the values on this page; above 0 while the controller is busy"),
        gauge("penstock_controller_epoch", "", &["stamp", "epoch"])
            .says("epoch of the controller's decisions; grows with every new leader"),
        gauge("penstock_controller_generation", "", &["stamp", "generation"])
            .says("number of decisions in this epoch"),
        Metric { of: Mode, ..gauge("penstock_controller_mode", "", &["mode"]) }
            .says("1 for the current mode: active, observe or hold"),
        gauge("penstock_controller_store_full", "", &["store_full"])
            .says("1 if the store refused the last write because it is full; no queue changes"),
        gauge("penstock_controller_interval", "seconds", &["interval_ms"])
            .per(1_000)
            .says("time between two decisions"),
        gauge("penstock_controller_placed", "tenants", &["tenants"]).says("placed tenants"),
        gauge("penstock_controller_with_queue", "tenants", &["with_queues"])
            .says("placed tenants that have their own queues"),
        gauge("penstock_controller", "servers", &["servers"]).says("servers of the topology"),
        gauge("penstock_controller_connected", "hosts", &["hosts_connected"])
            .says("servers with a connected agent"),
        gauge("penstock_controller_heard", "hosts", &["last_interval", "hosts_heard"])
            .says("servers that reported in the last interval"),
        gauge("penstock_controller", "switches", &["switches"])
            .says("switches that the controller configures"),
        gauge("penstock_controller_weight_error", "ratio", &["worst_weight_error_ppm"])
            .per(1_000_000)
            .says(
                "largest part of a link's capacity by which a queue's share is below the queue's \
                 reservation",
            ),
        gauge(
            "penstock_controller_without_code_point",
            "tenants",
            &["last_interval", "without_code_point"],
        )
        .says("tenants that got no queue in the last interval for lack of a code point"),
    ]
}

fn of_work() -> Vec<Metric> {
    vec![
        counter("penstock_controller", "intervals", &["this_term", "intervals"]).says(
            "intervals with a decision; `penstock_controller` counters restart in each epoch",
        ),
        counter("penstock_controller_promoted", "tenants", &["this_term", "promoted"])
            .says("number of times that a tenant got its own queues"),
        counter("penstock_controller_demoted", "tenants", &["this_term", "demoted"])
            .says("number of times that a tenant lost its queues"),
        counter("penstock_controller_taken_back", "plans", &["this_term", "taken_back"])
            .says("plans rolled back because a host or switch did not carry them out"),
        counter("penstock_controller_failed", "elements", &["this_term", "failed"])
            .says("number of times that a host or switch did not carry out a plan"),
        counter("penstock_controller_drifted", "switches", &["this_term", "drifted"])
            .says("number of times that a switch's settings differed from the decision"),
        counter("penstock_controller_deciding", "seconds", &["this_term", "decided_in_us"])
            .per(1_000_000)
            .says("time spent on scoring tenants and assigning queues"),
        counter("penstock_controller_working", "seconds", &["this_term", "took_us"])
            .per(1_000_000)
            .says("time spent on deciding, storing decisions and configuring nodes"),
        gauge(
            "penstock_controller_last_deciding",
            "seconds",
            Of::Leader,
            &["last_interval", "decided_in_us"],
        )
        .per(1_000_000)
        .says("time spent on scoring tenants and assigning queues in the last interval"),
        gauge(
            "penstock_controller_last_working",
            "seconds",
            Of::Leader,
            &["last_interval", "took_us"],
        )
        .per(1_000_000)
        .says("time to decide, store the decision and configure nodes in the last interval"),
        gauge(
            "penstock_controller_last_plan",
            "seconds",
            Of::Leader,
            &["this_term", "last_plan_us"],
        )
        .per(1_000_000)
        .says("time to configure hosts and switches for the last change of queues or weights"),
        gauge(
            "penstock_controller_longest_plan",
            "seconds",
            Of::Leader,
            &["this_term", "longest_plan_us"],
        )
        .per(1_000_000)
        .says("longest time to configure hosts and switches for a change in this epoch"),
    ]
}

fn of_agents() -> Vec<Metric> {
    vec![
        counter("penstock_agents", "sessions", &["agents", "sessions"])
            .says("sessions that hosts' agents started"),
        counter("penstock_agents_refused", "times", &["agents", "refused"])
            .says("sessions and messages of hosts' agents that the controller refused"),
        counter("penstock_agents_crowded", "connections", &["agents", "crowded"])
            .says("connections refused because too many had the same certificate"),
        counter("penstock_agents", "reports", &["agents", "reports"])
            .says("reports of tenants' usage that hosts sent"),
        counter("penstock_agents_applied", "plans", &["agents", "applied"])
            .says("plans that hosts carried out"),
        counter("penstock_agents_failed", "plans", &["agents", "failed"])
            .says("plans that hosts refused or could not carry out"),
    ]
}

fn of_tenants() -> Vec<Metric> {
    use Of::{Tenant, TenantWay};
    let bytes = "bytes_per_second";
    vec![
        gauge("penstock_tenant_guarantee", bytes, TenantWay, &["guarantee_send", "guarantee_recv"])
            .per(8)
            .says("guarantee of all VMs of the tenant together, in each direction"),
        gauge("penstock_tenant_rate", bytes, TenantWay, &["sent", "received"])
            .per(8)
            .says("traffic of the tenant's VMs over the network in the last interval"),
        gauge("penstock_tenant_used", "ratio", Tenant, &["used_permille"])
            .per(1_000)
            .says("largest used part of the tenant's guarantee on any server"),
        gauge("penstock_tenant_score", bytes, Tenant, &["score"])
            .per(8)
            .says("smoothed score of the tenant; the highest scores get their own queues"),
        gauge("penstock_tenant_queue", "", Tenant, &["queue"])
            .says("1 if the tenant has its own queues"),
        gauge("penstock_tenant_queue_since_interval", "", Tenant, &["since_interval"])
            .says("interval in which the tenant got its queues; absent without queues"),
        gauge("penstock_tenant_dscp", "", Tenant, &["dscp"])
            .says("code point of the tenant; 0 if it shares queue 0"),
        gauge("penstock_tenant", "vms", Tenant, &["vms"]).says("number of VMs of the tenant"),
        gauge("penstock_tenant_away", "hosts", Tenant, &["hosts_away"])
            .says("hosts with VMs of the tenant that the controller cannot reach"),
    ]
}

fn of_fabric() -> Vec<Metric> {
    use Of::{Link, LinkWay, Node, Port, Server};
    let bytes = "bytes_per_second";
    vec![
        gauge("penstock_fabric_node_up_to_date", "", Node, &["up_to_date"])
            .says("1 if the server or switch is known to have the latest decision"),
        gauge("penstock_fabric_node_in_service", "", Node, &["service"])
            .says("1 if the node is in service; 0 if drained or failed"),
        gauge("penstock_fabric_host_connected", "", Server, &["connected"])
            .says("1 if the server's agent is connected"),
        gauge("penstock_fabric_host_epoch", "", Server, &["stamp", "epoch"])
            .says("epoch of the decision that the host has; absent while the host is unreachable"),
        gauge("penstock_fabric_host_generation", "", Server, &["stamp", "generation"])
            .says("generation (number within the epoch) of the decision that the host has"),
        gauge("penstock_fabric_host_free", "slots", Server, &["free_slots"])
            .says("slots of the server without a VM"),
        gauge("penstock_fabric_link_rate", bytes, Link, &["rate"])
            .per(8)
            .says("capacity of the link in each direction"),
        gauge("penstock_fabric_link", "tenants", Link, &["tenants"]).says("tenants on the link"),
        gauge("penstock_fabric_link_reserved", bytes, LinkWay, &["reserved_up", "reserved_down"])
            .per(8)
            .says("bandwidth reserved on the link"),
        gauge("penstock_fabric_link_used", bytes, LinkWay, &["used_up", "used_down"])
            .per(8)
            .says("traffic that hosts measured on the link; 0 for links between switches"),
        gauge("penstock_fabric_port_weight_error", "ratio", Port, &["weight_error_ppm"])
            .per(1_000_000)
            .says("largest error of the port's weights relative to the guarantees"),
    ]
}

type Labels = Vec<(&'static str, String)>;

/// Converts a value of a view: a boolean to 0 or 1, a list to its length. The text `in` (in
/// service) becomes 1, and any other text becomes 0. Returns `None` if the value is null or an
/// object.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
        Value::Array(list) => Some(to_f64(u64::try_from(list.len()).ok()?)),
        Value::String(service) => Some(f64::from(u8::from(service == "in"))),
        _ => None,
    }
}

fn find<'a>(value: &'a Value, at: &[&str]) -> &'a Value {
    at.iter().fold(value, |value, key| &value[*key])
}

impl Reading {
    fn values(&self, metric: &Metric) -> Vec<(Labels, f64)> {
        let leads = self.status["leads"] == true;
        let one = |object: &Value, labels: Labels| {
            let read = number(find(object, metric.at))? / f64::from(metric.per);
            Some((labels, read))
        };
        let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let both = |object: &Value, labels: Labels, ways: [&str; 2]| {
            let way = |(key, way): (&&str, &str)| {
                let direction = ("direction", way.to_owned());
                let labels = labels.iter().cloned().chain([direction]).collect();
                Some((labels, number(&object[*key])? / f64::from(metric.per)))
            };
            metric.at.iter().zip(ways).filter_map(way).collect::<Vec<_>>()
        };
        let tenant = |object: &Value| vec![("tenant", text(object, "name"))];
        let link = |object: &Value| {
            vec![("below", text(object, "below")), ("above", text(object, "above"))]
        };
        match metric.of {
            Of::Controller if metric.at == ["age"] => vec![(Labels::new(), self.age.as_secs_f64())],
            Of::Controller => one(&self.status, Labels::new()).into_iter().collect(),
            Of::Leader | Of::Mode if !leads => Vec::new(),
            Of::Leader => one(&self.status, Labels::new()).into_iter().collect(),
            Of::Mode => ["active", "observe", "hold"]
                .map(|mode| {
                    let is = f64::from(u8::from(self.status["mode"] == mode));
                    (vec![("mode", mode.to_owned())], is)
                })
                .into(),
            Of::Tenant => self.tenants.iter().filter_map(|t| one(t, tenant(t))).collect(),
            Of::TenantWay => {
                let ways = ["sent", "received"];
                self.tenants.iter().flat_map(|t| both(t, tenant(t), ways)).collect()
            }
            Of::Node => {
                let labels = |n| vec![("node", text(n, "name")), ("kind", text(n, "kind"))];
                self.nodes.iter().filter_map(|n| one(n, labels(n))).collect()
            }
            Of::Server => {
                let servers = self.nodes.iter().filter(|node| node["kind"] == "server");
                servers.filter_map(|n| one(n, vec![("host", text(n, "name"))])).collect()
            }
            Of::Link => self.links.iter().filter_map(|l| one(l, link(l))).collect(),
            Of::LinkWay => {
                self.links.iter().flat_map(|l| both(l, link(l), ["up", "down"])).collect()
            }
            Of::Port => {
                let labels = |p| vec![("node", text(p, "node")), ("to", text(p, "to"))];
                self.ports.iter().filter_map(|p| one(p, labels(p))).collect()
            }
        }
    }
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for metric in catalogue() {
            let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.to_owned()));
            let kind = if metric.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            let write = |value, encoder: MetricEncoder<'_>| {
                if metric.is_counter {
                    ConstCounter::new(value).encode(encoder)
                } else {
                    ConstGauge::new(value).encode(encoder)
                }
            };
            let mut values = self.values(&metric);
            if metric.of.labels().is_empty() {
                // The encoder would write a family with `{}` after its name.
                values.pop().map_or(Ok(()), |(_, value)| write(value, family))?;
                continue;
            }
            for (labels, value) in values {
                let documented = labels.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
                debug_assert_eq!(documented, metric.of.labels(), "{}", metric.name);
                write(value, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Writes the text of `/metrics`.
///
/// # Errors
/// Returns an error if writing to a string fails, which does not happen in practice.
pub fn page(reading: Reading) -> Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(reading));
    let mut page = String::new();
    text::encode(&mut page, &registry).context("metrics")?;
    Ok(page)
}

#[cfg(test)]
mod tests;
