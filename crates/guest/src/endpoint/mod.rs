//! Endpoints: a network namespace's own NIC on a vhost-user port.
//!
//! **Problem.** Real programs (iperf3, nginx) and the real kernel stack are the best judges of a
//! switch, and QEMU guests are slow on machines without nested KVM. An endpoint holds a TAP device
//! inside a namespace and drives a virtio-net device with what the TAP says, and back.
//!
//! **Source.** `Documentation/networking/tuntap.rst`; virtio 1.2 §5.1.6 (header).
//!
//! **Rule.** TAP and ring use the same 12-byte header, so a frame is read from the TAP straight
//! into a transmit slot and written to the TAP straight from receive buffers: checksum and TSO
//! metadata pass unchanged. One loop serves all NICs: it polls while frames move, spins for a
//! moment, then arms the interrupts, looks again, and sleeps in epoll. A switch that goes away is
//! tried again with back-off; frames it had not returned are resubmitted.
//!
//! **Departures.** The handshake with a switch that accepts and then does not answer blocks all
//! NICs of the process for up to 3 s.
//!
//! **Cost.** One system call a frame each way (a TAP has no batches), none for the rings while
//! frames move.

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
