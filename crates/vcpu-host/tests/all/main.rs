//! Tests of the vCPU scheduler with real threads of the machine that runs the tests.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod cgroups;
mod reserved;
mod service;
mod support;
