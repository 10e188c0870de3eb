//! Implements the receive queue, which posts buffers to the device, passes frames to a callback,
//! and reposts the buffers.
//!
//! The device owns all receive buffers except the buffers of the frame that the callback reads. A
//! frame may span several buffers (MRG_RXBUF). A frame is delivered when the device has returned
//! all buffers of the frame. Interrupts are suppressed while the driver polls. [`RxQueue::arm`]
//! requests an interrupt and checks the ring again.

use nix::sys::eventfd::EventFd;

use super::header::{VNET_HDR_LEN, VnetHdr};
use super::memory::Window;
use super::ring::Descriptor;
use super::virtqueue::Virtqueue;

/// Maximum number of buffers of one frame. A received frame that spans more than [`MAX_SEGMENTS`]
/// receive buffers is dropped and counted as bad.
pub const MAX_SEGMENTS: usize = 64;

/// Size of a cache line in bytes.
const LINE: usize = 64;
/// Number of bytes at the start of a received frame that the driver prefetches first (two cache
/// lines). The prefetched head contains a whole small frame, or the headers of a larger frame.
const HEAD_BYTES: usize = 2 * LINE;
/// Number of frames between the frame being read and the frame whose head is prefetched.
const HEAD_AHEAD: u16 = 8;
/// Number of frames between the frame being read and the frame whose body is prefetched.
const BODY_AHEAD: u16 = 2;

/// A received frame, which is still in its receive buffers.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// Virtio header that the device wrote in front of the frame.
    pub hdr: VnetHdr,
    buffers: &'a [&'a [u8]],
    len: usize,
}

impl<'a> RxFrame<'a> {
    /// Returns the receive buffers as the device filled them. The first receive buffer begins with
    /// the 12-byte virtio-net header.
    #[must_use]
    pub fn buffers(&self) -> &'a [&'a [u8]] {
        self.buffers
    }

    /// Returns the frame's bytes in each receive buffer, without the header.
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> {
        let skip = |(i, b): (usize, &&'a [u8])| if i == 0 { &b[VNET_HDR_LEN..] } else { *b };
        self.buffers.iter().enumerate().map(skip)
    }

    /// Returns the frame's bytes in the first receive buffer, without the header.
    #[must_use]
    pub fn first(&self) -> &'a [u8] {
        &self.buffers[0][VNET_HDR_LEN..]
    }

    /// Length of the frame in bytes, without the header.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the frame's bytes to `to`, without the header.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        self.segments().for_each(|s| to.extend_from_slice(s));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxCounters {
    /// Number of frames that the receive queue passed to callbacks.
    pub frames: u64,
    /// Number of bytes of the delivered frames, without headers.
    pub bytes: u64,
    /// Number of frames that spanned more than one receive buffer.
    pub merged: u64,
    /// Number of frames with an impossible length or number of buffers.
    pub bad: u64,
    /// Number of kicks that the driver sent to the device.
    pub kicks: u64,
    /// Number of used entries with an id that matches no posted receive buffer.
    pub bad_used: u64,
    /// Number of used entries that the device returned in a different order than the driver made
    /// the buffers available. With IN_ORDER, entries out of order are not counted, because the
    /// driver does not read the heads of used entries.
    pub disorder: u64,
}

#[derive(Debug)]
pub struct RxQueue {
    pub(crate) ring: Virtqueue,
    buffers: Window,
    buffer_bytes: usize,
    mergeable: bool,
    reads_bodies: bool,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    counters: RxCounters,
}

impl RxQueue {
    pub(crate) fn new(ring: Virtqueue, buffers: Window, events: (EventFd, EventFd)) -> Self {
        let buffer_bytes = buffers.len() / usize::from(ring.size());
        let mut queue = Self {
            ring,
            buffers,
            buffer_bytes,
            mergeable: false,
            reads_bodies: true,
            kick: events.0,
            call: events.1,
            counters: RxCounters::default(),
        };
        let len = u32::try_from(buffer_bytes).unwrap_or(u32::MAX);
        for i in 0..queue.ring.size() {
            let addr = queue.buffers.guest(usize::from(i) * buffer_bytes);
            // A new ring has exactly one descriptor for each buffer, in this order.
            queue.ring.add(&[(addr, len)], Descriptor::WRITE);
        }
        queue
    }

    pub(crate) fn buffers(&self) -> &Window {
        &self.buffers
    }

    pub(crate) fn set_mergeable(&mut self, mergeable: bool) {
        self.mergeable = mergeable;
    }

    /// Sets whether callbacks read more than the headers of frames. If callbacks read bodies,
    /// `recv` also prefetches the bodies of frames.
    pub fn set_reads_bodies(&mut self, reads: bool) {
        self.reads_bodies = reads;
    }

    /// Number of buffers that the device has returned and the driver has not read.
    pub fn waiting(&mut self) -> usize {
        usize::from(self.ring.used_waiting())
    }

