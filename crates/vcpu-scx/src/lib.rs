//! Runs the scheduler [`penstock_vcpu::double_queue`] inside the kernel, as a sched_ext scheduler.
//!
//! # Problem
//!
//! A scheduler in user space (`penstock-vcpu-host`) gives real-time priority to vCPU threads. A
//! scheduler in user space must poll, and it cannot control the order of other threads. If the
//! kernel has CONFIG_SCHED_CLASS_EXT, the rules of `penstock-vcpu` can run inside the kernel.
//!
//! # Approach
//!
//! A BPF program (`src/bpf`) schedules the threads. The loader reads the configuration, and checks
//! with `penstock_vcpu::admission` whether the deadlines fit. If the deadlines fit, the loader
//! assigns slots to the deadlines, passes contracts and slots to the BPF program, and reads the
//! program's reports.
//!
//! The kernel removes the scheduler if the loader ends, if the BPF program does something
//! forbidden, or if a runnable thread did not run for five seconds. After the scheduler's removal,
//! the kernel's fair class schedules the threads.
//!
//! | Module | Content |
//! |---|---|
//! | [`config`] | configuration file: the contracts of threads |
//! | [`plan`] | admission, and the data for the BPF program |
//! | [`wire`] | data layouts shared with the BPF program |
//! | [`report`] | measured times of threads, as a table |
//! | `threads` | finds threads of this machine and pins them to a processor |
//! | `kernel` | loads the BPF program; needs the feature `bpf` |
#![forbid(unsafe_code)]

pub mod config;
#[cfg(feature = "bpf")]
pub mod kernel;
pub mod plan;
pub mod report;
pub mod threads;
pub mod wire;
