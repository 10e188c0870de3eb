//! The double run queue as the kernel's own scheduler, by sched_ext.
//!
//! **Problem.** Who lends real-time priority to vCPU threads from outside pays for polls and
//! cannot order who runs between. Where the kernel has CONFIG_SCHED_CLASS_EXT, the rules of
//! `penstock-vcpu` run inside it. **Rule.** A BPF program (`src/bpf`) decides; this crate reads
//! the configuration, asks `penstock_vcpu::admission` whether the deadlines fit, lays out their
//! slots, hands both to the program and reads its reports. **Fails safe.** The kernel takes the
//! scheduler out and goes on with the fair class when the loader ends in whatever way, when the
//! program does what it may not, and when a runnable thread was not run for five seconds.
//!
//! | Module | What it is |
//! |---|---|
//! | [`config`] | the file: which threads have which contract |
//! | [`plan`] | whether it fits, and what the program is told |
//! | [`wire`] | the layouts that are shared with the program |
//! | [`report`] | what threads got, and how it is shown |
//! | `threads` | threads of this machine: found, kept on a processor |
//! | `kernel` | loads the program; feature `bpf` |
#![forbid(unsafe_code)]

pub mod config;
#[cfg(feature = "bpf")]
pub mod kernel;
pub mod plan;
pub mod report;
pub mod threads;
pub mod wire;
