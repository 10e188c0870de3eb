//! An AF_XDP queue without a kernel. Its owner plays the kernel and writes valid or invalid values
//! into the rings.
//!
//! The queue and its rings are those of a port. The socket is `/dev/null`, so calls to wake the
//! kernel fail.

use std::io;

use super::link::LinkState;
use super::queue::XdpQueue;
use super::ring::{Consumer, Producer, pair};
use super::socket::{Opened, Rings};
use super::umem::Umem;
use crate::port::PortQueue;

/// Number of chunks that the queue receives into. Their numbers begin at 0.
pub const RECEIVE: u32 = 64;
/// Number of chunks that the queue sends from. Their numbers follow those of the receive chunks.
pub const SEND: u32 = 32;
/// Binary logarithm of a chunk's size in bytes.
pub const CHUNK_SHIFT: u32 = 11;
/// Number of entries of the tx ring.
const TX: u32 = 16;

/// A ring, by the index that the kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelIndex {
    /// Number of chunks taken to fill.
    Fill,
    /// Number of completed frames.
    Completion,
    /// Number of received frames.
    Rx,
    /// Number of frames taken to send.
    Tx,
}

/// An AF_XDP queue whose owner plays the kernel.
pub struct SteppedXdp {
    queue: XdpQueue,
    fill: Consumer<u64>,
    completion: Producer<u64>,
    rx: Producer<libc::xdp_desc>,
    tx: Consumer<libc::xdp_desc>,
}

impl core::fmt::Debug for SteppedXdp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SteppedXdp").finish_non_exhaustive()
    }
}

impl SteppedXdp {
    /// A queue whose fill ring holds all chunks to receive into.
    ///
    /// # Errors
    /// No memory or no descriptor is free.
    pub fn new() -> io::Result<Self> {
        let umem = Umem::new(CHUNK_SHIFT, RECEIVE + SEND)?;
        let (fill, kernel_fill) = pair(RECEIVE)?;
        let (kernel_completion, completion) = pair(SEND)?;
        let (kernel_rx, rx) = pair(RECEIVE)?;
        let (tx, kernel_tx) = pair(TX)?;
        let mut rings = Rings { fill, completion, rx, tx };
        rings.fill_up(&umem);
        let socket = std::fs::File::open("/dev/null")?.into();
        let opened = Opened { socket, umem, rings, zero_copy: false };
        Ok(Self {
            queue: XdpQueue::new(opened, LinkState::fixed(true, 1518), true),
            fill: kernel_fill,
            completion: kernel_completion,
            rx: kernel_rx,
            tx: kernel_tx,
        })
    }

    pub fn queue(&mut self) -> &mut dyn PortQueue {
        &mut self.queue
    }

    /// Takes the address of a chunk to receive into.
    pub fn take_fill(&mut self) -> Option<u64> {
        let address = self.fill.pop()?;
        self.fill.release();
        Some(address)
    }

    /// Takes address and length of a frame to send.
    pub fn take_tx(&mut self) -> Option<(u64, u32)> {
        let descriptor = self.tx.pop()?;
        self.tx.release();
        Some((descriptor.addr, descriptor.len))
    }

    /// Reports a received frame. Returns false if the ring is full.
    pub fn say_received(&mut self, addr: u64, len: u32, options: u32) -> bool {
        let fits = self.rx.push(libc::xdp_desc { addr, len, options });
        self.rx.publish();
        fits
    }

    /// Reports that the frame at an address was sent. Returns false if the ring is full.
    pub fn say_sent(&mut self, address: u64) -> bool {
        let fits = self.completion.push(address);
        self.completion.publish();
        fits
    }

    /// Writes any value into an index of the kernel.
    pub fn show(&mut self, which: KernelIndex, index: u32) {
        match which {
            KernelIndex::Fill => self.fill.show(index),
            KernelIndex::Completion => self.completion.show(index),
            KernelIndex::Rx => self.rx.show(index),
            KernelIndex::Tx => self.tx.show(index),
        }
    }
}
