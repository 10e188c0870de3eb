//! Published figures and tables, replayed: simulated at the paper's scale, and live.
//!
//! # Problem
//!
//! A promise about bandwidth and latency has a value only if others can repeat the measurement.
//!
//! # Approach
//!
//! Each figure has one module. The module says what the paper did, what is compared, and where its
//! numbers come from. A run yields an [`Outcome`](crate::evidence::Outcome); the picture shows only
//! its record. The bands come from the figure's requirements. A claim that does not hold is shown
//! as such, and the exit status reports it.
//!
//! # How to write a figure
//!
//! Write a module with `pub const EXPERIMENT: Experiment` and add it to [`EXPERIMENTS`]. The
//! functions for `sim` and `live` get a [`Context`](crate::evidence::Context) (seed, progress,
//! settings) and fill an `Outcome`:
//!
//! ```ignore
//! pub const EXPERIMENT: Experiment = Experiment {
//!     name: "c2qos-fig7",
//!     source: "C2QoS, Fig. 7",
//!     about: "idle cycles are handed out by weight",
//!     sim: Some(sim),
//!     live: None,
//!     picture,
//! };
//!
//! fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
//!     let mut outcome = Outcome::new();
//!     outcome.note("hz", 2.2e9);
//!     outcome.series("vm1", "Gcycles/s", [(0.0, 0.36)]);
//!     outcome.claim(
//!         Claim::new("vm1_max_gcps", "VM1's most", "Gcycles/s")
//!             .published(0.36)
//!             .within(0.359, 0.361)
//!             .measured(0.36),
//!     );
//!     Ok(outcome)
//! }
//!
//! fn picture(record: &Record) -> Picture {
//!     let panel = Panel::new("(a)", Axis::linear("time, s"), Axis::linear("Gcycles/s"));
//!     let vm1 = record.series("vm1").map(points).into_iter().flatten();
//!     Picture::new("C2QoS, Fig. 7").panel(panel.line("VM1", vm1))
//! }
//! ```
//!
//! # Modules
//!
//! | Module | Content |
//! |---|---|
//! | `registry` | all figures by name |
//! | [`run`], [`files`], [`seeds`] | command line, result files, runs with many seeds |
//! | [`missed`] | list of claims that are known as missed |
//! | [`report`], [`plot`] | all results on one page; runs of the load generator over time |
//! | [`paper_platform`] | cost of a frame on the platform of the C2QoS paper |
//! | [`paper_testbed`], [`paper_counters`] | testbed of that paper, and worker's counters in it |
//! | `qshare_core`, `qshare_fct` | networks and traffic of QShare's Figs. 4 and 5 |
//! | `vcpu_bed` | processors, driver domain and guests of VM jitter's Figs. 2, 6, 7 and 12 |
//! | `c2qos_*`, `fsvde_*`, `jitter_*`, `qshare_*` | the figures |

pub mod files;
pub mod missed;
pub mod paper_counters;
pub mod paper_platform;
pub mod paper_testbed;
pub mod plot;
pub mod report;
pub mod run;
pub mod seeds;

mod c2qos_fig1;
mod c2qos_fig10;
mod c2qos_fig11;
mod c2qos_fig12;
mod c2qos_fig13;
mod c2qos_fig3;
mod c2qos_fig5;
mod c2qos_fig6;
mod c2qos_fig7;
mod c2qos_overhead;
mod core_loop;
mod fabric_agents;
mod fabric_bed;
mod fabric_sessions;
mod fsvde_fig4;
mod fsvde_link;
mod fsvde_table2;
#[cfg(test)]
mod holds;
mod jitter_fig10;
mod jitter_fig11;
mod jitter_fig12;
mod jitter_fig2;
mod jitter_fig6;
mod jitter_fig7;
mod jitter_fig8;
mod jitter_fig9;
mod live_only;
mod qshare_core;
mod qshare_datacenter;
mod qshare_fct;
mod qshare_fig4;
mod qshare_fig5;
mod qshare_fig6;
mod qshare_scale;
mod qshare_table1;
mod registry;
mod shaped_vm;
mod vcpu_bed;

pub use registry::{EXPERIMENTS, find};
pub use run::RunArgs;
