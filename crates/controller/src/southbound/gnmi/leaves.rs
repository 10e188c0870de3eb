//! Flattens the tree of a gNMI target to leaves.
//!
//! # Problem
//!
//! gNMI targets answer in different forms. A value in a gNMI answer may contain a whole tree or a
//! single leaf, and a leaf may be JSON or a value of protobuf. Names of JSON members may have a
//! module prefix. A number may be a JSON number or text (RFC 7951 §6.1).
//!
//! In OpenConfig's models, a leaf in `config` contains the value that a client has set. The leaf of
//! the same name in `state` contains the value that the target has applied, and the target may need
//! time to apply a value. Not all targets have `state` leaves, and a target that has them may
//! create the `state` of a new entry later than its `config`.
//!
//! # Approach
//!
//! The driver converts all forms of answers to a map from path to text. OpenConfig's keys identify
//! the entries of lists. The text of a leaf-list contains its values in ascending order, because
//! the order of a leaf-list has no meaning. A `Tree` has the configuration of the target, with
//! and without the leaves whose values the target has not applied yet.
//!
//! A leaf without `state` is applied if the target has no `state` for leaves of this *kind*, which
//! is the path without keys. `StateKinds` remembers the kinds that had a `state` in any answer. A
//! kind without `state` in all answers is unknown until the target had some time to create it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::proto::typed_value::Value as Typed;
use super::proto::{Path, PathElem, TypedValue};

/// Text of each leaf, by the leaf's path, such as `/qos/queues/queue[name=a]/config/name`.
pub type Leaves = BTreeMap<String, String>;

/// Configuration of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    /// Configuration leaves with the values that clients have set.
    pub(super) intent: Leaves,
    /// The leaves of `intent`, except those for which the target reports another value as its
    /// state.
    pub(super) applied: Leaves,
}

/// Splits the path of a configuration leaf into the path of the object and the name of the leaf.
/// `None` if the leaf is not in a container `config`.
pub(super) fn in_config(path: &str) -> Option<(&str, &str)> {
    let (container, leaf) = path.rsplit_once('/')?;
    Some((container.strip_suffix("/config")?, leaf))
}

/// Returns the path of the state leaf that belongs to a configuration leaf.
fn twin(path: &str) -> Option<String> {
    in_config(path).map(|(at, leaf)| format!("{at}/state/{leaf}"))
}

/// Returns the kind of a leaf, which is its path without the keys of lists.
fn kind(path: &str) -> String {
    let (mut kind, mut rest) = (String::new(), path);
    while let Some((before, after)) = rest.split_once('[') {
        kind.push_str(before);
        rest = after.split_once(']').map_or("", |(_, after)| after);
    }
    kind + rest
}

/// Kinds of configuration leaves, each with whether the target has a `state` for them.
#[derive(Debug, Default)]
pub(super) struct StateKinds(BTreeMap<String, bool>);

impl StateKinds {
    /// Notes the kinds of leaves with a `state` in an answer.
    pub(super) fn learn(&mut self, leaves: &Leaves) {
        let has_state = |path: &&String| twin(path).is_some_and(|twin| leaves.contains_key(&twin));
        self.0.extend(leaves.keys().filter(has_state).map(|path| (kind(path), true)));
    }

    /// Notes that the target had enough time for the `state` of all leaves in `intent`. Kinds that
    /// are still unknown have none.
    pub(super) fn give_up(&mut self, intent: &Leaves) {
        for path in intent.keys() {
            self.0.entry(kind(path)).or_insert(false);
        }
    }

    /// Returns true if a leaf without `state` is applied. If `waits` is true, leaves of an unknown
    /// kind are not.
    pub(super) fn applied_without(&self, path: &str, waits: bool) -> bool {
        self.0.get(&kind(path)).map_or(!waits, |has_state| !has_state)
    }
}

impl Tree {
    /// Separates the leaves of a target into configuration and state. Leaves without `state` are
    /// applied.
    pub(super) fn new(leaves: Leaves) -> Self {
        Self::with(leaves, |_| true)
    }

    /// Separates the leaves of a target into configuration and state. The function
    /// `applied_without` says whether a leaf without `state` is applied.
    pub(super) fn with(leaves: Leaves, applied_without: impl Fn(&str) -> bool) -> Self {
        let (intent, state): (Leaves, Leaves) =
            leaves.into_iter().partition(|(path, _)| in_config(path).is_some());
        let is_applied = |(path, text): &(&String, &String)| {
            let state = twin(path).and_then(|twin| state.get(&twin));
            state.map_or_else(|| applied_without(path), |state| state == *text)
        };
        let applied = intent.iter().filter(is_applied);
        let applied = applied.map(|(path, text)| (path.clone(), text.clone())).collect();
        Self { intent, applied }
    }
}

/// Returns the name of the key member of a list in OpenConfig's QoS model. `None` if OpenConfig's
/// QoS model does not have the list. If several lists have the same name, `path` distinguishes
/// these lists.
fn key_of(list: &str, path: &str) -> Option<&'static str> {
    Some(match list {
        "classifier"
            if path.ends_with("/input/classifiers") || path.ends_with("/output/classifiers") =>
        {
            "type"
        }
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
        Value::Array(all) => {
            let mut all = all.iter().map(text).collect::<Option<Vec<_>>>()?;
            // Shorter numbers are smaller.
            all.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
            all.join(" ")
        }
        _ => return None,
    })
}

