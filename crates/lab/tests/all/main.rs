//! Tests with a switch and guests in one process, and tests of the simulated figures. The test
//! `hostile` is a separate binary, because it counts the file descriptors and mappings of its
//! process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod bench;
mod common;
mod figures;
mod isolation;
mod kernel_ports;
mod options;
mod switch;
mod testpmd;
