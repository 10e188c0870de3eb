//! Stores a controller's decision in OpenConfig's QoS model.
//!
//! | Object | Content |
//! |---|---|
//! | queue and forwarding group `pen-qN` | queue N |
//! | classifiers `pen-v4` and `pen-v6` | map from code point to queue, for IPv4 and IPv6 |
//! | scheduler policy `pen-PORT` | weights of a port's queues |
//! | classifier `penstock-stamp` | stamp of the decision |
//!
//! - A classifier for IPv4 or IPv6 has one term for each queue with code points. The term `qN` has
//!   the code points of queue N (`dscp-set`), and the term `q0` has all others. The terms of a
//!   classifier therefore match all 64 code points, and no two terms match the same one. The model
//!   gives no order of terms, so a term that matches all frames would compete with the other terms.
//! - The input of each port refers to the classifiers `pen-v4` and `pen-v6`. The output of each
//!   port refers to the port's scheduler policy.
//! - A scheduler policy has a single scheduler with one input for each queue. The scheduler's input
//!   for queue N has the name `qN` if the queue has a weight above 0. For a queue N of weight 0,
//!   the scheduler's input has the name `rest-N` and weight 1.
//! - No port refers to the classifier `penstock-stamp`. The classifier `penstock-stamp` has one
//!   term, and the id of the term is the stamp of the decision.
//!
//! If a leaf-list changes, the driver deletes its term and writes the term again in the same Set,
//! because an update may add to a leaf-list or replace it. A target executes all deletions of a Set
//! before all updates, and applies a Set atomically.
//!
//! # What the driver does not change
//!
//! The driver does not change entries with other names. The driver excludes a port if a client has
//! bound another classifier for IPv4 or IPv6, or another scheduler policy, to the port. The port's
//! entry in `interfaces` may then have any key, because `interface-ref` names the interface.
//!
//! # What counts as done
//!
//! The driver reads a leaf of its own entries as missing while the target reports another value as
//! the leaf's state. If a classifier does not have a term for each code point, the driver reads the
//! map as empty, so that the controller sends the map again.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::leaves::{Leaves, Tree, entries, flatten, in_config};
use crate::Stamp;
use crate::southbound::{PortState, SwitchState};

const CLASSIFIERS: &str = "/qos/classifiers/classifier";
const STAMP: &str = "penstock-stamp";
/// Number of code points. A code point has six bits (RFC 2474 §3).
const CODE_POINTS: u8 = 64;
const INTERFACES: &str = "/qos/interfaces/interface[interface-id=";
/// Name and type of the IPv4 and the IPv6 classifier, and name of the JSON member that contains a
/// term's code points.
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
    format!("{INTERFACES}{port}]")
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

/// Reads the queue of each code point from a classifier's terms. The map is empty if the terms do
/// not match each code point exactly once.
fn map(tree: &Tree, name: &str, family: &str, queues: u8) -> Result<BTreeMap<u8, u8>, Unfit> {
    let (list, mut map) = (terms(name), BTreeMap::new());
    let mut clear = true;
    for id in entries(&tree.intent, &list) {
        let to = format!("{list}{id}]/actions/config/target-group");
        let queue = queue_of(&tree.intent, &to, queues)?;
        let one = format!("{list}{id}]/conditions/{family}/config/dscp");
        let set = format!("{one}-set");
        // A term without code points matches all frames.
        clear &= tree.intent.contains_key(&one) || tree.intent.contains_key(&set);
        for path in [one, set] {
            let Some(text) = tree.intent.get(&path) else { continue };
            let applied = tree.applied.contains_key(&path) && tree.applied.contains_key(&to);
            for dscp in text.split_whitespace() {
                let dscp = dscp.parse::<u8>().ok().filter(|dscp| *dscp < CODE_POINTS);
                let dscp = dscp.ok_or_else(|| Unfit::Rubbish(path.clone(), format!("{text:?}")))?;
                clear &= applied && map.insert(dscp, queue).is_none();
            }
        }
    }
    let complete = clear && map.len() == usize::from(CODE_POINTS);
    Ok(if complete { map } else { BTreeMap::new() })
}

