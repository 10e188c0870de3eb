//! Algorithms that schedule virtual processors (vCPUs). A scheduler decides which vCPU runs next on
//! a physical processor, for how long, and at what cost in credits.
//!
//! # Approach
//! The crate `penstock-vcpu` does not read a clock or start a thread. Time is an argument of the
//! calls, so the same code runs in the simulator, in property tests and on real hosts. On a host,
//! an *actuator* applies the scheduler's decisions through Linux's scheduler. A program that works
//! through Linux's scheduler learns which vCPU ran only after the vCPU has run.
//! [`VcpuScheduler::decide`], [`VcpuScheduler::charge`] and [`VcpuScheduler::account`] are separate
//! calls, because a program that works through Linux's scheduler charges run time later. All
//! arithmetic is in integers, so the same calls always return the same results.
//!
//! # Sources
//! - The paper "Defeating Network Jitter for Virtual Machines" by Cheng and Wang, which this crate
//!   calls VM jitter.
//! - Xen's credit scheduler (xen/common/sched_credit.c). The crate follows the rules and constants
//!   of Xen's `sched_credit.c`.
//!
//! # Modules
//!
//! | Module | Content |
//! |---|---|
//! | [`contract`] | the parameters of a VM |
//! | [`scheduler`] | the common interface of the two scheduling policies |
//! | [`double_queue`] | Penstock's scheduler: deadlines first, then credits |
//! | [`credit1`] | Xen's credit scheduler: a baseline, and the second queue of `double_queue` |
//! | [`credit_book`], [`reserve`] | credit accounts, classes, credits reserved for I/O |
//! | [`deadline_queue`], [`slots`] | queue by deadline, and the time slots of its vCPUs |
//! | [`admission`], [`placement`] | whether deadlines fit, and on which processors |
//! | [`reservation`] | processor time that the kernel reserves for vCPUs, and the remaining time |
//! | [`terms`] | the configuration tables of an operator |
//! | [`seating`], [`mod@planned`] | each vCPU's processor, and whether its deadline fits there |
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
