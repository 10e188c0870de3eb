//! This module reads the objects of a configuration text one by one.
//!
//! # Problem
//!
//! The library serde stops at an object's first mistake.
//!
//! # Approach
//!
//! This module reads an object repeatedly, to report all mistakes of the object. After each
//! mistake, this module removes the wrong key from a copy of the object and reads the copy again.
//! If every removed key is unknown and does not resemble a known key, the caller continues to check
//! the object without the removed keys. The caller of this module checks whether references between
//! objects are valid. A reference to an object with mistakes is not a second mistake.
//!
//! # Cost
//!
//! Each mistake costs a copy of the object, so the time grows with the square of the number of
//! mistakes. The module therefore reports at most [`MISTAKES_MAX`] mistakes of an object.

use core::ops::Range;
use std::borrow::Cow;

use serde::de::DeserializeOwned;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::explain::{explain, is_stray, missing_key, unknown_remedy};
use crate::report::Report;

/// Maximum number of reported mistakes of an object.
const MISTAKES_MAX: usize = 100;

/// A table of the configuration text, and the table's value.
#[derive(Debug)]
pub struct Object<'a, T> {
    /// Name of the object in errors, such as `port "vm3"` or `[worker]`.
    pub label: String,
    /// Value of the object's key `name`. `None` if the object has no valid name.
    pub name: Option<String>,
    /// Parsed value of the configuration table. `None` if a key in the table is wrong, missing or
    /// misspelt.
    pub value: Option<T>,
    /// TOML table from which the value is parsed. `None` if the object is not a table.
    pub table: Option<Cow<'a, Table>>,
}

/// Reports all tables of the text that are not in `known`.
pub fn unknown_sections(root: &Table, known: &[&str], report: &mut Report<'_>) {
    for (key, _) in root.iter().filter(|(key, _)| !known.contains(key)) {
        let span = root.key(key).and_then(toml_edit::Key::span);
        let remedy = unknown_remedy(key, known, report.hint());
        report.span(span, "file", format!("unknown key `{key}`"), remedy);
    }
}

/// Reads the table `[key]`. Returns `None` if the text does not have the table.
pub fn section<'a, T: DeserializeOwned>(
    root: &'a Table,
    key: &str,
    report: &mut Report<'_>,
) -> Option<Object<'a, T>> {
    let label = format!("[{key}]");
    let table = match root.get(key)? {
        Item::Table(table) => Cow::Borrowed(table),
        item => match item.clone().into_table() {
            Ok(table) => Cow::Owned(table),
            Err(item) => {
                let problem = format!("`{key}` is not a table but {}", item.type_name());
                report.span(item.span(), &label, problem, format!("write {label}"));
                return Some(Object { label, name: None, value: None, table: None });
            }
        },
    };
    Some(object(key, label, table, report))
}

/// Reads a text that has only the keys of one object. `key` is the table's key in a file, such as
/// `port`, and `label` is the object's name in errors.
pub fn single<'a, T: DeserializeOwned>(
    root: &'a Table,
    key: &str,
    label: String,
    report: &mut Report<'_>,
) -> Object<'a, T> {
    object(key, label, Cow::Borrowed(root), report)
}

/// Reads all tables `[[key]]` of the text.
pub fn list<'a, T: DeserializeOwned>(
    root: &'a Table,
    key: &str,
    report: &mut Report<'_>,
) -> Vec<Object<'a, T>> {
    let Some(item) = root.get(key) else { return Vec::new() };
    let Item::ArrayOfTables(tables) = item else {
        let label = format!("[[{key}]]");
        let problem = format!("`{key}` is not a list of tables but {}", item.type_name());
        let remedy = format!("write {label} above the keys of each {key}");
        report.span(item.span(), &label, problem, remedy);
        return Vec::new();
    };
    let label = |at: usize, table: &Table| {
        let name = |key| table.get(key).and_then(Item::as_str);
        match (name("name"), name("mac")) {
            (Some(name), _) => format!("{key} {name:?}"),
            (None, Some(mac)) if key == "fdb" => format!("fdb {mac}"),
            _ => format!("[[{key}]] number {}", at + 1),
        }
    };
    let tables = tables.iter().enumerate();
    tables.map(|(at, table)| object(key, label(at, table), Cow::Borrowed(table), report)).collect()
}

