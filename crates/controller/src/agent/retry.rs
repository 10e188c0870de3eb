//! Chooses the pauses between an agent's attempts to reach a controller.
//!
//! # Problem
//!
//! Ten thousand agents may lose their controller at one moment. The agents' attempts to reconnect
//! must not overload the next controller.
//!
//! # Approach
//!
//! The pauses between two rounds of calls double from round to round, up to a limit. Half of each
//! pause is random, so that the attempts of many agents spread over time.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// Pauses of an agent that calls its controllers in rounds. In a round, the agent calls each
/// controller once.
#[derive(Debug)]
pub(super) struct Retry {
    least: Duration,
    most: Duration,
    current: Duration,
    random: u64,
}

/// Returns a seed for random pauses, which differs between processes.
pub(super) fn seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Retry {
    pub(super) fn new((least, most): (Duration, Duration), seed: u64) -> Self {
        Self { least, most, current: least, random: seed }
    }

    /// Returns the pause after a round of calls without success. The pause is a random part, 50 to
    /// 100 %, of the current length. After each round, the current length doubles, up to the
    /// longest pause.
    pub(super) fn next(&mut self) -> Duration {
        let half = self.current / 2;
        self.current = (self.current * 2).min(self.most);
        half + self.part(half)
    }

    /// Returns the pause before the next call within a round, or before the call of the leader. A
    /// pause within a round is random, and shorter than the shortest pause between rounds.
    pub(super) fn spread(&mut self) -> Duration {
        self.part(self.least)
    }

    /// Resets the pause to its shortest length after a successful session.
    pub(super) fn reset(&mut self) {
        self.current = self.least;
    }

    /// Returns a random time between zero and `of`.
    fn part(&mut self, of: Duration) -> Duration {
        const STEPS: u64 = 1 << 16;
        // This is SplitMix64 (https://prng.di.unimi.it/splitmix64.c).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let step = u32::try_from((z ^ (z >> 31)) % STEPS).unwrap_or(0);
        of * step / (1 << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_stay_above_half_and_spread() {
        let (least, most) = (Duration::from_millis(100), Duration::from_millis(450));
        let pauses = |seed| {
            let mut retry = Retry::new((least, most), seed);
            (0..5).map(|_| retry.next().as_millis()).collect::<Vec<_>>()
        };
        for seed in 0..100 {
            let pauses = pauses(seed);
            for (pause, full) in pauses.iter().zip([100, 200, 400, 450, 450]) {
                assert!((full / 2..=full).contains(pause), "{pauses:?}");
            }
        }
        let firsts: std::collections::BTreeSet<_> = (0..100).map(|seed| pauses(seed)[0]).collect();
        assert!(firsts.len() > 25, "100 agents begin at {} times", firsts.len());
        let mut retry = Retry::new((least, most), 7);
        assert!((0..1_000).all(|_| retry.spread() < least));
        retry.next();
        retry.reset();
        assert!(retry.next() <= least);
    }
}
