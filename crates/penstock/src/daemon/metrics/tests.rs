use super::*;
use crate::exposition::{lint, text};
use crate::rates::fixture::reading;
use penstock_testing::committed;
use std::path::Path;

fn sample() -> Reading {
    Reading {
        status: HostStatus { name: "node7".into(), version: "0.1.0".into(), ..Default::default() },
        ports: vec![PortStatus {
            name: "vm1".into(),
            kind: "tap".into(),
            state: "up".into(),
            ..Default::default()
        }],
        stats: reading(
            1,
            &[
                ("rx_frames", 7),
                ("cycles_ingress", 9),
                ("queued", 2),
                ("tx_queued", 5),
                ("tx_queue_p99", 900_000),
                ("delay", 2_500_000_000),
            ],
            &[("rule", 3)],
        ),
        labels: vec![ObjectLabel {
            kind: "port",
            name: "vm1".into(),
            label: "iface-id".into(),
            value: "5f1e".into(),
        }],
        learning: Vec::new(),
        contracts: vec![("vm1".into(), penstock_control::report::Cause::Kept, 60)],
        vcpus: None,
    }
}

#[test]
fn names_end_in_their_unit_and_say_it_once() {
    assert_eq!(name("p", "rx_frames", "frames"), "p_rx");
    assert_eq!(name("p", "cycles_ingress", "cycles"), "p_ingress");
    assert_eq!(name("p", "cycles", "cycles"), "p");
    assert_eq!(name("p", "forwarded", "frames"), "p_forwarded");
    let mut full: Vec<String> =
        catalogue().iter().map(|metric| format!("{}_{}", metric.name, metric.unit)).collect();
    let number = full.len();
    full.sort();
    full.dedup();
    assert_eq!(full.len(), number, "two metrics of one name");
}

#[test]
fn the_page_has_help_unit_and_value() {
    let page = page(sample()).unwrap();
    for line in [
        "# HELP penstock_port_rx_frames frames taken from the port, \
         including those dropped afterwards",
        "# TYPE penstock_port_rx_frames counter",
        "# UNIT penstock_port_rx_frames frames",
        "penstock_port_rx_frames_total{port=\"vm1\"} 7",
        "penstock_port_ingress_cycles_total{port=\"vm1\"} 9",
        "penstock_port_queued_frames{port=\"vm1\"} 2.0",
        "# TYPE penstock_port_tx_queued_frames gauge",
        "penstock_port_tx_queued_frames{port=\"vm1\"} 5.0",
        "penstock_port_tx_queue_p99_seconds{port=\"vm1\"} 0.0009",
        "# TYPE penstock_port_delay_seconds counter",
        "penstock_port_delay_seconds_total{port=\"vm1\"} 2.5",
        "penstock_port_dropped_frames_total{port=\"vm1\",reason=\"rule\"} 3",
        "penstock_port_up{port=\"vm1\",tenant=\"\",type=\"tap\",state=\"up\"} 1.0",
        "penstock_worker_charged_cycles_total{worker=\"0\"} 250000000",
        "penstock_host_info{host=\"node7\",version=\"0.1.0\"} 1.0",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}\nis not in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn delays_are_a_histogram_with_an_end_each_octave() {
    let mut sample = sample();
    let mut counts = vec![0; 6];
    (counts[0], counts[1], counts[5]) = (3, 2, 1);
    sample.stats.ports[0].delays = vec![Delays { name: "waited".into(), counts }];
    sample.stats.ports[0].rtp =
        vec![RtpStatus { udp_port: 5_004, jitter_ns: 2_000_000, ..Default::default() }];
    let page = page(sample).unwrap();
    for line in [
        "# TYPE penstock_port_wait_seconds histogram",
        "penstock_port_wait_seconds_count{port=\"vm1\"} 6",
        "penstock_port_wait_seconds_bucket{le=\"0.000001024\",port=\"vm1\"} 3",
        "penstock_port_wait_seconds_bucket{le=\"0.000002048\",port=\"vm1\"} 5",
        "penstock_port_wait_seconds_bucket{le=\"0.000004096\",port=\"vm1\"} 6",
        "penstock_port_wait_seconds_bucket{le=\"+Inf\",port=\"vm1\"} 6",
        "penstock_rtp_jitter_seconds{port=\"vm1\",udp_port=\"5004\"} 0.002",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}\nis not in\n{page}");
    }
}

const fn word(kind: MetricType) -> &'static str {
    match kind {
        MetricType::Histogram => "histogram",
        MetricType::Counter => "counter",
        _ => "gauge",
    }
}

fn full_name(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() { String::new() } else { format!("_{}", metric.unit) };
    let total = if word(metric.kind()) == "counter" { "_total" } else { "" };
    format!("{}{unit}{total}", metric.name)
}

#[test]
fn names_and_pages_are_as_promtool_wants_them() {
    let all = catalogue();
    let wrong = all
        .iter()
        .flat_map(|metric| lint::mistakes(&full_name(metric), word(metric.kind()), metric.labels));
    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
    let example = |metric: &Metric| {
        let kind = word(metric.kind());
        lint::example(&full_name(metric), kind, metric.labels, &metric.help)
    };
    lint::ask_promtool(&all.iter().map(example).collect::<String>());
    lint::ask_promtool(&text(&page(sample()).unwrap()));
}

/// With `PENSTOCK_BLESS=1`, the test rewrites the list in `docs/reference/metrics.md`.
#[test]
fn the_list_in_the_docs_is_fresh() {
    let mut list =
        String::from("| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n");
    for metric in catalogue() {
        let Metric { unit, labels, help, .. } = &metric;
        let (name, kind) = (full_name(&metric), word(metric.kind()));
        list.push_str(&format!("| `{name}` | {kind} | {unit} | {labels} | {help} |\n"));
    }
    let markers = ("<!-- begin generated list -->\n", "<!-- end generated list -->");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    committed::compare_part(&file, markers, &list, "-p penstock the_list_in_the_docs");
}
