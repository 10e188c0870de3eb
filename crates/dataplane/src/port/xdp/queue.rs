//! The worker's side of one queue of an AF_XDP port.
//!
//! # Receiving
//! A received frame stays in the buffer into which the kernel put the frame. The worker copies the
//! first bytes of a frame (the head) into the frame's slot in the batch. The bytes after the
//! frame's head stay in the port's memory. `rx_done` returns the frame's buffer to the kernel.
//!
//! # Sending
//! To send a frame, the worker copies the frame once, into a free buffer. The frame is sent at once
//! ([`PortQueue::tx_burst`]) or waits in the buffer until the frame is due ([`Buffers`]).
//! [`super::pool`] tracks the places of the buffers.
//!
//! # System calls
//! Without zero-copy, the port sends up to 32 frames with one system call, and the call copies the
//! frames on the worker's core. With zero-copy, sending needs one system call if the driver sleeps
//! and reports that it needs a wake-up. An AF_XDP port receives frames without a system call.
#![allow(unsafe_code, reason = "copies frames from buffers that the kernel returned")]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_units::Cycles;

use super::super::vnet_socket::{ERRORS_MAX, PollSpacing};
use super::super::{Buffers, Held, Pending, PortQueue, TxOutcome};
use super::link::LinkState;
use super::open_checksum;
use super::pool::Pool;
use super::socket::{Opened, Rings, TX_RING, frames_too_long, wake};
use super::umem::Umem;
use crate::batch::{BATCH_FRAMES, Batch, FRAME_MIN, HEAD_COPY};
use crate::mem;
use crate::offload::{Offload, OffloadCaps};

/// Maximum number of wake-ups of the kernel in a row. Without zero-copy, each wake-up of the kernel
/// sends 32 frames.
const WAKES_MAX: u32 = TX_RING / 32;
/// Cycles between two queries for the number of frames that the kernel could not receive. The port
/// queries the kernel for this number of lost frames about every 0.1 s.
const STATISTICS_GAP: u64 = 200_000_000;
/// The flag `XDP_PKT_CONTD` means that the frame continues in the next descriptor. The port refuses
/// frames in several descriptors, because the port's socket did not request such frames.
const CONTINUED: u32 = 1;

/// Reason why the port did not copy a frame into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    TooBig,
    NoBuffer,
}

/// The worker's side of an AF_XDP queue.
pub(super) struct XdpQueue {
    socket: OwnedFd,
    umem: Umem,
    rings: Rings,
    pool: Pool,
    /// Buffers of the last `rx_burst`, on their way back to the kernel. The list of returning
    /// buffers is never longer than the receive share.
    returns: Vec<u32>,
    software: bool,
    link: Arc<LinkState>,
    /// Whether the tx ring has entries that the kernel may not have seen.
    to_send: bool,
    /// Whether the kernel had no room for some of these entries when it was woken last.
    left_over: bool,
    spacing: PollSpacing,
    now: Cycles,
    statistics_due: u64,
    too_long: u64,
    /// Number of completions of buffers that the port did not send. The field `nonsense` counts
    /// only invalid completions that the port has not yet counted as errors.
    nonsense: u32,
}

impl XdpQueue {
    /// Creates a queue on an AF_XDP socket. The caller must have filled the fill ring with the
    /// buffers of the receive share. If `software` is true, the interface may deliver frames with
    /// incomplete checksums.
    pub(super) fn new(opened: Opened, link: Arc<LinkState>, software: bool) -> Self {
        let Opened { socket, umem, rings, .. } = opened;
        let receive = rings.fill.size();
        Self {
            socket,
            pool: Pool::new(receive, umem.chunks() - receive),
            returns: Vec::with_capacity(receive as usize + 4 * BATCH_FRAMES),
            umem,
            rings,
            software,
            link,
            to_send: false,
            left_over: false,
            spacing: PollSpacing::default(),
            now: Cycles::ZERO,
            statistics_due: 0,
            too_long: 0,
            nonsense: 0,
        }
    }

    /// Takes the frame of one rx descriptor into the batch, or counts an error.
    #[inline]
    fn receive(&mut self, descriptor: libc::xdp_desc, batch: &mut Batch) {
        let place = self.umem.locate(descriptor.addr);
        let Some((buffer, start)) = place.filter(|&(buffer, _)| self.pool.received(buffer)) else {
            // The kernel was not given this address, so no buffer can be returned.
            batch.errors += 1;
            return;
        };
        self.returns.push(buffer);
        let len = descriptor.len;
        let fits = start.checked_add(len).is_some_and(|end| end <= self.umem.chunk());
        if !fits || (len as usize) < FRAME_MIN || descriptor.options & CONTINUED != 0 {
            batch.errors += 1;
            return;
        }
        if self.software {
            // SAFETY: the kernel has returned the buffer. WHY: the method is unsafe.
            let bytes = unsafe { self.umem.bytes(buffer, start, len) };
            let _was_open = bytes.is_some_and(open_checksum::finish);
        }
        self.push(buffer, start, len, batch);
    }

