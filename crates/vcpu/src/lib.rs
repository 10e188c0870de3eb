//! Scheduling of virtual processors as pure algorithms: who runs next on a physical processor, for
//! how long, and what it is charged.
//!
//! **Rule.** Nothing here reads a clock or starts a thread: time is an argument, so the simulator,
//! property tests and an actuator on a real host run the same code. Decision
//! ([`VcpuScheduler::decide`]), charge ([`VcpuScheduler::charge`]) and accounting
//! ([`VcpuScheduler::account`]) are apart, because an actuator learns afterwards what ran.
//! Arithmetic is in integers, and the same calls give the same answers.
//!
//! Sources: "Defeating Network Jitter for Virtual Machines" (L. Cheng, C.-L. Wang); Xen's credit
//! scheduler (xen/common/sched_credit.c), whose rules and constants are followed.
//!
//! | Module | What it is |
//! |---|---|
//! | [`contract`] | what a VM asked for |
//! | [`scheduler`] | the one interface, for both policies |
//! | [`double_queue`] | deadlines before credits: what Penstock uses |
//! | [`credit1`] | Xen's credit scheduler, the baseline and the lower of the two queues |
//! | [`credit_book`], [`reserve`] | accounts, classes, what is kept for I/O |
//! | [`deadline_queue`], [`slots`] | deadlines of a processor, so placed that none is missed |
//! | [`admission`], [`placement`] | which VMs fit, and where |
//! | [`reservation`] | what the kernel is asked to reserve, and what that leaves |
//! | [`terms`] | what an operator writes |
//! | [`seating`], [`mod@planned`] | whose deadline is kept where |
//! | [`bells`] | layout of the memory by which the switch tells that frames came |
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
