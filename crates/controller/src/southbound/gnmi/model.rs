//! Stores a controller's decision in OpenConfig's QoS model.
//!
//! | Object | Content |
//! |---|---|
//! | queue and forwarding group `pen-qN` | queue N |
//! | classifiers `pen-v4` and `pen-v6` | map from code point to queue, for IPv4 and IPv6 |
//! | scheduler policy `pen-PORT` | weights of a port's queues |
//! | classifier `penstock-stamp` | stamp of the decision |
//!
//! - A classifier for IPv4 or IPv6 has one term for each code point. The classifier's term `rest`
//!   has no condition and leads to queue 0.
//! - The input of each port refers to the classifiers `pen-v4` and `pen-v6`. The output of each
//!   port refers to the port's scheduler policy.
//! - A scheduler policy has a single scheduler with one input for each queue. The scheduler's input
//!   for queue N has the name `qN` if the queue has a weight above 0. For a queue N of weight 0,
//!   the scheduler's input has the name `rest-N` and weight 1.
//! - No port refers to the classifier `penstock-stamp`. The classifier `penstock-stamp` has one
//!   term, and the id of the term is the stamp of the decision.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::leaves::{Leaves, entries, flatten};
use crate::Stamp;
use crate::southbound::{PortState, SwitchState};

const CLASSIFIERS: &str = "/qos/classifiers/classifier";
const STAMP: &str = "penstock-stamp";
/// Name of the classifier's term for frames without a mapped code point. In a sorted list of terms,
/// `rest` comes after the terms of all code points, whose names are numbers.
const REST: &str = "rest";
/// Name and type of the IPv4 and the IPv6 classifier, and name of the JSON member that contains a
/// term's code point.
const FAMILIES: [(&str, &str, &str); 2] = [("pen-v4", "IPV4", "ipv4"), ("pen-v6", "IPV6", "ipv6")];

/// Reason why the driver cannot use a target's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// Another configuration uses a leaf that the driver needs. The variant contains the leaf's
    /// path and value.
    Foreign(String, String),
    /// A value in the tree is invalid. The variant contains the value's path and the problem.
    Rubbish(String, String),
}

/// Deletions and updates that the driver sends in a single Set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Orders {
    pub(super) delete: Vec<String>,
    pub(super) update: Vec<(String, Value)>,
}

fn queue_name(queue: u8) -> String {
    format!("pen-q{queue}")
}

fn policy(port: &str) -> String {
    format!("pen-{port}")
}

fn interface(port: &str) -> String {
    format!("/qos/interfaces/interface[interface-id={port}]")
}

/// Returns the gNMI path of a port's scheduler inputs, to which the caller appends the key of an
/// input.
fn inputs(port: &str) -> String {
    let policy = policy(port);
    format!(
        "/qos/scheduler-policies/scheduler-policy[name={policy}]/schedulers/scheduler[sequence=0]\
         /inputs/input[id="
    )
}

fn terms(classifier: &str) -> String {
    format!("{CLASSIFIERS}[name={classifier}]/terms/term[id=")
}

fn number<T: std::str::FromStr>(leaves: &Leaves, path: &str) -> Result<T, Unfit> {
    let text = leaves.get(path).map_or("", String::as_str);
    text.parse().map_err(|_| Unfit::Rubbish(path.to_owned(), format!("{text:?}")))
}

fn queue_of(leaves: &Leaves, path: &str, queues: u8) -> Result<u8, Unfit> {
    let text = leaves.get(path).map_or("", String::as_str);
    let queue = text.strip_prefix("pen-q").and_then(|number| number.parse().ok());
    let queue = queue.filter(|queue| *queue < queues);
    queue.ok_or_else(|| Unfit::Rubbish(path.to_owned(), format!("{text:?}")))
}

/// Reads the map from code point to queue of a classifier.
fn map(leaves: &Leaves, name: &str, family: &str, queues: u8) -> Result<BTreeMap<u8, u8>, Unfit> {
    let (list, mut map) = (terms(name), BTreeMap::new());
    for id in entries(leaves, &list).into_iter().filter(|id| *id != REST) {
        let dscp = number(leaves, &format!("{list}{id}]/conditions/{family}/config/dscp"))?;
        let to = format!("{list}{id}]/actions/config/target-group");
        map.insert(dscp, queue_of(leaves, &to, queues)?);
    }
    Ok(map)
}

