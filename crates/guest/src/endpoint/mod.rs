//! Endpoints: a network namespace's own NIC on a vhost-user port.
//!
//! # Problem
//! Real programs (iperf3, nginx) and the real kernel stack are the best judges of a switch, but
//! QEMU guests are slow on machines without nested KVM. An endpoint holds a TAP device inside a
//! namespace and connects it in both directions to a virtio-net device.
//!
//! # Source
//! `Documentation/networking/tuntap.rst`; virtio 1.2 §5.1.6 (header).
//!
//! # Approach
//! TAP and ring use the same 12-byte header. A frame is thus read from the TAP directly into a
//! transmit slot, and written to the TAP directly from receive buffers. Checksum and TSO metadata
//! pass unchanged. One loop serves all NICs. It polls while frames move, spins for a moment, then
//! arms the interrupts, checks the rings again, and sleeps in epoll. If the switch goes away, the
//! endpoint retries with back-off and resubmits frames that had not been returned.
//!
//! # Cost
//! Each frame costs one system call in each direction, because a TAP has no batches. The rings cost
//! no system calls while frames move.
//!
//! # Departures
//! If a switch accepts a connection and then does not answer, the handshake blocks all NICs of the
//! process for up to 3 s.

mod args;
mod counters;
mod netns;
mod nic;
mod run;
mod spec;
mod tap;

pub use netns::path as netns_path;

pub use args::EndpointArgs;
pub use counters::{EndpointReport, NicReport};
pub use run::EndpointError;
pub use spec::{EndpointSpec, NicSpec};
