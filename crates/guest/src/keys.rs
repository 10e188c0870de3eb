//! Parser of `key=value,key=value,flag` lists on command lines.

use std::fmt::Display;
use std::str::FromStr;

/// Reason for which a list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A required key is missing.
    #[error("`{text}`: {key} is missing")]
    Missing {
        /// The whole list.
        text: String,
        key: &'static str,
    },
    /// A value does not parse.
    #[error("`{text}`: {key}={value}: {reason}")]
    Value {
        /// The whole list.
        text: String,
        key: String,
        value: String,
        reason: String,
    },
    /// A key is unknown or given twice.
    #[error("`{text}`: no key is called {key}")]
    Unknown {
        /// The whole list.
        text: String,
        key: String,
    },
    /// Two keys exclude each other.
    #[error("`{text}`: {a} and {b} exclude each other")]
    Conflict {
        /// The whole list.
        text: String,
        a: &'static str,
        b: &'static str,
    },
}

/// The entries of a list that were not yet taken.
#[derive(Debug)]
pub(crate) struct Keys {
    text: String,
    entries: Vec<(String, String)>,
}

impl Keys {
    /// Splits `text`. Only `flags` may be given without a value.
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

    /// The value of `key`, if it is given.
    pub fn optional<T: FromStr<Err: Display>>(&mut self, key: &str) -> Result<Option<T>, KeyError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|e: T::Err| KeyError::Value {
            text: self.text.clone(),
            key: key.to_owned(),
            value,
            reason: e.to_string(),
        })
    }

    /// The value of a required `key`.
    pub fn required<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Result<T, KeyError> {
        let missing = KeyError::Missing { text: self.text.clone(), key };
        self.optional(key)?.ok_or(missing)
    }

    /// Whether the flag is given.
    pub fn flag(&mut self, key: &str) -> bool {
        self.take(key).is_some()
    }

    /// Refuses a list with entries that were not taken.
    pub fn finish(mut self) -> Result<(), KeyError> {
        match self.entries.pop() {
            None => Ok(()),
            Some((key, _)) => Err(KeyError::Unknown { text: self.text, key }),
        }
    }
}
