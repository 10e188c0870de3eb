//! The load generator: many VMs in one polling loop on one core.
//!
//! # Problem
//! Two polling processes on one core measure the Linux scheduler, and an external generator
//! saturates before the switch does. Here all VMs, senders and sinks, share one loop with full
//! rings and prepared buffers.
//!
//! # Quantities
//! A size is the size of the frame on a wire, FCS included: a frame of size 64 has 60 bytes in the
//! ring. Bit rates count sizes. Rates are per sending VM. Rate 0 means as fast as the ring accepts
//! frames.
//!
//! # Approach
//! Each turn of the loop gives every VM one burst to send and one to receive. The sender never
//! drops a frame: if the ring is full, the frame waits, as in a guest. Without `touch` only a
//! frame's headers are written, because the body was prepared once. With `touch` every byte is
//! written, and the sink verifies every byte. Sinks drop the frames they received.
//!
//! # Loss
//! Each sender numbers its frames, in the IP identification (16 bits) and, with `touch`, in the
//! payload (64 bits). Missing numbers count as lost. If a missing frame comes later, it counts as
//! reordered instead. Without `touch` a single gap of 32,768 frames or more is not detected, so
//! totals must be compared as well.
//!
//! # Source
//! The frames follow RFC 791 and RFC 768 with correct checksums.

mod args;
mod frame;
mod pacer;
mod report;
mod runner;
mod sink;
mod spec;
mod vm;

pub use args::{LoadArgs, SpecError};
pub use report::{IntervalReport, LoadReport, VmReport};
pub use runner::{LoadError, run_queue_wait_ns};
pub use sink::{Arrived, SinkCounters};
pub use spec::{LoadSpec, Phase, Rate, SizeMix, VmSpec};
pub use vm::{LoadVm, VmCounters};