/// Returns true if the target has applied the value `ours` of a leaf. The result is false if the
/// leaf does not exist.
///
/// # Errors
/// Returns an error if a client has set another value.
fn bound(tree: &Tree, path: &str, ours: &str) -> Result<bool, Unfit> {
    match tree.intent.get(path) {
        Some(other) if other != ours => Err(Unfit::Foreign(path.to_owned(), other.clone())),
        _ => Ok(tree.applied.contains_key(path)),
    }
}

fn classifier_of(port: &str, kind: &str) -> String {
    format!("{}/input/classifiers/classifier[type={kind}]", interface(port))
}

fn policy_of(port: &str) -> String {
    format!("{}/output/scheduler-policy", interface(port))
}

/// Returns the leaves in which an interface's entry names its classifiers and its scheduler policy.
fn bindings(id: &str) -> impl Iterator<Item = String> {
    let classifiers = FAMILIES.map(|(_, kind, _)| classifier_of(id, kind));
    let all = classifiers.into_iter().chain([policy_of(id)]);
    all.map(|path| format!("{path}/config/name"))
}

/// Returns the interfaces for which an entry with a key that is not one of `ports` has a classifier
/// or a scheduler policy. The result has the path and the value of the leaf.
fn bound_elsewhere(intent: &Leaves, ports: &[String]) -> BTreeMap<String, (String, String)> {
    let mut all = BTreeMap::new();
    for id in entries(intent, INTERFACES) {
        if ports.iter().any(|port| port == id) {
            continue;
        }
        let name = intent.get(&format!("{}/interface-ref/config/interface", interface(id)));
        let Some(name) = name else { continue };
        let mut bindings = bindings(id);
        if let Some((path, other)) = bindings.find_map(|at| intent.get_key_value(&at)) {
            all.insert(name.clone(), (path.clone(), other.clone()));
        }
    }
    all
}

/// Reads the stamp of the last decision from the target's leaves.
fn stamp(intent: &Leaves) -> Result<Stamp, Unfit> {
    let list = terms(STAMP);
    let mut last = Stamp::default();
    for id in entries(intent, &list) {
        let numbers = id.split_once('.');
        let stamp = numbers.and_then(|(epoch, generation)| {
            Some(Stamp { epoch: epoch.parse().ok()?, generation: generation.parse().ok()? })
        });
        let rubbish = || Unfit::Rubbish(format!("{list}{id}]"), "no stamp".to_owned());
        last = last.max(stamp.ok_or_else(rubbish)?);
    }
    Ok(last)
}

/// Reads the state of `ports` from the target's configuration. Ports that use another
/// configuration's entries are in [`SwitchState::left_out`].
pub(super) fn state(
    tree: &Tree,
    ports: &[String],
    queues: u8,
    refusal: impl Fn(Unfit) -> String,
) -> Result<SwitchState, Unfit> {
    let [v4, v6] = FAMILIES.map(|(name, _, family)| map(tree, name, family, queues));
    let (mut both, v6) = (v4?, v6?);
    // The driver must send a mapping again if only one family has it.
    both.retain(|dscp, queue| v6.get(dscp) == Some(queue));
    let mut elsewhere = bound_elsewhere(&tree.intent, ports);
    let mut state = SwitchState { stamp: stamp(&tree.intent)?, ..SwitchState::default() };
    for port in ports {
        let is = match elsewhere.remove(port) {
            Some((path, other)) => Err(Unfit::Foreign(path, other)),
            None => port_state(tree, port, queues, &both),
        };
        match is {
            Ok(is) => drop(state.ports.insert(port.clone(), is)),
            Err(rubbish @ Unfit::Rubbish(..)) => return Err(rubbish),
            Err(unfit) => drop(state.left_out.insert(port.clone(), refusal(unfit))),
        }
    }
    Ok(state)
}

