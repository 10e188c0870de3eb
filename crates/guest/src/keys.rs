//! `key=value,key=value,flag` lists of command lines.

use std::fmt::Display;
use std::str::FromStr;

/// Why a list was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A key that must be there is not.
    #[error("`{text}`: {key} is missing")]
    Missing {
        /// The whole list.
        text: String,
        /// The key.
        key: &'static str,
    },
    /// A value that does not parse.
    #[error("`{text}`: {key}={value}: {reason}")]
    Value {
        /// The whole list.
        text: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why not.
        reason: String,
    },
    /// A key nobody knows, or one given twice.
    #[error("`{text}`: no key is called {key}")]
    Unknown {
        /// The whole list.
        text: String,
        /// The key.
        key: String,
    },
    /// Two keys that cannot both be there.
    #[error("`{text}`: {a} and {b} exclude each other")]
    Conflict {
        /// The whole list.
        text: String,
        /// One key.
        a: &'static str,
        /// The other.
        b: &'static str,
    },
}

/// A list being taken apart.
#[derive(Debug)]
pub(crate) struct Keys {
    text: String,
    entries: Vec<(String, String)>,
}

impl Keys {
    /// Splits `text`; only `flags` may stand without a value.
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

    /// The value of `key`, if it is there.
    pub fn optional<T: FromStr<Err: Display>>(&mut self, key: &str) -> Result<Option<T>, KeyError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|e: T::Err| KeyError::Value {
            text: self.text.clone(),
            key: key.to_owned(),
            value,
            reason: e.to_string(),
        })
    }

    /// The value of `key`, which must be there.
    pub fn required<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Result<T, KeyError> {
        let missing = KeyError::Missing { text: self.text.clone(), key };
        self.optional(key)?.ok_or(missing)
    }

    /// Whether the flag is there.
    pub fn flag(&mut self, key: &str) -> bool {
        self.take(key).is_some()
    }

    /// Refuses what nobody asked for.
    pub fn finish(mut self) -> Result<(), KeyError> {
        match self.entries.pop() {
            None => Ok(()),
            Some((key, _)) => Err(KeyError::Unknown { text: self.text, key }),
        }
    }
}