/// Returns true if a leaf has the value `ours`, and false if the leaf does not exist. If the leaf
/// has a value other than `ours`, returns an error.
fn bound(leaves: &Leaves, path: &str, ours: &str) -> Result<bool, Unfit> {
    match leaves.get(path) {
        Some(other) if other != ours => Err(Unfit::Foreign(path.to_owned(), other.clone())),
        other => Ok(other.is_some()),
    }
}

fn classifier_of(port: &str, kind: &str) -> String {
    format!("{}/input/classifiers/classifier[type={kind}]", interface(port))
}

fn policy_of(port: &str) -> String {
    format!("{}/output/scheduler-policy", interface(port))
}

/// Reads the stamp of the last decision from the target's leaves.
fn stamp(leaves: &Leaves) -> Result<Stamp, Unfit> {
    let list = terms(STAMP);
    let mut last = Stamp::default();
    for id in entries(leaves, &list) {
        let numbers = id.split_once('.');
        let stamp = numbers.and_then(|(epoch, generation)| {
            Some(Stamp { epoch: epoch.parse().ok()?, generation: generation.parse().ok()? })
        });
        let rubbish = || Unfit::Rubbish(format!("{list}{id}]"), "no stamp".to_owned());
        last = last.max(stamp.ok_or_else(rubbish)?);
    }
    Ok(last)
}

/// Reads the state of `ports` from the target's leaves. Ports that use another configuration's
/// entries are in [`SwitchState::left_out`].
pub(super) fn state(
    leaves: &Leaves,
    ports: &[String],
    queues: u8,
    refusal: impl Fn(Unfit) -> String,
) -> Result<SwitchState, Unfit> {
    let [v4, v6] = FAMILIES.map(|(name, _, family)| map(leaves, name, family, queues));
    let (mut both, v6) = (v4?, v6?);
    // The driver must send a mapping again if only one family has it.
    both.retain(|dscp, queue| v6.get(dscp) == Some(queue));
    let mut state = SwitchState { stamp: stamp(leaves)?, ..SwitchState::default() };
    for port in ports {
        match port_state(leaves, port, queues, &both) {
            Ok(is) => drop(state.ports.insert(port.clone(), is)),
            Err(rubbish @ Unfit::Rubbish(..)) => return Err(rubbish),
            Err(unfit) => drop(state.left_out.insert(port.clone(), refusal(unfit))),
        }
    }
    Ok(state)
}

fn port_state(
    leaves: &Leaves,
    port: &str,
    queues: u8,
    both: &BTreeMap<u8, u8>,
) -> Result<PortState, Unfit> {
    let mut classified = true;
    for (name, kind, _) in FAMILIES {
        let path = format!("{}/config/name", classifier_of(port, kind));
        classified &= bound(leaves, &path, name)?;
    }
    let scheduled = format!("{}/config/name", policy_of(port));
    let scheduled = bound(leaves, &scheduled, &policy(port))?;
    let list = inputs(port);
    let weight = |queue: u8| {
        let path = format!("{list}q{queue}]/config/weight");
        match scheduled && leaves.contains_key(&path) {
            true => number(leaves, &path),
            false => Ok(0),
        }
    };
    let weights = (0..queues).map(weight).collect::<Result<_, _>>()?;
    let map = if classified { both.clone() } else { BTreeMap::new() };
    Ok(PortState { weights, map }.canonical())
}

/// Returns the path and the JSON value of a list entry. `key` is the name of the list's key,
/// `value` is the key's value, and `more` contains the other members of the entry.
fn entry(path: String, key: &str, value: &str, mut more: Value) -> (String, Value) {
    if let Some(members) = more.as_object_mut() {
        let config = members.entry("config").or_insert_with(|| json!({}));
        if let Some(config) = config.as_object_mut() {
            config.insert(key.to_owned(), json!(value));
        }
        members.insert(key.to_owned(), json!(value));
        // RFC 7951 §4: members of the outermost object name their module.
        *members = std::mem::take(members)
            .into_iter()
            .map(|(name, value)| (format!("openconfig-qos:{name}"), value))
            .collect();
    }
    (path, more)
}

