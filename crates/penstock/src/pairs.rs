//! `key=value` arguments as a TOML table, so that the command line and the configuration file
//! have one grammar and one validator.
//!
//! # Approach
//!
//! A value that can be parsed as a TOML value becomes that value. A value that is not valid TOML
//! becomes a string. Dotted keys make tables. Dates and the words `inf` and `nan` stay strings,
//! because no key needs them and a port may be called `inf`. A list in brackets may contain bare
//! words, as in `trunk=[1,5-9]`. With `set`, an empty value resets the key to its default.
//!
//! For three kinds of keys, the command line accepts more than TOML, so that values need no quotes
//! in the shell. Names are text even if they look like numbers (`tenant=7`). A list may be written
//! as its items (`mac=A,B`, `actions=set-vlan:5,output:vm2`, `trunk=1,5-9`). `match` may be written
//! as pairs (`match=proto=tcp,dst_port=80`).

use anyhow::{Result, bail, ensure};
use toml::{Table, Value};

/// Keys that have a name or a path as value. Values of the keys in this list are always text.
const TEXT_KEYS: [&str; 8] = [
    "tenant",
    "port",
    "interface",
    "netns",
    "socket",
    "socket_mode",
    "socket_owner",
    "socket_group",
];
/// Keys that have a list of texts as value.
const LIST_KEYS: [&str; 3] = ["mac", "ip", "actions"];
/// Keys that have a list of numbers and ranges as value.
const RANGES_KEYS: [&str; 2] = ["vlans", "trunk"];
/// Key with a table of texts.
const LABELS_KEY: &str = "labels";
/// Key with a table, which may be written as `key=value` pairs.
const PAIRS_KEY: &str = "match";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    pub table: Table,
    /// Dotted keys to reset to their default.
    pub unset: Vec<String>,
    /// All keys in the given order, with the value as text: a string without quotes, any other
    /// value as TOML. If the text is empty, the key gets its default.
    pub changes: Vec<(String, String)>,
}

impl Pairs {
    /// Reads arguments of the form `key=value` and `key=`.
    ///
    /// # Errors
    /// Returns an error if an argument has no `=`, a key is empty or repeated, or a key is both a
    /// value and a table.
    pub fn parse<S: AsRef<str>>(arguments: &[S]) -> Result<Self> {
        let mut pairs = Self::default();
        for argument in arguments {
            let argument = argument.as_ref();
            let Some((key, text)) = argument.split_once('=') else {
                bail!("argument '{argument}': not of the form key=value");
            };
            let path = path_of(key);
            ensure!(path.iter().all(|part| !part.is_empty()), "argument '{argument}': no key");
            let unset_before = pairs.unset.iter().any(|other| other == key);
            ensure!(!unset_before, "key '{key}': given twice");
            if text.is_empty() {
                ensure!(!holds(&pairs.table, &path), "key '{key}': given twice");
                pairs.unset.push(key.to_owned());
                pairs.changes.push((key.to_owned(), String::new()));
            } else {
                let value = keyed_value(key, text)?;
                pairs.changes.push((key.to_owned(), change_text(&value)));
                insert(&mut pairs.table, &path, value, key)?;
            }
        }
        Ok(pairs)
    }

    /// Parses the arguments of a new object, which has no keys to reset.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Self::parse`], and if a value is empty.
    pub fn parse_new<S: AsRef<str>>(name: &str, arguments: &[S]) -> Result<Table> {
        let mut pairs = Self::parse(arguments)?;
        if let Some(key) = pairs.unset.first() {
            bail!("key '{key}': no value; leave it out for the default, or write {key}='\"\"'");
        }
        ensure!(
            !pairs.table.contains_key("name"),
            "key 'name': the command already names '{name}'; remove the key"
        );
        pairs.table.insert("name".to_owned(), Value::String(name.to_owned()));
        Ok(pairs.table)
    }
}

/// Returns the parts of a dotted key. The key of a label may have dots.
fn path_of(key: &str) -> Vec<&str> {
    match key.split_once('.') {
        Some((LABELS_KEY, label)) => vec![LABELS_KEY, label.trim()],
        _ => key.split('.').map(str::trim).collect(),
    }
}

fn holds(table: &Table, path: &[&str]) -> bool {
    match path {
        [] => false,
        [last] => table.contains_key(*last),
        [first, rest @ ..] => {
            table.get(*first).and_then(Value::as_table).is_some_and(|inner| holds(inner, rest))
        }
    }
}

