//! What the device sides of split and packed rings share.
//!
//! A ring's own file reads and writes its descriptors; from there on both rings hold [`pieces`] of
//! a driver's buffers, and [`frames`] carries frames out of and into these.

pub(super) mod call;
pub(super) mod frames;
pub(super) mod pieces;
mod wide;

use std::fs::File;

use crate::batch::CHAIN_MAX;

/// The descriptor continues in another.
pub(super) const F_NEXT: u16 = 1;
/// The device writes the buffer.
pub(super) const F_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(super) const F_INDIRECT: u16 = 4;
/// Bad chains in a row after which a ring is stopped.
pub(super) const BAD_CHAINS_MAX: u32 = 64;
/// Segments a frame may be gathered from or scattered to: a chain, split at region edges.
pub(super) const PIECES_MAX: usize = 2 * CHAIN_MAX;
/// Descriptors looked at for one burst into scattered buffers. A batch's 128 KiB at the worst need
/// half as many buffers of 256 bytes; whoever sends to a ring of smaller ones must not pay for it.
pub(super) const SEARCH_MAX: usize = 4 * CHAIN_MAX;
/// How many frames ahead the bytes behind the head are prefetched (datapath rule 2).
pub(super) const BODY_PREFETCH_AHEAD: usize = 3;

/// Why a chain is not used.
pub(super) struct BadChain;

/// The largest ring a driver may set (virtio 1.2 §2.7, §2.8).
pub const RING_SIZE_MAX: u32 = 32_768;

/// Where a driver put a ring, and how it wants it used.
#[derive(Debug)]
pub struct RingSpec {
    /// Entries; of a split ring a power of two.
    pub size: u32,
    /// Driver's address of the descriptor table, or of the packed ring.
    pub descriptors: u64,
    /// Driver's address of the available ring, or of a packed ring's driver event area.
    pub available: u64,
    /// Driver's address of the used ring, or of a packed ring's device event area.
    pub used: u64,
    /// Where the driver's side says the ring stands, as vhost-user writes it: of a split ring the
    /// next available entry; of a packed ring the next available descriptor in bits 0-14 and its
    /// wrap counter in bit 15, the same of the next used one in the upper half.
    pub base: u32,
    /// `VIRTIO_RING_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_NET_F_MRG_RXBUF` was negotiated.
    pub mergeable: bool,
    /// `VIRTIO_F_IN_ORDER` was negotiated.
    pub in_order: bool,
    /// Bytes of the virtio-net header: 12, or 10 for a legacy driver without mergeable buffers.
    pub header: usize,
    /// Interrupts the driver; `None`: it polls.
    pub call: Option<File>,
}

/// A ring cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// Not a power of two, or too large, for a split ring.
    #[error("ring size {0} is not a power of two from 1 to {RING_SIZE_MAX}")]
    Size(u32),
    /// Too large, or none at all.
    #[error("packed ring size {0} is not from 1 to {RING_SIZE_MAX}")]
    PackedSize(u32),
    /// The base names a descriptor that the ring does not have.
    #[error("ring base {0:#x} lies beyond the ring")]
    Base(u32),
    /// A packed ring that says neither itself nor by an inflight region where it stands.
    #[error(
        "packed ring: its position is unknown after a loss of its switch; reset the guest's \
         network device or reboot the guest"
    )]
    Lost,
    /// A part of the ring is not in the driver's memory, or misaligned.
    #[error("the {0} at {1:#x} is outside the driver's memory or misaligned")]
    Address(&'static str, u64),
}
