//! Common parts of the device sides of split and packed rings.
//!
//! The modules for split and packed rings each read and write descriptors in their own way. Split
//! and packed rings share the modules [`pieces`] and [`frames`]. The module [`pieces`] has the
//! parts of a driver's buffers, and [`frames`] copies frames from and to a driver's buffers.

pub(super) mod call;
pub(super) mod frames;
pub(super) mod pieces;
mod wide;

use std::fs::File;

use crate::batch::CHAIN_MAX;
use crate::offload::VNET_HDR_LEN;

/// Descriptor flag: the chain continues in another descriptor.
pub(super) const F_NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer.
pub(super) const F_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub(super) const F_INDIRECT: u16 = 4;
/// Number of bad chains in a row after which the switch stops a ring.
pub(super) const BAD_CHAINS_MAX: u32 = 64;
/// Maximum number of pieces of a frame. A border between memory regions may split each buffer of a
/// chain in two.
pub(super) const PIECES_MAX: usize = 2 * CHAIN_MAX;
/// Maximum number of descriptors that the switch examines to deliver one burst into scattered
/// buffers. For example, the largest batch (128 KiB) fits into 512 buffers of 256 bytes, which is
/// half of the maximum. The limit keeps senders from paying for a long search in a receiver's ring
/// of smaller buffers.
pub(super) const SEARCH_MAX: usize = 4 * CHAIN_MAX;
/// When the switch copies frame number `k` of a list, it prefetches the bytes after the head of
/// frame number `k + BODY_PREFETCH_AHEAD` (datapath rule 2).
pub(super) const BODY_PREFETCH_AHEAD: usize = 3;

/// The descriptor chain breaks a rule, so the switch does not use the chain.
pub(super) struct BadChain;

/// Maximum number of entries of a ring (virtio 1.2 §2.7, §2.8).
pub const RING_SIZE_MAX: u32 = 32_768;

/// Addresses of a ring's parts, as virtual addresses of the driver's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// Address of the descriptor table, or of the packed ring.
    pub descriptors: u64,
    /// Address of the available ring, or of a packed ring's driver event area.
    pub available: u64,
    /// Address of the used ring, or of a packed ring's device event area.
    pub used: u64,
}

/// Addresses, size and negotiated options of a virtqueue.
#[derive(Debug)]
pub struct RingSpec {
    /// Number of entries of the ring, 1 to [`RING_SIZE_MAX`]. A split ring's number of entries is a
    /// power of two.
    pub size: u32,
    pub at: RingAddresses,
    /// Position of the ring that the front end gave, in the encoding of vhost-user. For a split
    /// ring, the base is the index of the next available entry. For a packed ring, bits 0 to 14 of
    /// the base are the index of the next available descriptor, and bit 15 is the wrap counter. The
    /// upper half of a packed ring's base encodes the next used descriptor in the same form.
    pub base: u32,
    /// Whether `VIRTIO_RING_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// Whether `VIRTIO_NET_F_MRG_RXBUF` was negotiated.
    pub mergeable: bool,
    /// Whether `VIRTIO_F_IN_ORDER` was negotiated.
    pub in_order: bool,
    /// Length in bytes of the virtio-net header: 12, or 10 for a legacy driver without mergeable
    /// buffers.
    pub header: usize,
    /// Event descriptor that interrupts the ring's driver; `None` if the driver polls.
    pub call: Option<File>,
}

impl RingSpec {
    /// A ring that begins at position 0, with mergeable buffers and no other option. The driver
    /// polls.
    #[must_use]
    pub const fn new(size: u32, at: RingAddresses) -> Self {
        Self {
            size,
            at,
            base: 0,
            event_idx: false,
            mergeable: true,
            in_order: false,
            header: VNET_HDR_LEN,
            call: None,
        }
    }
}

/// Reason why the switch refuses a ring.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The number of entries of a split ring is not a power of two, or is too large.
    #[error("ring size {0} is not a power of two from 1 to {RING_SIZE_MAX}")]
    Size(u32),
    /// The number of entries of a packed ring is zero or too large.
    #[error("packed ring size {0} is not from 1 to {RING_SIZE_MAX}")]
    PackedSize(u32),
    /// The ring's base names a descriptor that the ring does not have.
    #[error("ring base {0:#x} lies beyond the ring")]
    Base(u32),
    /// The switch cannot find a packed ring's position, neither in the ring nor in an inflight
    /// region.
    #[error(
        "packed ring: the ring's position is unknown after the switch died; reset the guest's \
         network device or reboot the guest"
    )]
    Lost,
    /// A part of the ring is misaligned or is not in the driver's memory.
    #[error("the {0} at {1:#x} is outside the driver's memory or misaligned")]
    Address(&'static str, u64),
}
