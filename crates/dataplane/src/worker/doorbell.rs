//! The doorbell: tells a worker which of its resting queue pairs were kicked.
//!
//! **Problem.** A queue pair at rest is not polled; its driver's kick is an event of the kernel,
//! which some other thread has to wait for. That thread must reach the worker without a lock, and
//! the worker must not look at 1,000 places to learn that nothing happened. **Rule.** One bit a
//! queue pair, and one bit in a summary for each word of them. Who rings sets the bit, then the
//! word's bit; the worker takes them in the opposite order. So a word whose bit is set after the
//! worker took the summary is found the next time. Ringing twice is ringing once: a driver that
//! kicks without end makes no queue longer. **Cost.** While nobody rings, one relaxed load a sweep
//! of a line that nobody writes.

use crate::sync::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// See the module's text.
#[derive(Debug)]
pub struct Doorbell {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Doorbell {
    /// For the numbers below `bells`.
    #[must_use]
    pub fn new(bells: usize) -> Self {
        let zeros = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        let words = bells.div_ceil(BITS);
        Self { words: zeros(words), summary: zeros(words.div_ceil(BITS)) }
    }

    /// Rings for number `bell`; a number too large is nobody's.
    pub fn ring(&self, bell: usize) {
        let word = bell / BITS;
        if let (Some(bits), Some(summary)) = (self.words.get(word), self.summary.get(word / BITS)) {
            bits.fetch_or(1 << (bell % BITS), Ordering::Release);
            summary.fetch_or(1 << (word % BITS), Ordering::Release);
        }
    }

    /// Whether somebody has rung.
    #[inline]
    #[must_use]
    pub fn has_rung(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Calls `answer` with every number rung for since the last call. For the worker alone.
    pub fn answer(&self, mut answer: impl FnMut(usize)) {
        for (first, summary) in self.summary.iter().enumerate() {
            // Acquire: whoever set the bit had set the word's bits before.
            for word in ones(summary.swap(0, Ordering::Acquire)) {
                let word = first * BITS + word;
                let bits = self.words.get(word).map_or(0, |w| w.swap(0, Ordering::Acquire));
                ones(bits).for_each(|bit| answer(word * BITS + bit));
            }
        }
    }
}

/// The places of the ones in `bits`.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < BITS).then_some(at)
    })
}
