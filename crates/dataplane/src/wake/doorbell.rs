//! The doorbell tells a worker which of its resting queue pairs were kicked by their drivers.
//!
//! # Problem
//!
//! A worker does not poll a queue pair at rest. The driver's kick is a kernel event, for which
//! another thread waits. The thread that waits for the kick must notify the worker without a lock.
//! The worker must not check 1,000 queue pairs to learn that nothing happened.
//!
//! # Approach
//!
//! Each queue pair has one bit in the doorbell. Each word of queue pair bits has one bit in a
//! summary. A thread that rings a bell sets the queue pair's bit first, then the summary bit. The
//! worker clears the summary bit first, then the queue pair's bit. If a thread rings a bell after
//! the worker cleared the summary bit, the worker finds the bell's bit at its next check.
//!
//! Ringing a bell twice has the same effect as ringing the bell once. A driver that kicks endlessly
//! therefore cannot fill a queue in the switch.
//!
//! # Cost
//!
//! While no bell rings, a check of the doorbell costs one relaxed load of an unmodified cache line.

use crate::sync::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// Tells a worker which queue pairs kicked: each bell has one bit, and each word of bell bits has
/// one bit in a summary.
#[derive(Debug)]
pub struct Doorbell {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Doorbell {
    /// Creates a doorbell with `bells` bells.
    #[must_use]
    pub fn new(bells: usize) -> Self {
        let zeros = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        let words = bells.div_ceil(BITS);
        Self { words: zeros(words), summary: zeros(words.div_ceil(BITS)) }
    }

    /// Rings bell number `bell`, which wakes the bell's queue pair. A bell number that is too large
    /// has no effect.
    pub fn ring(&self, bell: usize) {
        let word = bell / BITS;
        if let (Some(bits), Some(summary)) = (self.words.get(word), self.summary.get(word / BITS)) {
            bits.fetch_or(1 << (bell % BITS), Ordering::Release);
            summary.fetch_or(1 << (word % BITS), Ordering::Release);
        }
    }

    /// Whether a bell has rung since the last [`Self::answer`].
    #[inline]
    #[must_use]
    pub fn has_rung(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Clears all bells that rang since the last call, and calls `answer` with the number of each
    /// of these bells. Only the worker may call [`Self::answer`].
    pub fn answer(&self, mut answer: impl FnMut(usize)) {
        for (first, summary) in self.summary.iter().enumerate() {
            // Acquire: the thread that set this bit had set the word's bits before.
            for word in ones(summary.swap(0, Ordering::Acquire)) {
                let word = first * BITS + word;
                let bits = self.words.get(word).map_or(0, |w| w.swap(0, Ordering::Acquire));
                ones(bits).for_each(|bit| answer(word * BITS + bit));
            }
        }
    }
}

/// Returns the positions of the set bits in `bits`.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < BITS).then_some(at)
    })
}
