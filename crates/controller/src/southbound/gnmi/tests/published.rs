//! Validates the entries that the driver writes against OpenConfig's published models, with the
//! program `yanglint`. The variable `PENSTOCK_YANG` names a folder, and the models are in its
//! folder `openconfig`.

use std::path::Path;
use std::process::Command;

use penstock_testing::temp_dir;
use penstock_testing::yang::models;
use serde_json::{Value, json};

use super::*;

/// Module with an interface type, because each interface of OpenConfig has a type from a module
/// that OpenConfig does not publish.
const TYPES: &str = "module penstock-test-types {
  yang-version 1.1;
  namespace \"urn:penstock:test-types\";
  prefix ptt;
  import ietf-interfaces { prefix if; }
  identity port { base if:interface-type; }
}
";

/// Returns the messages of `yanglint` about a document, or nothing if the document is valid.
fn mistakes(models: &Path, folder: &Path, document: &Value) -> String {
    let file = folder.join("document.json");
    std::fs::write(&file, document.to_string()).expect("writable");
    let mut yanglint = Command::new("yanglint");
    yanglint.args(["-t", "config", "-p"]).arg(models);
    yanglint.args(["openconfig-qos.yang", "openconfig-interfaces.yang"].map(|m| models.join(m)));
    yanglint.arg(folder.join("penstock-test-types.yang")).arg(file);
    let output = yanglint.output().expect("yanglint: install libyang2-tools, or scripts/setup.sh");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.success(), text.is_empty(), "{}: {text}", output.status);
    text
}

/// Removes the module from the name of a member, because the member is below `openconfig-qos:qos`.
fn inner(name: &str) -> &str {
    name.strip_prefix("openconfig-qos:").unwrap_or(name)
}

fn merge(into: &mut Value, from: &Value) {
    let Value::Object(members) = from else {
        *into = from.clone();
        return;
    };
    for (name, value) in members {
        merge(&mut into[inner(name)], value);
    }
}

/// Returns the entry of a list with the keys `keys`. An entry without content is made.
fn entry<'a>(
    list: &'a mut Value,
    keys: &std::collections::HashMap<String, String>,
) -> &'a mut Value {
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut().expect("a list");
    let is = |entry: &Value| {
        keys.iter().all(|(key, value)| match &entry[key] {
            Value::String(text) => text == value,
            other => {
                let text = other.to_string();
                text == *value
            }
        })
    };
    let at = list.iter().position(is).unwrap_or_else(|| {
        list.push(json!({}));
        list.len() - 1
    });
    &mut list[at]
}

/// Returns all entries that clients have written to the target as one document, together with the
/// ports.
fn document(target: &Target, ports: &[&str]) -> Value {
    let port = |name: &&str| {
        let config = json!({"name": name, "type": "penstock-test-types:port"});
        json!({"name": name, "config": config})
    };
    let ports: Vec<Value> = ports.iter().map(port).collect();
    let mut document = json!({"openconfig-interfaces:interfaces": {"interface": ports}});
    for (at, value) in target.written() {
        let mut node = &mut document;
        for (depth, elem) in path(&at).elem.iter().enumerate() {
            let name = if depth == 0 { "openconfig-qos:qos" } else { elem.name.as_str() };
            node = &mut node[name];
            if !elem.key.is_empty() {
                node = entry(node, &elem.key);
            }
        }
        merge(node, &value);
    }
    document
}

#[tokio::test]
async fn all_entries_that_the_driver_writes_are_valid_by_the_published_models() {
    let Some(models) = models("openconfig") else { return };
    let folder = temp_dir();
    std::fs::write(folder.join("penstock-test-types.yang"), TYPES).expect("writable");
    let ports = ["Ethernet1/1", "eth2"];
    for (weights, map) in [
        (vec![1, 100, 0, 3], vec![(8, 1), (46, 3)]),
        (vec![4; 8], (1..8).map(|queue| (queue, queue)).collect()),
        (vec![], vec![]),
    ] {
        let target = Target::start().await;
        let port = PortState { weights, map: map.into_iter().collect() };
        let states = ports.map(|name| (name.to_owned(), port.clone()));
        let wanted = SwitchState { ports: states.into(), ..SwitchState::default() };
        let is = target.switch().read_back().await.expect("readable");
        target.switch().apply(stamp(1), &diff(&is, &wanted)).await.expect("told");
        let valid = document(&target, &ports);
        assert_eq!(mistakes(&models, &folder, &valid), "", "{valid:#}");
        // The entries are all that the target has, and another entry would be found.
        let mut leaves = Leaves::new();
        flatten("/qos", &valid["openconfig-qos:qos"], &mut leaves).expect("a tree");
        let config = |leaves: Leaves| Tree::new(leaves).intent;
        assert_eq!(config(leaves), config(target.leaves()));
        let mut wrong = valid;
        let groups = &mut wrong["openconfig-qos:qos"]["forwarding-groups"]["forwarding-group"];
        groups[0]["config"]["output-queue"] = "pen-q9".into();
        assert!(mistakes(&models, &folder, &wrong).contains("pen-q9"));
    }
}