fn insert(table: &mut Table, path: &[&str], value: Value, key: &str) -> Result<()> {
    match path {
        [] => Ok(()),
        [last] => {
            ensure!(!table.contains_key(*last), "key '{key}': given twice");
            table.insert((*last).to_owned(), value);
            Ok(())
        }
        [first, rest @ ..] => {
            let inner =
                table.entry((*first).to_owned()).or_insert_with(|| Value::Table(Table::new()));
            let Some(inner) = inner.as_table_mut() else {
                bail!("key '{key}': '{first}' has a value already, so it cannot hold keys");
            };
            insert(inner, rest, value, key)
        }
    }
}

/// Returns the value of a changed key as text. A string has no quotes in this text, because the key
/// determines the type of its value.
fn change_text(wanted: &Value) -> String {
    match wanted {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the value in the type that the key requires.
fn keyed_value(key: &str, text: &str) -> Result<Value> {
    let plain = value(text);
    if matches!(path_of(key)[..], [LABELS_KEY, _]) {
        return Ok(Value::String(text.to_owned()));
    }
    // The last part of a dotted key determines the type, as in `vhost-user.socket_mode`.
    let key = key.rsplit('.').next().unwrap_or(key);
    if TEXT_KEYS.contains(&key) && !plain.is_str() {
        return Ok(Value::String(text.to_owned()));
    }
    if LIST_KEYS.contains(&key) && !plain.is_array() {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        return Ok(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()));
    }
    if RANGES_KEYS.contains(&key) && !plain.is_array() {
        return Ok(value(&format!("[{text}]")));
    }
    if plain.is_str() {
        broken_table(key, text)?;
    }
    if key == PAIRS_KEY && plain.is_str() {
        let items: Vec<&str> =
            text.split([',', ' ']).filter(|item| !item.is_empty() && *item != "any").collect();
        let pairs = Pairs::parse(&items)?;
        return Ok(Value::Table(pairs.table));
    }
    Ok(plain)
}

/// Refuses a value that has the form of a table and is not valid TOML. As a string, it would only
/// cause an error about its type.
fn broken_table(key: &str, text: &str) -> Result<()> {
    let text = text.trim();
    if !text.starts_with('{') || !text.ends_with('}') {
        return Ok(());
    }
    let Err(error) = text.parse::<Value>() else { return Ok(()) };
    let place = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    if error.message() == "duplicate key" {
        bail!("key '{key}': duplicate key `{place}`; write each key of the table once");
    }
    let problem = error.message().replace('\n', ", ");
    bail!("key '{key}': not a table: {problem}; write a TOML table, as in {key}='{{ a = \"b\" }}'");
}

fn value(text: &str) -> Value {
    match text.trim().parse::<Value>() {
        Ok(Value::Datetime(_)) => Value::String(text.to_owned()),
        Ok(Value::Float(number)) if !number.is_finite() => Value::String(text.to_owned()),
        Ok(value) => value,
        Err(_) => match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(items) if !items.contains(['[', ']', '{', '}', '"', '\'']) => Value::Array(
                items
                    .split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(value)
                    .collect(),
            ),
            _ => Value::String(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Value {
        Pairs::parse(&[format!("k={text}")]).unwrap().table["k"].clone()
    }

    #[test]
    fn what_reads_as_toml_is_toml_and_the_rest_is_text() {
        assert_eq!(one("100"), Value::Integer(100));
        assert_eq!(one("true"), Value::Boolean(true));
        assert_eq!(one("\"100\""), Value::String("100".into()));
        assert_eq!(one("vhost-user"), Value::String("vhost-user".into()));
        assert_eq!(one("/run/p/vm3.sock"), Value::String("/run/p/vm3.sock".into()));
        assert_eq!(one("02:00:00:00:00:01"), Value::String("02:00:00:00:00:01".into()));
        assert_eq!(one("10.0.0.1/24"), Value::String("10.0.0.1/24".into()));
        assert_eq!(one("fe80::1"), Value::String("fe80::1".into()));
        assert_eq!(one("a=b"), Value::String("a=b".into()));
        assert_eq!(one("[1, 2]"), Value::Array(vec![Value::Integer(1), Value::Integer(2)]));
        assert_eq!(
            one("[1,5-9]"),
            Value::Array(vec![Value::Integer(1), Value::String("5-9".into())])
        );
    }

    #[test]
    fn dates_and_float_words_and_smuggled_lines_stay_text() {
        for text in ["2026-01-02", "02:00:00", "inf", "nan", "1\nother = 2"] {
            assert_eq!(one(text), Value::String(text.into()), "{text}");
        }
    }

    #[test]
    fn dotted_keys_make_tables() {
        let pairs = Pairs::parse(&["match.proto=tcp", "match.dport=80", "priority=5"]).unwrap();
        let expected: Table =
            "priority = 5\n[match]\nproto = \"tcp\"\ndport = 80\n".parse().unwrap();
        assert_eq!(pairs.table, expected);
        let inline = Pairs::parse(&["match={proto=\"tcp\", dport=80}", "priority=5"]).unwrap();
        assert_eq!(inline.table, expected);
    }

    #[test]
    fn a_label_is_text_and_its_key_may_have_dots() {
        let pairs = Pairs::parse(&["labels.k8s.io/name=7", "labels.zone=a,b", "vlan=7"]).unwrap();
        let expected: Table =
            "vlan = 7\n[labels]\n\"k8s.io/name\" = \"7\"\nzone = \"a,b\"\n".parse().unwrap();
        assert_eq!(pairs.table, expected);
        assert_eq!(pairs.changes[0].0, "labels.k8s.io/name");
        let error = Pairs::parse(&["labels.=5"]).unwrap_err().to_string();
        assert_eq!(error, "argument 'labels.=5': no key");
    }

    #[test]
    fn names_lists_and_matches_need_no_quotes() {
        let arguments = [
            "tenant=7",
            "mac=52:54:00:00:00:01,52:54:00:00:00:02",
            "actions=set-vlan:5,output:vm2",
            "trunk=1,5-9",
            "vlans=100",
            "match=proto=tcp,dst_port=80",
        ];
        let expected: Table =
            "tenant = \"7\"\nmac = [\"52:54:00:00:00:01\", \"52:54:00:00:00:02\"]\n\
             actions = [\"set-vlan:5\", \"output:vm2\"]\ntrunk = [1, \"5-9\"]\nvlans = [100]\n\
             match = {proto = \"tcp\", dst_port = 80}\n"
                .parse()
                .unwrap();
        assert_eq!(Pairs::parse(&arguments).unwrap().table, expected);
        let quoted = Pairs::parse(&["actions=[\"drop\"]", "match=any"]).unwrap().table;
        assert_eq!(quoted, "actions = [\"drop\"]\n[match]\n".parse().unwrap());
    }

    #[test]
    fn an_empty_value_is_the_default_again() {
        let pairs = Pairs::parse(&["mac=", "vlan=7"]).unwrap();
        assert_eq!(pairs.unset, ["mac"]);
        assert!(pairs.table.contains_key("vlan"));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(pairs.changes, [pair("mac", ""), pair("vlan", "7")]);
    }

    #[test]
    fn a_change_is_bare_text_or_toml() {
        let arguments = ["tenant=7", "netns=blue", "mac=a,b", "offloads={csum=true,tso=false}"];
        let changes = Pairs::parse(&arguments).unwrap().changes;
        let values: Vec<&str> = changes.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["7", "blue", "[\"a\", \"b\"]", "{ csum = true, tso = false }"]);
    }

    #[test]
    fn a_table_that_is_not_toml_has_the_reason() {
        let error = |argument: &str| Pairs::parse(&[argument]).unwrap_err().to_string();
        assert_eq!(
            error("labels={ a=\"1\", a=\"2\" }"),
            "key 'labels': duplicate key `a`; write each key of the table once"
        );
        assert!(error("tap.offloads={csum=yes}").starts_with("key 'offloads': not a table: "));
        assert_eq!(one("\"{ a=b }\""), Value::String("{ a=b }".into()));
        assert_eq!(one("{a"), Value::String("{a".into()));
    }

    #[test]
    fn mistakes_name_the_argument() {
        let error = |arguments: &[&str]| Pairs::parse(arguments).unwrap_err().to_string();
        assert_eq!(error(&["vlan"]), "argument 'vlan': not of the form key=value");
        assert_eq!(error(&["=4"]), "argument '=4': no key");
        assert_eq!(error(&["a=1", "a=2"]), "key 'a': given twice");
        assert_eq!(error(&["a=1", "a="]), "key 'a': given twice");
        assert_eq!(error(&["a=", "a=1"]), "key 'a': given twice");
        assert_eq!(
            error(&["a=1", "a.b=2"]),
            "key 'a.b': 'a' has a value already, so it cannot hold keys"
        );
        let new = |arguments: &[&str]| Pairs::parse_new("vm1", arguments).unwrap_err().to_string();
        assert_eq!(new(&["name=x"]), "key 'name': the command already names 'vm1'; remove the key");
        assert!(new(&["mac="]).starts_with("key 'mac': no value"));
    }
}