fn port_state(
    tree: &Tree,
    port: &str,
    queues: u8,
    both: &BTreeMap<u8, u8>,
) -> Result<PortState, Unfit> {
    let mut classified = true;
    for (name, kind, _) in FAMILIES {
        let path = format!("{}/config/name", classifier_of(port, kind));
        classified &= bound(tree, &path, name)?;
    }
    let scheduled = format!("{}/config/name", policy_of(port));
    let scheduled = bound(tree, &scheduled, &policy(port))?;
    let list = inputs(port);
    let weight = |queue: u8| {
        let path = format!("{list}q{queue}]/config/weight");
        match scheduled && tree.applied.contains_key(&path) {
            true => number(&tree.applied, &path),
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

/// Returns all entries that the driver sets for `ports`, as paths and JSON values. The ports
/// `weighed` get a scheduler policy.
fn wanted(
    ports: &[String],
    weighed: &[&String],
    queues: u8,
    target: &SwitchState,
) -> Vec<(String, Value)> {
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
        for queue in 0..queues {
            let of_queue = |dscp: &u8| *map.get(dscp).unwrap_or(&0) == queue;
            let set: Vec<u8> = (0..CODE_POINTS).filter(of_queue).collect();
            // An empty set would match all frames.
            if set.is_empty() {
                continue;
            }
            let more = json!({
                "conditions": {family: {"config": {"dscp-set": set}}},
                "actions": {"config": {"target-group": queue_name(queue)}},
            });
            let id = format!("q{queue}");
            all.push(entry(format!("{}{id}]", terms(name)), "id", &id, more));
        }
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
        if weighed.contains(&port) {
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

/// Returns the entry of a classifier with a single term, whose id is the stamp of the decision.
fn stamped(stamp: Stamp) -> [(String, Value); 2] {
    let (path, id) = (format!("{CLASSIFIERS}[name={STAMP}]"), stamp.to_string());
    let group = json!({"actions": {"config": {"target-group": queue_name(0)}}});
    [
        entry(path, "name", STAMP, json!({"config": {"type": "IPV4"}})),
        entry(format!("{}{id}]", terms(STAMP)), "id", &id, group),
    ]
}

/// Returns the operations that change the target's tree to the state `target` and the stamp
/// `stamp`. All maps in `target` must be equal.
pub(super) fn orders(
    tree: &Tree,
    ports: &[String],
    queues: u8,
    target: &SwitchState,
    stamp: Stamp,
) -> Result<Orders, Unfit> {
    // A port without weights keeps a scheduler policy that it has.
    let is_weighed = |port: &&String| {
        let is_new = entries(&tree.intent, &inputs(port)).is_empty();
        !is_new || !target.ports[*port].weights.is_empty()
    };
    let weighed: Vec<&String> = ports.iter().filter(is_weighed).collect();
    let mut wanted = wanted(ports, &weighed, queues, target);
    wanted.extend(stamped(stamp));
    let mut orders = Orders::default();
    let classifiers = FAMILIES.map(|(name, _, _)| terms(name));
    let lists = classifiers.iter().cloned().chain([terms(STAMP)]);
    for list in lists.chain(weighed.iter().map(|port| inputs(port))) {
        for id in entries(&tree.intent, &list) {
            let path = format!("{list}{id}]");
            if !wanted.iter().any(|(wanted, _)| *wanted == path) {
                orders.delete.push(path);
            }
        }
    }
    for (path, value) in wanted {
        let mut needed = Leaves::new();
        flatten(&path, &value, &mut needed).map_err(|e| Unfit::Rubbish(path.clone(), e))?;
        needed.retain(|path, _| in_config(path).is_some());
        let mut wrong = needed.iter().any(|(path, text)| tree.applied.get(path) != Some(text));
        if classifiers.iter().any(|list| path.starts_with(list)) {
            let conditions = format!("{path}/conditions/");
            let has = tree.intent.range(conditions.clone()..).map(|(path, _)| path);
            let mut has = has.take_while(|path| path.starts_with(&conditions));
            wrong |= has.any(|path| path.contains("/config/dscp") && !needed.contains_key(path));
            if wrong && tree.intent.contains_key(&format!("{path}/config/id")) {
                orders.delete.push(path.clone());
            }
        }
        if wrong {
            orders.update.push((path, value));
        }
    }
    Ok(orders)
}
