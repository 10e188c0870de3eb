//! Scheduling of virtual processors as pure algorithms: which vCPU runs next on a physical
//! processor, for how long, and what it is charged.
//!
//! # Approach
//! Nothing here reads a clock or starts a thread. Time is an argument, so the simulator, property
//! tests and an actuator on a real host run the same code. Decision ([`VcpuScheduler::decide`]),
//! charge ([`VcpuScheduler::charge`]) and accounting ([`VcpuScheduler::account`]) are separate,
//! because an actuator learns afterwards what ran. Arithmetic is in integers, and the same calls
//! give the same answers.
//!
//! # Sources
//! \"Defeating Network Jitter for Virtual Machines\" (L. Cheng, C.-L. Wang); Xen's credit scheduler
//! (xen/common/sched_credit.c), whose rules and constants are followed.
//!
//! # Modules
//!
//! | Module | Content |
//! |---|---|
//! | [`contract`] | the parameters of a VM |
//! | [`scheduler`] | the one interface, for both policies |
//! | [`double_queue`] | deadlines before credits: what Penstock uses |
//! | [`credit1`] | Xen's credit scheduler, the baseline and the lower of the two queues |
//! | [`credit_book`], [`reserve`] | accounts, classes, credits kept for I/O |
//! | [`deadline_queue`], [`slots`] | deadlines of a processor, placed so that none is missed |
//! | [`admission`], [`placement`] | which VMs fit, and where |
//! | [`reservation`] | time reserved by the kernel, and what that leaves |
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
