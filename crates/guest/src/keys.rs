//! Parses lists such as `key=value,key=value,flag` on command lines.

use std::fmt::Display;
use std::str::FromStr;

/// Reason why a `key=value` list is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The list does not contain a required key.
    #[error("`{text}`: {key} is missing")]
    Missing {
        /// Whole text of the `key=value` list.
        text: String,
        key: &'static str,
    },
    /// The value of a key cannot be parsed.
    #[error("`{text}`: {key}={value}: {reason}")]
    Value { text: String, key: String, value: String, reason: String },
    /// A key of the list is unknown or occurs twice.
    #[error("`{text}`: unknown key {key}")]
    Unknown { text: String, key: String },
    /// Two keys of the list exclude each other.
    #[error("`{text}`: {a} and {b} exclude each other")]
    Conflict { text: String, a: &'static str, b: &'static str },
}

/// Entries of a parsed list. Each getter method of [`Keys`] removes the entry that the method
/// returns.
#[derive(Debug)]
pub(crate) struct Keys {
    text: String,
    entries: Vec<(String, String)>,
}

impl Keys {
    /// Splits the comma-separated list `text` into its `key=value` entries. Only the keys in
    /// `flags` may have no value.
    pub fn parse(text: &str, flags: &[&str]) -> Result<Self, KeyError> {
        let mut entries = Vec::new();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                Some((key, value)) => entries.push((key.to_owned(), value.to_owned())),
                None if flags.contains(&part) => entries.push((part.to_owned(), String::new())),
                None => {
                    return Err(KeyError::Unknown { text: text.to_owned(), key: part.to_owned() });
                }
            }
        }
        Ok(Self { text: text.to_owned(), entries })
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.entries.iter().position(|(k, _)| k == key)?;
        Some(self.entries.remove(at).1)
    }

    /// Returns the value of `key`, or `None` if the list does not contain that key.
    pub fn optional<T: FromStr<Err: Display>>(&mut self, key: &str) -> Result<Option<T>, KeyError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|e: T::Err| KeyError::Value {
            text: self.text.clone(),
            key: key.to_owned(),
            value,
            reason: e.to_string(),
        })
    }

    /// Returns the value of `key`, or an error if the list does not contain that key.
    pub fn required<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Result<T, KeyError> {
        let missing = KeyError::Missing { text: self.text.clone(), key };
        self.optional(key)?.ok_or(missing)
    }

    pub fn flag(&mut self, key: &str) -> bool {
        self.take(key).is_some()
    }

    /// Returns an error if the `key=value` list contains an unknown key, which is a key that no
    /// getter method has read.
    pub fn finish(mut self) -> Result<(), KeyError> {
        match self.entries.pop() {
            None => Ok(()),
            Some((key, _)) => Err(KeyError::Unknown { text: self.text, key }),
        }
    }
}
