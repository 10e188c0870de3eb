//! Implements the load generator, which runs many VMs in one polling loop on one core.
//!
//! # Problem
//! A measurement with two polling processes on one core measures the Linux scheduler. An external
//! generator saturates before the switch does. In this generator, one loop serves all VMs, with
//! full rings and prepared buffers.
//!
//! # Quantities
//! The size of a frame is its length on a wire, including the FCS. For example, a frame of size 64
//! has 60 bytes in the ring. Rates in bits per second count frame sizes, including the FCS. Each
//! sending VM has its own rate. Rate 0 means that a VM sends as fast as the ring accepts frames.
//!
//! # Approach
//! In each turn of the loop, every VM sends a burst and receives a burst. The sender never drops a
//! frame. If the ring is full, the frame waits, as in a guest. Without `touch`, only a frame's
//! headers are written, because the body was prepared before the run. With `touch`, every byte is
//! written, and the sink verifies every byte. Sinks discard received frames.
//!
//! # Loss
//! Each sender numbers its frames, in the IP identification (16 bits) and, with `touch`, in the
//! payload (64 bits). Missing sequence numbers count as lost frames. If a missing frame arrives
//! later, the frame counts as reordered instead of lost. Without `touch`, a single gap of 32,768
//! frames or more is not detected, so compare the totals as well.
//!
//! # Source
//! The generator's frames follow RFC 791 and RFC 768, with correct checksums.

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
pub use spec::{Destination, LoadSpec, Phase, Rate, SizeMix, VmSpec};
pub use vm::{LoadVm, VmCounters};
