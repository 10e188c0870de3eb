//! Holds the frames of a NIC back, as a longer way would.
//!
//! # Problem
//!
//! TCP's behaviour depends on the round trip. Between two namespaces of one machine the round trip
//! is about 0.1 ms, and not every kernel has netem, which makes it longer.
//!
//! # Approach
//!
//! [`DelayLine`] copies each frame from the switch and keeps it in a queue until its time has come.
//! All frames wait equally long, so they keep their order.

use std::collections::VecDeque;

use crate::driver::RxFrame;

/// Bytes that a line holds at most: 50 ms at 10 Gbit/s. A longer line drops frames.
const BYTES_MAX: usize = 64 << 20;

/// The frames of a queue that wait for their time.
#[derive(Debug)]
pub(crate) struct DelayLine {
    delay_ns: u64,
    frames: VecDeque<Held>,
    bytes: usize,
}

/// A frame with its virtio header.
#[derive(Debug)]
pub(crate) struct Held {
    due_ns: u64,
    pub bytes: Vec<u8>,
    pub gso: bool,
}

impl DelayLine {
    pub fn new(delay_us: u32) -> Self {
        Self { delay_ns: u64::from(delay_us) * 1_000, frames: VecDeque::new(), bytes: 0 }
    }

    /// Whether the line delays frames at all.
    pub const fn delays(&self) -> bool {
        self.delay_ns > 0
    }

    /// Copies a frame that arrived at `now_ns`. Returns false if the line is full.
    pub fn push(&mut self, frame: &RxFrame<'_>, now_ns: u64) -> bool {
        let bytes = frame.buffers().concat();
        self.hold(bytes, frame.hdr.is_gso(), now_ns)
    }

    fn hold(&mut self, bytes: Vec<u8>, gso: bool, now_ns: u64) -> bool {
        if self.bytes + bytes.len() > BYTES_MAX {
            return false;
        }
        self.bytes += bytes.len();
        self.frames.push_back(Held { due_ns: now_ns + self.delay_ns, bytes, gso });
        true
    }

    /// Removes the first frame if its time has come.
    pub fn pop(&mut self, now_ns: u64) -> Option<Held> {
        let held = self.frames.pop_front_if(|held| held.due_ns <= now_ns)?;
        self.bytes -= held.bytes.len();
        Some(held)
    }

    /// Time at which the first frame leaves, in nanoseconds since the start.
    pub fn next_ns(&self) -> Option<u64> {
        self.frames.front().map(|held| held.due_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_order_after_the_delay() {
        let mut line = DelayLine::new(10);
        for n in 0..3 {
            assert!(line.hold(vec![n; 60], false, u64::from(n) * 4_000));
        }
        assert_eq!(line.next_ns(), Some(10_000));
        assert!(line.pop(9_999).is_none());
        let left: Vec<u8> = std::iter::from_fn(|| line.pop(14_000)).map(|f| f.bytes[0]).collect();
        assert_eq!((left, line.next_ns()), (vec![0, 1], Some(18_000)));
    }

    #[test]
    fn a_full_line_refuses_frames_until_others_left() {
        let mut line = DelayLine::new(1);
        let large = || vec![0; 65_536];
        while line.hold(large(), true, 0) {}
        assert_eq!(line.frames.len(), BYTES_MAX / 65_536);
        assert!(line.pop(1_000).is_some_and(|held| held.gso) && line.hold(large(), true, 0));
    }
}
