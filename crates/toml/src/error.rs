//! What is wrong with a configuration: where, with which object, and what to do about it.

use core::fmt;

use serde::Serialize;

/// One mistake. `line` and `column` count from 1 and are 0 when the mistake has no place in a
/// file (a request over the API).
///
/// Shown as `host.toml:12:8: port "vm3": VLAN 300 is not one of tenant "red"'s (100-110); add it
/// to [[tenant]] red `vlans` or change the port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// The file as it was named, empty without one.
    pub file: String,
    /// Line, from 1; 0 unknown.
    pub line: u32,
    /// Column in characters, from 1; 0 unknown.
    pub column: u32,
    /// `port "vm3"`, `[worker]`, `file`.
    pub object: String,
    /// What is wrong, with the value and, where there is one, the limit.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
        }
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        if !self.file.is_empty() || self.line > 0 {
            f.write_str(" ")?;
        }
        write!(f, "{}: {}; {}", self.object, self.problem, self.remedy)
    }
}

impl core::error::Error for ConfigError {}

/// Every mistake of a configuration, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl core::error::Error for ConfigErrors {}
