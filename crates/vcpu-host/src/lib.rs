//! Virtual processors of a real host: which threads they are, how long each ran, and how they are
//! scheduled.
//!
//! | Module | What it is |
//! |---|---|
//! | [`threads`] | the vCPU threads of a QEMU process or of a cgroup |
//! | [`schedstat`] | time a thread ran and waited, from procfs |
//! | [`policy`] | how a thread is scheduled: read, and changed |
//! | [`process`] | the death of another process |
//! | [`cgroup`] | whose weight divides a thread's processor |
//! | `sys` | the three system calls that need `unsafe` |
#![deny(unsafe_code)]

pub mod cgroup;
pub mod policy;
pub mod process;
pub mod schedstat;
mod sys;
pub mod threads;
