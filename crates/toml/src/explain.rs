//! This module converts error messages of serde to a problem and a remedy.

use serde_json::Value;

use crate::report::Hint;

/// Names of number types in serde's messages.
const NUMBERS: [&str; 8] = ["u8", "u16", "u32", "u64", "usize", "i32", "i64", "f64"];

/// Returns true if serde's message is about an unknown key that does not resemble a known key.
pub(crate) fn is_stray(message: &str) -> bool {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((wrong, known)) = quoted.split_first() else { return false };
    message.starts_with("unknown field") && *wrong != "type" && meant(wrong, known).is_none()
}

/// Returns the missing key if serde's message is about a missing key.
pub(crate) fn missing_key(message: &str) -> Option<String> {
    let key = message.strip_prefix("missing field `")?.split('`').next()?;
    Some(key.to_owned())
}

/// Splits serde's message about a value of a wrong type or range. Returns the value as text, and
/// serde's name of the form that the value should have.
fn mismatch(message: &str) -> Option<(&str, &str)> {
    let (problem, expected) = message.rsplit_once(", expected ")?;
    let wrong = |kind: &str| problem.strip_prefix(kind);
    let found = wrong("invalid type: ").or_else(|| wrong("invalid value: "))?;
    let value = match found {
        "sequence" => "a list",
        "map" => "a table",
        // A string may contain backticks, and all other values are between backticks.
        _ => found.strip_prefix("string ").or_else(|| found.split('`').nth(1)).unwrap_or(found),
    };
    Some((value, expected))
}

/// Returns the remedy for a value that should be a number of the type `expected`. The range is from
/// the key's schema. Without a schema, the range is that of the type.
fn number(expected: &str, schema: Option<&Value>) -> String {
    let bound = |key: &str| schema.and_then(|schema| schema.get(key)).map(Value::to_string);
    let least = bound("minimum").or_else(|| expected.starts_with('u').then(|| "0".to_owned()));
    let most = bound("maximum").or_else(|| match expected {
        "u8" => Some(u8::MAX.to_string()),
        "u16" => Some(u16::MAX.to_string()),
        "u32" => Some(u32::MAX.to_string()),
        _ => None,
    });
    let kind = if expected.starts_with('f') { "number" } else { "whole number" };
    match (least, most) {
        (Some(least), Some(most)) => format!("write a {kind} from {least} to {most}"),
        (Some(least), None) => format!("write a {kind}, {least} or above"),
        _ => format!("write a {kind}"),
    }
}

/// Converts an error message of serde to a problem and a remedy. The argument `key` is the
/// configuration key with the mistake, and `schema` is the key's schema.
pub(crate) fn explain(
    message: &str,
    key: Option<&str>,
    hint: Hint,
    schema: Option<&Value>,
) -> (String, String) {
    let at = |problem: &str| match key {
        Some(key) => format!("`{key}`: {problem}"),
        None => problem.to_owned(),
    };
    if let Some(missing) = missing_key(message) {
        return (format!("`{missing}` is missing"), format!("add `{missing} = ...`"));
    }
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") {
        let (wrong, known) = quoted.split_first().unwrap_or((&"", &[]));
        return (format!("unknown key `{wrong}`"), unknown_remedy(wrong, known, hint));
    }
    if message.starts_with("unknown variant") {
        let (wrong, known) = quoted.split_first().unwrap_or((&"", &[]));
        return (at(&format!("\"{wrong}\" is unknown")), format!("write {}", known.join(", ")));
    }
    if let Some((value, expected)) = mismatch(message) {
        let (wrong, remedy) = match expected {
            _ if NUMBERS.contains(&expected) => {
                let wrong = if message.starts_with("invalid value") {
                    "out of range"
                } else if expected.starts_with('f') {
                    "not a number"
                } else {
                    "not a whole number"
                };
                (wrong, number(expected, schema))
            }
            "a boolean" => ("not valid", "write true or false".to_owned()),
            "a sequence" => ("not valid", "write a list in brackets".to_owned()),
            "a map" => ("not valid", "write a table in braces".to_owned()),
            _ => ("not valid", format!("write {expected}")),
        };
        return (at(&format!("{value} is {wrong}")), remedy);
    }
    if let Some((problem, remedy)) = message.split_once("; ") {
        return (at(problem), remedy.to_owned());
    }
    if message == "wanted string or table" {
        return (at("not a text"), "write a text in quotes, as the reference lists it".to_owned());
    }
    let example = match message {
        "invalid IP address syntax" => Some("write an address, as in \"10.0.0.1\""),
        "invalid socket address syntax" => Some("write address and port, as in \"127.0.0.1:9753\""),
        _ => None,
    };
    if let Some(example) = example {
        return (at(message), example.to_owned());
    }
    match message.rsplit_once(", expected ") {
        Some((problem, expected)) => (at(problem), format!("write {expected}")),
        None => (at(message), "see docs/reference/configuration.md".to_owned()),
    }
}

pub(crate) fn unknown_remedy(wrong: &str, known: &[&str], hint: Hint) -> String {
    if let Some(remedy) = hint(wrong, known) {
        return remedy;
    }
    match meant(wrong, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// Returns the known key that an unknown key probably misspells. Returns `None` if no key is
/// similar.
fn meant<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let close = known.iter().copied().filter(|name| distance(name, wrong) <= 2);
    close.min_by_key(|name| distance(name, wrong))
}

/// Returns the number of edits (insert, delete, replace) between two words. The edit distance
/// compares only the first 64 characters of each word.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
