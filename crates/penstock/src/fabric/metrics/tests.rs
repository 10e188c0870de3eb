use super::*;
use crate::exposition::{lint, text};
use penstock_testing::committed;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn sample(leads: bool) -> Reading {
    let status = json!({
        "name": "one", "leads": leads, "mode": "hold", "stamp": { "epoch": 3, "generation": 17 },
        "interval_ms": 1_500, "store_full": true, "worst_weight_error_ppm": 2_500,
        "this_term": { "drifted": 4, "decided_in_us": 1_250_000, "longest_plan_us": 450_000 },
        "agents": { "refused": 2 },
    });
    let tenants = json!([{
        "name": "web", "guarantee_send": 5_000, "guarantee_recv": 6_000, "sent": 7, "received": 8,
        "used_permille": 250, "queue": true, "since_interval": 9, "hosts_away": ["a", "b"],
    }, { "name": "idle", "queue": false, "since_interval": null }]);
    let ports = json!([{ "node": "rack \"1\"\n\\", "to": "s", "weight_error_ppm": 10_000 }]);
    let topology = json!({
        "nodes": [
            { "name": "s", "kind": "server", "service": "drained", "connected": false,
              "up_to_date": true, "stamp": null },
            { "name": "r", "kind": "switch", "service": "in", "connected": true,
              "up_to_date": false },
        ],
        "links": [{ "below": "s", "above": "r", "rate": 10, "reserved_up": 4, "used_down": 1 }],
    });
    Reading::new(Duration::from_millis(1_500), status, vec![tenants, ports, topology]).unwrap()
}

#[test]
fn the_page_has_what_the_views_say_in_base_units() {
    let page = page(sample(true)).unwrap();
    for line in [
        "penstock_controller_leads 1.0",
        "penstock_controller_reading_age_seconds 1.5",
        "penstock_controller_epoch 3.0",
        "penstock_controller_mode{mode=\"hold\"} 1.0",
        "penstock_controller_mode{mode=\"active\"} 0.0",
        "penstock_controller_store_full 1.0",
        "penstock_controller_interval_seconds 1.5",
        "penstock_controller_weight_error_ratio 0.0025",
        "# TYPE penstock_controller_drifted_switches counter",
        "penstock_controller_drifted_switches_total 4.0",
        "penstock_controller_deciding_seconds_total 1.25",
        "penstock_controller_longest_plan_seconds 0.45",
        "penstock_agents_refused_times_total 2.0",
        "penstock_tenant_guarantee_bytes_per_second{tenant=\"web\",direction=\"sent\"} 625.0",
        "penstock_tenant_rate_bytes_per_second{tenant=\"web\",direction=\"received\"} 1.0",
        "penstock_tenant_used_ratio{tenant=\"web\"} 0.25",
        "penstock_tenant_queue{tenant=\"idle\"} 0.0",
        "penstock_tenant_queue_since_interval{tenant=\"web\"} 9.0",
        "penstock_tenant_away_hosts{tenant=\"web\"} 2.0",
        "penstock_fabric_node_in_service{node=\"s\",kind=\"server\"} 0.0",
        "penstock_fabric_node_up_to_date{node=\"r\",kind=\"switch\"} 0.0",
        "penstock_fabric_host_connected{host=\"s\"} 0.0",
        "penstock_fabric_link_reserved_bytes_per_second\
         {below=\"s\",above=\"r\",direction=\"up\"} 0.5",
        "penstock_fabric_port_weight_error_ratio{node=\"rack \\\"1\\\"\\n\\\\\",to=\"s\"} 0.01",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}\nis not in\n{page}");
    }
    // Unknown quantities have no value.
    assert!(!page.contains("since_interval{tenant=\"idle\"}"), "{page}");
    assert!(!page.contains("host_epoch{"), "{page}");
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn who_does_not_lead_says_that_and_no_more() {
    let status = json!({ "name": "two", "leads": false, "leader": "[::1]:9750" });
    let reading = Reading::new(Duration::ZERO, status, vec![Value::Null; 3]).unwrap();
    let page = page(reading).unwrap();
    let values: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = ["penstock_controller_leads 0.0", "penstock_controller_reading_age_seconds 0.0"];
    assert_eq!(values, expected);
    let wrong = vec![json!({}), Value::Null, Value::Null];
    assert!(Reading::new(Duration::ZERO, Value::Null, wrong).is_err());
    assert!(!super::page(sample(false)).unwrap().contains("\npenstock_controller_epoch "));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn full_name(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() { String::new() } else { format!("_{}", metric.unit) };
    format!("{}{unit}{}", metric.name, if metric.is_counter { "_total" } else { "" })
}

#[test]
fn names_and_pages_are_as_promtool_wants_them() {
    let kind = |metric: &Metric| if metric.is_counter { "counter" } else { "gauge" };
    let all = catalogue();
    let wrong = all
        .iter()
        .flat_map(|metric| lint::mistakes(&full_name(metric), kind(metric), metric.of.labels()));
    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
    let example = |metric: &Metric| {
        lint::example(&full_name(metric), kind(metric), metric.of.labels(), metric.help)
    };
    lint::ask_promtool(&all.iter().map(example).collect::<String>());
    lint::ask_promtool(&text(&page(sample(true)).unwrap()));
}

/// With `PENSTOCK_BLESS=1`, the test rewrites the list in `docs/reference/metrics.md`.
#[test]
fn the_list_of_the_controllers_metrics_in_the_docs_is_fresh() {
    let mut list =
        String::from("| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n");
    let mut names = BTreeSet::new();
    for metric in catalogue() {
        let kind = if metric.is_counter { "counter" } else { "gauge" };
        let (name, labels) = (full_name(&metric), metric.of.labels());
        let Metric { unit, help, .. } = metric;
        assert!(!help.is_empty(), "{name}");
        list.push_str(&format!("| `{name}` | {kind} | {unit} | {labels} | {help} |\n"));
        assert!(names.insert(name.clone()), "two metrics of the name {name}");
    }
    let markers = (
        "<!-- begin generated list of the controller -->\n",
        "<!-- end generated list of the controller -->",
    );
    let file = root().join("docs/reference/metrics.md");
    committed::compare_part(&file, markers, &list, "-p penstock the_list_of_the_controllers");
}

/// Returns the name and the labels of every metric in `docs/reference/metrics.md`.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `penstock_"));
    let metric = |row: &str| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = format!("penstock_{}", cells[0].trim_end_matches('`'));
        let labels = cells[3].split(", ").map(str::to_owned).collect();
        (name, labels)
    };
    rows.map(metric).collect()
}

