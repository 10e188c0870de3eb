//! Virtual processors of a real host: which threads they are, and how long each ran.
//!
//! So far only what an actuator looks at before it acts; nothing here changes how a thread is
//! scheduled.
//!
//! | Module | What it is |
//! |---|---|
//! | [`threads`] | the vCPU threads of a QEMU process or of a cgroup |
//! | [`schedstat`] | time a thread ran and waited, from procfs |
#![deny(unsafe_code)]

pub mod schedstat;
pub mod threads;
