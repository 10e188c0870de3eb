//! Validates what the driver writes to CONFIG_DB against SONiC's published YANG models.
//!
//! The environment variable `PENSTOCK_YANG` names a folder whose subfolder `sonic` has the models.
//! `yanglint` reads YANG's JSON, so the tests translate tables in the same way as SONiC's own
//! `sonic_yang`: each key of a table becomes an entry of a list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use penstock_controller::Stamp;
use penstock_controller::southbound::sonic::{Endpoint, Entries, MapMode, Settings, SonicSwitch};
use penstock_controller::southbound::{Change, PortInfo, PortState, SwitchState, diff};
use penstock_testing::temp_dir;
use penstock_testing::yang::models;
use penstock_units::BitsPerSecond;
use serde_json::{Map, Value, json};

/// A rendered QoS configuration from SONiC's own tests, beside the models.
const SAMPLE: &str = "qos-arista7050.sample.json";

/// Each table with the module of its model, the names of the parts of its keys, and the names of
/// the two numbers of an entry if the table's hashes are maps.
type Model = (&'static str, &'static str, &'static [&'static str], Option<[&'static str; 2]>);
const MODELS: [Model; 9] = [
    ("PORT", "sonic-port", &["name"], None),
    ("SCHEDULER", "sonic-scheduler", &["name"], None),
    ("WRED_PROFILE", "sonic-wred-profile", &["name"], None),
    ("QUEUE", "sonic-queue", &["ifname", "qindex"], None),
    ("DSCP_TO_TC_MAP", "sonic-dscp-tc-map", &["name"], Some(["dscp", "tc"])),
    ("TC_TO_QUEUE_MAP", "sonic-tc-queue-map", &["name"], Some(["tc", "qindex"])),
    ("TC_TO_PRIORITY_GROUP_MAP", "sonic-tc-priority-group-map", &["name"], Some(["tc", "pg"])),
    (
        "MAP_PFC_PRIORITY_TO_QUEUE",
        "sonic-pfc-priority-queue-map",
        &["name"],
        Some(["pfc_priority", "qindex"]),
    ),
    ("PORT_QOS_MAP", "sonic-port-qos-map", &["ifname"], None),
];
/// Leaves whose values are numbers in YANG's JSON. Numbers of 64 bits are texts.
const NUMBERS: [&str; 4] = ["tc", "weight", "priority", "speed"];

fn leaf(name: &str, value: &str) -> Value {
    match value {
        "true" | "false" => json!(value == "true"),
        number if NUMBERS.contains(&name) => {
            number.parse::<u64>().map_or_else(|_| json!(number), Value::from)
        }
        text => json!(text),
    }
}

/// Translates tables of CONFIG_DB to YANG's JSON.
///
/// # Panics
/// Panics if a table has no model, like `config reload`.
fn translated(tables: &Entries) -> Value {
    let mut lists: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (key, fields) in tables {
        let (table, name) = key.split_once('|').expect("a table and a name");
        let model = MODELS.iter().find(|(known, ..)| *known == table);
        let (table, _, parts, numbers) = model.unwrap_or_else(|| panic!("{table} has no model"));
        let names = parts.iter().zip(name.split('|'));
        let mut entry: Map<String, Value> =
            names.map(|(part, name)| ((*part).to_owned(), json!(name))).collect();
        match numbers {
            Some([from, to]) => {
                let pair = |(a, b): (&String, &String)| {
                    let (from, to) = (*from, *to);
                    json!({ from: leaf(from, a), to: leaf(to, b) })
                };
                let pairs: Vec<Value> = fields.iter().map(pair).collect();
                entry.insert((*table).to_owned(), json!(pairs));
            }
            None => {
                let leaves = fields.iter().map(|(name, value)| (name.clone(), leaf(name, value)));
                entry.extend(leaves);
            }
        }
        lists.entry(*table).or_default().push(Value::Object(entry));
    }
    let mut all = Map::new();
    for (table, module, ..) in MODELS {
        if let Some(list) = lists.remove(table) {
            let content = json!({ table: { format!("{table}_LIST"): list } });
            all.insert(format!("{module}:{module}"), content);
        }
    }
    Value::Object(all)
}

/// Validates tables, and returns the messages of `yanglint` if the tables are not valid.
fn validate(models: &Path, tables: &Entries) -> Result<(), String> {
    let folder = temp_dir();
    let data = folder.join("config.json");
    std::fs::write(&data, translated(tables).to_string()).expect("writable");
    let mut lint = Command::new("yanglint");
    lint.arg("--path").arg(models).args(["--type", "config"]);
    // Other models have conditions on this model, so it is first.
    lint.arg(models.join("sonic-device_metadata.yang"));
    lint.args(MODELS.iter().map(|(_, module, ..)| models.join(format!("{module}.yang"))));
    let output = lint.arg(&data).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() && text.is_empty() { Ok(()) } else { Err(text) }
}

fn hash(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect()
}

/// Returns the tables of a switch that has ports with the given names, and no QoS configuration.
fn bare(ports: &[&str]) -> Entries {
    let numbered = ports.iter().enumerate();
    let port = |(n, name): (usize, &&str)| {
        let lanes = n.to_string();
        (format!("PORT|{name}"), hash(&[("lanes", lanes.as_str()), ("speed", "10000")]))
    };
    numbered.map(port).collect()
}

/// Returns the tables of the rendered configuration, and the ports that it configures.
fn rendered(models: &Path) -> (Entries, Vec<String>) {
    let text = std::fs::read_to_string(models.join(SAMPLE)).expect("it is beside the models");
    let sample: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>> =
        serde_json::from_str(&text).expect("tables");
    let names = sample["PORT_QOS_MAP"].keys().filter(|port| *port != "global");
    let queues = sample["QUEUE"].keys().filter_map(|key| key.split('|').next());
    let ports: BTreeSet<String> =
        names.map(String::as_str).chain(queues).map(str::to_owned).collect();
    let ports = Vec::from_iter(ports);
    let mut tables = bare(&ports.iter().map(String::as_str).collect::<Vec<_>>());
    for (table, entries) in sample {
        let entries = entries.into_iter();
        tables.extend(entries.map(|(name, fields)| (format!("{table}|{name}"), fields)));
    }
    (tables, ports)
}

fn driver(ports: &[String], settings: Settings) -> SonicSwitch {
    let rate = BitsPerSecond(10_000_000_000);
    let ports: Vec<PortInfo> =
        ports.iter().map(|name| PortInfo { name: name.clone(), rate }).collect();
    let endpoint = Endpoint::Unix("/nowhere".into());
    SonicSwitch::new("leaf1", &ports, settings, endpoint).expect("good settings")
}

/// Sets up tenants on all ports, moves them, and removes them. The tables must be valid before and
/// after each change.
fn change_and_validate(models: &Path, ports: &[String], settings: &Settings, tables: &Entries) {
    let (driver, mut tables) = (driver(ports, settings.clone()), tables.clone());
    validate(models, &tables).unwrap_or_else(|text| panic!("valid before the driver: {text}"));
    let fixed = match &settings.mode {
        MapMode::Static(map) => Some(map.clone()),
        MapMode::PerPort => None,
    };
    for (generation, map, weights) in [
        (1, [(10, 1), (11, 2)].into(), vec![1, 2, 3]),
        (2, [(10, 2), (12, 1)].into(), vec![50, 100]),
        (3, BTreeMap::new(), vec![]),
    ] {
        let stamp = Stamp { epoch: 1, generation };
        let [is, _] = driver.rehearse(&mut tables, stamp, &[]).expect("readable");
        assert!(is.left_out.is_empty(), "{:?}", is.left_out);
        let map = fixed.clone().unwrap_or(map);
        let state = PortState { weights, map };
        let all = ports.iter().map(|port| (port.clone(), state.clone()));
        let wanted = SwitchState { ports: all.collect(), ..SwitchState::default() };
        let changes: Vec<Change> = diff(&is, &wanted);
        let done = driver.rehearse(&mut tables, stamp, &changes).expect("possible");
        assert_eq!(diff(&done[1], &wanted), []);
        // The stamp is in STATE_DB, which has no models.
        let mut config = tables.clone();
        assert!(config.remove("PENSTOCK_TABLE|stamp").is_some());
        if let Err(text) = validate(models, &config) {
            panic!("{:?}, change {generation}: {text}", settings.mode);
        }
    }
}

fn modes() -> [MapMode; 2] {
    [MapMode::PerPort, MapMode::Static([(10, 1), (11, 2), (12, 3)].into())]
}

#[test]
fn what_the_driver_writes_is_valid_by_sonics_models() {
    let Some(models) = models("sonic") else { return };
    let names = ["Ethernet0", "Ethernet1/1", "a_port_of_twenty_four_ch", "a-port-with-a-long-name"];
    let ports = names.map(str::to_owned);
    for mode in modes() {
        let settings = Settings { mode, queues: 4, ..Settings::default() };
        change_and_validate(&models, &ports, &settings, &bare(&names));
    }
}

#[test]
fn what_the_driver_writes_beside_a_rendered_configuration_is_valid() {
    let Some(models) = models("sonic") else { return };
    let (tables, ports) = rendered(&models);
    for mode in modes() {
        let tenant_queues = Some(vec![1, 0, 2, 5]);
        let settings = Settings { mode, queues: 4, tenant_queues, ..Settings::default() };
        change_and_validate(&models, &ports, &settings, &tables);
    }
}

/// The names and the table of Penstock 0.1 are not valid, so the other tests can fail.
#[test]
fn the_entries_of_an_older_version_are_not_valid() {
    let Some(models) = models("sonic") else { return };
    let mut tables = bare(&["Ethernet0"]);
    validate(&models, &tables).expect("valid");
    tables.insert("TC_TO_QUEUE_MAP|PENSTOCK.Ethernet0".to_owned(), hash(&[("1", "1")]));
    let text = validate(&models, &tables).expect_err("a `.` in the name");
    assert!(text.contains("PENSTOCK.Ethernet0"), "{text}");
    let stamp = [("PENSTOCK|stamp".to_owned(), hash(&[("epoch", "1")]))].into();
    let refused = std::panic::catch_unwind(|| translated(&stamp));
    assert!(refused.is_err(), "the table PENSTOCK has no model");
}