/// Returns the value of a leaf in a target's answer as JSON. `None` if the value is not JSON and
/// has no type that a leaf of OpenConfig's QoS model may have.
#[must_use]
pub fn scalar(typed: &TypedValue) -> Option<Value> {
    Some(match typed.value.as_ref()? {
        Typed::StringVal(text) | Typed::AsciiVal(text) => json!(text),
        Typed::IntVal(number) => json!(number),
        Typed::UintVal(number) => json!(number),
        Typed::BoolVal(yes) => json!(yes),
        Typed::LeaflistVal(all) => {
            Value::Array(all.element.iter().map(scalar).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// Adds the leaves of the JSON value `value` at `path` to `leaves`. The function ignores JSON lists
/// of objects that are not part of OpenConfig's QoS model.
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
        let Some(key) = key_of(name, path) else {
            leaves.extend(text(value).map(|text| (format!("{path}/{name}"), text)));
            continue;
        };
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
    use super::super::proto::ScalarArray;
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
    fn a_leaf_list_has_one_text_in_all_forms_and_orders() {
        let at = "/qos/classifiers/classifier[name=c]/terms/term[id=a]/conditions/ipv4/config";
        let (mut whole, mut single) = (Leaves::new(), Leaves::new());
        flatten(at, &json!({"dscp-set": [10, 0, 9]}), &mut whole).expect("a tree");
        let number = |n| TypedValue { value: Some(Typed::UintVal(n)) };
        let all = ScalarArray { element: [9, 10, 0].map(number).into() };
        let typed = TypedValue { value: Some(Typed::LeaflistVal(all)) };
        let value = scalar(&typed).expect("numbers");
        flatten(&format!("{at}/dscp-set"), &value, &mut single).expect("a leaf-list");
        assert_eq!(whole, [(format!("{at}/dscp-set"), "0 9 10".to_owned())].into());
        assert_eq!(single, whole);
        assert_eq!(scalar(&TypedValue { value: Some(Typed::BytesVal(vec![1])) }), None);
    }

    #[test]
    fn entries_of_the_output_of_a_port_have_the_keys_of_its_input() {
        let port = json!({"interfaces": {"interface": [{"interface-id": "e0", "output": {
            "classifiers": {"classifier": [{"type": "IPV4", "config": {"name": "theirs"}}]}
        }}]}});
        let mut leaves = Leaves::new();
        flatten("/qos", &port, &mut leaves).expect("a tree");
        let name = "/qos/interfaces/interface[interface-id=e0]/output/classifiers\
                    /classifier[type=IPV4]/config/name";
        assert_eq!(leaves[name], "theirs");
    }

    #[test]
    fn a_leaf_with_another_state_is_not_applied() {
        let all = [
            ("/qos/queues/queue[name=a]/name", "a"),
            ("/qos/queues/queue[name=a]/config/name", "a"),
            ("/qos/queues/queue[name=a]/state/name", "a"),
            ("/qos/queues/queue[name=b]/config/name", "b"),
            ("/qos/queues/queue[name=c]/config/name", "c"),
            ("/qos/queues/queue[name=c]/state/name", "old"),
            ("/qos/queues/queue[name=d]/state/name", "d"),
        ];
        let tree = Tree::new(all.map(|(path, text)| (path.to_owned(), text.to_owned())).into());
        let list = "/qos/queues/queue[name=";
        assert_eq!(entries(&tree.intent, list), ["a", "b", "c"]);
        assert_eq!(entries(&tree.applied, list), ["a", "b"]);
    }

    #[test]
    fn a_leaf_without_state_is_applied_only_if_the_target_has_none_for_its_kind() {
        let queue = |name: &str, part: &str| {
            (format!("/qos/queues/queue[name={name}]/{part}/name"), name.to_owned())
        };
        let all = |parts: &[(&str, &str)]| -> Leaves {
            parts.iter().map(|(name, part)| queue(name, part)).collect()
        };
        let (mut kinds, list) = (StateKinds::default(), "/qos/queues/queue[name=");
        let applied = |kinds: &StateKinds, leaves: &Leaves, waits| {
            let tree = Tree::with(leaves.clone(), |path| kinds.applied_without(path, waits));
            entries(&tree.applied, list).len()
        };
        // At first, the target may have no state, or create it later.
        let bare = all(&[("a", "config"), ("b", "config")]);
        kinds.learn(&bare);
        assert_eq!((applied(&kinds, &bare, true), applied(&kinds, &bare, false)), (0, 2));
        kinds.give_up(&bare);
        assert_eq!(applied(&kinds, &bare, true), 2, "it has none");
        // From the first state on, the target must report the state of each entry.
        let late = all(&[("a", "config"), ("a", "state"), ("b", "config")]);
        kinds.learn(&late);
        assert_eq!((applied(&kinds, &late, true), applied(&kinds, &late, false)), (1, 1));
        kinds.give_up(&late);
        assert_eq!(applied(&kinds, &bare, false), 0, "it has a state for this kind");
        assert_eq!(kind("/qos/a[k=x/y]/b[k=1][l=2]/config/c"), "/qos/a/b/config/c");
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
