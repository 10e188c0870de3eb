//! The driver side of a vhost-user virtio-net device, which plays the VM.
//!
//! # Problem
//! Tests, benchmarks and endpoints need a guest that is cheaper than QEMU. It must be able to
//! choose every feature bit and ring size, and to be hostile on purpose.
//!
//! # Source
//! Virtio 1.2 §2.7 and §2.8 (split and packed virtqueues), §5.1 (network device); the vhost-user
//! protocol as implemented by the front end of the `vhost` crate.
//!
//! # Quantities
//! Ring sizes are powers of two up to [`MAX_RING_SIZE`]. A slot is one transmit buffer, and a
//! buffer is one receive buffer. Sizes are in bytes and include the header.
//!
//! # Approach
//! A [`VirtioNet`] is one device: guest memory, queue pairs and the session with the switch. Each
//! [`TxQueue`] and [`RxQueue`] is used by one thread. The session may end and be made again
//! ([`VirtioNet::reconnect`]) while memory and rings stay. [`Features::RING_PACKED`] selects the
//! ring format; `ring.rs` (split) and `packed.rs` have the differences.
//!
//! # Cost
//! Nothing is allocated after `connect`. In the steady state with in-order completion, neither the
//! descriptor table nor the available ring of a split queue changes, so their lines stay shared. A
//! packed ring's descriptors change with every use.
//!
//! # Departures
//! There is no control queue and no configuration space, because a data-path test over vhost-user
//! needs neither.

mod device;
mod error;
mod fault;
mod features;
mod header;
mod live;
mod memory;
mod packed;
mod raw;
mod ring;
mod rx;
mod session;
mod tx;
mod virtqueue;

pub use device::{DriverConfig, QueuePair, Resubmitted, SlotOrder, SocketMode, VirtioNet};
pub use error::DriverError;
pub use fault::FaultyMemory;
pub use features::Features;
pub use header::{VNET_HDR_LEN, VnetHdr};
pub use live::DirtyPages;
pub use memory::{GuestMemory, Window};
pub use raw::RawQueue;
pub use ring::{Descriptor, MAX_RING_SIZE};
pub use rx::{MAX_SEGMENTS, RxCounters, RxFrame, RxQueue};
pub use tx::{FrameId, Slot, TxCounters, TxQueue};
