//! A validator for the part of JSON Schema 2020-12 that the schemas in `docs/reference/` use.
//!
//! # Approach
//!
//! The validator is as strict as the validator `ajv` in its strict mode. The validator panics at an
//! unknown keyword or format, so that a misspelt keyword is an error and is not ignored. The
//! function [`loose`] finds other mistakes in schemas that `ajv` refuses in strict mode. The script
//! `scripts/formats.sh` runs `ajv` itself.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::{Map, Value};

/// Keywords of a schema that do not decide whether a value is valid.
const NOTES: [&str; 5] = ["$schema", "$defs", "title", "description", "default"];

/// Returns true if `value` is valid by `schema`, which is a part of the schema `root`.
pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(schema) = schema else {
        return schema.as_bool().expect("a schema is an object or a boolean");
    };
    let noted = |key: &str| NOTES.contains(&key);
    schema.iter().filter(|(key, _)| !noted(key)).all(|(key, rule)| {
        let at = At { root, schema, rule };
        match key.as_str() {
            "$ref" => is_valid(root, at.referred(), value),
            "enum" => rule.as_array().expect("a list").contains(value),
            "const" => rule == value,
            "type" => match rule {
                Value::String(name) => is_of(name, value),
                names => {
                    at.list(names).iter().any(|name| is_of(name.as_str().expect("a name"), value))
                }
            },
            "not" => !is_valid(root, rule, value),
            "allOf" => at.count(value) == at.list(rule).len(),
            "anyOf" => at.count(value) > 0,
            "oneOf" => at.count(value) == 1,
            // `then` and `else` are evaluated together with their `if`.
            "then" | "else" => schema.contains_key("if"),
            "if" => {
                let next = if is_valid(root, rule, value) { "then" } else { "else" };
                schema.get(next).is_none_or(|next| is_valid(root, next, value))
            }
            "pattern" | "minLength" | "maxLength" => {
                value.as_str().is_none_or(|text| at.text_fits(key, text))
            }
            "minimum" | "maximum" | "exclusiveMinimum" => {
                let limit = rule.as_f64().expect("a number");
                value.as_f64().is_none_or(|it| match key.as_str() {
                    "minimum" => it >= limit,
                    "maximum" => it <= limit,
                    _ => it > limit,
                })
            }
            "items" | "minItems" | "maxItems" | "uniqueItems" => {
                value.as_array().is_none_or(|items| at.items_fit(key, items))
            }
            _ => at.object_fits(key, value),
        }
    })
}

/// Returns the type of values to which a keyword of a schema applies. Returns `None` if the keyword
/// applies to values of all types. Panics if the keyword of the schema is unknown.
fn about(keyword: &str) -> Option<&'static str> {
    Some(match keyword {
        "pattern" | "minLength" | "maxLength" => "string",
        "minimum" | "maximum" | "exclusiveMinimum" => "number",
        "items" | "minItems" | "maxItems" | "uniqueItems" => "array",
        "properties"
        | "patternProperties"
        | "additionalProperties"
        | "required"
        | "dependentRequired" => "object",
        "$ref" | "enum" | "const" | "type" | "not" | "allOf" | "anyOf" | "oneOf" | "if"
        | "then" | "else" => return None,
        note if NOTES.contains(&note) => return None,
        other => panic!("keyword {other:?}"),
    })
}

/// Types and keys that a schema and its enclosing schemas declare for the same value.
#[derive(Clone, Debug, Default)]
struct Known {
    types: Vec<String>,
    keys: BTreeSet<String>,
}

/// Lists the paths of the places in a schema that `ajv` refuses in strict mode. The function
/// `loose` finds the following mistakes in a schema:
///
/// - A keyword applies to one type, but the schema does not declare this `type`.
/// - A `type` lists several types.
/// - A key in `required` is not in `properties`.
/// - A schema has an `if` without `then` and `else`, or a `then` or `else` without `if`.
pub fn loose(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    look(schema, "#", Known::default(), &mut found);
    found
}

/// Returns the keys of all tables of the file format that `schema` describes.
#[must_use]
pub fn keys(schema: &Value) -> Vec<String> {
    let tables = schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values());
    let tables = [schema].into_iter().chain(tables);
    let keys = tables.filter_map(|table| table["properties"].as_object());
    keys.flat_map(|keys| keys.keys().cloned()).collect()
}

/// Returns the keys of a file format that the format's Markdown page lacks. The Markdown page must
/// name each key in a code span, alone or together with the key's table.
#[must_use]
pub fn undocumented(schema: &Value, page: &str) -> Vec<String> {
    let code: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named =
        |key: &str| code.iter().any(|code| code.split(|c| !is_word(c)).any(|word| word == key));
    keys(schema).into_iter().filter(|key| !named(key)).collect()
}