    /// Passes up to `max` frames to `each`, and reposts the frames' buffers. Returns the number of
    /// frames that were read. Publishes the reposted buffers, and kicks the device if the device
    /// wants a kick.
    #[inline]
    pub fn recv(&mut self, max: usize, mut each: impl FnMut(&RxFrame<'_>)) -> usize {
        let waiting = self.ring.used_waiting();
        let mut left = waiting;
        let mut frames = 0;
        for first in 0..waiting.min(HEAD_AHEAD) {
            self.prefetch(first, 0..HEAD_BYTES);
        }
        while left > 0 && frames < max {
            // Prefetched lines of later frames arrive while this frame is read. Heads are
            // prefetched early, because they are short. Bodies are prefetched late, because they
            // have many lines.
            if left > HEAD_AHEAD {
                self.prefetch(HEAD_AHEAD, 0..HEAD_BYTES);
            }
            if self.reads_bodies && left > BODY_AHEAD {
                self.prefetch(BODY_AHEAD, HEAD_BYTES..self.buffer_bytes);
            }
            let taken = self.deliver(left, &mut each);
            if taken == 0 {
                break;
            }
            left -= taken;
            frames += 1;
        }
        if left != waiting {
            self.publish();
        }
        frames
    }

    /// Prefetches the bytes `range` of the buffer that is `ahead` positions after the next buffer.
    #[inline]
    fn prefetch(&self, ahead: u16, range: std::ops::Range<usize>) {
        let used = self.ring.peek_used(ahead);
        let at = usize::from(used.head) * self.buffer_bytes;
        let end = range.end.min(usize::try_from(used.len).unwrap_or(0));
        for line in (range.start..end).step_by(LINE) {
            self.buffers.prefetch(at + line);
        }
    }

    /// Calls `each` with the next received frame. Returns the number of the frame's buffers, or 0
    /// if the device has not yet returned all buffers of the frame.
    #[inline]
    fn deliver(&mut self, waiting: u16, each: &mut impl FnMut(&RxFrame<'_>)) -> u16 {
        let first = self.ring.peek_used(0);
        let Some(head) = self.bytes_of(first.head, first.len) else {
            self.discard(1);
            return 1;
        };
        let Some(hdr) = VnetHdr::parse(head) else {
            self.discard(1);
            return 1;
        };
        let count = if self.mergeable { hdr.num_buffers.max(1) } else { 1 };
        if usize::from(count) > MAX_SEGMENTS || count > self.ring.size() {
            self.discard(1);
            return 1;
        }
        if count > waiting {
            return 0;
        }
        if count == 1 {
            let len = head.len() - VNET_HDR_LEN;
            each(&RxFrame { hdr, buffers: &[head], len });
            self.done(1, len);
            return 1;
        }
        let mut segments: [&[u8]; MAX_SEGMENTS] = [&[]; MAX_SEGMENTS];
        let mut len = 0;
        for ahead in 0..count {
            let used = self.ring.peek_used(ahead);
            let Some(bytes) = self.bytes_of(used.head, used.len) else {
                self.discard(count);
                return count;
            };
            segments[usize::from(ahead)] = bytes;
            len += bytes.len();
        }
        len -= VNET_HDR_LEN;
        each(&RxFrame { hdr, buffers: &segments[..usize::from(count)], len });
        self.counters.merged += 1;
        self.done(count, len);
        count
    }

    fn bytes_of(&self, head: u16, len: u32) -> Option<&[u8]> {
        let len = usize::try_from(len).ok()?;
        (head < self.ring.size() && len <= self.buffer_bytes)
            .then(|| self.buffers.bytes(usize::from(head) * self.buffer_bytes, len))
    }

    fn done(&mut self, buffers: u16, len: usize) {
        self.counters.frames += 1;
        self.counters.bytes += len as u64;
        self.repost(buffers);
    }

    fn discard(&mut self, buffers: u16) {
        self.counters.bad += 1;
        self.repost(buffers);
    }

    fn repost(&mut self, buffers: u16) {
        for _ in 0..buffers {
            if let Some(used) = self.ring.pop_entry() {
                self.ring.repost(used.head);
            }
        }
    }

    /// Drops all waiting frames, including a frame with missing buffers. Returns the number of
    /// dropped frames.
    pub(crate) fn drop_waiting(&mut self) -> u64 {
        let mut frames = self.recv(usize::MAX, |_| ()) as u64;
        let rest = self.ring.used_waiting();
        if rest > 0 {
            self.discard(rest);
            frames += 1;
        }
        frames
    }

    /// Makes all reposted buffers visible to the device, and kicks the device if the device wants a
    /// kick.
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick_now();
        }
    }

    /// Kicks the device, even if the device wants no kick.
    pub fn kick_now(&mut self) {
        // The write fails only if the counter is at its maximum. Then a kick is already pending.
        let _ = self.kick.write(1);
        self.counters.kicks += 1;
    }

    /// Requests an interrupt at the next frame. Returns false if a received frame already waits in
    /// the ring, so that the caller must poll again.
    pub fn arm(&mut self) -> bool {
        self.ring.arm()
    }

    /// Tells the device that the driver wants no more interrupts. A pending interrupt keeps the
    /// file descriptor readable until a call of [`clear_call`].
    ///
    /// [`clear_call`]: Self::clear_call
    pub fn disarm(&mut self) {
        self.ring.suppress();
    }

    /// Clears a pending interrupt. A level-triggered wait for the next interrupt returns at once if
    /// the pending interrupt is not cleared.
    pub fn clear_call(&self) {
        // The read fails if no interrupt is pending, which is the desired state.
        let _ = self.call.read();
    }

    /// Returns the file descriptor that becomes readable when the device interrupts.
    #[must_use]
    pub fn call_fd(&self) -> &EventFd {
        &self.call
    }

    #[must_use]
    pub fn counters(&self) -> RxCounters {
        let (bad_used, disorder) = (self.ring.bad_used(), self.ring.disorder());
        RxCounters { bad_used, disorder, ..self.counters }
    }
}
