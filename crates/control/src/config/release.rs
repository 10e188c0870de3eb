//! Choices of which this release has only one: the others' names are known, so that a file written
//! for a later release is told so and not "unknown value".

use core::fmt;
use core::str::FromStr;

use super::text::text_value;

/// This release's version.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Words the refusal of a value.
fn refuse(value: &str, later: &[&str], now: &str) -> String {
    if later.contains(&value) {
        format!("\"{value}\" is not in release {RELEASE}; write \"{now}\", the only one now")
    } else {
        format!("\"{value}\" is unknown; write \"{now}\", the only one in release {RELEASE}")
    }
}

/// Whose turn it is on the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One batch each in turn.
    #[default]
    RoundRobin,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("round-robin")
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "round-robin" => Ok(Self::RoundRobin),
            other => Err(refuse(other, &["hbs"], "round-robin")),
        }
    }
}

text_value!(Schedule, "Schedule", "\"round-robin\"", { "enum": ["round-robin"] });

/// What bounds the frames a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IngressPolicy {
    /// Nothing but its turn.
    #[default]
    None,
}

impl fmt::Display for IngressPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("none")
    }
}

impl FromStr for IngressPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LATER: [&str; 4] = ["cycles-strict", "cycles-minmax", "bps", "pps"];
        match text {
            "none" => Ok(Self::None),
            other => Err(refuse(other, &LATER, "none")),
        }
    }
}

text_value!(IngressPolicy, "IngressPolicy", "\"none\"", { "enum": ["none"] });

/// How frames towards a port are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Egress {
    /// As they come.
    #[default]
    Fifo,
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fifo")
    }
}

impl FromStr for Egress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fifo" => Ok(Self::Fifo),
            other => Err(refuse(other, &["fair-share", "wfq"], "fifo")),
        }
    }
}

text_value!(Egress, "Egress", "\"fifo\"", { "enum": ["fifo"] });
