//! Schedules the virtual processors (vCPUs) of VMs on a host. The crate finds vCPU threads,
//! measures run times, and sets scheduling policies.
//!
//! | Module | Content |
//! |---|---|
//! | [`service`] | the whole scheduler: finds VMs, assigns them to processors, reports |
//! | [`state`] | the scheduler's report |
//! | [`config`] | the configuration file: VMs and their parameters |
//! | [`threads`] | the vCPU threads of a QEMU process or of a cgroup |
//! | [`schedstat`] | run time and waiting time of a thread, from procfs |
//! | [`policy`] | reading and changing the policy of a thread |
//! | [`bells`] | reports of the switch that frames arrived for a VM |
//! | [`boost`] | gives a due vCPU a real-time policy for a short time (a slice) |
//! | [`weight`] | a vCPU's weight in the kernel's fair class |
//! | [`lease`] | a file that records lent real-time policies and survives the scheduler |
//! | [`restore`] | restoring threads and cgroups |
//! | [`watchdog`] | the process that restores threads and cgroups if the scheduler dies or stalls |
//! | [`run_dir`] | the scheduler's directory, used by one scheduler at a time |
//! | [`process`] | waits for the death of another process |
//! | [`cgroup`] | the cgroup that divides a thread's processor time |
//! | [`budget`] | real-time budgets that cgroups need |
//! | [`divide`] | the cgroups that divide a processor between VMs |
//! | `sys` | the three system calls that need `unsafe` |
#![allow(missing_docs, reason = "this crate is not published")]
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
