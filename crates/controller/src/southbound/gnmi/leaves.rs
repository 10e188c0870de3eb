//! Flattens the tree of a gNMI target to leaves.
//!
//! # Problem
//!
//! gNMI targets answer in different forms. A value in a gNMI answer may contain a whole tree or a
//! single leaf. Names of JSON members may have a module prefix. A number may be a JSON number or
//! text (RFC 7951 §6.1).
//!
//! # Approach
//!
//! The driver converts all forms of answers to a map from path to text. OpenConfig's keys identify
//! the entries of lists.

use std::collections::BTreeMap;

use serde_json::Value;

use super::proto::{Path, PathElem};

/// Text of each leaf, by the leaf's path, such as `/qos/queues/queue[name=a]/config/name`.
pub type Leaves = BTreeMap<String, String>;

/// Returns the name of the key member of a list in OpenConfig's QoS model. `None` if OpenConfig's
/// QoS model does not have the list. If several lists have the same name, `path` distinguishes
/// these lists.
fn key_of(list: &str, path: &str) -> Option<&'static str> {
    Some(match list {
        "classifier" if path.contains("/input/") => "type",
        "queue" | "forwarding-group" | "classifier" | "scheduler-policy" => "name",
        "term" | "input" => "id",
        "scheduler" => "sequence",
        "interface" => "interface-id",
        _ => return None,
    })
}

/// Removes the module from a name, so that `openconfig-qos:queues` becomes `queues`.
fn plain(name: &str) -> &str {
    match name.split_once(':') {
        Some((module, rest)) if module.starts_with("openconfig-") => rest,
        _ => name,
    }
}

fn text(value: &Value) -> Option<String> {
    Some(match value {
        Value::String(text) => plain(text).to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Bool(yes) => yes.to_string(),
        _ => return None,
    })
}

/// Adds the leaves of the JSON value `value` at `path` to `leaves`. The function ignores JSON lists
/// that are not part of OpenConfig's QoS model.
///
/// # Errors
/// Returns an error if an entry of a list has no key.
pub fn flatten(path: &str, value: &Value, leaves: &mut Leaves) -> Result<(), String> {
    let Value::Object(members) = value else {
        leaves.extend(text(value).map(|text| (path.to_owned(), text)));
        return Ok(());
    };
    for (name, value) in members {
        let name = plain(name);
        let Value::Array(entries) = value else {
            flatten(&format!("{path}/{name}"), value, leaves)?;
            continue;
        };
        let Some(key) = key_of(name, path) else { continue };
        for entry in entries {
            let all = entry.as_object().into_iter().flatten();
            let found = all.filter(|(member, _)| plain(member) == key).find_map(|(_, v)| text(v));
            let found = found.ok_or_else(|| format!("{path}/{name} without its {key}"))?;
            flatten(&format!("{path}/{name}[{key}={found}]"), entry, leaves)?;
        }
    }
    Ok(())
}

/// Converts a textual path to gNMI's form. Within brackets, a `/` in the textual path is part of
/// the value of a gNMI key. The value of a key in a textual gNMI path must not contain `]`.
#[must_use]
pub fn path(text: &str) -> Path {
    let (mut elem, mut rest) = (Vec::new(), text);
    while let Some(from) = rest.strip_prefix('/') {
        let end = from.find(['/', '[']).unwrap_or(from.len());
        let mut one = PathElem { name: from[..end].to_owned(), key: [].into() };
        rest = &from[end..];
        while let Some((inside, after)) = rest.strip_prefix('[').and_then(|t| t.split_once(']')) {
            let (key, value) = inside.split_once('=').unwrap_or((inside, ""));
            one.key.insert(key.to_owned(), value.to_owned());
            rest = after;
        }
        elem.push(one);
    }
    Path { elem, ..Path::default() }
}

/// Returns the textual form of a gNMI path with its prefix.
#[must_use]
pub fn shown(prefix: Option<&Path>, path: Option<&Path>) -> String {
    let mut text = String::new();
    for elem in [prefix, path].into_iter().flatten().flat_map(|path| &path.elem) {
        text.push('/');
        text.push_str(plain(&elem.name));
        let mut keys: Vec<_> = elem.key.iter().collect();
        keys.sort();
        keys.iter().for_each(|(key, value)| text.push_str(&format!("[{key}={}]", plain(value))));
    }
    text
}

/// Returns the keys of all entries of a list. `list` is the path of the list's entries up to and
/// including `[KEY=`.
pub(super) fn entries<'a>(leaves: &'a Leaves, list: &'a str) -> Vec<&'a str> {
    let from = leaves.range(list.to_owned()..).map(|(path, _)| path);
    let keys = from.map_while(|path| path.strip_prefix(list)?.split_once(']').map(|(key, _)| key));
    let mut keys: Vec<&str> = keys.collect();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tree_in_two_spellings_has_the_same_leaves() {
        let whole = serde_json::json!({
            "openconfig-qos:scheduler-policies": {"scheduler-policy": [{
                "name": "p", "schedulers": {"scheduler": [{
                    "sequence": 0, "inputs": {"input": [
                        {"id": "q1", "config": {
                            "input-type": "openconfig-qos:QUEUE", "weight": "3"}}
                    ]}}]}}]},
            "unknown": [1, 2],
        });
        let mut leaves = Leaves::new();
        flatten("/qos", &whole, &mut leaves).expect("a tree");
        let input = "/qos/scheduler-policies/scheduler-policy[name=p]/schedulers\
                     /scheduler[sequence=0]/inputs/input[id=q1]";
        assert_eq!(leaves[&format!("{input}/config/weight")], "3");
        assert_eq!(leaves[&format!("{input}/config/input-type")], "QUEUE");
        let mut single = Leaves::new();
        let at = format!("{input}/config/weight");
        flatten(&shown(None, Some(&path(&at))), &Value::from(3), &mut single).expect("a leaf");
        assert_eq!(single, [(at, "3".to_owned())].into());
        let list = input.trim_end_matches("q1]");
        assert_eq!(entries(&leaves, list), ["q1"]);
        assert!(flatten("/qos", &serde_json::json!({"queue": [{"x": 1}]}), &mut leaves).is_err());
    }

    #[test]
    fn a_slash_in_a_name_is_no_separator() {
        let there = path("/qos/interfaces/interface[interface-id=Ethernet1/1]/input");
        assert_eq!(there.elem.len(), 4);
        assert_eq!(there.elem[2].key["interface-id"], "Ethernet1/1");
        let text = shown(None, Some(&there));
        assert_eq!(text, "/qos/interfaces/interface[interface-id=Ethernet1/1]/input");
    }
}
