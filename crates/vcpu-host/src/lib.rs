//! Virtual processors of a real host: which threads they are, how long each ran, and how they are
//! scheduled.
//!
//! | Module | What it is |
//! |---|---|
//! | [`service`] | all of it together: finds VMs, seats them, tells how it goes |
//! | [`state`] | what it tells |
//! | [`config`] | the file that says which VMs there are and what they were promised |
//! | [`threads`] | the vCPU threads of a QEMU process or of a cgroup |
//! | [`schedstat`] | time a thread ran and waited, from procfs |
//! | [`policy`] | how a thread is scheduled: read, and changed |
//! | [`bells`] | what the switch says of frames that came |
//! | [`boost`] | the actuator: lends slices to who is due |
//! | [`weight`] | how much of what is not lent a vCPU has |
//! | [`lease`] | what is lent, in a file that outlives who lent it |
//! | [`restore`] | putting threads and cgroups back as they were |
//! | [`watchdog`] | the process that does so when the scheduler is dead or stalls |
//! | [`run_dir`] | the scheduler's directory, which is one scheduler's at a time |
//! | [`process`] | the death of another process |
//! | [`cgroup`] | whose weight divides a thread's processor |
//! | [`budget`] | how much real-time budget cgroups need |
//! | [`divide`] | which cgroup divides it between VMs |
//! | `sys` | the three system calls that need `unsafe` |
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
