//! Tests of the vCPU scheduler on this machine.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod cgroups;
mod reserved;
mod service;
mod support;
