//! Every mistake in a configuration has a location, an object, a problem and a remedy.

use core::fmt;

use serde::Serialize;

/// One mistake in a configuration. The fields `line` and `column` count from 1. If the mistake has
/// no location in a file, as in a request over the API, `line` and `column` are 0.
///
/// The text of a mistake is, for example, ``host.toml:12:8: port "vm3": VLAN 300 is not a VLAN of
/// tenant "red" (100-110); add the VLAN to `vlans` of [[tenant]] red, or change the port``.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// Name of the configuration file as the caller gave it. The name is empty if the configuration
    /// is not from a file.
    pub file: String,
    /// Line of the mistake, counted from 1. A line number of 0 means that the line is unknown.
    pub line: u32,
    /// Column of the mistake in characters, counted from 1. A column number of 0 means that the
    /// column is unknown.
    pub column: u32,
    /// The object that has the mistake, such as `port "vm3"`, `[worker]` or `file`.
    pub object: String,
    /// Description of the mistake, with the wrong value, and with the limit if there is a limit.
    pub problem: String,
    /// Instruction that corrects the mistake.
    pub remedy: String,
}

impl ConfigError {
    /// Returns an error about an object, without a place in a file.
    #[must_use]
    pub const fn placeless(object: String, problem: String, remedy: String) -> Self {
        Self { file: String::new(), line: 0, column: 0, object, problem, remedy }
    }
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

/// All mistakes of a configuration, at least one, in the order of the file.
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