    /// Adds the frame in buffer `buffer` to the batch, which must have room.
    #[inline]
    fn push(&self, buffer: u32, start: u32, len: u32, batch: &mut Batch) {
        let (from, len) = (self.umem.at(buffer, start), len as usize);
        let head = len.min(HEAD_COPY);
        // SAFETY: the callers have checked that `len` bytes from `from` lie in the buffer. The
        // kernel does not write it while the port has it. The slot has HEAD_COPY bytes. WHY: the
        // copy takes a small fixed number of moves (datapath rule 4).
        unsafe { mem::copy_head(batch.next_slot(), from, head) };
        let rest = usize::from(len > head);
        if rest == 1 {
            batch.add_segment(0, from.wrapping_add(head), len - head);
        }
        batch.commit(len, head, rest, Offload::NONE);
    }

    /// Frees the buffers of the frames that the kernel has sent.
    #[inline]
    fn reap(&mut self) {
        if self.rings.completion.waiting() == 0 {
            return;
        }
        while let Some(address) = self.rings.completion.pop() {
            // If the kernel reports a buffer that it did not have, the buffer stays in its place.
            let place = self.umem.locate(address);
            if !place.is_some_and(|(buffer, _)| self.pool.completed(buffer)) {
                self.nonsense = self.nonsense.saturating_add(1);
            }
        }
        self.rings.completion.release();
    }

    /// Copies frame `i` of the batch into a free buffer.
    #[inline]
    fn copy_in(&mut self, batch: &Batch, i: usize) -> Result<Held, Refused> {
        let len = batch.frame(i).len;
        if len > self.link.frame_max() || len > self.umem.chunk() {
            return Err(Refused::TooBig);
        }
        let buffer = self.pool.take().ok_or(Refused::NoBuffer)?;
        // SAFETY: the buffer was free and belongs to the port now. WHY: the method is unsafe.
        let Some(bytes) = (unsafe { self.umem.bytes(buffer, 0, len) }) else {
            unreachable!("a buffer has room for a frame that is not longer than the buffer")
        };
        batch.copy_to(i, bytes);
        Ok(Held { buffer, len })
    }

    /// Puts a frame that is in a buffer of the port into the tx ring. Returns false if the tx ring
    /// is full.
    #[inline]
    fn queue(&mut self, frame: Held) -> bool {
        let addr = self.umem.address(frame.buffer, 0);
        let taken = self.rings.tx.push(libc::xdp_desc { addr, len: frame.len, options: 0 });
        if taken {
            let _ = self.pool.sent(frame.buffer);
            self.to_send = true;
        }
        taken
    }

    /// Wakes the kernel until the kernel has taken all entries of the tx ring or makes no progress.
    /// Returns the number of system calls that woke the kernel.
    fn wake_to_send(&mut self) -> u32 {
        let mut calls = 0;
        let mut left = self.rings.tx.backlog();
        while left > 0 && self.rings.tx.needs_wakeup() && calls < WAKES_MAX {
            calls += 1;
            let done = wake(&self.socket, true);
            let before = core::mem::replace(&mut left, self.rings.tx.backlog());
            if done.is_ok() || left == before {
                break;
            }
        }
        self.left_over = left > 0;
        self.to_send = self.left_over;
        calls
    }

    /// Wakes a driver that sleeps for lack of buffers, and sends frames for which the kernel had no
    /// room. Each call of `nudge` makes a system call, so the worker calls `nudge` only at
    /// intervals.
    #[cold]
    fn nudge(&mut self) {
        if self.left_over && self.link.is_up() {
            self.wake_to_send();
        }
        if self.rings.fill.needs_wakeup() {
            // A failure needs no handling, because the next call follows soon.
            let _ = wake(&self.socket, false);
        }
        self.spacing.polled(self.now, false);
    }

    /// Adds the number of frames that were longer than a buffer, since the last call, to the
    /// batch's errors.
    #[cold]
    fn count_too_long(&mut self, batch: &mut Batch) {
        self.statistics_due = self.now.0.saturating_add(STATISTICS_GAP);
        let so_far = frames_too_long(&self.socket).max(self.too_long);
        let since = so_far - self.too_long;
        self.too_long = so_far;
        batch.errors = batch.errors.saturating_add(u32::try_from(since).unwrap_or(u32::MAX));
    }
}

