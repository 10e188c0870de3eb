//! Chooses the pauses between an agent's attempts to reach a controller.
//!
//! # Problem
//!
//! Ten thousand agents may lose their controller at one moment. The agents' attempts to reconnect
//! must not overload the next controller.
//!
//! # Approach
//!
//! - The pauses between two rounds of calls double from round to round, up to a limit. Half of each
//!   pause is random, so that the attempts of many agents spread over time.
//! - The first pause after the end of a session is random within the time that the last controller
//!   named. The controller names a longer time in a larger fabric.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// Pauses of an agent that calls its controllers in rounds. In a round, the agent calls each
/// controller once.
#[derive(Debug)]
pub(super) struct Retry {
    least: Duration,
    most: Duration,
    current: Duration,
    /// Time over which all agents of the fabric spread their calls after the end of a session.
    scatter: Duration,
    random: u64,
}

/// Returns a seed for random pauses, which differs between processes.
pub(super) fn seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Retry {
    pub(super) fn new((least, most): (Duration, Duration), seed: u64) -> Self {
        Self { least, most, current: least, scatter: least, random: seed }
    }

    /// Returns a pause after a round of calls without success. The pause is a random part, 50 to
    /// 100 %, of the current length.
    pub(super) fn pause(&mut self) -> Duration {
        let half = self.current / 2;
        half + self.part(half)
    }

    /// Doubles the current length of pauses, up to the longest pause.
    pub(super) fn grow(&mut self) {
        self.current = (self.current * 2).min(self.most);
    }

    /// Sets the time over which the agents spread their calls after the end of a session. The time
    /// is at least the shortest pause.
    pub(super) fn set_scatter(&mut self, time: Duration) {
        self.scatter = time.max(self.least);
    }

    /// Returns the pause after the end of a session, which is random.
    pub(super) fn scatter(&mut self) -> Duration {
        self.part(self.scatter)
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
            let next = |_| {
                let pause = retry.pause().as_millis();
                retry.grow();
                pause
            };
            (0..5).map(next).collect::<Vec<_>>()
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
        retry.grow();
        retry.reset();
        assert!(retry.pause() <= least);
    }

    #[test]
    fn the_agents_of_a_large_fabric_spread_over_the_time_that_a_controller_named() {
        let (least, named) = (Duration::from_millis(500), Duration::from_secs(6));
        let mut in_second = [0; 6];
        for seed in 0..6_000 {
            let mut retry = Retry::new((least, Duration::from_secs(10)), seed);
            assert!(retry.scatter() < least);
            retry.set_scatter(Duration::ZERO);
            assert!(retry.scatter() < least, "at least the shortest pause");
            retry.set_scatter(named);
            let second = usize::try_from(retry.scatter().as_secs()).unwrap();
            in_second[second] += 1;
        }
        assert!(in_second.iter().all(|agents| (850..1_150).contains(agents)), "{in_second:?}");
    }
}
