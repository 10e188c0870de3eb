//! Virtual processors of a real host: which threads they are, how long each ran, and how they are
//! scheduled.
//!
//! | Module | Content |
//! |---|---|
//! | [`service`] | the whole scheduler: finds VMs, seats them, reports |
//! | [`state`] | the scheduler's report |
//! | [`config`] | the configuration file: VMs and their parameters |
//! | [`threads`] | the vCPU threads of a QEMU process or of a cgroup |
//! | [`schedstat`] | time a thread ran and waited, from procfs |
//! | [`policy`] | reading and changing the policy of a thread |
//! | [`bells`] | the switch's reports of arrived frames |
//! | [`boost`] | the actuator: lends slices to due vCPUs |
//! | [`weight`] | a vCPU's weight for time that is not lent |
//! | [`lease`] | the table of what is lent, which survives the lender |
//! | [`restore`] | restoring threads and cgroups |
//! | [`watchdog`] | the process that restores them if the scheduler dies or stalls |
//! | [`run_dir`] | the scheduler's directory, used by one scheduler at a time |
//! | [`process`] | the death of another process |
//! | [`cgroup`] | the cgroup that divides a thread's processor time |
//! | [`budget`] | real-time budgets that cgroups need |
//! | [`divide`] | the cgroups that divide a processor between VMs |
//! | `sys` | the three system calls that need `unsafe` |
#![allow(missing_docs, reason = "a crate of this workspace only; comments say what names do not")]
#![deny(unsafe_code)]

pub mod bells;
pub mod boost;
pub mod budget;
pub mod cgroup;
mod clock;
pub mod config;
pub mod divide;
pub mod lease;
pub mod policy;
pub mod process;
pub mod restore;
pub mod run_dir;
pub mod schedstat;
pub mod service;
pub mod state;
mod sys;
pub mod threads;
pub mod watchdog;
pub mod weight;
