//! The list of all figures. Each entry has the name, the simulation, the live run and the picture
//! of a figure.

use super::{
    c2qos_bill, c2qos_fig1, c2qos_fig3, c2qos_fig5, c2qos_fig6, c2qos_fig7, c2qos_fig10,
    c2qos_fig11, c2qos_fig12, c2qos_fig13, c2qos_overhead, contracts, fabric_agents, fabric_store,
    fsvde_fig4, fsvde_table2, jitter_fig2, jitter_fig6, jitter_fig7, jitter_fig8, jitter_fig9,
    jitter_fig10, jitter_fig11, jitter_fig12, limits, live_only, qshare_faults, qshare_fig4,
    qshare_fig5, qshare_fig6, qshare_scale, qshare_table1, uplink_shares,
};
use crate::evidence::Experiment;

/// All experiments, in the order of `penstock-lab list`.
pub const EXPERIMENTS: &[Experiment] = &[
    c2qos_fig1::EXPERIMENT,
    c2qos_fig3::EXPERIMENT,
    c2qos_fig5::EXPERIMENT,
    c2qos_fig6::EXPERIMENT,
    c2qos_fig7::EXPERIMENT,
    c2qos_fig10::EXPERIMENT,
    c2qos_fig11::EXPERIMENT,
    c2qos_fig12::EXPERIMENT,
    c2qos_fig13::EXPERIMENT,
    c2qos_overhead::EXPERIMENT,
    c2qos_bill::EXPERIMENT,
    limits::EXPERIMENT,
    contracts::EXPERIMENT,
    fsvde_fig4::EXPERIMENT,
    fsvde_table2::EXPERIMENT,
    uplink_shares::EXPERIMENT,
    jitter_fig2::EXPERIMENT,
    jitter_fig6::EXPERIMENT,
    jitter_fig7::EXPERIMENT,
    jitter_fig8::EXPERIMENT,
    jitter_fig9::EXPERIMENT,
    jitter_fig10::EXPERIMENT,
    jitter_fig11::EXPERIMENT,
    jitter_fig12::EXPERIMENT,
    qshare_fig4::EXPERIMENT,
    qshare_fig5::EXPERIMENT,
    qshare_table1::EXPERIMENT,
    qshare_fig6::EXPERIMENT,
    qshare_scale::EXPERIMENT,
    live_only::QSHARE_PLANS,
    live_only::QSHARE_SPARE,
    qshare_faults::EXPERIMENT,
    live_only::QSHARE_CHAOS,
    fabric_agents::EXPERIMENT,
    fabric_store::EXPERIMENT,
    live_only::VCPU_WAKEUP,
    live_only::VCPU_WAKEUP_MANY,
];

/// Demos and long runs, which the name `all` does not include.
const STORIES: [&Experiment; 3] =
    [&live_only::DEMO, &live_only::FABRIC_DEMO, &live_only::VCPU_WAKEUP_LONG];

/// Returns the experiment or demo with the name `name`.
///
/// # Errors
/// Returns an error that lists the names of all experiments if no experiment has the name `name`.
pub fn find(name: &str) -> anyhow::Result<&'static Experiment> {
    EXPERIMENTS.iter().chain(STORIES).find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<_> = EXPERIMENTS.iter().map(|e| e.name).collect();
        anyhow::anyhow!("no experiment is called `{name}`; use one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_experiment_can_be_run() {
        for (i, e) in EXPERIMENTS.iter().enumerate() {
            assert!(!e.modes().is_empty(), "{} has no mode", e.name);
            assert!(EXPERIMENTS[..i].iter().all(|other| other.name != e.name), "{}", e.name);
        }
        assert!(find("c2qos-fig99").unwrap_err().to_string().contains("c2qos-fig5"));
    }
}
