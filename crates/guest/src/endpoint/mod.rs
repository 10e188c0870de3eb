//! Implements endpoints, which are NICs of network namespaces on vhost-user ports.
//!
//! # Problem
//! Real programs (iperf3, nginx) and the real kernel stack are the best test of a switch. QEMU
//! guests are slow on machines without nested KVM. An endpoint opens a TAP device inside a
//! namespace, and connects it in both directions to a virtio-net device.
//!
//! # Source
//! The Linux document `Documentation/networking/tuntap.rst` describes TAP devices. Virtio 1.2
//! §5.1.6 describes the header.
//!
//! # Approach
//! A TAP and a virtio ring use the same 12-byte header. The endpoint reads frames from the TAP
//! directly into transmit slots, and writes frames to the TAP directly from receive buffers.
//! Checksum and TSO metadata pass unchanged between the TAP and the virtio ring.
//!
//! One loop serves all NICs of an endpoint and polls while frames move. When no frame has moved for
//! a while, the loop arms the interrupts, checks the rings again, and sleeps in epoll. If the
//! switch disconnects, the endpoint tries to reconnect with increasing pauses, and resubmits frames
//! that the switch had not returned.
//!
//! # Cost
//! Each frame costs one system call, because a TAP does not support batches. The virtio rings cost
//! no system calls while frames move.
//!
//! # Departures
//! If a switch accepts a connection but does not answer, the handshake blocks all NICs of the
//! process for up to 3 s.

mod args;
mod counters;
mod delay;
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
