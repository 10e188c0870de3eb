//! Changes the text of a configuration, and keeps its comments and order.

use penstock_toml::ConfigError;
use serde::Serialize;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Formatted, Item, Table, TableLike, Value};

use super::model::{Port, Tenant};
use super::rule::Rule;
use super::upgrade::{path, upgrade_table};

/// The kinds of configuration objects that clients add, set and delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tenant,
    Port,
    Rule,
}

impl Kind {
    /// Name of a kind of configuration object, such as `port`, in the file and in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Port => "port",
            Self::Rule => "rule",
        }
    }

    /// Command of `penstock` that lists and changes the objects, such as `port`.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Self::Rule => "flow",
            Self::Tenant | Self::Port => self.name(),
        }
    }
}

/// A change of the configuration's text, which adds, sets or deletes one object.
#[derive(Clone, Debug)]
pub(crate) enum Edit<'a> {
    AddPort(&'a Port),
    AddTenant(&'a Tenant),
    AddRule(&'a Rule),
    Set(Kind, &'a str, &'a [(String, String)]),
    Delete(Kind, &'a str),
}

/// Reason why the text of a configuration cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum EditError {
    #[error("the {0} does not exist")]
    NotFound(&'static str),
    #[error("the name is taken")]
    Taken,
    #[error("the object's name cannot be changed")]
    Name,
    #[error("the configuration's text is no longer valid TOML: {0}")]
    Syntax(toml_edit::TomlError),
    #[error("`{0}` is not a list of tables")]
    Shape(&'static str),
    #[error("`{0}` is not a table, so it has no keys")]
    NoTable(String),
    #[error("the object cannot be written as TOML: {0}")]
    Write(toml_edit::ser::Error),
}

impl Edit<'_> {
    /// Kind and name of the configuration object that the edit changes.
    pub(crate) fn object(&self) -> (Kind, &str) {
        match self {
            Self::AddPort(port) => (Kind::Port, &port.name),
            Self::AddTenant(tenant) => (Kind::Tenant, &tenant.name),
            Self::AddRule(rule) => (Kind::Rule, &rule.name),
            Self::Set(kind, name, _) | Self::Delete(kind, name) => (*kind, name),
        }
    }

    /// Applies the change to `text` and returns the changed text.
    pub(crate) fn apply(&self, text: &str) -> Result<String, EditError> {
        let mut document: DocumentMut = text.parse().map_err(EditError::Syntax)?;
        let (kind, name) = self.object();
        let tables = tables(&mut document, kind)?;
        let place = tables.iter().position(|t| t.get("name").and_then(Item::as_str) == Some(name));
        match (self, place) {
            (Self::AddPort(_) | Self::AddTenant(_) | Self::AddRule(_), Some(_)) => {
                return Err(EditError::Taken);
            }
            (Self::AddPort(port), None) => tables.push(table_of(port)?),
            (Self::AddTenant(tenant), None) => tables.push(table_of(tenant)?),
            (Self::AddRule(rule), None) => tables.push(table_of(rule)?),
            (_, None) => return Err(EditError::NotFound(kind.name())),
            (Self::Delete(..), Some(at)) => {
                tables.remove(at);
            }
            (Self::Set(_, _, changes), Some(at)) => {
                if let Some(table) = tables.get_mut(at) {
                    upgrade_table(kind.name(), table);
                    for (key, value) in *changes {
                        let key = path(kind.name(), table, key);
                        set(table, &key, value)?;
                    }
                }
            }
        }
        Ok(document.to_string())
    }
}

fn tables(document: &mut DocumentMut, kind: Kind) -> Result<&mut ArrayOfTables, EditError> {
    let item =
        document.entry(kind.name()).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    item.as_array_of_tables_mut().ok_or(EditError::Shape(kind.name()))
}

/// Returns an object as a TOML table with an empty line above. Tables inside a configuration object
/// become inline tables.
fn table_of<T: Serialize>(object: &T) -> Result<Table, EditError> {
    let document = toml_edit::ser::to_document(object).map_err(EditError::Write)?;
    let mut table = Table::new();
    for (key, item) in document.iter() {
        let item = match item.clone().into_value() {
            Ok(value) => Item::Value(value),
            Err(item) => item,
        };
        table.insert(key, item);
    }
    table.decor_mut().set_prefix("\n");
    Ok(table)
}

/// Form of a key's value in the file: quoted text, a literal such as a number, or a list.
enum Form {
    Text,
    Literal,
    List,
}

fn form(key: &str) -> Form {
    match key {
        "mac" | "ip" | "trunk" | "vlans" | "actions" | "rtp" => Form::List,
        "vlan" | "native" | "qinq" | "queues" | "worker" | "offloads" | "interrupts" | "mtu"
        | "slow_path" | "labels" | "fdb_limit" | "priority" | "cycle_weight" | "uplink_weight"
        | "uplink_share" | "depth" | "contract" | "police" | "match" | "queue" | "shape"
        | "receive" | "send" | "inbound" | "wfq" | "dscp" | "mirror" | "vhost-user" | "tap"
        | "packet" | "xdp" => Form::Literal,
        _ => Form::Text,
    }
}

/// Sets a key of `table`, or removes the key if `text` is empty. A comment after the key's old
/// value stays after the key's new value. A key with a dot, such as `vhost-user.queues`, is set in
/// the inner table, such as `vhost-user`.
fn set(table: &mut dyn TableLike, key: &str, text: &str) -> Result<(), EditError> {
    if key == "name" {
        return Err(EditError::Name);
    }
    if let Some((outer, inner)) = key.split_once('.') {
        if text.is_empty() && !table.contains_key(outer) {
            return Ok(());
        }
        let item = table.entry(outer).or_insert_with(|| {
            let mut fresh = Table::new();
            fresh.set_dotted(true);
            Item::Table(fresh)
        });
        let nested =
            item.as_table_like_mut().ok_or_else(|| EditError::NoTable(outer.to_owned()))?;
        if outer == "labels" {
            // A label is text, and its key may have dots.
            set_label(nested, inner, text);
        } else {
            set_in_table(nested, inner, text)?;
        }
        if let Some(table) = item.as_inline_table_mut() {
            table.fmt();
        }
        return Ok(());
    }
    if text.is_empty() {
        table.remove(key);
        return Ok(());
    }
    replace(table, key, value_of(key, text));
    Ok(())
}

/// Sets a key of a table inside an object, such as `queues` of `vhost-user`. Most of these keys are
/// numbers, so a value that is valid TOML becomes that value.
fn set_in_table(table: &mut dyn TableLike, key: &str, text: &str) -> Result<(), EditError> {
    let is_text = ["interface", "netns", "socket", "socket_mode", "socket_owner", "socket_group"]
        .contains(&key);
    if text.is_empty() || key.contains('.') || is_text || !matches!(form(key), Form::Text) {
        return set(table, key, text);
    }
    let literal = text.parse::<Value>().ok().filter(|value| !value.is_datetime()).map(plain);
    replace(table, key, literal.unwrap_or_else(|| value_of(key, text)));
    Ok(())
}

/// Replaces the value of a key, and keeps the comment after the value.
fn replace(table: &mut dyn TableLike, key: &str, mut value: Value) {
    if let Some(Item::Value(old)) = table.get(key) {
        *value.decor_mut() = old.decor().clone();
    }
    table.insert(key, Item::Value(value));
}

fn set_label(table: &mut dyn TableLike, key: &str, text: &str) {
    if text.is_empty() {
        table.remove(key);
    } else {
        table.insert(key, Item::Value(Value::String(Formatted::new(text.to_owned()))));
    }
}

fn value_of(key: &str, text: &str) -> Value {
    let string = |text: &str| Value::String(Formatted::new(text.to_owned()));
    let literal = |text: &str| text.parse::<Value>().ok().map(plain);
    match form(key) {
        Form::Text => string(text),
        Form::Literal => literal(text).unwrap_or_else(|| string(text)),
        Form::List if text.starts_with('[') => literal(text).unwrap_or_else(|| string(text)),
        Form::List => {
            let mut array = Array::new();
            for part in text.split(',').map(str::trim) {
                match part.parse::<i64>() {
                    Ok(number) => array.push(number),
                    Err(_) => array.push(part),
                }
            }
            Value::Array(array)
        }
    }
}

/// Returns `value` without the white space around it.
fn plain(mut value: Value) -> Value {
    match &mut value {
        Value::InlineTable(table) => table.fmt(),
        Value::Array(array) => array.fmt(),
        _ => {}
    }
    value.decor_mut().clear();
    value
}

/// Writes the configuration `config` as TOML text, for a host without a configuration file.
pub(crate) fn text_of(config: &super::model::HostConfig) -> Result<String, ConfigError> {
    let document = toml_edit::ser::to_document(config);
    let failed = |error: toml_edit::ser::Error| {
        ConfigError::placeless(
            "configuration".to_owned(),
            format!("the configuration cannot be written as TOML: {error}"),
            "this is a defect of Penstock, please report it".to_owned(),
        )
    };
    let document = document.map_err(failed)?;
    let mut root = Table::new();
    for (key, item) in document.iter() {
        root.insert(key, expanded(item.clone()));
    }
    Ok(DocumentMut::from(root).to_string())
}

/// Writes sections as `[tables]` and lists of objects as `[[tables]]`. Tables inside a section or
/// an object are written inline.
fn expanded(item: Item) -> Item {
    match item.into_array_of_tables() {
        Ok(tables) => Item::ArrayOfTables(tables),
        Err(item) => item.into_table().map_or_else(|item| item, Item::Table),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Tap, parse};
    use super::*;

    const TEXT: &str = r#"# my host
[host]
name = "h" # the name

# the first
[[tenant]]
name = "red" # a colour
vlans = [100, "200-210"] # two

[[port]] # a machine
name = "vm1"
tenant = "red"
vhost-user.socket = "/run/vm1.sock"
vlan = 100 # was 101

# goes with vm2
[[port]]
name = "vm2"
tenant = "red"
vhost-user = { socket = "/run/vm2.sock" }
vlan = 100
"#;

    fn port() -> Port {
        Port {
            tenant: Some("red".into()),
            vlan: Some("100".parse().unwrap()),
            slow_path: Some(super::super::SlowPath { per_second: 5, burst: 6 }),
            ..Port::new("tap1", Tap::new("tap1"))
        }
    }

    #[test]
    fn comments_survive_every_change() {
        let port = port();
        let added = Edit::AddPort(&port).apply(TEXT).unwrap();
        assert!(added.starts_with(TEXT), "{added}");
        assert!(added.contains("\n[[port]]\nname = \"tap1\"\n"), "{added}");
        assert_eq!(parse(&added, "").unwrap().ports[2], port);
        let deleted = Edit::Delete(Kind::Port, "tap1").apply(&added).unwrap();
        assert_eq!(deleted, TEXT);
        let changes = [("vlan", "205"), ("queues", "2"), ("vhost-user.socket_mode", "0660")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let set = Edit::Set(Kind::Port, "vm1", &changes).apply(TEXT).unwrap();
        let socket = "vhost-user.socket = \"/run/vm1.sock\"\n";
        let more = "vhost-user.queues = 2\nvhost-user.socket_mode = \"0660\"\n";
        let want = TEXT.replace(socket, &format!("{socket}{more}"));
        assert_eq!(set, want.replace("vlan = 100 # was 101", "vlan = 205 # was 101"));
        let inline = Edit::Set(Kind::Port, "vm2", &changes[1..2]).apply(TEXT).unwrap();
        assert!(inline.contains("{ socket = \"/run/vm2.sock\", queues = 2 }"), "{inline}");
        let gone = Edit::Delete(Kind::Port, "vm2").apply(TEXT).unwrap();
        assert!(gone.ends_with("# was 101\n") && gone.contains("# two"), "{gone}");
    }

    #[test]
    fn values_are_read_by_their_key() {
        for (key, text, want) in [
            ("tenant", "5", "\"5\""),
            ("vlan", "5", "5"),
            ("trunk", "1,5-9", "[1, \"5-9\"]"),
            ("mac", "52:54:00:00:00:01", "[\"52:54:00:00:00:01\"]"),
            ("actions", "set-vlan:5, normal", "[\"set-vlan:5\", \"normal\"]"),
            ("offloads", "{csum=true,tso=false}", "{ csum = true, tso = false }"),
            ("offloads", "off", "\"off\""),
        ] {
            assert_eq!(value_of(key, text).to_string().trim(), want, "{key}");
        }
    }

    #[test]
    fn each_table_of_an_object_is_set_as_a_table() {
        let (_, make) = super::super::SCHEMAS.iter().find(|(kind, _)| *kind == "host").unwrap();
        let schema: serde_json::Value = serde_json::from_str(&make()).unwrap();
        let is_table = |of: &serde_json::Value| {
            let name = of["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
            name.map_or(of, |name| &schema["$defs"][name])["type"] == "object"
        };
        for (kind, example) in [("Tenant", "receive"), ("Port", "mirror"), ("Rule", "match")] {
            let keys = schema["$defs"][kind]["properties"].as_object().unwrap();
            let tables = keys.iter().filter(|(_, of)| is_table(of)).map(|(key, _)| key.as_str());
            let tables: Vec<&str> = tables.collect();
            assert!(tables.contains(&example), "{kind}: {tables:?}");
            for key in tables {
                let value = value_of(key, "{ a = 1 }");
                assert!(value.is_inline_table(), "{kind}: {key} becomes {value}");
            }
        }
    }

    #[test]
    fn what_is_not_there_or_taken_is_refused() {
        let port = Port { name: "vm1".into(), ..port() };
        assert!(matches!(Edit::AddPort(&port).apply(TEXT), Err(EditError::Taken)));
        let gone = Edit::Delete(Kind::Rule, "web").apply(TEXT);
        assert!(matches!(gone, Err(EditError::NotFound("rule"))));
        let name = [("name".to_owned(), "x".to_owned())];
        assert!(matches!(Edit::Set(Kind::Port, "vm1", &name).apply(TEXT), Err(EditError::Name)));
    }

    #[test]
    fn a_configuration_without_a_file_becomes_text() {
        let config = parse(&Edit::AddPort(&port()).apply(TEXT).unwrap(), "").unwrap();
        let text = text_of(&config).unwrap();
        assert_eq!(parse(&text, "").unwrap(), config, "{text}");
    }
}
