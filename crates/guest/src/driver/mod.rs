//! Drives a virtio-net device over vhost-user. The driver behaves like the virtio-net driver of a
//! VM, for tests and benchmarks.
//!
//! # Problem
//! Tests, benchmarks and endpoints need a guest that costs less than QEMU. A test must be able to
//! select every feature bit and ring size, and to violate virtio deliberately.
//!
//! # Source
//! Virtio 1.2 §2.7 and §2.8 define split and packed virtqueues, and §5.1 defines the network
//! device. The front end of the `vhost` crate implements the vhost-user protocol.
//!
//! # Quantities
//! Ring sizes are powers of two up to [`MAX_RING_SIZE`]. A *slot* is a transmit buffer, and a
//! *buffer* is a receive buffer. The sizes of slots and buffers are in bytes and include the
//! header.
//!
//! # Approach
//! A [`VirtioNet`] is a device with its guest memory, its queue pairs and its session with the
//! switch. Only one thread may use a [`TxQueue`] or an [`RxQueue`] at a time. After a session has
//! ended, [`VirtioNet::reconnect`] starts a new session with the same memory and rings.
//! [`Features::RING_PACKED`] selects the ring format. `ring.rs` implements split rings, and
//! `packed.rs` implements packed rings.
//!
//! # Cost
//! The driver allocates no memory after `connect`. In the steady state with in-order completion,
//! the descriptor table and the available entries of a split ring do not change. The caches of the
//! driver's core and of the switch's core can keep the descriptor table and the available entries,
//! because these do not change. The descriptors of a packed ring change with every use.
//!
//! # Departures
//! The device has no control queue and no configuration space, because a data-path test over
//! vhost-user needs neither.

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
