//! An AF_XDP queue without a kernel. The queue's owner acts as the kernel and writes valid or
//! invalid values into the rings.
//!
//! A stepped queue has the code and the rings of a real AF_XDP queue. The queue's socket is
//! `/dev/null`, so that system calls that wake the kernel fail.

use std::io;

use super::link::LinkState;
use super::queue::XdpQueue;
use super::ring::{Consumer, Producer, pair};
use super::socket::{Opened, Rings};
use super::umem::Umem;
use crate::port::PortQueue;

/// Number of chunks for received frames. The chunks for received frames have the numbers from 0 on.
pub const RECEIVE: u32 = 64;
/// Number of chunks for sent frames. The chunks for sent frames have numbers after the numbers of
/// the chunks for received frames.
pub const SEND: u32 = 32;
/// Binary logarithm of a chunk's size in bytes.
pub const CHUNK_SHIFT: u32 = 11;
/// Number of entries of the tx ring.
const TX: u32 = 16;

/// An index of an AF_XDP ring that the kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelIndex {
    /// Index of the fill ring: the number of chunks that the kernel has taken to receive into.
    Fill,
    /// Index of the completion ring: the number of frames that the kernel has reported as sent.
    Completion,
    /// Index of the rx ring: the number of frames that the kernel has received.
    Rx,
    /// Index of the tx ring: the number of frames that the kernel has taken to send.
    Tx,
}

/// An AF_XDP queue with the kernel's sides of the rings. The owner of a stepped queue acts as the
/// kernel through the kernel's sides of the rings.
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
    /// The fill ring contains all chunks for received frames.
    ///
    /// # Errors
    /// Returns an error if no memory or no file descriptor is free.
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

    /// Takes the address of a chunk from the fill ring, as the kernel does before it receives a
    /// frame.
    pub fn take_fill(&mut self) -> Option<u64> {
        let address = self.fill.pop()?;
        self.fill.release();
        Some(address)
    }

    /// Takes address and length of a frame from the tx ring, as the kernel does to send the frame.
    pub fn take_tx(&mut self) -> Option<(u64, u32)> {
        let descriptor = self.tx.pop()?;
        self.tx.release();
        Some((descriptor.addr, descriptor.len))
    }

    /// Reports a received frame in the rx ring. Returns false if the rx ring is full.
    pub fn say_received(&mut self, addr: u64, len: u32, options: u32) -> bool {
        let fits = self.rx.push(libc::xdp_desc { addr, len, options });
        self.rx.publish();
        fits
    }

    /// Reports in the completion ring that the frame at `address` was sent. Returns false if the
    /// completion ring is full.
    pub fn say_sent(&mut self, address: u64) -> bool {
        let fits = self.completion.push(address);
        self.completion.publish();
        fits
    }

    /// Sets the kernel's index `which` to `index`, which may be impossible.
    pub fn show(&mut self, which: KernelIndex, index: u32) {
        match which {
            KernelIndex::Fill => self.fill.show(index),
            KernelIndex::Completion => self.completion.show(index),
            KernelIndex::Rx => self.rx.show(index),
            KernelIndex::Tx => self.tx.show(index),
        }
    }
}