/// Returns the metrics that `text` names, each with the labels that its selector contains.
fn named(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("penstock_") {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if text[..at].ends_with(word) {
            continue;
        }
        let rest = &text[at..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let selector = rest[end..].strip_prefix('{').and_then(|s| s.split_once('}'));
        let labels = selector.map_or(Vec::new(), |(selector, _)| {
            let asked = selector.split(',').filter_map(|part| part.split(['=', '!']).next());
            asked.map(|label| label.trim().to_owned()).collect()
        });
        found.push((rest[..end].to_owned(), labels));
    }
    found
}

fn check(file: &str, text: &str, known: &[(String, BTreeSet<String>)]) -> usize {
    let named = named(text);
    for (name, labels) in &named {
        let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let metric = known.iter().find(|(known, _)| known == name || Some(&**known) == plain);
        let (_, has) = metric.unwrap_or_else(|| panic!("{file}: there is no metric {name}"));
        for label in labels {
            let target = ["instance", "job", "le"].contains(&label.as_str());
            assert!(target || has.contains(label), "{file}: {name} has no label {label}");
        }
    }
    named.len()
}

#[test]
fn dashboards_and_alerts_name_metrics_that_exist() {
    let known = documented();
    assert!(known.len() > 100, "the docs' lists were not found");
    let folder = root().join("dashboards");
    for file in ["fabric.json", "host.json"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let board: Value = serde_json::from_str(&text).unwrap();
        let panels = board["panels"].as_array().unwrap();
        let mut ids = BTreeSet::new();
        let mut named = 0;
        for panel in panels {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: an id twice");
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expr = target["expr"].as_str().unwrap();
                let here = check(file, expr, &known);
                assert!(here > 0, "{file}: {expr} names no metric");
                named += here;
            }
        }
        assert!(named > 10, "{file}");
    }
    let alerts = fs::read_to_string(folder.join("alerts.yml")).unwrap();
    let rules = alerts.matches("- alert: ").count();
    assert!(rules >= 6 && check("alerts.yml", &alerts, &known) >= rules, "{rules} rules");
}

#[test]
fn a_metric_or_label_that_does_not_exist_is_found() {
    let known = [("penstock_x".to_owned(), BTreeSet::from(["tenant".to_owned()]))];
    assert_eq!(check("f", "rate(penstock_x{tenant=\"a\",instance=~\".*\"}[5m])", &known), 1);
    for wrong in ["penstock_y", "penstock_x{host=\"a\"}", "penstock_x_total"] {
        let checked = std::panic::catch_unwind(|| check("f", wrong, &known));
        assert!(checked.is_err(), "{wrong}");
    }
}
