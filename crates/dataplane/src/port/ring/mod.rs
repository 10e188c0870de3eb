//! Common parts of the device sides of split and packed rings.
//!
//! Each ring's own module reads and writes its descriptors. Both then use the same code: [`pieces`]
//! are the parts of a driver's buffers, and [`frames`] copies frames out of and into them.

pub(super) mod call;
pub(super) mod frames;
pub(super) mod pieces;
mod wide;

use std::fs::File;

use crate::batch::CHAIN_MAX;

/// Descriptor flag: the chain continues in another descriptor.
pub(super) const F_NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer.
pub(super) const F_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub(super) const F_INDIRECT: u16 = 4;
/// Bad chains in a row after which a ring is stopped.
pub(super) const BAD_CHAINS_MAX: u32 = 64;
/// Maximum number of pieces of a frame: a chain that is split at region borders.
pub(super) const PIECES_MAX: usize = 2 * CHAIN_MAX;
/// Maximum number of descriptors examined for one burst into scattered buffers. The 128 KiB of the
/// largest batch fit half as many buffers of 256 bytes. A ring with smaller buffers must not make
/// its senders pay for a longer search.
pub(super) const SEARCH_MAX: usize = 4 * CHAIN_MAX;
/// Number of frames by which the bytes behind the head are prefetched ahead (datapath rule 2).
pub(super) const BODY_PREFETCH_AHEAD: usize = 3;

/// The chain breaks a rule and is not used.
pub(super) struct BadChain;

/// Maximum size of a ring (virtio 1.2 §2.7, §2.8).
pub const RING_SIZE_MAX: u32 = 32_768;

/// Addresses, size and negotiated options of a ring.
#[derive(Debug)]
pub struct RingSpec {
    /// Number of entries; a power of two for a split ring.
    pub size: u32,
    /// Driver's address of the descriptor table, or of the packed ring.
    pub descriptors: u64,
    /// Driver's address of the available ring, or of a packed ring's driver event area.
    pub available: u64,
    /// Driver's address of the used ring, or of a packed ring's device event area.
    pub used: u64,
    /// Position of the ring according to the front end, in the encoding of vhost-user. For a split
    /// ring it is the next available entry. For a packed ring, bits 0 to 14 are the next available
    /// descriptor and bit 15 is its wrap counter; the upper half has the same form and gives the
    /// next used descriptor.
    pub base: u32,
    /// Whether `VIRTIO_RING_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// Whether `VIRTIO_NET_F_MRG_RXBUF` was negotiated.
    pub mergeable: bool,
    /// Whether `VIRTIO_F_IN_ORDER` was negotiated.
    pub in_order: bool,
    /// Bytes of the virtio-net header: 12, or 10 for a legacy driver without mergeable buffers.
    pub header: usize,
    /// Event descriptor that interrupts the driver; `None` if the driver polls.
    pub call: Option<File>,
}

/// Reason for which a ring is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The size of a split ring is not a power of two, or too large.
    #[error("ring size {0} is not a power of two from 1 to {RING_SIZE_MAX}")]
    Size(u32),
    /// The size of a packed ring is zero or too large.
    #[error("packed ring size {0} is not from 1 to {RING_SIZE_MAX}")]
    PackedSize(u32),
    /// The base names a descriptor that the ring does not have.
    #[error("ring base {0:#x} lies beyond the ring")]
    Base(u32),
    /// Neither a packed ring nor an inflight region gives the ring's position.
    #[error(
        "packed ring: its position is unknown after a loss of its switch; reset the guest's \
         network device or reboot the guest"
    )]
    Lost,
    /// A part of the ring is misaligned or not in the driver's memory.
    #[error("the {0} at {1:#x} is outside the driver's memory or misaligned")]
    Address(&'static str, u64),
}
