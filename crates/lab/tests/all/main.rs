//! A switch with guests of ours in one process, and the figures. Beside it, `hostile` counts the
//! descriptors and mappings of its process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod bench;
mod common;
mod figures;
mod isolation;
mod kernel_ports;
mod options;
mod switch;
mod testpmd;
