//! Labels: keys and values with which other programs identify an object.
//!
//! # Problem
//!
//! A name of Penstock is seldom the identity of a VM in the program that manages it. libvirt and
//! Nova know a VM by its UUID, Neutron and OVN know a NIC by its `iface-id`, and container engines
//! know a container by an ID of 64 hexadecimal characters.
//!
//! # Approach
//!
//! An object has labels such as `{ vm-uuid = "…", iface-id = "…" }`. Penstock gives no key a
//! meaning. A *selector* is a label `KEY=VALUE`, or a key alone for any value.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// Maximum number of labels of an object.
pub const LABELS_MAX: usize = 32;
/// Longest key in bytes.
pub const KEY_MAX: usize = 63;
/// Longest value in bytes.
pub const VALUE_MAX: usize = 255;

/// Labels of an object, by key. A key has 1 to 63 characters of `a-z A-Z 0-9 . _ / -`. A value has
/// at most 255 bytes of printable text. An object has at most 32 labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Whether the object has no label.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Values by key.
    #[must_use]
    pub const fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Makes labels of pairs that were checked before.
    #[must_use]
    pub const fn of(labels: BTreeMap<String, String>) -> Self {
        Self(labels)
    }
}

/// Whether the selector `text` selects an object with these labels: `KEY=VALUE` for one value, or
/// `KEY` for any value.
#[must_use]
pub fn selects(text: &str, labels: &BTreeMap<String, String>) -> bool {
    match text.split_once('=') {
        Some((key, value)) => labels.get(key).is_some_and(|found| found == value),
        None => labels.contains_key(text),
    }
}

/// Returns a selector that a user wrote.
///
/// # Errors
/// Returns the problem and the remedy if no object can have such a label.
pub fn selector(text: &str) -> Result<String, String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    problem(key, value).map_or_else(|| Ok(text.to_owned()), Err)
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if n == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Returns the problem and the remedy of a key or value, if it is not allowed.
fn problem(key: &str, value: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
    if key.is_empty() || key.len() > KEY_MAX || !key.chars().all(allowed) {
        return Some(format!(
            "the label key {key:?} is not allowed; write 1 to {KEY_MAX} characters of \
             a-z A-Z 0-9 . _ / -"
        ));
    }
    if value.len() > VALUE_MAX {
        let len = value.len();
        return Some(format!(
            "the label {key} has a value of {len} bytes; write at most {VALUE_MAX}"
        ));
    }
    value.chars().any(|c| c.is_control() || rearranges(c)).then(|| {
        format!("the label {key} has a control character in its value; write printable text")
    })
}

/// Whether a character changes the order or the lines of the text after it, so that a list on a
/// terminal shows something else than it has.
const fn rearranges(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = BTreeMap<String, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of labels such as { iface-id = \"...\" }")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if let Some(problem) = problem(&key, &value) {
                        return Err(serde::de::Error::custom(problem));
                    }
                    labels.insert(key, value);
                }
                Ok(labels)
            }
        }
        let labels = deserializer.deserialize_map(Visitor)?;
        if labels.len() > LABELS_MAX {
            let number = labels.len();
            return Err(serde::de::Error::custom(format!(
                "{number} labels are too many; write at most {LABELS_MAX}"
            )));
        }
        Ok(Self(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Labels, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_label_has_a_plain_key_and_a_printable_value() {
        let container = "c".repeat(64);
        let labels = read(&format!("iface-id = \"a b\"\n\"k8s/pod\" = \"{container}\"")).unwrap();
        assert_eq!(labels.to_string(), format!("iface-id=a b k8s/pod={container}"));
        for (text, problem) in [
            ("\"a b\" = \"x\"".to_owned(), "the label key \"a b\" is not allowed"),
            ("\"\" = \"x\"".to_owned(), "the label key \"\" is not allowed"),
            (format!("{} = \"x\"", "k".repeat(64)), "write 1 to 63 characters"),
            (format!("k = \"{}\"", "v".repeat(256)), "value of 256 bytes; write at most 255"),
            ("k = \"a\\nb\"".to_owned(), "control character"),
            ("k = \"a\\u202Eb\"".to_owned(), "control character"),
            ("k = 1".to_owned(), "string"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
        let many: String = (0..33).map(|n| format!("k{n} = \"\"\n")).collect();
        assert!(read(&many).unwrap_err().contains("33 labels are too many"));
    }

    #[test]
    fn a_selector_names_a_value_or_only_a_key() {
        let labels = read("a = \"1\"\nb = \"x=y\"").unwrap();
        let selected = |text: &str| selects(text, labels.as_map());
        assert!(selected("a") && selected("a=1") && selected("b=x=y"));
        assert!(!selected("c") && !selected("a=2") && !selected("a=") && !selected("b=x"));
    }

    #[test]
    fn a_selector_that_no_label_can_match_is_refused() {
        for text in ["a", "a=", "k8s.io/name=x=y", "a=x, y"] {
            assert_eq!(selector(text).as_deref(), Ok(text));
        }
        let long = format!("a={}", "v".repeat(256));
        for (text, problem) in [
            ("", "the label key \"\" is not allowed"),
            ("=x", "the label key \"\" is not allowed"),
            ("a b=x", "the label key \"a b\" is not allowed"),
            (long.as_str(), "value of 256 bytes"),
        ] {
            let error = selector(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
