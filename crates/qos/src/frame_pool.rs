//! First-in, first-out queues that share one array of frames.

use penstock_units::Nanos;

const NIL: u32 = u32::MAX;

/// A waiting frame. The field `since` is the time at which the frame entered its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<T> {
    pub item: T,
    pub bytes: u32,
    pub since: Nanos,
    next: u32,
}

/// First-in, first-out queue of frames in a [`Pool`]. A [`Pool`] stores the frames of all queues.
/// The numbers of frames and bytes may also be those of several queues together, of which each has
/// frames of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    pub frames: u32,
    pub bytes: u64,
}

impl Queue {
    pub const EMPTY: Self = Self { head: NIL, tail: NIL, frames: 0, bytes: 0 };

    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }
}

/// Storage for the frames of all queues.
#[derive(Clone, Debug)]
pub(crate) struct Pool<T> {
    frames: Box<[Frame<T>]>,
    free: u32,
}

impl<T: Copy + Default> Pool<T> {
    pub fn new(frames: u32) -> Self {
        let place = |n: u32| {
            let next = if n + 1 < frames { n + 1 } else { NIL };
            Frame { item: T::default(), bytes: 0, since: Nanos::ZERO, next }
        };
        let free = if frames == 0 { NIL } else { 0 };
        Self { frames: (0..frames).map(place).collect(), free }
    }

    pub const fn is_full(&self) -> bool {
        self.free == NIL
    }

    pub fn head(&self, queue: &Queue) -> Option<&Frame<T>> {
        self.frames.get(queue.head as usize)
    }

    /// Appends a frame to a queue. The caller must check that the pool has a free entry.
    pub fn push(&mut self, queue: &mut Queue, item: T, bytes: u32, since: Nanos) {
        let at = self.free;
        let Some(place) = self.frames.get_mut(at as usize) else { return };
        self.free = place.next;
        *place = Frame { item, bytes, since, next: NIL };
        match self.frames.get_mut(queue.tail as usize) {
            Some(tail) => tail.next = at,
            None => queue.head = at,
        }
        queue.tail = at;
        queue.frames += 1;
        queue.bytes += u64::from(bytes);
    }

    /// Removes the first frame of a queue.
    pub fn pop(&mut self, queue: &mut Queue) -> Option<Frame<T>> {
        let at = queue.head;
        let place = self.frames.get_mut(at as usize)?;
        let frame = *place;
        place.next = self.free;
        self.free = at;
        queue.head = frame.next;
        if queue.head == NIL {
            queue.tail = NIL;
        }
        queue.frames -= 1;
        queue.bytes -= u64::from(frame.bytes);
        Some(frame)
    }
}
