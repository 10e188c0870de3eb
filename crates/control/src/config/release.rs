//! Choices of which this release has only one: the others' names are known, so that a file written
//! for a later release is told so and not "unknown value".

use core::fmt;
use core::str::FromStr;

use penstock_toml::text_value;

/// This release's version.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Words the refusal of a value.
fn refuse(value: &str, later: &[&str], now: &[&str]) -> String {
    let what = if later.contains(&value) { "is not in release" } else { "is unknown in release" };
    match now {
        [only] => format!("\"{value}\" {what} {RELEASE}; write \"{only}\", the only one now"),
        all => format!("\"{value}\" {what} {RELEASE}; write one of {}", all.join(", ")),
    }
}

/// Names of a choice: those of this release, and those that are known to come.
macro_rules! choice {
    (
        $name:ident,
        $text:literal,
        now [$($now:literal => $variant:ident),*],
        later [$($later:literal),*]
    ) => {
        impl $name {
            /// The names of this release.
            const NOW: &[(&'static str, Self)] = &[$(($now, Self::$variant)),*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = Self::NOW.iter().find(|(_, value)| value == self);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::NOW.iter().find(|(name, _)| *name == text);
                let names: Vec<&str> = Self::NOW.iter().map(|(name, _)| *name).collect();
                found.map(|(_, value)| *value).ok_or_else(|| refuse(text, &[$($later),*], &names))
            }
        }

        text_value!($name, $text, "one of the names in the documentation", { "enum": [$($now),*] });
    };
}

/// Whose turn it is on the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One batch each in turn.
    #[default]
    RoundRobin,
    /// By class, strictly; within a class in turn.
    Hbs,
}

choice!(Schedule, "Schedule", now ["round-robin" => RoundRobin, "hbs" => Hbs], later []);

/// How the batch scheduler treats a port from which nothing comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// It is passed over; a look at its ring is enough.
    #[default]
    Pending,
    /// It falls class by class, and is back in its own when it sends.
    Demotion,
}

choice!(
    Readiness,
    "Readiness",
    now ["pending" => Pending, "demotion" => Demotion],
    later []
);

/// What bounds the frames a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IngressPolicy {
    /// Nothing but its turn.
    #[default]
    None,
    /// Bits per second (RFC 2697, RFC 2698); what is above is dropped.
    Bps,
    /// Frames per second; what is above is dropped.
    Pps,
    /// The cycles it bought.
    CyclesStrict,
    /// The cycles it bought, and by weight what others leave.
    CyclesMinmax,
}

choice!(
    IngressPolicy,
    "IngressPolicy",
    now ["none" => None, "cycles-strict" => CyclesStrict, "cycles-minmax" => CyclesMinmax,
         "bps" => Bps, "pps" => Pps],
    later []
);

/// How frames towards a port are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Egress {
    /// As they come.
    #[default]
    Fifo,
    /// Tenants by weight, then their VMs (FS-VDE §4.1).
    FairShare,
    /// By code point into a few queues, these by weight (QShare §V-D).
    Wfq,
}

choice!(
    Egress,
    "Egress",
    now ["fifo" => Fifo, "fair-share" => FairShare, "wfq" => Wfq],
    later []
);
