//! Tests of a switch and our guests in one process, and of the figures. `hostile` is a separate
//! binary because it counts the descriptors and mappings of its process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod bench;
mod common;
mod figures;
mod isolation;
mod kernel_ports;
mod options;
mod switch;
mod testpmd;
