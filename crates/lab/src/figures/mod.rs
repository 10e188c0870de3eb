//! Reproduces published figures and tables, in simulation at the paper's scale and live on this
//! machine.
//!
//! # Problem
//!
//! A promise about bandwidth and latency is useful only if others can repeat the measurement.
//!
//! # Approach
//!
//! Each figure has one Rust module. The text of a figure's module describes the paper's experiment,
//! the comparison, and the source of each number. A run of a figure returns an
//! [`Outcome`](crate::evidence::Outcome). The lab stores the outcome as a record with its
//! experiment, mode and seed, and draws the picture only from this record. The bands of claims are
//! requirements and do not depend on measurements. The output marks missed claims, and missed
//! claims change the exit status.
//!
//! # How to write a figure
//!
//! Write a module with a public constant `EXPERIMENT`, and add the constant to [`EXPERIMENTS`]. The
//! functions for `sim` and `live` get a [`Context`](crate::evidence::Context) (seed, progress,
//! settings) and return an `Outcome`:
//!
//! ```ignore
//! pub const EXPERIMENT: Experiment = Experiment {
//!     name: "c2qos-fig7",
//!     source: "C2QoS, Fig. 7",
//!     about: "unused cycles are divided by weight",
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
//!         Claim::new("vm1_max_gcps", "VM1's cycles", "Gcycles/s")
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
//! | [`run`], [`files`], [`seeds`] | the commands `run`, `list`; result files; several seeds |
//! | [`missed`] | list of the claims that are known as missed |
//! | [`report`], [`plot`] | the commands `report` and `plot` of `penstock-lab` |
//! | [`paper_platform`] | cost of a frame in the C2QoS paper |
//! | [`paper_testbed`], [`paper_counters`] | C2QoS's testbed, simulated; costs by counters |
//! | `qshare_core`, `qshare_fct` | networks and traffic of Figs. 4 and 5 of QShare |
//! | `uplink_bed`, `uplink_shares` | a simulated uplink with queues, and its claims |
//! | `snapshot_turns` | simulated turns of a worker that gets a new snapshot |
//! | `inbound_shares` | claims of `uplink-shares` about what arrives through an uplink |
//! | `vcpu_bed` | processor and guests of Figs. 2, 6, 7 and 12 of VM jitter |
//! | `c2qos_*`, `fsvde_*`, `jitter_*`, `qshare_*` | the figures of each paper |

pub mod files;
pub mod missed;
pub mod paper_counters;
pub mod paper_platform;
mod paper_record;
pub mod paper_testbed;
pub mod plot;
pub mod report;
pub mod run;
pub mod seeds;
pub mod sellers_errors;

mod c2qos_bill;
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
mod contracts;
mod core_loop;
mod fabric_agents;
mod fabric_bed;
mod fabric_sessions;
mod fabric_store;
mod fsvde_fig4;
mod fsvde_link;
mod fsvde_table2;
#[cfg(test)]
mod holds;
pub(crate) mod inbound_shares;
mod jitter_fig10;
mod jitter_fig11;
mod jitter_fig12;
mod jitter_fig2;
mod jitter_fig6;
mod jitter_fig7;
mod jitter_fig8;
mod jitter_fig9;
mod limits;
mod live_only;
mod qshare_core;
mod qshare_datacenter;
mod qshare_faults;
mod qshare_faults_bed;
mod qshare_fct;
mod qshare_fig4;
mod qshare_fig5;
mod qshare_fig6;
mod qshare_scale;
mod qshare_table1;
mod registry;
mod remedies;
mod sim_switches;
pub(crate) mod snapshot_turns;
mod uplink_bed;
mod uplink_shares;
mod vcpu_bed;

pub use registry::{EXPERIMENTS, find};
pub use run::RunArgs;
