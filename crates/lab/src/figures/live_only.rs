//! Figures that are measured on this machine and not simulated; see [`crate::live`].

use super::{Context, Experiment, Outcome, Picture, Record};
use crate::live;

/// One of them.
const fn live(
    name: &'static str,
    source: &'static str,
    about: &'static str,
    run: fn(&Context<'_>) -> anyhow::Result<Outcome>,
    picture: fn(&Record) -> Picture,
) -> Experiment {
    Experiment { name, source, about, sim: None, live: Some(run), picture }
}

fn over_time(record: &Record) -> Picture {
    live::picture(record, "time, s (rates); number of the case (shares)")
}

/// A victim and aggressors.
pub const FIG1: Experiment = live(
    "c2qos-fig1",
    "C2QoS §II-B, Fig. 1",
    "a victim's bandwidth beside noisy neighbours",
    live::fig1,
    over_time,
);

/// What `make demo` shows; found by its name and not a part of `all`.
pub const DEMO: Experiment = live(
    "demo",
    "C2QoS §II-B, Fig. 1",
    "a victim and a noisy neighbour, under bps policing and under C2QoS",
    live::demo,
    live::demo_picture,
);

/// Latency by number of VMs.
pub const FIG3: Experiment = live(
    "c2qos-fig3",
    "C2QoS §II-C, Fig. 3",
    "latency by the number of VMs, in turn and in the first class",
    live::fig3,
    |record| live::picture(record, "VMs"),
);

/// Real programs: bandwidth and latency.
pub const FIG10: Experiment = live(
    "c2qos-fig10",
    "C2QoS §VI-A, Fig. 10",
    "TCP bandwidth and latency of four VMs, three policies",
    live::fig10,
    over_time,
);

/// Latency by class.
pub const FIG11: Experiment = live(
    "c2qos-fig11",
    "C2QoS §VI-B, Fig. 11",
    "latency of four classes on a full core",
    live::fig11,
    |record| live::picture(record, "class"),
);

/// Real programs: FTP and web servers.
pub const FIG12: Experiment = live(
    "c2qos-fig12",
    "C2QoS §VI-C, Fig. 12",
    "FTP servers and web servers on one core",
    live::fig12,
    |record| live::picture(record, "time, s (rates); percentile (responses)"),
);

/// The uplink is full.
pub const FIG13: Experiment = live(
    "c2qos-fig13",
    "C2QoS §VII, Fig. 13",
    "the link, and not the core, is what is short",
    live::fig13,
    over_time,
);