/// Reads one object with the key `section` in the file, and reports each wrong key of the object.
fn object<'a, T: DeserializeOwned>(
    section: &str,
    label: String,
    table: Cow<'a, Table>,
    report: &mut Report<'_>,
) -> Object<'a, T> {
    let mut rest = table.as_ref().clone();
    let mut value = None;
    // This is true while all removed keys are unknown and resemble no known key. The rest is then
    // complete. If a misspelt key were removed, the rest would lack that key.
    let mut is_whole = true;
    let mut taken_out: Vec<String> = Vec::new();
    loop {
        match toml_edit::de::from_document::<T>(DocumentMut::from(rest.clone())) {
            Ok(read) => {
                value = is_whole.then_some(read);
                break;
            }
            Err(error) => {
                is_whole &= is_stray(error.message());
                // Each round removes a key or an element, so the loop ends.
                let key = error.span().and_then(|span| take_out(&mut rest, span.start));
                let ours = missing_key(error.message()).is_some_and(|missing| {
                    let inner = key.as_ref().map(|key| format!("{key}.{missing}"));
                    taken_out.contains(&missing)
                        || inner.is_some_and(|inner| taken_out.contains(&inner))
                });
                if !ours {
                    let span = error.span().or_else(|| table.span());
                    let key = key.as_deref();
                    let schema = key.and_then(|key| report.schema_of(&format!("{section}.{key}")));
                    let (problem, remedy) = explain(error.message(), key, report.hint(), schema);
                    report.span(span, &label, problem, remedy);
                }
                match key {
                    Some(key) if taken_out.len() + 1 < MISTAKES_MAX => taken_out.push(key),
                    _ => break,
                }
            }
        }
    }
    let name = table.get("name").and_then(Item::as_str).map(str::to_owned);
    Object { label, name, value, table: Some(table) }
}

/// Removes the innermost key or array element at byte `at` of the text from `table`. Returns the
/// path of the removed part, as keys with dots between them.
fn take_out(table: &mut Table, at: usize) -> Option<String> {
    let spot = table.iter().find_map(|(name, item)| {
        let on_key = holds(table.key(name).and_then(toml_edit::Key::span), at);
        let nested = match item {
            Item::Table(inner) => span_covers(inner, at),
            Item::ArrayOfTables(tables) => element_at(tables, at).is_some(),
            _ => false,
        };
        (on_key || nested || holds(item.span(), at)).then(|| (name.to_owned(), on_key))
    });
    let (name, on_key) = spot?;
    let inner = match table.get_mut(&name) {
        Some(Item::Table(inner)) if !on_key => take_out(inner, at),
        Some(Item::ArrayOfTables(tables)) if !on_key => element_at(tables, at).map(|place| {
            let inner = tables.get_mut(place).and_then(|inner| take_out(inner, at));
            inner.unwrap_or_else(|| {
                tables.remove(place);
                String::new()
            })
        }),
        Some(Item::Value(value)) if !on_key => take_out_of_value(value, at),
        _ => None,
    };
    match inner {
        Some(inner) if inner.is_empty() => Some(name),
        Some(inner) => Some(format!("{name}.{inner}")),
        None => table.remove(&name).map(|_| name),
    }
}

/// Removes the key or array element at byte `at` of the text from `value`, and returns the removed
/// key. An array element has no name in the path.
fn take_out_of_value(value: &mut Value, at: usize) -> Option<String> {
    match value {
        Value::Array(array) => {
            let place = array.iter().position(|element| holds(element.span(), at))?;
            let inner = array.get_mut(place).and_then(|inner| take_out_of_value(inner, at));
            inner.or_else(|| {
                array.remove(place);
                Some(String::new())
            })
        }
        Value::InlineTable(table) => {
            let name = table.iter().find_map(|(name, value)| {
                let key = table.key(name).and_then(toml_edit::Key::span);
                (holds(key, at) || holds(value.span(), at)).then(|| name.to_owned())
            })?;
            table.remove(&name).map(|_| name)
        }
        _ => None,
    }
}

fn holds(span: Option<Range<usize>>, at: usize) -> bool {
    span.is_some_and(|span| span.contains(&at))
}

/// Returns the index of the table that has byte `at` of the text in its header, keys or values.
fn element_at(tables: &ArrayOfTables, at: usize) -> Option<usize> {
    tables.iter().position(|inner| holds(inner.span(), at) || span_covers(inner, at))
}

/// Returns true if byte `at` of the text is in a key or value of a table. A table's own span covers
/// only its header.
fn span_covers(table: &Table, at: usize) -> bool {
    table.iter().any(|(name, item)| {
        holds(table.key(name).and_then(toml_edit::Key::span), at) || holds(item.span(), at)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    #[test]
    fn an_object_with_very_many_mistakes_is_given_up() {
        let keys: String = (0..3 * MISTAKES_MAX).map(|n| format!("key{n} = {n}\n")).collect();
        let text = format!("[a]\n{keys}");
        let read = |root: &Table, report: &mut Report<'_>| {
            section::<Nothing>(root, "a", report).and_then(|object| object.value)
        };
        let errors = crate::read(&text, "f", read).unwrap_err().0;
        assert_eq!((errors.len(), errors[0].line), (MISTAKES_MAX, 2));
    }
}
