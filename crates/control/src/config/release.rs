//! Named choices. The error about an unknown name contains the release and the known names.

use core::fmt;
use core::str::FromStr;

use penstock_toml::text_value;

/// This release's version.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The error text of an unknown value.
fn refuse(value: &str, later: &[&str], now: &[&str]) -> String {
    let what = if later.contains(&value) { "is not in release" } else { "is unknown in release" };
    match now {
        [only] => format!("\"{value}\" {what} {RELEASE}; write \"{only}\", the only one now"),
        all => format!("\"{value}\" {what} {RELEASE}; write one of {}", all.join(", ")),
    }
}

/// Names of a choice in this release, and names that are planned for a later one.
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

/// Order in which a worker serves its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One batch for each port in turn.
    #[default]
    RoundRobin,
    /// By class, strictly. Ports of a class take turns.
    Hbs,
}

choice!(Schedule, "Schedule", now ["round-robin" => RoundRobin, "hbs" => Hbs], later []);

/// How the batch scheduler treats a port that sends no frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// It skips the port after a look at the port's ring.
    #[default]
    Pending,
    /// The port falls class by class, and returns to its own class when it sends.
    Demotion,
}

choice!(
    Readiness,
    "Readiness",
    now ["pending" => Pending, "demotion" => Demotion],
    later []
);

/// Limit on the frames that a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IngressPolicy {
    /// No limit.
    #[default]
    None,
    /// Bits per second (RFC 2697, RFC 2698). Frames above are dropped.
    Bps,
    /// Frames per second. Frames above are dropped.
    Pps,
    /// The cycles that the port bought.
    CyclesStrict,
    /// The cycles that the port bought, and a weighted share of spare cycles.
    CyclesMinmax,
}

choice!(
    IngressPolicy,
    "IngressPolicy",
    now ["none" => None, "cycles-strict" => CyclesStrict, "cycles-minmax" => CyclesMinmax,
         "bps" => Bps, "pps" => Pps],
    later []
);

/// Order of the frames that leave by a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Egress {
    /// Order of arrival.
    #[default]
    Fifo,
    /// Tenants by weight, then their VMs (FS-VDE §4.1).
    FairShare,
    /// A few queues, selected by code point and served by weight (QShare §V-D).
    Wfq,
}

choice!(
    Egress,
    "Egress",
    now ["fifo" => Fifo, "fair-share" => FairShare, "wfq" => Wfq],
    later []
);
