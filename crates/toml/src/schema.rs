//! Parts that the schemas of all files are made of.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// A kind of file by name, and the function that returns its schema.
pub type FileSchema = (&'static str, fn() -> String);

/// An address and a port.
pub const ADDRESS: &str = "^([0-9.]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$";

/// The tables of a file that no type of ours is whole.
#[derive(Debug, Default)]
pub struct Tables(SchemaGenerator);

impl Tables {
    /// `[table]`.
    pub fn one<T: JsonSchema>(&mut self) -> Value {
        self.0.subschema_for::<T>().into()
    }

    /// `[[table]]`.
    pub fn list<T: JsonSchema>(&mut self) -> Value {
        json!({ "type": "array", "items": self.one::<T>() })
    }

    /// The file's schema: its tables, those that it must have, and rules besides.
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

/// The text of a schema with rules besides.
pub fn written(mut schema: Value, rules: Value) -> String {
    plain(&mut schema);
    merge(&mut schema, rules);
    // As a schema again, which is written in the order that people read.
    let schema = schemars::Schema::try_from(schema).unwrap_or_default();
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

/// Makes the schema plainer. Formats such as `uint32` and `double` are none of JSON Schema's: what
/// they say becomes a range. TOML has no null: a key that may be left out has one type.
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

/// A value of several types, each by itself with the keywords about it.
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

/// Adds `more` to `schema`, objects key by key.
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

/// A table with all of these keys.
pub fn has(keys: &[&str]) -> Value {
    let any: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), true.into())).collect();
    need(keys, any.into())
}

/// A table with all of these keys, and those of `properties` as they say. `ajv` wants a key that is
/// required named among the properties.
pub fn need(keys: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "properties": properties, "required": keys })
}
