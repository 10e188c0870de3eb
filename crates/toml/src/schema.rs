//! The JSON schemas of all configuration files share the parts in this module.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Name of a kind of configuration file, and the function that returns the schema of this kind.
pub type FileSchema = (&'static str, fn() -> String);

/// Regular expression for an IP address with a port, such as `127.0.0.1:9753`.
pub const ADDRESS: &str = "^([0-9.]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$";

/// Schemas of the tables of a configuration file that has no single Rust type.
#[derive(Debug, Default)]
pub struct Tables(SchemaGenerator);

impl Tables {
    /// Returns the schema of a single table `[table]`.
    pub fn one<T: JsonSchema>(&mut self) -> Value {
        self.0.subschema_for::<T>().into()
    }

    /// Returns the schema of an array of tables `[[table]]`.
    pub fn list<T: JsonSchema>(&mut self) -> Value {
        json!({ "type": "array", "items": self.one::<T>() })
    }

    /// Returns the file's schema, with the file's tables, the required tables, and further rules.
    pub fn file(
        mut self,
        description: &str,
        tables: Value,
        required: &[&str],
        rules: Value,
    ) -> String {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "description": description,
            "type": "object",
            "properties": tables,
            "required": required,
            "additionalProperties": false,
            "$defs": self.0.take_definitions(true)
        });
        written(schema, rules)
    }
}

/// Adds `rules` to a schema and returns the schema's text.
pub fn written(mut schema: Value, rules: Value) -> String {
    plain(&mut schema);
    merge(&mut schema, rules);
    // A `Schema` writes its keys in an order that people can read easily.
    let schema = schemars::Schema::try_from(schema).unwrap_or_default();
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

/// Simplifies a schema. JSON Schema does not have formats such as `uint32` and `double`, so these
/// formats become ranges. TOML has no null, so an optional key has only its own type.
fn plain(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if let Some(Value::Array(types)) = keys.get_mut("type") {
                types.retain(|name| name != "null");
                match core::mem::take(types).as_slice() {
                    [only] => keys["type"] = only.clone(),
                    several => one_type_each(keys, several),
                }
            }
            if let Some(Value::Array(some)) = keys.get_mut("anyOf") {
                some.retain(|one| one["type"] != "null");
                if let [Value::Object(only)] = some.as_slice() {
                    let only = only.clone();
                    keys.remove("anyOf");
                    keys.extend(only);
                }
            }
            let format = keys.get("format").and_then(Value::as_str).map(str::to_owned);
            if let Some(format) = format.filter(|it| it.starts_with("uint") || it == "double") {
                keys.remove("format");
                let most = match format.as_str() {
                    "uint8" => Some(u32::from(u8::MAX)),
                    "uint16" => Some(u32::from(u16::MAX)),
                    "uint32" => Some(u32::MAX),
                    _ => None,
                };
                if let Some(most) = most {
                    keys.entry("maximum").or_insert(most.into());
                }
            }
            keys.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// Replaces a list of types by `anyOf` with one schema for each type. The schema of each type gets
/// only the keywords that apply to the type.
fn one_type_each(keys: &mut Map<String, Value>, types: &[Value]) {
    keys.remove("type");
    let about = [("pattern", "string"), ("minimum", "integer"), ("maximum", "integer")];
    let about = about.map(|(key, name)| (key, name, keys.remove(key)));
    let one = |of: &Value| {
        let mut one = json!({ "type": of });
        for (key, name, value) in &about {
            if let Some(value) = value.as_ref().filter(|_| of == name) {
                one[key] = value.clone();
            }
        }
        one
    };
    keys.insert("anyOf".to_owned(), types.iter().map(one).collect());
}

/// Returns the schema with the limits of the number at `path` below `node`. `path` contains only
/// keys: an element of a list has the list's path. `root` is the schema of the whole file. Returns
/// `None` if the schema has no limits for the path.
pub(crate) fn number_at<'a>(root: &'a Value, node: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let own = match path {
        [key, rest @ ..] => {
            let child = node.get("properties").and_then(|keys| keys.get(*key));
            child.and_then(|child| number_at(root, child, rest))
        }
        [] => Some(node).filter(|it| it.get("minimum").or_else(|| it.get("maximum")).is_some()),
    };
    let named = node.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix('#'));
    let forms = node.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    let others = named.and_then(|name| root.pointer(name)).into_iter().chain(node.get("items"));
    own.or_else(|| others.chain(forms).find_map(|other| number_at(root, other, path)))
}

/// Adds the JSON value `more` to `schema`. JSON objects are merged key by key.
pub fn merge(schema: &mut Value, more: Value) {
    match (schema, more) {
        (Value::Object(keys), Value::Object(more)) => {
            for (key, value) in more {
                merge(keys.entry(key).or_insert(Value::Null), value);
            }
        }
        (schema, more) => *schema = more,
    }
}

/// Returns the schema of a table with all keys in `keys`.
pub fn has(keys: &[&str]) -> Value {
    let any: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), true.into())).collect();
    need(keys, any.into())
}

/// Returns the schema of a table with all keys in `keys`. `properties` contains the schemas of some
/// keys. The validator `ajv` requires that the properties name each required key.
pub fn need(keys: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "properties": properties, "required": keys })
}