/// Returns all entries that the driver sets for `ports`, as paths and JSON values.
fn wanted(ports: &[String], queues: u8, target: &SwitchState) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for name in (0..queues).map(queue_name) {
        all.push(entry(format!("/qos/queues/queue[name={name}]"), "name", &name, json!({})));
        let path = format!("/qos/forwarding-groups/forwarding-group[name={name}]");
        all.push(entry(path, "name", &name, json!({"config": {"output-queue": name}})));
    }
    // `agree` has checked that all ports have the same map.
    let map = ports.first().map(|port| target.ports[port].map.clone()).unwrap_or_default();
    for (name, kind, family) in FAMILIES {
        let path = format!("{CLASSIFIERS}[name={name}]");
        all.push(entry(path, "name", name, json!({"config": {"type": kind}})));
        for (dscp, queue) in &map {
            let more = json!({
                "conditions": {family: {"config": {"dscp": dscp}}},
                "actions": {"config": {"target-group": queue_name(*queue)}},
            });
            let path = format!("{}{dscp}]", terms(name));
            all.push(entry(path, "id", &dscp.to_string(), more));
        }
        let more = json!({"actions": {"config": {"target-group": queue_name(0)}}});
        all.push(entry(format!("{}{REST}]", terms(name)), "id", REST, more));
    }
    for port in ports {
        let PortState { weights, .. } = &target.ports[port];
        let id = "interface-id";
        let more = json!({"interface-ref": {"config": {"interface": port}}});
        all.push(entry(interface(port), id, port, more));
        for (name, kind, _) in FAMILIES {
            let path = classifier_of(port, kind);
            all.push(entry(path, "type", kind, json!({"config": {"name": name}})));
        }
        if !weights.is_empty() {
            all.extend(schedulers(port, queues, weights));
        }
    }
    all
}

fn schedulers(port: &str, queues: u8, weights: &[u32]) -> Vec<(String, Value)> {
    let name = policy(port);
    let path = format!("/qos/scheduler-policies/scheduler-policy[name={name}]");
    let first = json!({"openconfig-qos:sequence": 0, "openconfig-qos:config": {"sequence": 0}});
    let mut all = vec![
        entry(path.clone(), "name", &name, json!({})),
        (format!("{path}/schedulers/scheduler[sequence=0]"), first),
    ];
    for queue in 0..queues {
        let (id, weight) = match *weights.get(usize::from(queue)).unwrap_or(&0) {
            0 => (format!("rest-{queue}"), 1),
            weight => (format!("q{queue}"), weight),
        };
        // RFC 7951 §6.1: 64-bit numbers are text.
        let config = json!({
            "input-type": "QUEUE", "queue": queue_name(queue), "weight": weight.to_string(),
        });
        all.push(entry(format!("{}{id}]", inputs(port)), "id", &id, json!({"config": config})));
    }
    let path = policy_of(port);
    all.push((path, json!({"openconfig-qos:config": {"name": name}})));
    all
}

/// Returns the operations that change the target's tree to the state `target` and the stamp
/// `stamp`. All maps in `target` must be equal.
pub(super) fn orders(
    leaves: &Leaves,
    ports: &[String],
    queues: u8,
    target: &SwitchState,
    stamp: Stamp,
) -> Result<Orders, Unfit> {
    let mut wanted = wanted(ports, queues, target);
    let id = stamp.to_string();
    wanted.push(entry(
        format!("{CLASSIFIERS}[name={STAMP}]"),
        "name",
        STAMP,
        json!({"config": {"type": "IPV4"}}),
    ));
    let group = json!({"actions": {"config": {"target-group": queue_name(0)}}});
    wanted.push(entry(format!("{}{id}]", terms(STAMP)), "id", &id, group));
    let mut orders = Orders::default();
    let lists = FAMILIES.map(|(name, _, _)| terms(name)).into_iter().chain([terms(STAMP)]);
    // If `target` has no weights for a port, the port's inputs stay.
    let weighed = ports.iter().filter(|port| !target.ports[*port].weights.is_empty());
    for list in lists.chain(weighed.map(|port| inputs(port))) {
        for id in entries(leaves, &list) {
            let path = format!("{list}{id}]");
            if !wanted.iter().any(|(wanted, _)| *wanted == path) {
                orders.delete.push(path);
            }
        }
    }
    for (path, value) in wanted {
        let mut needed = Leaves::new();
        flatten(&path, &value, &mut needed).map_err(|e| Unfit::Rubbish(path.clone(), e))?;
        needed.retain(|path, _| path.contains("/config/"));
        if needed.iter().any(|(path, text)| leaves.get(path) != Some(text)) {
            orders.update.push((path, value));
        }
    }
    Ok(orders)
}