/// Compares a schema with the program that reads the file. Each text in `right` is appended to
/// `base`, and both schema and program must accept the combined text. Each text in `wrong` is
/// appended to `base`, and both schema and program must refuse the combined text. The function
/// `refuses` returns the error with which the program refuses a text.
///
/// # Panics
/// Panics if the schema and the program disagree. The panic message lists all texts about which the
/// schema and the program disagree.
pub fn compare(
    schema: &Value,
    base: &str,
    right: &[&str],
    wrong: &[&str],
    refuses: impl Fn(&str) -> Option<String>,
) {
    let mut differ = Vec::new();
    let right = right.iter().map(|more| (true, more));
    for (is_right, more) in right.chain(wrong.iter().map(|more| (false, more))) {
        let text = format!("{base}{more}\n");
        let said = refuses(&text);
        let file: Value = toml_edit::de::from_str(&text).expect("TOML");
        let passes = is_valid(schema, schema, &file);
        // An error must have a text.
        let agrees = if is_right {
            said.is_none() && passes
        } else {
            said.as_deref().is_some_and(|said| !said.is_empty()) && !passes
        };
        if !agrees {
            differ.push(format!("right: {is_right}, passes: {passes}, {said:?}:\n{text}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

fn look(schema: &Value, at: &str, mut known: Known, found: &mut Vec<String>) {
    let Value::Object(keys) = schema else { return };
    match keys.get("type") {
        Some(Value::String(name)) => known.types = vec![name.clone()],
        Some(_) => found.push(format!("{at}: several types")),
        None => {}
    }
    if let Some(Value::Object(properties)) = keys.get("properties") {
        known.keys.extend(properties.keys().cloned());
    }
    for keyword in keys.keys() {
        let Some(about) = about(keyword) else { continue };
        let is = |it: &String| it == about || about == "number" && it == "integer";
        if !known.types.iter().any(is) {
            found.push(format!("{at}: {keyword} without \"type\": \"{about}\""));
        }
    }
    for key in keys.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !key.as_str().is_some_and(|key| known.keys.contains(key)) {
            found.push(format!("{at}: the required key {key} is not among the properties"));
        }
    }
    let has = |key: &str| keys.contains_key(key);
    if has("if") != (has("then") || has("else")) {
        found.push(format!("{at}: `if` needs `then` and `else`, and `then` and `else` need `if`"));
    }
    for (keyword, rule) in keys {
        let at = format!("{at}/{keyword}");
        match (keyword.as_str(), rule) {
            ("not" | "if" | "then" | "else", rule) => look(rule, &at, known.clone(), found),
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                list.iter().for_each(|rule| look(rule, &at, known.clone(), found));
            }
            ("items" | "additionalProperties", rule) => look(rule, &at, Known::default(), found),
            ("properties" | "patternProperties" | "$defs", Value::Object(rules)) => {
                for (key, rule) in rules {
                    look(rule, &format!("{at}/{key}"), Known::default(), found);
                }
            }
            _ => {}
        }
    }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other:?}"),
    }
}

/// A keyword's value in a schema, with the location of the keyword.
struct At<'a> {
    root: &'a Value,
    schema: &'a Map<String, Value>,
    rule: &'a Value,
}

impl<'a> At<'a> {
    fn list(&self, rule: &'a Value) -> &'a [Value] {
        rule.as_array().expect("a list")
    }

    fn referred(&self) -> &'a Value {
        let path = self.rule.as_str().and_then(|text| text.strip_prefix('#')).expect("in here");
        self.root.pointer(path).expect("it is there")
    }

    /// Returns the number of schemas in the keyword's list that accept `value`.
    fn count(&self, value: &Value) -> usize {
        self.list(self.rule).iter().filter(|one| is_valid(self.root, one, value)).count()
    }

    fn text_fits(&self, key: &str, text: &str) -> bool {
        let length = || usize::try_from(self.rule.as_u64().expect("a length")).expect("it fits");
        match key {
            "minLength" => text.chars().count() >= length(),
            "maxLength" => text.chars().count() <= length(),
            _ => Regex::new(self.rule.as_str().expect("text")).expect("a pattern").is_match(text),
        }
    }

    fn items_fit(&self, key: &str, items: &[Value]) -> bool {
        let length = || usize::try_from(self.rule.as_u64().expect("a length")).expect("it fits");
        match key {
            "minItems" => items.len() >= length(),
            "maxItems" => items.len() <= length(),
            "uniqueItems" => (1..items.len()).all(|at| !items[..at].contains(&items[at])),
            _ => items.iter().all(|item| is_valid(self.root, self.rule, item)),
        }
    }

    fn object_fits(&self, key: &str, value: &Value) -> bool {
        let known = ["properties", "patternProperties", "additionalProperties"];
        let needs = ["required", "dependentRequired"];
        assert!(known.contains(&key) || needs.contains(&key), "keyword {key:?}");
        let Some(keys) = value.as_object() else { return true };
        let has_all = |names: &Value| {
            let mut names = names.as_array().expect("a list").iter();
            names.all(|name| keys.contains_key(name.as_str().expect("a name")))
        };
        let rules = || self.rule.as_object().expect("an object").iter();
        match key {
            "required" => has_all(self.rule),
            "dependentRequired" => {
                rules().all(|(key, names)| !keys.contains_key(key) || has_all(names))
            }
            "properties" => rules().all(|(key, rule)| {
                keys.get(key).is_none_or(|value| is_valid(self.root, rule, value))
            }),
            "patternProperties" => rules().all(|(pattern, rule)| {
                let pattern = Regex::new(pattern).expect("a pattern");
                let mut meant = keys.iter().filter(|(key, _)| pattern.is_match(key));
                meant.all(|(_, value)| is_valid(self.root, rule, value))
            }),
            _ => keys
                .iter()
                .filter(|(key, _)| !self.is_listed(key))
                .all(|(_, value)| is_valid(self.root, self.rule, value)),
        }
    }

    /// Returns true if `properties` or `patternProperties` of the same schema apply to the key
    /// `key`.
    fn is_listed(&self, key: &str) -> bool {
        let is_in = |name: &str, fits: &dyn Fn(&str) -> bool| {
            let rules = self.schema.get(name).and_then(Value::as_object);
            rules.is_some_and(|rules| rules.keys().any(|rule| fits(rule)))
        };
        is_in("properties", &|name| name == key)
            || is_in("patternProperties", &|rule| {
                Regex::new(rule).expect("a pattern").is_match(key)
            })
    }
}
