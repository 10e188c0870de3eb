//! Figures that have only a live run. The module [`crate::live`] implements the live runs of these
//! figures.

use crate::evidence::{Context, Experiment, Outcome, Picture, Record};
use crate::live;

/// Creates an experiment that has only a live run.
const fn live(
    name: &'static str,
    source: &'static str,
    about: &'static str,
    run: fn(&Context<'_>) -> anyhow::Result<Outcome>,
    picture: fn(&Record) -> Picture,
) -> Experiment {
    Experiment { name, source, about, sim: None, live: Some(run), picture }
}

/// Experiment that `make demo` runs. The experiment name `all` of `penstock-lab run` does not
/// include the demo.
pub const DEMO: Experiment = live(
    "demo",
    "C2QoS §II-B, Fig. 1",
    "a victim and a noisy neighbour, under bps policing and under C2QoS",
    live::demo,
    live::demo_picture,
);

/// Measures the wake-up latency of real vCPU threads.
pub const VCPU_WAKEUP: Experiment = live(
    "vcpu-wakeup",
    "VM jitter §V-A",
    "latency from an event to the first instruction of a busy vCPU, on KVM",
    live::vcpu_wakeup,
    live::vcpu_wakeup_picture,
);

/// Measures the wake-up latency of VMs with different deadlines, and of sixteen VMs.
pub const VCPU_WAKEUP_MANY: Experiment = live(
    "vcpu-wakeup-many",
    "VM jitter §V-A",
    "wake-up latency with several deadlines at once, and with sixteen VMs",
    live::vcpu_wakeup_many,
    live::vcpu_wakeup_many_picture,
);

/// Measures one case of the wake-up figures for ten minutes. The experiment name `all` of
/// `penstock-lab run` does not include the run of ten minutes.
pub const VCPU_WAKEUP_LONG: Experiment = live(
    "vcpu-wakeup-long",
    "VM jitter §V-A",
    "one case of vcpu-wakeup, for ten minutes",
    live::vcpu_wakeup_long,
    live::vcpu_wakeup_picture,
);

/// Measures how long plans take, and the guarantees while queues change hands.
pub const QSHARE_PLANS: Experiment = live(
    "qshare-plans",
    "QShare §V-D",
    "time of a plan that moves the queues of ten tenants, and the guarantees meanwhile",
    live::qshare_plans,
    live::qshare_plans_picture,
);

/// Measures what tenants in the shared queue use with rate allocation in hosts.
pub const QSHARE_SPARE: Experiment = live(
    "qshare-spare",
    "QShare §V-D",
    "tenants without queues use spare bandwidth and keep their guarantees, also beside datagrams",
    live::qshare_spare,
    live::qshare_spare_picture,
);

/// Measures guarantees under ten minutes of faults at random.
pub const QSHARE_CHAOS: Experiment = live(
    "qshare-chaos",
    "QShare §V-D",
    "guarantees under ten minutes of faults: reboot, leader kill, flap, foreign change, full etcd",
    live::qshare_chaos,
    live::qshare_chaos_picture,
);

/// Experiment that `make fabric-demo` runs. The experiment name `all` of `penstock-lab run` does
/// not include the fabric demo.
pub const FABRIC_DEMO: Experiment = live(
    "fabric-demo",
    "QShare §VII-A",
    "ten tenants on one core link: one bursts, one attacks",
    live::fabric_demo,
    live::fabric_demo_picture,
);
