//! Keys whose value is one of several names, such as `round-robin`. The error about an unknown name
//! shows the release of Penstock and all names that this release accepts.

use core::fmt;
use core::str::FromStr;

use penstock_toml::text_value;

/// This release's version.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Returns the error text for a value that this release does not accept for a key.
fn refuse(value: &str, later: &[&str], now: &[&str]) -> String {
    let what = if later.contains(&value) { "is not in release" } else { "is unknown in release" };
    match now {
        [only] => format!("\"{value}\" {what} {RELEASE}; the only valid value is \"{only}\""),
        all => format!("\"{value}\" {what} {RELEASE}; write one of {}", all.join(", ")),
    }
}

/// Defines the values that a key accepts in this release, and the values that only a later release
/// accepts.
macro_rules! choice {
    (
        $name:ident,
        $text:literal,
        now [$first:literal => $initial:ident $(, $now:literal => $variant:ident)*],
        later [$($later:literal),*]
    ) => {
        impl $name {
            /// The texts that this release accepts for a key, each with the value that it means.
            const NOW: &[(&'static str, Self)] =
                &[($first, Self::$initial) $(, ($now, Self::$variant))*];
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

        text_value!($name, $text, concat!("one of ", $first $(, ", ", $now)*), {
            "enum": [$first $(, $now)*]
        });
    };
}

/// Order in which a worker serves its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The worker serves one batch of frames for each port in turn.
    #[default]
    RoundRobin,
    /// The worker serves the ports by strict priority of their latency classes. Ports of the same
    /// latency class take turns.
    Hbs,
}

choice!(Schedule, "Schedule", now ["round-robin" => RoundRobin, "hbs" => Hbs], later []);

/// Method by which the schedule `hbs` treats a port that sends no frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// The scheduler checks the port's ring, and skips the port while the ring is empty.
    #[default]
    Pending,
    /// While a port sends no frames, the scheduler moves the port down by one latency class at a
    /// time. When the port sends a frame, the port returns to its own class.
    Demotion,
}

choice!(
    Readiness,
    "Readiness",
    now ["pending" => Pending, "demotion" => Demotion],
    later []
);

/// Rule by which ports get the cycles that no port bought or used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SpareCycles {
    /// Ports with the policy `cycles-minmax` that have room in their buckets share all spare cycles
    /// by weight.
    #[default]
    Pool,
    /// Ports get spare cycles as in Algorithm 1 of C2QoS, which loses a part of them. For
    /// comparisons.
    Printed,
}

choice!(SpareCycles, "SpareCycles", now ["pool" => Pool, "printed" => Printed], later []);

/// Bandwidth of the tenants that share queue 0 of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RateAllocation {
    /// A tenant gets no more than its guarantee.
    #[default]
    Guarantee,
    /// Each pair of VMs gets its part of the guarantees, and bandwidth that nobody else uses.
    Spare,
}

choice!(
    RateAllocation,
    "RateAllocation",
    now ["guarantee" => Guarantee, "spare" => Spare],
    later []
);

/// Limit on the frames that a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IngressPolicy {
    /// No limit.
    #[default]
    None,
    /// Limit in bits per second (RFC 2697, RFC 2698). The switch drops the port's frames above its
    /// rate limit.
    Bps,
    /// Frames per second. The switch drops the port's frames above its rate limit.
    Pps,
    /// The port may use only the cycles that it purchased.
    CyclesStrict,
    /// The port may use its purchased cycles, and a share of spare cycles by weight.
    CyclesMinmax,
}

choice!(
    IngressPolicy,
    "IngressPolicy",
    now ["none" => None, "cycles-strict" => CyclesStrict, "cycles-minmax" => CyclesMinmax,
         "bps" => Bps, "pps" => Pps],
    later []
);

/// Order of the frames that leave through a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Egress {
    /// Order of arrival.
    #[default]
    Fifo,
    /// Frames leave by weight among tenants, then by weight among a tenant's VMs (FS-VDE §4.1).
    FairShare,
    /// Frames wait in queues, which are selected by code point and served by weight (QShare §V-D).
    Wfq,
    /// Each flow has its own queue, and CoDel keeps the queues short (RFC 8290).
    FqCodel,
}

choice!(
    Egress,
    "Egress",
    now ["fifo" => Fifo, "fair-share" => FairShare, "wfq" => Wfq, "fq-codel" => FqCodel],
    later []
);