impl PortQueue for XdpQueue {
    #[inline]
    fn pending(&mut self, now: Cycles) -> Pending {
        self.now = now;
        if self.rings.rx.waiting() > 0 {
            return Pending::Yes;
        }
        // New entries wait for `notify`, whose cost their senders pay. A port pays for its polls.
        if (self.left_over || self.rings.fill.needs_wakeup()) && self.spacing.is_due(now) {
            self.nudge();
        }
        if now.0 >= self.statistics_due { Pending::Unknown } else { Pending::No }
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        if self.now.0 >= self.statistics_due {
            self.count_too_long(batch);
        }
        batch.errors = batch.errors.saturating_add(core::mem::take(&mut self.nonsense));
        let errors = batch.errors;
        // Errors are limited, so that a burst ends. The number of buffers on their way back is also
        // limited.
        while batch.has_room()
            && batch.errors - errors < ERRORS_MAX
            && self.returns.len() + 2 * BATCH_FRAMES < self.returns.capacity()
        {
            let Some(descriptor) = self.rings.rx.pop() else { break };
            self.receive(descriptor, batch);
        }
        self.rings.rx.release();
    }

    fn backlog(&mut self) -> Option<usize> {
        Some(self.rings.rx.unread() as usize)
    }

    fn rx_done(&mut self) {
        while let Some(&buffer) = self.returns.last() {
            if !self.rings.fill.push(self.umem.address(buffer, 0)) {
                return;
            }
            let _ = self.pool.refilled(buffer);
            self.returns.pop();
        }
    }

    #[inline]
    fn tx_ready(&self) -> bool {
        self.link.is_up()
    }

    fn caps(&self) -> OffloadCaps {
        OffloadCaps::NONE
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        let mut out = TxOutcome::default();
        if !self.link.is_up() {
            out.down = u32::try_from(frames.len()).unwrap_or(u32::MAX);
            return out;
        }
        self.reap();
        for i in frames.iter().copied().map(usize::from) {
            match self.copy_in(batch, i) {
                Ok(frame) if self.queue(frame) => {
                    out.frames += 1;
                    out.bytes += u64::from(frame.len);
                }
                Ok(frame) => {
                    let _ = self.pool.release(frame.buffer);
                    out.ring_full += 1;
                }
                Err(Refused::TooBig) => out.too_big += 1,
                Err(Refused::NoBuffer) => out.ring_full += 1,
            }
        }
        out
    }

    fn tx_room(&mut self) -> usize {
        // Frames that wait for a free buffer make no other call that frees the sent ones.
        self.reap();
        (self.rings.tx.size() - self.rings.tx.backlog()) as usize
    }

    fn publish(&mut self) {
        self.rings.tx.publish();
        self.rings.fill.publish();
    }

    fn notify(&mut self) -> u32 {
        if self.to_send { self.wake_to_send() } else { 0 }
    }

    fn notify_taken(&mut self) -> u32 {
        if !self.rings.fill.needs_wakeup() {
            return 0;
        }
        let _ = wake(&self.socket, false);
        1
    }

    fn buffers(&mut self) -> Option<&mut dyn Buffers> {
        Some(self)
    }
}

impl Buffers for XdpQueue {
    fn free(&self) -> usize {
        self.pool.free()
    }

    fn fill(&mut self, batch: &Batch, i: usize) -> Option<Held> {
        self.reap();
        self.copy_in(batch, i).ok()
    }

    fn bytes(&mut self, frame: Held) -> Option<&mut [u8]> {
        if !self.pool.is_held(frame.buffer) {
            return None;
        }
        // SAFETY: the frame waits in the buffer, so the kernel does not have the buffer. WHY: the
        // method is unsafe.
        unsafe { self.umem.bytes(frame.buffer, 0, frame.len) }
    }

    fn send(&mut self, frames: &[Held]) -> TxOutcome {
        let mut out = TxOutcome::default();
        let up = self.link.is_up();
        for &frame in frames {
            if !self.pool.is_held(frame.buffer) {
                debug_assert!(false, "a frame to send has no buffer in the pool");
                out.error += 1;
            } else if !up {
                let _ = self.pool.release(frame.buffer);
                out.down += 1;
            } else if self.queue(frame) {
                out.frames += 1;
                out.bytes += u64::from(frame.len);
            } else {
                break;
            }
        }
        out
    }

    fn release(&mut self, frame: Held) {
        let held = self.pool.release(frame.buffer);
        debug_assert!(held, "a frame to release has no buffer in the pool");
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
