//! Scheduling of virtual processors as pure algorithms: which vCPU runs next on a physical
//! processor, for how long, and what it is charged.
//!
//! # Approach
//! Nothing here reads a clock or starts a thread. Time is an argument, so the simulator, property
//! tests and an actuator on a real host run the same code. Decision ([`VcpuScheduler::decide`]),
//! charge ([`VcpuScheduler::charge`]) and accounting ([`VcpuScheduler::account`]) are separate,
//! because an actuator learns only afterwards which vCPU ran. All arithmetic is in integers. The
//! same calls return the same results.
//!
//! # Sources
//! - \"Defeating Network Jitter for Virtual Machines\" (L. Cheng, C.-L. Wang).
//! - Xen's credit scheduler (xen/common/sched_credit.c). This crate follows its rules and
//!   constants.
//!
//! # Modules
//!
//! | Module | Content |
//! |---|---|
//! | [`contract`] | the parameters of a VM |
//! | [`scheduler`] | the interface of both policies |
//! | [`double_queue`] | deadlines before credits: what Penstock uses |
//! | [`credit1`] | Xen's credit scheduler, the baseline and the lower of the two queues |
//! | [`credit_book`], [`reserve`] | accounts, classes, credits kept for I/O |
//! | [`deadline_queue`], [`slots`] | deadlines of a processor and the slots that keep them |
//! | [`admission`], [`placement`] | which VMs fit, and where |
//! | [`reservation`] | time that the kernel reserves, and the time that remains |
//! | [`terms`] | the configuration tables of an operator |
//! | [`seating`], [`mod@planned`] | the processor of each vCPU, and whether its deadline is kept |
//! | [`bells`] | layout of the shared file by which the switch reports arrived frames |
#![forbid(unsafe_code)]

pub mod admission;
pub mod bells;
pub mod contract;
pub mod credit1;
pub mod credit_book;
pub mod deadline_queue;
pub mod double_queue;
pub mod placement;
pub mod planned;
pub mod reservation;
pub mod reserve;
pub mod scheduler;
pub mod seating;
pub mod slots;
pub mod terms;

pub use contract::{Contract, Mode};
pub use scheduler::{Cause, Lane, Leave, Turn, VcpuScheduler, Vm};
