//! Mistakes in a configuration. Each has its location, its object, the problem and a remedy.

use core::fmt;

use serde::Serialize;

/// One mistake. `line` and `column` count from 1. They are 0 if the mistake has no location in a
/// file, as in a request over the API.
///
/// Its text is, for example, ``host.toml:12:8: port "vm3": VLAN 300 is not one of tenant "red"'s
/// (100-110); add it to [[tenant]] red `vlans` or change the port``.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// Name of the file as the caller gave it. Empty if there is no file.
    pub file: String,
    /// Line, from 1. 0 means that it is unknown.
    pub line: u32,
    /// Column in characters, from 1. 0 means that it is unknown.
    pub column: u32,
    /// The object, such as `port "vm3"`, `[worker]` or `file`.
    pub object: String,
    /// The mistake. It includes the value, and the limit if there is one.
    pub problem: String,
    /// How to correct the mistake.
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

/// All mistakes of a configuration, in the order of the file. There is at least one.
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
