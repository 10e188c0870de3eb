//! Figures that are measured on this machine and not simulated; see [`crate::live`].

use crate::evidence::{Context, Experiment, Outcome, Picture, Record};
use crate::live;

/// Creates an experiment without a simulation.
const fn live(
    name: &'static str,
    source: &'static str,
    about: &'static str,
    run: fn(&Context<'_>) -> anyhow::Result<Outcome>,
    picture: fn(&Record) -> Picture,
) -> Experiment {
    Experiment { name, source, about, sim: None, live: Some(run), picture }
}

/// Measurements that `make demo` shows. The demo runs only by name and is not a part of `all`.
pub const DEMO: Experiment = live(
    "demo",
    "C2QoS §II-B, Fig. 1",
    "a victim and a noisy neighbour, under bps policing and under C2QoS",
    live::demo,
    live::demo_picture,
);

/// Wake-up latency of real vCPU threads, with bands.
pub const VCPU_WAKEUP: Experiment = live(
    "vcpu-wakeup",
    "VM jitter §V-A",
    "event to first instruction of a vCPU that computes, on KVM",
    live::vcpu_wakeup,
    live::vcpu_wakeup_picture,
);

/// Wake-up latency with several deadlines at once, and with sixteen VMs.
pub const VCPU_WAKEUP_MANY: Experiment = live(
    "vcpu-wakeup-many",
    "VM jitter §V-A",
    "the same with several deadlines at once, and with sixteen VMs",
    live::vcpu_wakeup_many,
    live::vcpu_wakeup_many_picture,
);

/// One cell of the wake-up figures for ten minutes. It runs only by name, not as a part of `all`.
pub const VCPU_WAKEUP_LONG: Experiment = live(
    "vcpu-wakeup-long",
    "VM jitter §V-A",
    "one cell of vcpu-wakeup for ten minutes",
    live::vcpu_wakeup_long,
    live::vcpu_wakeup_picture,
);

/// Measurements that `make fabric-demo` shows. This demo also runs only by name.
pub const FABRIC_DEMO: Experiment = live(
    "fabric-demo",
    "QShare §VII-A",
    "ten tenants on one core link: one bursts, one attacks",
    live::fabric_demo,
    live::fabric_demo_picture,
);
